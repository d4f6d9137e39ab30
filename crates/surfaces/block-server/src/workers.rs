//! Threads that wait for one unit's store, so that nobody else does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use weft_numa::ProcessorSet;

/// Threads of one unit at most: so many accesses of its device are in flight.
const THREADS_MAX: usize = 16;
/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Shared {
    queue: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

/// Threads for the work of one unit. They are made when there is work, and end when there is none.
pub struct Workers {
    shared: Mutex<Shared>,
    news: Condvar,
    near: Option<ProcessorSet>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = self.shared.lock();
        write!(formatter, "Workers({} threads, {} waiting)", shared.threads, shared.queue.len())
    }
}

impl Workers {
    /// Threads that run on the given processors.
    #[must_use]
    pub fn new(near: Option<ProcessorSet>) -> Arc<Self> {
        Arc::new(Self { shared: Mutex::default(), news: Condvar::new(), near })
    }

    /// Runs work, in order of arrival as far as there are threads. The queue is bounded by the
    /// windows of the connections.
    pub fn run(self: &Arc<Self>, work: Work) {
        let mut shared = self.shared.lock();
        shared.queue.push_back(work);
        if shared.idle >= shared.queue.len() {
            drop(shared);
            self.news.notify_one();
            return;
        }
        if shared.threads >= THREADS_MAX {
            return;
        }
        shared.threads += 1;
        drop(shared);
        let own = Arc::clone(self);
        let thread = std::thread::Builder::new().name("weft-block-work".to_owned());
        if let Err(error) = thread.spawn(move || own.work()) {
            tracing::warn!("cannot start a thread for a unit's work: {error}");
            let mut shared = self.shared.lock();
            shared.threads -= 1;
            // With no thread at all the work is done here: late is better than never.
            while shared.threads == 0
                && let Some(work) = shared.queue.pop_front()
            {
                drop(shared);
                work();
                shared = self.shared.lock();
            }
        }
    }

    fn work(&self) {
        if let Some(near) = &self.near
            && let Err(error) = weft_numa::bind_thread(near)
        {
            tracing::warn!("cannot bind a thread to processors {near}: {error}");
        }
        let mut shared = self.shared.lock();
        loop {
            if let Some(work) = shared.queue.pop_front() {
                drop(shared);
                work();
                shared = self.shared.lock();
                continue;
            }
            shared.idle += 1;
            let waited = self.news.wait_for(&mut shared, IDLE);
            shared.idle -= 1;
            if waited.timed_out() && shared.queue.is_empty() {
                shared.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn work_that_waits_does_not_keep_other_work_waiting() {
        let workers = Workers::new(None);
        let (release, released) = channel::<()>();
        workers.run(Box::new(move || {
            let _ = released.recv();
        }));
        let (done, ends) = channel();
        for number in 0..100 {
            let done = done.clone();
            workers.run(Box::new(move || done.send(number).expect("the test waits")));
        }
        let mut all: Vec<i32> = ends.iter().take(100).collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        release.send(()).expect("it waits");
        assert!(workers.shared.lock().threads <= THREADS_MAX);
    }
}
