//! The messages of a transfer, and the frames that carry them over a stream of bytes.
//!
//! A frame is a head of 16 bytes (`u32` length of the body, `u8` kind, three zeros, `u64` checksum
//! of these eight bytes and the body), the body, and for a block the bytes of its segments. The
//! checksum of those is in the segments. All numbers are little-endian.

use crate::checksum::{Leaf, short_hash};
use crate::codec::{InvalidBytes, Reader, Writer};
use crate::entry::{Entry, put_path, take_path};
use crate::path::{PATH_BYTES_MAX, TreePath};

/// The version of this protocol.
pub const VERSION: u16 = 3;
/// Bytes of the head of a frame.
pub const HEAD_BYTES: usize = 16;
/// Most bytes of the body of a frame: an entry with all its attributes fits several times.
pub const FRAME_BYTES_MAX: usize = 2 << 20;
/// Most bytes of a block.
pub const BLOCK_BYTES_MAX: u32 = 64 << 20;
/// Least bytes of a block.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// Most entries of a message, and most items of its other lists.
pub const LIST_MAX: usize = 4_096;
/// Most segments of a block.
pub const SEGMENTS_MAX: usize = 1_024;
/// Most bytes of the frame of a block, without the bytes of its segments.
pub const BLOCK_FRAME_BYTES_MAX: usize = HEAD_BYTES + 5 + SEGMENTS_MAX * 37;
/// Most ranges of a file in one message.
pub const RANGES_MAX: usize = 65_536;
/// Most places in a hello.
pub const PLACES_MAX: usize = 4_096;
/// Most services of the fabric in a hello.
pub const SERVICES_MAX: usize = 16;
/// Most patterns in a hello.
pub const PATTERNS_MAX: usize = 4_096;
const TEXT_BYTES_MAX: usize = 4_096;

/// The role of the far end of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It reads files.
    Source,
    /// It writes files.
    Target,
}

/// The terms that both ends of a transfer agree on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Most bytes of a block, a multiple of [`BLOCK_BYTES_MIN`].
    pub block_bytes: u32,
    /// Connections that carry blocks.
    pub streams: u16,
    /// Directories are copied with what is in them.
    pub is_recursive: bool,
    /// Owners, times, links and attributes are kept, too.
    pub keeps_all: bool,
    /// Bytes are hashed at the source, and read back and compared at the target.
    pub verifies: bool,
    /// A journal is kept and taken up.
    pub resumes: bool,
    /// Nothing is written; what would be is told.
    pub is_dry: bool,
    /// Entries that are not at the source are removed from copied directories.
    pub deletes: bool,
    /// Files are opened with `O_DIRECT` where that is possible.
    pub is_direct: bool,
    /// Most bytes a second of the source; 0 for as fast as it goes.
    pub bytes_per_second: u64,
    /// Paths that are left out, at both ends.
    pub excludes: Vec<String>,
}

/// The first message, of the end that a user started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// [`VERSION`] of its sender.
    pub version: u16,
    /// The role of the receiver of the hello.
    pub role: Role,
    /// The terms.
    pub terms: Terms,
    /// The sources, or the one destination.
    pub places: Vec<Vec<u8>>,
    /// Where the other end of the transfer is.
    pub meeting: Meeting,
}

/// Where the two ends of a transfer meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// On the connection of the hello, and at further services that its sender offers on the
    /// fabric, which carry blocks.
    Here {
        /// The services, as for [`Meeting::Nearby`]; at most [`SERVICES_MAX`].
        also: Vec<String>,
    },
    /// On the fabric, where the sender of the hello offers services, of which the first carries
    /// messages, too; on the connection of the hello if the receiver does not reach that.
    Nearby {
        /// The services, each as `NAME@HOST`, or as `NAME@HOST/ADDRESS` where the receiver comes by
        /// the network that leads to this address; at most [`SERVICES_MAX`].
        at: Vec<String>,
    },
    /// The receiver of the hello, a target, listens for a source that shows the ticket.
    Expects {
        /// The ticket.
        ticket: u128,
    },
    /// The receiver of the hello, a source, connects to a target that expects the ticket.
    Goes {
        /// Host and port of the target; empty if the two meet on the fabric or not at all.
        to: String,
        /// The service that the target offers on the fabric, as `NAME@HOST`; empty if the two do
        /// not meet there.
        at: String,
        /// The ticket.
        ticket: u128,
    },
}

