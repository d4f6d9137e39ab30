//! One-sided operations as data: what [`crate::Endpoint::issue`] takes.

use crate::atomic::Atomic;
use crate::endpoint::{LocalRange, Source};
use crate::error::OperationError;
use crate::operation::{Signal, Target};

/// A one-sided operation on a peer. [`crate::Endpoint`] has a call for each, which says what it
/// does and how it fails.
#[derive(Debug)]
pub enum Request<'a, R> {
    /// Writes ranges: [`crate::Endpoint::put`], [`crate::Endpoint::put_vectored`].
    Put {
        /// The bytes of each range, and their place. At least one.
        ranges: &'a [(Source<'a, R>, Target)],
    },
    /// Writes a range and then changes a word: [`crate::Endpoint::put_signal`].
    PutSignal {
        /// The bytes.
        source: Source<'a, R>,
        /// Their place.
        target: Target,
        /// The word, and its change.
        signal: Signal,
    },
    /// Writes the low bytes of a number: [`crate::Endpoint::put_immediate`].
    PutImmediate {
        /// The number, little-endian.
        value: u64,
        /// How many bytes of it, 1 to 8.
        length: u8,
        /// Their place.
        target: Target,
    },
    /// Reads ranges: [`crate::Endpoint::get`], [`crate::Endpoint::get_vectored`].
    Get {
        /// The place of each range, and where its bytes go. At least one.
        ranges: &'a [(Target, LocalRange<'a, R>)],
    },
    /// Changes a word: [`crate::Endpoint::atomic`].
    Atomic {
        /// The word.
        target: Target,
        /// Its change.
        atomic: Atomic,
    },
    /// Ends when all before it is visible: [`crate::Endpoint::fence`].
    Fence,
}

impl<'a, R> Request<'a, R> {
    /// Issues the same request at an endpoint whose regions `range` finds: for a transport that
    /// stands on others.
    ///
    /// # Errors
    /// Those of `range` and of `issue`.
    pub fn issue_at<E, S: 'a, T>(
        self,
        endpoint: &mut E,
        range: impl Fn(LocalRange<'a, R>, &mut E) -> Result<LocalRange<'a, S>, OperationError>,
        issue: impl FnOnce(&mut E, Request<'_, S>) -> Result<T, OperationError>,
    ) -> Result<T, OperationError> {
        let of_source = |source, endpoint: &mut E| {
            Ok::<_, OperationError>(match source {
                Source::Bytes(bytes) => Source::Bytes(bytes),
                Source::Region(local) => Source::Region(range(local, endpoint)?),
            })
        };
        let there: Request<'_, S> = match self {
            Self::Put { ranges } => {
                let ranges = ranges
                    .iter()
                    .map(|(source, target)| Ok((of_source(*source, endpoint)?, *target)))
                    .collect::<Result<Vec<_>, OperationError>>()?;
                return issue(endpoint, Request::Put { ranges: &ranges });
            }
            Self::Get { ranges } => {
                let ranges = ranges
                    .iter()
                    .map(|(source, into)| Ok((*source, range(*into, endpoint)?)))
                    .collect::<Result<Vec<_>, OperationError>>()?;
                return issue(endpoint, Request::Get { ranges: &ranges });
            }
            Self::PutSignal { source, target, signal } => {
                Request::PutSignal { source: of_source(source, endpoint)?, target, signal }
            }
            Self::PutImmediate { value, length, target } => {
                Request::PutImmediate { value, length, target }
            }
            Self::Atomic { target, atomic } => Request::Atomic { target, atomic },
            Self::Fence => Request::Fence,
        };
        issue(endpoint, there)
    }
}

impl<R> Clone for Request<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Request<'_, R> {}
