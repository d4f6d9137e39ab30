//! The wish of a call: its action, its range, and the checks that need nobody else.

use weft_fabric::{Command, LocalRange, OperationError, RemoteKey, Signal, Source, Target, rules};

use crate::packet::Request;
use crate::region::OfiRegion;

/// The wish of a call.
#[derive(Debug)]
pub(crate) enum Wanted<'a> {
    Put(Vec<(Source<'a, OfiRegion>, Target)>, Option<Signal>),
    Get(Vec<(Target, Into)>),
    /// The action of the target, and the key, offset and length for notifications.
    Ask(Option<Command>, Request, (RemoteKey, u64, u64)),
}

/// Where the bytes of a get go.
#[derive(Clone, Debug)]
pub(crate) enum Into {
    /// To a region: the offset and the length.
    Region(OfiRegion, u64, u64),
    /// To a window: the length.
    Window(u64),
}

impl<'a> Wanted<'a> {
    /// The wish of a request of a program. A fence wishes for nothing: it is not one.
    pub fn new(request: weft_fabric::Request<'a, OfiRegion>) -> Result<Self, OperationError> {
        use weft_fabric::Request as Of;
        let ask = |command, request, target: Target, length| {
            Self::Ask(Some(command), request, (target.key, target.offset, length))
        };
        Ok(match request {
            Of::Put { ranges } => Self::Put(ranges.to_vec(), None),
            Of::PutSignal { source, target, signal } => {
                Self::Put(vec![(source, target)], Some(signal))
            }
            Of::PutImmediate { value, length, target } => {
                let length = rules::check_immediate(length)?;
                let request = Request::Store { target, value, length, is_word: false };
                ask(Command::ImmediatePut, request, target, length.into())
            }
            Of::Get { ranges } => {
                let into = |range: &LocalRange<'_, OfiRegion>| {
                    Into::Region(range.region.clone(), range.offset, range.length)
                };
                Self::Get(ranges.iter().map(|(source, range)| (*source, into(range))).collect())
            }
            Of::Atomic { target, atomic } => {
                let request = Request::Atomic(target, atomic);
                ask(Command::Atomic, request, target, atomic.width.bytes())
            }
            Of::Fence => return Err(OperationError::Empty),
        })
    }

    pub(super) fn command(&self) -> Option<Command> {
        match self {
            Self::Put(..) => Some(Command::Put),
            Self::Get(_) => Some(Command::Get),
            Self::Ask(command, ..) => *command,
        }
    }

    /// The key, offset and length for notifications.
    pub(super) fn range(&self) -> (RemoteKey, u64, u64) {
        let sum = |lengths: &mut dyn Iterator<Item = u64>| lengths.fold(0, u64::saturating_add);
        let (first, length) = match self {
            Self::Put(ranges, _) => {
                let length = sum(&mut ranges.iter().map(|(source, _)| source.length()));
                (ranges.first().map(|(_, target)| *target), length)
            }
            Self::Get(ranges) => {
                let length = sum(&mut ranges.iter().map(|(_, into)| into.length()));
                (ranges.first().map(|(source, _)| *source), length)
            }
            Self::Ask(_, _, range) => return *range,
        };
        let Target { key, offset } = first.unwrap_or(Target::new(RemoteKey(0), 0));
        (key, offset, length)
    }

    pub(super) fn check_local(&self) -> Result<(), OperationError> {
        match self {
            Self::Put(ranges, _) => {
                for (source, _) in ranges {
                    if let Source::Region(range) = source {
                        range.region.check(range.offset, range.length)?;
                    }
                }
                if ranges.is_empty() { Err(OperationError::Empty) } else { Ok(()) }
            }
            Self::Get(ranges) => {
                for (_, into) in ranges {
                    if let Into::Region(region, offset, length) = into {
                        region.check(*offset, *length)?;
                    }
                }
                if ranges.is_empty() { Err(OperationError::Empty) } else { Ok(()) }
            }
            Self::Ask(..) => Ok(()),
        }
    }
}

impl Into {
    pub(super) const fn length(&self) -> u64 {
        match self {
            Self::Region(_, _, length) | Self::Window(length) => *length,
        }
    }
}
