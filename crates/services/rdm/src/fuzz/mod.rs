//! A peer that sends anything: the fuzzing entry.
//!
//! The input is a script of packets for a hostile endpoint, most of whose words mean something
//! somewhere. Nothing may panic, and a friend must be served as if nothing had been.

mod surroundings;

use weft_fabric::{
    Blocking, Endpoint, EndpointOptions, MessageHeader, PATIENCE, Peer as Handle, Transport,
};

use crate::atomics::{Call, Datatype, Operator};
use crate::packet::VERSION;
use crate::{How, Kind, Label, Options, Registration, Remote, Rights, Wanted};

pub use surroundings::{Bytes, End, Fake};

/// Packets of a script at most.
const STEPS_MAX: usize = 256;
/// The key of the victim's memory.
const KEY: u64 = 5;
/// The birth of the hostile endpoint.
const BIRTH: u64 = 99;
/// Time passes so often until a friend has been served.
const TURNS: usize = 4000;

/// Reads a script. At its end all is zero.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A word: a small number, the number of an operation, a first word of a parcel, or any.
    fn word(&mut self) -> u64 {
        let byte = self.byte();
        match byte {
            0..=127 => u64::from(byte & 7),
            128..=191 => (u64::from(byte & 3) + 1) << 32 | u64::from(byte >> 2 & 3),
            192..=247 => {
                let [chunk, low, high] = [0; 3].map(|_| u64::from(self.byte()));
                let (flags, body) = (u64::from(byte & 3), u64::from(byte >> 2 & 3));
                flags | body << 8 | (chunk & 31) << 16 | (low | (high & 31) << 8) << 32
            }
            _ => u64::from_le_bytes([0; 8].map(|_| self.byte())),
        }
    }

    /// The words of a packet, less some bytes at the end.
    fn packet(&mut self) -> Vec<u8> {
        let shape = self.byte();
        let words = (0..usize::from(shape & 15)).map(|_| self.word());
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.truncate(bytes.len().saturating_sub(usize::from(shape >> 4 & 7)));
        bytes
    }
}

/// Runs a script, and checks that the victim serves a friend on. `pass` lets time pass. Returns the
/// kinds of operations that were reported to the victim, good and failed.
///
/// # Panics
/// When the victim panics or does not serve its friend.
pub fn fuzz_peer<T: Transport>(
    transport: &T,
    script: &[u8],
    pass: &mut dyn FnMut(),
) -> Vec<(Kind, bool)> {
    let mut script = Script(script);
    let flags = script.byte();
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh transport");
    // Windows of the simulator are calls that take time.
    let options = Options { maps: false, kernel: flags & 1 == 0, ..Options::default() };
    let mut victim = End::new(open(), 1, options.clone());
    let mut friend = End::new(open(), 2, options.clone());
    let mut hostile = open();
    let rights = Rights { read: true, write: true };
    victim.rdm.register(KEY, Registration { memory: Bytes::zeros(9000), base: 0, rights });
    victim.rdm.report_remote(true);
    let (address, birth) = victim.rdm.name();
    let to = hostile.connect_within(address, PATIENCE).expect("it is there");
    if flags & 2 == 0 {
        let chunks = u64::from(options.chunks) << 32 | options.chunk_bytes as u64;
        let hello = [VERSION, BIRTH, birth, 7, 8, 77, 1, chunks];
        send(&mut hostile, to, 1, &hello.map(u64::to_le_bytes).concat());
    }
    for token in 0..4 {
        let wanted = Wanted { is_tagged: token % 2 == 0, from: None, tag: 0, ignore: 7 };
        victim.rdm.receive(&wanted, Bytes::zeros(3000), None, token);
    }
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        match script.byte() & 15 {
            15 => begin(&mut victim, hostile.address(), script.byte()),
            14 => victim.poll(),
            code => send(&mut hostile, to, code, &script.packet()),
        }
        pass();
        victim.poll();
        hostile.poll(64, &mut |_| {});
    }
    check(&mut victim, &mut friend, pass);
    let of_hostile = |token: &Option<u64>| token.is_none_or(|token| token < FRIENDS);
    let outcomes = victim.outcomes.iter().filter(|outcome| of_hostile(&outcome.token));
    outcomes.map(|outcome| (outcome.kind, outcome.failure.is_none())).collect()
}

/// Tokens of operations with the friend begin here.
const FRIENDS: u64 = 1000;

fn send<E: Endpoint>(from: &mut E, to: Handle, code: u8, bytes: &[u8]) {
    // The hostile endpoint may have been ended by now.
    let _ = from.send_short(to, MessageHeader::tag(code), &[bytes]);
}

/// The victim begins an operation with the hostile endpoint, which may answer it.
fn begin<E: Endpoint>(victim: &mut End<E>, hostile: weft_fabric::EndpointAddress, choice: u8) {
    let peer = victim.rdm.peer(hostile, BIRTH);
    let memory = Bytes::zeros(usize::from(choice >> 2) * 700);
    let remote = Remote { key: 1, address: 0 };
    let label = Label { tag: Some(1), data: None };
    let operand = [1; 8];
    let (operator, datatype) = (Operator::Sum, Datatype::U64);
    let call = Call { operator, datatype, count: 1, operand: &operand, compare: &[] };
    let token = Some(u64::from(choice));
    // A refusal is no operation.
    let _ = match choice & 3 {
        0 => victim.rdm.send(peer, label, &memory, How::Delivered, token).map(drop),
        1 => victim.rdm.write(peer, (&memory, remote), None, How::Sent, token),
        2 => victim.rdm.read(peer, (&memory, remote), token),
        _ => victim.rdm.atomic(peer, (&call, remote), Some(&Bytes::zeros(8)), token),
    };
}

/// Checks that a message of the friend, and one to it, come through.
fn check<E: Endpoint>(victim: &mut End<E>, friend: &mut End<E>, pass: &mut dyn FnMut()) {
    let tag = 1 << 40;
    let label = Label { tag: Some(tag), data: None };
    let wanted = Wanted { is_tagged: true, from: None, tag, ignore: 0 };
    let peers = [victim.peer(friend), friend.peer(victim)];
    let places = [Bytes::zeros(20_000), Bytes::zeros(20_000)];
    let letter = Bytes::new(vec![7; 20_000]);
    let mut sent = [false; 2];
    for (end, place) in [&mut *victim, &mut *friend].into_iter().zip(&places) {
        end.rdm.receive(&wanted, place.clone(), None, FRIENDS);
    }
    for _ in 0..TURNS {
        let ends = [&mut *victim, &mut *friend];
        for (at, end) in ends.into_iter().enumerate() {
            sent[at] = sent[at]
                || end.rdm.send(peers[at], label, &letter, How::Sent, Some(FRIENDS + 1)).is_ok();
            end.poll();
        }
        pass();
        let has_ended = |end: &End<E>| {
            let mine = end.outcomes.iter().filter(|it| it.token.is_some_and(|it| it >= FRIENDS));
            mine.count() == 2
        };
        if has_ended(victim) && has_ended(friend) {
            break;
        }
    }
    for place in places {
        assert!(place.to_vec().iter().all(|byte| *byte == 7), "the friend is not served on");
    }
}
