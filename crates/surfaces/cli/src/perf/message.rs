//! Messages of any length: both ends of the measurement.

use anyhow::{anyhow, bail, ensure};
use weft_fabric::{Blocking, Endpoint, EndpointAddress, PATIENCE, Peer, Region};
use weft_message::{Event, Messages, Options, SendError, Share};

use super::initiator::{Plan, Sample};
use super::near::{Near, Times, one_way, per, until};
use super::responder::Progress;
use super::{FarEnd, Surroundings};
use crate::arguments::PerfTest;

/// Messages on their way at most, so that memory for long ones is bounded.
const WINDOW: u64 = 64;
/// Bytes on their way at most, but for one message.
const WINDOW_BYTES: u64 = 32 << 20;
/// The first word of the other end is bounded by its time instead.
const HELLO_WITHIN_NS: u64 = 5_000_000_000;

/// The kind of a message, in its head.
mod head {
    pub const HELLO: u8 = 1;
    /// Wants an answer of its own length.
    pub const PING: u8 = 2;
    pub const PONG: u8 = 3;
    pub const DATA: u8 = 4;
    /// Wants the number of data messages since the last such question.
    pub const COUNT: u8 = 5;
    pub const COUNTED: u8 = 6;
    pub const STOP: u8 = 7;
}

/// Messages of one length over an endpoint.
struct Line<E: Endpoint> {
    messages: Messages<E>,
    peer: Peer,
    bytes: Vec<u8>,
    /// The same bytes in a region, for messages that are announced.
    share: Option<Share>,
}

impl<E: Endpoint> Line<E> {
    fn new(mut endpoint: E, peer: Option<Peer>, size: u64) -> anyhow::Result<Self> {
        let bytes = vec![0x5a; usize::try_from(size)?];
        let options = Options {
            receive_bytes_max: (2 * WINDOW_BYTES).max(4 * size),
            bounce_bytes_max: (2 * WINDOW_BYTES).max(4 * size),
            ..Options::default()
        };
        let is_long = bytes.len() >= options.eager_bytes_max;
        let region = if is_long { Some(endpoint.register(size)?) } else { None };
        let mut messages = Messages::new(endpoint, options);
        let mut share = None;
        if let Some(region) = region {
            region.write(0, &bytes)?;
            share = Some(messages.share(&region));
        }
        Ok(Self { messages, peer: peer.unwrap_or(Peer(u32::MAX)), bytes, share })
    }

    /// Sends a message of the line's length; false if there is no room.
    fn send(&mut self, head: u8, context: u64) -> anyhow::Result<bool> {
        let sent = match self.share {
            Some(share) => {
                let range = (share, 0, self.bytes.len() as u64);
                self.messages.send_range(self.peer, &[head], range, context)
            }
            None => self.messages.send(self.peer, &[head], &[&self.bytes], context),
        };
        accepted(sent)
    }

    /// Sends a short message; false if there is no room.
    fn say(&mut self, head: u8, body: &[u8]) -> anyhow::Result<bool> {
        accepted(self.messages.send(self.peer, &[head], &[body], 0))
    }
}

fn accepted(sent: Result<weft_fabric::Issued, SendError>) -> anyhow::Result<bool> {
    match sent {
        Ok(_) => Ok(true),
        Err(SendError::WouldBlock) => Ok(false),
        Err(error) => Err(anyhow!(error)),
    }
}

/// The events that came in at the near end.
#[derive(Default)]
struct Inbox {
    peer: Option<Peer>,
    pongs: u64,
    counted: Option<u64>,
    is_down: bool,
    failure: Option<String>,
}

/// The near end.
pub struct Initiator<E: Endpoint, S> {
    surroundings: S,
    line: Line<E>,
    inbox: Inbox,
}

impl<E: Endpoint, S: Surroundings> Initiator<E, S> {
    /// Waits for the responder's first word.
    pub fn new(endpoint: E, surroundings: S, size: u64) -> anyhow::Result<Self> {
        let line = Line::new(endpoint, None, size)?;
        let mut near = Self { surroundings, line, inbox: Inbox::default() };
        let start = near.surroundings.now_ns();
        while near.inbox.peer.is_none() {
            near.turn()?;
            ensure!(
                near.surroundings.now_ns().saturating_sub(start) < HELLO_WITHIN_NS,
                "the other end did not say a word within 5 s"
            );
        }
        near.line.peer = near.inbox.peer.expect("the loop ended");
        Ok(near)
    }

    fn say(&mut self, head: u8) -> anyhow::Result<()> {
        until(self, |own| own.line.say(head, &[]))
    }

