//! Random programs over simulated nodes: messages by all ways, memory of peers, kills.
//!
//! The checks: each message that was sent arrives once, with its bytes, in the order of its
//! sender among those with one tag; each operation ends once; atomics add up; what is written is
//! there; a death ends all that is under way with the dead one, and nothing else.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric::{EndpointOptions, NodeId, Transport};
use weft_rdm::atomics::{Call, Datatype, Operator};
use weft_rdm::fuzz::{Bytes, End, Fake};
use weft_rdm::{
    Begun, Failure, How, Kind, Label, Memory, Options, Outcome, Refusal, Registration, Remote,
    Rights, Wanted,
};
use weft_transport_sim::{Settings, SimEndpoint, SimWorld};

const TAGS: u64 = 3;
const SLOTS: usize = 8;
const SLOT_BYTES: usize = 40_000;

fn content(from: usize, to: usize, tag: u64, sequence: u64, length: usize) -> Vec<u8> {
    let seed = from as u64 * 7 + to as u64 * 31 + tag * 101 + sequence * 1009;
    (0..length as u64).map(|at| (seed + at * 13 + (at >> 8)).to_le_bytes()[0]).collect()
}

/// The tag on the wire has the sequence above the tag that counts.
fn wire(tag: u64, sequence: u64) -> u64 {
    tag | sequence << 8
}

struct Sent {
    length: usize,
    ended: bool,
}

struct Node {
    end: End<SimEndpoint>,
    /// Memory that peers reach: a counter, then a slot for each peer.
    shared: Bytes,
    receives: HashMap<u64, Bytes>,
    /// Sequence by (to, tag), and what was sent.
    sent: HashMap<(usize, u64), Vec<Sent>>,
    /// Sequence of the next message by (from, tag).
    expected: HashMap<(usize, u64), u64>,
    tokens: u64,
    /// Operations by token.
    pending: HashMap<u64, Pending>,
    added: u64,
    lives: bool,
}

enum Pending {
    Send(usize, u64, u64),
    Receive,
    Write,
    Add,
    Read(Bytes, usize),
}

struct Run {
    world: SimWorld,
    chunk_bytes_max: usize,
    nodes: Vec<Node>,
    random: ChaCha8Rng,
}

impl Run {
    fn new(seed: u64, count: u32) -> Self {
        Self::with(seed, count, [512, 4096][usize::from(seed % 3 == 1)])
    }

    /// A run in which so many bytes go in the mailbox to another node.
    fn with(seed: u64, count: u32, far_inline_bytes_max: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let [longer, lends] = [1, 2].map(|bit| (seed / bit).is_multiple_of(2));
        let settings = Settings {
            message_bytes_max: if longer { 1280 } else { 120 },
            mailbox_depth: [2, 16, 256][random.random_range(0..3)],
            control_ns: [0, 5_000][random.random_range(0..2)],
            ordered: random.random(),
            ..Settings::seeded(seed)
        };
        let world = SimWorld::new(settings);
        let same_node = random.random_bool(0.5);
        let options = Options {
            // Windows of the simulator are calls that take time.
            maps: false,
            kernel: random.random(),
            chunks: [2, 5, 16][random.random_range(0..3)],
            chunk_bytes: 8192,
            chunk_bytes_max: 4096,
            far_inline_bytes_max,
            lent_bytes_min: if lends { 10_000 } else { usize::MAX },
            slice_bytes: [1000, 1 << 20][random.random_range(0..2)],
            budget: [1, 64][random.random_range(0..2)],
            operations_max: 64,
            ..Options::default()
        };
        let node = |number: u32| {
            let place = NodeId(if same_node { number / 2 } else { number });
            let endpoint = world.transport(place, 1000).open(&EndpointOptions::default());
            let end = End::new(endpoint.expect("an endpoint"), number + 1, options.clone());
            Node {
                end,
                shared: Bytes::zeros(8 + SLOTS * SLOT_BYTES),
                receives: HashMap::new(),
                sent: HashMap::new(),
                expected: HashMap::new(),
                tokens: 0,
                pending: HashMap::new(),
                added: 0,
                lives: true,
            }
        };
        let mut nodes: Vec<Node> = (0..count).map(node).collect();
        for node in &mut nodes {
            let rights = Rights { read: true, write: true };
            let (memory, base) = (node.shared.clone(), 1000);
            assert!(node.end.rdm.register(5, Registration { memory, base, rights }));
        }
        Self { world, chunk_bytes_max: options.chunk_bytes_max, nodes, random }
    }

