//! Nodes that open sessions with each other at random, ask, answer, lend and move blocks, while
//! links are cut and endpoints die. Each request ends once, each session ends once at each end that
//! lives, blocks have what was put, and nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Access, Blocking, Endpoint, EndpointAddress, EndpointOptions, LocalRange, NodeId,
    OperationError, PATIENCE, Region, ServiceName, Source, Transport,
};
use weft_session::{
    AnswerError, BlockError, BlockId, Event, Options, PoolId, RequestError, SessionError,
    SessionId, Sessions, Shape, bytes_of,
};
use weft_transport_sim::{Link, Settings, SimEndpoint, SimRegion, SimWorld};

const NODES: u32 = 3;
const STEPS: usize = 600;
const BLOCK_BYTES: u32 = 512;

/// How often what happened.
type Seen = BTreeMap<&'static str, u64>;

struct Node {
    sessions: Sessions<SimEndpoint>,
    address: EndpointAddress,
    region: SimRegion,
    /// Sessions that are not over, and those that are open.
    known: BTreeSet<SessionId>,
    open: BTreeSet<SessionId>,
    /// Requests that have no answer, and the bytes that were asked with.
    asked: BTreeMap<(SessionId, u32), Vec<u8>>,
    to_answer: Vec<(SessionId, u32, Vec<u8>)>,
    pools: BTreeMap<(SessionId, PoolId), Shape>,
    /// Blocks that came, with their length and head.
    blocks: Vec<(SessionId, BlockId, u32, Vec<u8>)>,
    own_pools: BTreeMap<(SessionId, PoolId), u64>,
    /// Blocks that were passed out of own memory, and those that came so, by session.
    passed: BTreeMap<SessionId, u32>,
    came: BTreeMap<SessionId, u32>,
}

/// The session was ended, and its end was not handed out yet.
fn is_over(error: &BlockError) -> bool {
    matches!(error, BlockError::Session(SessionError::Unknown))
}

fn name() -> ServiceName {
    ServiceName::new("test").expect("a name")
}

impl Node {
    fn open(world: &SimWorld, number: u32, options: &Options) -> Self {
        let transport = world.transport(NodeId(number), 1000);
        let endpoint = transport.open(&EndpointOptions::default()).expect("a node has room");
        let mut sessions = Sessions::new(endpoint, options.clone());
        sessions.serve(name(), &(1..=3));
        let region = sessions.endpoint().register(1 << 16).expect("memory");
        let address = sessions.endpoint().address();
        Self {
            sessions,
            address,
            region,
            known: BTreeSet::new(),
            open: BTreeSet::new(),
            asked: BTreeMap::new(),
            to_answer: Vec::new(),
            pools: BTreeMap::new(),
            blocks: Vec::new(),
            own_pools: BTreeMap::new(),
            passed: BTreeMap::new(),
            came: BTreeMap::new(),
        }
    }

