//! Messages over a lane: both ends of the measurement, and how they come to their lane.
//!
//! A message that fits a slot is one. A longer one goes through the sink in pieces, each with a
//! slot that tells of it, as those of a direct socket do. Both ends poll and nobody sleeps.

use std::os::fd::AsFd;

use anyhow::{Context, bail, ensure};
use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, Lane, PATIENCE, ReceiveCursor, SendCursor, Standing,
    WaitFor,
};
use weft_lane::{Carrier, EndpointLane, Settings, Told};
use weft_memory::CopyMode;
use weft_transport_shm::lane::ShmLane;

use super::initiator::{Plan, Sample};
use super::near::{Near, Times, one_way, per, until};
use super::responder::Progress;
use super::{FarEnd, Surroundings};
use crate::arguments::PerfTest;

/// Payload of a slot, bytes. A longer message goes through the sink.
const SLOT_BYTES: usize = 120;
/// Bytes of a piece at most, as those of a direct socket.
const PIECE_BYTES: usize = 16 << 10;
/// A time stamp is taken for so many messages or bytes.
const MESSAGES_PER_STAMP: u64 = 64;
const BYTES_PER_STAMP: u64 = 1 << 20;
/// The wait for the lane is bounded by its time instead.
const LANE_WITHIN_NS: u64 = 5_000_000_000;

/// The kinds of messages, by their tags.
mod tag {
    /// A piece behind which more of the message follows.
    pub const PIECE: u8 = 1;
    /// Wants an answer of its own length.
    pub const PING: u8 = 2;
    pub const PONG: u8 = 3;
    pub const DATA: u8 = 4;
    /// Wants the number of data messages since the last such question.
    pub const COUNT: u8 = 5;
    pub const COUNTED: u8 = 6;
    pub const STOP: u8 = 7;
}

/// A delivery: a message of the line's length, or a few bytes that are none.
enum Came {
    Whole(u8),
    Word(u8, u64),
}

/// Messages of one length over a lane.
struct Line<L: Lane> {
    lane: L,
    sends: SendCursor,
    receives: ReceiveCursor,
    bytes: Vec<u8>,
    /// Bytes of the message at hand that are in the sink.
    put: usize,
    /// Bytes of those that no slot told of.
    untold: usize,
    landing: Vec<u8>,
    /// Bytes of the message that is coming in.
    came: usize,
}

impl<L: Lane> Line<L> {
    fn new(lane: L, size: u64) -> anyhow::Result<Self> {
        let size = usize::try_from(size)?;
        let (bytes, landing) = (vec![0x5a; size], vec![0; size]);
        let (sends, receives) = (SendCursor::default(), ReceiveCursor::default());
        Ok(Self { lane, sends, receives, bytes, put: 0, untold: 0, landing, came: 0 })
    }

    /// Sends a message of the line's length. False if there is no room; the next call goes on with
    /// the same one.
    fn send(&mut self, kind: u8) -> bool {
        let size = self.bytes.len();
        if size <= SLOT_BYTES {
            let sent = self.lane.send(&mut self.sends, kind, &[&self.bytes]).is_ok();
            return sent && self.told();
        }
        while self.put < size || self.untold > 0 {
            if self.untold == 0 {
                let piece = PIECE_BYTES.min(size - self.put);
                if self.lane.sink_free(&mut self.sends, piece as u64) < piece as u64 {
                    return false;
                }
                self.lane.put(&mut self.sends, &self.bytes[self.put..self.put + piece]);
                self.put += piece;
                self.untold = piece;
            }
            let kind = if self.put < size { tag::PIECE } else { kind };
            let length = (self.untold as u64).to_le_bytes();
            if self.lane.send(&mut self.sends, kind, &[&length]).is_err() {
                return false;
            }
            self.untold = 0;
            self.told();
        }
        self.put = 0;
        true
    }