    fn pair(&mut self) -> (usize, usize) {
        let count = self.nodes.len();
        (self.random.random_range(0..count), self.random.random_range(0..count))
    }

    fn act(&mut self) {
        let (from, to) = self.pair();
        if !self.nodes[from].lives {
            return;
        }
        match self.random.random_range(0..10) {
            0..4 => self.send(from, to),
            4..8 => self.receive(to),
            8 => self.remote(from, to),
            _ => self.add(from, to),
        }
    }

    fn name(&mut self, from: usize, to: usize) -> weft_rdm::PeerId {
        let (address, birth) = self.nodes[to].end.rdm.name();
        self.nodes[from].end.rdm.peer(address, birth)
    }

    fn token(&mut self, node: usize) -> u64 {
        self.nodes[node].tokens += 1;
        self.nodes[node].tokens
    }

    fn send(&mut self, from: usize, to: usize) {
        let tag = self.random.random_range(0..TAGS);
        let length = match self.random.random_range(0..6) {
            0 => 0,
            1 => self.random.random_range(1..100),
            2 => self.random.random_range(90..700),
            3 => self.random.random_range(500..9000),
            _ => self.random.random_range(9000..60_000),
        };
        let sequence = self.nodes[from].sent.get(&(to, tag)).map_or(0, |sent| sent.len() as u64);
        let how = [How::Sent, How::Delivered, How::Injected][self.random.random_range(0..3)];
        let memory = Bytes::new(content(from, to, tag, sequence, length));
        let data = self.random.random::<bool>().then_some(sequence);
        let (peer, token) = (self.name(from, to), self.token(from));
        let label = Label { tag: Some(wire(tag, sequence)), data };
        match self.nodes[from].end.rdm.send(peer, label, &memory, how, Some(token)) {
            Ok(begun) => {
                let ended = begun == Begun::Over;
                let is_short = length <= self.chunk_bytes_max;
                assert!(ended || how == How::Delivered || !is_short, "it waits for no receive");
                if ended {
                    // The memory is the program's again.
                    memory.write(0, &vec![0xee; length]).expect("it is there");
                }
                self.nodes[from].sent.entry((to, tag)).or_default().push(Sent { length, ended });
                if !ended {
                    self.nodes[from].pending.insert(token, Pending::Send(to, tag, sequence));
                }
            }
            Err(Refusal::Busy) => {}
            Err(Refusal::PeerDown) => {}
            Err(Refusal::TooLong) => assert!(how == How::Injected && length > 512),
        }
    }

    fn receive(&mut self, at: usize) {
        if !self.nodes[at].lives || self.nodes[at].receives.len() > 40 {
            return;
        }
        let from = self.random.random_range(0..self.nodes.len());
        let peer = self.name(at, from);
        let any_source = self.random.random_bool(0.3);
        let tag = self.random.random_range(0..TAGS);
        let ignore = if self.random.random_bool(0.2) { u64::MAX } else { u64::MAX << 8 };
        let wanted = Wanted { is_tagged: true, from: (!any_source).then_some(peer), tag, ignore };
        let (token, memory) = (self.token(at), Bytes::zeros(60_000));
        self.nodes[at].receives.insert(token, memory.clone());
        self.nodes[at].pending.insert(token, Pending::Receive);
        self.nodes[at].end.rdm.receive(&wanted, memory, None, token);
    }

