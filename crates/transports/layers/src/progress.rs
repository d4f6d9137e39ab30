//! Polling, waiting and sleeping.
//!
//! # Invariants
//! - An endpoint without a port polls its memory alone.
//! - A port with nothing to tell is looked at less often than the memory, because a look costs more
//!   than a message on the own node. Its own thread tells when there is something. Behind an event
//!   of the port each poll looks for a while, unless the memory tells something: a program that
//!   talks with a peer of another node waits for an answer that looks alone find.
//! - A sleep ends with the first event of either transport, or when a port is wanted or there.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use weft_fabric::{Armed, Endpoint, Event, OperationError, Peer, Value, Waited, Watchable};
use weft_sync::{Step, atomic::pause};
use weft_transport_ofi::Cards;

use crate::calls::{Half, Kind, Over};
use crate::endpoint::{FAR, LayeredEndpoint};
use crate::port::sleep_on;

/// Polls that leave out a port with nothing to tell, at most.
const SKIPPED_MAX: u32 = 16;
/// Looks that find nothing behind an event of the port, before polls leave it out: an answer from
/// another node takes some ten.
const EAGER: u32 = 256;
/// Longest sleep before both transports are looked at.
const SLICE: Duration = Duration::from_millis(100);
/// How soon to look again at a port that the descriptor does not watch.
const AGAIN_WITHIN: Duration = Duration::from_millis(1);

/// Which polls look at the port.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Polls that left it out before the last look.
    skipped: u32,
    /// Polls that leave it out before the next look.
    left: u32,
    /// Looks that may find nothing before polls leave it out.
    eager: u32,
    far_first: bool,
}

impl Turns {
    /// Whether the port hands its events out first.
    fn is_far_first(&mut self) -> bool {
        self.far_first = !self.far_first;
        self.far_first
    }

    /// Whether this poll looks at it.
    fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }

    /// The next poll looks: there is something.
    fn look_next(&mut self) {
        self.left = 0;
    }

    /// A look has found so many events.
    fn found(&mut self, events: usize) {
        if events > 0 {
            (self.skipped, self.eager) = (0, EAGER);
        } else if self.eager > 0 {
            self.eager -= 1;
        } else {
            self.skipped = (2 * self.skipped + 1).min(SKIPPED_MAX);
        }
        self.left = self.skipped;
    }

    /// The memory has told something: looks at the port would delay what it tells next.
    fn told_by_memory(&mut self) {
        self.eager = 0;
    }
}