    /// Sends a number; false if there is no room.
    fn say(&mut self, kind: u8, number: u64) -> bool {
        self.lane.send(&mut self.sends, kind, &[&number.to_le_bytes()]).is_ok() && self.told()
    }

    /// The look for a sleeper that follows every message of a lane. Its time is part of the price,
    /// although the peer never sleeps here.
    fn told(&self) -> bool {
        let _ = self.lane.must_ring(WaitFor::Data);
        true
    }

    /// The next message that is whole.
    fn take(&mut self) -> anyhow::Result<Option<Came>> {
        while let Ok(slot) = self.lane.peek(&self.receives) {
            let Some(slot) = slot else { return Ok(None) };
            let length = usize::from(slot.length);
            let is_word = matches!(slot.tag, tag::COUNT | tag::COUNTED | tag::STOP);
            if self.bytes.len() <= SLOT_BYTES && !is_word {
                ensure!(length == self.bytes.len(), "a message of {length} bytes came");
                self.lane.read(&self.receives, 0, &mut self.landing);
                self.lane.advance(&mut self.receives, false);
                return Ok(Some(Came::Whole(slot.tag)));
            }
            let mut word = [0; 8];
            self.lane.read(&self.receives, 0, &mut word);
            self.lane.advance(&mut self.receives, false);
            let word = u64::from_le_bytes(word);
            if is_word {
                return Ok(Some(Came::Word(slot.tag, word)));
            }
            let piece = usize::try_from(word).unwrap_or(usize::MAX);
            let rest = self.landing.len() - self.came;
            ensure!(piece <= rest.min(PIECE_BYTES), "a piece of {piece} bytes came for {rest}");
            let target = &mut self.landing[self.came..self.came + piece];
            self.lane.view(&self.receives, 0, target);
            self.lane.release(&mut self.receives, piece as u64);
            self.came += piece;
            if slot.tag != tag::PIECE {
                ensure!(self.came == self.landing.len(), "a message came without its end");
                self.came = 0;
                return Ok(Some(Came::Whole(slot.tag)));
            }
        }
        bail!("the other end broke the protocol of the lane")
    }
}

/// How an end comes to its lane, and learns that the other end is gone.
pub trait Door {
    /// The lane.
    type Lane: Lane;

    /// The lane, once, as soon as it is there.
    ///
    /// # Errors
    /// When there will be none.
    fn lane(&mut self) -> anyhow::Result<Option<Self::Lane>>;

    /// True if the other end is gone. Called when nothing came.
    fn is_deserted(&mut self, lane: &Self::Lane) -> bool;
}

/// A lane in memory that both processes map.
pub struct InMemory(Option<ShmLane>);

impl InMemory {
    /// The end that made `lane`.
    pub const fn made(lane: ShmLane) -> Self {
        Self(Some(lane))
    }

    /// The end of a process to which its parent gave the memory.
    ///
    /// # Errors
    /// When it is not the memory of a lane.
    pub fn given(memory: impl AsFd) -> anyhow::Result<Self> {
        Ok(Self(Some(ShmLane::open(memory.as_fd(), 1, CopyMode::Plain)?)))
    }
}

impl Door for InMemory {
    type Lane = ShmLane;

    fn lane(&mut self) -> anyhow::Result<Option<ShmLane>> {
        Ok(self.0.take())
    }

    /// Never: the kernel ends the far end with the near one, and that one looks after its child.
    fn is_deserted(&mut self, _lane: &ShmLane) -> bool {
        false
    }
}

/// A lane over an endpoint.
pub struct OverEndpoint<E: Endpoint>(Carrier<E>);

impl<E: Endpoint> OverEndpoint<E> {
    /// The end that waits for the other one's lane.
    pub fn waiting(endpoint: E) -> Self {
        Self(Carrier::new(endpoint, Settings::default()))
    }

