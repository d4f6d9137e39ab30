//! Memory that a port registered.

use std::ffi::c_void;
use std::rc::Rc;

use weft_memory::{Memory, Stay};

use crate::abi::{self, errno, flag};
use crate::error::Error;
use crate::objects::{DomainObjects, Handle, Objects};
use crate::offer::Offer;
use crate::port::Spot;

/// The rights of peers to registered memory. The own endpoint may read and write it always.
///
/// Rights hold against mistakes, not against a hostile peer that knows a key. Hardware checks each
/// access. libfabric 1.17's software (`net`, `tcp;ofi_rxm`) does not: a length of nearly 2^64 bytes
/// passes its check and reaches what lies behind the range, and `shm` looks at nothing. rxm, also
/// that over `verbs`, lets a peer read what it may only write. What keeps strangers out of software
/// is that keys are random, as long as nobody listens on the way; a NIC chooses its keys itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Peers may read.
    pub read: bool,
    /// Peers may write.
    pub write: bool,
}

/// Keys that are tried.
const DRAWS: usize = 16;

/// The own endpoint may do everything.
const OWN: u64 = flag::SEND | flag::RECV | flag::READ | flag::WRITE;

impl Rights {
    const fn bits(self) -> u64 {
        let read = if self.read { flag::REMOTE_READ } else { 0 };
        let write = if self.write { flag::REMOTE_WRITE } else { 0 };
        OWN | read | write
    }

    /// Whether peers may do anything.
    pub(crate) const fn any(self) -> bool {
        self.read || self.write
    }
}

/// A range of memory.
#[derive(Clone, Debug)]
pub struct Range {
    pub memory: Memory,
    pub offset: usize,
    pub length: usize,
}

impl Range {
    /// The range, if it lies inside the memory.
    pub fn new((memory, offset, length): (&Memory, usize, usize)) -> Option<Self> {
        let whole = memory.segment().length();
        let fits = offset <= whole && length <= whole - offset;
        fits.then(|| Self { memory: memory.clone(), offset, length })
    }

    fn start(&self) -> *mut u8 {
        self.memory.segment().base().as_ptr().wrapping_add(self.offset)
    }
}

/// A registration with the provider. The port owns it: one thread at a time may use a domain and
/// what was made of it.
#[derive(Debug)]
pub struct Mr {
    handle: Handle<abi::Mr>,
    memory: Memory,
    /// Lives longer than the registration.
    _domain: Rc<DomainObjects>,
}

impl Drop for Mr {
    fn drop(&mut self) {
        if !self.close() {
            // Peers may still reach it.
            std::mem::forget(self.memory.clone());
        }
    }
}

impl Mr {
    /// Registers a range for the own endpoint alone.
    pub fn own(offer: &Offer, objects: &Objects, range: &Range) -> Result<Self, Error> {
        Self::new(offer, objects, range, OWN)
    }

    fn new(offer: &Offer, objects: &Objects, range: &Range, access: u64) -> Result<Self, Error> {
        let library = offer.library();
        let mut mr = std::ptr::null_mut();
        let domain = objects.domain.domain.as_ptr();
        let mut code = -errno::ENOKEY;
        // Another registration may have the key that was drawn, where keys are short.
        for _ in 0..DRAWS {
            let key = offer.draw_key()?;
            // SAFETY: a live domain; the range is mapped, and `memory` keeps it mapped for as long
            // as the registration exists.
            code = unsafe {
                let register = (*(*domain).mr).reg;
                register(
                    objects.domain.domain.fid(),
                    range.start().cast(),
                    range.length,
                    access,
                    0,
                    key,
                    0,
                    &raw mut mr,
                    std::ptr::null_mut(),
                )
            };
            if code != -errno::ENOKEY {
                break;
            }
        }
        library.check("fi_mr_reg", code)?;
        // SAFETY: the call has made it.
        let handle = unsafe { Handle::<abi::Mr>::new(library, "fi_mr_reg", mr)? };
        let (memory, _domain) = (range.memory.clone(), Rc::clone(&objects.domain));
        let mr = Self { handle, memory, _domain };
        if offer.binds_to_endpoint() {
            mr.handle.bind(library, &objects.ep, 0)?;
            mr.handle.control(library, abi::CONTROL_ENABLE)?;
        }
        Ok(mr)
    }

