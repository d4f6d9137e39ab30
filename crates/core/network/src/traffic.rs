//! Traffic: which host sends to which, and when.
//!
//! The patterns are those of Dally and Towles, section 3.2. On a grid they move the coordinates; on
//! other graphs the hosts count as a row, or as a square for the transpose.

use std::collections::HashMap;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thiserror::Error;
use weft_topology::{Graph, Layout, Vertex};

use crate::arena::index;
use crate::packet::Message;
use crate::time::{SECOND, Time};

/// The destination of each host's messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Any other host, each as likely.
    Uniform,
    /// The host with the coordinates in reverse order.
    Transpose,
    /// In each dimension of `k` hosts, `ceil(k / 2) - 1` further: as far as a shortest way goes in
    /// one direction.
    Tornado,
    /// A host that is next to the sender in one dimension, each as likely. In a row the next host.
    Neighbour,
    /// One host, the `host`th of all, for `percent` of the messages; any other host for the rest.
    Hotspot {
        /// The place of the destination among the hosts.
        host: u32,
        /// Of a hundred messages, so many.
        percent: u8,
    },
    /// One host, the `host`th of all. It sends nothing itself.
    Incast {
        /// The place of the destination among the hosts.
        host: u32,
    },
    /// All other hosts in turn, beginning with the next.
    AllToAll,
}

/// Why a pattern does not fit a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PatternError {
    /// There is no sender, or one without another host to send to.
    #[error("traffic needs a host that sends and another one that it sends to")]
    Alone,
    /// The sizes of the grid change when they are reversed, or the number of hosts is no square.
    #[error("the transpose needs a grid that is as wide as high, or a square number of hosts")]
    NotSquare,
    /// There is no such host.
    #[error("there is no host {host} among the {hosts}, counted from 0")]
    NoHost {
        /// The host that was named.
        host: u32,
        /// The number of hosts.
        hosts: u32,
    },
    /// It moves coordinates, which some of the hosts do not have among themselves.
    #[error("transpose, tornado and neighbour are patterns of all hosts")]
    Some,
    /// More than all messages.
    #[error("{0} of a hundred messages are more than all; give 100 or less")]
    Percent(u8),
}

/// A pattern for the hosts of a graph, or for some that send to some.
#[derive(Clone, Debug)]
pub struct Traffic {
    pattern: Pattern,
    /// The hosts that send.
    hosts: Vec<Vertex>,
    /// Those that are sent to, and the place of each sender among them.
    to: Vec<Vertex>,
    own: Vec<Option<u32>>,
    /// The sizes of the dimensions in which the hosts stand; the first counts fastest.
    sizes: Vec<u32>,
    is_grid: bool,
}

impl Traffic {
    /// The pattern for the hosts of `graph`.
    ///
    /// # Errors
    /// [`PatternError`] if it does not fit.
    pub fn new(graph: &Graph, pattern: Pattern) -> Result<Self, PatternError> {
        let hosts: Vec<Vertex> = graph.hosts().collect();
        let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let grid = if let Layout::Grid(grid) = graph.layout() { Some(grid) } else { None };
        let mut sizes = grid.map_or_else(|| vec![count], |grid| grid.sizes().to_vec());
        if pattern == Pattern::Transpose && grid.is_none() {
            let side = count.isqrt();
            sizes = vec![side, count.checked_div(side).unwrap_or(0)];
        }
        let is_whole = sizes.iter().product::<u32>() == count;
        let reversed = sizes.iter().rev();
        if pattern == Pattern::Transpose && !(is_whole && sizes.iter().eq(reversed)) {
            return Err(PatternError::NotSquare);
        }
        let all = Self::of(hosts.clone(), hosts, pattern)?;
        Ok(Self { sizes, is_grid: grid.is_some(), ..all })
    }

    /// The pattern for messages from each of `from` to hosts of `to`. Hosts of patterns are counted
    /// among those of `to`.
    ///
    /// # Errors
    /// [`PatternError`] if it does not fit.
    pub fn among(
        from: Vec<Vertex>,
        to: Vec<Vertex>,
        pattern: Pattern,
    ) -> Result<Self, PatternError> {
        if matches!(pattern, Pattern::Transpose | Pattern::Tornado | Pattern::Neighbour) {
            return Err(PatternError::Some);
        }
        Self::of(from, to, pattern)
    }

