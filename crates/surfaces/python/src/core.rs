//! The state that objects of one endpoint share: the endpoint, the inbox, and the operations that
//! have not ended.
//!
//! Invariants: one call at a time has it ([`Shared::enter`]), and another one is refused, never
//! kept waiting; only [`Shared::close`] ends the wait of another. The inbox has room for a fixed
//! number of events; without room nothing more is polled, so that the queues of the fabric fill,
//! and senders are told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use weft_fabric::{
    Addressable, DownReason, Endpoint, EndpointAddress, Event, Group, LocalRange, MessageHeader,
    OperationError, Peer, Region, Value,
};
use weft_open::{AnyEndpoint, Waiter, Woken};

use crate::errors::{self, Kind};
use crate::fork::Own;
use crate::time::Deadline;

/// Events that one poll takes at most.
const AT_ONCE: usize = 64;
/// Bytes that a get to memory that is not registered moves at a time: few enough for the second
/// copy to find them in a cache.
pub(crate) const STAGE: u64 = 256 << 10;
/// How long a close waits for the call of another thread to end: several parts of a wait.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);
/// How many dead peers are remembered with the reason.
const DEAD_REMEMBERED: usize = 1024;

/// Registered memory.
pub(crate) type AnyRegion = <AnyEndpoint as Endpoint>::Region;

/// The endpoint of several Python objects.
pub(crate) struct Shared {
    pub(crate) address: EndpointAddress,
    /// None once it is closed.
    core: Own<Mutex<Option<Core>>>,
    /// Whether a thread closes it, so that the wait of another has to end.
    closing: AtomicBool,
}

/// The call that has the endpoint.
pub(crate) struct Entered<'a> {
    core: MutexGuard<'a, Option<Core>>,
    closing: &'a AtomicBool,
}

impl Shared {
    pub(crate) fn new(endpoint: AnyEndpoint, inbox: usize) -> Arc<Self> {
        let address = endpoint.address();
        let core = Core {
            endpoint,
            waiter: Waiter::default(),
            room: inbox,
            inbox: VecDeque::new(),
            pending: BTreeMap::new(),
            last: 0,
            dead: VecDeque::new(),
            regions: BTreeMap::new(),
            stage: None,
            tries: 0,
        };
        let core = Own::new(Mutex::new(Some(core)));
        Arc::new(Self { address, core, closing: AtomicBool::new(false) })
    }

    /// Has the endpoint for one call.
    pub(crate) fn enter(&self) -> PyResult<Entered<'_>> {
        let Some(core) = self.core.get() else {
            let text = "the endpoint is of the process before the fork; open one of your own";
            return Err(Kind::Forked.says(text));
        };
        let Some(core) = core.try_lock() else {
            let text = "another thread, or a call that a signal interrupted, uses the endpoint";
            return Err(Kind::InUse.says(text));
        };
        if core.is_none() {
            drop(core);
            return Err(closed());
        }
        Ok(Entered { core, closing: &self.closing })
    }

    /// Closes the endpoint; does nothing if it is closed. A wait of another thread ends.
    ///
    /// # Errors
    /// `InUse` if a call goes on; `Forked`.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let is_closed = self.core.get().is_some_and(|core| {
            self.closing.store(true, Ordering::Relaxed);
            // To end an endpoint may take a wait for a thread of the transport.
            let is_closed = py.detach(|| match core.try_lock_for(CLOSES_WITHIN) {
                Some(mut core) => {
                    let taken = core.take();
                    drop(core);
                    drop(taken);
                    true
                }
                None => false,
            });
            self.closing.store(is_closed, Ordering::Relaxed);
            is_closed
        });
        // The exception is that of any call.
        if is_closed { Ok(()) } else { self.enter().map(drop) }
    }

    /// Whether it was closed. One that is in use is not.
    pub(crate) fn is_closed(&self) -> bool {
        self.core.get().and_then(Mutex::try_lock).is_some_and(|core| core.is_none())
    }
}

/// The exception for a closed endpoint.
fn closed() -> PyErr {
    Kind::Closed.says("the endpoint is closed")
}

impl Entered<'_> {
    /// The endpoint and its state.
    pub(crate) fn core(&mut self) -> &mut Core {
        self.core.as_mut().expect("a call enters what is not closed alone")
    }

    /// Looks, polls and waits until `look` finds something, or the time has passed (`None`). Gives
    /// up the interpreter's lock while it waits.
    ///
    /// # Errors
    /// Those of `look` and of handlers of signals; `InboxFull`; `Closed` by another thread.
    pub(crate) fn wait_for<T>(
        &mut self,
        py: Python<'_>,
        deadline: Deadline,
        mut look: impl FnMut(&mut Core) -> PyResult<Option<T>>,
    ) -> PyResult<Option<T>> {
        loop {
            let core = self.core();
            if let Some(found) = look(core)? {
                return Ok(Some(found));
            }
            if core.poll()? > 0 {
                continue;
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            py.detach(|| core.sleep(deadline.part()));
            py.check_signals()?;
            if self.closing.load(Ordering::Relaxed) {
                return Err(closed());
            }
        }
    }
}

/// An event that waits for the program.
#[derive(Debug)]
pub(crate) enum Waiting {
    Message {
        peer: Peer,
        source: EndpointAddress,
        header: MessageHeader,
        group: Option<Group>,
        payload: Box<[u8]>,
    },
    Notification(weft_fabric::Notification),
    Down {
        peer: Peer,
        address: EndpointAddress,
        reason: DownReason,
    },
}

