//! Offers: the endpoints that providers have on this host.

use std::ffi::{CStr, CString, c_char};
use std::ops::RangeInclusive;

use crate::abi::{self, DomainAttr, EpAttr, Info, RxAttr, TxAttr, flag, mode, mr_mode, order};
use crate::error::Error;
use crate::library::Library;

/// Providers whose messages arrive when the bytes of the writes before them are there: they were
/// looked at. `sockets` may lose a write without a word when a connection breaks.
const KEEP_MESSAGES_BEHIND_WRITES: [&str; 3] = ["net", "tcp;ofi_rxm", "verbs;ofi_rxm"];

/// Which offers are wanted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The name of a provider, as `fi_info` prints it: `net`, `tcp;ofi_rxm`, `verbs;ofi_rxm`.
    pub provider: Option<String>,
    /// The address of the own host whose interface is used, such as `10.9.0.1`. Not a name:
    /// providers would ask other hosts for it.
    pub source: Option<String>,
    /// The TCP ports at which endpoints listen; any without. For providers whose endpoints have
    /// IP addresses; others pass over it. See [`Port::of`](crate::Port::of).
    pub ports: Option<RangeInclusive<u16>>,
}

/// The mover of the data of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The provider, by hardware or a thread of its own.
    Automatic,
    /// Calls of the program alone.
    Manual,
}

/// A reliable datagram endpoint that a provider offers.
#[derive(Debug)]
pub struct Offer {
    library: &'static Library,
    info: *mut Info,
}

// SAFETY: an offer owns its `fi_info`, which no other thread knows. It is only read after it was
// made. Libfabric gets it when a port is opened, which consumes the offer.
unsafe impl Send for Offer {}
// SAFETY: as above.
unsafe impl Sync for Offer {}

impl Drop for Offer {
    fn drop(&mut self) {
        // SAFETY: the offer owns it, and nobody uses it any more.
        unsafe { self.library.free(self.info) }
    }
}

impl Library {
    /// The endpoints that serve the fabric: reliable datagrams, messages in order, remote memory
    /// access. The library's own order: those of hardware come first.
    ///
    /// # Errors
    /// [`Error::Call`], also for a source that is no address (EINVAL). Without any such endpoint
    /// the list is empty.
    pub fn offers(&'static self, wanted: &Wanted) -> Result<Vec<Offer>, Error> {
        self.offers_at(wanted, None)
    }

    /// The same, to listen at this port.
    pub(crate) fn offers_at(
        &'static self,
        wanted: &Wanted,
        port: Option<u16>,
    ) -> Result<Vec<Offer>, Error> {
        let mut offers = Vec::new();
        if wanted
            .provider
            .as_deref()
            .is_some_and(|name| KEEP_MESSAGES_BEHIND_WRITES.contains(&name))
        {
            offers = self.offers_with(wanted, port, order::SAS | order::SAW)?;
        }
        if offers.is_empty() {
            offers = self.offers_with(wanted, port, order::SAS)?;
        }
        Ok(offers)
    }

