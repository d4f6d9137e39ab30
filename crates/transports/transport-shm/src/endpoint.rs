//! The endpoint: its state, and the table of which file implements which calls.
//!
//! | file | what |
//! |---|---|
//! | `domain` | opening and closing |
//! | `introductions`, `requests` | what is asked of the broker, and what it says: peers |
//! | `greeting` | which pairs a restarted broker is told of |
//! | `groups` | multicast groups and their members |
//! | `invitation` | invitations into the endpoint's partition |
//! | `rights` | grants, revocations, keys of peers |
//! | `moves` | the move of memory out of reach of a revoked key |
//! | `partings` | revocations that wait for writers to memory in place |
//! | `msg` | messages |
//! | `rma`, `atomic` | one-sided operations on memory that is mapped |
//! | `ways` | one-sided operations on memory that peers have in place |
//! | `progress` | polling, waiting, sleeping |
//! | `beside` | a port of a network beside the memory |
//! | `descriptors` | which descriptors it keeps |
//!
//! # Invariants
//! - The list `active` holds exactly the living peers whose state is active. The rings of all other
//!   peers are armed.
//! - No value that a peer can write is trusted: positions, keys and limits are private.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weft_broker::conversation::Conversation;
use weft_fabric::{
    Access, Armed, Atomic, Audience, Capabilities, ConnectError, DownReason, Endpoint,
    EndpointAddress, Event, GrantError, Group, GroupError, HostMemory, InviteError, Issued,
    LocalRange, MessageHeader, Operation, OperationError, PartitionId, Peer, Reach, Register,
    RegisterError, RemoteKey, Request, SendError, Source, Target, Ticket, Value, Waited, Watchable,
    WindowError,
};
use weft_memory::{Memory, MemoryOptions, SegmentError};
use weft_sync::AdaptiveWait;

use crate::address_vector::{AddressVector, Lost, PeerState};
use crate::attr::Parameters;
use crate::beside::Beside;
use crate::completion::LocalQueue;
use crate::doorbell::Doorbell;
use crate::greeting::Known;
use crate::groups::Groups;
use crate::memory::{Grants, ShmRegion};
use crate::moves::Moves;
use crate::msg::Sent;
use crate::partings::Partings;
use crate::recent::Recently;
use crate::registers::{Registers, Sampling};
use crate::requests::{Question, Requests};
use crate::sharing::Granter;
use crate::ways::Sign;
use crate::window::ShmWindow;

/// A peer that is gone and whose last messages have not all been handed out.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub peer: Box<PeerState>,
    /// Messages up to this number may have been sent by the peer before its end.
    pub until: u64,
    /// Why it is down.
    pub reason: DownReason,
}

