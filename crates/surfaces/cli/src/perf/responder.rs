//! The far end of a measurement: answers what the initiator sends, until it is told to stop.
//!
//! A state machine: [`Responder::step`] does what can be done now and never waits.

use std::collections::VecDeque;

use super::{FarEnd, signal_offset};
use anyhow::{anyhow, ensure};
use weft_fabric::{
    Access, Audience, Blocking, Command, Endpoint, EndpointAddress, Event, LocalRange,
    MessageHeader, Notify, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey, SendError,
    Side, Signal, SignalChange, Source, Target,
};

/// Messages between the ends; the number is the tag.
pub mod tag {
    /// Responder to initiator, first: its key.
    pub const HELLO: u8 = 1;
    /// Initiator to responder: its key, for puts back.
    pub const KEY: u8 = 2;
    /// To be answered by the same bytes.
    pub const PING: u8 = 3;
    /// The answer.
    pub const PONG: u8 = 4;
    /// To be counted.
    pub const DATA: u8 = 5;
    /// To be answered with how many were counted.
    pub const COUNT: u8 = 6;
    /// The answer: a number of 8 bytes.
    pub const COUNTED: u8 = 7;
    /// It is over.
    pub const STOP: u8 = 8;
    /// Puts of so many bytes, a number of 8 bytes, come with a signal, and are put back with the
    /// same one. Without a number they come no more.
    pub const WATCH: u8 = 9;
    /// The answer.
    pub const WATCHING: u8 = 10;
}

/// Class of puts that are to be put back.
pub const CLASS_ECHO: u8 = 1;

/// Events that one step takes at most, so that stepping stays fair.
const EVENTS_PER_STEP: usize = 64;
/// Longest message kept.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing happened.
    Idle,
    /// Something did.
    Busy,
    /// The initiator said that it is over, or is gone.
    Over,
}

/// Everything that came in since the last step, besides pings.
#[derive(Debug, Default)]
struct Inbox {
    /// Messages to be sent, by tag.
    answers: VecDeque<(u8, Vec<u8>)>,
    /// Lengths of puts to be put back.
    echoes: VecDeque<u64>,
    /// Buffers of answers that were sent: an allocation would be measured too.
    spare: Vec<Vec<u8>>,
    key: Option<RemoteKey>,
    counted: u64,
    /// The length of puts that come with a signal.
    watched: Option<u64>,
    is_over: bool,
    failure: Option<OperationError>,
}

/// The far end.
#[derive(Debug)]
pub struct Responder<E: Endpoint> {
    endpoint: E,
    region: E::Region,
    initiator: Peer,
    inbox: Inbox,
    /// The last value of a signal that was answered.
    answered: u64,
    bytes: Vec<u8>,
}

impl<E: Endpoint> Responder<E> {
    /// Grants `region` and tells the initiator at `to`.
    pub fn new(mut endpoint: E, region: E::Region, to: EndpointAddress) -> anyhow::Result<Self> {
        let key = endpoint.grant_within(
            LocalRange::whole(&region),
            Audience::Partition,
            Access::all(),
            PATIENCE,
        )?;
        let initiator = endpoint.connect_within(to, PATIENCE)?;
        endpoint.send_short(initiator, MessageHeader::tag(tag::HELLO), &[&key.0.to_le_bytes()])?;
        let bytes = vec![0x5a; usize::try_from(region.length())?];
        let inbox = Inbox::default();
        Ok(Self { endpoint, region, initiator, inbox, answered: 0, bytes })
    }