    /// Writes the own slot of a peer, or reads it.
    fn remote(&mut self, from: usize, to: usize) {
        let (peer, token) = (self.name(from, to), self.token(from));
        let length = self.random.random_range(0..SLOT_BYTES);
        let address = 1000 + 8 + (from * SLOT_BYTES) as u64;
        let remote = Remote { key: 5, address };
        if self.random.random() {
            let memory = Bytes::new(content(from, to, 0, 0, length));
            let how = How::Sent;
            if self.nodes[from]
                .end
                .rdm
                .write(peer, (&memory, remote), None, how, Some(token))
                .is_ok()
            {
                self.nodes[from].pending.insert(token, Pending::Write);
            }
        } else {
            let memory = Bytes::zeros(length);
            if self.nodes[from].end.rdm.read(peer, (&memory, remote), Some(token)).is_ok() {
                self.nodes[from].pending.insert(token, Pending::Read(memory, to));
            }
        }
    }

    fn add(&mut self, from: usize, to: usize) {
        let (peer, token) = (self.name(from, to), self.token(from));
        let operand = 1_u64.to_ne_bytes();
        let (operator, datatype) = (Operator::Sum, Datatype::U64);
        let call = Call { operator, datatype, count: 1, operand: &operand, compare: &[] };
        let remote = Remote { key: 5, address: 1000 };
        let fetched = Bytes::zeros(8);
        let result = self.random.random::<bool>().then_some(&fetched);
        if self.nodes[from].end.rdm.atomic(peer, (&call, remote), result, Some(token)).is_ok() {
            self.nodes[from].pending.insert(token, Pending::Add);
        }
    }

    fn poll(&mut self) {
        self.world.advance(self.random.random_range(1..3_000));
        let at = self.random.random_range(0..self.nodes.len());
        if self.nodes[at].lives {
            self.poll_node(at);
        }
    }

    fn poll_node(&mut self, at: usize) {
        self.nodes[at].end.poll();
        for outcome in std::mem::take(&mut self.nodes[at].end.outcomes) {
            self.ended(at, &outcome);
        }
    }

    fn ended(&mut self, at: usize, outcome: &Outcome<u64>) {
        let Some(token) = outcome.token else { return };
        let pending = self.nodes[at].pending.remove(&token);
        let pending = pending.unwrap_or_else(|| panic!("{outcome:?} ends twice"));
        if let Some(failure) = outcome.failure {
            let is_end = matches!(failure, Failure::PeerDown);
            assert!(is_end && self.nodes.iter().any(|node| !node.lives), "{outcome:?}");
            self.nodes[at].receives.remove(&token);
            return;
        }
        match pending {
            Pending::Send(to, tag, sequence) => {
                assert_eq!(outcome.kind, Kind::Send);
                let sent = self.nodes[at].sent.get_mut(&(to, tag)).expect("it was sent");
                let sent = &mut sent[usize::try_from(sequence).expect("few")];
                assert!(!std::mem::replace(&mut sent.ended, true), "a send ends once");
            }
            Pending::Receive => self.received(at, token, outcome),
            Pending::Write => assert_eq!(outcome.kind, Kind::Write),
            Pending::Add => self.nodes[at].added += 1,
            Pending::Read(memory, to) => {
                // All of zeros, or what was written before, of which a later write may be a part.
                let read = memory.to_vec();
                let written = content(at, to, 0, 0, read.len());
                let same = |(read, written): (&u8, &u8)| *read == 0 || read == written;
                assert!(read.iter().zip(&written).all(same), "{outcome:?}");
            }
        }
    }

