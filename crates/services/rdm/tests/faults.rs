//! Memory of the program that goes away while a peer reads or writes it: both ends are told, and
//! the two talk on.

use weft_fabric::{EndpointOptions, NodeId, Transport};
use weft_rdm::fuzz::{Bytes, End};
use weft_rdm::{Failure, How, Kind, Label, Options, PeerId, Registration, Remote, Rights, Wanted};
use weft_transport_sim::{Settings, SimEndpoint, SimWorld};

const CHUNK: usize = 4096;
/// Key and base of the memory of the second end.
const KEY: u64 = 5;
const BASE: u64 = 1000;

struct Pair {
    world: SimWorld,
    ends: [End<SimEndpoint>; 2],
    to: PeerId,
}

/// All places of two ends and all ways of bodies between them.
fn pairs() -> impl Iterator<Item = (String, Pair)> {
    let all = [(true, true), (true, false), (false, true), (false, false)];
    let lends = [CHUNK, usize::MAX];
    let all = all.into_iter().flat_map(move |it| lends.map(|lends| (it, lends)));
    all.map(|((same_node, kernel), lends)| {
        let name = format!("same node {same_node}, kernel {kernel}, lends from {lends} bytes on");
        (name, Pair::new(same_node, kernel, lends))
    })
}

impl Pair {
    fn new(same_node: bool, kernel: bool, lent_bytes_min: usize) -> Self {
        let world = SimWorld::new(Settings::seeded(7));
        let (chunks, chunk_bytes, chunk_bytes_max) = (4, CHUNK, 2048);
        // Windows of the simulator are calls that take time.
        let maps = false;
        let options = Options {
            chunks,
            chunk_bytes,
            chunk_bytes_max,
            lent_bytes_min,
            kernel,
            maps,
            ..Options::default()
        };
        let mut ends = [1, 2].map(|number| {
            let node = NodeId(if same_node { 1 } else { number });
            let endpoint = world.transport(node, 1000).open(&EndpointOptions::default());
            End::new(endpoint.expect("an endpoint"), number, options.clone())
        });
        let [one, other] = &mut ends;
        let to = one.peer(other);
        let mut pair = Self { world, ends, to };
        pair.assert_talks("before");
        pair
    }

    fn pass(&mut self, turns: usize) {
        for _ in 0..turns {
            self.world.advance(2_000);
            self.ends.iter_mut().for_each(End::poll);
        }
    }

    fn receive(&mut self, room: usize, token: u64) {
        let wanted = Wanted { is_tagged: true, from: None, tag: 1, ignore: 0 };
        self.ends[1].rdm.receive(&wanted, Bytes::zeros(room), None, token);
    }

    fn send(&mut self, memory: &Bytes, token: u64) {
        let label = Label { tag: Some(1), data: None };
        let sent = self.ends[0].rdm.send(self.to, label, memory, How::Delivered, Some(token));
        assert!(sent.is_ok());
    }

    /// How the only operation of an end with this token ended.
    fn ended(&self, end: usize, token: u64) -> Option<(Kind, Option<Failure>)> {
        let mut outcomes = self.ends[end].outcomes.iter().filter(|it| it.token == Some(token));
        let first = outcomes.next().map(|it| (it.kind, it.failure));
        assert!(outcomes.next().is_none(), "it ends once");
        first
    }

    /// A long message comes through, and nothing is left of what was before.
    fn assert_talks(&mut self, name: &str) {
        self.ends.iter_mut().for_each(|end| end.outcomes.clear());
        self.receive(5 * CHUNK, 90);
        self.send(&Bytes::zeros(5 * CHUNK), 91);
        self.pass(1000);
        assert_eq!(self.ended(1, 90), Some((Kind::Receive, None)), "{name}");
        assert_eq!(self.ended(0, 91), Some((Kind::Send, None)), "{name}");
        for end in &self.ends {
            assert_eq!(end.rdm.kept(), 0, "all chunks are back: {name}");
            assert_eq!((end.rdm.waiting_receives(), end.rdm.waiting_messages()), (0, 0), "{name}");
        }
        self.ends.iter_mut().for_each(|end| end.outcomes.clear());
    }

    /// Memory of the second end that the first may use.
    fn registered(&mut self) -> Bytes {
        let memory = Bytes::zeros(20 * CHUNK);
        let rights = Rights { read: true, write: true };
        let registration = Registration { memory: memory.clone(), base: BASE, rights };
        assert!(self.ends[1].rdm.register(KEY, registration));
        memory
    }
}

#[test]
fn a_receive_fails_when_the_body_is_not_in_the_senders_memory_any_more() {
    for (name, mut pair) in pairs() {
        // All of it went away before it was asked for, or only its end, or in the midst of it.
        for (turn, (left, before)) in [(0, true), (7 * CHUNK, true), (0, false)].iter().enumerate()
        {
            let body = Bytes::zeros(9 * CHUNK);
            pair.send(&body, 1);
            pair.pass(400);
            if *before {
                body.take_away(*left);
            }
            pair.receive(9 * CHUNK, 2);
            pair.pass(3);
            body.take_away(*left);
            pair.pass(1000);
            let received = pair.ended(1, 2).expect("a receive ends");
            let sent = pair.ended(0, 1).expect("a send ends");
            assert_eq!((received.0, sent.0), (Kind::Receive, Kind::Send));
            assert_eq!(received.1, sent.1, "both ends are told the same: {name}, {turn}");
            // Some ways had brought all of it by then.
            assert!(matches!(sent.1, None | Some(Failure::Fault)), "{name}, {turn}: {sent:?}");
            let was_lent = name.contains("same node false") && name.contains("from 4096");
            if *before && !was_lent {
                assert_eq!(sent.1, Some(Failure::Fault), "{name}, {turn}");
            }
            pair.assert_talks(&name);
        }
    }
}

#[test]
fn reads_and_writes_fail_when_the_registered_memory_is_not_there() {
    for (name, mut pair) in pairs() {
        let memory = pair.registered();
        // The rest of the first page is there: a range may begin there and end nowhere.
        let left = CHUNK;
        memory.take_away(left);
        let mut token = 0;
        for length in [8, 300, 1000, 2000, 9 * CHUNK] {
            for at in [left - 4, left, 2 * left] {
                let remote = Remote { key: KEY, address: BASE + at as u64 };
                token += 2;
                let rdm = &mut pair.ends[0].rdm;
                let place = Bytes::zeros(length);
                assert!(rdm.read(pair.to, (&place, remote), Some(token)).is_ok());
                let source = Bytes::new(vec![9; length]);
                let to = (&source, remote);
                assert!(rdm.write(pair.to, to, None, How::Sent, Some(token + 1)).is_ok());
                pair.pass(1000);
                let fault = Some(Failure::Fault);
                let place = format!("{length} bytes at {at}: {name}");
                assert_eq!(pair.ended(0, token), Some((Kind::Read, fault)), "{place}");
                assert_eq!(pair.ended(0, token + 1), Some((Kind::Write, fault)), "{place}");
            }
        }
        pair.assert_talks(&name);
    }
}
