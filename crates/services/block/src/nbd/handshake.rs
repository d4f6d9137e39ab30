//! The handshake: options until an export is chosen.

use std::sync::Arc;

use super::{Exports, REQUEST_BYTES_MAX};
use crate::scsi::Unit;

const HAVE_OPTION: u64 = 0x4948_4156_454f_5054;
const REPLY: u64 = 0x0003_e889_0455_65a9;
/// The greeting: magic, fixed newstyle, and that the zeroes may be left out.
pub const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\x00\x03";
/// Bytes of an option's data at most: a name has up to 4096.
const OPTION_BYTES_MAX: u32 = 8192;
/// Options of one connection at most.
const OPTIONS_MAX: u32 = 1024;
/// Replies are cut to this; a list that is longer has fewer names.
const NAMES_MAX: usize = 1024;

const EXPORT_NAME: u32 = 1;
const ABORT: u32 = 2;
const LIST: u32 = 3;
const START_TLS: u32 = 5;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const LIST_META_CONTEXT: u32 = 9;
const SET_META_CONTEXT: u32 = 10;

const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFORMATION: u32 = 3;
const META_CONTEXT: u32 = 4;
const UNSUPPORTED: u32 = (1 << 31) + 1;
const POLICY: u32 = (1 << 31) + 2;
const INVALID: u32 = (1 << 31) + 3;
const TLS_REQUIRED: u32 = (1 << 31) + 5;
const UNKNOWN: u32 = (1 << 31) + 6;
const TOO_BIG: u32 = (1 << 31) + 9;

/// The one meta context that there is, and its number.
const ALLOCATION: &str = "base:allocation";
/// The number of the meta context.
pub const ALLOCATION_ID: u32 = 1;

/// Whether connections are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tls {
    /// Not offered.
    No,
    /// Required before anything else is told.
    Required,
    /// In force.
    On,
}

/// The agreement of a handshake.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    /// Replies are structured.
    pub is_structured: bool,
    /// The meta context may be asked for, of the export of this name.
    pub allocation_of: Option<String>,
}

/// The next step.
#[derive(Debug)]
pub enum Next {
    /// More bytes are needed.
    More,
    /// More options.
    Options,
    /// An encrypted connection begins behind the reply.
    Tls,
    /// The export is chosen.
    Chosen(Arc<Unit>),
    /// The connection ends behind the reply.
    End,
}

/// The handshake of a connection.
#[derive(Debug)]
pub struct Handshake {
    exports: Arc<dyn Exports>,
    flags: Option<u32>,
    options: u32,
    pub agreed: Agreed,
    pub tls: Tls,
}

impl Handshake {
    pub fn new(exports: Arc<dyn Exports>, tls: Tls) -> Self {
        Self { exports, flags: None, options: 0, agreed: Agreed::default(), tls }
    }

