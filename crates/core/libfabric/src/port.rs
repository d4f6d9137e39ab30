//! One endpoint of a provider, with its queue and its buffers.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_memory::{CopyMode, Memory, MemoryOptions};

use crate::abi::{self, CqEntry, MsgRma, RmaIov, flag, refusal};
use crate::error::Error;
use crate::graveyard::Graveyard;
use crate::objects::Objects;
use crate::offer::Offer;
use crate::peers::{Known, Peer, Peers, next_number};
use crate::registered::{Mr, Range, Registered, Rights, Used};
use crate::slots::{SlotIndex, Slots};
use crate::waits::Waits;

mod completions;

/// How a port is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortOptions {
    /// Bytes of a message at most.
    pub message_bytes_max: usize,
    /// Buffers for receiving, each for one message. A provider may have room for fewer.
    pub receives_max: usize,
    /// Messages that can be under way.
    pub sends_max: usize,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { message_bytes_max: 128, receives_max: 1024, sends_max: 1024 }
    }
}

/// Entries of a completion queue at most. Software that stands for a network card has 32,767.
const ENTRIES_MAX: usize = 16_384;
/// Buffers for receiving that are posted when there is time, at most.
const SPARE_MAX: usize = 32;
/// Memories that were deregistered at which a call looks whether the program has let go of them: at
/// more than it may add.
const LOOKS: usize = 2;
/// Looks at the queue, at most, before an endpoint is closed.
const LAST_LOOKS: usize = 64;

/// A place in the registered memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spot {
    /// An address of the peer, or an offset in its registered range.
    pub address: u64,
    /// The provider's key of the range.
    pub key: u64,
}

/// A registration of one port. As with [`Peer`], its number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Registration(pub u64);

/// Why a call had no effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The provider has no room. Poll, and try again.
    Busy,
    /// It failed: the peer cannot be reached, or the call is wrong.
    Failed(Error),
}

