//! The broker under requests, files and words of other nodes that make no sense.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::NodeId;
use weft_options::ServicePolicy;

use super::State;
use crate::tables::Limits;
use crate::{Bell, Credentials, NodeMessage, ProcessId};

/// The other node of [`fuzz_state`].
const OTHER: NodeId = NodeId(1);

/// Entry for fuzzing: a few clients send messages of any kind with any body, and so does another
/// node.
///
/// # Panics
/// When the broker panics or a count of its tables is wrong.
pub fn fuzz_state(script: &[u8]) {
    let limits = Limits { endpoints_max: 8, keys_max: 16, invitations_max: 4, ..Limits::default() };
    let policy = ServicePolicy::parse("any:*:any").expect("a rule");
    let mut state = State::new(NodeId::LOCAL, limits, silent_bell).with_policy(policy);
    let (mut rest, mut now) = (script, Duration::ZERO);
    while let Some(([process, kind, length], tail)) = rest.split_first_chunk() {
        let (body, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = tail;
        let (mut out, process) = (Vec::new(), u64::from(process % 4));
        let credentials = Credentials { pid: 1, uid: u32::from(process == 3) };
        if *kind == 0 {
            state.process_gone(ProcessId(process), &mut out);
        } else if *kind == 1 {
            state.settle(&mut out);
        } else if *kind == 2 {
            state.node_up(OTHER);
        } else if *kind == 3 {
            state.node_down(OTHER, &mut out);
        } else if *kind == 4 {
            if let Ok(message) = NodeMessage::parse(body) {
                state.node_says(OTHER, message, now, &mut out);
            }
        } else {
            let files = fuzz_files(*kind);
            let kind = match kind / 32 {
                6 => 64 + u16::from(kind % 16),
                _ => 32 + u16::from(kind % 32),
            };
            let id = ProcessId(process);
            let _ = state.handle(id, credentials, kind, body, files, now, &mut out);
        }
        now += Duration::from_secs(1);
        assert!(state.invitations() <= limits.invitations_max, "there are too many invitations");
        let keys: usize = state.entries.iter().flatten().map(|entry| entry.keys_count).sum();
        assert!(keys == state.keys && keys <= limits.keys_max, "{keys} keys are counted wrong");
        for told in &out {
            assert!(told.files.len() <= 4, "a message has few descriptors");
        }
        for (_, message) in state.take_node_messages() {
            assert_eq!(NodeMessage::parse(&message.emit()).as_ref(), Ok(&message));
        }
    }
    for process in 0..4 {
        state.process_gone(ProcessId(process), &mut Vec::new());
    }
    let left = (state.endpoints(), state.keys, state.invitations());
    assert_eq!(left, (0, 0, 0), "endpoints, keys or invitations remain");
}

/// A bell that nobody hears.
#[allow(clippy::unnecessary_wraps, reason = "a bell may be of the wrong kind")]
pub(crate) fn silent_bell(_: std::os::fd::BorrowedFd<'_>, _: OwnedFd) -> Option<Arc<dyn Bell>> {
    #[derive(Debug)]
    struct Silent;
    impl Bell for Silent {
        fn ring_broker(&self) {}
    }
    Some(Arc::new(Silent))
}

/// Descriptors that a request of this kind has, or must not have.
pub(crate) fn fuzz_files(kind: u8) -> Vec<OwnedFd> {
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let memory = || memfd_create("weft-fuzz", MemfdFlags::CLOEXEC).ok();
    match (kind % 32, kind / 32) {
        (0, 0..=5) => {
            let flags = SocketFlags::CLOEXEC;
            let Ok((wakeup, _)) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            else {
                return Vec::new();
            };
            memory().into_iter().chain(memory()).chain([wakeup]).collect()
        }
        (2 | 6, 0..=5) => memory().into_iter().collect(),
        (_, 7) => memory().into_iter().chain(memory()).collect(),
        _ => Vec::new(),
    }
}
