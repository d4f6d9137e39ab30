//! Requests in flight, and what does them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;

use crate::plain;
use crate::pool::Pool;
use crate::space::Space;
use crate::uring::Uring;

/// The way that an engine is asked to work in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Way {
    /// By io_uring if the kernel lets it, else by plain calls.
    #[default]
    Auto,
    /// By io_uring, or not at all.
    Uring,
    /// By pread(2) and pwrite(2).
    Plain,
}

/// How an engine works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// By io_uring.
    Uring,
    /// By pread(2) and pwrite(2).
    Plain,
}

/// Options of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Most requests at a time, 1 to 4,096; 64 by default. Each takes 200 bytes.
    pub depth: u32,
    /// The way.
    pub way: Way,
}

impl Default for Options {
    fn default() -> Self {
        Self { depth: 64, way: Way::Auto }
    }
}

/// The action of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Reads into the space, from this place of the file on.
    Read {
        /// The place.
        at: u64,
    },
    /// Writes the space to this place of the file.
    Write {
        /// The place.
        at: u64,
    },
    /// As fsync(2). Needs no space.
    Sync,
    /// As fdatasync(2). Needs no space.
    DataSync,
}

/// One request.
#[derive(Debug)]
pub struct Request {
    /// Names it in its [`Done`].
    pub token: u64,
    /// The file.
    pub file: Arc<OwnedFd>,
    /// The action.
    pub action: Action,
    /// The memory, for reads and writes.
    pub space: Option<Space>,
}

/// The end of a request.
#[derive(Debug)]
pub struct Done {
    /// The request.
    pub token: u64,
    /// Bytes moved; fewer than the space has only for a read at the end of the file. After an
    /// error the space, or the file, may have changed in part.
    pub result: Result<usize, Errno>,
    /// The memory of the request.
    pub space: Option<Space>,
}

/// Why there is no engine.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The depth is out of its range.
    #[error("a depth of {0} requests; it may be 1 to 4096")]
    Depth(u32),
    /// The kernel does not let this process use io_uring, and nothing else was allowed.
    #[error("the kernel has no io_uring for this process ({0}); allow pread and pwrite")]
    Refused(Errno),
}

#[derive(Debug)]
enum Worker {
    Uring(Box<Uring>),
    Plain { done: VecDeque<Done>, depth: usize },
}

/// Does requests. It belongs to one thread at a time.
#[derive(Debug)]
pub struct Engine {
    worker: Worker,
    why_plain: Option<String>,
}

impl Engine {
    /// An engine.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn new(options: &Options) -> Result<Self, EngineError> {
        if !(1..=4_096).contains(&options.depth) {
            return Err(EngineError::Depth(options.depth));
        }
        let plain = |why| {
            let depth = options.depth as usize;
            let worker = Worker::Plain { done: VecDeque::new(), depth };
            Ok(Self { worker, why_plain: Some(why) })
        };
        if options.way == Way::Plain {
            return plain("it was asked for".to_owned());
        }
        match Uring::new(options.depth) {
            Ok(ring) => Ok(Self { worker: Worker::Uring(Box::new(ring)), why_plain: None }),
            Err(error) if options.way == Way::Uring => Err(EngineError::Refused(error)),
            Err(error) => plain(format!("the kernel refuses io_uring: {error}")),
        }
    }

    /// How it works.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.worker {
            Worker::Uring(_) => Kind::Uring,
            Worker::Plain { .. } => Kind::Plain,
        }
    }

    /// Why it works by plain calls; `None` if it does not.
    #[must_use]
    pub fn why_plain(&self) -> Option<&str> {
        self.why_plain.as_deref()
    }

    /// Registers the buffers of a pool with the kernel, which then need not be pinned for each
    /// request. One pool for an engine; requests with other memory go on as before. False if the
    /// kernel does not do it, for example because of the limit of locked memory: nothing else
    /// changes then.
    pub fn register(&mut self, pool: &Pool) -> bool {
        match &mut self.worker {
            Worker::Uring(ring) => ring.register(pool),
            Worker::Plain { .. } => false,
        }
    }

    /// Begins a request. Its [`Done`] follows from [`Engine::wait`].
    ///
    /// # Errors
    /// The request, if there are as many as [`Options::depth`].
    ///
    /// # Panics
    /// When a read or write has no space.
    pub fn submit(&mut self, mut request: Request) -> Result<(), Request> {
        let moves = matches!(request.action, Action::Read { .. } | Action::Write { .. });
        assert!(!moves || request.space.is_some(), "a read or write needs memory");
        match &mut self.worker {
            Worker::Uring(ring) => ring.submit(request),
            Worker::Plain { done, depth } => {
                if done.len() >= *depth {
                    return Err(request);
                }
                let result = plain::run(&request.file, request.action, request.space.as_mut());
                done.push_back(Done { token: request.token, result, space: request.space });
                Ok(())
            }
        }
    }

    /// The number of requests whose end was not taken yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        match &self.worker {
            Worker::Uring(ring) => ring.pending(),
            Worker::Plain { done, .. } => done.len(),
        }
    }

    /// Passes what was submitted to the kernel, waits until at least `count` requests are done, or
    /// all if fewer are pending, and appends the ends of all that are done.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn wait(&mut self, count: usize, into: &mut Vec<Done>) -> io::Result<()> {
        match &mut self.worker {
            Worker::Uring(ring) => ring.wait(count, into),
            Worker::Plain { done, .. } => {
                into.extend(done.drain(..));
                Ok(())
            }
        }
    }

    /// A descriptor that is readable when requests are done, for who sleeps on several things.
    /// Take them by [`Engine::wait`] with a count of 0. `None` where the end of
    /// [`Engine::submit`] is the end of the request.
    #[must_use]
    pub fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match &self.worker {
            Worker::Uring(ring) => Some(ring.descriptor()),
            Worker::Plain { .. } => None,
        }
    }
}