    fn received(&mut self, at: usize, token: u64, outcome: &Outcome<u64>) {
        let peer = outcome.peer.expect("it has a sender");
        let name = self.nodes[at].end.rdm.name_of(peer).expect("it has a name");
        let from = self.nodes.iter().position(|node| node.end.rdm.name() == name);
        let from = from.expect("it is one of them");
        let (tag, sequence) = (outcome.tag & 0xff, outcome.tag >> 8);
        let length =
            self.nodes[from].sent[&(at, tag)][usize::try_from(sequence).expect("few")].length;
        assert_eq!(outcome.length, length);
        if let Some(data) = outcome.data {
            assert_eq!(data, sequence);
        }
        let memory = self.nodes[at].receives.remove(&token).expect("it was posted");
        let expected = content(from, at, tag, sequence, length);
        assert_eq!(memory.to_vec()[..length], expected, "{outcome:?}");
        // Ends come in any order; matching is in order, so none comes twice.
        *self.nodes[at].expected.entry((from, tag)).or_default() += 1;
    }

    fn kill(&mut self) {
        let dead = self.random.random_range(0..self.nodes.len());
        if std::mem::replace(&mut self.nodes[dead].lives, false) {
            Fake::end(u32::try_from(dead).expect("few") + 1);
            let (address, _) = self.nodes[dead].end.rdm.name();
            self.world.kill(address);
        }
    }

    /// Lets all receives come that are missing, and all operations end.
    fn finish(&mut self) {
        for _ in 0..60_000 {
            let idle = self.nodes.iter().all(|node| {
                !node.lives || node.pending.values().all(|it| matches!(it, Pending::Receive))
            });
            let waits =
                self.nodes.iter().any(|node| node.lives && node.end.rdm.waiting_messages() > 0);
            if idle && !waits && !self.has_undelivered() {
                return;
            }
            for at in 0..self.nodes.len() {
                let any = self.nodes[at].lives && self.nodes[at].receives.is_empty();
                if any || (self.nodes[at].lives && self.nodes[at].end.rdm.waiting_messages() > 0) {
                    let (token, memory) = (self.token(at), Bytes::zeros(60_000));
                    self.nodes[at].receives.insert(token, memory.clone());
                    self.nodes[at].pending.insert(token, Pending::Receive);
                    let (is_tagged, from, tag) = (true, None, 0);
                    let wanted = Wanted { is_tagged, from, tag, ignore: u64::MAX };
                    self.nodes[at].end.rdm.receive(&wanted, memory, None, token);
                }
                if self.nodes[at].lives {
                    self.poll_node(at);
                }
            }
            self.world.advance(2_000);
        }
        let left = self.nodes.iter().map(|node| node.pending.len()).collect::<Vec<_>>();
        panic!("the run does not end: {left:?}");
    }

    /// True if messages between the living have not come.
    fn has_undelivered(&self) -> bool {
        (0..self.nodes.len()).any(|from| {
            let it = &self.nodes[from];
            it.lives
                && it.sent.iter().any(|((to, tag), sent)| {
                    let to = &self.nodes[*to];
                    to.lives
                        && to.expected.get(&(from, *tag)).copied().unwrap_or(0) < sent.len() as u64
                })
        })
    }

    fn check(&self, killed: bool) {
        let added: u64 = self.nodes.iter().map(|node| node.added).sum();
        let counted: u64 = self
            .nodes
            .iter()
            .map(|node| {
                let bytes = node.shared.part(0, 8).to_vec();
                u64::from_ne_bytes(bytes.try_into().expect("eight"))
            })
            .sum();
        assert!(counted >= added, "what was reported was done");
        if !killed {
            assert_eq!(counted, added);
            for (from, node) in self.nodes.iter().enumerate() {
                for ((to, tag), sent) in &node.sent {
                    assert!(sent.iter().all(|sent| sent.ended));
                    let came = self.nodes[*to].expected.get(&(from, *tag)).copied().unwrap_or(0);
                    assert_eq!(came, sent.len() as u64, "each message comes once");
                }
            }
        }
    }
}

fn run(seed: u64, steps: usize, kills: bool) {
    let mut run = Run::new(seed, 4);
    for step in 0..steps {
        run.act();
        run.poll();
        if kills && step == steps / 2 {
            run.kill();
        }
    }
    run.finish();
    run.check(kills);
}

#[test]
fn all_messages_come_once_and_all_operations_end() {
    for seed in 0..16 {
        run(seed, 600, false);
    }
}