    /// Streams messages in groups that the far end counts.
    fn stream(&mut self, plan: Plan) -> anyhow::Result<(f64, f64)> {
        let window = (WINDOW_BYTES / plan.size).clamp(1, WINDOW);
        let start = self.surroundings.now_ns();
        let mut times = Times::from(start)?;
        let mut sent = 0;
        while sent < plan.iterations {
            let group = window.min(plan.iterations - sent);
            for _ in 0..group {
                until(self, |own| own.line.send(head::DATA, 0))?;
            }
            self.inbox.counted = None;
            self.say(head::COUNT)?;
            until(self, |own| Ok(own.inbox.counted.is_some()))?;
            ensure!(
                self.inbox.counted == Some(group),
                "{group} messages were sent, but {:?} arrived",
                self.inbox.counted
            );
            sent += group;
            times.record(self.surroundings.now_ns(), group)?;
        }
        let mean = per(self.surroundings.now_ns() - start, sent);
        Ok((mean, times.p99().unwrap_or(mean)))
    }

    fn trip(&mut self) -> anyhow::Result<()> {
        let pongs = self.inbox.pongs;
        until(self, |own| own.line.send(head::PING, 0))?;
        until(self, |own| Ok(own.inbox.pongs > pongs))
    }
}

impl<E: Endpoint, S: Surroundings> Near for Initiator<E, S> {
    fn surroundings(&self) -> &impl Surroundings {
        &self.surroundings
    }

    fn run(&mut self, _test: PerfTest, plan: Plan) -> anyhow::Result<Sample> {
        let (mean_ns, p99_ns) = self.stream(plan)?;
        let single = one_way(self, plan.iterations, Self::trip)?;
        Ok(Sample { mean_ns, p99_ns, single: Some(single), ..Sample::default() })
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let inbox = &mut self.inbox;
        let events = self.line.messages.poll(16, |event| match event {
            Event::Message(message) => match message.head.first() {
                Some(&head::HELLO) => inbox.peer = Some(message.peer),
                Some(&head::PONG) => inbox.pongs += 1,
                Some(&head::COUNTED) => inbox.counted = count_in(&message.body),
                _ => {}
            },
            Event::Completion { result: Err(error), .. } => {
                inbox.failure = Some(error.to_string());
            }
            Event::Misbehaved { offence, .. } => inbox.failure = Some(offence.to_string()),
            Event::Endpoint(weft_fabric::Event::PeerDown { .. }) => inbox.is_down = true,
            _ => {}
        });
        if events == 0 {
            return self.surroundings.idle();
        }
        self.surroundings.busy();
        if let Some(failure) = &self.inbox.failure {
            bail!("{failure}");
        }
        ensure!(!self.inbox.is_down, "the other end is gone");
        Ok(())
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.say(head::STOP)?;
        match self.turn() {
            Err(_) if self.inbox.is_down => Ok(()),
            turned => turned,
        }
    }
}

/// The far end.
pub struct Responder<E: Endpoint> {
    line: Line<E>,
    pings: u64,
    counted: u64,
    /// Numbers of messages that were asked for.
    answers: u64,
    is_over: bool,
}

impl<E: Endpoint> Responder<E> {
    /// Tells the initiator at `to` that it is there.
    pub fn new(mut endpoint: E, to: EndpointAddress, size: u64) -> anyhow::Result<Self> {
        let peer = endpoint.connect_within(to, PATIENCE)?;
        let mut line = Line::new(endpoint, Some(peer), size)?;
        ensure!(line.say(head::HELLO, &[])?, "the first message found no room");
        Ok(Self { line, pings: 0, counted: 0, answers: 0, is_over: false })
    }
}

impl<E: Endpoint> FarEnd for Responder<E> {
    fn step(&mut self) -> anyhow::Result<Progress> {
        let Self { line, pings, counted, answers, is_over } = self;
        let mut failure = None;
        let events = line.messages.poll(16, |event| match event {
            Event::Message(message) => match message.head.first() {
                Some(&head::PING) => *pings += 1,
                Some(&head::DATA) => *counted += 1,
                Some(&head::COUNT) => *answers += 1,
                Some(&head::STOP) => *is_over = true,
                _ => {}
            },
            Event::Completion { result: Err(error), .. } => failure = Some(error.to_string()),
            Event::Endpoint(weft_fabric::Event::PeerDown { .. }) => *is_over = true,
            _ => {}
        });
        if self.is_over {
            return Ok(Progress::Over);
        }
        if let Some(failure) = failure {
            bail!("an answer was lost: {failure}");
        }
        let mut is_busy = events > 0;
        while self.pings > 0 && self.line.send(head::PONG, 0)? {
            self.pings -= 1;
            is_busy = true;
        }
        while self.answers > 0 && self.line.say(head::COUNTED, &self.counted.to_le_bytes())? {
            self.answers -= 1;
            self.counted = 0;
            is_busy = true;
        }
        Ok(if is_busy { Progress::Busy } else { Progress::Idle })
    }
}

/// The number in the body of an answer.
fn count_in<R: Region>(body: &weft_message::Body<'_, R>) -> Option<u64> {
    match body {
        weft_message::Body::Bytes(bytes) => Some(u64::from_le_bytes((*bytes).try_into().ok()?)),
        weft_message::Body::Range { .. } => None,
    }
}