    /// Takes the next message of `bytes`; returns how long it was and what comes next. Replies go
    /// to `out`.
    pub fn step(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> (usize, Next) {
        if self.flags.is_none() {
            let Some(flags) = bytes.first_chunk::<4>() else { return (0, Next::More) };
            let flags = u32::from_be_bytes(*flags);
            self.flags = Some(flags);
            // Fixed newstyle is a must; a bit that nobody knows ends the connection.
            let is_known = flags & !3 == 0 && flags & 1 != 0;
            return (4, if is_known { Next::Options } else { Next::End });
        }
        let Some(head) = bytes.first_chunk::<16>() else { return (0, Next::More) };
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| head[at + byte]));
        let magic = u64::from_be_bytes(std::array::from_fn(|byte| head[byte]));
        let (option, length) = (word(8), word(12));
        self.options += 1;
        if magic != HAVE_OPTION || length > OPTION_BYTES_MAX || self.options > OPTIONS_MAX {
            return (0, Next::End);
        }
        let whole = 16 + length as usize;
        let Some(data) = bytes.get(16..whole) else {
            self.options -= 1;
            return (0, Next::More);
        };
        (whole, self.option(option, data, out))
    }

    fn option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        if self.tls == Tls::Required && !matches!(option, START_TLS | ABORT) {
            if option == EXPORT_NAME {
                return Next::End;
            }
            return refuse(out, option, TLS_REQUIRED, "use TLS first");
        }
        match option {
            EXPORT_NAME => self.export_name(data, out),
            ABORT => {
                reply(out, option, ACK, &[]);
                Next::End
            }
            LIST if !data.is_empty() => refuse(out, option, INVALID, "LIST has no data"),
            LIST => {
                for name in self.exports.names().into_iter().take(NAMES_MAX) {
                    let length = u32::try_from(name.len()).expect("a name is short");
                    reply(out, option, SERVER, &[&length.to_be_bytes(), name.as_bytes()].concat());
                }
                reply(out, option, ACK, &[]);
                Next::Options
            }
            START_TLS => match self.tls {
                Tls::Required if data.is_empty() => {
                    reply(out, option, ACK, &[]);
                    // Earlier agreements count no more.
                    self.agreed = Agreed::default();
                    Next::Tls
                }
                Tls::No => refuse(out, option, POLICY, "this server has no certificate"),
                _ => refuse(out, option, INVALID, "TLS is on already, or data came with it"),
            },
            INFO | GO => self.go(option, data, out),
            STRUCTURED_REPLY if data.is_empty() => {
                self.agreed.is_structured = true;
                reply(out, option, ACK, &[]);
                Next::Options
            }
            STRUCTURED_REPLY => refuse(out, option, INVALID, "STRUCTURED_REPLY has no data"),
            LIST_META_CONTEXT | SET_META_CONTEXT => self.meta(option, data, out),
            _ => refuse(out, option, UNSUPPORTED, ""),
        }
    }

    fn export_name(&self, data: &[u8], out: &mut Vec<u8>) -> Next {
        let unit = std::str::from_utf8(data).ok().and_then(|name| self.exports.find(name));
        let Some(unit) = unit else { return Next::End };
        out.extend(self.size_and_flags(&unit));
        let has_zeroes = self.flags.unwrap_or(0) & 2 == 0;
        if has_zeroes {
            out.extend([0; 124]);
        }
        Next::Chosen(unit)
    }

    fn go(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        let Some((name, infos)) = name_and_rest(data) else {
            return refuse(out, option, INVALID, "the name and its length do not fit");
        };
        let count = infos.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes));
        if count.is_none_or(|count| infos.len() != 2 + 2 * usize::from(count)) {
            return refuse(out, option, INVALID, "the list of infos is too short or too long");
        }
        let Some(unit) = self.exports.find(name) else {
            return refuse(out, option, UNKNOWN, "there is no export of this name");
        };
        let export = [&0_u16.to_be_bytes()[..], &self.size_and_flags(&unit)].concat();
        reply(out, option, INFORMATION, &export);
        let mut sizes = 3_u16.to_be_bytes().to_vec();
        for size in [1, 4096, REQUEST_BYTES_MAX] {
            sizes.extend(size.to_be_bytes());
        }
        reply(out, option, INFORMATION, &sizes);
        reply(out, option, ACK, &[]);
        if option == INFO {
            return Next::Options;
        }
        // A meta context is of one export alone.
        if self.agreed.allocation_of.as_deref().is_some_and(|of| of != name) {
            self.agreed.allocation_of = None;
        }
        Next::Chosen(unit)
    }

    fn meta(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        if !self.agreed.is_structured {
            return refuse(out, option, INVALID, "ask for structured replies first");
        }
        let Some((name, mut rest)) = name_and_rest(data) else {
            return refuse(out, option, INVALID, "the name and its length do not fit");
        };
        if self.exports.find(name).is_none() {
            return refuse(out, option, UNKNOWN, "there is no export of this name");
        }
        let Some((count, queries)) = rest.split_first_chunk::<4>() else {
            return refuse(out, option, INVALID, "the number of queries is missing");
        };
        let count = u32::from_be_bytes(*count);
        rest = queries;
        let mut is_found = count == 0 && option == LIST_META_CONTEXT;
        for _ in 0..count {
            let Some((query, behind)) = name_and_rest(rest) else {
                return refuse(out, option, INVALID, "a query and its length do not fit");
            };
            rest = behind;
            is_found |= query == ALLOCATION || (query == "base:" && option == LIST_META_CONTEXT);
        }
        if !rest.is_empty() {
            return refuse(out, option, INVALID, "there are data behind the queries");
        }
        if option == SET_META_CONTEXT {
            self.agreed.allocation_of = is_found.then(|| name.to_owned());
        }
        if is_found {
            let context = [&ALLOCATION_ID.to_be_bytes()[..], ALLOCATION.as_bytes()].concat();
            reply(out, option, META_CONTEXT, &context);
        }
        reply(out, option, ACK, &[]);
        Next::Options
    }

    fn size_and_flags(&self, unit: &Unit) -> [u8; 10] {
        const HAS_FLAGS: u16 = 1;
        const READ_ONLY: u16 = 1 << 1;
        const FLUSH: u16 = 1 << 2;
        const FUA: u16 = 1 << 3;
        const TRIM: u16 = 1 << 5;
        const WRITE_ZEROES: u16 = 1 << 6;
        const DO_NOT_FRAGMENT: u16 = 1 << 7;
        const MULTI_CONNECTION: u16 = 1 << 8;
        let mut flags = HAS_FLAGS | FLUSH | MULTI_CONNECTION;
        flags |= if unit.is_read_only() { READ_ONLY } else { FUA | TRIM | WRITE_ZEROES };
        if self.agreed.is_structured {
            flags |= DO_NOT_FRAGMENT;
        }
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&unit.store().bytes().to_be_bytes());
        bytes[8..].copy_from_slice(&flags.to_be_bytes());
        bytes
    }
}

/// A name behind its length, and what follows.
fn name_and_rest(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(REPLY.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(u32::try_from(data.len()).expect("replies are short").to_be_bytes());
    out.extend(data);
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) -> Next {
    debug_assert!(kind >> 31 == 1 && kind != TOO_BIG);
    reply(out, option, kind, message.as_bytes());
    Next::Options
}