    fn of(from: Vec<Vertex>, to: Vec<Vertex>, pattern: Pattern) -> Result<Self, PatternError> {
        let hosts = u32::try_from(to.len()).unwrap_or(u32::MAX);
        let places: HashMap<Vertex, u32> = to.iter().copied().zip(0..).collect();
        let own: Vec<_> = from.iter().map(|vertex| places.get(vertex).copied()).collect();
        let has_other = |own: &Option<u32>| hosts > u32::from(own.is_some());
        if own.is_empty() || !own.iter().all(has_other) {
            return Err(PatternError::Alone);
        }
        match pattern {
            Pattern::Hotspot { percent, .. } if percent > 100 => {
                return Err(PatternError::Percent(percent));
            }
            Pattern::Hotspot { host, .. } | Pattern::Incast { host } if host >= hosts => {
                return Err(PatternError::NoHost { host, hosts });
            }
            _ => {}
        }
        let sizes = vec![hosts];
        Ok(Self { pattern, hosts: from, to, own, sizes, is_grid: false })
    }

    /// The number of hosts that send.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)
    }

    /// The vertex of the `host`th host that sends.
    #[must_use]
    pub fn vertex(&self, host: u32) -> Vertex {
        self.hosts[index(host)]
    }

    /// The destination of message number `sequence` of the `from`th host. `None` if this host sends
    /// nothing.
    pub fn destination(&self, from: u32, sequence: u64, random: &mut impl Rng) -> Option<Vertex> {
        self.place_of_destination(from, sequence, random).map(|to| self.to[index(to)])
    }

    /// The same, as a place among the hosts that are sent to.
    fn place_of_destination(&self, from: u32, sequence: u64, random: &mut impl Rng) -> Option<u32> {
        let hosts = u32::try_from(self.to.len()).unwrap_or(u32::MAX);
        let own = self.own[index(from)];
        // The hosts that are not the sender itself.
        let others = hosts - u32::from(own.is_some());
        let uniform = |random: &mut dyn Rng| {
            let other = random.random_range(0..others);
            other + u32::from(own.is_some_and(|own| other >= own))
        };
        let to = match self.pattern {
            Pattern::Uniform => uniform(random),
            Pattern::Transpose => {
                let reversed: Vec<u32> = self.coordinates(from).into_iter().rev().collect();
                self.place(&reversed)
            }
            Pattern::Tornado => self.moved(from, |_, size| size.div_ceil(2) - 1),
            Pattern::Neighbour => self.neighbour(from, random),
            Pattern::Hotspot { host, percent } => {
                let hot = random.random_range(0..100) < percent;
                if hot && own != Some(host) { host } else { uniform(random) }
            }
            Pattern::Incast { host } => host,
            Pattern::AllToAll => {
                // Senders that are no receivers begin at different ones.
                let first = own.map_or(u64::from(from), |own| u64::from(own) + 1);
                let step = sequence % u64::from(others);
                u32::try_from((first + step) % u64::from(hosts)).unwrap_or(0)
            }
        };
        (own != Some(to)).then_some(to)
    }

    fn neighbour(&self, from: u32, random: &mut impl Rng) -> u32 {
        if !self.is_grid {
            return (from + 1) % self.hosts();
        }
        let wide: Vec<usize> = (0..self.sizes.len()).filter(|at| self.sizes[*at] > 1).collect();
        let dimension = wide[random.random_range(0..wide.len())];
        let back = random.random::<bool>();
        self.moved(from, |at, size| match at == dimension {
            true if back => size - 1,
            true => 1,
            false => 0,
        })
    }

    fn coordinates(&self, host: u32) -> Vec<u32> {
        let mut rest = host;
        let digit = |size: &u32| {
            let digit = rest % size;
            rest /= size;
            digit
        };
        self.sizes.iter().map(digit).collect()
    }

    fn place(&self, coordinates: &[u32]) -> u32 {
        let digits = coordinates.iter().zip(&self.sizes).rev();
        digits.fold(0, |place, (digit, size)| place * size + digit)
    }

    /// The host that is `by` further in each dimension, by its number and size.
    fn moved(&self, from: u32, by: impl Fn(usize, u32) -> u32) -> u32 {
        let mut coordinates = self.coordinates(from);
        for (dimension, (digit, size)) in coordinates.iter_mut().zip(&self.sizes).enumerate() {
            *digit = (*digit + by(dimension, *size)) % size;
        }
        self.place(&coordinates)
    }
}

