//! A broker inside this process, for endpoints of one process: tests, conformance, examples.
//!
//! Requests go straight into the state under a lock. Unsolicited messages of the broker wait in a
//! queue of the client, as they would in the buffer of a socket.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weft_fabric::NodeId;
use weft_options::ServicePolicy;
use weft_wire::endpoint_control::EndpointControl;

use crate::{
    BrokerError, Client, Connector, Credentials, Limits, OpenBell, Outgoing, ProcessId, Received,
    State, ticket_of,
};

/// A broker in this process. Clones share one state.
#[derive(Clone)]
pub struct LocalBroker {
    inner: Arc<Mutex<Inner>>,
    uid: u32,
}

struct Inner {
    state: State,
    /// How far the broker's clock is ahead of the system's.
    ahead: Duration,
    queues: BTreeMap<ProcessId, VecDeque<Received>>,
    next: u64,
}

/// Unsolicited messages that may wait for one client.
const QUEUE_MAX: usize = 65_536;

impl LocalBroker {
    /// A broker with node number `node` and rules for services. Its clients have the uid of the
    /// calling process.
    #[must_use]
    pub fn new(node: NodeId, limits: Limits, policy: ServicePolicy, open_bell: OpenBell) -> Self {
        let state = State::new(node, limits, open_bell).with_policy(policy);
        let inner = Inner { state, ahead: Duration::ZERO, queues: BTreeMap::new(), next: 1 };
        let uid = rustix::process::getuid().as_raw();
        Self { inner: Arc::new(Mutex::new(inner)), uid }
    }

    /// The same broker, with clients that claim to be user `uid`.
    #[cfg(any(test, feature = "test-doors"))]
    #[must_use]
    pub fn as_user(&self, uid: u32) -> Self {
        Self { inner: Arc::clone(&self.inner), uid }
    }

    /// Sets the broker's clock ahead.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn let_pass(&self, time: Duration) {
        self.inner.lock().ahead += time;
    }
}

impl Connector for LocalBroker {
    fn client(&self) -> Result<Box<dyn Client>, BrokerError> {
        let mut inner = self.inner.lock();
        let process = ProcessId(inner.next);
        inner.next += 1;
        inner.queues.insert(process, VecDeque::new());
        let credentials = Credentials { pid: std::process::id(), uid: self.uid };
        Ok(Box::new(LocalClient { inner: Arc::clone(&self.inner), process, credentials }))
    }
}

struct LocalClient {
    inner: Arc<Mutex<Inner>>,
    process: ProcessId,
    credentials: Credentials,
}

impl Inner {
    /// Puts messages in the queues of their clients and sends their wakeups.
    fn deliver(&mut self, out: Vec<Outgoing>) {
        for Outgoing { to, message, files, wakeup } in out {
            let copies: Result<Vec<_>, _> = files.iter().map(|file| file.try_clone()).collect();
            let Some(queue) = self.queues.get_mut(&to) else { continue };
            // Without free descriptors the message is useless; its receiver finds out when it asks.
            if let Ok(files) = copies
                && queue.len() < QUEUE_MAX
            {
                queue.push_back(Received { message, files });
            }
            if let Some(wakeup) = wakeup {
                wakeup.ring_broker();
            }
        }
    }
}

impl LocalClient {
    fn send(
        &self,
        inner: &mut Inner,
        request: EndpointControl,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError> {
        let copies: Result<Vec<_>, _> =
            files.iter().map(|file| file.try_clone_to_owned()).collect();
        let copies = copies.map_err(|error| BrokerError::Unreachable {
            reason: format!("a descriptor could not be passed: {error}"),
        })?;
        let mut out = Vec::new();
        let (kind, body) = (request.kind(), request.emit());
        let now = crate::clock::now() + inner.ahead;
        inner
            .state
            .handle(self.process, self.credentials, kind, &body, copies, now, &mut out)
            .map_err(|_| BrokerError::InvalidAnswer)?;
        inner.deliver(out);
        Ok(())
    }
}

impl Client for LocalClient {
    fn call(
        &mut self,
        request: EndpointControl,
        ticket: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError> {
        let mut inner = self.inner.lock();
        self.send(&mut inner, request, files)?;
        let queue = inner.queues.get_mut(&self.process).ok_or(BrokerError::InvalidAnswer)?;
        let place = queue.iter().rposition(|got| ticket_of(&got.message) == Some(ticket));
        place.and_then(|place| queue.remove(place)).ok_or(BrokerError::InvalidAnswer)
    }

    fn start(
        &mut self,
        request: EndpointControl,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError> {
        let mut inner = self.inner.lock();
        self.send(&mut inner, request, files)
    }

    fn next(&mut self) -> Option<Received> {
        self.inner.lock().queues.get_mut(&self.process)?.pop_front()
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        let mut out = Vec::new();
        let mut inner = self.inner.lock();
        inner.queues.remove(&self.process);
        inner.state.process_gone(self.process, &mut out);
        inner.deliver(out);
    }
}
