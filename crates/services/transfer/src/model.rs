//! A transfer of one large file over a long way, in virtual time: both machines, a link, and the
//! stages of both ends with their rates.
//!
//! It shows what blocks, streams and the window do to the use of a link (NUMA-RDMA#wide-area,
//! figures 13 and 14). The same setup gives the same figures, to the last digit. A stream's thread
//! is busy with a block for a fixed time and until the link has taken it; readers and writers have
//! rates of their own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

use crate::checksum::Leaf;
use crate::entry::{FileId, Kind, Metadata};
use crate::message::{Block, Message, Steadiness};
use crate::path::TreePath;
use crate::source::{BlockNumber, Job, Limits, Source};
use crate::target::{Finished, Made, Store, Stored, Target, TargetOptions, Task};
use crate::window::Window;

const SECOND_NS: u128 = 1_000_000_000;

/// The parameters of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Bits a second of the link.
    pub bits_per_second: u64,
    /// Nanoseconds from one end to the other.
    pub one_way_ns: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Streams.
    pub streams: usize,
    /// Most blocks that are granted at a time.
    pub window: u32,
    /// Bytes a second that one reader loads, and one writer stores.
    pub disk_bytes_per_second: u64,
    /// Readers, and writers.
    pub threads: usize,
    /// Nanoseconds of a processor for each block, at each end.
    pub block_ns: u64,
}

/// The result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Nanoseconds from the first message to the last.
    pub took_ns: u64,
    /// Bytes a second over all.
    pub bytes_per_second: u64,
    /// Bytes a second of the second half, when the window is full.
    pub steady_bytes_per_second: u64,
    /// The most blocks that were granted at a time.
    pub window: u32,
    /// Messages of both ends, blocks not counted.
    pub messages: u64,
    /// Nanoseconds of a processor for blocks, at each end.
    pub processor_ns: u64,
}

enum Event {
    ToTarget(Message),
    ToSource(Message),
    Loaded(BlockNumber, Leaf),
    Sent(usize),
    Arrived(Block),
    Stored(Vec<Store>),
}

struct Run {
    setup: Setup,
    now: u64,
    next: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    source: Source,
    target: Target,
    readers: Pool<(BlockNumber, Leaf)>,
    writers: Pool<Vec<Store>>,
    streams: Pool<Block>,
    link_free_at: u64,
    figures: Figures,
    half_at: u64,
    arrived: u64,
}

/// Threads, and what waits for one.
struct Pool<T> {
    free: usize,
    waiting: VecDeque<T>,
}

impl<T> Pool<T> {
    fn new(count: usize) -> Self {
        Self { free: count, waiting: VecDeque::new() }
    }

