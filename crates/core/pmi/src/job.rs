//! The job of this process, whether a launcher started it or it is alone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Client, Environment, Error, pmix};

/// Most values that a process that is alone keeps.
const VALUES_MAX: usize = 4096;

/// The job of this process.
#[derive(Debug)]
pub enum Job {
    /// No launcher: rank 0 of 1. Its values are kept here.
    Alone(BTreeMap<String, String>),
    /// One of the processes that a launcher with PMI-1 or PMI-2 started.
    Launched(Box<Client>),
    /// One of the processes that a launcher with PMIx started.
    LaunchedByPmix(Box<pmix::Client>),
}

impl Job {
    /// Joins the job that the variables of this process name.
    ///
    /// # Errors
    /// [`Error`].
    pub fn join() -> Result<Self, Error> {
        match Environment::of_process()? {
            Environment::Alone => Ok(Self::Alone(BTreeMap::new())),
            Environment::Launched(place) => {
                Client::reach(&place).map(|client| Self::Launched(Box::new(client)))
            }
            Environment::LaunchedByPmix => {
                pmix::Client::join().map(|client| Self::LaunchedByPmix(Box::new(client)))
            }
        }
    }

    /// The rank of this process, below [`Job::size`].
    pub fn rank(&self) -> u32 {
        match self {
            Self::Alone(_) => 0,
            Self::Launched(client) => client.rank(),
            Self::LaunchedByPmix(client) => client.rank(),
        }
    }

    /// The number of processes of the job.
    pub fn size(&self) -> u32 {
        match self {
            Self::Alone(_) => 1,
            Self::Launched(client) => client.size(),
            Self::LaunchedByPmix(client) => client.size(),
        }
    }

    /// Puts a value under a key. Others see it after the next barrier. A value is at most 900 bytes
    /// of visible ASCII, a key at most 63.
    ///
    /// # Errors
    /// [`Error`].
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), Error> {
        match self {
            Self::Alone(values) if values.len() == VALUES_MAX && !values.contains_key(key) => {
                Err(Error::TooLong { part: "the table", bytes: values.len() + 1, max: VALUES_MAX })
            }
            Self::Alone(values) => {
                values.insert(key.to_owned(), value.to_owned());
                Ok(())
            }
            Self::Launched(client) => client.put(key, value),
            Self::LaunchedByPmix(client) => client.put(key, value),
        }
    }

    /// Gets the value that the process with a rank put under a key before the last barrier.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] where there is no such key.
    pub fn get(&mut self, rank: u32, key: &str) -> Result<String, Error> {
        match self {
            Self::Alone(values) => values.get(key).cloned().ok_or_else(|| Error::Refused {
                request: "get",
                subject: key.to_owned(),
                code: "alone".to_owned(),
                message: "nobody put a value under this key".to_owned(),
            }),
            Self::Launched(client) => client.get(rank, key),
            Self::LaunchedByPmix(client) => client.get(rank, key),
        }
    }

    /// Waits until all processes of the job are here, at most for `within`.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NoAnswer`] when the time is over.
    pub fn barrier(&mut self, within: Duration) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Launched(client) => client.barrier(within),
            Self::LaunchedByPmix(client) => client.barrier(within),
        }
    }

    /// Has the launcher end the job with an exit code. The caller then exits with it.
    ///
    /// # Errors
    /// [`Error`] where the launcher cannot be told.
    pub fn abort(&mut self, exit_code: i32, message: &str) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Launched(client) => client.abort(exit_code, message),
            Self::LaunchedByPmix(client) => client.abort(exit_code, message),
        }
    }

    /// Says that this process needs its launcher no more, and may end.
    ///
    /// # Errors
    /// [`Error`].
    pub fn finalize(self) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Launched(client) => client.finalize(),
            Self::LaunchedByPmix(client) => client.finalize(),
        }
    }
}