/// Messages of one length that hosts send at random times, whether or not earlier ones arrived.
///
/// All hosts together draw the gap to the next message evenly from 0 to twice the mean, and then
/// the sender. So the messages of one host come nearly as a Poisson process, by integers alone.
#[derive(Clone, Debug)]
pub struct OpenLoop {
    traffic: Traffic,
    bytes: u64,
    class: u8,
    random: ChaCha8Rng,
    /// The mean gap between two messages of all hosts, and the time, in 2^-16 picoseconds.
    gap: u64,
    time: u64,
    sequences: Vec<u64>,
    tag: u64,
}

impl OpenLoop {
    /// Messages of `bytes` of each host with `bytes_per_second` on the average, from time 0 on. A
    /// host that sends nothing by the pattern leaves its share out.
    #[must_use]
    pub fn new(traffic: Traffic, bytes: u64, class: u8, bytes_per_second: u64, seed: u64) -> Self {
        let all = u128::from(bytes_per_second.max(1)) * u128::from(traffic.hosts());
        let gap = ((u128::from(bytes.max(1)) * u128::from(SECOND)) << 16) / all;
        Self {
            bytes,
            class,
            random: ChaCha8Rng::seed_from_u64(seed),
            gap: u64::try_from(gap).unwrap_or(u64::MAX / 4).clamp(1, u64::MAX / 4),
            time: 0,
            sequences: vec![0; traffic.hosts.len()],
            tag: 0,
            traffic,
        }
    }
}

impl Iterator for OpenLoop {
    type Item = (Time, Message);

