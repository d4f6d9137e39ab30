//! Runs a service: its lock, its thread, its clock, and what becomes of its panics.
//!
//! # Invariants
//! - A service is in one call at a time, and what that call wants sent is sent before the next, so
//!   that answers keep their order.
//! - Under the lock nothing waits: sending does not block, `/proc` and the log come after it.
//! - A service that panics goes on with the tables that it left, each of which one call changes.
//!   The log says so, the status counts it, and the program whose packet it was loses its channel.
//!   Ending the daemon would let one program end the service of all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::queue::{Next, Queue};
use super::{
    Counter, Event, Happened, Manifest, Outbox, Peer, Placement, Question, Report, Request, Service,
};
use crate::kernel;
use crate::programs::Programs;
use crate::quota::{Lease, Quota};
use crate::status::{CounterStatus, ServiceStatus};

/// How long a service may take to tell how it is; one that takes longer is left out until it did.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A timer that panicked is left alone for so long, since it may be due still.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// How a service is.
pub struct Answer {
    report: Report,
    counters: Vec<Counter>,
}

/// A service that runs.
pub struct Host {
    manifest: Manifest,
    service: Mutex<Box<dyn Service>>,
    programs: Arc<Programs>,
    /// Of a service with a thread.
    queue: Option<Queue>,
    /// An answer that is due since an earlier question.
    late: Mutex<Option<Receiver<Answer>>>,
    /// How often each of its events happened.
    events: Vec<AtomicU64>,
    panics: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Starts a service, whose programs are `programs`.
    ///
    /// # Errors
    /// When there is no thread for it.
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
            late: Mutex::new(None),
            events: manifest.events.iter().map(|_| AtomicU64::new(0)).collect(),
            panics: AtomicU64::new(0),
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

    /// The service's description of itself.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Gives the service a packet, on the thread of its user.
    ///
    /// # Errors
    /// Gives it back when it is to wait.
    pub fn handle(&self, request: Request) -> Result<(), Request> {
        match &self.queue {
            Some(queue) => queue.put(request),
            None => {
                self.serve(Event::Packet(request));
                Ok(())
            }
        }
    }

    /// Tells the service that a program ended or is gone; `place` is that of the program.
    pub fn end(&self, event: Event, place: &Arc<Lease>) {
        match &self.queue {
            Some(queue) => queue.put_end(event, place),
            None => self.serve(event),
        }
    }

    /// The service's thread. It ends with the process.
    fn run(&self) {
        let Some(queue) = &self.queue else { return };
        let mut not_before = Instant::now();
        loop {
            let due = lock(&self.service).poll_timeout().map(|due| due.max(not_before));
            match queue.next(due) {
                Next::Event(event) => self.serve(event),
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
            if let Ok(Some(question)) = self.step(Some(from), handle) {
                let holder = question.holder;
                let holds = kernel::still_holds(holder.pid, holder.number, holder.inode);
                next = Some(Event::Answer(question, holds));
            }
        }
    }

    /// One call of the service for `from`, and what it wants done.
    fn step(
        &self,
        from: Option<Peer>,
        call: impl FnOnce(&mut dyn Service, &mut Outbox),
    ) -> Result<Option<Question>, Panicked> {
        let mut out = Outbox::default();
        let mut service = lock(&self.service);
        let called = catch_unwind(AssertUnwindSafe(|| call(service.as_mut(), &mut out)));
        let deaf = self.programs.send(&out.packets);
        drop(service);
        for (peer, errno) in deaf {
            let what = "closing a program that does not take its replies";
            self.programs.complain(peer, what, &errno.to_string());
        }
        for (peer, error) in &out.closed {
            self.programs.reject(*peer, error);
        }
        for (peer, why) in &out.complaints {
            self.programs.complain(*peer, "what a program offers is refused", why);
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

    /// The panic itself is in the log already, by its hook.
    fn panicked(&self, from: Option<Peer>) {
        let name = self.manifest.name;
        self.panics.fetch_add(1, Ordering::Relaxed);
        match from {
            Some(peer) => {
                let what = "closing a program whose packet made a service panic";
                self.programs.complain(peer, what, name);
                self.programs.hang_up(peer.process);
            }
            None => tracing::error!(service = name, "a service panicked, and goes on"),
        }
    }

    fn answer(&self) -> Option<Answer> {
        let service = lock(&self.service);
        let answer = || Answer { report: service.report(), counters: service.counters() };
        let answer = catch_unwind(AssertUnwindSafe(answer));
        drop(service);
        answer.map_err(|_| self.panicked(None)).ok()
    }

    /// How the service is: its part of the status, and what is said about any.
    pub fn status(&self) -> (Option<Report>, ServiceStatus) {
        let answer = match &self.queue {
            Some(queue) => self.ask(queue),
            None => self.answer(),
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
            options: self.manifest.options.iter().map(|&option| option.to_owned()).collect(),
        };
        (report, status)
    }

    /// The answer of its thread. The first question that a busy service leaves open waits for it;
    /// later ones do not, until it has answered.
    fn ask(&self, queue: &Queue) -> Option<Answer> {
        let mut late = lock(&self.late);
        if let Some(receiver) = late.take()
            && let Err(TryRecvError::Empty) = receiver.try_recv()
        {
            *late = Some(receiver);
            return None;
        }
        let (sender, receiver) = channel();
        queue.ask(sender);
        match receiver.recv_timeout(ANSWER_WITHIN) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(service = self.manifest.name, "a service takes long to answer");
                *late = Some(receiver);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

/// The call panicked.
struct Panicked;

impl From<Counter> for CounterStatus {
    fn from(counter: Counter) -> Self {
        let Counter { name, unit, help, value } = counter;
        Self { name: name.to_owned(), unit: unit.to_owned(), help: help.to_owned(), value }
    }
}
