//! Commits on a thread of its own, so that clients whose answers do not wait go on.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use weft_kv::node::Node;
use weft_kv::store::{Lsn, StoreError};

use crate::answers::Commits;

#[derive(Debug)]
struct State {
    commits: Commits,
    is_ending: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Readable when a commit is over.
    over: OwnedFd,
}

/// The thread that commits.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Committer {
    pub(crate) fn start(node: Arc<dyn Node>) -> io::Result<Self> {
        let over = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = State { commits: Commits::new(node.newest()), is_ending: false };
        let state = Mutex::new(state);
        let shared = Arc::new(Shared { state, wake: Condvar::new(), over });
        let theirs = Arc::clone(&shared);
        let run = move || theirs.run(&*node);
        let thread = thread::Builder::new().name("kv-commit".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Becomes readable when a commit is over.
    pub(crate) fn over(&self) -> &OwnedFd {
        &self.shared.over
    }

    /// Asks for a commit up to this batch.
    pub(crate) fn want(&self, lsn: Lsn) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.commits.want(lsn) {
            self.shared.wake.notify_one();
        }
    }

    /// The newest batch that is safe, or why one is not.
    pub(crate) fn result(&self) -> Result<Lsn, StoreError> {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&self.shared.over, &mut count);
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.commits.result()
    }
}

impl Shared {
    fn run(&self, node: &dyn Node) {
        let lock = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut state = lock();
            let wanted = loop {
                match state.commits.next() {
                    _ if state.is_ending => return,
                    Some(wanted) => break wanted,
                    None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            let result = node.commit(wanted);
            lock().commits.finish(wanted, result);
            let _ = rustix::io::write(&self.over, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).is_ending = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
