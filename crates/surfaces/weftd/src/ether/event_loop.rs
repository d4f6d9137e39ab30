//! The loop: it serves every active queue once, checks the resting queues, and sleeps when all are
//! idle.
//!
//! Where there are many queues only the active ones are polled. The driver of ANGARA-ETH#2.2
//! likewise serves the participants that talk before the others (*angara_parts*). A queue that had
//! no work for a while rests; its endpoint rings when there is work. The cost of a turn therefore
//! follows the traffic, not the number of devices.

use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use weft_ether::{Reach, Throttle};
use weft_fabric::{Endpoint, NodeId};
use weft_sync::{AdaptiveWait, Step};

use super::queue::{HostEndpoint, Queue, Sleeps};
use crate::status::DeviceStatus;

/// How long a loop may take to answer a request.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// How often the work that is due by the clock is done.
const TICK_EVERY: Duration = Duration::from_secs(1);
/// The epoll data of the eventfd that announces a request; queues have their index.
const WOKEN: u64 = u64::MAX;
/// Spins before the first yield, and yields before sleeping: some 50 us. Two programs that answer
/// each other need at most that; under a load of packets the limits are never reached.
const LOOKS: u32 = 40;
const YIELDS: u32 = 60;
/// Up to this number of queues, all are always polled: polling costs less than arming them.
const ACTIVE_MIN: usize = 4;
/// A queue rests after this long without work, when there are more queues.
const RESTS_AFTER: Duration = Duration::from_millis(1);

/// A queue of the loop.
struct Served<E: Endpoint> {
    queue: Queue<E>,
    /// Whether epoll watches the TAP for reading; `None` once the TAP is gone and was removed.
    reads: Option<bool>,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// The queue is polled. It last had work at `worked`.
    Active { worked: Duration },
    /// The queue is polled when its endpoint rings, or at `until`.
    Idle { until: Option<Duration> },
}

/// The queues of one loop.
pub struct EventLoop<E: Endpoint> {
    queues: Vec<Served<E>>,
    epoll: OwnedFd,
    woken: Arc<OwnedFd>,
    adaptive_wait: AdaptiveWait,
    throttle: Throttle,
    tick_at: Duration,
}

