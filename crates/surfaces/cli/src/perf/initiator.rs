//! The near end of a measurement: sends, waits, and takes the time.

use anyhow::{Context, bail, ensure};
use weft_fabric::{
    Access, Atomic, Audience, Blocking, Command, Endpoint, Event, Issued, LocalRange,
    MessageHeader, Notify, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey, SendError,
    Side, Signal, SignalChange, Source, Target,
};

use super::near::{Near, Times, one_way, per, round_trips, until};
use super::responder::{CLASS_ECHO, tag};
use super::{Surroundings, signal_offset};
use crate::arguments::PerfTest;

/// Operations that are pending at most where a transport does not end them inside the call.
const WINDOW_MAX: u64 = 64;
/// Bytes that are pending at most, but for one operation.
const WINDOW_BYTES: u64 = 8 << 20;
/// Turns of waiting for the first word of the other end are bounded by its time instead.
const HELLO_WITHIN_NS: u64 = 10_000_000_000;
/// A time stamp costs some 20 ns: it is taken once for this many bytes or operations.
const BYTES_PER_STAMP: u64 = 65_536;
const OPERATIONS_PER_STAMP: u64 = 256;

/// The plan of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Bytes of a message or operation.
    pub size: u64,
    /// How many.
    pub iterations: u64,
}

/// The figures of one run.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Mean time of one operation or message while they were streamed, nanoseconds; of one way
    /// for latency.
    pub mean_ns: f64,
    /// The time that 99 of 100 stamped groups stayed below, for one operation, nanoseconds.
    pub p99_ns: f64,
    /// Latency of single operations, where streaming was the main figure: mean and p99.
    pub single: Option<(f64, f64)>,
    /// One-way latency of puts whose reader looks at the word of their signal: mean and p99.
    pub signalled: Option<(f64, f64)>,
}

/// Everything that came in.
#[derive(Debug, Default)]
struct Inbox {
    key: Option<RemoteKey>,
    pongs: u64,
    counted: Option<u64>,
    echoes: u64,
    completed: u64,
    word: u64,
    failure: Option<OperationError>,
    watched: bool,
    is_down: bool,
}

/// The near end.
#[derive(Debug)]
pub struct Initiator<E: Endpoint, S> {
    surroundings: S,
    endpoint: E,
    region: E::Region,
    responder: Peer,
    target: RemoteKey,
    inbox: Inbox,
    issued: u64,
    added: u64,
    /// The last value of a signal.
    signals: u64,
    bytes: Vec<u8>,
}

impl<E: Endpoint, S: Surroundings> Near for Initiator<E, S> {
    fn surroundings(&self) -> &impl Surroundings {
        &self.surroundings
    }

    fn run(&mut self, test: PerfTest, plan: Plan) -> anyhow::Result<Sample> {
        match test {
            PerfTest::Latency => self.latency(plan),
            PerfTest::Rate => self.rate(plan),
            PerfTest::Put => self.put(plan),
            PerfTest::Get => self.get(plan),
            PerfTest::Atomic => self.atomic(plan),
            PerfTest::Message | PerfTest::Lane => bail!("this test has an initiator of its own"),
            PerfTest::Cacheline | PerfTest::Serve => bail!("this test has no initiator"),
        }
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let inbox = &mut self.inbox;
        if self.endpoint.poll(16, &mut |event| inbox.take(&event)) == 0 {
            return self.surroundings.idle();
        }
        self.surroundings.busy();
        if let Some(failure) = &self.inbox.failure {
            return Err(failure.clone().into());
        }
        if self.inbox.is_down {
            bail!("the other end is gone");
        }
        Ok(())
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.send(tag::STOP, &[])?;
        // One more turn, for transports that need one to let the message out. The other end may be
        // gone by then, as it was told.
        match self.turn() {
            Err(_) if self.inbox.is_down => Ok(()),
            turned => turned,
        }
    }
}