    /// Ends the registration: it refuses new operations, and may go on with those that it has. No
    /// operation may name it any more. False if the provider refuses; it is asked again at the end
    /// of this value.
    pub fn close(&self) -> bool {
        // SAFETY: no operation names it any more.
        unsafe { self.handle.close() }
    }

    fn key(&self) -> u64 {
        // SAFETY: the registration lives as long as `self`.
        unsafe { (*self.handle.as_ptr()).key }
    }

    /// The descriptor that operations of the own endpoint name the memory by.
    pub fn descriptor(&self) -> *mut c_void {
        // SAFETY: as in `key`.
        unsafe { (*self.handle.as_ptr()).descriptor }
    }
}

/// A range that is registered, for peers, for the own endpoint, or for both: the rights of peers
/// end apart from what the own endpoint has under way.
#[derive(Debug)]
pub struct Registered {
    range: Range,
    /// The provider knows addresses, and a NIC has the pages: memory that moves leaves it behind.
    stay: Rc<Stay>,
    /// For peers. `None` where they have no rights.
    for_peers: Option<Mr>,
    /// For the own endpoint, where it needs that.
    own: Option<Rc<Mr>>,
    names_by_address: bool,
}

impl Registered {
    /// Registers a range.
    pub fn new(
        offer: &Offer,
        objects: &Objects,
        range: Range,
        rights: Rights,
    ) -> Result<Self, Error> {
        let moves = |error: weft_memory::SegmentError| Error::Memory(error.to_string());
        let stay = Rc::new(range.memory.stay().map_err(moves)?);
        let for_peers =
            rights.any().then(|| Mr::new(offer, objects, &range, rights.bits())).transpose()?;
        let names_by_address = offer.names_by_address();
        let mut new = Self { range, stay, for_peers, own: None, names_by_address };
        // That of a range for peers is made when the own endpoint uses it, which is rare.
        if new.for_peers.is_none() {
            new.own(offer, objects)?;
        }
        Ok(new)
    }

    /// Where peers find the first byte. Nowhere, if they have no rights.
    pub fn spot(&self) -> Spot {
        let Some(mr) = &self.for_peers else { return Spot::default() };
        let address = if self.names_by_address { self.range.start().addr() as u64 } else { 0 };
        Spot { address, key: mr.key() }
    }

    /// The memory, if peers may reach it.
    pub fn reached(&self) -> Option<&Memory> {
        self.for_peers.as_ref().map(|_| &self.range.memory)
    }

    /// The address of `length` bytes from `offset` on, if they lie inside the range.
    pub fn part(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let fits = offset <= self.range.length && length <= self.range.length - offset;
        fits.then(|| self.range.start().wrapping_add(offset))
    }

    /// A hold on the memory for an operation of the own endpoint.
    pub fn own(&mut self, offer: &Offer, objects: &Objects) -> Result<Used, Error> {
        if self.own.is_none() && offer.needs_local_registration() {
            self.own = Some(Rc::new(Mr::own(offer, objects, &self.range)?));
        }
        Ok(Used { _stay: Rc::clone(&self.stay), mr: self.own.clone() })
    }

    /// Ends the registrations, and keeps the memory.
    pub fn close(&self) {
        for mr in self.for_peers.iter().chain(self.own.as_deref()) {
            mr.close();
        }
    }
}

/// Memory that an operation of the own endpoint uses.
#[derive(Debug)]
pub struct Used {
    _stay: Rc<Stay>,
    pub mr: Option<Rc<Mr>>,
}

impl Used {
    pub fn descriptor(&self) -> *mut c_void {
        self.mr.as_ref().map_or(std::ptr::null_mut(), |mr| mr.descriptor())
    }
}