/// A report of [`Port::poll`].
#[derive(Debug)]
pub enum Report<'a> {
    /// A message came.
    Message(&'a [u8]),
    /// A message came that is not handed out: it is longer than messages of this port may be, or
    /// the connection that it came by has ended.
    Unfit {
        /// The words of the provider for it.
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
    /// An error of nothing that this port has under way: an operation of a peer failed, or the
    /// provider lost something that it cannot name. What is under way may never end then.
    Stray {
        /// The words of the provider for it.
        error: Error,
    },
    /// A message could not be sent. Not every message that is lost is told of: see [`Port::send`].
    SendFailed {
        /// Its receiver.
        to: Peer,
        /// Why.
        error: Error,
    },
}

/// Things that the provider uses until an operation is over.
#[derive(Debug)]
enum InUse {
    /// A buffer for receiving, by its number.
    Receive(usize),
    /// A message, in a buffer for sending.
    Send { buffer: usize, to: Peer, known: Rc<Known> },
    /// A write or a read of registered memory.
    Access { token: u64, known: Rc<Known>, used: Used },
}

/// One endpoint of a provider.
#[derive(Debug)]
pub struct Port {
    /// Closed by the port alone: if the endpoint cannot be closed, none of them may.
    objects: ManuallyDrop<Objects>,
    slots: Slots<InUse>,
    peers: Peers,
    registered: BTreeMap<u64, Registered>,
    buffers: Buffers,
    graveyard: Graveyard,
    free_sends: Vec<usize>,
    /// Buffers for receiving that the provider does not have: it had no room for them, or they wait
    /// until there is nothing to tell.
    unposted: Vec<(SlotIndex, usize)>,
    offer: Offer,
    options: PortOptions,
    name: Vec<u8>,
    /// Entries of the completion queue.
    entries: usize,
    /// A message on its way to the caller.
    message: Vec<u8>,
    /// Completions that were read.
    read: Vec<CqEntry>,
}

impl Drop for Port {
    fn drop(&mut self) {
        // Over `verbs;ofi_rxm` a message that waits unread at the end crashes the process:
        // libfabric posts its buffer anew to a connection that it has closed.
        for _ in 0..LAST_LOOKS {
            if !matches!(self.poll(self.entries, &mut |_| {}), Ok(1..)) {
                break;
            }
        }
        if self.offer.binds_to_endpoint() {
            // Such an endpoint is closed behind its registrations, but a NIC may use their memory
            // until then.
            self.registered.values().for_each(Registered::close);
            let used = self.slots.all().filter_map(|kept| match kept {
                InUse::Access { used, .. } => used.mr.as_deref(),
                InUse::Receive(_) | InUse::Send { .. } => None,
            });
            for mr in used.chain(&self.buffers.registered) {
                mr.close();
            }
        }
        // SAFETY: the port is dropped, and its fields do not use the endpoint.
        if unsafe { self.objects.ep.close() } {
            // SAFETY: nobody uses them behind this.
            unsafe { ManuallyDrop::drop(&mut self.objects) };
            return;
        }
        // The provider may still use the contexts, the queue and all memory.
        std::mem::forget(std::mem::replace(&mut self.slots, Slots::new()));
        std::mem::forget(std::mem::take(&mut self.registered));
        std::mem::forget(std::mem::take(&mut self.graveyard));
        std::mem::forget((self.buffers.memory.clone(), self.buffers.registered.take()));
    }
}

// SAFETY: libfabric's objects may be used by any thread, one at a time (THREAD_DOMAIN), which
// `&mut` assures: all objects of a domain are in one port, and so is each `Rc` to one of them. No
// `&` changes anything but the word that says whether an object is closed, which `drop` alone asks.
unsafe impl Send for Port {}

/// The memory for messages: buffers for receiving, then those for sending.
#[derive(Debug)]
struct Buffers {
    memory: Memory,
    registered: Option<Mr>,
    /// Buffers for receiving.
    receives: usize,
    /// Those of them that peers cannot count on, as they may not be posted.
    spare: usize,
    /// Bytes of each buffer.
    bytes: usize,
}

impl Buffers {
    fn descriptor(&self) -> *mut c_void {
        self.registered.as_ref().map_or(std::ptr::null_mut(), Mr::descriptor)
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
    /// [`Error`]. For messages that are longer than the provider's operations, or more of them than
    /// there are addresses for, [`Error::Call`] (EINVAL).
    pub fn open(offer: Offer, options: PortOptions) -> Result<Self, Error> {
        let library = offer.library();
        // As many as can come before the program polls again: what finds no entry is lost with
        // some providers (libfabric's sockets).
        let receives = options.receives_max.min(offer.rx().size).clamp(1, ENTRIES_MAX / 2);
        let spare = (receives / 8).min(SPARE_MAX);
        let entries = offer.tx().size.saturating_add(receives).min(ENTRIES_MAX);
        let bytes = options.message_bytes_max;
        let all = receives.checked_add(options.sends_max).and_then(|all| all.checked_mul(bytes));
        let all = all.filter(|_| bytes <= offer.operation_bytes_max());
        let all = all.ok_or_else(|| library.error("fi_endpoint", -libc::EINVAL))?;
        let objects = Objects::open(&offer, entries)?;
        objects.ep.bind(library, &objects.cq, flag::SEND | flag::RECV)?;
        objects.ep.bind(library, &objects.av, 0)?;
        objects.ep.control(library, abi::CONTROL_ENABLE)?;
        let name = name_of(&offer, &objects)?;
        let memory = Memory::fresh(MemoryOptions::bytes(all))
            .map_err(|error| Error::Memory(error.to_string()))?;
        let mut port = Self {
            objects: ManuallyDrop::new(objects),
            slots: Slots::new(),
            peers: Peers::default(),
            registered: BTreeMap::new(),
            buffers: Buffers { memory, registered: None, receives, spare, bytes },
            graveyard: Graveyard::default(),
            free_sends: (0..options.sends_max).collect(),
            unposted: Vec::new(),
            offer,
            options,
            name,
            entries,
            message: vec![0; bytes],
            read: Vec::new(),
        };
        if port.offer.needs_local_registration() {
            let range = Range { memory: port.buffers.memory.clone(), offset: 0, length: all };
            port.buffers.registered = Some(Mr::own(&port.offer, &port.objects, &range)?);
        }
        for buffer in 0..receives {
            let (place, _) = port.slots.keep(InUse::Receive(buffer));
            port.post(place, buffer)?;
        }
        Ok(port)
    }

    /// The offer that was opened.
    #[must_use]
    pub const fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The name by which peers insert this endpoint: up to 256 bytes that mean something to the
    /// provider alone.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Makes a peer known by its name. The same name once more is another number for the same peer.
    ///
    /// # Errors
    /// [`Error::Call`] for a name of another kind than the own one (EINVAL), and when the provider
    /// does not take it.
    pub fn insert(&mut self, name: &[u8]) -> Result<Peer, Error> {
        let library = self.offer.library();
        let own = (self.offer.name_format(), &self.name[..]);
        let padded =
            padded_name(name, own).ok_or_else(|| library.error("fi_av_insert", -libc::EINVAL))?;
        // Providers count the uses of a name in different ways, so they see it once.
        if let Some(peer) = self.peers.again(name) {
            return Ok(peer);
        }
        let av = self.objects.av.as_ptr();
        let mut address = abi::ADDRESS_UNSPECIFIED;
        // SAFETY: a live object. The name is of the kind of the own one, and zeros follow it.
        let taken = unsafe {
            let insert = (*(*av).ops).insert;
            insert(av, padded.0.as_ptr().cast(), 1, &raw mut address, 0, std::ptr::null_mut())
        };
        library.check("fi_av_insert", taken)?;
        if taken != 1 {
            return Err(library.error("fi_av_insert", -libc::EINVAL));
        }
        Ok(self.peers.add(name, address))
    }

    /// Forgets a peer: its number is refused from now on. What is under way to it goes on, and the
    /// provider forgets its name behind that.
    ///
    /// This ends nothing that the peer does: its connection may stay open, and it may go on to
    /// send, to write and to read.
    ///
    /// # Errors
    /// [`Error::Call`] (EINVAL) for a peer that this port does not have.
    pub fn remove(&mut self, peer: Peer) -> Result<(), Error> {
        let known = self.peers.remove(peer);
        let known =
            known.ok_or_else(|| self.offer.library().error("fi_av_remove", -libc::EINVAL))?;
        self.let_go(known);
        Ok(())
    }

    /// Drops a use of a peer's name, and has the provider forget it if it was the last one.
    fn let_go(&mut self, known: Rc<Known>) {
        let Some(mut address) = self.peers.let_go(known) else { return };
        let av = self.objects.av.as_ptr();
        // SAFETY: a live object, and an address that it gave out and that no operation uses any
        // more. If the provider refuses, it keeps a few bytes.
        let _ = unsafe { ((*(*av).ops).remove)(av, &raw mut address, 1, 0) };
    }

    fn known(&self, call: &'static str, peer: Peer) -> Result<&Rc<Known>, Refused> {
        let unknown = || Refused::Failed(self.offer.library().error(call, -libc::EINVAL));
        self.peers.get(peer).ok_or_else(unknown)
    }

    /// Sends a message. Its bytes may be reused when the call returns.
    ///
    /// The caller bounds the messages that are under way to each port: no more than
    /// [`Port::receives`] of it. With some providers a message that finds no buffer is lost, or
    /// stops its receiver.
    ///
    /// A message is over when the provider has handed it on, which says nothing about its
    /// receiver. When a connection breaks, those that were on the way are lost. Only longer ones
    /// than the provider's inject size that were not handed on yet are told of
    /// ([`Report::SendFailed`]). Providers in software connect anew at the next message, and one
    /// whose receiver is gone may be [`Refused::Busy`] without an end (libfabric's net). So
    /// messages arrive in order, but there may be a gap among them, of which neither side hears:
    /// who cannot bear that numbers them.
    ///
    /// # Errors
    /// [`Refused`]: nothing was sent. [`Refused::Failed`] (EINVAL) for a peer that this port does
    /// not have.
    pub fn send(&mut self, to: Peer, message: &[u8]) -> Result<(), Refused> {
        let library = self.offer.library();
        if message.len() > self.options.message_bytes_max {
            return Err(Refused::Failed(library.error("fi_send", -libc::EMSGSIZE)));
        }
        let known = Rc::clone(self.known("fi_send", to)?);
        let address = known.address;
        let ep = self.objects.ep.as_ptr();
        if self.is_full() {
            return Err(Refused::Busy);
        }
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
        let (place, context) = self.slots.keep(InUse::Send { buffer, to, known });
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

    /// Registers a range of memory. Until it is deregistered, and until the operations of this port
    /// that use it are over, the memory [does not move](Memory::stay). Where peers have no rights
    /// the spot leads nowhere.
    ///
    /// # Errors
    /// [`Error::Call`], also for a range outside the memory (EINVAL); [`Error::Memory`] while the
    /// memory moves; [`Error::WornOut`].
    pub fn register(
        &mut self,
        range: (&Memory, usize, usize),
        rights: Rights,
    ) -> Result<(Registration, Spot), Error> {
        self.graveyard.look(LOOKS);
        if rights.any() && self.graveyard.is_full() {
            return Err(Error::WornOut);
        }
        let outside = || self.offer.library().error("fi_mr_reg", -libc::EINVAL);
        let range = Range::new(range).ok_or_else(outside)?;
        let registered = Registered::new(&self.offer, &self.objects, range, rights)?;
        let spot = registered.spot();
        let number = next_number();
        self.registered.insert(number, registered);
        Ok((Registration(number), spot))
    }

    /// Ends a registration: no operation of a peer begins by it any more. Operations of this port
    /// that use it keep the memory until they are over.
    ///
    /// A peer may go on with what it has begun until the endpoint is closed, also behind its
    /// removal: no call ends that, and providers in software write to the addresses that they have
    /// looked up. So the port keeps the addresses of memory that peers could reach. As long as the
    /// program has the memory, the late bytes are in it. When it has let go of the last clone, the
    /// port gives the pages back to the system, at one of its next calls, and keeps the addresses
    /// alone; a range of a [`Reservation`](weft_memory::Reservation) stays taken. It keeps 32 TiB
    /// in 8,192 separate ranges at most; then [`Port::register`] refuses rights for peers
    /// ([`Error::WornOut`]). Who grants fresh memory for days uses [`Port::deregister_settled`], or
    /// opens another port now and then.
    ///
    /// Addresses that belong to the caller ([`Memory::adopt`], [`Memory::in_place`]) are not kept
    /// mapped by this: as these say, the caller does that, here until the port is closed.
    ///
    /// # Errors
    /// [`Error::Call`] (EINVAL) for a registration that this port does not have.
    pub fn deregister(&mut self, registration: Registration) -> Result<(), Error> {
        let ended = self.ended(registration)?;
        if let Some(memory) = ended.reached() {
            self.graveyard.bury(memory);
        }
        drop(ended);
        self.graveyard.look(LOOKS);
        Ok(())
    }

    /// As [`Port::deregister`], and the port keeps nothing. For a caller that knows that no peer
    /// uses the range any more: each that knows the key has said that its operations are over, and
    /// begins none. What one that lies goes on to write may meet other memory of this process (see
    /// [`Rights`]).
    ///
    /// # Errors
    /// As [`Port::deregister`].
    pub fn deregister_settled(&mut self, registration: Registration) -> Result<(), Error> {
        self.ended(registration).map(drop)
    }

    fn ended(&mut self, registration: Registration) -> Result<Registered, Error> {
        let ended = self.registered.remove(&registration.0);
        ended.ok_or_else(|| self.offer.library().error("fi_close", -libc::EINVAL))
    }

    /// Writes `length` bytes of registered memory, from `offset` in its range on, to a peer.
    /// [`Report::Done`] follows when they are visible there. `verbs;ofi_rxm` cannot say that: there
    /// it follows when the remote NIC has them, and a message that is sent behind it arrives when
    /// they are visible.
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
        let known = Rc::clone(self.known(call, peer)?);
        let address = known.address;
        if length > self.offer.operation_bytes_max() {
            return Err(Refused::Failed(library.error(call, -libc::EMSGSIZE)));
        }
        if self.is_full() {
            return Err(Refused::Busy);
        }
        let registered = self.registered.get_mut(&registration.0).ok_or_else(wrong)?;
        let start = registered.part(offset, length).ok_or_else(wrong)?;
        let used = registered.own(&self.offer, &self.objects).map_err(Refused::Failed)?;
        let mut descriptor = used.descriptor();
        let kept = InUse::Access { token, known, used };
        let (place, context) = self.slots.keep(kept);
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
                (rma.writemsg)(ep, &raw const message, flag::COMPLETION | flag::DELIVERY_COMPLETE)
            } else {
                (rma.readmsg)(ep, &raw const message, flag::COMPLETION)
            }
        };
        let begun = self.begun(call, code);
        if begun.is_err() {
            self.slots.take(place);
        }
        begun
    }

    /// Whether the queue has no entry for a further operation: some providers lose what finds none.
    fn is_full(&self) -> bool {
        self.slots.count() >= self.entries
    }

    fn begun(&self, call: &'static str, code: isize) -> Result<(), Refused> {
        match code {
            0.. => Ok(()),
            refusal::EAGAIN => Err(Refused::Busy),
            code => Err(Refused::Failed(self.offer.library().error(call, code as i64))),
        }
    }

    /// Writes, reads and messages that are not over.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.slots.count() - self.buffers.receives
    }

    /// How many messages can wait to be told of.
    #[must_use]
    pub const fn receives(&self) -> usize {
        self.buffers.receives - self.buffers.spare
    }

    /// A descriptor that is readable when [`Port::poll`] may have something to tell, after
    /// [`Port::may_sleep`] said so. `None` where the provider has none.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let number = match self.objects.waits {
            Waits::No => return None,
            Waits::Sockets(number) => number,
            Waits::Queue => {
                let mut number: RawFd = -1;
                // SAFETY: the queue was opened with a descriptor; the command writes its number.
                let code = unsafe {
                    self.objects.cq.command(abi::CONTROL_GETWAIT, (&raw mut number).cast())
                };
                (code == 0 && number >= 0).then_some(number)?
            }
        };
        // SAFETY: the descriptor is the queue's, which lives as long as `self`.
        Some(unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Whether the caller may sleep on the descriptor: there is one, nothing has come meanwhile,
    /// and all buffers for receiving are with the provider.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        // The next poll posts those that the provider had no room for, and nothing wakes for that.
        if !self.unposted.is_empty() {
            return false;
        }
        let is_allowed = match self.objects.waits {
            Waits::No => false,
            Waits::Sockets(_) => true,
            Waits::Queue => {
                let fabric = self.objects.domain.fabric.as_ptr();
                let mut queues = [self.objects.cq.fid()];
                // SAFETY: live objects.
                unsafe { ((*(*fabric).ops).trywait)(fabric, queues.as_mut_ptr(), 1) == 0 }
            }
        };
        is_allowed && !self.is_readable()
    }

    /// Whether the descriptor is readable now.
    fn is_readable(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.descriptor().is_some_and(|descriptor| {
            poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)) != Ok(0)
        })
    }
}

