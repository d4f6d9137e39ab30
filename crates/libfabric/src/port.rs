//! One endpoint of a provider, with its queue and its buffers.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_memory::{CopyMode, Memory, MemoryOptions};

use crate::abi::{self, CqEntry, CqError, MsgRma, RmaIov, flags};
use crate::error::Error;
use crate::objects::Objects;
use crate::offer::Offer;
use crate::registered::{Registered, Rights};
use crate::slots::{Place, Slots};

/// How a port is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortOptions {
    /// Bytes of a message at most.
    pub message_bytes_max: usize,
    /// Buffers for receiving, each for one message. A provider may have room for fewer.
    pub receives_max: usize,
    /// Messages beyond the provider's inject size that can be under way.
    pub sends_max: usize,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { message_bytes_max: 128, receives_max: 1024, sends_max: 1024 }
    }
}

/// Entries of a completion queue at most. Software that stands for a network card has 32,767.
const ENTRIES_MAX: usize = 16_384;
/// The longest name of an endpoint.
const NAME_BYTES_MAX: usize = 256;
/// Keys that are tried for one registration.
const KEY_TRIES: usize = 4;
/// Completions that are read by one call.
const BATCH: usize = 32;

/// A peer, as one port knows it. The number is not used again, so that it names nobody else later,
/// nor at another port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer(pub u64);

/// A place in the registered memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spot {
    /// An address of the peer, or an offset in its registered range.
    pub address: u64,
    /// The provider's key of the range.
    pub key: u64,
}

/// A registration of one port. The number is not used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Registration(pub u64);

/// A number for a peer or a registration of any port of this process.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Why a call had no effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The provider has no room. Poll, and try again.
    Busy,
    /// It failed: the peer cannot be reached, or the call is wrong.
    Failed(Error),
}

/// What [`Port::poll`] tells.
#[derive(Debug)]
pub enum Report<'a> {
    /// A message came.
    Message(&'a [u8]),
    /// A message came that is not handed out: it is longer than messages of this port may be, or
    /// the connection that it came by has ended.
    Unfit {
        /// What the provider says of it.
        error: Error,
    },
    /// A write or a read is over.
    Done {
        /// The number that was given with it.
        token: u64,
    },
    /// A write or a read failed. What it wrote is not known.
    Failed {
        /// The number that was given with it.
        token: u64,
        /// Why.
        error: Error,
    },
    /// A message could not be sent.
    SendFailed {
        /// Its receiver.
        to: Peer,
        /// Why.
        error: Error,
    },
}

/// What the provider uses until an operation is over.
#[derive(Debug)]
enum Kept {
    /// A buffer for receiving, by its number.
    Receive(usize),
    /// A message, in a buffer for sending.
    Send { buffer: usize, to: Peer },
    /// A write or a read of registered memory.
    Access { token: u64, registered: Rc<Registered> },
}

/// One endpoint of a provider.
#[derive(Debug)]
pub struct Port {
    /// Given up, and not dropped, when the provider does not close the endpoint.
    objects: ManuallyDrop<Objects>,
    slots: Slots<Kept>,
    /// The addresses of peers, by number. What is not here never reaches the provider, which does
    /// not look at an address before it uses it.
    peers: BTreeMap<u64, abi::Address>,
    registered: BTreeMap<u64, Rc<Registered>>,
    buffers: Buffers,
    free_sends: Vec<usize>,
    /// Buffers for receiving that the provider had no room for.
    unposted: Vec<(Place, usize)>,
    offer: Offer,
    options: PortOptions,
    name: Vec<u8>,
    /// A message on its way to the caller.
    message: Vec<u8>,
}