#[test]
fn a_death_ends_what_is_under_way_with_the_dead_one() {
    for seed in 100..116 {
        run(seed, 600, true);
    }
}

#[test]
fn messages_of_one_sender_match_in_order_whatever_their_lengths() {
    let mut run = Run::new(3, 2);
    let peer = run.name(0, 1);
    let lengths = [8, 50_000, 700, 0, 30_000, 96];
    for (sequence, length) in (0_u64..).zip(lengths) {
        let memory = Bytes::new(content(0, 1, 0, sequence, length));
        let label = Label { tag: Some(7), data: Some(sequence) };
        while run.nodes[0].end.rdm.send(peer, label, &memory, How::Sent, Some(sequence)).is_err() {
            run.nodes[0].end.rdm.poll();
            run.nodes[1].end.rdm.poll();
            run.world.advance(1_000);
        }
    }
    let wanted = Wanted { is_tagged: true, from: None, tag: 7, ignore: 0 };
    let memories: Vec<Bytes> = lengths.iter().map(|_| Bytes::zeros(60_000)).collect();
    for (token, memory) in (0_u64..).zip(&memories) {
        run.nodes[1].end.rdm.receive(&wanted, memory.clone(), None, token);
    }
    let mut ended = 0;
    while ended < lengths.len() {
        run.world.advance(1_000);
        run.nodes[0].end.poll();
        run.nodes[1].end.poll();
        for outcome in std::mem::take(&mut run.nodes[1].end.outcomes) {
            assert_eq!(outcome.token, outcome.data, "receives match in the order of posting");
            ended += 1;
        }
    }
}

#[test]
fn what_a_registration_does_not_allow_is_refused_and_changes_nothing() {
    let mut run = Run::new(4, 2);
    let read_only = Bytes::zeros(100_000);
    let rights = Rights { read: true, write: false };
    let registration = Registration { memory: read_only.clone(), base: 0, rights };
    assert!(run.nodes[1].end.rdm.register(9, registration.clone()));
    assert!(!run.nodes[1].end.rdm.register(9, registration), "a key is used once");
    let peer = run.name(0, 1);
    let ones = |length| Bytes::new(vec![1; length]);
    let cases = [
        (8, 9, 0, Failure::Denied),
        (5_000, 9, 0, Failure::Denied),
        (90_000, 9, 0, Failure::Denied),
        (8, 10, 0, Failure::UnknownKey),
        (90_000, 10, 0, Failure::UnknownKey),
        (8, 5, 999, Failure::OutOfBounds),
        (8, 5, u64::MAX, Failure::OutOfBounds),
        (90_000, 5, 300_000, Failure::OutOfBounds),
    ];
    for (token, (length, key, address, failure)) in (0_u64..).zip(cases) {
        let (memory, remote) = (ones(length), Remote { key, address });
        let begin = |run: &mut Run| {
            let rdm = &mut run.nodes[0].end.rdm;
            rdm.write(peer, (&memory, remote), None, How::Sent, Some(token))
        };
        while begin(&mut run).is_err() {
            run.nodes[0].end.rdm.poll();
            run.world.advance(1_000);
        }
        while run.nodes[0].end.outcomes.is_empty() {
            run.world.advance(1_000);
            run.nodes[1].end.poll();
            run.nodes[0].end.poll();
        }
        let outcome = run.nodes[0].end.outcomes.remove(0);
        assert_eq!((outcome.token, outcome.failure), (Some(token), Some(failure)));
    }
    assert!(read_only.to_vec().iter().all(|byte| *byte == 0));
    assert!(run.nodes[1].shared.to_vec().iter().all(|byte| *byte == 0));
}

/// Posts a receive at node 0.
fn receive_at_first(run: &mut Run, is_tagged: bool, from: Option<weft_rdm::PeerId>, token: u64) {
    let wanted = Wanted { is_tagged, from, tag: 0, ignore: 0 };
    run.nodes[0].end.rdm.receive(&wanted, Bytes::zeros(60_000), None, token);
}

