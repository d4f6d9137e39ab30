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

#[cfg(any(test, feature = "test-doors"))]
use crate::Cuts;
use crate::{
    BrokerError, Client, Connector, Credentials, Limits, OpenBell, Outgoing, ProcessId, Received,
    Site, State, Waker, ticket_of,
};

/// A broker in this process. Clones share one state.
#[derive(Clone)]
pub struct LocalBroker {
    inner: Arc<Mutex<Inner>>,
    node: NodeId,
    uid: u32,
    site: Option<Site>,
}

struct Inner {
    /// The broker of each node. All are joined.
    states: BTreeMap<NodeId, State>,
    /// How far the broker's clock is ahead of the system's.
    ahead: Duration,
    clients: BTreeMap<ProcessId, Waiting>,
    next: u64,
}

/// The messages of a client that were not taken, and what tells it that there are some.
#[derive(Default)]
struct Waiting {
    messages: VecDeque<Received>,
    waker: Option<Waker>,
}

/// Unsolicited messages that may wait for one client.
const QUEUE_MAX: usize = 65_536;

impl LocalBroker {
    /// A broker with node number `node` and rules for services. Its clients have the uid of the
    /// calling process.
    #[must_use]
    pub fn new(node: NodeId, limits: Limits, policy: ServicePolicy, open_bell: OpenBell) -> Self {
        let state = State::new(node, limits, open_bell).with_policy(policy);
        let states = BTreeMap::from([(node, state)]);
        let inner = Inner { states, ahead: Duration::ZERO, clients: BTreeMap::new(), next: 1 };
        let uid = rustix::process::getuid().as_raw();
        Self { inner: Arc::new(Mutex::new(inner)), node, uid, site: None }
    }

    /// The broker of another node, which joins this one. It has the same limits and rules.
    ///
    /// # Panics
    /// When there is a broker of that node already.
    #[must_use]
    pub fn beside(&self, node: NodeId) -> Self {
        let mut inner = self.inner.lock();
        assert!(!inner.states.contains_key(&node), "each node has one broker");
        let mut state = inner.states[&self.node].another(node);
        for (other, known) in &mut inner.states {
            known.node_up(node);
            state.node_up(*other);
        }
        inner.states.insert(node, state);
        inner.carry(Vec::new());
        drop(inner);
        Self { inner: Arc::clone(&self.inner), node, uid: self.uid, site: None }
    }

    /// The same broker, with clients that claim to be user `uid`.
    #[cfg(any(test, feature = "test-doors"))]
    #[must_use]
    pub fn as_user(&self, uid: u32) -> Self {
        Self { uid, ..self.clone() }
    }

    /// The same broker, with clients that are at a node of a lab.
    #[cfg(any(test, feature = "test-doors"))]
    #[must_use]
    pub fn at(&self, site: Site) -> Self {
        Self { site: Some(site), ..self.clone() }
    }

    /// The nodes of the lab are cut off from each other like this.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn set_cuts(&self, cuts: Cuts) {
        let (mut inner, mut out) = (self.inner.lock(), Vec::new());
        let now = crate::clock::now() + inner.ahead;
        if let Some(state) = inner.states.get_mut(&self.node) {
            state.set_cuts(cuts, now, &mut out);
        }
        inner.carry(out);
    }

    /// Has the brokers of all nodes tell endpoints with ports how long a peer may be silent.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn tell_silence(&self, silence: Duration) {
        for state in self.inner.lock().states.values_mut() {
            state.silence_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        }
    }

    /// Has the brokers of all nodes tell that processes are stopped, or that none is.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn tell_stopped(&self, are_stopped: bool) {
        for state in self.inner.lock().states.values_mut() {
            state.is_stopped = if are_stopped { |_| true } else { |_| false };
        }
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
        inner.clients.insert(process, Waiting::default());
        if let (Some(state), Some(site)) = (inner.states.get_mut(&self.node), self.site) {
            state.is_at(process, site);
        }
        let credentials = Credentials { pid: std::process::id(), uid: self.uid };
        let (inner, node) = (Arc::clone(&self.inner), self.node);
        Ok(Box::new(LocalClient { inner, node, process, credentials }))
    }
}

struct LocalClient {
    inner: Arc<Mutex<Inner>>,
    node: NodeId,
    process: ProcessId,
    credentials: Credentials,
}

impl Inner {
    /// Delivers messages, and those between nodes that they cause.
    fn carry(&mut self, mut out: Vec<Outgoing>) {
        let now = crate::clock::now() + self.ahead;
        for state in self.states.values_mut() {
            state.handle_timeout(now, &mut out);
        }
        loop {
            self.deliver(std::mem::take(&mut out));
            let mut between = Vec::new();
            for (node, state) in &mut self.states {
                let told = state.take_node_messages();
                between.extend(told.into_iter().map(|(to, message)| (*node, to, message)));
            }
            if between.is_empty() {
                return;
            }
            for (from, to, message) in between {
                if let Some(state) = self.states.get_mut(&to) {
                    state.node_says(from, message, now, &mut out);
                }
            }
        }
    }

    /// Puts messages in the queues of their clients and sends their wakeups.
    fn deliver(&mut self, out: Vec<Outgoing>) {
        for Outgoing { to, message, files, wakeup } in out {
            let copies: Result<Vec<_>, _> = files.iter().map(|file| file.try_clone()).collect();
            let Some(client) = self.clients.get_mut(&to) else { continue };
            // Without free descriptors the message is useless; its receiver finds out when it asks.
            if let Ok(files) = copies
                && client.messages.len() < QUEUE_MAX
            {
                client.messages.push_back(Received { message, files });
            }
            if let Some(wakeup) = wakeup {
                wakeup.ring_broker();
            }
            if let Some(waker) = &client.waker {
                waker();
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
        let state = inner.states.get_mut(&self.node).ok_or(BrokerError::InvalidAnswer)?;
        state
            .handle(self.process, self.credentials, kind, &body, copies, now, &mut out)
            .map_err(|_| BrokerError::InvalidAnswer)?;
        inner.carry(out);
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
        let client = inner.clients.get_mut(&self.process).ok_or(BrokerError::InvalidAnswer)?;
        let queue = &mut client.messages;
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
        self.inner.lock().clients.get_mut(&self.process)?.messages.pop_front()
    }

    fn wake_by(&mut self, waker: Waker) {
        if let Some(client) = self.inner.lock().clients.get_mut(&self.process) {
            client.waker = Some(waker);
        }
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        let mut out = Vec::new();
        let mut inner = self.inner.lock();
        inner.clients.remove(&self.process);
        if let Some(state) = inner.states.get_mut(&self.node) {
            state.process_gone(self.process, &mut out);
        }
        inner.carry(out);
    }
}