/// Monotonic time since some moment.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The same event of the port's, with the handle that the program knows.
fn translated(event: Event<'_>) -> Event<'_> {
    let known = |peer: Peer| Peer(peer.0 | FAR);
    match event {
        Event::Message(message) => {
            Event::Message(weft_fabric::Message { peer: known(message.peer), ..message })
        }
        Event::Notification(told) => {
            Event::Notification(weft_fabric::Notification { peer: known(told.peer), ..told })
        }
        Event::PeerDown { peer, address, reason } => {
            Event::PeerDown { peer: known(peer), address, reason }
        }
        Event::Room { peer } => Event::Room { peer: known(peer) },
        Event::Completion(_) | Event::GroupRoom { .. } => event,
    }
}

impl<C: Cards + 'static> LayeredEndpoint<C> {
    /// Whether the memory has all that there is.
    #[inline(always)]
    pub(crate) fn is_near_alone(&self) -> bool {
        !self.calls.is_busy() && !self.near.port_is_wanted()
    }

    #[inline(never)]
    pub(crate) fn poll_both(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.attend();
        self.count_peers();
        let mut events = self.hand_out(budget, sink);
        // In turn, so that neither keeps the other one's events back.
        if self.turns.is_far_first() {
            events += self.poll_far(budget - events, sink);
            events += self.poll_near(budget - events, sink);
        } else {
            events += self.poll_near(budget - events, sink);
            events += self.poll_far(budget - events, sink);
        }
        self.finish_calls();
        events + self.hand_out(budget - events, sink)
    }

    /// Hands out the layer's own events.
    fn hand_out(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let mut events = 0;
        while events < budget
            && let Some(event) = self.calls.next_event()
        {
            events += 1;
            sink(event);
        }
        events
    }

    fn poll_near(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let mut events = 0;
        let Self { near, calls, .. } = self;
        near.poll(budget, &mut |event| {
            if !calls.keeps(Half::Near, &event) {
                events += 1;
                sink(event);
            }
        });
        if events > 0 {
            self.turns.told_by_memory();
        }
        events
    }

    fn poll_far(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let Self { door, calls, near, turns, .. } = self;
        let Some(far) = door.open() else { return 0 };
        if budget == 0 || !(turns.is_due() || far.waits_for_poll()) {
            return 0;
        }
        let mut events = 0;
        let all = far.poll(budget, &mut |event| {
            if !calls.keeps(Half::Far, &event) {
                events += 1;
                sink(translated(event));
            }
        });
        turns.found(all);
        if far.awaits_other() {
            near.look_at_broker();
        }
        events
    }

    /// Ends a call if no transport has it any more.
    pub(crate) fn finish_call(&mut self, number: u64) {
        if let Some(over) = self.calls.take_over(number).and_then(|over| self.go_on(over)) {
            let (context, result) = self.end_of(over);
            if let Some(context) = context {
                self.calls.tell(context, result);
            }
        }
    }

    /// Ends the calls that the transports have ended.
    fn finish_calls(&mut self) {
        for over in self.calls.take_all_over() {
            let Some(over) = self.go_on(over) else { continue };
            if let (Some(context), result) = self.end_of(over) {
                self.calls.tell(context, result);
            }
        }
    }

    /// The context and the result for the program; no context if nobody waits.
    pub(crate) fn end_of(&mut self, over: Over) -> (Option<u64>, Result<Value, OperationError>) {
        let Over { context, kind, result } = over;
        match kind {
            Kind::Plain | Kind::Connect(_) | Kind::Revoke => (Some(context), result),
            Kind::Meet => (Some(context), result.map(far_peer)),
            Kind::Grant(granted) => {
                if let Ok(Value::Key(key)) = result {
                    self.granted(key, granted);
                }
                (Some(context), result)
            }
            Kind::Nobody => (None, result),
        }
    }

    fn has_events(&mut self) -> bool {
        self.attend();
        let far = self.door.open().is_some_and(|far| far.has_events());
        if far {
            self.turns.look_next();
        }
        far || self.calls.has_events() || self.near.has_events()
    }

    pub(crate) fn do_finish(
        &mut self,
        context: u64,
        timeout: Duration,
    ) -> Option<Result<Value, OperationError>> {
        let until = now().saturating_add(timeout);
        loop {
            self.attend();
            self.finish_calls();
            if let Some(result) = self.calls.take_end(context) {
                return Some(result);
            }
            let (number, halves) = self.calls.find(context)?;
            let left = until.saturating_sub(now());
            let half = match halves {
                [true, _] => Half::Near,
                [false, true] => Half::Far,
                [false, false] if left.is_zero() => {
                    self.meet_never(number);
                    self.calls.forget(number);
                    return None;
                }
                [false, false] => {
                    sleep_on(&[self.files.woken()], left);
                    continue;
                }
            };
            let ended = match (half, self.door.open()) {
                (Half::Far, Some(far)) => far.finish(number, left),
                (Half::Far, None) => None,
                (Half::Near, _) => self.near.finish(number, left),
            };
            let Some(result) = ended else {
                // The other half gives it up, too.
                if let [true, true] = halves
                    && let Some(far) = self.door.open()
                {
                    let _ = far.finish(number, Duration::ZERO);
                }
                self.calls.forget(number);
                return None;
            };
            let end = weft_fabric::Completion { context: number, result };
            self.calls.ended(half, &end);
        }
    }

    pub(crate) fn do_wait(&mut self, timeout: Option<Duration>) -> Waited {
        let until = timeout.map(|timeout| now().saturating_add(timeout));
        self.adaptive_wait.restart();
        let mut slept = false;
        loop {
            if self.has_events() {
                if slept {
                    self.adaptive_wait.miss();
                } else {
                    self.adaptive_wait.hit();
                }
                return Waited::Ready;
            }
            let left = until.map(|until| until.saturating_sub(now()));
            if left == Some(Duration::ZERO) {
                return Waited::TimedOut;
            }
            if self.is_near_alone() {
                // It ends when a port is wanted, too.
                self.near.wait(left);
                continue;
            }
            match self.adaptive_wait.step() {
                Step::Spin => pause(),
                Step::Yield => self.adaptive_wait.give_way(),
                Step::Sleep => {
                    slept = true;
                    self.sleep(left.map_or(SLICE, |left| left.min(SLICE)));
                }
            }
        }
    }

    /// Sleeps until something may have come, at most `time`.
    fn sleep(&mut self, time: Duration) {
        let near = self.near.arm();
        let (near_time, is_busy) = match near {
            Armed::Busy => (time, true),
            Armed::Sleep => (time, false),
            Armed::PollWithin(within) => (time.min(within), false),
        };
        if is_busy {
            return;
        }
        let Some(far) = self.door.open() else {
            return sleep_on(&[self.files.any()], near_time);
        };
        match far.arm() {
            Armed::Busy => self.turns.look_next(),
            Armed::Sleep if self.files.has_port => sleep_on(&[self.files.any()], near_time),
            Armed::PollWithin(within) if !far.capabilities().descriptor => {
                far.doze(near_time.min(within));
            }
            // The port's descriptor may be readable already.
            Armed::PollWithin(within) => {
                sleep_on(&[self.near.descriptor()], near_time.min(within));
            }
            Armed::Sleep => sleep_on(&[self.near.descriptor()], near_time.min(AGAIN_WITHIN)),
        }
    }

    pub(crate) fn do_arm(&mut self) -> Armed {
        self.attend();
        if self.calls.has_events() {
            return Armed::Busy;
        }
        let near = self.near.arm();
        if near == Armed::Busy {
            return Armed::Busy;
        }
        let far = match self.door.open() {
            Some(far) => far.arm(),
            None => Armed::Sleep,
        };
        if far == Armed::Busy {
            self.turns.look_next();
        }
        match (near, far) {
            (Armed::Busy, _) | (_, Armed::Busy) => Armed::Busy,
            (Armed::PollWithin(one), Armed::PollWithin(other)) => Armed::PollWithin(one.min(other)),
            (Armed::PollWithin(time), Armed::Sleep) | (Armed::Sleep, Armed::PollWithin(time)) => {
                Armed::PollWithin(time)
            }
            (Armed::Sleep, Armed::Sleep) if self.door.open().is_some() && !self.files.has_port => {
                Armed::PollWithin(AGAIN_WITHIN)
            }
            (Armed::Sleep, Armed::Sleep) => Armed::Sleep,
        }
    }
}

