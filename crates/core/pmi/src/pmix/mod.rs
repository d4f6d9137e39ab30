//! The process management interface for exascale (PMIx): requests of a process to a launcher that
//! serves it, through the launcher's own library.
//!
//! The wire of PMIx is private to `libpmix`, so that is loaded at run time (`library`). The
//! launcher of Open MPI and Slurm's `--mpi=pmix` serve it.
//!
//! # Invariants
//! - Each wait for other processes or for a value has an end of ours. Joining, leaving and ending a
//!   job have the library's own.

mod library;

use std::time::Duration;

use crate::Error;
use crate::environment::SIZE_MAX;
use library::{Found, Library, Process, RANK_OF_ALL, text};

/// The time in which the launcher gives a value.
const VALUE_WITHIN: Duration = Duration::from_secs(60);
const KEY_OF_SIZE: &str = "pmix.job.size";
/// Longest key in bytes.
const KEY_BYTES_MAX: usize = 511;
/// Longest value in bytes: what the other versions of the interface carry is enough here, too.
const VALUE_BYTES_MAX: usize = 900;

/// One process of a job, joined to its launcher.
pub struct Client {
    library: &'static Library,
    me: Process,
    size: u32,
    /// Whether values were put that the launcher has not got.
    has_news: bool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client(rank {} of {})", self.rank(), self.size)
    }
}

impl Client {
    /// Joins the job.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::NoPmix`], [`Error::Refused`], [`Error::Unexpected`].
    pub fn join() -> Result<Self, Error> {
        let library = Library::load()?;
        let me = library.init()?;
        let all = Process { rank: RANK_OF_ALL, ..me };
        let size = library.get(&all, &text("the key", KEY_OF_SIZE)?, VALUE_WITHIN)?;
        match size {
            Found::Number(size) if me.rank < size && size <= SIZE_MAX => {
                Ok(Self { library, me, size, has_news: false })
            }
            size => {
                let answer = format!("rank {} of {size:?}", me.rank);
                Err(Error::Unexpected { request: KEY_OF_SIZE, answer })
            }
        }
    }

    /// The rank of this process, below [`Client::size`].
    pub const fn rank(&self) -> u32 {
        self.me.rank
    }

    /// The number of processes of the job.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Puts a value under a key. Others see it after the next barrier.
    ///
    /// # Errors
    /// [`Error`].
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), Error> {
        for (part, text, max) in
            [("the key", key, KEY_BYTES_MAX), ("the value", value, VALUE_BYTES_MAX)]
        {
            if text.len() > max {
                return Err(Error::TooLong { part, bytes: text.len(), max });
            }
        }
        self.library.put(&text("the key", key)?, &text("the value", value)?)?;
        self.has_news = true;
        Ok(())
    }

    /// Gets the value that a process put under a key before the last barrier.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] where there is no such key.
    pub fn get(&mut self, rank: u32, key: &str) -> Result<String, Error> {
        let process = Process { rank, ..self.me };
        match self.library.get(&process, &text("the key", key)?, VALUE_WITHIN)? {
            Found::Text(value) => Ok(value),
            other => Err(Error::Unexpected { request: "get", answer: format!("{other:?}") }),
        }
    }

    /// Waits until all processes of the job are here, at most for `within`.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NoAnswer`] when the time is over.
    pub fn barrier(&mut self, within: Duration) -> Result<(), Error> {
        if self.has_news {
            self.library.commit()?;
            self.has_news = false;
        }
        self.library.fence(within)
    }

    /// Has the launcher end the job with an exit code. The caller then exits with it.
    ///
    /// # Errors
    /// [`Error`] where the launcher cannot be told.
    pub fn abort(&mut self, exit_code: i32, message: &str) -> Result<(), Error> {
        let message = message.replace('\0', " ");
        self.library.abort(exit_code, &text("the message", &message)?)
    }

    /// Says that this process needs the launcher no more, and may end.
    ///
    /// # Errors
    /// [`Error`].
    pub fn finalize(self) -> Result<(), Error> {
        self.library.finalize()
    }
}
