//! The price of messages of any length over shared memory, against the bare endpoint.
//!
//! Two threads hold an endpoint each; for the lines of one thread, one thread holds both. Bare
//! calls and messages take turns in one run, each on endpoints of their own. The turns are short
//! and many: a line has the tenth percentile of each side, which other load on the machine moves
//! least, and their ratio.
//! `cargo bench -p weft-message --bench over_shm [TURNS]`
#![allow(clippy::disallowed_methods, reason = "a benchmark owns its clock and its threads")]

use std::sync::{Arc, Barrier};
use std::time::Instant;

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, Event as FabricEvent, Issued,
    LocalRange, MessageHeader, NodeId, Operation, PATIENCE, Peer, RemoteKey, Target, Transport,
};
use weft_message::{Body, Event, Messages, Options, Share};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmRegion, ShmTransport};

const BARE: MessageHeader = MessageHeader::tag(1);
const ROUND_TRIPS: usize = 500;
const STREAM: usize = 5_000;
const LONG: u64 = 1 << 20;
const LONGS: usize = 10;
const OUTSTANDING: usize = 2;

/// One of the two threads.
struct Side {
    bare: ShmEndpoint,
    bare_peer: Peer,
    messages: Messages<ShmEndpoint>,
    /// Rendezvous for everything above a packet, for the threshold.
    announcing: Messages<ShmEndpoint>,
    peer: Peer,
    announcing_peer: Peer,
    is_first: bool,
    barrier: Arc<Barrier>,
    share: Share,
    /// The peer's region and own ones to get it into.
    key: RemoteKey,
    into: Vec<ShmRegion>,
}

fn main() {
    let turns = std::env::args().filter_map(|argument| argument.parse().ok()).next();
    let turns: usize = turns.unwrap_or(301);
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(broker, Parameters::default());
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh broker");
    on_one_thread(&transport, turns);
    let eager = Options { eager_bytes_max: 1792, ..Options::default() };
    let short = Options { eager_bytes_max: 112, ..Options::default() };
    let barrier = Arc::new(Barrier::new(2));
    let mut ends: Vec<Messages<ShmEndpoint>> =
        (0..2).map(|_| Messages::new(open(), eager.clone())).collect();
    let mut others: Vec<Messages<ShmEndpoint>> =
        (0..2).map(|_| Messages::new(open(), short.clone())).collect();
    let mut bares: Vec<ShmEndpoint> = (0..2).map(|_| open()).collect();
    let bare_addresses: Vec<_> = bares.iter().map(Endpoint::address).collect();
    let addresses: Vec<_> = ends.iter_mut().map(|end| end.endpoint().address()).collect();
    let other_addresses: Vec<_> = others.iter_mut().map(|end| end.endpoint().address()).collect();
    let mut sides = Vec::new();
    let mut keys = Vec::new();
    for number in [1, 0] {
        let mut messages = ends.pop().expect("two ends");
        let mut announcing = others.pop().expect("two ends");
        let connect = |of: &mut Messages<ShmEndpoint>, to| {
            of.endpoint().connect_within(to, PATIENCE).expect("it is there")
        };
        let mut bare = bares.pop().expect("two ends");
        let peer = connect(&mut messages, addresses[1 - number]);
        let announcing_peer = connect(&mut announcing, other_addresses[1 - number]);
        let bare_peer = bare.connect_within(bare_addresses[1 - number], PATIENCE).expect("there");
        let region = messages.endpoint().register(LONG).expect("memory");
        let share = messages.share(&region);
        let region = bare.register(LONG).expect("memory");
        let range = LocalRange::whole(&region);
        let key = bare.grant(range, Audience::Partition, Access::READ, 1);
        let Ok(Issued::Done(key)) = key else { panic!("a local broker answers at once") };
        keys.push(key.key().expect("a key"));
        let into = (0..OUTSTANDING).map(|_| bare.register(LONG).expect("memory")).collect();
        let barrier = Arc::clone(&barrier);
        let (is_first, key) = (number == 0, RemoteKey(0));
        sides.push(Side {
            bare,
            bare_peer,
            messages,
            announcing,
            peer,
            announcing_peer,
            is_first,
            barrier,
            share,
            key,
            into,
        });
    }
    sides[0].key = keys[1];
    sides[1].key = keys[0];
    std::thread::scope(|scope| {
        for side in sides {
            scope.spawn(move || side.run(turns));
        }
    });
}