/// A range of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Range {
    /// Its first place.
    pub start: u64,
    /// The first place behind it.
    pub end: u64,
}

/// The parts of a file that the target needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// All of it.
    All,
    /// Nothing: it is there.
    Nothing,
    /// All but these ranges, which are there.
    Without(Vec<Range>),
}

/// The parts that the target needs of `count` files from number `first` on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// The parts of each.
    pub need: Need,
}

/// Whether a file changed while it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steadiness {
    /// It is as it was when it was found.
    Same,
    /// It is another, or was changed.
    Changed,
}

/// A piece of a file in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The file.
    pub number: u64,
    /// Its range and hash.
    pub leaf: Leaf,
    /// For a file that is whole in this segment: how its reading ended.
    pub whole: Option<Steadiness>,
}

/// The head of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Whether the source had no other block left when it sent this one.
    pub is_last_credit: bool,
    /// Its contents, one behind the other.
    pub segments: Vec<Segment>,
}

/// The kind of a trouble, for scripts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// The source could not be read.
    Read,
    /// The target could not be written.
    Write,
    /// Something is not permitted.
    Permission,
    /// It was there, and is not any more.
    Vanished,
    /// There is no room.
    Full,
    /// It changed while it was read; it was copied as it was read.
    Changed,
    /// The bytes that were written differ from those that were read, again and again.
    Verification,
    /// The target cannot keep something of it.
    Unsupported,
    /// It is refused by a rule.
    Refused,
}

/// Something that went wrong with one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// The entry's number, if the target knows one.
    pub number: Option<u64>,
    /// The path.
    pub path: TreePath,
    /// The kind.
    pub code: Code,
    /// Why, for people.
    pub text: String,
}

/// Counters of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Files that are whole under their names.
    pub files: u64,
    /// Directories, links and special files.
    pub others: u64,
    /// Bytes of those files.
    pub bytes: u64,
    /// Bytes that came in blocks.
    pub received: u64,
    /// Bytes that were there from an earlier run.
    pub resumed: u64,
    /// Files of which the system made a copy without moving bytes through weft.
    pub by_system: u64,
    /// Pieces that were sent again because they were damaged.
    pub repaired: u64,
    /// Entries that were removed.
    pub deleted: u64,
    /// Entries with trouble.
    pub troubled: u64,
    /// Files that changed while they were read.
    pub changed: u64,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Opens the conversation.
    Hello(Hello),
    /// Accepts a hello.
    Welcome {
        /// Names this transfer to more connections.
        token: u128,
        /// Where a target listens that expects a source; 0 if it does not.
        port: u16,
        /// The service that such a target offers on the fabric, too; empty if it does not.
        at: String,
        /// To how many of the services that the hello names its receiver came, from the first on.
        came: u16,
        /// Why the fabric is not used, where it could have been; empty if it is.
        apart: String,
    },
    /// Refuses, for good.
    Refused {
        /// Why, for people.
        text: String,
    },
    /// Opens one more connection of a transfer.
    Attach {
        /// The token of the welcome.
        token: u128,
    },
    /// The source is ready.
    Begin {
        /// Names the sources, so that a journal of other ones is not taken up.
        identity: u128,
        /// How many there are.
        tops: u32,
    },
    /// The target is ready.
    Ready,
    /// Entries, in the order of their numbers.
    Entries(Vec<Entry>),
    /// All that is in a directory was sent.
    DirectoryEnd {
        /// The directory.
        path: TreePath,
        /// Whether all of it could be read.
        is_complete: bool,
    },
    /// All entries were sent.
    WalkEnd {
        /// How many there are.
        entries: u64,
    },
    /// The needs of the target.
    Answers(Vec<Answer>),
    /// More blocks may be sent.
    Grant {
        /// How many more.
        blocks: u32,
    },
    /// All blocks of a file were sent.
    FileEnd {
        /// The file.
        number: u64,
        /// How many pieces they have.
        leaves: u64,
        /// The root of the tree over them.
        root: u128,
        /// How its reading ended.
        steadiness: Steadiness,
    },
    /// Pieces of a file were damaged and are needed again.
    Again {
        /// The file.
        number: u64,
        /// The pieces.
        ranges: Vec<Range>,
    },
    /// Entries are over: `count` from number `first` on.
    Ended(Vec<(u64, u32)>),
    /// Something went wrong with an entry, which is over.
    Trouble(Trouble),
    /// A path, for people: what a dry run would do.
    Would(String),
    /// The transfer is over.
    Done(Summary),
    /// Nothing happened, and this end lives.
    Alive,
}