/// The end of an operation, once it has come.
pub(crate) type End = OnceLock<Result<Value, OperationError>>;

/// An operation that has not ended.
struct Pending {
    /// Gone when the program has dropped the operation.
    end: Weak<End>,
    /// The local memory of the operation, which stays until its end.
    _region: Option<Arc<AnyRegion>>,
}

/// An endpoint and its state.
pub(crate) struct Core {
    pub(crate) endpoint: AnyEndpoint,
    waiter: Waiter,
    /// Events that the inbox holds at most.
    room: usize,
    pub(crate) inbox: VecDeque<Waiting>,
    pending: BTreeMap<u64, Pending>,
    /// The context of the last operation.
    last: u64,
    dead: VecDeque<(Peer, DownReason)>,
    /// The memory that is registered, by its address.
    regions: BTreeMap<usize, Weak<AnyRegion>>,
    /// Memory through which bytes get to memory that is not registered. None while a get has it.
    pub(crate) stage: Option<Arc<AnyRegion>>,
    /// How often something happened for which what was refused is tried again.
    pub(crate) tries: u64,
}

impl Core {
    /// Takes events of the endpoint into the inbox; their number.
    ///
    /// # Errors
    /// `InboxFull`.
    pub(crate) fn poll(&mut self) -> PyResult<usize> {
        let left = self.room.saturating_sub(self.inbox.len());
        if left == 0 {
            let text =
                format!("{} messages wait in the inbox, which is full; take some", self.room);
            return Err(Kind::InboxFull.says(text));
        }
        let Self { endpoint, inbox, pending, dead, tries, .. } = self;
        Ok(endpoint.poll(AT_ONCE.min(left), &mut |event| match event {
            Event::Message(message) => inbox.push_back(Waiting::Message {
                peer: message.peer,
                source: message.source,
                header: message.header,
                group: message.group,
                payload: message.payload.into(),
            }),
            Event::Notification(notification) => {
                inbox.push_back(Waiting::Notification(notification));
            }
            Event::Completion(completion) => {
                let pending = pending.remove(&completion.context);
                if let Some(end) = pending.and_then(|pending| pending.end.upgrade()) {
                    // A context has one end.
                    let _ = end.set(completion.result);
                }
            }
            Event::PeerDown { peer, address, reason } => {
                *tries += 1;
                if dead.len() == DEAD_REMEMBERED {
                    dead.pop_front();
                }
                dead.push_back((peer, reason));
                inbox.push_back(Waiting::Down { peer, address, reason });
            }
            Event::Room { .. } | Event::GroupRoom { .. } => *tries += 1,
        }))
    }

    /// Waits until there may be events, a signal comes, or the time has passed.
    fn sleep(&mut self, time: Duration) {
        let woken = self.waiter.wait(&mut self.endpoint, &[], Some(time));
        debug_assert!(!matches!(woken, Woken::Beside(_)), "there is nothing beside");
    }

    /// The context of a further operation. It is never that of `Blocking`.
    pub(crate) const fn next_context(&mut self) -> u64 {
        self.last = (self.last + 1) % u64::MAX;
        self.last
    }

    /// Follows an operation that has begun. Its local memory stays until its end.
    pub(crate) fn follow(&mut self, context: u64, end: &Arc<End>, region: Option<Arc<AnyRegion>>) {
        self.pending.insert(context, Pending { end: Arc::downgrade(end), _region: region });
    }

    /// Why a peer is down, as far as it is remembered.
    pub(crate) fn reason_of(&self, peer: Peer) -> Option<DownReason> {
        self.dead.iter().rev().find(|(dead, _)| *dead == peer).map(|(_, reason)| *reason)
    }

    /// The exception for a peer that is down.
    pub(crate) fn died(&self, peer: Peer) -> PyErr {
        errors::peer_died(self.endpoint.peer_address(peer), self.reason_of(peer))
    }

    /// Takes memory through which bytes get to memory that is not registered. A get that ends well
    /// gives it back; one that was given up may still write there.
    ///
    /// # Errors
    /// Those of its registration.
    pub(crate) fn take_stage(&mut self) -> PyResult<Arc<AnyRegion>> {
        self.stage.take().map_or_else(
            || {
                self.endpoint
                    .register(STAGE)
                    .map(Arc::new)
                    .map_err(|error| errors::register(&error))
            },
            Ok,
        )
    }

    /// Remembers registered memory.
    pub(crate) fn remember(&mut self, region: &Arc<AnyRegion>) {
        self.regions.retain(|_, region| region.strong_count() > 0);
        self.regions.insert(region.base().addr().get(), Arc::downgrade(region));
    }

    /// The registered memory that these bytes lie in, and their offset.
    pub(crate) fn region_of(&self, (base, length): (usize, usize)) -> Option<Part> {
        let (start, region) = self.regions.range(..=base).next_back()?;
        let region = region.upgrade()?;
        let (offset, length) = ((base - start) as u64, length as u64);
        (offset.checked_add(length)? <= region.length()).then_some(Part { region, offset, length })
    }
}

/// A part of registered memory.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) region: Arc<AnyRegion>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Part {
    pub(crate) fn range(&self) -> LocalRange<'_, AnyRegion> {
        LocalRange::new(&self.region, self.offset, self.length)
    }
}