/// An endpoint in shared memory.
pub struct ShmEndpoint {
    pub(crate) address: EndpointAddress,
    pub(crate) capabilities: Capabilities,
    pub(crate) parameters: Parameters,
    pub(crate) partition: PartitionId,
    /// The endpoint that offered the service or gave the ticket by which this one was opened.
    pub(crate) host: Option<EndpointAddress>,
    pub(crate) birth: u64,
    /// The port that the endpoint may have beside its memory.
    pub(crate) beside: Beside,
    /// Peers that a port beside the memory has.
    pub(crate) peers_elsewhere: usize,
    /// This process lacks the asymmetric fence.
    pub(crate) full_fences: bool,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) doorbell_file: OwnedFd,
    pub(crate) registers: Arc<Registers>,
    pub(crate) registers_file: OwnedFd,
    pub(crate) sampling: Sampling,
    /// The end of the wakeup socket that becomes readable.
    pub(crate) woken: OwnedFd,
    /// An epoll descriptor of the wakeup, the broker's connection and the timer, where the broker
    /// can go away.
    pub(crate) wakeup_and_line: Option<OwnedFd>,
    /// Makes `wakeup_and_line` readable when a request has waited too long.
    pub(crate) timer: Option<OwnedFd>,
    pub(crate) timer_is_set: bool,
    /// Pairs that a broker that was restarted does not know yet.
    pub(crate) unnamed: Vec<Known>,
    /// When the connection to the broker was last found to be a new one.
    pub(crate) restarted: Option<Duration>,
    /// A peer broke the wakeup socket: the endpoint can no longer sleep on the descriptor.
    pub(crate) wakeup_broken: bool,
    pub(crate) peers: AddressVector,
    pub(crate) recently: Recently,
    /// VPIDs of the peers whose rings are polled.
    pub(crate) active: Vec<u16>,
    /// The index in `active` at which the next poll begins.
    pub(crate) turn: usize,
    /// Peers that were not rung for, because another operation was to follow.
    pub(crate) batches: Vec<Peer>,
    /// VPIDs of the peers whose rings were full when a send failed.
    pub(crate) waits_for_room: Vec<u16>,
    pub(crate) leaving: Vec<Leaving>,
    pub(crate) local: LocalQueue,
    pub(crate) grants: Grants,
    /// The part of this endpoint that others of this process know.
    pub(crate) granter: Arc<Granter>,
    pub(crate) regions: Arc<AtomicUsize>,
    pub(crate) groups: Groups,
    pub(crate) broker: Conversation<Question>,
    pub(crate) requests: Requests,
    pub(crate) moves: Moves,
    pub(crate) partings: Partings,
    /// By which peers know this process.
    pub(crate) sign: Sign,
    /// Operations that peers carry out.
    /// The last look at the broker's messages left some.
    pub(crate) unread: bool,
    pub(crate) adaptive_wait: AdaptiveWait,
    /// [`Endpoint::arm`] announced a sleep on the descriptor.
    pub(crate) armed: bool,
    /// Number of polls so far. The low bits decide when to look for idle and for armed rings.
    pub(crate) polls: u32,
    /// See [`ShmEndpoint::keep_memory_in_place`].
    #[cfg(any(test, feature = "test-doors"))]
    pub(crate) registers_in_place: bool,
    /// The endpoint was ended by [`ShmEndpoint::vanish`].
    #[cfg(any(test, feature = "test-doors"))]
    pub(crate) vanished: bool,
}

impl std::fmt::Debug for ShmEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmEndpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

impl From<Lost> for SendError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Unknown => Self::UnknownPeer,
            Lost::Down => Self::PeerDown,
            Lost::CutOff => Self::WouldBlock,
        }
    }
}

impl From<Lost> for OperationError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Unknown => Self::UnknownPeer,
            Lost::Down => Self::PeerDown,
            Lost::CutOff => Self::WouldBlock,
        }
    }
}

impl ShmEndpoint {
    /// Counts a send that failed.
    #[cold]
    pub(crate) fn note_send(&self, error: SendError) -> SendError {
        let refused = error == SendError::WouldBlock;
        self.registers.count(if refused { Register::Refused } else { Register::Errors }, 1);
        error
    }

    /// Counts an operation that failed. If it was announced, it is over.
    #[cold]
    pub(crate) fn note(&self, error: OperationError) -> OperationError {
        self.registers.give_up();
        let refused = error == OperationError::WouldBlock;
        self.registers.count(if refused { Register::Refused } else { Register::Errors }, 1);
        error
    }