/// A frame: a message, or the head of a block, whose bytes follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// A message.
    Message(Message),
    /// A block.
    Block(Block),
}

/// The head of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Bytes of the body.
    pub length: usize,
    kind: u8,
    check: u64,
    first: [u8; 8],
}

impl Block {
    /// Bytes of all its segments.
    #[must_use]
    pub fn payload(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.leaf.length)).sum()
    }
}

impl Head {
    /// The head in these bytes.
    ///
    /// # Errors
    /// [`InvalidBytes`].
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Self, InvalidBytes> {
        let mut reader = Reader(bytes);
        let length = reader.count(FRAME_BYTES_MAX, "the length of a frame")?;
        let kind = reader.u8()?;
        if reader.bytes(3)? != [0; 3] {
            return Err(InvalidBytes::Field("the reserved bytes of a frame"));
        }
        let check = reader.u64()?;
        let first = bytes[..8].try_into().expect("eight bytes");
        Ok(Self { length, kind, check, first })
    }

    /// The frame with this head and body.
    ///
    /// # Errors
    /// [`InvalidBytes`].
    pub fn frame(&self, body: &[u8]) -> Result<Frame, InvalidBytes> {
        if body.len() != self.length {
            return Err(InvalidBytes::Short);
        }
        if check(&self.first, body) != self.check {
            return Err(InvalidBytes::Damaged);
        }
        parse_body(self.kind, body)
    }
}

fn check(first: &[u8], body: &[u8]) -> u64 {
    // Two hashes in place of a copy of the body behind the head.
    short_hash(body) ^ short_hash(first).rotate_left(1)
}

impl Frame {
    /// The bytes of its head and body.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer(vec![0; HEAD_BYTES]);
        let kind = match self {
            Self::Message(message) => put_message(message, &mut writer),
            Self::Block(block) => {
                put_block(block, &mut writer);
                BLOCK
            }
        };
        let mut bytes = writer.0;
        let length = u32::try_from(bytes.len() - HEAD_BYTES).expect("lists are bounded");
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4] = kind;
        let check = check(&bytes[..8], &bytes[HEAD_BYTES..]);
        bytes[8..16].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The frame that begins these bytes, and its length; `None` if they end before it.
    ///
    /// # Errors
    /// [`InvalidBytes`].
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, InvalidBytes> {
        let Some(head) = bytes.first_chunk() else { return Ok(None) };
        let head = Head::parse(head)?;
        let end = HEAD_BYTES + head.length;
        let Some(body) = bytes.get(HEAD_BYTES..end) else { return Ok(None) };
        Ok(Some((head.frame(body)?, end)))
    }
}

const BLOCK: u8 = 32;

fn put_range(into: &mut Writer, range: &Range) {
    into.u64(range.start).u64(range.end);
}

fn take_range(from: &mut Reader<'_>) -> Result<Range, InvalidBytes> {
    let (start, end) = (from.u64()?, from.u64()?);
    if start >= end || i64::try_from(end).is_err() {
        return Err(InvalidBytes::Field("a range"));
    }
    Ok(Range { start, end })
}

fn put_steadiness(into: &mut Writer, steadiness: Steadiness) {
    into.flag(steadiness == Steadiness::Changed);
}

