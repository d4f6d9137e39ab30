//! Endpoints that do whatever a seed says, over the seeded network: they send, put, get, add,
//! order, fence, cancel, revoke, part and close. Whatever happens, messages of a pair are a gapless
//! prefix of those that were sent, an ordered put is there when the message behind it is, each
//! operation ends once, and sums are exact as far as nobody died amid an addition.
//!
//! The same holds where the endpoints are on nodes of a lab, whose links are cut and mended
//! meanwhile.
//!
//! `WEFT_SEEDS=FROM-TO` runs others than the few of the test suite. Of these, 141 found a farewell
//! that came before the last write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use weft_broker::local::LocalBroker;
use weft_broker::{Cuts, Limits, Site, no_bells};
use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointAddress, EndpointOptions, Event, Issued,
    LocalRange, MessageHeader, NodeId, Notify, Operation, OperationError, PATIENCE, Peer, Region,
    RemoteKey, Revoked, SendError, Source, Target, Transport,
};
use weft_options::ServicePolicy;
use weft_transport_ofi::seeded::{SeededNet, SeededNic, Settings};
use weft_transport_ofi::{OfiEndpoint, OfiRegion, OfiTransport, Parameters};

const STATIONS: usize = 4;
const STEPS: usize = 600;
const REGION_BYTES: u64 = 65_536;
/// Bytes of a put at most.
const PUT_BYTES: usize = 3000;
/// The word that everybody adds to.
const SUM: u64 = 4096;
/// How many events are polled at once.
const BUDGETS: [usize; 4] = [1, 3, 64, 1000];
/// From here on each pair has a word of its own for ordered puts.
const MARKS: u64 = 8192;
/// From here on each pair has a word for the number of messages that came before a put.
const COUNTS: u64 = 32_768;
/// Turns in which everything has to end.
const TURNS_MAX: usize = 60_000;

/// The links of the lab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Links {
    Whole,
    /// Some are cut now and then.
    Cut,
}

/// The node of a station.
fn site(station: usize) -> Site {
    Site(u16::try_from(station).expect("a few stations"))
}

/// The key and the memory of an endpoint, which outlives it.
struct Ground {
    region: OfiRegion,
    key: RemoteKey,
    /// Additions that ended well, and those whose end is not known.
    added: u64,
    uncertain: u64,
}

struct Station {
    endpoint: OfiEndpoint<SeededNic>,
    ground: usize,
    /// Messages sent to a peer, by handle.
    sent: BTreeMap<Peer, u64>,
    /// The words for ordered puts to a peer, by handle.
    words: BTreeMap<Peer, u64>,
    /// The peer of each word that a message has named.
    peers: BTreeMap<u64, Peer>,
    /// Messages that came of a peer, by handle.
    heard: BTreeMap<Peer, u64>,
    /// Operations that have not ended, and the ground that they add to.
    pending: BTreeMap<u64, Option<usize>>,
    down: Vec<Peer>,
}

struct World {
    net: SeededNet,
    broker: LocalBroker,
    /// A transport for each station, at a node of its own.
    transports: Vec<OfiTransport<SeededNet>>,
    /// Decides the cuts, if there are any.
    cuts: Option<SmallRng>,
    random: SmallRng,
    stations: Vec<Station>,
    grounds: Vec<Ground>,
    context: u64,
    /// Words for ordered puts that were given out.
    words: u64,
    /// Operations that ended well.
    good: BTreeSet<u64>,
    /// Ordered puts that were not there when the message behind them was.
    missing: Vec<u64>,
}

