//! The far end of a measurement: answers what the initiator sends, until it is told to stop.
//!
//! A state machine: [`Responder::step`] does what can be done now and never waits.

use anyhow::{anyhow, ensure};
use weft_fabric::{
    Access, Command, Endpoint, EndpointAddress, Event, MessageHeader, Notify, OperationError, Peer,
    RemoteKey, SendError, Side, Source, Target,
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
}

/// Class of puts that are to be put back.
pub const CLASS_ECHO: u8 = 1;

/// Events that one step takes at most, so that stepping stays fair.
const EVENTS_PER_STEP: usize = 64;
/// Longest message kept.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing happened.
    Idle,
    /// Something did.
    Busy,
    /// The initiator said that it is over, or is gone.
    Over,
}

/// An answer that waits for room.
#[derive(Clone, Debug)]
enum Answer {
    Message(u8, Vec<u8>),
    Put(u64),
}

/// What came in since the last step, besides pings.
#[derive(Debug, Default)]
struct Inbox {
    answers: Vec<Answer>,
    /// Buffers of answers that were sent: an allocation would be measured too.
    spare: Vec<Vec<u8>>,
    key: Option<RemoteKey>,
    counted: u64,
    is_over: bool,
    failure: Option<OperationError>,
}

/// The far end.
#[derive(Debug)]
pub struct Responder<E: Endpoint> {
    endpoint: E,
    // Unregistered when dropped.
    _region: E::Region,
    initiator: Peer,
    inbox: Inbox,
    key: Option<RemoteKey>,
    bytes: Vec<u8>,
}

impl<E: Endpoint> Responder<E> {
    /// Registers memory, and tells the initiator at `to`.
    pub fn new(mut endpoint: E, to: EndpointAddress, region_bytes: u64) -> anyhow::Result<Self> {
        let region = endpoint.register(region_bytes)?;
        let key = endpoint.grant(&region, Access::all())?;
        let initiator = endpoint.connect(to)?;
        endpoint.send_short(initiator, MessageHeader::tag(tag::HELLO), &[&key.0.to_le_bytes()])?;
        Ok(Self {
            endpoint,
            _region: region,
            initiator,
            inbox: Inbox::default(),
            key: None,
            bytes: vec![0x5a; usize::try_from(region_bytes)?],
        })
    }

    /// Takes what came in and answers it.
    pub fn step(&mut self) -> anyhow::Result<Progress> {
        let inbox = &mut self.inbox;
        let taken = self.endpoint.poll(EVENTS_PER_STEP, &mut |event| inbox.take(&event));
        if let Some(failure) = self.inbox.failure.take() {
            return Err(anyhow!(failure).context("an answer was lost"));
        }
        self.key = self.inbox.key.or(self.key);
        let before = self.inbox.answers.len();
        self.answer()?;
        if self.inbox.is_over {
            return Ok(Progress::Over);
        }
        let is_idle = taken == 0 && self.inbox.answers.len() == before;
        Ok(if is_idle { Progress::Idle } else { Progress::Busy })
    }

    /// Sends answers until there are none or there is no room.
    fn answer(&mut self) -> anyhow::Result<()> {
        while let Some(answer) = self.inbox.answers.first() {
            let accepted = match answer {
                Answer::Message(tag, payload) => {
                    let header = MessageHeader::tag(*tag);
                    match self.endpoint.send_short(self.initiator, header, &[payload]) {
                        Ok(()) => true,
                        Err(SendError::WouldBlock) => false,
                        Err(SendError::PeerDown) => {
                            self.inbox.is_over = true;
                            return Ok(());
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                Answer::Put(length) => self.put_back(*length)?,
            };
            if !accepted {
                break;
            }
            if let Answer::Message(_, payload) = self.inbox.answers.remove(0) {
                self.inbox.spare.push(payload);
            }
        }
        Ok(())
    }

    fn put_back(&mut self, length: u64) -> anyhow::Result<bool> {
        let key = self.key.ok_or_else(|| anyhow!("an echo was asked for before a key came"))?;
        let length = usize::try_from(length)?;
        ensure!(length <= self.bytes.len(), "an echo of {length} bytes is longer than the region");
        let source = Source::Bytes(&self.bytes[..length]);
        let target = Target::new(key, 0);
        match self.endpoint.put(self.initiator, source, target, Notify::COMPLETER, 0) {
            Ok(_) => Ok(true),
            Err(OperationError::WouldBlock) => Ok(false),
            Err(OperationError::PeerDown) => {
                self.inbox.is_over = true;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Inbox {
    fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Message(message) => self.message(message.header.tag, message.payload),
            Event::Notification(notification) => {
                let is_echo = notification.command == Command::Put
                    && notification.side == Side::Completer
                    && notification.class == CLASS_ECHO;
                if is_echo {
                    self.answers.push(Answer::Put(notification.length));
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
            Event::Room { .. } => {}
        }
    }

    fn message(&mut self, tag: u8, payload: &[u8]) {
        match tag {
            tag::DATA => self.counted += 1,
            tag::PING => {
                let mut answer = self.spare.pop().unwrap_or_default();
                answer.clear();
                answer.extend_from_slice(&payload[..payload.len().min(MESSAGE_BYTES_MAX)]);
                self.answers.push(Answer::Message(tag::PONG, answer));
            }
            tag::COUNT => {
                let counted = self.counted.to_le_bytes().to_vec();
                self.counted = 0;
                self.answers.push(Answer::Message(tag::COUNTED, counted));
            }
            tag::KEY => {
                if let Ok(bytes) = payload.try_into() {
                    self.key = Some(RemoteKey(u64::from_le_bytes(bytes)));
                }
            }
            tag::STOP => self.is_over = true,
            _ => {}
        }
    }
}