fn take_steadiness(from: &mut Reader<'_>) -> Result<Steadiness, InvalidBytes> {
    let changed = from.flag("the end of a file")?;
    Ok(if changed { Steadiness::Changed } else { Steadiness::Same })
}

fn put_block(block: &Block, into: &mut Writer) {
    into.flag(block.is_last_credit);
    into.list(&block.segments, |into, segment| {
        into.u64(segment.number);
        segment.leaf.put(into);
        into.u8(match segment.whole {
            None => 0,
            Some(Steadiness::Same) => 1,
            Some(Steadiness::Changed) => 2,
        });
    });
}

fn take_block(from: &mut Reader<'_>) -> Result<Block, InvalidBytes> {
    let is_last_credit = from.flag("a block's state")?;
    let segments = from.list(SEGMENTS_MAX, "the number of segments", |from| {
        let (number, leaf) = (from.u64()?, Leaf::take(from)?);
        let end = leaf.offset.checked_add(u64::from(leaf.length));
        if end.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(InvalidBytes::Field("the place of a segment"));
        }
        let whole = match from.u8()? {
            0 => None,
            1 => Some(Steadiness::Same),
            2 => Some(Steadiness::Changed),
            _ => return Err(InvalidBytes::Field("the end of a segment")),
        };
        Ok(Segment { number, leaf, whole })
    })?;
    let block = Block { is_last_credit, segments };
    if block.segments.is_empty() || block.payload() > u64::from(BLOCK_BYTES_MAX) {
        return Err(InvalidBytes::Field("the length of a block"));
    }
    Ok(block)
}

fn put_terms(terms: &Terms, into: &mut Writer) {
    into.u32(terms.block_bytes).u16(terms.streams).u64(terms.bytes_per_second);
    let flags = [
        terms.is_recursive,
        terms.keeps_all,
        terms.verifies,
        terms.resumes,
        terms.is_dry,
        terms.deletes,
        terms.is_direct,
    ];
    for flag in flags {
        into.flag(flag);
    }
    into.list(&terms.excludes, |into, pattern| {
        into.blob(pattern.as_bytes());
    });
}

fn take_terms(from: &mut Reader<'_>) -> Result<Terms, InvalidBytes> {
    let (block_bytes, streams, bytes_per_second) = (from.u32()?, from.u16()?, from.u64()?);
    let is_sound = (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes);
    if !is_sound || !block_bytes.is_multiple_of(BLOCK_BYTES_MIN) {
        return Err(InvalidBytes::Field("the size of blocks"));
    }
    if !(1..=64).contains(&streams) {
        return Err(InvalidBytes::Field("the number of streams"));
    }
    let mut flag = || from.flag("an option");
    Ok(Terms {
        block_bytes,
        streams,
        is_recursive: flag()?,
        keeps_all: flag()?,
        verifies: flag()?,
        resumes: flag()?,
        is_dry: flag()?,
        deletes: flag()?,
        is_direct: flag()?,
        bytes_per_second,
        excludes: from.list(PATTERNS_MAX, "the number of patterns", |from| {
            from.text(PATH_BYTES_MAX, "a pattern")
        })?,
    })
}

fn put_services<'a>(services: &[String], into: &'a mut Writer) -> &'a mut Writer {
    into.list(services, |into, service| {
        into.blob(service.as_bytes());
    })
}

fn take_services(from: &mut Reader<'_>) -> Result<Vec<String>, InvalidBytes> {
    from.list(SERVICES_MAX, "the number of services", |from| {
        from.text(TEXT_BYTES_MAX, "a place to meet")
    })
}

fn put_trouble(trouble: &Trouble, into: &mut Writer) {
    // 0 is no number here, so numbers are one more.
    into.u64(trouble.number.map_or(0, |number| number + 1));
    put_path(&trouble.path, into);
    into.u8(trouble.code as u8).blob(cut(&trouble.text).as_bytes());
}

