//! The objects of a port: fabric, domain, address vector, completion queue, endpoint.
//!
//! Each closes itself when it is dropped. [`Objects`] drops them in the order in which libfabric
//! wants them closed.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::abi::{self, Av, AvAttr, Cq, CqAttr, Domain, Ep, Fabric, Fid, Padded};
use crate::error::Error;
use crate::library::Library;
use crate::offer::Offer;
use crate::waits::Waits;

/// An object of libfabric whose head is a [`Fid`].
pub struct Handle<T> {
    object: NonNull<T>,
    is_open: Cell<bool>,
    owns: PhantomData<T>,
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object.fmt(f)
    }
}

impl<T> Handle<T> {
    /// # Safety
    /// `object` is null or a new object of libfabric that begins with a [`Fid`], and nobody else
    /// closes it.
    pub unsafe fn new(
        library: &Library,
        call: &'static str,
        object: *mut T,
    ) -> Result<Self, Error> {
        let object = NonNull::new(object).ok_or_else(|| library.error(call, -libc::ENOMEM))?;
        Ok(Self { object, is_open: Cell::new(true), owns: PhantomData })
    }

    pub const fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }

    pub const fn fid(&self) -> *mut Fid {
        self.object.as_ptr().cast()
    }

    /// Binds another object to this one.
    pub fn bind<U>(&self, library: &Library, to: &Handle<U>, flags: u64) -> Result<(), Error> {
        let fid = self.fid();
        // SAFETY: both are live objects.
        let code = unsafe { ((*(*fid).ops).bind)(fid, to.fid(), flags) };
        library.check("fi_bind", code)
    }

    /// `fi_control` without an argument.
    pub fn control(&self, library: &Library, command: c_int) -> Result<(), Error> {
        // SAFETY: a command that takes no argument.
        library.check("fi_control", unsafe { self.command(command, std::ptr::null_mut()) })
    }

    /// `fi_control`.
    ///
    /// # Safety
    /// The argument is what the command takes.
    pub unsafe fn command(&self, command: c_int, argument: *mut c_void) -> c_int {
        let fid = self.fid();
        // SAFETY: a live object; the caller promises the argument.
        unsafe { ((*(*fid).ops).control)(fid, command, argument) }
    }
}

impl<T> Handle<T> {
    /// Closes the object, unless it is closed. False when the provider refuses: the object stays,
    /// and with it what it uses.
    ///
    /// # Safety
    /// Nothing uses the object after this call but a further one of it.
    pub unsafe fn close(&self) -> bool {
        if self.is_open.get() {
            let fid = self.fid();
            // SAFETY: a live object; the rest as the caller promises.
            self.is_open.set(unsafe { ((*(*fid).ops).close)(fid) != 0 });
        }
        !self.is_open.get()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: it is dropped. An object that cannot be closed costs memory alone: the owners of
        // those that use memory of others ask first.
        let _ = unsafe { self.close() };
    }
}

/// The objects of one endpoint. The fields are dropped in this order.
#[derive(Debug)]
pub struct Objects {
    pub ep: Handle<Ep>,
    pub av: Handle<Av>,
    pub cq: Handle<Cq>,
    pub domain: Rc<DomainObjects>,
    /// The descriptor that a caller can sleep on.
    pub waits: Waits,
}

/// A domain and its fabric. Registered memory keeps them.
#[derive(Debug)]
pub struct DomainObjects {
    pub domain: Handle<Domain>,
    pub fabric: Handle<Fabric>,
}

impl Objects {
    /// Opens all objects of an offer, and does not enable the endpoint yet.
    pub fn open(offer: &Offer, entries: usize) -> Result<Self, Error> {
        let library = offer.library();
        let info = offer.info();
        // SAFETY: the offer's, with all attributes.
        let fabric = unsafe {
            let fabric = library.open_fabric((*info).fabric)?;
            Handle::<Fabric>::new(library, "fi_fabric", fabric)?
        };
        let mut domain = std::ptr::null_mut();
        // SAFETY: live objects, and the table is as long as the interface says.
        let domain = unsafe {
            let open = (*(*fabric.as_ptr()).ops).domain;
            let code = open(fabric.as_ptr(), info, &raw mut domain, std::ptr::null_mut());
            library.check("fi_domain", code)?;
            Handle::<Domain>::new(library, "fi_domain", domain)?
        };
        let (cq, waits) = open_cq(offer, &domain, entries)?;
        let mut attr = Padded::new(AvAttr {
            kind: abi::AV_TABLE,
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            name: std::ptr::null(),
            map_addr: std::ptr::null_mut(),
            flags: 0,
        });
        let mut av = std::ptr::null_mut();
        // SAFETY: as above; the attributes live until the call is over.
        let av = unsafe {
            let open = (*(*domain.as_ptr()).ops).av_open;
            let attr = &raw mut attr.known;
            let code = open(domain.as_ptr(), attr, &raw mut av, std::ptr::null_mut());
            library.check("fi_av_open", code)?;
            Handle::<Av>::new(library, "fi_av_open", av)?
        };
        let mut ep = std::ptr::null_mut();
        // SAFETY: as above.
        let ep = unsafe {
            let open = (*(*domain.as_ptr()).ops).endpoint;
            let code = open(domain.as_ptr(), info, &raw mut ep, std::ptr::null_mut());
            library.check("fi_endpoint", code)?;
            Handle::<Ep>::new(library, "fi_endpoint", ep)?
        };
        let domain = Rc::new(DomainObjects { domain, fabric });
        Ok(Self { ep, av, cq, domain, waits })
    }
}

/// A completion queue with a descriptor, or without one where the provider has none.
fn open_cq(
    offer: &Offer,
    domain: &Handle<Domain>,
    entries: usize,
) -> Result<(Handle<Cq>, Waits), Error> {
    let library = offer.library();
    let mut last = None;
    for kind in Waits::kinds(offer) {
        let mut attr = Padded::new(CqAttr {
            size: entries,
            flags: 0,
            format: abi::CQ_FORMAT_DATA,
            wait_obj: *kind,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: std::ptr::null_mut(),
        });
        let mut cq = std::ptr::null_mut();
        // SAFETY: live objects; the attributes live until the call is over.
        let opened = unsafe {
            let open = (*(*domain.as_ptr()).ops).cq_open;
            let attr = &raw mut attr.known;
            let code = open(domain.as_ptr(), attr, &raw mut cq, std::ptr::null_mut());
            library
                .check("fi_cq_open", code)
                .and_then(|()| Handle::<Cq>::new(library, "fi_cq_open", cq))
        };
        match opened {
            Ok(cq) => {
                if let Some(waits) = Waits::of(&cq, *kind) {
                    return Ok((cq, waits));
                }
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| library.error("fi_cq_open", -libc::ENOSYS)))
}