impl<E: Endpoint, S: Surroundings> Initiator<E, S> {
    /// Waits for the responder's first word and answers it with the key of `region`.
    pub fn new(mut endpoint: E, region: E::Region, mut surroundings: S) -> anyhow::Result<Self> {
        let length = region.length();
        let key = endpoint.grant_within(
            LocalRange::whole(&region),
            Audience::Partition,
            Access::all(),
            PATIENCE,
        )?;
        let mut inbox = Inbox::default();
        let mut source = None;
        let start = surroundings.now_ns();
        while inbox.key.is_none() {
            endpoint.poll(1, &mut |event| {
                if let Event::Message(message) = &event {
                    source = Some(message.source);
                }
                inbox.take(&event);
            });
            surroundings.idle()?;
            ensure!(
                surroundings.now_ns().saturating_sub(start) < HELLO_WITHIN_NS,
                "the other end did not say a word within 10 s"
            );
        }
        let responder = endpoint
            .connect_within(source.context("the first word came from nobody")?, PATIENCE)?;
        let target = inbox.key.context("the first word had no key")?;
        endpoint.resolve_within(responder, target, PATIENCE)?;
        let bytes = vec![0xa5; usize::try_from(length)?];
        let mut initiator = Self {
            surroundings,
            endpoint,
            region,
            responder,
            target,
            inbox,
            issued: 0,
            added: 0,
            signals: 0,
            bytes,
        };
        initiator.send(tag::KEY, &key.0.to_le_bytes())?;
        Ok(initiator)
    }

    /// One-way latency of messages: half of the way there and back.
    fn latency(&mut self, plan: Plan) -> anyhow::Result<Sample> {
        let length = usize::try_from(plan.size)?;
        let (mean_ns, p99_ns) = one_way(self, plan.iterations, |own| {
            let pongs = own.inbox.pongs;
            let payload = std::mem::take(&mut own.bytes);
            let sent = own.send(tag::PING, &payload[..length]);
            own.bytes = payload;
            sent?;
            until(own, |own| Ok(own.inbox.pongs > pongs))
        })?;
        Ok(Sample { mean_ns, p99_ns, ..Sample::default() })
    }

    /// Rate of messages on one pair; the far end counts them.
    fn rate(&mut self, plan: Plan) -> anyhow::Result<Sample> {
        let length = usize::try_from(plan.size)?;
        let payload = vec![0xa5; length];
        let parts = [&payload[..]];
        let start = self.surroundings.now_ns();
        let mut times = Times::from(start)?;
        let mut sent = 0;
        while sent < plan.iterations {
            let group = OPERATIONS_PER_STAMP.min(plan.iterations - sent);
            for _ in 0..group {
                self.send_parts(tag::DATA, &parts)?;
            }
            sent += group;
            times.record(self.surroundings.now_ns(), group)?;
        }
        self.inbox.counted = None;
        self.send(tag::COUNT, &[])?;
        until(self, |own| Ok(own.inbox.counted.is_some()))?;
        let elapsed = self.surroundings.now_ns() - start;
        ensure!(
            self.inbox.counted == Some(plan.iterations),
            "{} messages were sent, but {:?} arrived: the transport lost some",
            plan.iterations,
            self.inbox.counted
        );
        let mean_ns = per(elapsed, sent);
        let p99_ns = times.p99().unwrap_or(mean_ns);
        Ok(Sample { mean_ns, p99_ns, ..Sample::default() })
    }