/// Lets time go by for the living, and returns the tokens and failures that node 0 is told.
fn told(run: &mut Run) -> Vec<(u64, Option<Failure>)> {
    for _ in 0..2_000 {
        run.world.advance(10_000);
        for node in run.nodes.iter_mut().filter(|node| node.lives) {
            node.end.poll();
        }
    }
    let outcomes = std::mem::take(&mut run.nodes[0].end.outcomes);
    let mut told: Vec<_> =
        outcomes.iter().map(|it| (it.token.expect("all have names"), it.failure)).collect();
    told.sort_by_key(|it| it.0);
    told
}

#[test]
fn the_end_of_the_last_peer_ends_receives_from_any_source_where_that_is_wanted() {
    for wanted in [false, true] {
        let world = SimWorld::new(Settings::seeded(3));
        let options = Options { maps: false, ends_receives: wanted, ..Options::default() };
        let open = || world.transport(NodeId(0), 1000).open(&EndpointOptions::default());
        let [mut own, mut first, mut second] =
            [1, 2, 3].map(|process| End::new(open().expect("room"), process, options.clone()));
        let any = Wanted { is_tagged: true, from: None, tag: 0, ignore: 0 };
        own.rdm.receive(&any, Bytes::zeros(8), None, 1);
        let label = Label { tag: Some(1), data: None };
        for (peer, token) in [(own.peer(&first), 2), (own.peer(&second), 3)] {
            let sent = own.rdm.send(peer, label, &Bytes::zeros(8), How::Sent, Some(token));
            assert!(sent.is_ok());
        }
        let mut ends = [&mut first, &mut second];
        for dead in 0..2 {
            for _ in 0..200 {
                world.advance(10_000);
                own.poll();
                ends[dead..].iter_mut().for_each(|end| end.poll());
            }
            assert!(own.outcomes.iter().all(|it| it.token != Some(1)), "a peer lives");
            world.kill(ends[dead].rdm.name().0);
        }
        for _ in 0..200 {
            world.advance(10_000);
            own.poll();
        }
        let ended = own.outcomes.iter().find(|it| it.token == Some(1));
        let failure = wanted.then_some(Failure::PeerDown);
        assert_eq!(ended.and_then(|it| it.failure), failure);
    }
}

/// As a message to another endpoint of the node, which maps chunks.
#[test]
fn a_message_to_oneself_of_a_chunk_is_over_before_a_receive_is_there() {
    let world = SimWorld::new(Settings::seeded(4));
    let options = Options { maps: false, ..Options::default() };
    let endpoint = world.transport(NodeId(0), 1000).open(&EndpointOptions::default());
    let mut end = End::new(endpoint.expect("an endpoint"), 1, options);
    let (address, birth) = end.rdm.name();
    let own = end.rdm.peer(address, birth);
    let label = Label { tag: Some(1), data: None };
    let (letter, into) = (Bytes::new(vec![7; 1024]), Bytes::zeros(1024));
    let pass = |end: &mut End<SimEndpoint>| {
        for _ in 0..200 {
            world.advance(10_000);
            end.poll();
        }
    };
    // The first message meets.
    assert!(end.rdm.send(own, label, &Bytes::zeros(8), How::Sent, Some(1)).is_ok());
    pass(&mut end);
    // More messages than there are chunks for one peer.
    for turn in 0..40 {
        assert_eq!(
            end.rdm.send(own, label, &letter, How::Sent, Some(2)),
            Ok(Begun::Over),
            "{turn}"
        );
        pass(&mut end);
    }
    let wanted = Wanted { is_tagged: true, from: Some(own), tag: 1, ignore: 0 };
    for _ in 0..2 {
        end.rdm.receive(&wanted, into.clone(), None, 3);
    }
    pass(&mut end);
    assert_eq!(end.outcomes.iter().filter(|it| it.token == Some(3)).count(), 2);
    assert!(into.to_vec().iter().all(|byte| *byte == 7));
}

