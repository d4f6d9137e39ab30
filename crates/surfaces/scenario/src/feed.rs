//! The messages of a workload, as a run asks for them.

use std::collections::{HashMap, VecDeque};
use std::iter::Peekable;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use weft_network::Message;
use weft_network::time::Time;
use weft_network::traffic::{OpenLoop, Traffic};
use weft_topology::Vertex;

use crate::scenario::{ClosedPace, Scenario, Workload, tag_of};

/// A source of messages.
pub(crate) enum Feed<'a> {
    /// Messages at times, whether or not earlier ones have ended.
    Timed(Peekable<Box<dyn Iterator<Item = (Time, Message)> + 'a>>),
    Closed(Box<Closed<'a>>),
}

/// Hosts that send their next message when earlier ones have ended.
pub(crate) struct Closed<'a> {
    traffic: &'a Traffic,
    model: Message,
    messages: u32,
    pace: ClosedPace,
    /// The number of the next message of each host, and its messages on their way.
    next: Vec<u32>,
    under_way: Vec<u32>,
    all_under_way: u64,
    /// The messages of each host that a barrier lets pass, less one.
    round: u32,
    /// Hosts that may send now.
    ready: VecDeque<u32>,
    random: ChaCha8Rng,
    tag: u64,
    host_of: HashMap<Vertex, u32>,
}

impl<'a> Feed<'a> {
    /// The messages of a group in a run.
    pub fn new(scenario: &'a Scenario, group: usize, run: usize) -> Self {
        // Groups draw other numbers, and the first one those of a scenario that has one alone.
        let seed = scenario.settings.seed ^ tag_of(group, 0);
        let workload = &scenario.groups[group].workload;
        match workload {
            Workload::Open { traffic, bytes, class, .. } => {
                let rate = offered(scenario, workload.load(run).unwrap_or(100));
                let end = scenario.timing.warmup + scenario.timing.measure;
                let open = OpenLoop::new(traffic.clone(), *bytes, *class, rate, seed);
                let timed: Box<dyn Iterator<Item = _>> =
                    Box::new(open.take_while(move |(time, _)| *time < end));
                Self::Timed(timed.peekable())
            }
            Workload::Trace(messages) => {
                let timed: Box<dyn Iterator<Item = _>> = Box::new(messages.iter().copied());
                Self::Timed(timed.peekable())
            }
            Workload::Closed { traffic, bytes, class, messages, pace } => {
                let model = Message { from: 0, to: 0.into(), bytes: *bytes, class: *class, tag: 0 };
                Self::Closed(Box::new(Closed::new(traffic, model, *messages, *pace, seed)))
            }
        }
    }

    /// When the next message is due, if any is before others have ended.
    pub fn next_time(&mut self, now: Time) -> Option<Time> {
        match self {
            Self::Timed(messages) => messages.peek().map(|(time, _)| *time),
            Self::Closed(closed) => (!closed.ready.is_empty()).then_some(now),
        }
    }

    /// Takes a message that is due.
    pub fn take(&mut self, now: Time) -> Option<Message> {
        match self {
            Self::Timed(messages) => {
                messages.next_if(|(time, _)| *time <= now).map(|(_, message)| message)
            }
            Self::Closed(closed) => closed.take(),
        }
    }

    /// A message ended, delivered or not, for the host that sent it.
    pub fn ended(&mut self, from: Vertex) {
        if let Self::Closed(closed) = self
            && let Some(host) = closed.host_of.get(&from).copied()
        {
            closed.ended(host);
        }
    }
}

/// The bytes of payload that each host offers in a second, at a load in percent of what a link
/// moves.
pub(crate) fn offered(scenario: &Scenario, load: u32) -> u64 {
    let settings = &scenario.settings;
    let wire = u128::from(settings.link.bits_per_second / 8) * u128::from(load) / 100;
    let payload = wire * u128::from(settings.mtu_bytes) / u128::from(settings.packet_bytes());
    u64::try_from(payload).unwrap_or(u64::MAX)
}

