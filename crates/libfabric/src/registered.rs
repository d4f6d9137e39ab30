//! Memory that a port registered.

use std::fmt;
use std::rc::Rc;

use weft_memory::Memory;

use crate::abi::{self, Mr, flags};
use crate::error::Error;
use crate::objects::{DomainObjects, Handle, Objects};
use crate::offer::Offer;
use crate::port::Spot;

/// What peers may do with registered memory. The own endpoint may read and write it always.
///
/// Rights keep peers from mistakes. Over libfabric's providers in software (`net`, `tcp;ofi_rxm`)
/// they do not stop a hostile one that knows the key: the check adds the peer's own length to the
/// address, which may wrap, so that it reaches the memory behind the range (libfabric 1.17 to 2.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Peers may read.
    pub read: bool,
    /// Peers may write.
    pub write: bool,
}

impl Rights {
    const fn bits(self) -> u64 {
        let own = flags::SEND | flags::RECV | flags::READ | flags::WRITE;
        let read = if self.read { flags::REMOTE_READ } else { 0 };
        let write = if self.write { flags::REMOTE_WRITE } else { 0 };
        own | read | write
    }
}

/// A range of memory that is registered with a port's domain. The port owns it: one thread at a
/// time may use a domain and what was made of it.
pub struct Registered {
    mr: Handle<Mr>,
    memory: Memory,
    offset: usize,
    length: usize,
    names_by_address: bool,
    /// Lives longer than the registration.
    _domain: Rc<DomainObjects>,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it is dropped, and operations that name it keep it.
        if !unsafe { self.mr.close() } {
            // Peers may still reach it.
            std::mem::forget(self.memory.clone());
        }
    }
}

impl Registered {
    /// Registers a range. The caller has checked that it lies inside the memory.
    pub fn new(
        offer: &Offer,
        objects: &Objects,
        (memory, offset, length): (&Memory, usize, usize),
        rights: Rights,
        key: u64,
    ) -> Result<Self, Error> {
        let library = offer.library();
        let segment = memory.segment();
        assert!(
            offset <= segment.length() && length <= segment.length() - offset,
            "the range lies inside the memory"
        );
        let start = segment.base().as_ptr().wrapping_add(offset);
        let mut mr = std::ptr::null_mut();
        let domain = objects.domain.domain.as_ptr();
        // SAFETY: a live domain; the range is mapped, and `memory` keeps it mapped for as long as
        // the registration exists.
        let mr = unsafe {
            let register = (*(*domain).mr).reg;
            let code = register(
                objects.domain.domain.fid(),
                start.cast(),
                length,
                rights.bits(),
                0,
                key,
                0,
                &raw mut mr,
                std::ptr::null_mut(),
            );
            library.check("fi_mr_reg", code)?;
            Handle::<Mr>::new(library, "fi_mr_reg", mr)?
        };
        if offer.binds_to_endpoint() {
            mr.bind(library, &objects.ep, 0)?;
            mr.control(library, abi::CONTROL_ENABLE)?;
        }
        let (memory, names_by_address) = (memory.clone(), offer.names_by_address());
        let _domain = Rc::clone(&objects.domain);
        Ok(Self { mr, memory, offset, length, names_by_address, _domain })
    }

    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where peers find the first byte.
    #[must_use]
    pub fn spot(&self) -> Spot {
        // SAFETY: the registration lives as long as `self`.
        let key = unsafe { (*self.mr.as_ptr()).key };
        let address = if self.names_by_address {
            self.part(0, 0).map_or(0, |start| start.addr() as u64)
        } else {
            0
        };
        Spot { address, key }
    }

    /// The address of `length` bytes from `offset` on, if they lie inside the range.
    pub fn part(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let fits = offset <= self.length && length <= self.length - offset;
        fits.then(|| self.memory.segment().base().as_ptr().wrapping_add(self.offset + offset))
    }

    /// The descriptor that operations of the own endpoint name the memory by.
    pub fn descriptor(&self) -> *mut std::ffi::c_void {
        // SAFETY: as in `spot`.
        unsafe { (*self.mr.as_ptr()).descriptor }
    }
}
