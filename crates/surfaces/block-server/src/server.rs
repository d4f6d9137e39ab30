//! A running server: its targets, reactors, listeners and threads.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;
use weft_block::iscsi::Targets;
use weft_block::scsi::Unit;
use weft_numa::{ProcessorSet, Topology};

use crate::reactor::{Inbox, Reactor, Speaks};
use crate::socket::Listener;
use crate::workers::Workers;

/// Connections of all kinds, at most.
pub const CONNECTIONS_MAX: usize = 4096;

/// The threads of a unit, and the node that its memory is on.
type Place = (Arc<Workers>, Option<u32>);

/// The state that all threads of a server share.
pub struct Shared {
    /// The targets.
    pub targets: Arc<Targets>,
    pub(crate) started: Instant,
    pub(crate) topology: Topology,
    inboxes: Mutex<Vec<Arc<Inbox>>>,
    /// The threads of each unit, and the node that its memory is on, by its serial number.
    places: Mutex<HashMap<String, Place>>,
    connections: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Shared({} connections)", self.connections.load(Ordering::Relaxed))
    }
}

impl Shared {
    /// A server without targets on a machine of the given nodes.
    #[must_use]
    pub fn new(topology: Topology) -> Arc<Self> {
        Arc::new(Self {
            targets: Arc::default(),
            started: Instant::now(),
            topology,
            inboxes: Mutex::default(),
            places: Mutex::default(),
            connections: AtomicUsize::new(0),
        })
    }

    /// Says on which node a unit's memory is, so that it is served there.
    pub fn place_unit(&self, unit: &Unit, node: Option<u32>) {
        let near = node.and_then(|node| self.topology.processors_near(node)).cloned();
        let place = (Workers::new(near), node);
        self.places.lock().insert(unit.identity().serial().to_owned(), place);
    }

    /// The node of a unit.
    #[must_use]
    pub fn node_of(&self, unit: &Unit) -> Option<u32> {
        self.places.lock().get(unit.identity().serial()).and_then(|place| place.1)
    }

    /// Forgets a unit that was removed. Its threads end when they have no work.
    pub fn forget_unit(&self, unit: &Unit) {
        self.places.lock().remove(unit.identity().serial());
    }

    /// Connections of each reactor, with the node of its processor.
    #[must_use]
    pub fn loads(&self) -> Vec<(Option<u32>, usize)> {
        self.inboxes.lock().iter().map(|inbox| (inbox.node(), inbox.load())).collect()
    }

    /// The threads for the work of a unit.
    pub(crate) fn workers(&self, unit: &Unit) -> Arc<Workers> {
        let mut places = self.places.lock();
        let serial = unit.identity().serial();
        if let Some((workers, _)) = places.get(serial) {
            return Arc::clone(workers);
        }
        // A unit that was removed while a command of it waited.
        let workers = Workers::new(None);
        places.insert(serial.to_owned(), (Arc::clone(&workers), None));
        workers
    }

    /// The reactor that a connection is served by, if it is another one: the one with the fewest
    /// connections among those on the node of its unit.
    pub(crate) fn place(&self, node: Option<u32>, own: &Arc<Inbox>) -> Option<Arc<Inbox>> {
        let inboxes = self.inboxes.lock();
        let is_near = |inbox: &Arc<Inbox>| node.is_none() || inbox.node() == node;
        let has_near = inboxes.iter().any(is_near);
        let candidates = inboxes.iter().filter(|inbox| !has_near || is_near(inbox));
        // The connection counts at its own reactor already.
        let load = |inbox: &Arc<Inbox>| match Arc::ptr_eq(inbox, own) {
            true => inbox.load().saturating_sub(1),
            false => inbox.load(),
        };
        let best = candidates.min_by_key(|inbox| (load(inbox), !Arc::ptr_eq(inbox, own)))?;
        (!Arc::ptr_eq(best, own)).then(|| Arc::clone(best))
    }

    /// Counts a connection. False when there are too many.
    pub(crate) fn admit(&self) -> bool {
        let before = self.connections.fetch_add(1, Ordering::AcqRel);
        if before >= CONNECTIONS_MAX {
            self.leave();
            return false;
        }
        true
    }

    pub(crate) fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::AcqRel);
    }

    /// Random bytes that nobody can guess.
    pub(crate) fn random(&self) -> [u8; 17] {
        let mut bytes = [0; 17];
        let flags = rustix::rand::GetRandomFlags::empty();
        let got = rustix::rand::getrandom(&mut bytes, flags);
        assert_eq!(got, Ok(bytes.len()), "the system has random bytes");
        bytes
    }
}

/// The threads of a running server. They end with [`Running::stop`].
#[derive(Debug)]
pub struct Running {
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Inbox({} connections)", self.load())
    }
}

impl Running {
    /// Starts a reactor for each processor that this thread may use, at most `reactors_max`, and
    /// serves the listeners.
    ///
    /// # Errors
    /// A thread or a descriptor cannot be had.
    pub fn start(
        shared: &Arc<Shared>,
        listeners: Vec<(Listener, Speaks)>,
        reactors_max: usize,
    ) -> io::Result<Self> {
        let processors = weft_numa::allowed_processors()?;
        let mut inboxes = Vec::new();
        let mut reactors = Vec::new();
        for processor in processors.iter().take(reactors_max.max(1)) {
            let node = shared.topology.node_of_processor(processor);
            let inbox = Inbox::new(node)?;
            let reactor = Reactor::new(Arc::clone(shared), Arc::clone(&inbox))?;
            inboxes.push(inbox);
            reactors.push((reactor, processor));
        }
        for (number, (listener, speaks)) in listeners.into_iter().enumerate() {
            let at = number % reactors.len();
            reactors[at].0.listen(listener, speaks)?;
        }
        shared.inboxes.lock().clone_from(&inboxes);
        let is_bound = shared.topology.nodes().len() > 1;
        let mut threads = Vec::new();
        for (reactor, processor) in reactors {
            // With one node, the system moves threads better than we do.
            let near: Option<ProcessorSet> = is_bound.then(|| [processor].into_iter().collect());
            let thread = std::thread::Builder::new().name(format!("weft-block-{processor}"));
            threads.push(thread.spawn(move || reactor.run(near.as_ref()))?);
        }
        Ok(Self { inboxes, threads })
    }

    /// Ends all reactors and their connections.
    pub fn stop(self) {
        self.inboxes.iter().for_each(|inbox| inbox.stop());
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a reactor ended by a panic");
            }
        }
    }
}