    /// Ends the endpoint as the death of its process would: without a message to the broker.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn vanish(mut self) {
        self.vanished = true;
    }

    /// Writes any word of the pair with `peer`, as a hostile peer could.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn scribble(&mut self, peer: Peer, offset: usize, value: u32) {
        if let Ok(peer) = self.peers.find(peer) {
            peer.pair.scribble(offset, value);
        }
    }

    /// Writes any word of this endpoint's doorbell segment, as a hostile peer could.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn scribble_doorbell(&self, offset: usize, value: u32) {
        self.doorbell.scribble(offset, value);
    }

    fn do_register(&mut self, length: u64) -> Result<ShmRegion, RegisterError> {
        if length == 0 {
            return Err(RegisterError::Empty);
        }
        let length = usize::try_from(length).map_err(|_| RegisterError::Os {
            call: "mmap",
            length: usize::MAX,
            errno: weft_fabric::errno::ENOMEM,
        })?;
        self.check_regions()?;
        #[cfg(any(test, feature = "test-doors"))]
        if self.registers_in_place {
            return self.register_in_place(length);
        }
        match Memory::fresh(MemoryOptions::bytes(length)) {
            Ok(memory) => self.register_memory(&memory),
            Err(SegmentError::Os { call, length, errno }) => {
                Err(RegisterError::Os { call, length, errno })
            }
            Err(_) => unreachable!("what was just made is sealed and of its size"),
        }
    }

    /// From here on [`Endpoint::register`] makes memory in place, and the capabilities say what
    /// follows from that.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn keep_memory_in_place(&mut self) {
        self.registers_in_place = true;
        self.capabilities.window_is_memory = false;
        self.capabilities.completes_inline = false;
        self.capabilities.progress = weft_fabric::Progress::Manual;
    }

    #[cfg(any(test, feature = "test-doors"))]
    fn register_in_place(&mut self, length: usize) -> Result<ShmRegion, RegisterError> {
        let mut words = vec![0_u64; length / 8 + 2];
        // Behind a whole word, so that it is not whole pages.
        let base = std::ptr::NonNull::from(&mut words[1]).cast();
        // SAFETY: the memory itself keeps these words, to which nothing else refers.
        let memory = unsafe { Memory::in_place(base, length) }.expect("some bytes");
        memory.kept::<std::sync::OnceLock<Vec<u64>>>().get_or_init(|| words);
        self.register_memory(&memory)
    }

    fn check_regions(&self) -> Result<(), RegisterError> {
        let maximum = self.capabilities.regions_max;
        let is_full = self.regions.load(Ordering::Relaxed) >= maximum;
        if is_full { Err(RegisterError::Exhausted { maximum }) } else { Ok(()) }
    }
}

impl HostMemory for ShmEndpoint {
    type Memory = Memory;

    fn register_memory(&mut self, memory: &Memory) -> Result<ShmRegion, RegisterError> {
        self.check_regions()?;
        Ok(ShmRegion::new(memory.clone(), &self.regions))
    }
}

impl Watchable for ShmEndpoint {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wakeup_and_line.as_ref().unwrap_or(&self.woken).as_fd()
    }
}

impl Endpoint for ShmEndpoint {
    type Region = ShmRegion;
    type Window = ShmWindow;