    /// The end that opens a lane to the initiator at `to`.
    ///
    /// # Errors
    /// When nobody is there.
    pub fn opening(mut endpoint: E, to: EndpointAddress) -> anyhow::Result<Self> {
        let peer = endpoint.connect_within(to, PATIENCE)?;
        let door = Self::waiting(endpoint);
        door.0.open(peer, 0)?;
        Ok(door)
    }
}

impl<E: Endpoint> Door for OverEndpoint<E> {
    type Lane = EndpointLane<E>;

    fn lane(&mut self) -> anyhow::Result<Option<EndpointLane<E>>> {
        self.0.poll();
        while let Some(told) = self.0.told() {
            match told {
                Told::Offered(offer) => {
                    self.0.accept(offer)?;
                }
                Told::Opened { lane, .. } => return Ok(Some(lane)),
                Told::Refused { why, .. } => bail!("the other end refused a lane: {why:?}"),
                Told::Misbehaved { how, .. } => bail!("the other end misbehaved: {how}"),
                Told::Rung(..) => {}
            }
        }
        Ok(None)
    }

    fn is_deserted(&mut self, lane: &EndpointLane<E>) -> bool {
        weft_fabric::Carry::standing(lane) != Standing::Open
    }
}

/// The near end.
pub struct Initiator<D: Door, S> {
    surroundings: S,
    door: D,
    line: Line<D::Lane>,
    pongs: u64,
    counted: Option<u64>,
}

impl<D: Door, S: Surroundings> Initiator<D, S> {
    /// Waits for the lane.
    ///
    /// # Errors
    /// When there is none within 5 s.
    pub fn new(mut door: D, mut surroundings: S, size: u64) -> anyhow::Result<Self> {
        let start = surroundings.now_ns();
        let lane = loop {
            if let Some(lane) = door.lane()? {
                break lane;
            }
            surroundings.idle()?;
            let waited = surroundings.now_ns().saturating_sub(start);
            ensure!(waited < LANE_WITHIN_NS, "the other end opened no lane within 5 s");
        };
        let line = Line::new(lane, size)?;
        Ok(Self { surroundings, door, line, pongs: 0, counted: None })
    }

    fn send(&mut self, kind: u8) -> anyhow::Result<()> {
        until(self, |own| Ok(own.line.send(kind)))
    }

    fn say(&mut self, kind: u8) -> anyhow::Result<()> {
        until(self, |own| Ok(own.line.say(kind, 0)))
    }

    /// Streams messages. The far end says how many came.
    fn stream(&mut self, plan: Plan) -> anyhow::Result<(f64, f64)> {
        let group = (BYTES_PER_STAMP / plan.size).clamp(1, MESSAGES_PER_STAMP);
        let start = self.surroundings.now_ns();
        let mut times = Times::from(start)?;
        let mut sent = 0;
        while sent < plan.iterations {
            let group = group.min(plan.iterations - sent);
            for _ in 0..group {
                self.send(tag::DATA)?;
            }
            sent += group;
            times.record(self.surroundings.now_ns(), group)?;
        }
        self.counted = None;
        self.say(tag::COUNT)?;
        until(self, |own| Ok(own.counted.is_some()))?;
        let counted = self.counted.context("the loop ended")?;
        ensure!(counted == sent, "{sent} messages were sent, but {counted} arrived");
        let mean = per(self.surroundings.now_ns() - start, sent);
        Ok((mean, times.p99().unwrap_or(mean)))
    }

    fn trip(&mut self) -> anyhow::Result<()> {
        let pongs = self.pongs;
        self.send(tag::PING)?;
        until(self, |own| Ok(own.pongs > pongs))
    }
}

impl<D: Door, S: Surroundings> Near for Initiator<D, S> {
    fn surroundings(&self) -> &impl Surroundings {
        &self.surroundings
    }