    /// The same, in this order.
    fn offers_with(
        &'static self,
        wanted: &Wanted,
        port: Option<u16>,
        order: u64,
    ) -> Result<Vec<Offer>, Error> {
        let hints = Offer { library: self, info: self.empty_info() };
        if hints.info.is_null() {
            return Err(self.error("fi_dupinfo", -libc::ENOMEM));
        }
        if !wanted.source.as_deref().is_none_or(is_address) {
            return Err(self.error("fi_getinfo", -libc::EINVAL));
        }
        let no_zero = |_| self.error("fi_getinfo", -libc::EINVAL);
        let provider = wanted.provider.as_deref().map(CString::new).transpose().map_err(no_zero)?;
        let source = wanted.source.as_deref().map(CString::new).transpose().map_err(no_zero)?;
        let port = port.map(|port| CString::new(port.to_string())).transpose().map_err(no_zero)?;
        // SAFETY: the library made it with all its attributes, and `hints` owns it.
        unsafe {
            let info = &mut *hints.info;
            info.caps = flag::MSG | flag::RMA;
            info.mode = mode::CONTEXT | mode::CONTEXT2;
            (*info.ep).kind = abi::EP_RDM;
            (*info.tx).msg_order = order;
            (*info.rx).msg_order = order;
            let domain = &mut *info.domain;
            domain.mr_mode = mr_mode::LOCAL
                | mr_mode::VIRT_ADDR
                | mr_mode::ALLOCATED
                | mr_mode::PROV_KEY
                | mr_mode::ENDPOINT;
            domain.threading = abi::THREAD_DOMAIN;
            domain.av_type = abi::AV_TABLE;
            domain.resource_mgmt = abi::RESOURCES_ENABLED;
            if let Some(provider) = &provider {
                // The library frees it by free(3).
                (*info.fabric).provider = libc::strdup(provider.as_ptr());
            }
        }
        let from = if source.is_some() || port.is_some() { flag::SOURCE } else { 0 };
        // SAFETY: `hints` is one of the library's, and so are its pointers.
        let list = unsafe { self.get_info(source.as_deref(), port.as_deref(), from, hints.info)? };
        let mut offers = Vec::new();
        let mut next = list;
        while !next.is_null() {
            // SAFETY: an element of the list, which is freed below.
            let copy = unsafe { self.duplicate(next) };
            if !copy.is_null() {
                let offer = Offer { library: self, info: copy };
                // A name in the hints also finds what is layered above that provider.
                let is_it =
                    || wanted.provider.as_ref().is_none_or(|name| *name == offer.provider());
                // Weft's own provider is above this library, and would ask it again.
                let is_own = offer.provider().split(';').any(|name| name == "weft");
                if !is_own && offer.has_all_attributes() && is_it() {
                    offer.forget_objects();
                    offers.push(offer);
                }
            }
            // SAFETY: as above.
            next = unsafe { (*next).next };
        }
        if !list.is_null() {
            // SAFETY: the copies do not refer to it.
            unsafe { self.free(list) };
        }
        Ok(offers)
    }
}