    /// Bandwidth of puts, then the latency of puts with completer notification, and of puts with
    /// a signal.
    fn put(&mut self, plan: Plan) -> anyhow::Result<Sample> {
        let length = usize::try_from(plan.size)?;
        let target = Target::new(self.target, 0);
        // Bytes that are any memory are copied by the call. A network that takes its time reads a
        // region itself.
        let copies = self.endpoint.capabilities().completes_inline;
        let (mean_ns, p99_ns) = self.stream(plan, |own, context| {
            let source = if copies {
                Source::Bytes(&own.bytes[..length])
            } else {
                Source::Region(LocalRange::new(&own.region, 0, plan.size))
            };
            own.endpoint.put(own.responder, source, target, Operation::new(context))
        })?;
        let echo = Notify::COMPLETER.class(CLASS_ECHO);
        let single = one_way(self, plan.iterations, |own| {
            let echoes = own.inbox.echoes;
            own.issue(|own, context| {
                let source = Source::Bytes(&own.bytes[..length]);
                own.endpoint.put(
                    own.responder,
                    source,
                    target,
                    Operation::new(context).notify(echo),
                )
            })?;
            until(own, |own| Ok(own.inbox.echoes > echoes))
        })?;
        self.drain(0)?;
        // Memory that cannot be mapped has no words for others.
        let signalled = match self.endpoint.window(self.responder, self.target) {
            Err(OperationError::NotMapped) => None,
            _ => Some(self.signal(plan)?),
        };
        Ok(Sample { mean_ns, p99_ns, single: Some(single), signalled })
    }

    /// One-way latency of puts with a signal, to whose word the reader looks; mean and p99.
    fn signal(&mut self, plan: Plan) -> anyhow::Result<(f64, f64)> {
        let length = usize::try_from(plan.size)?;
        let word = signal_offset(plan.size);
        let (data, signal) = (Target::new(self.target, 0), Target::new(self.target, word));
        self.send(tag::WATCH, &plan.size.to_le_bytes())?;
        self.inbox.watched = false;
        until(self, |own| Ok(own.inbox.watched))?;
        let one_way = one_way(self, plan.iterations, |own| {
            own.signals += 1;
            let value = own.signals;
            own.issue(|own, context| {
                let source = Source::Bytes(&own.bytes[..length]);
                let signal = Signal { target: signal, change: SignalChange::Set(value) };
                let operation = Operation::new(context);
                own.endpoint.put_signal(own.responder, source, data, signal, operation)
            })?;
            until(own, |own| Ok(own.region.load(word)? == value))?;
            own.surroundings.busy();
            Ok(())
        })?;
        self.drain(0)?;
        self.send(tag::WATCH, &[])?;
        Ok(one_way)
    }

    /// Bandwidth of gets, then the time of one.
    fn get(&mut self, plan: Plan) -> anyhow::Result<Sample> {
        let source = Target::new(self.target, 0);
        let get = |own: &mut Self, context| {
            own.endpoint.get(
                own.responder,
                source,
                LocalRange::new(&own.region, 0, plan.size),
                Operation::new(context),
            )
        };
        let (mean_ns, p99_ns) = self.stream(plan, get)?;
        let single = round_trips(self, plan.iterations, |own| {
            own.issue(get)?;
            own.drain(0)
        })?;
        Ok(Sample { mean_ns, p99_ns, single: Some(single), signalled: None })
    }

    /// Rate of fetch-adds, then the time of one; the sum is checked.
    fn atomic(&mut self, plan: Plan) -> anyhow::Result<Sample> {
        let target = Target::new(self.target, 0);
        let add = |own: &mut Self, context| {
            own.endpoint.atomic(
                own.responder,
                target,
                Atomic::fetch_add(1),
                Operation::new(context),
            )
        };
        let (mean_ns, p99_ns) = self.stream(plan, add)?;
        let single = round_trips(self, plan.iterations, |own| {
            own.issue(add)?;
            own.drain(0)
        })?;
        // Streamed once, and once each with and without stamps one by one.
        self.added += 3 * plan.iterations;
        let sum = self.fetch()?;
        ensure!(sum == self.added, "{} was added, but the word holds {sum}", self.added);
        Ok(Sample { mean_ns, p99_ns, single: Some(single), signalled: None })
    }

    /// The word that the atomics add to.
    fn fetch(&mut self) -> anyhow::Result<u64> {
        let (peer, target) = (self.responder, Target::new(self.target, 0));
        match self.endpoint.atomic(peer, target, Atomic::fetch_add(0), Operation::new(0))? {
            Issued::Done(value) => Ok(value.word().unwrap_or_default()),
            Issued::Pending => {
                self.issued += 1;
                self.drain(0)?;
                Ok(self.inbox.word)
            }
        }
    }