impl Drop for Port {
    fn drop(&mut self) {
        // The provider may use all of it until the endpoint is closed.
        let accessed = self.slots.kept().filter_map(|kept| match kept {
            Kept::Access { registered, .. } => Some(registered),
            Kept::Receive(_) | Kept::Send { .. } => None,
        });
        let registered = accessed.chain(self.registered.values());
        let mut memories: Vec<Memory> = registered.map(|range| range.memory().clone()).collect();
        memories.push(self.buffers.memory.clone());
        if self.offer.binds_to_endpoint() {
            // Such an endpoint is closed behind its registrations.
            self.slots.drop_kept();
            self.registered.clear();
            self.buffers.registered = None;
        }
        // SAFETY: the port is dropped, and its fields do not use the endpoint.
        if unsafe { self.objects.ep.close() } {
            self.slots.drop_kept();
            self.registered.clear();
            self.buffers.registered = None;
            // SAFETY: it is dropped once, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.objects) };
            return;
        }
        // The endpoint lives on, and so does everything that it stands on.
        std::mem::forget(memories);
        std::mem::forget(std::mem::replace(&mut self.slots, Slots::new()));
        std::mem::forget(std::mem::take(&mut self.registered));
        std::mem::forget(self.buffers.registered.take());
    }
}

// SAFETY: libfabric's objects may be used by any thread, one at a time (THREAD_DOMAIN), which
// `&mut` assures: all objects of a domain are in one port, and so is each `Rc` to one of them.
unsafe impl Send for Port {}

/// The memory for messages: buffers for receiving, then those for sending.
#[derive(Debug)]
struct Buffers {
    memory: Memory,
    registered: Option<Registered>,
    /// Buffers for receiving.
    receives: usize,
    /// Bytes of each buffer.
    bytes: usize,
}

impl Buffers {
    fn descriptor(&self) -> *mut c_void {
        self.registered.as_ref().map_or(std::ptr::null_mut(), Registered::descriptor)
    }

    fn start(&self, offset: usize) -> *mut u8 {
        self.memory.segment().base().as_ptr().wrapping_add(offset)
    }

    fn send_offset(&self, buffer: usize) -> usize {
        (self.receives + buffer) * self.bytes
    }
}

impl Port {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(offer: Offer, options: PortOptions) -> Result<Self, Error> {
        let library = offer.library();
        // As many as can come before the program polls again: what finds no entry is lost with
        // some providers (libfabric's sockets).
        let receives = options.receives_max.min(offer.rx().size).max(1);
        let entries = offer.tx().size.saturating_add(receives).min(ENTRIES_MAX);
        let objects = Objects::open(&offer, entries)?;
        objects.ep.bind(library, &objects.cq, flags::SEND | flags::RECV)?;
        objects.ep.bind(library, &objects.av, 0)?;
        objects.ep.control(library, abi::CONTROL_ENABLE)?;
        let name = name_of(&offer, &objects)?;
        let bytes = options.message_bytes_max;
        let count = receives.checked_add(options.sends_max);
        let all = count.and_then(|count| count.checked_mul(bytes));
        let all = all.ok_or_else(|| Error::Memory("so many buffers fit nowhere".into()))?;
        let memory = Memory::fresh(MemoryOptions::bytes(all))
            .map_err(|error| Error::Memory(error.to_string()))?;
        let mut port = Self {
            objects: ManuallyDrop::new(objects),
            slots: Slots::new(),
            peers: BTreeMap::new(),
            registered: BTreeMap::new(),
            buffers: Buffers { memory, registered: None, receives, bytes },
            free_sends: (0..options.sends_max).collect(),
            unposted: Vec::new(),
            offer,
            options,
            name,
            message: vec![0; bytes],
        };
        if port.offer.needs_local_registration() {
            let memory = port.buffers.memory.clone();
            port.buffers.registered = Some(port.registered((&memory, 0, all), Rights::default())?);
        }
        for buffer in 0..receives {
            let (place, _) = port.slots.keep(Kept::Receive(buffer));
            port.post(place, buffer)?;
        }
        Ok(port)
    }

