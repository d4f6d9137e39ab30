//! The state that objects of one endpoint share: the endpoint, the inbox, and the operations that
//! have not ended.
//!
//! Invariants: one call at a time has it ([`Shared::enter`]), and another one is refused, never
//! kept waiting. The inbox has room for a fixed number of events; without room nothing more is
//! polled, so that the queues of the fabric fill, and senders are told.

use std::collections::{BTreeMap, VecDeque};
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
/// How many dead peers are remembered with the reason.
const DEAD_REMEMBERED: usize = 1024;

/// Registered memory.
pub(crate) type AnyRegion = <AnyEndpoint as Endpoint>::Region;

/// The endpoint of several Python objects.
pub(crate) struct Shared {
    pub(crate) address: EndpointAddress,
    core: Mutex<Own<Core>>,
}

/// The call that has the endpoint.
pub(crate) struct Entered<'a>(MutexGuard<'a, Own<Core>>);

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
        Arc::new(Self { address, core: Mutex::new(Own::new(core)) })
    }

    /// Has the endpoint for one call.
    pub(crate) fn enter(&self) -> PyResult<Entered<'_>> {
        let Some(mut core) = self.core.try_lock() else {
            let text = "another thread, or a call that a signal interrupted, uses the endpoint";
            return Err(Kind::InUse.says(text));
        };
        if !core.is_own() {
            let text = "the endpoint is of the process before the fork; open one of your own";
            return Err(Kind::Forked.says(text));
        }
        match core.get() {
            Some(_) => Ok(Entered(core)),
            None => Err(Kind::Closed.says("the endpoint is closed")),
        }
    }

    /// Closes the endpoint. `false` if it was closed before.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<bool> {
        match self.enter() {
            Ok(mut entered) => {
                let core = entered.0.take();
                drop(entered);
                // It may wait for a thread of the transport.
                py.detach(|| drop(core));
                Ok(true)
            }
            Err(error) if self.is_closed() => {
                drop(error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether it was closed. One that is in use is not.
    pub(crate) fn is_closed(&self) -> bool {
        self.core.try_lock().is_some_and(|mut core| core.is_own() && core.get().is_none())
    }
}

impl std::ops::Deref for Entered<'_> {
    type Target = Own<Core>;

    fn deref(&self) -> &Own<Core> {
        &self.0
    }
}

impl Entered<'_> {
    /// The endpoint and its state.
    pub(crate) fn core(&mut self) -> &mut Core {
        self.0.get().expect("a call enters what is not closed alone")
    }

    /// Looks, polls and waits until `look` finds something, or the time has passed (`None`). Gives
    /// up the interpreter's lock while it waits.
    ///
    /// # Errors
    /// Those of `look` and of handlers of signals; `InboxFull`.
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
    /// Memory through which bytes get to memory that is not registered.
    stage: Option<Arc<AnyRegion>>,
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

    /// Memory through which bytes get to memory that is not registered.
    ///
    /// # Errors
    /// Those of its registration.
    pub(crate) fn stage(&mut self) -> PyResult<Arc<AnyRegion>> {
        if let Some(stage) = &self.stage {
            return Ok(Arc::clone(stage));
        }
        let stage = self.endpoint.register(STAGE).map_err(|error| errors::register(&error))?;
        Ok(Arc::clone(self.stage.insert(Arc::new(stage))))
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
