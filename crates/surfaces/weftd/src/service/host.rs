//! Runs a service: its lock, its thread, its clock and its panics.
//!
//! # Invariants
//! - A service is in one call at a time. Packets from that call are sent before the next call, so
//!   answers keep their order.
//! - Nothing waits under the lock: sending does not block, and `/proc` and the log come after it.
//! - A service that panics keeps its tables and goes on; each call changes each table in one step.
//!   The log reports the panic, the status counts it, and the program that sent the packet loses
//!   its channel. Ending the daemon instead would let one program end the service for all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use weft_metrics::Histogram;

use super::queue::{Next, Queue};
use super::{
    Counter, Event, Happened, Links, Manifest, NodeEvent, Outbox, Peer, Placement, Question,
    Report, Request, Service,
};
use crate::kernel;
use crate::programs::Programs;
use crate::quota::{Lease, Quota};
use crate::status::{CounterStatus, ServiceStatus};

/// How long the services may take to report their status, all of them together. A service that
/// takes longer is left out until it has answered.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// How long a timer that panicked is left alone; it may still be due.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// The answer of a service about its status.
pub struct Answer {
    report: Report,
    counters: Vec<Counter>,
}

/// A service that was asked for its status.
pub enum Asked {
    /// It answers at once, on the thread that asks.
    InPlace,
    /// Its thread answers.
    Waits(Receiver<Answer>),
    /// It has not answered an earlier question yet.
    Busy,
}

/// A running service.
pub struct Host {
    manifest: Manifest,
    service: Mutex<Box<dyn Service>>,
    programs: Arc<Programs>,
    /// The queue of a service with a thread.
    queue: Option<Queue>,
    /// The way to the other nodes, once the daemon has joined a fabric.
    links: OnceLock<Arc<dyn Links>>,
    /// The open answer to an earlier question.
    late: Mutex<Option<Receiver<Answer>>>,
    /// How often each of the service's events happened.
    events: Vec<AtomicU64>,
    panics: AtomicU64,
    /// How long the service took for packets of programs.
    times: Histogram,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Starts a service for the given programs.
    ///
    /// # Errors
    /// The thread of the service cannot be started.
    pub fn start(
        service: Box<dyn Service>,
        programs: Arc<Programs>,
        quota: Quota,
    ) -> anyhow::Result<Arc<Self>> {
        let manifest = service.manifest();
        let has_thread = manifest.placement == Placement::Thread;
        assert!(has_thread || service.poll_timeout().is_none(), "timers need a thread");
        let host = Arc::new(Self {
            manifest,
            service: Mutex::new(service),
            programs,
            queue: has_thread.then(|| Queue::new(quota)),
            links: OnceLock::new(),
            late: Mutex::new(None),
            events: manifest.events.iter().map(|_| AtomicU64::new(0)).collect(),
            panics: AtomicU64::new(0),
            times: Histogram::default(),
        });
        if has_thread {
            let host = Arc::clone(&host);
            std::thread::Builder::new()
                .name(manifest.name.to_owned())
                .spawn(move || host.run())
                .with_context(|| format!("a thread for {}", manifest.name))?;
        }
        Ok(host)
    }

    /// The description of the service.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Passes a packet to the service. Runs on the thread of the packet's user.
    ///
    /// # Errors
    /// Returns the packet when it has to wait.
    pub fn handle(&self, request: Request) -> Result<(), Request> {
        match &self.queue {
            Some(queue) => queue.enqueue(request),
            None => {
                self.serve(Event::Packet(request));
                Ok(())
            }
        }
    }

    /// Reports the end of a process or of a program. `place` is the place of the program.
    pub fn end(&self, event: Event, place: &Arc<Lease>) {
        match &self.queue {
            Some(queue) => queue.enqueue_end(event, place),
            None => self.serve(event),
        }
    }

    /// Gives the service the way to the other nodes.
    pub fn link(&self, links: Arc<dyn Links>) {
        // The daemon has one way to them.
        let _ = self.links.set(links);
    }

    /// Passes news of another node to the service. False when too many wait.
    pub fn node(&self, event: NodeEvent) -> bool {
        match &self.queue {
            Some(queue) => queue.enqueue_node(event),
            None => {
                self.serve_node(event);
                true
            }
        }
    }

    fn serve_node(&self, event: NodeEvent) {
        // A panic is logged, and the service goes on.
        let _ = self.step(None, |service, out| service.handle_node(event, Instant::now(), out));
    }

    /// The loop of the service's thread. It ends with the process.
    fn run(&self) {
        let Some(queue) = &self.queue else { return };
        let mut not_before = Instant::now();
        loop {
            let due = lock(&self.service).poll_timeout().map(|due| due.max(not_before));
            match queue.next(due) {
                Next::Event(event) => self.serve(event),
                Next::Node(event) => self.serve_node(event),
                Next::Report(sender) => {
                    if let Some(answer) = self.answer() {
                        // The asker may have gone.
                        let _ = sender.send(answer);
                    }
                }
                Next::Timeout => {
                    let timeout = |service: &mut dyn Service, out: &mut Outbox| {
                        service.handle_timeout(Instant::now(), out);
                    };
                    if self.step(None, timeout).is_err() {
                        not_before = Instant::now() + PANIC_PAUSE;
                    }
                }
            }
        }
    }