impl<'a> Closed<'a> {
    fn new(
        traffic: &'a Traffic,
        model: Message,
        messages: u32,
        pace: ClosedPace,
        seed: u64,
    ) -> Self {
        let hosts = traffic.hosts();
        let count = usize::try_from(hosts).unwrap_or(usize::MAX);
        Self {
            traffic,
            model,
            messages,
            pace,
            next: vec![0; count],
            under_way: vec![0; count],
            all_under_way: 0,
            round: 0,
            ready: if messages == 0 { VecDeque::new() } else { (0..hosts).collect() },
            random: ChaCha8Rng::seed_from_u64(seed),
            tag: 0,
            host_of: (0..hosts).map(|host| (traffic.vertex(host), host)).collect(),
        }
    }

    fn take(&mut self) -> Option<Message> {
        loop {
            while let Some(host) = self.ready.pop_front() {
                let place = place(host);
                let sequence = u64::from(self.next[place]);
                self.next[place] += 1;
                let to = self.traffic.destination(host, sequence, &mut self.random);
                if to.is_some() {
                    self.under_way[place] += 1;
                    self.all_under_way += 1;
                }
                if self.may_send(host) {
                    self.ready.push_back(host);
                }
                if let Some(to) = to {
                    self.tag += 1;
                    let from = self.traffic.vertex(host);
                    return Some(Message { from, to: to.into(), tag: self.tag - 1, ..self.model });
                }
            }
            if !self.next_round() {
                return None;
            }
        }
    }

    fn may_send(&self, host: u32) -> bool {
        let place = place(host);
        self.next[place] < self.messages
            && match self.pace {
                ClosedPace::Window(window) => self.under_way[place] < window,
                ClosedPace::Barrier => self.next[place] <= self.round,
            }
    }

    fn ended(&mut self, host: u32) {
        let had_to_wait = !self.may_send(host);
        self.under_way[place(host)] -= 1;
        self.all_under_way -= 1;
        if had_to_wait && self.may_send(host) {
            self.ready.push_back(host);
        }
        self.next_round();
    }

    /// Begins the next round if all messages of the last have ended. False if none begins.
    fn next_round(&mut self) -> bool {
        let is_over = self.all_under_way == 0 && self.ready.is_empty();
        if self.pace != ClosedPace::Barrier || !is_over || self.round + 1 >= self.messages {
            return false;
        }
        self.round += 1;
        self.ready = (0..self.traffic.hosts()).collect();
        true
    }
}

/// The place of a host in a table.
fn place(host: u32) -> usize {
    // Targets have pointers of 32 bits or more.
    host as usize
}

#[cfg(test)]
mod tests {
    use weft_network::traffic::Pattern;
    use weft_topology::Shape;

    use super::*;

    fn sent(pace: ClosedPace, ends: usize) -> Vec<(u32, u32)> {
        let graph = "full:3".parse::<Shape>().expect("a shape").graph(None).expect("a graph");
        let traffic = Traffic::new(&graph, Pattern::AllToAll).expect("it fits");
        let model = Message { from: 0, to: 0.into(), bytes: 1, class: 0, tag: 0 };
        let mut closed = Closed::new(&traffic, model, 3, pace, 1);
        let mut sent = Vec::new();
        for end in 0..=ends {
            while let Some(message) = closed.take() {
                sent.push((message.from, message.to.host().expect("a host")));
            }
            if end < ends {
                closed.ended(u32::try_from(end % 3).expect("small"));
            }
        }
        sent
    }

    #[test]
    fn a_host_keeps_its_window_full() {
        let first = [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)];
        assert_eq!(sent(ClosedPace::Window(2), 0), first);
        assert_eq!(sent(ClosedPace::Window(2), 1)[6..], [(0, 1)]);
        assert_eq!(sent(ClosedPace::Window(2), 6).len(), 9);
    }

    #[test]
    fn a_barrier_holds_all_hosts_until_the_last_message_of_a_round_ended() {
        assert_eq!(sent(ClosedPace::Barrier, 2), [(0, 1), (1, 2), (2, 0)]);
        assert_eq!(sent(ClosedPace::Barrier, 3)[3..], [(0, 2), (1, 0), (2, 1)]);
        assert_eq!(sent(ClosedPace::Barrier, 9).len(), 9);
    }
}
