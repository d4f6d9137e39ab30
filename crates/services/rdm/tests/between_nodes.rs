//! Long messages between nodes: their bodies come through chunks, of which there are few.

use weft_fabric::{EndpointOptions, NodeId, Transport};
use weft_rdm::fuzz::{Bytes, End};
use weft_rdm::{Begun, Failure, How, Kind, Label, Options, PeerId, Wanted};
use weft_transport_sim::{Settings, SimEndpoint, SimWorld};

const CHUNK: usize = 4096;

struct Pair {
    world: SimWorld,
    ends: [End<SimEndpoint>; 2],
    to: PeerId,
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 + at + seed).to_le_bytes()[0]).collect()
}

fn label(tag: u64) -> Label {
    Label { tag: Some(tag), data: None }
}

impl Pair {
    /// Two ends that have met, with so many chunks, which lend bodies of so many bytes.
    fn new(chunks: u16, lent_bytes_min: usize) -> Self {
        let world = SimWorld::new(Settings::seeded(u64::from(chunks)));
        let (chunk_bytes, chunk_bytes_max) = (CHUNK, 2048);
        let options =
            Options { chunks, chunk_bytes, chunk_bytes_max, lent_bytes_min, ..Options::default() };
        let mut ends = [1, 2].map(|node| {
            let endpoint = world.transport(NodeId(node), 1000).open(&EndpointOptions::default());
            End::new(endpoint.expect("an endpoint"), node, options.clone())
        });
        let [one, other] = &mut ends;
        let to = one.peer(other);
        let mut pair = Self { world, ends, to };
        pair.receive(9, 8, 9);
        assert!(pair.send(9, &Bytes::zeros(8), 9).is_ok());
        pair.pass();
        pair.ends.iter_mut().for_each(|end| end.outcomes.clear());
        pair
    }

    fn send(&mut self, tag: u64, memory: &Bytes, token: u64) -> Result<Begun, weft_rdm::Refusal> {
        self.ends[0].rdm.send(self.to, label(tag), memory, How::Sent, Some(token))
    }

    fn receive(&mut self, tag: u64, room: usize, token: u64) -> Bytes {
        let memory = Bytes::zeros(room);
        let wanted = Wanted { is_tagged: true, from: None, tag, ignore: 0 };
        self.ends[1].rdm.receive(&wanted, memory.clone(), None, token);
        memory
    }

    fn pass(&mut self) {
        for _ in 0..4000 {
            self.world.advance(2_000);
            self.ends.iter_mut().for_each(End::poll);
        }
    }

    /// The tokens of the receives that ended, in order.
    fn received(&self) -> Vec<u64> {
        let ended = self.ends[1].outcomes.iter().filter(|it| it.kind == Kind::Receive);
        ended.filter_map(|it| it.token).collect()
    }
}

/// Their first bytes hold chunks. What is received meanwhile gets others.
#[test]
fn messages_that_nobody_receives_keep_no_chunk_from_those_that_are() {
    for (chunks, lent) in [2, 4, 5, 16].into_iter().flat_map(|it| [(it, usize::MAX), (it, CHUNK)]) {
        let mut pair = Pair::new(chunks, lent);
        let length = 5 * CHUNK + 3;
        for token in 0..20 {
            let body = Bytes::new(bytes(1, length));
            assert_eq!(pair.send(1, &body, token), Ok(Begun::UnderWay));
        }
        let body = Bytes::new(bytes(2, length));
        assert_eq!(pair.send(2, &body, 20), Ok(Begun::UnderWay));
        pair.pass();
        let memory = pair.receive(2, length, 100);
        pair.pass();
        assert_eq!(pair.received(), [100], "with {chunks} chunks");
        assert_eq!(memory.to_vec(), bytes(2, length));
        // Receives with less room than the body, than its first bytes, and with none.
        let rooms = [length, length - 1, CHUNK + 1, CHUNK, 100, 0];
        for turn in 0..20 {
            let room = rooms[turn % rooms.len()];
            let memory = pair.receive(1, room, turn as u64);
            pair.pass();
            let ended = pair.ends[1].outcomes.last().expect("it ended");
            assert_eq!((ended.token, ended.length), (Some(turn as u64), room));
            assert_eq!(ended.failure, (room < length).then_some(Failure::Truncated));
            assert_eq!(memory.to_vec(), bytes(1, length)[..room], "with {chunks} chunks");
        }
        let sends = pair.ends[0].outcomes.iter().filter(|it| it.failure.is_none()).count();
        assert_eq!(sends, 21, "each send has ended");
        assert_eq!(pair.ends[0].rdm.kept(), 0, "all chunks are back");
    }
}

/// Else all receives of a window would end together, and their bodies leave the cache meanwhile.
#[test]
fn bodies_come_one_after_the_other() {
    let mut pair = Pair::new(4, usize::MAX);
    let lengths = [12 * CHUNK, 9 * CHUNK, 3 * CHUNK];
    let memories: Vec<Bytes> = (0..3).map(|at| pair.receive(1, lengths[at], at as u64)).collect();
    for (token, length) in (0..).zip(lengths) {
        let body = Bytes::new(bytes(length, length));
        assert_eq!(pair.send(1, &body, token), Ok(Begun::UnderWay));
    }
    pair.pass();
    assert_eq!(pair.received(), [0, 1, 2]);
    for (memory, length) in memories.iter().zip(lengths) {
        assert_eq!(memory.to_vec(), bytes(length, length));
    }
}

/// A claimed message that is dropped gives its chunk back, and its sender's memory.
#[test]
fn a_message_that_is_dropped_gives_its_chunk_back() {
    let mut pair = Pair::new(4, usize::MAX);
    assert_eq!(pair.send(1, &Bytes::zeros(9 * CHUNK), 1), Ok(Begun::UnderWay));
    pair.pass();
    assert!(pair.ends[0].rdm.kept() > 0, "its first bytes are in a chunk");
    let wanted = Wanted { is_tagged: true, from: None, tag: 1, ignore: 0 };
    let found = pair.ends[1].rdm.peek(&wanted, true, 5).expect("it is there");
    pair.ends[1].rdm.discard(found, 5);
    pair.pass();
    assert_eq!(pair.ends[0].rdm.kept(), 0);
    assert!(pair.ends[0].outcomes.iter().any(|it| it.token == Some(1) && it.failure.is_none()));
}

/// It lies in the sender's memory until the receiver has read it, whatever the sender does.
#[test]
fn a_body_that_is_lent_comes_without_calls_of_the_sender() {
    for (lent, comes) in [(CHUNK, true), (usize::MAX, false)] {
        let mut pair = Pair::new(8, lent);
        let length = 40 * CHUNK + 5;
        let memory = pair.receive(1, length, 7);
        let body = Bytes::new(bytes(3, length));
        assert_eq!(pair.send(1, &body, 8), Ok(Begun::UnderWay));
        for _ in 0..4000 {
            pair.world.advance(2_000);
            pair.ends[1].poll();
        }
        assert_eq!(pair.received() == [7], comes, "others have to be asked for");
        pair.pass();
        assert_eq!(pair.received(), [7]);
        assert_eq!(memory.to_vec(), bytes(3, length));
        assert!(pair.ends[0].outcomes.iter().any(|it| it.token == Some(8) && it.failure.is_none()));
    }
}