/// Bytes of a name at most.
const NAME_BYTES: usize = 256;

/// A name, aligned, and zeros behind it.
#[derive(Debug)]
#[repr(C, align(8))]
struct Name([u8; NAME_BYTES]);

/// The name, if it is of the kind of the own one.
///
/// Providers believe the address family that stands in a name, and take its length from there.
/// After one with a wrong family, libfabric's software takes no right one any more.
fn padded_name(name: &[u8], (format, own): (u32, &[u8])) -> Option<Name> {
    let is_of_kind = match format {
        abi::FORMAT_SOCKADDR..=abi::FORMAT_SOCKADDR_IB => {
            name.len() == own.len() && name.get(..2) == own.get(..2)
        }
        // Such names differ in their length.
        abi::FORMAT_STR => {
            name.len() > 1 && name.iter().position(|byte| *byte == 0) == Some(name.len() - 1)
        }
        _ => name.len() == own.len(),
    };
    if !is_of_kind || name.is_empty() || name.len() > NAME_BYTES {
        return None;
    }
    let mut padded = Name([0; NAME_BYTES]);
    padded.0[..name.len()].copy_from_slice(name);
    Some(padded)
}

fn name_of(offer: &Offer, objects: &Objects) -> Result<Vec<u8>, Error> {
    let mut name = vec![0; NAME_BYTES];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_the_kind_of_the_own_one() {
        let own = [2, 0, 1, 2, 127, 0, 0, 1];
        let takes = |name: &[u8], format| padded_name(name, (format, &own)).is_some();
        for format in abi::FORMAT_SOCKADDR..=abi::FORMAT_SOCKADDR_IB {
            assert!(takes(&[2, 0, 9, 9, 9, 9, 9, 9], format));
            assert!(!takes(&[10, 0, 9, 9, 9, 9, 9, 9], format), "another family");
            assert!(!takes(&[2, 1, 9, 9, 9, 9, 9, 9], format));
            assert!(!takes(&own[..7], format) && !takes(&[2], format) && !takes(&[], format));
        }
        assert!(takes(b"fi_shm://1234\0", abi::FORMAT_STR));
        for wrong in [&b"fi_shm://1234"[..], b"fi\0shm\0", b"\0", b"", &[7; 300]] {
            assert!(!takes(wrong, abi::FORMAT_STR));
        }
        let unknown = abi::FORMAT_STR + 1;
        assert!(takes(&[9; 8], unknown) && !takes(&[9; 9], unknown));
        let padded = padded_name(&own, (unknown, &own)).expect("it fits");
        assert_eq!((&padded.0[..8], &padded.0[8..]), (&own[..], &[0; NAME_BYTES - 8][..]));
    }
}
