//! Transmission: requests on an export, and replies.

use std::sync::Arc;

use super::REQUEST_BYTES_MAX;
use super::handshake::{ALLOCATION_ID, Agreed};
use crate::scsi::{Access, Job, Key, Link, Outcome, Sense, Status, Unit};

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 28;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;
/// Extents in one reply at most.
const EXTENTS_MAX: usize = 4096;

const FUA: u16 = 1;
const NO_HOLE: u16 = 1 << 1;
const ONE_EXTENT: u16 = 1 << 3;

/// Errors as the protocol has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Error {
    Permission = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    Shutdown = 108,
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    BlockStatus,
    Unknown,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub kind: Kind,
    flags: u16,
    cookie: u64,
    offset: u64,
    pub length: u32,
}

impl Request {
    /// The request of the first bytes; `None` when they are none.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let short = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        if word(0) != REQUEST {
            return None;
        }
        let kind = match short(6) {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Disconnect,
            3 => Kind::Flush,
            4 => Kind::Trim,
            6 => Kind::WriteZeroes,
            7 => Kind::BlockStatus,
            _ => Kind::Unknown,
        };
        let (flags, cookie) = (short(4), long(8));
        Some(Self { kind, flags, cookie, offset: long(16), length: word(24) })
    }
}

/// A request whose job runs outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub(super) request: Request,
    /// Bytes that it holds.
    pub(super) held: usize,
}

/// The state of a connection that has chosen an export.
#[derive(Debug)]
pub struct Transmission {
    unit: Arc<Unit>,
    link: Arc<Link>,
    is_structured: bool,
    has_allocation: bool,
}

impl Transmission {
    pub fn new(unit: Arc<Unit>, link: Arc<Link>, agreed: &Agreed) -> Self {
        let (is_structured, has_allocation) =
            (agreed.is_structured, agreed.allocation_of.is_some());
        Self { unit, link, is_structured, has_allocation }
    }

    pub const fn unit(&self) -> &Arc<Unit> {
        &self.unit
    }

    /// The job of a request, or why there is none.
    pub fn job(&self, request: &Request) -> Result<Job, Error> {
        let Request { kind, flags, offset, length, .. } = *request;
        let (unit, link) = (&self.unit, &self.link);
        let access = match kind {
            Kind::Read | Kind::BlockStatus => Access::Reads,
            _ => Access::Writes,
        };
        let known = match kind {
            Kind::Read => 1 << 2,
            Kind::Write | Kind::Trim | Kind::Flush => FUA,
            Kind::WriteZeroes => FUA | NO_HOLE,
            Kind::BlockStatus => ONE_EXTENT,
            Kind::Disconnect | Kind::Unknown => return Err(Error::Invalid),
        };
        if flags & !known != 0 {
            return Err(Error::Invalid);
        }
        if kind == Kind::Flush {
            return Ok(Job::flush(unit, link));
        }
        let end = offset.checked_add(length.into()).ok_or(Error::Invalid)?;
        let size = unit.store().bytes();
        if end > size {
            // As the document has it: what is written there has no space, what is read is wrong.
            return Err(if access == Access::Writes { Error::NoSpace } else { Error::Invalid });
        }
        unit.permit(link, access).map_err(error_of)?;
        let (fua, range) = (flags & FUA != 0, (offset, u64::from(length)));
        Ok(match kind {
            Kind::Read if length > REQUEST_BYTES_MAX => return Err(Error::Invalid),
            Kind::Read => Job::read(unit, link, offset, length.into()),
            Kind::Write => Job::write(unit, link, offset, length.into(), fua),
            Kind::Trim => Job::zero(unit, link, range, true, fua),
            Kind::WriteZeroes => Job::zero(unit, link, range, flags & NO_HOLE == 0, fua),
            _ if !self.has_allocation || length == 0 => return Err(Error::Invalid),
            _ => {
                let count = if flags & ONE_EXTENT != 0 { 1 } else { EXTENTS_MAX };
                Job::holes(unit, link, (offset, length), count)
            }
        })
    }

    /// The head of a reply, and whether the data follow it.
    pub fn reply(&self, ticket: &Ticket, outcome: &Outcome, data: &mut Vec<u8>) -> Vec<u8> {
        let request = &ticket.request;
        let error = match outcome {
            Outcome::Done(Status::Good) | Outcome::Continues(_) => None,
            Outcome::Done(status) => Some(error_of(*status)),
            // The unit was reset or taken away.
            Outcome::Aborted => Some(Error::Shutdown),
        };
        match error {
            Some(error) => {
                data.clear();
                self.error(request, error)
            }
            None => self.good(request, data),
        }
    }

    /// The reply to a request that failed.
    pub fn error(&self, request: &Request, error: Error) -> Vec<u8> {
        const ERROR: u16 = 0x8001;
        if !self.is_structured {
            return simple(error as u32, request.cookie);
        }
        let mut head = chunk(ERROR, request.cookie, 6);
        head.extend((error as u32).to_be_bytes());
        head.extend([0, 0]);
        head
    }

    fn good(&self, request: &Request, data: &mut Vec<u8>) -> Vec<u8> {
        const NONE: u16 = 0;
        const DATA: u16 = 1;
        const BLOCK_STATUS: u16 = 5;
        /// A hole, which reads as zeros.
        const HOLE_AND_ZERO: u32 = 3;
        let length = u32::try_from(data.len()).expect("requests are bounded");
        match request.kind {
            Kind::Read if self.is_structured => {
                let mut head = chunk(DATA, request.cookie, length + 8);
                head.extend(request.offset.to_be_bytes());
                head
            }
            Kind::BlockStatus => {
                for extent in data.chunks_exact_mut(8) {
                    let flags = if extent[7] == 1 { HOLE_AND_ZERO } else { 0 };
                    extent[4..].copy_from_slice(&flags.to_be_bytes());
                }
                let mut head = chunk(BLOCK_STATUS, request.cookie, length + 4);
                head.extend(ALLOCATION_ID.to_be_bytes());
                head
            }
            Kind::Read => simple(0, request.cookie),
            _ => {
                data.clear();
                match self.is_structured {
                    true => chunk(NONE, request.cookie, 0),
                    false => simple(0, request.cookie),
                }
            }
        }
    }
}

impl Drop for Transmission {
    fn drop(&mut self) {
        self.unit.abort_tasks(&self.link);
        self.unit.detach(&self.link);
    }
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    let mut head = SIMPLE_REPLY.to_be_bytes().to_vec();
    head.extend(error.to_be_bytes());
    head.extend(cookie.to_be_bytes());
    head
}

/// The head of the one chunk of a structured reply.
fn chunk(kind: u16, cookie: u64, length: u32) -> Vec<u8> {
    const DONE: u16 = 1;
    let mut head = STRUCTURED_REPLY.to_be_bytes().to_vec();
    head.extend(DONE.to_be_bytes());
    head.extend(kind.to_be_bytes());
    head.extend(cookie.to_be_bytes());
    head.extend(length.to_be_bytes());
    head
}

const fn error_of(status: Status) -> Error {
    match status {
        Status::Conflict => Error::Permission,
        Status::Check(Sense { key: Key::DataProtect, code: (0x27, 0x07), .. }) => Error::NoSpace,
        Status::Check(Sense { key: Key::DataProtect, .. }) => Error::Permission,
        Status::Check(Sense { key: Key::IllegalRequest, .. }) => Error::Invalid,
        _ => Error::Io,
    }
}
