//! Peers that send anything, for tests and the fuzzer.
//!
//! A script is a row of frames, each as kind, length (`u16`) and body: with its checksum, which a
//! script by chance would not have, in place.

use std::collections::HashMap;

use crate::codec::Reader;
use crate::entry::{FileId, Kind, Metadata};
use crate::message::{Frame, Message, parse_body};
use crate::offence::Offence;
use crate::path::TreePath;
use crate::source::{Job, Limits, Source};
use crate::target::{Checked, Finished, Made, Stored, Target, TargetOptions, Task};
use crate::window::Window;
use crate::{Leaf, Steadiness};

/// How a script ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostileEnd {
    /// The victim found a fault.
    Offence(Offence),
    /// A frame was none.
    Invalid,
    /// The script is over.
    Over,
}

fn frames(script: &[u8]) -> impl Iterator<Item = Option<Frame>> {
    let mut reader = Reader(script);
    std::iter::from_fn(move || {
        let (kind, length) = (reader.u8().ok()?, reader.u16().ok()?);
        let body = reader.bytes(usize::from(length).min(reader.0.len())).ok()?;
        Some(parse_body(kind, body).ok())
    })
}

/// A target whose source follows a script.
pub fn fuzz_target(script: &[u8]) -> HostileEnd {
    let (first, rest) = script.split_first().unwrap_or((&0, &[]));
    let options = TargetOptions {
        is_dry: first & 1 != 0,
        deletes: first & 2 != 0,
        has_shortcut: first & 4 != 0,
    };
    let holds = first & 8 != 0;
    let limits = Limits { entries_open: 64, blocks: 8, ..Limits::default() };
    let mut target = Target::new(options, limits, Window::new(2, 8), HashMap::new());
    target.begin();
    for frame in frames(rest) {
        let Some(frame) = frame else { return HostileEnd::Invalid };
        let result = match frame {
            Frame::Message(message) => target.message(message),
            Frame::Block(block) => target.block(&block).map(|stores| {
                for store in stores {
                    let stored = match (&store.entry, store.whole) {
                        (None, _) => Stored::Passed,
                        (Some(_), Some(_)) => Stored::Installed(None),
                        (Some(_), None) => Stored::Written,
                    };
                    target.stored(store.number, store.leaf, stored);
                }
                if !holds {
                    target.freed();
                }
            }),
        };
        if let Err(offence) = result {
            return HostileEnd::Offence(offence);
        }
        while let Some(task) = target.poll_task() {
            do_task(&mut target, task);
        }
        while target.poll_message().is_some() {}
        while target.poll_event().is_some() {}
        if target.is_over() {
            break;
        }
    }
    HostileEnd::Over
}

fn do_task(target: &mut Target, task: Task) {
    let is_inside = |path: &TreePath| assert!(TreePath::new(path.bytes()).is_ok());
    match task {
        Task::Make(entry) | Task::Link(entry) | Task::Settle(entry) => {
            is_inside(&entry.path);
            target.made(&entry, Made::There(None));
        }
        Task::Shortcut(entry) => target.made(&entry, Made::NoShortWay),
        Task::Check { entry, .. } => target.checked(entry.number, Checked::Nothing),
        Task::Finish { entry, leaves } => {
            let Kind::File(id) = entry.kind else { panic!("a file is finished") };
            assert!(leaves.iter().all(|leaf| leaf.end() <= id.size));
            target.finished(entry.number, Finished::Installed(None));
        }
        Task::Discard(entry) => is_inside(&entry.path),
        Task::Prune { path, .. } => {
            is_inside(&path);
            target.pruned(&path, &[], Vec::new());
        }
        Task::Sync => target.synced(Ok(())),
    }
}

/// A source whose target follows a script. It tells a few files first.
pub fn fuzz_source(script: &[u8]) -> HostileEnd {
    let mut source =
        Source::new(4_096, Limits { entries_open: 64, blocks: 8, ..Limits::default() });
    for number in 0..8_u64 {
        let size = [0, 10, 5_000, 20_000][usize::try_from(number % 4).expect("small")];
        let id = FileId { inode: number, size, ..FileId::default() };
        let path = TreePath::new(format!("t/{number}")).expect("a path");
        source.entry(path, Metadata::default(), Kind::File(id), number == 7);
    }
    source.walk_end();
    let mut on_their_way = 0;
    for frame in frames(script) {
        let Some(frame) = frame else { return HostileEnd::Invalid };
        let Frame::Message(message) = frame else { return HostileEnd::Invalid };
        let blocks = if let Message::Grant { blocks } = &message { *blocks } else { 0 };
        if let Err(offence) = source.message(message) {
            return HostileEnd::Offence(offence);
        }
        on_their_way += i64::from(blocks);
        // A target that asks for all again and again must not keep its victim busy for ever.
        for _ in 0..64 {
            let Some(job) = source.poll_job(true) else { break };
            match job {
                Job::Map { number, id, .. } => {
                    let all = crate::Range { start: 0, end: id.size };
                    source.mapped(number, Ok((vec![all], None)));
                }
                Job::Close { number, .. } => source.closed(number, Steadiness::Same),
                Job::Load { block, pieces } => {
                    on_their_way -= 1;
                    assert!(on_their_way >= 0, "no block that was not granted");
                    let loaded = pieces.iter().map(|piece| {
                        assert!(piece.offset + u64::from(piece.length) <= piece.id.size);
                        let leaf = Leaf { offset: piece.offset, length: piece.length, hash: 1 };
                        Ok((leaf, Steadiness::Same))
                    });
                    let loaded = loaded.collect();
                    assert!(source.loaded(block, loaded).is_some());
                }
            }
        }
        while source.poll_message().is_some() {}
        while source.poll_event().is_some() {}
    }
    HostileEnd::Over
}

/// Reads any bytes as frames: what is read is the same when it was written and read again.
pub fn fuzz_frames(script: &[u8]) {
    // Damaged bytes are refused, or say the same.
    let _ = Frame::parse(script);
    for frame in frames(script).flatten() {
        let bytes = frame.bytes();
        let (again, length) = Frame::parse(&bytes).expect("it is a frame").expect("a whole one");
        assert_eq!((again, length), (frame, bytes.len()));
    }
}

/// A frame as scripts have it.
///
/// # Panics
/// When the frame is too long for a script.
#[must_use]
pub fn scripted(frame: &Frame) -> Vec<u8> {
    let bytes = frame.bytes();
    let body = &bytes[crate::HEAD_BYTES..];
    let length = u16::try_from(body.len()).expect("a short frame");
    [&[bytes[4]][..], &length.to_le_bytes(), body].concat()
}