impl<E: HostEndpoint> EventLoop<E> {
    /// A loop for `queues`. Writing to `woken` interrupts its sleep. Under load the loop leaves its
    /// queues alone for up to `coalesce`.
    pub fn new(
        queues: Vec<Queue<E>>,
        woken: Arc<OwnedFd>,
        coalesce: Duration,
    ) -> anyhow::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("epoll_create")?;
        epoll::add(&epoll, woken.as_fd(), EventData::new_u64(WOKEN), EventFlags::IN)?;
        let serve = |(number, mut queue): (u64, Queue<E>)| -> anyhow::Result<_> {
            let data = EventData::new_u64(number);
            epoll::add(&epoll, queue.tap(), data, EventFlags::IN)?;
            epoll::add(&epoll, queue.line(), data, EventFlags::IN)?;
            Ok(Served { queue, reads: Some(true), state: State::Active { worked: now() } })
        };
        let queues = (0..).zip(queues).map(serve).collect::<anyhow::Result<_>>()?;
        let (adaptive_wait, throttle) = (AdaptiveWait::new(LOOKS, YIELDS), Throttle::new(coalesce));
        Ok(Self { queues, epoll, woken, adaptive_wait, throttle, tick_at: Duration::ZERO })
    }

    /// Serves the queues until `goes_on`, which is called in every turn, returns `false`.
    pub fn run(&mut self, mut goes_on: impl FnMut(&mut Self) -> bool) {
        // Without this, pauses take 50 us longer; the call may not be permitted.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            if !goes_on(self) {
                return;
            }
            let now = now();
            if now >= self.tick_at {
                self.tick_at = now + TICK_EVERY;
                self.queues.iter_mut().for_each(|served| served.queue.tick(now));
                self.rouse(now);
            }
            let done = self.turn(now);
            if done > 0 {
                self.throttle.worked(now);
                if !self.adaptive_wait.is_fresh() {
                    self.adaptive_wait.hit();
                }
                continue;
            }
            if let Some(pause) = self.throttle.pause(now, || total(&self.queues)) {
                std::thread::sleep(pause);
                continue;
            }
            match self.adaptive_wait.step() {
                Step::Spin => weft_sync::atomic::pause(),
                Step::Yield => self.adaptive_wait.give_way(),
                Step::Sleep => {
                    self.adaptive_wait.miss();
                    self.sleep(now);
                }
            }
        }
    }

    /// Serves every active queue once. Returns the number of events and packets handled.
    fn turn(&mut self, now: Duration) -> usize {
        if self.queues.iter().any(|served| matches!(served.state, State::Idle { .. })) {
            self.look(Duration::ZERO);
        }
        let is_contended = self.queues.len() > ACTIVE_MIN;
        let mut all = 0;
        for number in 0..self.queues.len() {
            let served = &mut self.queues[number];
            let worked = match served.state {
                State::Active { worked } => worked,
                State::Idle { until } if until.is_some_and(|until| until <= now) => now,
                State::Idle { .. } => continue,
            };
            let done = served.queue.turn(now);
            all += done;
            let worked = if done > 0 { now } else { worked };
            served.state = State::Active { worked };
            if is_contended && now.saturating_sub(worked) >= RESTS_AFTER {
                self.rest(number, now);
            }
        }
        all
    }

    /// Stops polling a queue. `false` when the queue has work, and stays active.
    fn rest(&mut self, number: usize, now: Duration) -> bool {
        match self.queues[number].queue.prepare() {
            Sleeps::Not => false,
            Sleeps::Until { reads, within } => {
                self.wait_for_tap(number, reads);
                let until = within.map(|within| now + within);
                self.queues[number].state = State::Idle { until };
                true
            }
        }
    }

    /// Makes every queue active.
    fn rouse(&mut self, now: Duration) {
        for served in &mut self.queues {
            served.state = State::Active { worked: now };
        }
    }

    /// Sleeps until a queue has work or the next tick is due.
    fn sleep(&mut self, now: Duration) {
        let mut until = self.tick_at;
        for number in 0..self.queues.len() {
            if matches!(self.queues[number].state, State::Active { .. }) && !self.rest(number, now)
            {
                return;
            }
            if let State::Idle { until: Some(due) } = self.queues[number].state {
                until = until.min(due);
            }
        }
        self.look(until.saturating_sub(now));
    }

    /// Activates the queues that rang or whose TAP is readable. Waits at most `longest` for one.
    fn look(&mut self, longest: Duration) {
        let timeout = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        // A signal also ends the wait.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&timeout)) else { return };
        let now = now();
        for event in events.iter() {
            let number = event.data.u64();
            if number == WOKEN {
                // The next turn answers the request.
                let _ = rustix::io::read(self.woken.as_fd(), &mut [0; 8]);
                self.rouse(now);
                continue;
            }
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            if let Some(served) = self.queues.get_mut(number) {
                served.state = State::Active { worked: now };
            }
        }
        if self.queues.len() <= ACTIVE_MIN {
            self.rouse(now);
        }
    }

    /// Changes whether epoll watches a TAP. A TAP that must not be read would wake the loop again
    /// and again. A TAP that is gone would do so even with an empty event set.
    fn wait_for_tap(&mut self, number: usize, reads: bool) {
        let served = &mut self.queues[number];
        let tap = served.queue.tap();
        if served.reads.is_some() && served.queue.is_gone() {
            let _ = epoll::delete(&self.epoll, tap);
            served.reads = None;
        } else if served.reads == Some(!reads) {
            let flags = if reads { EventFlags::IN } else { EventFlags::empty() };
            if epoll::modify(&self.epoll, tap, EventData::new_u64(number as u64), flags).is_ok() {
                served.reads = Some(reads);
            }
        }
    }

    /// Sets which nodes the device of `node` can reach; `false` when another loop serves that
    /// device.
    pub fn set_reach(&mut self, node: NodeId, reach: Reach) -> bool {
        let queues = self.queues.iter_mut().map(|served| &mut served.queue);
        let mut of_node = queues.filter(|queue| queue.node() == node).peekable();
        let is_here = of_node.peek().is_some();
        of_node.for_each(|queue| queue.set_reach(reach));
        is_here
    }

    /// The status of each queue.
    pub fn status(&self) -> Vec<(NodeId, DeviceStatus)> {
        let of = |served: &Served<E>| (served.queue.node(), served.queue.status());
        self.queues.iter().map(of).collect()
    }
}

/// Bytes moved so far. Where both ends are in this loop, their bytes count once.
fn total<E: HostEndpoint>(queues: &[Served<E>]) -> u64 {
    let each = queues.iter().map(|served| served.queue.bytes());
    let (sent, received) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    sent.max(received)
}

/// Time since boot: the clock of the ports.
pub fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}