    /// Streams operations with a bounded number pending; mean and p99 of one, nanoseconds.
    fn stream(
        &mut self,
        plan: Plan,
        operation: impl Fn(&mut Self, u64) -> Result<Issued, OperationError>,
    ) -> anyhow::Result<(f64, f64)> {
        let start = self.surroundings.now_ns();
        let mut times = Times::from(start)?;
        let mut done = 0;
        let window = (WINDOW_BYTES / plan.size).clamp(1, WINDOW_MAX);
        let issued_before = self.issued;
        let group = (BYTES_PER_STAMP / plan.size).clamp(1, OPERATIONS_PER_STAMP);
        while done < plan.iterations {
            let group = group.min(plan.iterations - done);
            for _ in 0..group {
                self.issue(&operation)?;
                self.drain(window - 1)?;
            }
            done += group;
            // Starting costs nothing until the window is full, which is no figure of anything.
            let is_inline = self.issued == issued_before;
            if is_inline || self.issued - issued_before >= window + group {
                times.record(self.surroundings.now_ns(), group)?;
            } else {
                times.leave_out(self.surroundings.now_ns());
            }
        }
        self.drain(0)?;
        let mean = per(self.surroundings.now_ns() - start, done);
        Ok((mean, times.p99().unwrap_or(mean)))
    }

    /// Starts an operation, waiting for room as long as there is none.
    fn issue(
        &mut self,
        operation: impl Fn(&mut Self, u64) -> Result<Issued, OperationError>,
    ) -> anyhow::Result<()> {
        loop {
            match operation(self, self.issued) {
                Ok(Issued::Done(_)) => return Ok(()),
                Ok(Issued::Pending) => {
                    self.issued += 1;
                    return Ok(());
                }
                Err(OperationError::WouldBlock) => self.turn()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until at most `left` operations are pending.
    fn drain(&mut self, left: u64) -> anyhow::Result<()> {
        let wanted = self.issued.saturating_sub(left);
        until(self, |own| Ok(own.inbox.completed >= wanted))
    }

    fn send(&mut self, tag: u8, payload: &[u8]) -> anyhow::Result<()> {
        self.send_parts(tag, &[payload])
    }

    /// As [`Self::send`], for those who send often: makes no list of the parts.
    #[inline(always)]
    fn send_parts(&mut self, tag: u8, parts: &[&[u8]; 1]) -> anyhow::Result<()> {
        match self.endpoint.send_short(self.responder, MessageHeader::tag(tag), parts) {
            Ok(()) => Ok(()),
            Err(error) => self.send_later(error, tag, parts),
        }
    }

    /// Sends a message that was refused with `error`, as soon as there is room.
    #[cold]
    fn send_later(&mut self, error: SendError, tag: u8, parts: &[&[u8]; 1]) -> anyhow::Result<()> {
        let mut sent = Err(error);
        loop {
            match sent {
                Ok(()) => return Ok(()),
                Err(SendError::WouldBlock) => self.turn()?,
                Err(error) => return Err(error.into()),
            }
            sent = self.endpoint.send_short(self.responder, MessageHeader::tag(tag), parts);
        }
    }
}

impl Inbox {
    fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Message(message) => match message.header.tag {
                tag::PONG => self.pongs += 1,
                tag::HELLO => self.key = number(message.payload).map(RemoteKey),
                tag::WATCHING => self.watched = true,
                tag::COUNTED => self.counted = number(message.payload),
                _ => {}
            },
            Event::Notification(notification) => {
                let is_echo =
                    notification.command == Command::Put && notification.side == Side::Completer;
                self.echoes += u64::from(is_echo);
            }
            Event::Completion(completion) => match &completion.result {
                Ok(value) => {
                    self.completed += 1;
                    self.word = value.word().unwrap_or(self.word);
                }
                Err(error) => self.failure = Some(error.clone()),
            },
            Event::PeerDown { .. } => self.is_down = true,
            Event::Room { .. } | Event::GroupRoom { .. } => {}
        }
    }
}

fn number(payload: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(payload.try_into().ok()?))
}