fn take_trouble(from: &mut Reader<'_>) -> Result<Trouble, InvalidBytes> {
    let (number, path) = (from.u64()?.checked_sub(1), take_path(from)?);
    let code = match from.u8()? {
        0 => Code::Read,
        1 => Code::Write,
        2 => Code::Permission,
        3 => Code::Vanished,
        4 => Code::Full,
        5 => Code::Changed,
        6 => Code::Verification,
        7 => Code::Unsupported,
        8 => Code::Refused,
        _ => return Err(InvalidBytes::Field("the kind of a trouble")),
    };
    Ok(Trouble { number, path, code, text: from.text(TEXT_BYTES_MAX, "a text")? })
}

/// A text cut to what a message may have.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn put_answer(into: &mut Writer, answer: &Answer) {
    into.u64(answer.first).u32(answer.count);
    match &answer.need {
        Need::All => into.u8(0),
        Need::Nothing => into.u8(1),
        Need::Without(ranges) => into.u8(2).list(ranges, put_range),
    };
}

fn take_answer(from: &mut Reader<'_>) -> Result<Answer, InvalidBytes> {
    let (first, count) = (from.u64()?, from.u32()?);
    let need = match from.u8()? {
        0 => Need::All,
        1 => Need::Nothing,
        2 => Need::Without(from.list(RANGES_MAX, "the number of ranges", take_range)?),
        _ => return Err(InvalidBytes::Field("an answer")),
    };
    Ok(Answer { first, count, need })
}

fn numbers(summary: &mut Summary) -> [&mut u64; 10] {
    let Summary {
        files,
        others,
        bytes,
        received,
        resumed,
        by_system,
        repaired,
        deleted,
        troubled,
        changed,
    } = summary;
    [files, others, bytes, received, resumed, by_system, repaired, deleted, troubled, changed]
}

/// Puts the body of a message and returns its kind.
fn put_message(message: &Message, into: &mut Writer) -> u8 {
    match message {
        Message::Hello(hello) => {
            into.u16(hello.version).flag(hello.role == Role::Source);
            put_terms(&hello.terms, into);
            into.list(&hello.places, |into, place| {
                into.blob(place);
            });
            match &hello.meeting {
                // A release that has one service alone reads these, and says which version it is.
                Meeting::Here { also } if also.is_empty() => into.u8(0),
                Meeting::Here { also } => put_services(also, into.u8(4)),
                Meeting::Expects { ticket } => into.u8(1).u128(*ticket),
                Meeting::Goes { to, at, ticket } => {
                    into.u8(2).blob(to.as_bytes()).blob(at.as_bytes()).u128(*ticket)
                }
                Meeting::Nearby { at } => match at.as_slice() {
                    [one] => into.u8(3).blob(one.as_bytes()),
                    all => put_services(all, into.u8(5)),
                },
            };
            0
        }
        Message::Welcome { token, port, at, came, apart } => {
            into.u128(*token).u16(*port).blob(at.as_bytes()).u16(*came);
            into.blob(cut(apart).as_bytes());
            1
        }
        Message::Refused { text } => {
            into.blob(cut(text).as_bytes());
            2
        }
        Message::Attach { token } => {
            into.u128(*token);
            3
        }
        Message::Begin { identity, tops } => {
            into.u128(*identity).u32(*tops);
            4
        }
        Message::Ready => 5,
        Message::Entries(entries) => {
            into.list(entries, |into, entry| entry.put(into));
            6
        }
        Message::DirectoryEnd { path, is_complete } => {
            put_path(path, into);
            into.flag(*is_complete);
            7
        }
        Message::WalkEnd { entries } => {
            into.u64(*entries);
            8
        }
        Message::Answers(answers) => {
            into.list(answers, put_answer);
            9
        }
        Message::Grant { blocks } => {
            into.u32(*blocks);
            10
        }
        Message::FileEnd { number, leaves, root, steadiness } => {
            into.u64(*number).u64(*leaves).u128(*root);
            put_steadiness(into, *steadiness);
            11
        }
        Message::Again { number, ranges } => {
            into.u64(*number).list(ranges, put_range);
            12
        }
        Message::Ended(ended) => {
            into.list(ended, |into, (first, count)| {
                into.u64(*first).u32(*count);
            });
            13
        }
        Message::Trouble(trouble) => {
            put_trouble(trouble, into);
            14
        }
        Message::Would(text) => {
            into.blob(cut(text).as_bytes());
            15
        }
        Message::Done(summary) => {
            for number in numbers(&mut summary.clone()) {
                into.u64(*number);
            }
            16
        }
        Message::Alive => 17,
    }
}