impl Offer {
    /// The library that made the offer.
    #[must_use]
    pub const fn library(&self) -> &'static Library {
        self.library
    }

    pub(crate) const fn info(&self) -> *mut Info {
        self.info
    }

    /// Objects that other ports have opened stand in what the library tells. They may be closed
    /// before this offer is opened.
    fn forget_objects(&self) {
        // SAFETY: the offer owns them, and nobody else knows it yet.
        unsafe {
            (*(*self.info).domain).domain = std::ptr::null_mut();
            (*(*self.info).fabric).fabric = std::ptr::null_mut();
        }
    }

    fn has_all_attributes(&self) -> bool {
        let info = self.head();
        let pointers = [info.tx.is_null(), info.rx.is_null(), info.ep.is_null()];
        !(pointers.contains(&true) || info.domain.is_null() || info.fabric.is_null())
    }

    fn head(&self) -> &Info {
        // SAFETY: the offer owns it.
        unsafe { &*self.info }
    }

    pub(crate) fn tx(&self) -> &TxAttr {
        // SAFETY: every offer has all attributes, see `Library::offers`.
        unsafe { &*self.head().tx }
    }

    pub(crate) fn rx(&self) -> &RxAttr {
        // SAFETY: as above.
        unsafe { &*self.head().rx }
    }

    fn ep(&self) -> &EpAttr {
        // SAFETY: as above.
        unsafe { &*self.head().ep }
    }

    fn domain_attr(&self) -> &DomainAttr {
        // SAFETY: as above.
        unsafe { &*self.head().domain }
    }

    fn text(text: *const c_char) -> String {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: the library's strings end with a zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The name of the provider, such as `net` or `verbs;ofi_rxm`.
    #[must_use]
    pub fn provider(&self) -> String {
        // SAFETY: every offer has all attributes.
        Self::text(unsafe { (*self.head().fabric).provider })
    }

    /// The name of the fabric, such as `10.9.0.0/24`.
    #[must_use]
    pub fn fabric(&self) -> String {
        // SAFETY: as above.
        Self::text(unsafe { (*self.head().fabric).name })
    }

    /// The name of the domain, such as `eth0` or `mlx5_0`.
    #[must_use]
    pub fn domain(&self) -> String {
        Self::text(self.domain_attr().name)
    }

    /// Bytes of a message whose memory may be reused when the call returns.
    #[must_use]
    pub fn inject_bytes(&self) -> usize {
        self.tx().inject_size
    }

    /// Bytes of one operation at most.
    #[must_use]
    pub fn operation_bytes_max(&self) -> usize {
        self.ep().max_msg_size
    }

    /// Whether a message to a peer arrives when the bytes of all writes are there that were begun
    /// before it. `FI_ORDER_SAW` says that the target handles them in this order, and not when
    /// bytes are visible: they are with the providers that were looked at, which have one stream or
    /// queue for both. Such a provider is asked for it when it is wanted by its name.
    #[must_use]
    pub fn keeps_messages_behind_writes(&self) -> bool {
        let is_kept = self.tx().msg_order & self.rx().msg_order & order::SAW != 0;
        is_kept && KEEP_MESSAGES_BEHIND_WRITES.contains(&self.provider().as_str())
    }

    /// The mover of the data.
    #[must_use]
    pub fn progress(&self) -> Progress {
        if self.domain_attr().data_progress == abi::PROGRESS_AUTO {
            Progress::Automatic
        } else {
            Progress::Manual
        }
    }

    /// Whether memory must be registered before the own endpoint reads or writes it.
    pub(crate) fn needs_local_registration(&self) -> bool {
        self.domain_attr().mr_mode & mr_mode::LOCAL != 0
    }

    /// Whether peers name memory by its address in this process, and not by an offset.
    pub(crate) fn names_by_address(&self) -> bool {
        self.domain_attr().mr_mode & mr_mode::VIRT_ADDR != 0
    }

    /// Whether the provider chooses the keys.
    pub(crate) fn chooses_keys(&self) -> bool {
        self.domain_attr().mr_mode & mr_mode::PROV_KEY != 0
    }

    /// The format of the names of its endpoints.
    pub(crate) fn name_format(&self) -> u32 {
        self.head().address_format
    }

    /// Whether its endpoints have IP addresses, and so listen at ports.
    pub(crate) fn has_ip_addresses(&self) -> bool {
        (abi::FORMAT_SOCKADDR..=abi::FORMAT_SOCKADDR_IN6).contains(&self.name_format())
    }

    /// A key for a registration, where the caller chooses it: random, since whoever reaches the
    /// port and knows a key has its rights.
    pub(crate) fn draw_key(&self) -> Result<u64, Error> {
        if self.chooses_keys() {
            return Ok(0);
        }
        Ok(self.random()? & key_mask(self.key_bytes()))
    }

    /// A number that nobody can guess.
    pub(crate) fn random(&self) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let errno = match drawn {
            Ok(8) => return Ok(u64::from_ne_bytes(bytes)),
            Ok(_) => libc::EIO,
            Err(errno) => errno.raw_os_error(),
        };
        Err(self.library.error("getrandom", -errno))
    }

    /// Bytes of a key.
    fn key_bytes(&self) -> usize {
        self.domain_attr().mr_key_size
    }

    /// Whether a registration belongs to one endpoint.
    pub(crate) fn binds_to_endpoint(&self) -> bool {
        self.domain_attr().mr_mode & mr_mode::ENDPOINT != 0
    }
}

/// Whether a text is an IP address, with or without its interface.
fn is_address(text: &str) -> bool {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse::<std::net::IpAddr>().is_ok()
}

/// The bits of a key that the caller chooses. libfabric has the highest one of 64 for itself.
fn key_mask(bytes: usize) -> u64 {
    let bits = bytes.saturating_mul(8).min(63);
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::{is_address, key_mask};

    #[test]
    fn a_source_is_an_address() {
        assert!(["10.9.0.1", "::1", "fe80::1%eth0"].into_iter().all(is_address));
        assert!(!["localhost", "", "10.9.0", "eth0", "%eth0"].into_iter().any(is_address));
    }

    #[test]
    fn keys_have_as_many_bits_as_the_provider_takes() {
        let all = u64::MAX >> 1;
        assert_eq!([0, 1, 4, 8, 9, usize::MAX].map(key_mask), [0, 255, 0xffff_ffff, all, all, all]);
    }
}