    fn poll(&mut self, now: Duration, seen: &mut Seen) {
        let mut hellos = Vec::new();
        let Self {
            sessions, known, open, asked, to_answer, pools, blocks, own_pools, came, ..
        } = self;
        sessions.poll(now, 32, |event| match event {
            Event::Hello { session, protocol, version, options } => {
                assert_eq!((protocol, version, options), (name(), 2, &b"hello"[..]));
                assert!(known.insert(session), "{session:?} is new");
                hellos.push(session);
            }
            Event::Opened { session, version, options } => {
                assert_eq!((version, options), (2, &b"welcome"[..]));
                assert!(known.contains(&session) && open.insert(session));
                *seen.entry("opened").or_default() += 1;
            }
            Event::Request { session, number, head, body } => {
                assert_eq!(head, b"ask");
                assert!(open.contains(&session), "{session:?} is open");
                to_answer.push((session, number, bytes_of(&body)));
            }
            Event::Answer { session, number, answer } => {
                let question = asked.remove(&(session, number)).expect("one end for each request");
                let what = match answer {
                    Ok(answer) => {
                        assert_eq!((answer.code, answer.head), (9, &b"say"[..]));
                        assert_eq!(bytes_of(&answer.body), question);
                        "answered"
                    }
                    Err(RequestError::TooLong | RequestError::AnswerTooLong) => {
                        assert!(question.len() > 4_096);
                        "too long"
                    }
                    Err(RequestError::Late) => "late",
                    Err(RequestError::Cancelled) => "cancelled",
                    Err(RequestError::Session(_)) => "unanswered",
                    Err(error) => panic!("{error}"),
                };
                *seen.entry(what).or_default() += 1;
            }
            Event::Cancelled { session, number } => {
                to_answer.retain(|(id, other, _)| (*id, *other) != (session, number));
            }
            Event::Pool { session, pool, shape } => {
                assert!(pools.insert((session, pool), shape).is_none());
            }
            Event::Block { session, block, length, head } => {
                if let Some((_, number)) = head.split_first_chunk::<1>()
                    && let Ok(number) = number.try_into()
                {
                    let due = came.entry(session).or_default();
                    assert_eq!(u32::from_le_bytes(number), *due, "blocks come in order");
                    *due += 1;
                }
                blocks.push((session, block, length, head.to_vec()));
            }
            Event::Moved { result, .. } => {
                let what = match result {
                    Ok(()) => "moved",
                    // The end of the session follows.
                    Err(OperationError::PeerDown | OperationError::InvalidKey) => "not moved",
                    Err(error) => panic!("{error}"),
                };
                *seen.entry(what).or_default() += 1;
            }
            Event::Ended { session, .. } => {
                assert!(known.remove(&session), "{session:?} ends once");
                open.remove(&session);
                assert!(asked.keys().all(|(id, _)| *id != session), "requests end before");
                to_answer.retain(|(id, ..)| *id != session);
                pools.retain(|(id, _), _| *id != session);
                own_pools.retain(|(id, _), _| *id != session);
                blocks.retain(|(id, ..)| *id != session);
                *seen.entry("ended").or_default() += 1;
            }
            Event::Room { .. } | Event::Endpoint(_) => {}
        });
        for session in hellos {
            // It may have ended behind its hello.
            if self.known.contains(&session) {
                self.sessions.accept(session, 2, b"welcome").expect("it waits");
                self.open.insert(session);
            }
        }
    }

    fn any<T: Clone>(
        random: &mut ChaCha8Rng,
        among: impl ExactSizeIterator<Item = T>,
    ) -> Option<T> {
        let count = among.len();
        let mut among = among;
        if count == 0 { None } else { among.nth(random.random_range(0..count)) }
    }

