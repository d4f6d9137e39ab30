//! Targets over the fabric: endpoints that serve `weft-block: iser`, each on a thread of its own.
//!
//! The first endpoint offers the service, and tells each initiator which endpoint is near its unit
//! and serves the fewest. Invariants: an endpoint is used by its thread alone. While bytes move in
//! the memory of a unit, the thread runs no job, which could wait for their end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use weft_block::iser::{Event, Surroundings, Target, Ticket};
use weft_block::scsi::{Outcome, Unit};
use weft_block::store::Store;
use weft_fabric::{Endpoint, EndpointAddress, HostMemory, Partition};
use weft_memory::Memory;
use weft_numa::ProcessorSet;
use weft_open::{AnyEndpoint, Driver, Opening, OpeningError, Waiter, Woken, now};
use weft_session::{Options, Sessions};

use crate::connection::run;
use crate::mailbox::Mailbox;
use crate::ring::{Carried, Ring};
use crate::server::Shared;

/// The thread looks at its limits of time so often.
const TICK: Duration = Duration::from_millis(500);
/// An initiator that says nothing for so long has ended.
const SILENCE: Duration = Duration::from_secs(60);

type Region = <AnyEndpoint as Endpoint>::Region;

/// The name of the service of a server with this port.
#[must_use]
pub fn service_name(port: u16) -> String {
    format!("block.{port}")
}

/// Why a service is not offered.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// An endpoint cannot be opened.
    #[error(transparent)]
    Opening(#[from] OpeningError),
    /// The system lacks memory, descriptors or threads.
    #[error("the service cannot be served: {0}")]
    System(String),
}

/// One endpoint of a service.
#[derive(Debug)]
struct Seat {
    address: EndpointAddress,
    node: Option<u32>,
    sessions: AtomicUsize,
}

/// One endpoint of a service, for people and scripts.
#[derive(Clone, Debug)]
pub struct SeatStatus {
    /// Its address.
    pub address: EndpointAddress,
    /// The node of its thread.
    pub node: Option<u32>,
    /// Sessions that it serves.
    pub sessions: usize,
}

enum Message {
    Finished { ticket: Ticket, outcome: Outcome, data: Vec<u8> },
    Stop,
}

/// A service that is offered. It ends with [`Offered::stop`].
pub struct Offered {
    /// Its name.
    pub name: String,
    seats: Arc<Vec<Seat>>,
    mailboxes: Vec<Arc<Mailbox<Message>>>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Offered {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Offered({}, {} endpoints)", self.name, self.seats.len())
    }
}

impl Offered {
    /// Offers the targets of a server, by an endpoint for each processor that this thread may use,
    /// at most `threads_max`.
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn start(
        shared: &Arc<Shared>,
        opening: &Opening,
        port: u16,
        threads_max: usize,
    ) -> Result<Self, OfferError> {
        let system = |error: &dyn std::fmt::Display| OfferError::System(error.to_string());
        let name = service_name(port);
        let opening = opening.clone().driven_by(Driver::Owner);
        let first = opening.clone().offering(&name)?.open()?;
        let others = opening.partition(Partition::Numbered(first.partition()));
        let processors = weft_numa::allowed_processors().map_err(|error| system(&error))?;
        let (mut endpoints, mut seats, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = Some(first);
        for processor in processors.iter().take(threads_max.max(1)) {
            let endpoint = first.take().map_or_else(|| others.open(), Ok)?;
            let node = shared.topology.node_of_processor(processor);
            seats.push(Seat { address: endpoint.address(), node, sessions: AtomicUsize::new(0) });
            endpoints.push(endpoint);
            places.push(processor);
        }
        let seats = Arc::new(seats);
        let is_bound = shared.topology.nodes().len() > 1;
        let mut own =
            Self { name, seats: Arc::clone(&seats), mailboxes: Vec::new(), threads: Vec::new() };
        for ((number, mut endpoint), processor) in endpoints.into_iter().enumerate().zip(places) {
            let mailbox = Arc::new(Mailbox::new().map_err(|error| system(&error))?);
            let stage = endpoint.register(Target::<AnyEndpoint, Place>::stage_bytes());
            let stage = stage.map_err(|error| system(&error))?;
            let options = Options { silence: Some(SILENCE), ..Options::default() };
            let sessions = Sessions::new(endpoint, options);
            let place = Place {
                shared: Arc::clone(shared),
                seats: Arc::clone(&seats),
                own: number,
                regions: HashMap::new(),
            };
            let thread = Thread {
                target: Target::new(sessions, Arc::clone(&shared.targets), stage, place),
                waiter: Waiter::default(),
                mailbox: Arc::clone(&mailbox),
                shared: Arc::clone(shared),
                seats: Arc::clone(&seats),
                own: number,
                ring: Ring::default(),
            };
            // With one node, the system moves threads better than we do.
            let near: Option<ProcessorSet> = is_bound.then(|| [processor].into_iter().collect());
            let named = std::thread::Builder::new().name(format!("weft-block-f{number}"));
            let spawned = named.spawn(move || thread.run(near.as_ref()));
            own.threads.push(spawned.map_err(|error| system(&error))?);
            own.mailboxes.push(mailbox);
        }
        Ok(own)
    }

    /// Its endpoints.
    #[must_use]
    pub fn seats(&self) -> Vec<SeatStatus> {
        let status = |seat: &Seat| SeatStatus {
            address: seat.address,
            node: seat.node,
            sessions: seat.sessions.load(Ordering::Relaxed),
        };
        self.seats.iter().map(status).collect()
    }

    /// Ends the service and all its sessions.
    pub fn stop(self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(Message::Stop));
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread of service {} ended by a panic", self.name);
            }
        }
    }
}