    fn serve(&self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let from = event.from();
            let handle = |service: &mut dyn Service, out: &mut Outbox| {
                service.handle_event(event, Instant::now(), out);
            };
            let began = Instant::now();
            let step = self.step(Some(from), handle);
            self.times.record(began.elapsed());
            if let Ok(Some(question)) = step {
                let holder = question.holder;
                let holds = kernel::still_holds(holder.pid, holder.number, holder.inode);
                next = Some(Event::Answer(question, holds));
            }
        }
    }

    /// Makes one call of the service and carries out its results. `from` is the program that caused
    /// the call.
    fn step(
        &self,
        from: Option<Peer>,
        call: impl FnOnce(&mut dyn Service, &mut Outbox),
    ) -> Result<Option<Question>, Panicked> {
        let mut out = Outbox::default();
        let mut service = lock(&self.service);
        let called = catch_unwind(AssertUnwindSafe(|| call(service.as_mut(), &mut out)));
        let unresponsive = self.programs.send(&out.packets);
        if let Some(links) = self.links.get() {
            out.to_nodes.drain(..).for_each(|(node, bytes)| links.send(node, bytes));
            out.given_up.drain(..).for_each(|node| links.give_up(node));
        }
        drop(service);
        for (peer, errno) in unresponsive {
            let what = "closing a program that does not take its replies";
            self.programs.complain(peer, what, &errno.to_string());
        }
        for (peer, error) in &out.closed {
            self.programs.reject(*peer, error);
        }
        for (peer, why) in &out.complaints {
            self.programs.complain(*peer, "refusing a request of a program", why);
        }
        out.happened.iter().for_each(|event| self.count(event));
        if called.is_err() {
            self.panicked(from);
            return Err(Panicked);
        }
        Ok(out.question)
    }

    fn count(&self, event: &Happened) {
        let named = self.manifest.events.iter().zip(&self.events);
        for (_, count) in named.filter(|((name, _), _)| *name == event.name) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(detail) = &event.detail {
            let Peer { pid, uid, .. } = event.peer;
            tracing::debug!(service = self.manifest.name, pid, uid, "{}: {detail}", event.name);
        }
    }

    /// The panic hook has already logged the panic.
    fn panicked(&self, from: Option<Peer>) {
        let name = self.manifest.name;
        self.panics.fetch_add(1, Ordering::Relaxed);
        match from {
            Some(peer) => {
                let what = "closing a program whose packet made a service panic";
                self.programs.complain(peer, what, name);
                self.programs.hang_up(peer.process);
            }
            None => tracing::error!(service = name, "a service panicked and continues"),
        }
    }

    fn answer(&self) -> Option<Answer> {
        let service = lock(&self.service);
        let answer = || Answer { report: service.report(), counters: service.counters() };
        let answer = catch_unwind(AssertUnwindSafe(answer));
        drop(service);
        answer.map_err(|_| self.panicked(None)).ok()
    }

    /// Asks the service for its status, without waiting. A busy service is not asked again until it
    /// has answered.
    pub fn ask_status(&self) -> Asked {
        let Some(queue) = &self.queue else { return Asked::InPlace };
        let mut late = lock(&self.late);
        if let Some(receiver) = late.take()
            && let Err(TryRecvError::Empty) = receiver.try_recv()
        {
            *late = Some(receiver);
            return Asked::Busy;
        }
        let (sender, receiver) = channel();
        queue.request_status(sender);
        Asked::Waits(receiver)
    }

    /// The service's part of the status, and the status that every service has, when it was asked.
    /// Waits for its answer until `until`.
    pub fn status(&self, asked: Asked, until: Instant) -> (Option<Report>, ServiceStatus) {
        let answer = match asked {
            Asked::InPlace => self.answer(),
            Asked::Waits(receiver) => self.await_answer(receiver, until),
            Asked::Busy => None,
        };
        let (report, counters) = match answer {
            Some(Answer { report, counters }) => (Some(report), counters),
            None => (None, Vec::new()),
        };
        let event = |(&(name, help), count): (&(&'static str, &'static str), &AtomicU64)| Counter {
            name,
            unit: "events",
            help,
            value: count.load(Ordering::Relaxed),
        };
        let events = self.manifest.events.iter().zip(&self.events).map(event);
        let status = ServiceStatus {
            name: self.manifest.name.to_owned(),
            answers: report.is_some(),
            queued: self.queue.as_ref().map_or(0, Queue::len),
            panics: self.panics.load(Ordering::Relaxed),
            counters: events.chain(counters).map(CounterStatus::from).collect(),
            times: self.times.snapshot().trimmed(),
            times_sum_ns: self.times.snapshot().sum_ns(),
            options: self.manifest.options.iter().map(|&option| option.to_owned()).collect(),
        };
        (report, status)
    }

    fn await_answer(&self, receiver: Receiver<Answer>, until: Instant) -> Option<Answer> {
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(
                    service = self.manifest.name,
                    "a service did not report its status in time"
                );
                *lock(&self.late) = Some(receiver);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

/// A call of the service panicked.
struct Panicked;

impl From<Counter> for CounterStatus {
    fn from(counter: Counter) -> Self {
        let Counter { name, unit, help, value } = counter;
        Self { name: name.to_owned(), unit: unit.to_owned(), help: help.to_owned(), value }
    }
}
