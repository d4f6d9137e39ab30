//! A pool of threads that do jobs from one queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::near::Near;

#[derive(Debug)]
struct Queue<J> {
    jobs: VecDeque<J>,
    is_closed: bool,
}

#[derive(Debug)]
struct Shared<J> {
    queue: Mutex<Queue<J>>,
    came: Condvar,
}

/// The pool. Jobs that were not begun when it is dropped are given up.
#[derive(Debug)]
pub(crate) struct Workers<J> {
    shared: Arc<Shared<J>>,
    threads: Vec<JoinHandle<()>>,
}

impl<J: Send + 'static> Workers<J> {
    /// `count` threads, near something, each with what `make` returns, which does a job.
    pub fn start<W: FnMut(J) + Send + 'static>(
        name: &str,
        (count, near): (usize, Option<&Near>),
        mut make: impl FnMut() -> W,
    ) -> std::io::Result<Self> {
        let queue = Mutex::new(Queue { jobs: VecDeque::new(), is_closed: false });
        let shared = Arc::new(Shared { queue, came: Condvar::new() });
        let mut pool = Self { shared, threads: Vec::new() };
        for number in 0..count.max(1) {
            let (shared, mut work) = (Arc::clone(&pool.shared), make());
            let near = near.cloned();
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            pool.threads.push(thread.spawn(move || {
                if let Some(near) = near {
                    near.bind();
                }
                while let Some(job) = next(&shared) {
                    work(job);
                }
            })?);
        }
        Ok(pool)
    }

    /// Gives the pool a job.
    pub fn give(&self, job: J) {
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.came.notify_one();
    }
}

fn next<J>(shared: &Shared<J>) -> Option<J> {
    let mut queue = shared.queue.lock();
    loop {
        if queue.is_closed {
            return None;
        }
        if let Some(job) = queue.jobs.pop_front() {
            return Some(job);
        }
        shared.came.wait(&mut queue);
    }
}

impl<J> Drop for Workers<J> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.is_closed = true;
        queue.jobs.clear();
        drop(queue);
        self.shared.came.notify_all();
        for thread in self.threads.drain(..) {
            // A worker that panicked has told so by itself.
            let _ = thread.join();
        }
    }
}