    /// Sends answers until there are none or there is no room.
    fn answer(&mut self) -> anyhow::Result<()> {
        while let Some((tag, payload)) = self.inbox.answers.front() {
            let header = MessageHeader::tag(*tag);
            match self.endpoint.send_short(self.initiator, header, &[payload]) {
                Ok(()) => self.inbox.spare.extend(self.inbox.answers.pop_front().map(|it| it.1)),
                Err(SendError::WouldBlock) => break,
                Err(SendError::PeerDown) => {
                    self.inbox.is_over = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Puts back what was put until there is nothing left or there is no room.
    fn put_back(&mut self) -> anyhow::Result<()> {
        while let Some(length) = self.inbox.echoes.front() {
            let key =
                self.inbox.key.ok_or_else(|| anyhow!("an echo was asked for without a key"))?;
            let length = usize::try_from(*length)?;
            ensure!(length <= self.bytes.len(), "{length} bytes to echo are more than the region");
            let (source, target) = (Source::Bytes(&self.bytes[..length]), Target::new(key, 0));
            match self.endpoint.put(
                self.initiator,
                source,
                target,
                Operation::new(0).notify(Notify::COMPLETER),
            ) {
                Ok(_) => self.inbox.echoes.pop_front(),
                Err(OperationError::WouldBlock) => break,
                Err(OperationError::PeerDown) => {
                    self.inbox.is_over = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            };
        }
        Ok(())
    }

    /// Looks at the word of the signal, and puts back what came with it. Whether it did.
    fn answer_signal(&mut self, length: u64) -> anyhow::Result<bool> {
        let word = signal_offset(length);
        let value = self.region.load(word)?;
        if value == self.answered {
            return Ok(false);
        }
        let key = self.inbox.key.ok_or_else(|| anyhow!("a signal came without a key"))?;
        let length = usize::try_from(length)?;
        ensure!(length <= self.bytes.len(), "{length} bytes to put back are more than the region");
        let (source, target) = (Source::Bytes(&self.bytes[..length]), Target::new(key, 0));
        let (of, change) = (Target::new(key, word), SignalChange::Set(value));
        let signal = Signal { target: of, change };
        match self.endpoint.put_signal(self.initiator, source, target, signal, Operation::new(0)) {
            Ok(_) => self.answered = value,
            Err(OperationError::WouldBlock) => return Ok(false),
            Err(OperationError::PeerDown) => self.inbox.is_over = true,
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }
}

impl<E: Endpoint> FarEnd for Responder<E> {
    fn step(&mut self) -> anyhow::Result<Progress> {
        if let Some(length) = self.inbox.watched
            && self.answer_signal(length)?
        {
            return Ok(Progress::Busy);
        }
        let inbox = &mut self.inbox;
        let taken = self.endpoint.poll(EVENTS_PER_STEP, &mut |event| inbox.take(&event));
        let waiting = self.inbox.waiting();
        if taken == 0 && waiting == 0 {
            return Ok(Progress::Idle);
        }
        self.put_back()?;
        self.answer()?;
        if let Some(failure) = &self.inbox.failure {
            return Err(anyhow!(failure.clone()).context("an answer was lost"));
        }
        if self.inbox.is_over {
            return Ok(Progress::Over);
        }
        let is_idle = taken == 0 && self.inbox.waiting() == waiting;
        Ok(if is_idle { Progress::Idle } else { Progress::Busy })
    }
}

impl Inbox {
    /// Answers of both kinds that are still to be given.
    fn waiting(&self) -> usize {
        self.answers.len() + self.echoes.len()
    }

    // Inlined: a call for each message would be a tenth of what is measured.
    #[inline(always)]
    fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Message(message) => self.message(message.header.tag, message.payload),
            Event::Notification(notification) => {
                let is_echo = notification.command == Command::Put
                    && notification.side == Side::Completer
                    && notification.class == CLASS_ECHO;
                if is_echo {
                    self.echoes.push_back(notification.length);
                }
            }
            Event::Completion(completion) => {
                if let Err(error) = &completion.result
                    && *error != OperationError::PeerDown
                {
                    self.failure = Some(error.clone());
                }
            }
            Event::PeerDown { .. } => self.is_over = true,
            Event::Room { .. } | Event::GroupRoom { .. } => {}
        }
    }

    #[inline(always)]
    fn message(&mut self, tag: u8, payload: &[u8]) {
        match tag {
            tag::DATA => self.counted += 1,
            _ => self.other(tag, payload),
        }
    }

    fn other(&mut self, tag: u8, payload: &[u8]) {
        match tag {
            tag::PING => {
                let mut answer = self.spare.pop().unwrap_or_default();
                answer.clear();
                answer.extend_from_slice(&payload[..payload.len().min(MESSAGE_BYTES_MAX)]);
                self.answers.push_back((tag::PONG, answer));
            }
            tag::COUNT => {
                let counted = self.counted.to_le_bytes().to_vec();
                self.counted = 0;
                self.answers.push_back((tag::COUNTED, counted));
            }
            tag::KEY => {
                if let Ok(bytes) = payload.try_into() {
                    self.key = Some(RemoteKey(u64::from_le_bytes(bytes)));
                }
            }
            tag::WATCH => {
                let length = payload.try_into().ok().map(u64::from_le_bytes);
                self.watched = length;
                if length.is_some() {
                    self.answers.push_back((tag::WATCHING, Vec::new()));
                }
            }
            tag::STOP => self.is_over = true,
            _ => {}
        }
    }
}