impl Side {
    fn run(mut self, turns: usize) {
        let bare = |side: &mut Self| side.bare_round_trips(64);
        self.compare("64 B round trip", turns, bare, |side| side.round_trips(64, true));
        self.compare("64 B stream", turns, Self::bare_stream, Self::stream);
        self.compare("1 MiB", turns, Self::bare_gets, Self::longs);
        for bytes in [128, 224, 336, 448, 672, 896, 1120, 1344, 1568, 1792] {
            let name = format!("{bytes} B round trip, packets / rendezvous");
            let rendezvous = |side: &mut Self| side.round_trips(bytes, false);
            let packets = |side: &mut Self| side.round_trips(bytes, true);
            self.compare(&name, turns, rendezvous, packets);
        }
    }

    /// Both in turns; prints the median ratio of the second to the first.
    fn compare(
        &mut self,
        name: &str,
        turns: usize,
        mut one: impl FnMut(&mut Self) -> f64,
        mut other: impl FnMut(&mut Self) -> f64,
    ) {
        let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
        for turn in 0..turns + WARM_UP {
            self.barrier.wait();
            let (a, b) = if turn % 2 == 0 {
                let a = one(self);
                (a, other(self))
            } else {
                let b = other(self);
                (one(self), b)
            };
            if turn >= WARM_UP {
                firsts.push(a);
                seconds.push(b);
            }
        }
        if self.is_first {
            report(name, firsts, seconds);
        }
    }

    fn bare_round_trips(&mut self, bytes: usize) -> f64 {
        let body = [1; 120];
        let (peer, is_first) = (self.bare_peer, self.is_first);
        let endpoint = &mut self.bare;
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            if is_first {
                endpoint.send_short(peer, BARE, &[&body[..bytes]]).expect("room");
            }
            let mut heard = false;
            while !heard {
                endpoint.poll(16, &mut |event| {
                    if let FabricEvent::Message(message) = event {
                        assert_eq!(message.payload.len(), bytes);
                        heard = true;
                    }
                });
            }
            if !is_first {
                endpoint.send_short(peer, BARE, &[&body[..bytes]]).expect("room");
            }
        }
        each(start, ROUND_TRIPS)
    }

    fn round_trips(&mut self, bytes: usize, as_packets: bool) -> f64 {
        let body = [1; 1792];
        let is_first = self.is_first;
        let (messages, peer) = if as_packets {
            (&mut self.messages, self.peer)
        } else {
            (&mut self.announcing, self.announcing_peer)
        };
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            if is_first {
                let _ = messages.send(peer, &[], &[&body[..bytes]], 1).expect("room");
            }
            let mut heard = false;
            while !heard {
                messages.poll(16, |event| {
                    if let Event::Message(message) = event {
                        assert_eq!(message.body.length(), bytes as u64);
                        heard = true;
                    }
                });
            }
            if !is_first {
                let _ = messages.send(peer, &[], &[&body[..bytes]], 1).expect("room");
            }
        }
        each(start, ROUND_TRIPS)
    }

    fn bare_stream(&mut self) -> f64 {
        let (peer, is_first) = (self.bare_peer, self.is_first);
        let endpoint = &mut self.bare;
        let body = [1; 64];
        let start = Instant::now();
        let mut left = STREAM;
        while left > 0 {
            if is_first {
                match endpoint.send_short(peer, BARE, &[&body]) {
                    Ok(()) => left -= 1,
                    Err(_) => drop(endpoint.poll(16, &mut |_| {})),
                }
            } else {
                endpoint.poll(64, &mut |event| {
                    if let FabricEvent::Message(message) = event {
                        assert_eq!(message.payload.len(), 64);
                        left -= 1;
                    }
                });
            }
        }
        each(start, STREAM)
    }

    fn stream(&mut self) -> f64 {
        let (peer, is_first) = (self.peer, self.is_first);
        let messages = &mut self.messages;
        let body = [1; 64];
        let start = Instant::now();
        let mut left = STREAM;
        while left > 0 {
            if is_first {
                match messages.send(peer, &[], &[&body], 1) {
                    Ok(_) => left -= 1,
                    Err(_) => drop(messages.poll(16, |_| {})),
                }
            } else {
                messages.poll(64, |event| {
                    if let Event::Message(message) = event {
                        assert_eq!(message.body.length(), 64);
                        left -= 1;
                    }
                });
            }
        }
        each(start, STREAM)
    }

    /// The second side gets; the first side waits for the end.
    fn bare_gets(&mut self) -> f64 {
        let start = Instant::now();
        self.barrier.wait();
        if !self.is_first {
            let endpoint = &mut self.bare;
            for number in 0..LONGS {
                let into = LocalRange::whole(&self.into[number % OUTSTANDING]);
                let target = Target::new(self.key, 0);
                while endpoint.get(self.bare_peer, target, into, Operation::new(1)).is_err() {
                    endpoint.poll(16, &mut |_| {});
                }
            }
        }
        self.barrier.wait();
        each(start, LONGS)
    }

    fn longs(&mut self) -> f64 {
        let start = Instant::now();
        self.barrier.wait();
        let mut left = LONGS;
        let mut room = OUTSTANDING;
        let mut to_send = if self.is_first { LONGS } else { 0 };
        while left > 0 {
            while to_send > 0 && room > 0 {
                let range = (self.share, 0, LONG);
                let _ = self.messages.send_range(self.peer, &[], range, 1).expect("room");
                to_send -= 1;
                room -= 1;
            }
            self.messages.poll(16, |event| match event {
                Event::Completion { result, .. } => {
                    result.expect("it arrives");
                    room += 1;
                    left -= 1;
                }
                Event::Message(message) => {
                    assert!(matches!(message.body, Body::Range { length: LONG, .. }));
                    left -= 1;
                }
                _ => {}
            });
        }
        self.barrier.wait();
        each(start, LONGS)
    }
}