/// Both ends send, and receive when all that they sent is over, as programs of MPI do.
#[test]
fn short_sends_are_over_before_receives_are_there_and_a_dead_peer_frees_them() {
    for seed in 0..8 {
        let mut run = Run::with(seed, 2, 512);
        let names = [run.name(0, 1), run.name(1, 0)];
        let label = Label { tag: Some(1), data: None };
        let count = 100;
        for turn in 0..count {
            for (node, peer) in names.into_iter().enumerate() {
                let letter = Bytes::new(content(node, 1 - node, 1, turn, 3_000));
                let send = |run: &mut Run| {
                    let token = Some(turn);
                    run.nodes[node].end.rdm.send(peer, label, &letter, How::Sent, token)
                };
                let mut begun = send(&mut run);
                for _ in 0..2_000 {
                    if begun != Err(Refusal::Busy) {
                        break;
                    }
                    // The mailbox is full.
                    run.world.advance(10_000);
                    run.nodes.iter_mut().for_each(|node| node.end.poll());
                    begun = send(&mut run);
                }
                assert_eq!(begun, Ok(Begun::Over), "turn {turn}, seed {seed}");
                letter.write(0, &[0xee; 3_000]).expect("it is there");
            }
        }
        assert!(run.nodes.iter().all(|node| node.end.rdm.kept() > 0));
        let wanted = Wanted { is_tagged: true, from: Some(names[1]), tag: 1, ignore: 0 };
        let memories: Vec<Bytes> = (0..count).map(|_| Bytes::zeros(3_000)).collect();
        for (token, memory) in (0..).zip(&memories) {
            run.nodes[1].end.rdm.receive(&wanted, memory.clone(), None, token);
        }
        let _ = told(&mut run);
        for (turn, memory) in (0..).zip(&memories) {
            assert_eq!(memory.to_vec(), content(0, 1, 1, turn, 3_000), "turn {turn}");
        }
        assert_eq!(run.nodes[0].end.rdm.kept(), 0, "the peer has taken all");
        assert!(run.nodes[1].end.rdm.kept() > 0, "nobody has received these");
        run.nodes[0].lives = false;
        run.world.kill(run.nodes[0].end.rdm.name().0);
        for _ in 0..2_000 {
            run.world.advance(10_000);
            run.nodes[1].end.poll();
        }
        assert_eq!(run.nodes[1].end.rdm.kept(), 0, "they are freed");
        let failed = run.nodes[1].end.outcomes.iter().find(|it| it.kind == Kind::Send);
        assert!(failed.is_none(), "they were over: {failed:?}");
    }
}

