//! The traffic of links while a run goes on, to be looked at later.
//!
//! # Invariants
//! - A recording has at most [`FRAMES_MAX`] frames, and fewer of many links: when it is full, every
//!   other one is left out, and the time between two doubles.
//! - To record changes nothing of a run.

use weft_network::Counts;
use weft_network::time::{MICROSECOND, NANOSECOND, Time};
use weft_topology::Graph;

/// Frames of a run.
pub const FRAMES_MAX: usize = 512;
/// Links of all frames together.
const LINKS_MAX: usize = 4_000_000;
/// Frames at least, of however many links.
const FRAMES_LEAST: usize = 16;
/// The time between two frames at first.
const EVERY: Time = MICROSECOND / 4;

/// A network, and its links at several times.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recording {
    /// The names of the nodes.
    pub nodes: Vec<String>,
    /// The links: place and port of both ends.
    pub links: Vec<(u32, u16, u32, u16)>,
    /// What was seen, in the order of time.
    pub frames: Vec<Frame>,
}

/// The links at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The virtual time, in nanoseconds.
    pub at_ns: u64,
    /// Bytes that each link moved since the start of the run, both directions together.
    pub bytes: Vec<u64>,
    /// Whether each link is cut, or leads to a node that is down.
    pub is_cut: Vec<bool>,
}

/// A recording that is being made.
#[derive(Debug)]
pub(crate) struct Recorder {
    recording: Recording,
    every: Time,
    frames_max: usize,
}

impl Recorder {
    pub fn new(graph: &Graph) -> Self {
        let names = (0..graph.vertices()).map(|vertex| graph.name(vertex));
        let links = graph.links().map(|((from, port), (to, far), _)| (from, port, to, far));
        let many = LINKS_MAX / graph.links().count().max(1);
        let recording =
            Recording { nodes: names.collect(), links: links.collect(), frames: Vec::new() };
        Self { recording, every: EVERY, frames_max: many.clamp(FRAMES_LEAST, FRAMES_MAX) }
    }

    /// Adds a frame. `counts` has the traffic out of each port, vertex by vertex; empty if it is
    /// not counted. Returns the time of the next one.
    pub fn add(&mut self, now: Time, graph: &Graph, reachable: &Graph, counts: &[Counts]) -> Time {
        let mut starts = Vec::new();
        let mut place = 0_usize;
        for vertex in 0..graph.vertices() {
            starts.push(place);
            place += usize::from(graph.ports(vertex));
        }
        let of = |vertex: u32, port: u16| {
            let start = usize::try_from(vertex).ok().and_then(|vertex| starts.get(vertex));
            start.and_then(|start| counts.get(start + usize::from(port))).map_or(0, |one| one.bytes)
        };
        let links = &self.recording.links;
        let bytes = links.iter().map(|(from, port, to, far)| of(*from, *port) + of(*to, *far));
        let cut = |(from, port, ..): &(u32, u16, u32, u16)| {
            reachable.wired(*from, *port).is_none() || reachable.is_cut(*from, *port)
        };
        let frame = Frame {
            at_ns: now / NANOSECOND,
            bytes: bytes.collect(),
            is_cut: links.iter().map(cut).collect(),
        };
        self.recording.frames.push(frame);
        if self.recording.frames.len() >= self.frames_max {
            let mut number = 0;
            self.recording.frames.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
        now + self.every
    }

    pub fn end(self) -> Recording {
        self.recording
    }
}

#[cfg(test)]
mod tests {
    use crate::{FRAMES_MAX, Report, Scenario};

    const SCENARIO: &str = r#"
        topology = "torus:4x4"
        [traffic]
        pattern = "uniform"
        message_bytes = 496
        loads = [40]
        [run]
        warmup_ns = 100_000
        measure_ns = 100_000
        [[fault]]
        kind = "cut"
        link = ["n0", "n1"]
        at_ns = 50_000
        for_ns = 50_000
    "#;

    #[test]
    fn a_recording_changes_nothing_and_shows_traffic_and_cuts() {
        let mut scenario = Scenario::parse(SCENARIO, |_| unreachable!()).expect("a scenario");
        let plain = Report::run(&scenario, &mut |_| {}).expect("it runs");
        assert_eq!(plain.points[0].recording, None);
        scenario.record();
        let recorded = Report::run(&scenario, &mut |_| {}).expect("it runs");
        assert_eq!(plain.json(), recorded.json());
        let seen = recorded.points[0].recording.as_ref().expect("it was recorded");
        assert_eq!((seen.nodes.len(), seen.links.len()), (16, 32));
        assert!(
            (FRAMES_MAX / 4..=FRAMES_MAX).contains(&seen.frames.len()),
            "{}",
            seen.frames.len()
        );
        let times = seen.frames.iter().map(|frame| frame.at_ns);
        assert!(times.is_sorted_by(|one, other| one < other));
        let cut = |at: std::ops::Range<u64>| {
            let frames = seen.frames.iter().filter(move |frame| at.contains(&frame.at_ns));
            frames.map(|frame| frame.is_cut.iter().filter(|cut| **cut).count()).max()
        };
        assert_eq!(
            (cut(0..50_000), cut(51_000..99_000), cut(101_000..200_000)),
            (Some(0), Some(1), Some(0))
        );
        for (before, after) in seen.frames.iter().zip(&seen.frames[1..]) {
            assert!(before.bytes.iter().zip(&after.bytes).all(|(before, after)| before <= after));
        }
        assert!(seen.frames.last().is_some_and(|last| last.bytes.iter().all(|bytes| *bytes > 0)));
    }
}