    fn address(&self) -> EndpointAddress {
        self.address
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn partition(&self) -> PartitionId {
        self.partition
    }

    fn host(&self) -> Option<EndpointAddress> {
        self.host
    }

    fn invite(&mut self, within: Duration, context: u64) -> Result<(Ticket, Issued), InviteError> {
        self.do_invite(within, context)
    }

    fn connect(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, ConnectError> {
        self.do_connect(to, context)
    }

    fn reach(&mut self, peer: Peer) -> Result<Reach, OperationError> {
        self.do_reach(peer).map_err(|error| self.note(error))
    }

    fn disconnect(&mut self, peer: Peer) -> Result<(), OperationError> {
        self.do_disconnect(peer).map_err(|error| self.note(error))
    }

    fn peer_address(&self, peer: Peer) -> Option<EndpointAddress> {
        self.peers.address(peer)
    }

    #[inline(always)]
    fn send_short(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        match self.do_send(to, header, parts) {
            Sent::Now => Ok(()),
            Sent::Otherwise => self.send_otherwise(to, header, parts),
            Sent::Ring => self.ring_after_send(to),
        }
    }

    fn send_multicast(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        self.do_multicast(group, header, parts).map_err(|error| self.note_send(error))
    }

    fn join(&mut self, group: Group, context: u64) -> Result<Issued, GroupError> {
        self.change_group(group, true, context)
    }

    fn leave(&mut self, group: Group, context: u64) -> Result<Issued, GroupError> {
        self.change_group(group, false, context)
    }

    fn register(&mut self, length: u64) -> Result<ShmRegion, RegisterError> {
        self.do_register(length)
    }

    fn grant(
        &mut self,
        range: LocalRange<'_, ShmRegion>,
        audience: Audience,
        access: Access,
        context: u64,
    ) -> Result<Issued, GrantError> {
        self.do_grant(range, audience, access, context)
    }

    fn revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        self.do_revoke(key, context)
    }

    fn resolve(
        &mut self,
        of: Peer,
        key: RemoteKey,
        context: u64,
    ) -> Result<Issued, OperationError> {
        self.do_resolve(of, key, context).map_err(|error| self.note(error))
    }

    // Inlined, so that nothing is left of it in calls with a request of their own.
    #[inline(always)]
    fn issue(
        &mut self,
        to: Peer,
        request: Request<'_, ShmRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let done = match request {
            Request::Put { ranges } => {
                let done = self.do_put_vectored(to, ranges, operation);
                return done.or_else(|error| self.put_otherwise(error, to, ranges, operation));
            }
            Request::Get { ranges } => {
                let done = self.do_get_vectored(to, ranges, operation);
                return done.or_else(|error| self.get_otherwise(error, to, ranges, operation));
            }
            Request::Atomic { target, atomic } => {
                return self.do_atomic(to, target, atomic, operation);
            }
            Request::PutSignal { source, target, signal } => {
                self.do_put_signal(to, &source, target, signal, operation)
            }
            Request::PutImmediate { value, length, target } => {
                self.do_put_immediate(to, value, length, target, operation)
            }
            Request::Fence => return self.order(to).map(|()| Issued::Done(Value::Nothing)),
        };
        done.map_err(|error| self.note(error))
    }

    // Inlined, so that a caller with a constant operation compiles to the stores for that case
    // only.
    #[inline(always)]
    fn put(
        &mut self,
        to: Peer,
        source: Source<'_, ShmRegion>,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let done = self.do_put(to, &source, target, operation);
        done.or_else(|error| self.put_otherwise(error, to, &[(source, target)], operation))
    }

    fn put_notification(&mut self, to: Peer, class: u8, value: u64) -> Result<(), OperationError> {
        self.do_put_notification(to, class, value).map_err(|error| self.note(error))
    }

    fn get(
        &mut self,
        from: Peer,
        source: Target,
        into: LocalRange<'_, ShmRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let done = self.do_get(from, source, into, operation);
        done.or_else(|error| self.get_otherwise(error, from, &[(source, into)], operation))
    }

    // Inlined, so that a caller with a constant operation compiles to that one instruction.
    #[inline(always)]
    fn atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.do_atomic(to, target, atomic, operation)
    }

    fn order(&mut self, to: Peer) -> Result<(), OperationError> {
        // Copies ended when their calls returned; only accesses through windows are unordered.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.peers.find(to).map(drop).map_err(|lost| self.note(lost.into()))
    }

    fn fence_all(&mut self, _context: u64) -> Result<Issued, OperationError> {
        std::sync::atomic::fence(Ordering::SeqCst);
        Ok(Issued::Done(Value::Nothing))
    }

    fn cancel(&mut self, to: Peer, _context: u64) -> Result<(), OperationError> {
        // Operations end in their calls.
        self.peers.find(to).map(drop).map_err(|lost| self.note(lost.into()))
    }

    fn window(&mut self, to: Peer, key: RemoteKey) -> Result<ShmWindow, WindowError> {
        self.do_window(to, key).map_err(|error| self.note(error))
    }

    fn register_value(&self, register: Register) -> u64 {
        self.registers.value(register)
    }

    #[inline]
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.do_poll(budget, sink)
    }

    fn finish(&mut self, context: u64, timeout: Duration) -> Option<Result<Value, OperationError>> {
        self.do_finish(context, timeout)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        self.do_wait(timeout)
    }

    fn arm(&mut self) -> Armed {
        self.do_arm()
    }
}