    /// The offer that was opened.
    #[must_use]
    pub const fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The name by which peers insert this endpoint: up to 64 bytes that mean something to the
    /// provider alone.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Makes a peer known by its name.
    ///
    /// # Errors
    /// [`Error::Call`] when the name is none of this provider, or the provider does not take it.
    pub fn insert(&mut self, name: &[u8]) -> Result<Peer, Error> {
        let library = self.offer.library();
        let wrong = || library.error("fi_av_insert", -libc::EINVAL);
        // Providers over IP take the length from the family in the name. A wrong one makes them
        // refuse each later name, or read behind this one.
        let has_family = self.offer.names_are_socket_addresses();
        if name.len() != self.name.len() || has_family && name.get(..2) != self.name.get(..2) {
            return Err(wrong());
        }
        let mut aligned = [0_u64; NAME_BYTES_MAX / 8];
        if name.len() > NAME_BYTES_MAX {
            return Err(wrong());
        }
        for (word, bytes) in aligned.iter_mut().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let av = self.objects.av.as_ptr();
        let mut address = abi::ADDRESS_UNSPECIFIED;
        // SAFETY: a live object. The name is aligned, and as long as names of this provider are.
        let taken = unsafe {
            let insert = (*(*av).ops).insert;
            insert(av, aligned.as_ptr().cast(), 1, &raw mut address, 0, std::ptr::null_mut())
        };
        library.check("fi_av_insert", taken)?;
        if taken != 1 {
            return Err(wrong());
        }
        let number = next_number();
        self.peers.insert(number, address);
        Ok(Peer(number))
    }

    /// Forgets a peer: from then on nothing is begun to it. What is under way goes on, and the
    /// provider keeps its entry and the connection, for the address vector may not lose an entry
    /// that is in use (fi_av(3)).
    pub fn remove(&mut self, peer: Peer) {
        self.peers.remove(&peer.0);
    }

    fn address_of(&self, call: &'static str, peer: Peer) -> Result<abi::Address, Refused> {
        let address = self.peers.get(&peer.0).copied();
        address.ok_or_else(|| Refused::Failed(self.offer.library().error(call, -libc::EINVAL)))
    }

    /// Sends a message. Its bytes may be reused when the call returns.
    ///
    /// The caller bounds the messages that are under way to each port: no more than
    /// [`Port::receives`] of it. With some providers a message that finds no buffer is lost, or
    /// stops its receiver. It also numbers them: a message up to the provider's inject size that is
    /// lost with a connection is told to nobody, and the provider connects anew for the next.
    ///
    /// # Errors
    /// [`Refused`]: nothing was sent.
    pub fn send(&mut self, to: Peer, message: &[u8]) -> Result<(), Refused> {
        let library = self.offer.library();
        if message.len() > self.options.message_bytes_max {
            return Err(Refused::Failed(library.error("fi_send", -libc::EMSGSIZE)));
        }
        let address = self.address_of("fi_send", to)?;
        let ep = self.objects.ep.as_ptr();
        if message.len() <= self.offer.inject_bytes() {
            // SAFETY: a live endpoint; the provider copies the bytes during the call.
            let code = unsafe {
                ((*(*ep).msg).inject)(ep, message.as_ptr().cast(), message.len(), address)
            };
            return self.begun("fi_inject", code);
        }
        let buffer = self.free_sends.pop().ok_or(Refused::Busy)?;
        let offset = self.buffers.send_offset(buffer);
        self.buffers.memory.segment().write(offset, message, CopyMode::Plain);
        let (place, context) = self.slots.keep(Kept::Send { buffer, to });
        // SAFETY: a live endpoint. The buffer is registered where that is needed, and nobody
        // writes to it before the operation is over.
        let code = unsafe {
            ((*(*ep).msg).send)(
                ep,
                self.buffers.start(offset).cast(),
                message.len(),
                self.buffers.descriptor(),
                address,
                context,
            )
        };
        let begun = self.begun("fi_send", code);
        if begun.is_err() {
            self.slots.take(place);
            self.free_sends.push(buffer);
        }
        begun
    }