    fn next(&mut self) -> Option<T> {
        if self.free == 0 {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.free -= 1;
        Some(next)
    }
}

fn time_ns(amount: u64, per_second: u64) -> u64 {
    let time = u128::from(amount) * SECOND_NS / u128::from(per_second.max(1));
    u64::try_from(time).unwrap_or(u64::MAX)
}

fn rate(bytes: u64, nanoseconds: u64) -> u64 {
    let rate = u128::from(bytes) * SECOND_NS / u128::from(nanoseconds.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Simulates a transfer.
///
/// # Panics
/// When a number of the setup is 0.
#[must_use]
pub fn run(setup: &Setup) -> Figures {
    let limits = Limits { blocks: setup.window.max(1), ..Limits::default() };
    let options = TargetOptions::default();
    let window = Window::new(4, setup.window);
    let mut run = Run {
        setup: *setup,
        now: 0,
        next: 0,
        queue: BinaryHeap::new(),
        events: BTreeMap::new(),
        source: Source::new(setup.block_bytes, limits),
        target: Target::new(options, limits, window, HashMap::new()),
        readers: Pool::new(setup.threads),
        writers: Pool::new(setup.threads),
        streams: Pool::new(setup.streams),
        link_free_at: 0,
        figures: Figures::default(),
        half_at: 0,
        arrived: 0,
    };
    let id = FileId { size: setup.bytes, ..FileId::default() };
    let path = TreePath::new("file").expect("a name");
    run.source.entry(path, Metadata::default(), Kind::File(id), false);
    run.source.walk_end();
    run.target.begin();
    run.play()
}

impl Run {
    fn play(mut self) -> Figures {
        loop {
            self.put_out();
            if self.source.is_over() {
                break;
            }
            let Reverse((at, number)) = self.queue.pop().expect("a transfer has an end");
            self.now = at;
            let event = self.events.remove(&number).expect("each has its event");
            self.happens(event);
        }
        let mut figures = self.figures;
        figures.took_ns = self.now;
        figures.bytes_per_second = rate(self.setup.bytes, self.now);
        let rest = self.setup.bytes - self.setup.bytes / 2;
        figures.steady_bytes_per_second = rate(rest, self.now - self.half_at);
        figures.window = self.target.window();
        figures
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.queue.push(Reverse((self.now + delay, self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::ToTarget(message) => self.target.message(message).expect("it is ours"),
            Event::ToSource(message) => self.source.message(message).expect("it is ours"),
            Event::Loaded(block, leaf) => {
                self.readers.free += 1;
                let loaded = vec![Ok((leaf, Steadiness::Same))];
                let block = self.source.loaded(block, loaded).expect("all is read");
                self.streams.waiting.push_back(block);
            }
            Event::Sent(count) => self.streams.free += count,
            Event::Arrived(block) => {
                self.arrived += block.payload();
                if self.half_at == 0 && self.arrived >= self.setup.bytes / 2 {
                    self.half_at = self.now;
                }
                self.figures.processor_ns += self.setup.block_ns;
                let stores = self.target.block(&block).expect("it was granted");
                self.writers.waiting.push_back(stores);
            }
            Event::Stored(stores) => {
                self.writers.free += 1;
                for store in stores {
                    self.target.stored(store.number, store.leaf, Stored::Written);
                }
                self.target.freed();
            }
        }
    }

    fn put_out(&mut self) {
        self.source.flush_entries();
        let way = self.setup.one_way_ns;
        while let Some(message) = self.source.poll_message() {
            self.figures.messages += 1;
            self.after(way, Event::ToTarget(message));
        }
        while let Some(job) = self.source.poll_job(true) {
            self.begin(job);
        }
        while let Some((block, leaf)) = self.readers.next() {
            let time = time_ns(leaf.length.into(), self.setup.disk_bytes_per_second);
            self.after(time, Event::Loaded(block, leaf));
        }
        while let Some(block) = self.streams.next() {
            // The thread prepares the block, then the link takes it behind those of others.
            let ready = self.now + self.setup.block_ns;
            let time = time_ns(block.payload() * 8, self.setup.bits_per_second);
            self.link_free_at = self.link_free_at.max(ready) + time;
            let sent = self.link_free_at - self.now;
            self.after(sent, Event::Sent(1));
            self.after(sent + way, Event::Arrived(block));
        }
        while let Some(stores) = self.writers.next() {
            let bytes = stores.iter().map(|store| u64::from(store.leaf.length)).sum();
            let time = time_ns(bytes, self.setup.disk_bytes_per_second) + self.setup.block_ns;
            self.after(time, Event::Stored(stores));
        }
        while let Some(task) = self.target.poll_task() {
            match task {
                Task::Finish { entry, .. } => {
                    self.target.finished(entry.number, Finished::Installed(None));
                }
                Task::Make(entry) => self.target.made(&entry, Made::There(None)),
                Task::Sync => self.target.synced(Ok(())),
                _ => unreachable!("there is one file"),
            }
        }
        while let Some(message) = self.target.poll_message() {
            if message != Message::Ready {
                self.figures.messages += 1;
                self.after(way, Event::ToSource(message));
            }
        }
        while self.target.poll_event().is_some() || self.source.poll_event().is_some() {}
    }

    fn begin(&mut self, job: Job) {
        match job {
            Job::Load { block, pieces } => {
                let [piece] = pieces.as_slice() else { unreachable!("there is one file") };
                let hash = 1 + u128::from(piece.offset);
                let leaf = Leaf { offset: piece.offset, length: piece.length, hash };
                self.readers.waiting.push_back((block, leaf));
            }
            Job::Close { number, .. } => self.source.closed(number, Steadiness::Same),
            Job::Map { .. } => unreachable!("the file has no holes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way of NUMA-RDMA#wide-area: 40 Gbit/s, 95 ms there and back.
    fn long_way(block_bytes: u32, streams: usize, window_bytes: u64) -> Setup {
        Setup {
            bits_per_second: 40_000_000_000,
            one_way_ns: 47_500_000,
            bytes: 32 << 30,
            block_bytes,
            streams,
            window: u32::try_from(window_bytes / u64::from(block_bytes)).expect("small"),
            disk_bytes_per_second: 3_000_000_000,
            threads: 4,
            block_ns: 5_000,
        }
    }

    #[test]
    fn a_window_of_bandwidth_times_delay_fills_the_link() {
        for (block, streams) in [(1 << 20, 2), (4 << 20, 1), (4 << 20, 4), (16 << 20, 2)] {
            let figures = run(&long_way(block, streams, 1 << 30));
            // 97 % of the link, once the window is full.
            let steady = figures.steady_bytes_per_second;
            assert!(steady >= 4_850_000_000, "{block}, {streams}: {figures:?}");
        }
    }

    #[test]
    fn a_smaller_window_moves_itself_in_each_round_trip() {
        let figures = run(&Setup { bytes: 16 << 30, ..long_way(1 << 20, 2, 64 << 20) });
        let expected = rate(64 << 20, 95_000_000);
        let steady = figures.steady_bytes_per_second;
        assert!(steady.abs_diff(expected) < expected / 20, "{figures:?}, {expected}");
    }

    #[test]
    fn a_slow_disk_sets_the_pace_and_the_memory_stays() {
        let slow = Setup {
            disk_bytes_per_second: 100_000_000,
            threads: 1,
            bytes: 4 << 30,
            ..long_way(1 << 20, 1, 1 << 30)
        };
        let figures = run(&slow);
        let steady = figures.steady_bytes_per_second;
        assert!((98_000_000..=100_000_000).contains(&steady), "{figures:?}");
        assert_eq!(run(&slow), figures, "the same figures each time");
    }
}
