//! The wish of a call: its action, its range, and the checks that need nobody else.

use weft_fabric::{Command, OperationError, RemoteKey, Signal, Source, Target};

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

impl Wanted<'_> {
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