    /// Registers a range of memory.
    ///
    /// # Errors
    /// [`Error::Call`], also for a range outside the memory.
    pub fn register(
        &mut self,
        (memory, offset, length): (&Memory, usize, usize),
        rights: Rights,
    ) -> Result<(Registration, Spot), Error> {
        let whole = memory.segment().length();
        if offset > whole || length > whole - offset {
            return Err(self.offer.library().error("fi_mr_reg", -libc::EINVAL));
        }
        let registered = self.registered((memory, offset, length), rights)?;
        let spot = registered.spot();
        let number = next_number();
        self.registered.insert(number, Rc::new(registered));
        Ok((Registration(number), spot))
    }

    /// A registration with a key that peers cannot guess: providers in software look at nothing
    /// else.
    fn registered(
        &self,
        range: (&Memory, usize, usize),
        rights: Rights,
    ) -> Result<Registered, Error> {
        let mut tries = KEY_TRIES;
        loop {
            let key = self.random_key()?;
            tries -= 1;
            match Registered::new(&self.offer, &self.objects, range, rights, key) {
                // The key may be one that is in use.
                Err(_) if tries > 0 && !self.offer.chooses_keys() => {}
                registered => return registered,
            }
        }
    }

    /// Ends a registration: no operation of a peer that begins later reaches the memory by it.
    ///
    /// One that has begun may go on with providers in software, for as long as the peer likes, and
    /// uses the memory. The caller keeps the memory until no peer has one under way. An operation
    /// of this port keeps its registration in force until it is over.
    pub fn deregister(&mut self, registration: Registration) {
        self.registered.remove(&registration.0);
    }

    /// Writes `length` bytes of registered memory, from `offset` in its range on, to a peer.
    /// [`Report::Done`] follows when they are visible there.
    ///
    /// # Errors
    /// [`Refused`]: nothing was written.
    pub fn write(
        &mut self,
        to: Peer,
        from: (Registration, usize, usize),
        spot: Spot,
        token: u64,
    ) -> Result<(), Refused> {
        self.access("fi_writemsg", to, from, spot, token)
    }

    /// Reads `length` bytes of a peer into registered memory, from `offset` in its range on.
    /// [`Report::Done`] follows when they are there.
    ///
    /// # Errors
    /// [`Refused`]: nothing was read.
    pub fn read(
        &mut self,
        from: Peer,
        into: (Registration, usize, usize),
        spot: Spot,
        token: u64,
    ) -> Result<(), Refused> {
        self.access("fi_readmsg", from, into, spot, token)
    }