/// The frame of a kind with this body.
pub(crate) fn parse_body(kind: u8, body: &[u8]) -> Result<Frame, InvalidBytes> {
    let mut reader = Reader(body);
    let frame = parse(kind, &mut reader)?;
    reader.end()?;
    Ok(frame)
}

fn parse(kind: u8, from: &mut Reader<'_>) -> Result<Frame, InvalidBytes> {
    let message = match kind {
        0 => {
            let version = from.u16()?;
            let role = if from.flag("a role")? { Role::Source } else { Role::Target };
            let terms = take_terms(from)?;
            let places = from.list(PLACES_MAX, "the number of places", |from| {
                from.blob(PATH_BYTES_MAX, "a place")
            })?;
            let meeting = match from.u8()? {
                0 => Meeting::Here { also: Vec::new() },
                1 => Meeting::Expects { ticket: from.u128()? },
                2 => {
                    let to = from.text(TEXT_BYTES_MAX, "a place to meet")?;
                    let at = from.text(TEXT_BYTES_MAX, "a place to meet")?;
                    Meeting::Goes { to, at, ticket: from.u128()? }
                }
                3 => Meeting::Nearby { at: vec![from.text(TEXT_BYTES_MAX, "a place to meet")?] },
                4 => Meeting::Here { also: take_services(from)? },
                5 => Meeting::Nearby { at: take_services(from)? },
                _ => return Err(InvalidBytes::Field("where to meet")),
            };
            Message::Hello(Hello { version, role, terms, places, meeting })
        }
        1 => Message::Welcome {
            token: from.u128()?,
            port: from.u16()?,
            at: from.text(TEXT_BYTES_MAX, "a place to meet")?,
            came: from.u16()?,
            apart: from.text(TEXT_BYTES_MAX, "a text")?,
        },
        2 => Message::Refused { text: from.text(TEXT_BYTES_MAX, "a text")? },
        3 => Message::Attach { token: from.u128()? },
        4 => Message::Begin { identity: from.u128()?, tops: from.u32()? },
        5 => Message::Ready,
        6 => Message::Entries(from.list(LIST_MAX, "the number of entries", Entry::take)?),
        7 => {
            let path = take_path(from)?;
            Message::DirectoryEnd { path, is_complete: from.flag("a directory's end")? }
        }
        8 => Message::WalkEnd { entries: from.u64()? },
        9 => Message::Answers(from.list(LIST_MAX, "the number of answers", take_answer)?),
        10 => Message::Grant { blocks: from.u32()? },
        11 => Message::FileEnd {
            number: from.u64()?,
            leaves: from.u64()?,
            root: from.u128()?,
            steadiness: take_steadiness(from)?,
        },
        12 => {
            let number = from.u64()?;
            let ranges = from.list(RANGES_MAX, "the number of ranges", take_range)?;
            Message::Again { number, ranges }
        }
        13 => Message::Ended(
            from.list(LIST_MAX, "the number of ends", |from| Ok((from.u64()?, from.u32()?)))?,
        ),
        14 => Message::Trouble(take_trouble(from)?),
        15 => Message::Would(from.text(TEXT_BYTES_MAX, "a text")?),
        16 => {
            let mut summary = Summary::default();
            for number in numbers(&mut summary) {
                *number = from.u64()?;
            }
            Message::Done(summary)
        }
        17 => Message::Alive,
        BLOCK => return Ok(Frame::Block(take_block(from)?)),
        _ => return Err(InvalidBytes::Field("the kind of a frame")),
    };
    Ok(Frame::Message(message))
}