    fn ask(&mut self, random: &mut ChaCha8Rng, now: Duration) {
        let Some(session) = Self::any(random, self.open.iter().copied()) else { return };
        let length = [0, 10, 300, 5_000][random.random_range(0..4)];
        let body: Vec<u8> = (0..length).map(|_| random.random()).collect();
        let until = random.random_bool(0.5).then(|| now + Duration::from_micros(40));
        match self.sessions.request(session, b"ask", &[&body], until) {
            Ok(number) => drop(self.asked.insert((session, number), body)),
            Err(RequestError::WouldBlock | RequestError::Session(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn answer(&mut self, random: &mut ChaCha8Rng) {
        if self.to_answer.is_empty() {
            return;
        }
        let place = random.random_range(0..self.to_answer.len());
        let (session, number, body) = self.to_answer.swap_remove(place);
        match self.sessions.answer(session, number, 9, b"say", &[&body]) {
            Ok(()) | Err(AnswerError::Session(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn lend(&mut self, random: &mut ChaCha8Rng) {
        let Some(session) = Self::any(random, self.open.iter().copied()) else { return };
        let its = self.own_pools.keys().filter(|(id, _)| *id == session).count();
        let taken: BTreeSet<u64> = self.own_pools.values().copied().collect();
        let free = (0..16).find(|place| !taken.contains(place));
        let Some(place) = free.filter(|_| its < 2) else { return };
        let access = if random.random_bool(0.5) { Access::READ } else { Access::WRITE };
        let range = LocalRange::new(&self.region, place * 2048, 2048);
        let pool = match self.sessions.lend(session, range, BLOCK_BYTES, access) {
            Ok(pool) => pool,
            Err(error) => return assert!(is_over(&error), "{error}"),
        };
        self.own_pools.insert((session, pool), place);
        if access == Access::READ {
            let shape = Shape { block_bytes: BLOCK_BYTES, blocks: 4, access };
            self.pools.insert((session, pool), shape);
        }
    }

    /// Fills a block by put, or through the own region.
    fn fill(&mut self, random: &mut ChaCha8Rng) {
        let Some((session, pool)) = Self::any(random, self.pools.keys().copied()) else { return };
        let Ok(Some(block)) = self.sessions.take(session, pool) else { return };
        let length = random.random_range(0..=BLOCK_BYTES);
        let byte: u8 = random.random();
        let bytes = vec![byte; length as usize];
        let passed = match self.own_pools.get(&(session, pool)) {
            None => self.sessions.put(session, block, Source::Bytes(&bytes), &[byte]),
            Some(place) => {
                let at = place * 2048 + u64::from(block.place * BLOCK_BYTES);
                self.region.write(at, &bytes).expect("inside");
                let number = self.passed.entry(session).or_default();
                let head = [&[byte][..], &number.to_le_bytes()].concat();
                *number += 1;
                self.sessions.pass(session, block, length, &head)
            }
        };
        match passed {
            Ok(()) => {}
            Err(BlockError::Operation(_)) => self.sessions.free(session, block).expect("taken"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Looks at a block that came, and gives it back. A block of the peer's memory is got into the
    /// end of the region first, which another time looks at.
    fn use_block(&mut self, seen: &mut Seen) {
        let Some((session, block, length, head)) = self.blocks.pop() else { return };
        if let Some(place) = self.own_pools.get(&(session, block.pool)) {
            let mut bytes = vec![0; length as usize];
            let at = place * 2048 + u64::from(block.place * BLOCK_BYTES);
            self.region.read(at, &mut bytes).expect("inside");
            assert!(bytes.iter().all(|byte| *byte == head[0]), "the bytes that were put");
            *seen.entry("used").or_default() += 1;
        }
        if let Err(error) = self.sessions.free(session, block) {
            assert!(is_over(&error), "{error}");
        }
    }
}

fn run(seed: u64, seen: &mut Seen) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let latency_ns = [200, 5_000][random.random_range(0..2)];
    let world = SimWorld::new(Settings {
        link: Link { latency_ns, jitter_ns: latency_ns / 2, ..Link::default() },
        cut_down_after_ns: Some(60_000),
        mailbox_depth: [8, 64][random.random_range(0..2)],
        operations_max: [4, 64][random.random_range(0..2)],
        keys_max: 64,
        control_ns: [0, 3_000][random.random_range(0..2)],
        ..Settings::seeded(seed)
    });
    let messages = weft_message::Options {
        window: [32, 256][random.random_range(0..2)],
        queue_packets_max: [16, 64][random.random_range(0..2)],
        outstanding_max: [1, 256][random.random_range(0..2)],
        receive_bytes_max: [4_096, 1 << 20][random.random_range(0..2)],
        ..Options::default().messages
    };
    let options = Options {
        messages,
        requests_max: [1, 8][random.random_range(0..2)],
        sessions_max: 12,
        open_within: Duration::from_micros(200),
        silence: random.random_bool(0.5).then_some(Duration::from_millis(2)),
        ..Options::default()
    };
    let mut nodes: Vec<Node> =
        (0..NODES).map(|number| Node::open(&world, number, &options)).collect();
    for _ in 0..STEPS {
        let at = random.random_range(0..NODES);
        let other = (at + random.random_range(1..NODES)) % NODES;
        let to = nodes[other as usize].address;
        let now = Duration::from_nanos(world.now());
        let node = &mut nodes[at as usize];
        match random.random_range(0..100) {
            0..6 => {
                if let Ok(peer) = node.sessions.endpoint().connect_within(to, PATIENCE)
                    && let Ok(id) = node.sessions.open(peer, name(), &(2..=2), b"hello", now)
                {
                    assert!(node.known.insert(id), "a new one");
                }
            }
            6..30 => node.ask(&mut random, now),
            30..45 => node.answer(&mut random),
            45..50 => node.lend(&mut random),
            50..60 => node.fill(&mut random),
            60..66 => node.use_block(seen),
            66..68 => {
                if let Some(id) = Node::any(&mut random, node.known.iter().copied()) {
                    node.sessions.end(id, 1, "enough");
                }
            }
            68..71 => {
                if let Some((id, number)) = Node::any(&mut random, node.asked.keys().copied()) {
                    node.sessions.cancel(id, number);
                }
            }
            71..72 => {
                world.kill(to);
                nodes[other as usize] = Node::open(&world, other, &options);
            }
            72..73 => world.cut(NodeId(at), NodeId(other)),
            73..76 => world.heal(NodeId(at), NodeId(other)),
            _ => node.poll(now, seen),
        }
        world.advance([0, 500, 5_000, 20_000][random.random_range(0..4)]);
    }
    settle(&world, &mut nodes, &mut random, seen);
}

/// Everything heals, everybody answers, then everybody ends everything.
fn settle(world: &SimWorld, nodes: &mut [Node], random: &mut ChaCha8Rng, seen: &mut Seen) {
    for a in 0..NODES {
        for b in 0..a {
            world.heal(NodeId(a), NodeId(b));
        }
    }
    for round in 0..1_500 {
        world.advance(5_000);
        for node in nodes.iter_mut() {
            node.poll(Duration::from_nanos(world.now()), seen);
            node.answer(random);
            node.use_block(seen);
            if round == 750 {
                assert!(node.asked.is_empty(), "each request has ended");
                for id in node.known.clone() {
                    node.sessions.end(id, 0, "");
                }
            }
        }
    }
    for node in nodes {
        assert!(node.known.is_empty(), "each session has ended: {:?}", node.known);
        assert_eq!(node.sessions.count(), 0);
        assert!(node.sessions.is_idle(), "nothing is on its way");
    }
}

#[test]
fn frames_that_wait_for_room_keep_their_order() {
    const BLOCKS: u32 = 600;
    let world = SimWorld::new(Settings { mailbox_depth: 8, ..Settings::seeded(1) });
    let mut nodes = [0, 1].map(|number| Node::open(&world, number, &Options::default()));
    let to = nodes[1].address;
    let peer = nodes[0].sessions.endpoint().connect_within(to, PATIENCE).expect("it is there");
    let id = nodes[0].sessions.open(peer, name(), &(2..=2), b"hello", Duration::ZERO);
    let id = id.expect("its first");
    nodes[0].known.insert(id);
    let mut seen = Seen::new();
    let mut poll = |node: &mut Node| {
        world.advance(10_000);
        node.poll(Duration::from_nanos(world.now()), &mut seen);
    };
    while nodes[0].open.is_empty() {
        nodes.iter_mut().for_each(&mut poll);
    }
    let range = LocalRange::new(&nodes[0].region, 0, u64::from(BLOCKS));
    let pool = nodes[0].sessions.lend(id, range, 1, Access::READ).expect("keys");
    for number in 0..BLOCKS {
        let block = nodes[0].sessions.take(id, pool).expect("own").expect("all are idle");
        let head = [&[0][..], &number.to_le_bytes()].concat();
        nodes[0].sessions.pass(id, block, 1, &head).expect("it was taken");
    }
    assert!(!nodes[0].sessions.is_idle(), "there is no room for so many");
    for _ in 0..2_000 {
        // It asserts the order.
        nodes.iter_mut().for_each(&mut poll);
    }
    assert_eq!(nodes[1].blocks.len(), usize::try_from(BLOCKS).expect("few"));
}

#[test]
fn a_block_is_not_passed_before_the_peer_knows_its_pool() {
    let world = SimWorld::new(Settings { control_ns: 50_000, ..Settings::seeded(1) });
    let mut nodes = [0, 1].map(|number| Node::open(&world, number, &Options::default()));
    let to = nodes[1].address;
    let peer = nodes[0].sessions.endpoint().connect_within(to, PATIENCE).expect("it is there");
    let id = nodes[0].sessions.open(peer, name(), &(2..=2), b"hello", Duration::ZERO);
    let id = id.expect("its first");
    nodes[0].known.insert(id);
    let mut seen = Seen::new();
    let mut poll = |node: &mut Node| {
        world.advance(10_000);
        node.poll(Duration::from_nanos(world.now()), &mut seen);
    };
    while nodes[0].open.is_empty() {
        nodes.iter_mut().for_each(&mut poll);
    }
    let range = LocalRange::new(&nodes[0].region, 0, 512);
    let pool = nodes[0].sessions.lend(id, range, 512, Access::READ).expect("keys");
    let at_once = nodes[0].sessions.take(id, pool).expect("open");
    assert_eq!(at_once, None, "the key is being granted");
    let mut is_told = false;
    while !is_told {
        world.advance(10_000);
        let now = Duration::from_nanos(world.now());
        nodes[0].sessions.poll(now, 32, |event| is_told |= matches!(event, Event::Room { .. }));
    }
    let block = nodes[0].sessions.take(id, pool).expect("open").expect("it is granted");
    nodes[0].sessions.pass(id, block, 4, &[0]).expect("it was taken");
    let mut poll = |node: &mut Node| {
        world.advance(10_000);
        node.poll(Duration::from_nanos(world.now()), &mut seen);
    };
    for _ in 0..20 {
        nodes.iter_mut().for_each(&mut poll);
    }
    assert_eq!((nodes[1].blocks.len(), nodes[1].open.len()), (1, 1), "it came, and nobody ended");
}

#[test]
fn a_program_that_was_stopped_does_not_take_its_peers_for_dead() {
    let world = SimWorld::new(Settings::seeded(1));
    let options = Options { silence: Some(Duration::from_millis(3)), ..Options::default() };
    let mut nodes = [0, 1].map(|number| Node::open(&world, number, &options));
    let to = nodes[1].address;
    let peer = nodes[0].sessions.endpoint().connect_within(to, PATIENCE).expect("it is there");
    let now = Duration::from_nanos(world.now());
    let id = nodes[0].sessions.open(peer, name(), &(2..=2), b"hello", now).expect("its first");
    nodes[0].known.insert(id);
    let mut seen = Seen::new();
    let mut turns = |nodes: &mut [Node], polling: &[usize], count: u32, step_ns: u64| {
        for _ in 0..count {
            world.advance(step_ns);
            for at in polling {
                nodes[*at].poll(Duration::from_nanos(world.now()), &mut seen);
            }
        }
    };
    turns(&mut nodes, &[0, 1], 100, 100_000);
    // Both sleep for a long time, then one after the other looks again.
    turns(&mut nodes, &[0], 1, 1_000_000_000);
    turns(&mut nodes, &[0, 1], 200, 100_000);
    assert!(nodes.iter().all(|node| node.open.len() == 1), "both are there");
    // One that does not come back is taken for dead.
    turns(&mut nodes, &[0], 200, 100_000);
    assert!(nodes[0].open.is_empty() && nodes[0].known.is_empty());
}

#[test]
fn sessions_end_once_and_requests_are_answered_once() {
    let seeds = std::env::var("WEFT_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut seen = Seen::new();
    for seed in 0..seeds.unwrap_or(60) {
        run(seed, &mut seen);
    }
    for what in [
        "opened",
        "answered",
        "late",
        "cancelled",
        "unanswered",
        "too long",
        "moved",
        "used",
        "ended",
    ] {
        assert!(seen.get(what).is_some_and(|count| *count > 20), "{what}: {seen:?}");
    }
}
