//! Fails every link of `torus:8x8x8` on its own, then 100 pairs of links, amid traffic, and demands
//! every message: `cargo run --release -p weft-network --example
//! failures_amid_traffic [TOPOLOGY]`.
//!
//! Each host sends [`EACH`] messages to hosts at random. A link is cut while they are on their way.
//! Senders keep what has not arrived, and send it again; some time after the cut there are new
//! routes. Ends with an error at the first failure behind which a message is missing. Prints how
//! many were on the links that were cut.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_network::time::{MICROSECOND, NANOSECOND, Time};
use weft_network::{Message, Network, Outcome, Settings};
use weft_routing::{Algorithm, Routes};
use weft_topology::{End, Graph, Shape, Vertex};

/// The seed of the traffic and of the pairs.
const SEED: u64 = 24;
/// Messages of each host.
const EACH: u64 = 16;
/// Bytes of a message: three packets.
const BYTES: u64 = 1_200;
/// The links are cut while all hosts send.
const CUT_AT: Time = 600 * NANOSECOND;
/// From the cut to the new routes.
const REROUTE_AFTER: Time = 20 * MICROSECOND;
/// From the loss to the next time that the sender sends.
const RESEND_AFTER: Time = 5 * MICROSECOND;
/// A message is sent again so often at most.
const RESENDS_MAX: u32 = 100;

#[derive(Default)]
struct Tally {
    failures: u32,
    arrived: u64,
    lost_at_first: u64,
}

/// A network amid its traffic, and the messages that wait to be sent again, by time.
struct Run {
    network: Network,
    again: Vec<(Time, Message)>,
    tries: Vec<u32>,
    arrived: Vec<bool>,
    lost: u64,
}

impl Run {
    fn new(graph: &Graph, routes: &Routes, hosts: &[Vertex], seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let route = Box::new(routes.clone());
        let mut network =
            Network::new(graph.clone(), route, Settings::default()).expect("sound settings");
        let mut tag = 0;
        for _ in 0..EACH {
            for from in hosts {
                let to = hosts[random.random_range(0..hosts.len())].into();
                network
                    .send(Message { from: *from, to, bytes: BYTES, class: 0, tag })
                    .expect("room");
                tag += 1;
            }
        }
        let count = hosts.len() * usize::try_from(EACH).expect("few");
        let (tries, arrived) = (vec![0; count], vec![false; count]);
        Self { network, again: Vec::new(), tries, arrived, lost: 0 }
    }

    /// Lets time pass until `until`, or until nothing is left to do.
    fn pass(&mut self, until: Time) {
        loop {
            let next = self.again.iter().map(|(time, _)| *time).min();
            let stop = next.map_or(until, |time| time.min(until));
            let outcome = match next {
                None if until == Time::MAX => self.network.run_out(),
                _ => self.network.run(stop),
            };
            match outcome {
                Some(outcome) => self.ended(outcome),
                None if stop == until => return,
                None => self.send_again(stop),
            }
        }
    }

    fn ended(&mut self, outcome: Outcome) {
        let message = *outcome.message();
        let place = usize::try_from(message.tag).expect("few");
        match outcome {
            Outcome::Delivered { .. } => {
                assert!(!self.arrived[place], "{message:?} arrived twice");
                self.arrived[place] = true;
            }
            Outcome::Lost { at, .. } => {
                self.lost += u64::from(self.tries[place] == 0);
                self.tries[place] += 1;
                assert!(self.tries[place] <= RESENDS_MAX, "{message:?} does not arrive");
                self.again.push((at + RESEND_AFTER, message));
            }
        }
    }

    fn send_again(&mut self, time: Time) {
        let (due, later) = self.again.drain(..).partition(|(at, _)| *at <= time);
        self.again = later;
        for (_, message) in due {
            self.network.send(message).expect("room");
        }
    }
}

fn fail(graph: &Graph, whole: &Routes, links: &[End], tally: &mut Tally) {
    let hosts: Vec<Vertex> = graph.hosts().collect();
    let mut run = Run::new(graph, whole, &hosts, SEED + u64::from(tally.failures));
    run.pass(CUT_AT);
    for (vertex, port) in links {
        assert!(run.network.cut(*vertex, *port), "there is a link");
    }
    run.pass(CUT_AT + REROUTE_AFTER);
    let routes = whole.recompute(run.network.graph()).expect("routes");
    run.network.set_route(Box::new(routes)).expect("as many channels");
    run.pass(Time::MAX);
    let missing = run.arrived.iter().filter(|arrived| !**arrived).count();
    assert_eq!(missing, 0, "{links:?}: messages are missing");
    tally.failures += 1;
    tally.arrived += u64::try_from(run.arrived.len()).expect("few");
    tally.lost_at_first += run.lost;
}

fn print(name: &str, tally: &Tally) {
    let Tally { failures, arrived, lost_at_first } = tally;
    println!(
        "{name}: {failures} failures, {arrived} messages arrived once each, of which the cut took \
         {lost_at_first} the first time"
    );
}

fn main() {
    let shape = std::env::args().nth(1).unwrap_or_else(|| "torus:8x8x8".to_owned());
    let graph = shape.parse::<Shape>().expect("a shape").graph(None).expect("a graph");
    let whole = Routes::compute(&graph, Algorithm::Auto).expect("routes");
    let links: Vec<End> = graph.links().map(|(end, _, _)| end).collect();
    let mut single = Tally::default();
    for link in &links {
        fail(&graph, &whole, &[*link], &mut single);
    }
    print("one link", &single);
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut double = Tally::default();
    for _ in 0..100 {
        let pair = [0, 1].map(|_| links[random.random_range(0..links.len())]);
        fail(&graph, &whole, &pair, &mut double);
    }
    print("two links", &double);
}