    fn run(&mut self, _test: PerfTest, plan: Plan) -> anyhow::Result<Sample> {
        let (mean_ns, p99_ns) = self.stream(plan)?;
        let single = one_way(self, plan.iterations, Self::trip)?;
        Ok(Sample { mean_ns, p99_ns, single: Some(single), ..Sample::default() })
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        match self.line.take()? {
            Some(Came::Whole(tag::PONG)) => self.pongs += 1,
            Some(Came::Word(tag::COUNTED, number)) => self.counted = Some(number),
            Some(_) => {}
            None => {
                ensure!(!self.door.is_deserted(&self.line.lane), "the other end is gone");
                return self.surroundings.idle();
            }
        }
        self.surroundings.busy();
        Ok(())
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.say(tag::STOP)
    }
}

/// The far end.
pub struct Responder<D: Door> {
    door: D,
    line: Option<Line<D::Lane>>,
    size: u64,
    pings: u64,
    counted: u64,
    /// An answer that was asked for and found no room yet.
    answer: Option<u64>,
}

impl<D: Door> Responder<D> {
    /// It answers as soon as there is a lane.
    pub const fn new(door: D, size: u64) -> Self {
        Self { door, line: None, size, pings: 0, counted: 0, answer: None }
    }
}

impl<D: Door> FarEnd for Responder<D> {
    fn step(&mut self) -> anyhow::Result<Progress> {
        let Some(line) = &mut self.line else {
            let Some(lane) = self.door.lane()? else { return Ok(Progress::Idle) };
            self.line = Some(Line::new(lane, self.size)?);
            return Ok(Progress::Busy);
        };
        let mut is_busy = true;
        match line.take()? {
            Some(Came::Whole(tag::PING)) => self.pings += 1,
            Some(Came::Whole(tag::DATA)) => self.counted += 1,
            Some(Came::Word(tag::COUNT, _)) => {
                self.answer = Some(std::mem::take(&mut self.counted))
            }
            Some(Came::Word(tag::STOP, _)) => return Ok(Progress::Over),
            Some(_) => {}
            None if self.door.is_deserted(&line.lane) => return Ok(Progress::Over),
            None => is_busy = false,
        }
        while self.pings > 0 && line.send(tag::PONG) {
            self.pings -= 1;
            is_busy = true;
        }
        if let Some(number) = self.answer
            && self.pings == 0
            && line.say(tag::COUNTED, number)
        {
            self.answer = None;
            is_busy = true;
        }
        Ok(if is_busy { Progress::Busy } else { Progress::Idle })
    }
}

#[cfg(test)]
mod tests {
    use weft_transport_shm::lane::LaneLayout;

    use super::*;
    use crate::perf::Budget;

    /// The far end is a thread, and no time passes.
    struct Beside;

    impl Surroundings for Beside {
        fn now_ns(&self) -> u64 {
            0
        }

        fn idle(&mut self) -> anyhow::Result<()> {
            std::thread::yield_now();
            Ok(())
        }

        fn budget(&self) -> Budget {
            Budget { run_ns: 1, iterations_max: 1 }
        }
    }

    #[test]
    fn a_message_that_did_not_arrive_fails_the_measurement() {
        let layout = LaneLayout { slots: 16, sink_bytes: 4096 };
        let (lane, memory) = ShmLane::create(layout, CopyMode::Plain).expect("a lane");
        let far = std::thread::spawn(move || {
            let lane = ShmLane::open(memory.as_fd(), 1, CopyMode::Plain).expect("a lane");
            let mut line = Line::new(lane, 8).expect("a line");
            let mut counted = 0;
            loop {
                match line.take().expect("messages") {
                    Some(Came::Whole(tag::DATA)) => counted += 1,
                    Some(_) => return assert!(line.say(tag::COUNTED, counted - 1)),
                    None => std::thread::yield_now(),
                }
            }
        });
        let mut near = Initiator::new(InMemory::made(lane), Beside, 8).expect("an end");
        let failed = near.stream(Plan { size: 8, iterations: 100 }).expect_err("one is missing");
        assert_eq!(failed.to_string(), "100 messages were sent, but 99 arrived");
        far.join().expect("no panic");
    }
}