    fn access(
        &mut self,
        call: &'static str,
        peer: Peer,
        (registration, offset, length): (Registration, usize, usize),
        spot: Spot,
        token: u64,
    ) -> Result<(), Refused> {
        let library = self.offer.library();
        let wrong = || Refused::Failed(library.error(call, -libc::EINVAL));
        let address = self.address_of(call, peer)?;
        let registered = Rc::clone(self.registered.get(&registration.0).ok_or_else(wrong)?);
        let start = registered.part(offset, length).ok_or_else(wrong)?;
        let mut descriptor = registered.descriptor();
        let (place, context) = self.slots.keep(Kept::Access { token, registered });
        let iov = libc::iovec { iov_base: start.cast(), iov_len: length };
        let target = RmaIov { address: spot.address, length, key: spot.key };
        let message = MsgRma {
            iov: &raw const iov,
            descriptors: &raw mut descriptor,
            iov_count: 1,
            address,
            rma_iov: &raw const target,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        let ep = self.objects.ep.as_ptr();
        // SAFETY: a live endpoint. The vectors live until the call is over; the memory is kept in
        // the slot until the operation is.
        let code = unsafe {
            let rma = &*(*ep).rma;
            if call == "fi_writemsg" {
                (rma.writemsg)(ep, &raw const message, flags::COMPLETION | flags::DELIVERY_COMPLETE)
            } else {
                (rma.readmsg)(ep, &raw const message, flags::COMPLETION)
            }
        };
        let begun = self.begun(call, code);
        if begun.is_err() {
            self.slots.take(place);
        }
        begun
    }

    fn begun(&self, call: &'static str, code: isize) -> Result<(), Refused> {
        match code {
            0.. => Ok(()),
            abi::EAGAIN => Err(Refused::Busy),
            code => Err(Refused::Failed(self.offer.library().error(call, code as i64))),
        }
    }

    /// Posts a buffer for receiving. It takes one message: a long one of a hostile peer fills no
    /// more than that.
    fn post(&mut self, place: Place, buffer: usize) -> Result<(), Error> {
        let ep = self.objects.ep.as_ptr();
        // SAFETY: a live endpoint. Nobody but the provider uses the buffer until it gives it back.
        let code = unsafe {
            ((*(*ep).msg).recv)(
                ep,
                self.buffers.start(buffer * self.buffers.bytes).cast(),
                self.buffers.bytes,
                self.buffers.descriptor(),
                abi::ADDRESS_UNSPECIFIED,
                self.slots.context(place),
            )
        };
        match code {
            0.. => {}
            // Its table is full until more of what it told is read (libfabric's shm).
            abi::EAGAIN | abi::ENOMEM => self.unposted.push((place, buffer)),
            code => return Err(self.offer.library().error("fi_recv", code as i64)),
        }
        Ok(())
    }

    /// Makes progress, and tells of what happened: up to `budget` completions. Returns their
    /// number.
    ///
    /// # Errors
    /// [`Error::Call`]: the queue or a buffer for receiving is lost, and so is the port.
    pub fn poll(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Report<'_>),
    ) -> Result<usize, Error> {
        const NOTHING: CqEntry = CqEntry {
            context: std::ptr::null_mut(),
            flags: 0,
            length: 0,
            buffer: std::ptr::null_mut(),
            data: 0,
        };
        for (place, buffer) in std::mem::take(&mut self.unposted) {
            self.post(place, buffer)?;
        }
        let mut entries = [NOTHING; BATCH];
        let mut told = 0;
        while told < budget {
            let cq = self.objects.cq.as_ptr();
            let room = BATCH.min(budget - told);
            // SAFETY: a live queue of the format of the entries, of which there is room for `room`.
            let code = unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), room) };
            match code {
                abi::EAGAIN | 0 => break,
                abi::EAVAIL => {
                    told += 1;
                    self.take_error(sink)?;
                }
                code if code < 0 => {
                    return Err(self.offer.library().error("fi_cq_read", code as i64));
                }
                count => {
                    let count = usize::try_from(count).unwrap_or(0).min(room);
                    told += count;
                    for entry in &entries[..count] {
                        self.take(entry, sink)?;
                    }
                    // Another look costs providers in software a system call.
                    if count < room {
                        break;
                    }
                }
            }
        }
        Ok(told)
    }

    fn take(&mut self, entry: &CqEntry, sink: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let Some(place) = self.slots.place_of(entry.context) else { return Ok(()) };
        match self.slots.get(place) {
            Some(Kept::Receive(buffer)) => {
                let buffer = *buffer;
                // No longer than the buffer, or the provider tells an error.
                let length = entry.length.min(self.buffers.bytes);
                let message = &mut self.message[..length];
                self.buffers.memory.segment().read(buffer * self.buffers.bytes, message);
                self.post(place, buffer)?;
                sink(Report::Message(&self.message[..length]));
            }
            Some(Kept::Send { buffer, .. }) => {
                self.free_sends.push(*buffer);
                self.slots.take(place);
            }
            Some(Kept::Access { token, .. }) => {
                let token = *token;
                self.slots.take(place);
                sink(Report::Done { token });
            }
            None => {}
        }
        Ok(())
    }

    /// Takes the error at the head of the queue.
    fn take_error(&mut self, sink: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let library = self.offer.library();
        let mut failed = CqError {
            context: std::ptr::null_mut(),
            flags: 0,
            length: 0,
            buffer: std::ptr::null_mut(),
            data: 0,
            tag: 0,
            surplus: 0,
            error: 0,
            provider_error: 0,
            error_data: std::ptr::null_mut(),
            error_data_size: 0,
            later: [0; 8],
        };
        let cq = self.objects.cq.as_ptr();
        // SAFETY: a live queue.
        let code = unsafe { ((*(*cq).ops).readerr)(cq, &raw mut failed, 0) };
        if code < 0 {
            return if code == abi::EAGAIN {
                Ok(())
            } else {
                Err(library.error("fi_cq_readerr", code as i64))
            };
        }
        let error = library.error("completion", -i64::from(failed.error));
        let Some(place) = self.slots.place_of(failed.context) else { return Ok(()) };
        match self.slots.get(place) {
            Some(Kept::Receive(buffer)) => {
                let buffer = *buffer;
                self.post(place, buffer)?;
                sink(Report::Unfit { error });
            }
            Some(Kept::Send { buffer, to }) => {
                let to = *to;
                self.free_sends.push(*buffer);
                self.slots.take(place);
                sink(Report::SendFailed { to, error });
            }
            Some(Kept::Access { token, .. }) => {
                let token = *token;
                self.slots.take(place);
                sink(Report::Failed { token, error });
            }
            None => {}
        }
        Ok(())
    }

    /// Writes and reads, and messages beyond the inject size, that are not over.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.slots.count() - self.buffers.receives
    }

    /// How many messages can wait to be told of.
    #[must_use]
    pub const fn receives(&self) -> usize {
        self.buffers.receives
    }

    /// A descriptor that is readable when [`Port::poll`] may have something to tell, after
    /// [`Port::may_sleep`] said so. `None` where the provider has none.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let mut number: RawFd = -1;
        let cq = self.objects.cq.fid();
        if !self.objects.waits {
            return None;
        }
        // SAFETY: a live queue that was opened with a descriptor; the command writes its number.
        let code =
            unsafe { ((*(*cq).ops).control)(cq, abi::CONTROL_GETWAIT, (&raw mut number).cast()) };
        // SAFETY: the descriptor is the queue's, which lives as long as `self`.
        (code == 0 && number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Whether the caller may sleep on the descriptor: there is one, and nothing has come
    /// meanwhile.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        // Buffers that are not posted are posted by the next poll.
        if !self.objects.waits || !self.unposted.is_empty() {
            return false;
        }
        let fabric = self.objects.domain.fabric.as_ptr();
        let mut queues = [self.objects.cq.fid()];
        // SAFETY: live objects.
        unsafe { ((*(*fabric).ops).trywait)(fabric, queues.as_mut_ptr(), 1) == 0 }
    }

    /// A number for a registration, where the caller chooses it.
    fn random_key(&self) -> Result<u64, Error> {
        if self.offer.chooses_keys() {
            return Ok(0);
        }
        let mut bytes = [0; 8];
        // SAFETY: the buffer has so many bytes.
        let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if filled != 8 {
            return Err(self.offer.library().error("getrandom", -libc::EIO));
        }
        let bits = (self.offer.key_bytes() * 8).min(64);
        let key = u64::from_ne_bytes(bytes);
        Ok(if bits == 64 { key } else { key & ((1 << bits) - 1) })
    }
}

fn name_of(offer: &Offer, objects: &Objects) -> Result<Vec<u8>, Error> {
    let mut name = vec![0; NAME_BYTES_MAX];
    let mut length = name.len();
    let ep = objects.ep.as_ptr();
    // SAFETY: a live endpoint; `length` says how much room there is.
    let code = unsafe {
        ((*(*ep).cm).getname)(objects.ep.fid(), name.as_mut_ptr().cast(), &raw mut length)
    };
    offer.library().check("fi_getname", code)?;
    name.truncate(length);
    Ok(name)
}