/// The knowledge of one endpoint: the others, and the memories that it has as regions.
struct Place {
    shared: Arc<Shared>,
    seats: Arc<Vec<Seat>>,
    own: usize,
    /// By the address of the store, which is not another one's as long as this holds it.
    regions: HashMap<usize, (Weak<dyn Store>, Region)>,
}

impl Surroundings<AnyEndpoint> for Place {
    fn elsewhere(&mut self, unit: &Unit) -> Option<EndpointAddress> {
        let node = self.shared.node_of(unit);
        let is_near = |seat: &&(usize, &Seat)| node.is_none() || seat.1.node == node;
        let all: Vec<(usize, &Seat)> = self.seats.iter().enumerate().collect();
        let has_near = all.iter().any(|seat| is_near(&seat));
        let load =
            |seat: &&(usize, &Seat)| (seat.1.sessions.load(Ordering::Relaxed), seat.0 != self.own);
        let best = all.iter().filter(|seat| !has_near || is_near(seat)).min_by_key(load)?;
        (best.0 != self.own).then_some(best.1.address)
    }

    fn region(&mut self, endpoint: &mut AnyEndpoint, store: &Arc<dyn Store>) -> Option<Region> {
        let memory = store.memory()?.downcast_ref::<Memory>()?;
        let address = Arc::as_ptr(store).addr();
        if let Some((_, region)) = self.regions.get(&address) {
            return Some(region.clone());
        }
        self.forget();
        match endpoint.register_memory(memory) {
            Ok(region) => {
                self.regions.insert(address, (Arc::downgrade(store), region.clone()));
                Some(region)
            }
            Err(error) => {
                tracing::warn!("the memory of a LUN is no region, and is copied: {error}");
                None
            }
        }
    }

    fn now(&self) -> Duration {
        now()
    }
}

impl Place {
    /// Gives up the memories of stores that are gone.
    fn forget(&mut self) {
        self.regions.retain(|_, (store, _)| store.strong_count() > 0);
    }
}

struct Thread {
    target: Target<AnyEndpoint, Place>,
    waiter: Waiter,
    mailbox: Arc<Mailbox<Message>>,
    shared: Arc<Shared>,
    seats: Arc<Vec<Seat>>,
    own: usize,
    ring: Ring<Ticket>,
}

impl Thread {
    /// Serves until it is told to stop.
    fn run(mut self, near: Option<&ProcessorSet>) {
        if let Some(near) = near
            && let Err(error) = weft_numa::bind_thread(near)
        {
            tracing::warn!("cannot bind a thread to processors {near}: {error}");
        }
        let mailbox = Arc::clone(&self.mailbox);
        loop {
            let due = self.target.sessions().timeout().map(|due| due.saturating_sub(now()));
            let within = due.map_or(TICK, |due| due.min(TICK));
            let own = std::os::fd::AsFd::as_fd(&*mailbox);
            let beside: Vec<_> = [own].into_iter().chain(self.ring.descriptor()).collect();
            let woken = self.waiter.wait(self.target.sessions(), &beside, Some(within));
            self.target.poll(now());
            for message in mailbox.take(woken == Woken::Beside(0)) {
                match message {
                    Message::Stop => return,
                    Message::Finished { ticket, outcome, data } => {
                        self.target.finished(ticket, outcome, data);
                    }
                }
            }
            self.work();
            self.serve_ring();
            self.seats[self.own].sessions.store(self.target.load(), Ordering::Relaxed);
        }
    }

    /// Passes on what was begun in the ring, and answers what has ended, until there is nothing of
    /// either.
    fn serve_ring(&mut self) {
        loop {
            let ended = self.ring.take();
            if ended.is_empty() {
                return;
            }
            for (Carried { ticket, into, .. }, status) in ended {
                self.target.finished(ticket, Outcome::Done(status), into);
            }
            self.work();
        }
    }

    /// Runs what is quick, and gives the rest to the kernel or to the threads of its unit.
    fn work(&mut self) {
        while let Some(event) = self.target.poll_event() {
            match event {
                Event::Run { ticket, job, data, mut into, target }
                    if self.ring.may_run_in_place(&job) && !self.target.is_moving_in_place() =>
                {
                    let outcome = run(&job, &data, &mut into, Some(&target));
                    self.target.finished(ticket, outcome, into);
                }
                Event::Run { ticket, job, data, into, target } => {
                    let carried = Carried { ticket, data, into };
                    let Err(carried) = self.ring.begin(&job, carried) else { continue };
                    let Carried { ticket, data, mut into } = carried;
                    let mailbox = Arc::clone(&self.mailbox);
                    let workers = self.shared.workers(job.unit());
                    workers.run(Box::new(move || {
                        let outcome = run(&job, &data, &mut into, Some(&target));
                        mailbox.send(Message::Finished { ticket, outcome, data: into });
                    }));
                }
                Event::RunUnasked { job, target } => {
                    let workers = self.shared.workers(job.unit());
                    workers.run(Box::new(move || {
                        run(&job, &[], &mut Vec::new(), Some(&target));
                    }));
                }
            }
        }
    }
}