/// Nanoseconds for each of `number`.
fn each(start: Instant, number: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / number as f64
}

fn report(name: &str, firsts: Vec<f64>, seconds: Vec<f64>) {
    let (a, b) = (tenth(firsts), tenth(seconds));
    println!("{name:44} {a:10.1} ns {b:10.1} ns  ratio {:.3}", b / a);
}

/// The tenth percentile.
fn tenth(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

/// Both ends on one thread: what the processor does for a message, without the wait for the other.
fn on_one_thread(transport: &ShmTransport, turns: usize) {
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh broker");
    let (mut bare, mut bare_other) = (open(), open());
    let bare_peer = bare.connect_within(bare_other.address(), PATIENCE).expect("there");
    let mut messages = Messages::new(open(), Options::default());
    let mut other = Messages::new(open(), Options::default());
    let address = other.endpoint().address();
    let peer = messages.endpoint().connect_within(address, PATIENCE).expect("there");
    let region = messages.endpoint().register(LONG).expect("memory");
    let share = messages.share(&region);
    let source = bare_other.register(LONG).expect("memory");
    let into = bare.register(LONG).expect("memory");
    let range = LocalRange::whole(&source);
    let key = bare_other.grant_within(range, Audience::Partition, Access::READ, PATIENCE);
    let target = Target::new(key.expect("a grant"), 0);
    bare.resolve_within(bare_peer, target.key, PATIENCE).expect("a key in force");
    let body = [1; 64];
    let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
    let (mut gets, mut longs) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let start = Instant::now();
        let mut heard = 0;
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                bare.send_short(bare_peer, BARE, &[&body]).expect("room");
            }
            bare_other.poll(BATCH, &mut |event| {
                if let FabricEvent::Message(message) = event {
                    heard += message.payload.len();
                }
            });
        }
        firsts.push(each(start, BATCHES * BATCH));
        assert_eq!(heard, 64 * BATCHES * BATCH);
        let start = Instant::now();
        let mut heard = 0;
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                let _ = messages.send(peer, &[], &[&body], 1).expect("room");
            }
            other.poll(BATCH + 1, |event| {
                if let Event::Message(message) = event {
                    heard += message.body.length();
                }
            });
            messages.poll(1, |_| {});
        }
        seconds.push(each(start, BATCHES * BATCH));
        assert_eq!(heard, (64 * BATCHES * BATCH) as u64);
        let start = Instant::now();
        for _ in 0..LONGS {
            let into = LocalRange::whole(&into);
            let _ = bare.get(bare_peer, target, into, Operation::new(1)).expect("resolved");
        }
        gets.push(each(start, LONGS));
        let start = Instant::now();
        let mut done = 0;
        for _ in 0..LONGS {
            let _ = messages.send_range(peer, &[], (share, 0, LONG), 1).expect("room");
            other.poll(16, |_| {});
            messages.poll(16, |event| {
                done += usize::from(matches!(event, Event::Completion { .. }));
            });
        }
        longs.push(each(start, LONGS));
        assert_eq!(done, LONGS);
    }
    report("one thread: 64 B", firsts, seconds);
    report("one thread: 1 MiB", gets, longs);
}

/// Turns that are not counted.
const WARM_UP: usize = 3;
const BATCH: usize = 8;
const BATCHES: usize = 200;