    fn next(&mut self) -> Option<(Time, Message)> {
        // After 281 seconds of virtual time there are no more.
        self.time = self.time.checked_add(self.random.random_range(0..=2 * self.gap))?;
        loop {
            let from = self.random.random_range(0..self.traffic.hosts());
            let sequence = &mut self.sequences[index(from)];
            *sequence += 1;
            let to = self.traffic.destination(from, *sequence - 1, &mut self.random);
            self.tag += 1;
            if let Some(to) = to {
                let (bytes, class, tag) = (self.bytes, self.class, self.tag - 1);
                let (from, to) = (self.traffic.vertex(from), to.into());
                return Some((self.time >> 16, Message { from, to, bytes, class, tag }));
            }
            self.time = self.time.checked_add(self.random.random_range(0..=2 * self.gap))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_topology::layout::Grid;
    use weft_topology::{GraphBuilder, Kind};

    use super::*;

    fn traffic(sizes: &[u32], pattern: Pattern) -> Result<Traffic, PatternError> {
        let mut builder = GraphBuilder::new();
        builder.vertices(Kind::Host, sizes.iter().product(), 0).expect("room");
        let layout = Layout::Grid(Grid::new(sizes.to_vec(), true));
        Traffic::new(&builder.build(layout).expect("a graph"), pattern)
    }

    fn destinations(sizes: &[u32], pattern: Pattern) -> Vec<Option<u32>> {
        let traffic = traffic(sizes, pattern).expect("it fits");
        let mut random = ChaCha8Rng::seed_from_u64(1);
        (0..traffic.hosts()).map(|from| traffic.destination(from, 0, &mut random)).collect()
    }

    #[test]
    fn patterns_move_coordinates() {
        // Host x + 3 y goes to y + 3 x; the diagonal sends nothing.
        let transposed = [None, Some(3), Some(6), Some(1), None, Some(7), Some(2), Some(5), None];
        assert_eq!(destinations(&[3, 3], Pattern::Transpose), transposed);
        let tornado = destinations(&[5, 1], Pattern::Tornado);
        assert_eq!(tornado, [2, 3, 4, 0, 1].map(Some));
        let all = traffic(&[4], Pattern::AllToAll).expect("it fits");
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let to: Vec<_> = (0..4).map(|number| all.destination(2, number, &mut random)).collect();
        assert_eq!(to, [3, 0, 1, 3].map(Some));
        assert_eq!(destinations(&[3], Pattern::Incast { host: 1 }), [Some(1), None, Some(1)]);
    }

    #[test]
    fn some_hosts_send_to_some() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        // Host 2 is on both sides, and sends nothing to itself.
        let some = |pattern| Traffic::among(vec![1, 2, 3], vec![7, 2], pattern);
        let uniform = some(Pattern::Uniform).expect("it fits");
        let mut seen = [[false; 8]; 3];
        for _ in 0..100 {
            for from in 0..3 {
                let to = uniform.destination(from, 0, &mut random).expect("it sends");
                seen[index(from)][index(to)] = true;
            }
        }
        let places = |seen: [bool; 8]| seen.iter().filter(|seen| **seen).count();
        assert_eq!(seen.map(places), [2, 1, 2]);
        assert!(seen[0][2] && seen[0][7] && seen[1][7] && seen[2][2] && seen[2][7]);
        let all = some(Pattern::AllToAll).expect("it fits");
        let mut next = |from, number| all.destination(from, number, &mut random);
        assert_eq!([next(0, 0), next(0, 1), next(0, 2)], [7, 2, 7].map(Some));
        assert_eq!([next(1, 0), next(1, 1)], [7, 7].map(Some));
        assert_eq!(next(2, 0), Some(7));
        let incast = some(Pattern::Incast { host: 1 }).expect("it fits");
        let to: Vec<_> = (0..3).map(|from| incast.destination(from, 0, &mut random)).collect();
        assert_eq!(to, [Some(2), None, Some(2)]);
        let error = |from: &[u32], to: &[u32], pattern| {
            Traffic::among(from.to_vec(), to.to_vec(), pattern).map(|_| ())
        };
        assert_eq!(error(&[1], &[1], Pattern::Uniform), Err(PatternError::Alone));
        assert_eq!(error(&[], &[1], Pattern::Uniform), Err(PatternError::Alone));
        assert_eq!(error(&[1], &[2], Pattern::Tornado), Err(PatternError::Some));
        let none = Err(PatternError::NoHost { host: 1, hosts: 1 });
        assert_eq!(error(&[1], &[2], Pattern::Incast { host: 1 }), none);
    }

    #[test]
    fn random_patterns_keep_to_their_shares() {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let uniform = traffic(&[4, 4], Pattern::Uniform).expect("it fits");
        let hot = traffic(&[4, 4], Pattern::Hotspot { host: 3, percent: 50 }).expect("it fits");
        let near = traffic(&[4, 4], Pattern::Neighbour).expect("it fits");
        let (mut seen, mut hits) = ([0_u32; 16], 0);
        for _ in 0..16_000 {
            seen[index(uniform.destination(5, 0, &mut random).expect("it sends"))] += 1;
            hits += u32::from(hot.destination(5, 0, &mut random) == Some(3));
            let to = near.destination(5, 0, &mut random).expect("it sends");
            assert!([1, 4, 6, 9].contains(&to), "{to}");
        }
        assert_eq!(seen[5], 0);
        assert!(seen.iter().enumerate().all(|(at, n)| at == 5 || (900..1_250).contains(n)));
        assert!((8_000..9_000).contains(&hits), "half, and a fifteenth of the rest: {hits}");
    }

    #[test]
    fn patterns_that_do_not_fit_are_refused() {
        let error = |sizes: &[u32], pattern| traffic(sizes, pattern).map(|_| ());
        assert_eq!(error(&[4, 3], Pattern::Transpose), Err(PatternError::NotSquare));
        assert_eq!(error(&[1], Pattern::Uniform), Err(PatternError::Alone));
        let none = Err(PatternError::NoHost { host: 4, hosts: 4 });
        assert_eq!(error(&[4], Pattern::Incast { host: 4 }), none);
        let much = Pattern::Hotspot { host: 0, percent: 101 };
        assert_eq!(error(&[4], much), Err(PatternError::Percent(101)));
    }

    #[test]
    fn the_open_loop_keeps_its_rate() {
        let uniform = traffic(&[4, 4], Pattern::Uniform).expect("it fits");
        // 16 hosts with 1 GB/s of 500 bytes each: one message every 31.25 ns.
        let sent = OpenLoop::new(uniform, 500, 0, 1_000_000_000, 3).take(20_000);
        let times: Vec<Time> = sent.map(|(time, _)| time).collect();
        assert!(times.is_sorted());
        let last = times.last().copied().unwrap_or(0);
        assert!((612_000_000..638_000_000).contains(&last), "{last}");
    }
}