/// They are got when they arrive, and given to receives that come before, meanwhile or later.
#[test]
fn messages_that_wait_at_another_node_hold_no_chunk() {
    let world = SimWorld::new(Settings::seeded(5));
    let options = Options { maps: false, far_inline_bytes_max: 512, ..Options::default() };
    let [mut one, mut other] = [1, 2].map(|node| {
        let endpoint = world.transport(NodeId(node), 1000).open(&EndpointOptions::default());
        End::new(endpoint.expect("an endpoint"), node, options.clone())
    });
    let to = one.peer(&other);
    let label = Label { tag: Some(1), data: None };
    let wanted = Wanted { is_tagged: true, from: None, tag: 1, ignore: 0 };
    let pass = |one: &mut End<SimEndpoint>, other: &mut End<SimEndpoint>| {
        for _ in 0..100 {
            world.advance(1_000);
            one.poll();
            other.poll();
        }
    };
    let meeting = Label { tag: Some(2), data: None };
    assert!(one.rdm.send(to, meeting, &Bytes::zeros(8), How::Sent, None).is_ok());
    pass(&mut one, &mut other);
    let (count, length) = (48, 3_000);
    // Every other receive has less room.
    let room = |turn: u64| if turn.is_multiple_of(2) { length } else { 1_000 };
    let memories: Vec<Bytes> = (0..count).map(|turn| Bytes::zeros(room(turn))).collect();
    for (turn, memory) in (0..).zip(&memories) {
        if turn % 4 == 0 {
            other.rdm.receive(&wanted, memory.clone(), None, turn);
        }
        let letter = Bytes::new(content(0, 1, 1, turn, length));
        assert_eq!(one.rdm.send(to, label, &letter, How::Sent, Some(turn)), Ok(Begun::Over));
        letter.write(0, &vec![0xee; length]).expect("it is there");
        if turn % 4 == 1 {
            while other.rdm.waiting_messages() < 2 {
                world.advance(100);
                one.poll();
                other.poll();
            }
            other.rdm.receive(&wanted, memory.clone(), None, turn);
            assert!(other.outcomes.iter().all(|it| it.token != Some(turn)), "its bytes are coming");
        }
        pass(&mut one, &mut other);
        assert_eq!(one.rdm.kept(), 0, "the peer has taken it in turn {turn}");
        if turn % 4 > 1 {
            other.rdm.receive(&wanted, memory.clone(), None, turn);
            pass(&mut one, &mut other);
        }
        let ended = other.outcomes.iter().find(|it| it.token == Some(turn)).expect("it ended");
        let surplus = length - room(turn);
        let failure = (surplus > 0).then_some(Failure::Truncated);
        assert_eq!((ended.length, ended.surplus), (room(turn), surplus));
        assert_eq!(ended.failure, failure);
        assert_eq!(memory.to_vec(), content(0, 1, 1, turn, length)[..room(turn)], "turn {turn}");
    }
}

#[test]
fn a_death_ends_receives_from_the_dead_one_and_none_from_any_source() {
    for seed in 0..4 {
        let mut run = Run::new(seed, 3);
        let (peer, other) = (run.name(0, 1), run.name(0, 2));
        let label = |is_tagged: bool| Label { tag: is_tagged.then_some(0), data: None };
        receive_at_first(&mut run, true, None, 1);
        receive_at_first(&mut run, false, None, 2);
        // Node 0 has sent nothing to its peer, and nothing came from it.
        receive_at_first(&mut run, true, Some(peer), 3);
        assert_eq!(told(&mut run), []);
        let long = Bytes::zeros(50_000);
        let sends = seed % 2 == 1;
        if sends {
            let rdm = &mut run.nodes[0].end.rdm;
            let begun = rdm.send(peer, label(true), &long, How::Delivered, Some(4));
            assert_eq!(begun, Ok(Begun::UnderWay));
        }
        run.nodes[1].lives = false;
        Fake::end(2);
        let (address, _) = run.nodes[1].end.rdm.name();
        run.world.kill(address);
        let down = Some(Failure::PeerDown);
        let ended = [(3, down), (4, down)];
        assert_eq!(told(&mut run), ended[..1 + usize::from(sends)]);
        // A receive that begins after the death fails, too; a receive from somebody else waits.
        receive_at_first(&mut run, false, Some(peer), 5);
        receive_at_first(&mut run, true, Some(other), 6);
        assert_eq!(told(&mut run), [(5, down)]);
        let begun = run.nodes[0].end.rdm.send(peer, label(true), &long, How::Sent, Some(7));
        assert_eq!(begun, Err(Refusal::PeerDown));
        // A newcomer is served by the receives that were posted before the only peer died.
        let to = run.name(2, 0);
        for (token, is_tagged) in [(1, true), (2, false), (3, true)] {
            let (label, short) = (label(is_tagged), Bytes::zeros(8));
            let send = |run: &mut Run| {
                run.nodes[2].end.rdm.send(to, label, &short, How::Sent, Some(token))
            };
            while send(&mut run).is_err() {
                run.nodes[2].end.rdm.poll();
                run.nodes[0].end.poll();
                run.world.advance(1_000);
            }
        }
        assert_eq!(told(&mut run), [(1, None), (2, None), (6, None)]);
    }
}