impl World {
    fn new(seed: u64, links: Links) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let receives = [64, 256, 1024][random.random_range(0..3)].max(160);
        let busy = random.random_range(0..6);
        let net = SeededNet::new(Settings {
            seed,
            receives,
            busy,
            keeps_order: seed % 2 == 1,
            line: None,
        });
        let (limits, policy) = (Limits::default(), ServicePolicy::default());
        let broker = LocalBroker::new(NodeId::LOCAL, limits, policy, no_bells);
        let parameters = Parameters { spins: 0, yields: 0, ..Parameters::default() };
        let transports = (0..STATIONS).map(|number| {
            let broker = Arc::new(broker.at(site(number)));
            OfiTransport::new(net.clone(), broker, parameters)
        });
        let transports = transports.collect();
        let cuts = (links == Links::Cut).then(|| SmallRng::seed_from_u64(!seed));
        let (stations, grounds) = (Vec::new(), Vec::new());
        let mut world = Self {
            net,
            broker,
            transports,
            cuts,
            random,
            stations,
            grounds,
            context: 0,
            words: 0,
            good: BTreeSet::new(),
            missing: Vec::new(),
        };
        for number in 0..STATIONS {
            let station = world.open(number);
            world.stations.push(station);
        }
        world
    }

    fn open(&mut self, number: usize) -> Station {
        let mut endpoint = self.transports[number].open(&EndpointOptions::default()).expect("room");
        let region = endpoint.register(REGION_BYTES).expect("memory");
        let whole = LocalRange::whole(&region);
        let key = endpoint.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
        let key = key.expect("a fresh endpoint");
        self.grounds.push(Ground { region, key, added: 0, uncertain: 0 });
        Station {
            endpoint,
            ground: self.grounds.len() - 1,
            sent: BTreeMap::new(),
            words: BTreeMap::new(),
            peers: BTreeMap::new(),
            heard: BTreeMap::new(),
            pending: BTreeMap::new(),
            down: Vec::new(),
        }
    }

    /// Cuts some nodes off from each other now and then, or mends all.
    fn change_links(&mut self) {
        let Some(cuts) = &mut self.cuts else { return };
        if cuts.random_bool(0.2) {
            let pairs = (0..STATIONS).flat_map(|one| (0..one).map(move |other| (one, other)));
            let share = [0.0, 0.3, 0.8][cuts.random_range(0..3)];
            let cut = pairs.filter(|_| cuts.random_bool(share));
            self.broker.set_cuts(cut.map(|(one, other)| (site(one), site(other))).collect());
        }
    }

    fn mend_links(&mut self) {
        self.broker.set_cuts(Cuts::default());
    }

    fn context(&mut self) -> u64 {
        self.context += 1;
        self.context
    }

    /// A station, a peer of it, and the ground of that.
    fn pair(&mut self) -> Option<(usize, Peer, usize)> {
        let from = self.random.random_range(0..STATIONS);
        let to = self.random.random_range(0..STATIONS);
        let address: EndpointAddress = self.stations[to].endpoint.address();
        let peer = self.stations[from].endpoint.connect_within(address, PATIENCE).ok()?;
        Some((from, peer, self.stations[to].ground))
    }

    /// Starts an operation. What an addition that is refused would have added is not added.
    fn start(
        &mut self,
        from: usize,
        adds_to: Option<usize>,
        call: impl FnOnce(&mut OfiEndpoint<SeededNic>, u64) -> Result<Issued, OperationError>,
    ) {
        let context = self.context();
        match call(&mut self.stations[from].endpoint, context) {
            Ok(Issued::Pending) => {
                let former = self.stations[from].pending.insert(context, adds_to);
                assert_eq!(former, None);
            }
            Ok(Issued::Done(_)) => assert_eq!(adds_to, None, "additions take their time"),
            Err(OperationError::WouldBlock | OperationError::PeerDown) => {}
            Err(other) => panic!("an operation was refused: {other}"),
        }
    }

    fn send(&mut self, from: usize, to: Peer, mark: u64) {
        let station = &mut self.stations[from];
        let number = *station.sent.entry(to).or_default();
        let bytes = [number.to_le_bytes(), mark.to_le_bytes()];
        let header = MessageHeader::tag(1);
        match station.endpoint.send_short(to, header, &[&bytes[0], &bytes[1]]) {
            Ok(()) => *station.sent.entry(to).or_default() += 1,
            Err(SendError::WouldBlock | SendError::PeerDown) => {}
            Err(other) => panic!("a message was refused: {other}"),
        }
    }

    fn step(&mut self) {
        let what = self.random.random_range(0..100);
        match what {
            0..=29 => {
                if let Some((from, to, _)) = self.pair() {
                    for _ in 0..self.random.random_range(1..20) {
                        self.send(from, to, 0);
                    }
                }
            }
            30..=49 => {
                let Some((from, to, ground)) = self.pair() else { return };
                let length = self.random.random_range(0..PUT_BYTES);
                let key = self.grounds[ground].key;
                let bytes = vec![7; length];
                let told = self.random.random_bool(0.3);
                self.start(from, None, |endpoint, context| {
                    let operation = Operation::new(context);
                    let notify = if told { Notify::COMPLETER } else { Notify::NONE };
                    let (source, target) = (Source::Bytes(&bytes), Target::new(key, 0));
                    endpoint.put(to, source, target, operation.notify(notify))
                });
            }
            50..=64 => {
                let Some((from, to, ground)) = self.pair() else { return };
                let target = Target::new(self.grounds[ground].key, SUM);
                self.start(from, Some(ground), |endpoint, context| {
                    endpoint.atomic(to, target, Atomic::fetch_add(1), Operation::new(context))
                });
            }
            65..=74 => self.put_in_order(),
            75..=79 => {
                let Some((from, to, _)) = self.pair() else { return };
                self.start(from, None, |endpoint, context| endpoint.fence(to, context));
            }
            80..=82 => {
                let from = self.random.random_range(0..STATIONS);
                self.start(from, None, |endpoint, context| endpoint.fence_all(context));
            }
            83..=86 => {
                let Some((from, to, ground)) = self.pair() else { return };
                let local = self.grounds[self.stations[from].ground].region.clone();
                let source = Target::new(self.grounds[ground].key, 0);
                self.start(from, None, |endpoint, context| {
                    let into = LocalRange::new(&local, 5000, 3000);
                    endpoint.get(to, source, into, Operation::new(context))
                });
            }
            87..=88 => {
                let from = self.random.random_range(0..STATIONS);
                let Some(context) = self.stations[from].pending.keys().next().copied() else {
                    return;
                };
                if let Some((_, to, _)) = self.pair() {
                    // A peer of another station is no peer, or another one.
                    let _ = self.stations[from].endpoint.cancel(to, context);
                }
            }
            89..=90 => {
                if let Some((from, to, _)) = self.pair() {
                    let _ = self.stations[from].endpoint.disconnect(to);
                }
            }
            91 => self.close(),
            92..=93 => self.grant_anew(),
            94..=96 => self.message_before_put(),
            _ => drop(self.turn(8)),
        }
        if self.random.random_bool(0.7) {
            let turns = self.random.random_range(1..6);
            let _ = self.turn(turns);
        }
    }

    /// A put, and behind an order a message that tells of it.
    fn put_in_order(&mut self) {
        let Some((from, to, ground)) = self.pair() else { return };
        let key = self.grounds[ground].key;
        // The context of the put.
        let mark = self.context + 1;
        // A put of a former pair may still come, and must not overwrite this one.
        let words = &mut self.words;
        let word = *self.stations[from].words.entry(to).or_insert_with(|| {
            *words += 1;
            *words
        });
        let place = MARKS + 8 * word;
        self.start(from, None, |endpoint, context| {
            let (source, target) = (mark.to_le_bytes(), Target::new(key, place));
            endpoint.put(to, Source::Bytes(&source), target, Operation::new(context))
        });
        if self.stations[from].endpoint.order(to).is_ok() {
            self.send(from, to, mark << 16 | word);
        }
    }

    /// A message, and behind an order a put of the number of messages so far.
    fn message_before_put(&mut self) {
        let Some((from, to, ground)) = self.pair() else { return };
        let count = &mut self.words;
        let word = *self.stations[from].words.entry(to).or_insert_with(|| {
            *count += 1;
            *count
        });
        self.send(from, to, word);
        let sent = self.stations[from].sent.get(&to).copied().unwrap_or(0);
        if self.stations[from].endpoint.order(to).is_err() {
            return;
        }
        let target = Target::new(self.grounds[ground].key, COUNTS + 8 * word);
        self.start(from, None, |endpoint, context| {
            let bytes = sent.to_le_bytes();
            endpoint.put(to, Source::Bytes(&bytes), target, Operation::new(context))
        });
    }

    /// An endpoint closes, and another takes its place.
    fn close(&mut self) {
        let number = self.random.random_range(0..STATIONS);
        let station = self.open(number);
        let former = std::mem::replace(&mut self.stations[number], station);
        for adds_to in former.pending.values().flatten() {
            self.grounds[*adds_to].uncertain += 1;
        }
    }

    /// A key is revoked, and the memory granted by another.
    fn grant_anew(&mut self) {
        let number = self.random.random_range(0..STATIONS);
        // A peer that is cut off would hold the key for longer than a revocation waits.
        self.mend_links();
        let Station { endpoint, ground, .. } = &mut self.stations[number];
        let ground = &mut self.grounds[*ground];
        let revoked = endpoint.revoke_within(ground.key, PATIENCE);
        assert_eq!(revoked, Ok(Revoked::Published), "nobody holds it back");
        // No byte by the key appears from now on.
        let mut bytes = vec![9; PUT_BYTES];
        ground.region.write(0, &bytes).expect("inside");
        for _ in 0..100 {
            self.net.step();
        }
        ground.region.read(0, &mut bytes).expect("inside");
        assert!(bytes.iter().all(|byte| *byte == 9), "a put came behind the revocation");
        let whole = LocalRange::whole(&ground.region);
        let key = endpoint.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
        ground.key = key.expect("room");
    }

    fn turn(&mut self, turns: usize) -> usize {
        let mut events = 0;
        for _ in 0..turns {
            self.net.step();
            for station in &mut self.stations {
                let (mut heard, mut ended, mut down) = (Vec::new(), Vec::new(), Vec::new());
                let budget = BUDGETS[self.random.random_range(0..BUDGETS.len())];
                let taken = station.endpoint.poll(budget, &mut |event| match event {
                    Event::Message(message) => heard.push((message.peer, message.payload.to_vec())),
                    Event::Completion(end) => ended.push((end.context, end.result)),
                    Event::PeerDown { peer, .. } => down.push(peer),
                    _ => {}
                });
                events += taken;
                for (peer, bytes) in heard {
                    assert!(!station.down.contains(&peer), "a message behind the report");
                    let [number, mark] = [&bytes[..8], &bytes[8..]]
                        .map(|half| u64::from_le_bytes(half.try_into().expect("two words")));
                    let next = station.heard.entry(peer).or_default();
                    assert_eq!(number, *next, "a message was lost, doubled or overtaken");
                    *next += 1;
                    let (word, mark) = (mark & 0xffff, mark >> 16);
                    station.peers.insert(word, peer);
                    if mark != 0 {
                        let place = MARKS + 8 * word;
                        let there = self.grounds[station.ground].region.load(place);
                        // A later put of the same sender may have come, too.
                        if there.expect("inside") < mark {
                            self.missing.push(mark);
                        }
                    }
                }
                for (context, result) in ended {
                    let adds_to = station.pending.remove(&context);
                    let adds_to = adds_to.expect("each operation ends once");
                    if result.is_ok() {
                        self.good.insert(context);
                    }
                    match (adds_to, result) {
                        (Some(ground), Ok(_)) => self.grounds[ground].added += 1,
                        (Some(ground), Err(OperationError::PeerDown)) => {
                            self.grounds[ground].uncertain += 1;
                        }
                        (_, Ok(_) | Err(_)) => {}
                    }
                }
                station.down.extend(down);
                // Nothing waits to be polled: what came before a put that is there was heard. A
                // pair that has ended may have lost it.
                if taken < budget {
                    for word in 1..=self.words {
                        let place = COUNTS + 8 * word;
                        let count = self.grounds[station.ground].region.load(place);
                        let peer = station.peers.get(&word);
                        let heard = peer.map_or(0, |peer| station.heard[peer]);
                        let is_down = peer.is_none_or(|peer| station.down.contains(peer));
                        let count = count.expect("inside");
                        assert!(is_down || heard >= count, "{heard} of {count} messages");
                    }
                }
            }
        }
        events
    }

    /// Everything ends, and the sums are right.
    fn end(mut self) {
        self.mend_links();
        let mut turns = 0;
        while self.stations.iter().any(|station| !station.pending.is_empty()) {
            let _ = self.turn(1);
            turns += 1;
            assert!(turns < TURNS_MAX, "an operation does not end");
        }
        let _ = self.turn(200);
        let lost: Vec<_> = self.missing.iter().filter(|put| self.good.contains(put)).collect();
        assert!(lost.is_empty(), "ordered puts came behind their messages: {lost:?}");
        for (number, ground) in self.grounds.iter().enumerate() {
            let sum = ground.region.load(SUM).expect("inside");
            let most = ground.added + ground.uncertain;
            assert!((ground.added..=most).contains(&sum), "{number}: {sum} of {most}");
        }
    }
}

fn run(seed: u64, links: Links) {
    let mut world = World::new(seed, links);
    for _ in 0..STEPS {
        world.step();
        world.change_links();
    }
    world.end();
}

#[test]
fn whatever_happens_the_promises_hold() {
    run_seeds(Links::Whole);
}

#[test]
fn whatever_happens_between_nodes_of_a_lab_the_promises_hold() {
    run_seeds(Links::Cut);
}

fn run_seeds(links: Links) {
    let wanted = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| "1-8,141".to_owned());
    for range in wanted.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let [from, to] = [from, to].map(|text| text.parse::<u64>().expect("a number"));
        for seed in from..=to {
            println!("seed {seed}");
            run(seed, links);
        }
    }
}