impl<C: Cards + 'static> Watchable for LayeredEndpoint<C> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.files.any()
    }
}

/// The value of a connect through the port: a handle of the port's, as the program knows it.
const fn far_peer(value: Value) -> Value {
    match value {
        Value::Peer(Peer(handle)) => Value::Peer(Peer(handle | FAR)),
        other => other,
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    /// Looks in so many polls, each of which finds so many events.
    fn looks(turns: &mut Turns, polls: usize, finds: usize) -> usize {
        let due = (0..polls).filter(|_| {
            let is_due = turns.is_due();
            if is_due {
                turns.found(finds);
            }
            is_due
        });
        due.count()
    }

    #[test]
    fn a_port_that_tells_nothing_is_looked_at_less_often() {
        let mut turns = Turns::default();
        assert_eq!(looks(&mut turns, 100, 1), 100, "each poll, while there is something");
        let eager = usize::try_from(EAGER).expect("few");
        assert_eq!(looks(&mut turns, eager, 0), eager, "an answer may come soon");
        // Behind 0, 1, 3, 7, 15 and then 16 that leave it out.
        assert_eq!(looks(&mut turns, 1 + 2 + 4 + 8 + 16 + 17, 0), 6);
        assert_eq!(looks(&mut turns, 17, 1), 1);
        assert_eq!(looks(&mut turns, 10, 1), 10, "behind an event at once again");
        turns.told_by_memory();
        assert_eq!(looks(&mut turns, 1 + 2 + 4 + 8, 0), 4, "the memory has more to tell");
    }
}
