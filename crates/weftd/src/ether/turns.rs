//! The loop: every queue in turn, then a look, then sleep.

use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use weft_ether::{Reach, Throttle};
use weft_fabric::NodeId;
use weft_sync::{Patience, Step};

use super::queue::{Queue, Sleeps};
use crate::status::DeviceStatus;

/// How long an answer of the loop may take.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// How often what is due by the clock is done.
const TICK_EVERY: Duration = Duration::from_secs(1);
/// Beside the numbers of queues: the loop is asked something.
const WOKEN: u64 = u64::MAX;
/// Looks at all queues before the first yield, and yields before sleeping: some 50 us, which two
/// programs that answer each other need at most, and which a load of packets never reaches.
const LOOKS: u32 = 40;
const YIELDS: u32 = 60;

/// The queues of one loop.
pub struct Turns {
    queues: Vec<Queue>,
    /// Whether each one's TAP is waited for; not at all once it is gone.
    reads: Vec<Option<bool>>,
    epoll: OwnedFd,
    woken: Arc<OwnedFd>,
    patience: Patience,
    throttle: Throttle,
    tick_at: Duration,
}

impl Turns {
    /// A loop for `queues`, which `woken` interrupts, and which leaves them alone for up to
    /// `coalesce` under load.
    pub fn new(
        mut queues: Vec<Queue>,
        woken: Arc<OwnedFd>,
        coalesce: Duration,
    ) -> anyhow::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("epoll_create")?;
        epoll::add(&epoll, woken.as_fd(), EventData::new_u64(WOKEN), EventFlags::IN)?;
        for (number, queue) in (0_u64..).zip(&mut queues) {
            let data = EventData::new_u64(number);
            epoll::add(&epoll, queue.tap(), data, EventFlags::IN)?;
            let line = queue.line().context("the transport has nothing to sleep on")?;
            epoll::add(&epoll, line, data, EventFlags::IN)?;
        }
        let reads = vec![Some(true); queues.len()];
        let (patience, throttle) = (Patience::new(LOOKS, YIELDS), Throttle::new(coalesce));
        Ok(Self { queues, reads, epoll, woken, patience, throttle, tick_at: Duration::ZERO })
    }

    /// Serves the queues until `goes_on` says `false`; it is asked in every turn.
    pub fn run(&mut self, mut goes_on: impl FnMut(&mut Self) -> bool) {
        // Else pauses take 50 us longer; where that is not allowed they do.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            if !goes_on(self) {
                return;
            }
            let now = now();
            if now >= self.tick_at {
                self.tick_at = now + TICK_EVERY;
                self.queues.iter_mut().for_each(|queue| queue.tick(now));
            }
            let done: usize = self.queues.iter_mut().map(|queue| queue.turn(now)).sum();
            if done > 0 {
                self.throttle.worked(now);
                if !self.patience.is_fresh() {
                    self.patience.hit();
                }
                continue;
            }
            if let Some(pause) = self.throttle.pause(now, || total(&self.queues)) {
                std::thread::sleep(pause);
                continue;
            }
            match self.patience.step() {
                Step::Spin => weft_sync::atomic::pause(),
                Step::Yield => self.patience.give_way(),
                Step::Sleep => {
                    self.patience.miss();
                    self.sleep();
                }
            }
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self) {
        let mut longest = self.tick_at.saturating_sub(now());
        for number in 0..self.queues.len() {
            match self.queues[number].prepare() {
                Sleeps::Not => return,
                Sleeps::Until { reads, within } => {
                    longest = within.map_or(longest, |within| longest.min(within));
                    self.wait_for_tap(number, reads);
                }
            }
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        // A signal is as good as an event.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&timeout)) else { return };
        if events.iter().any(|event| event.data.u64() == WOKEN) {
            // Who rang asks in the next turn.
            let _ = rustix::io::read(self.woken.as_fd(), &mut [0; 8]);
        }
    }

    /// A TAP that must not be read would wake the loop again and again, and so would one that is
    /// gone, whatever it is waited for.
    fn wait_for_tap(&mut self, number: usize, reads: bool) {
        let tap = self.queues[number].tap();
        if self.reads[number].is_some() && self.queues[number].is_gone() {
            let _ = epoll::delete(&self.epoll, tap);
            self.reads[number] = None;
        } else if self.reads[number] == Some(!reads) {
            let flags = if reads { EventFlags::IN } else { EventFlags::empty() };
            if epoll::modify(&self.epoll, tap, EventData::new_u64(number as u64), flags).is_ok() {
                self.reads[number] = Some(reads);
            }
        }
    }

    /// Links of `node` were cut, or mended; `false` when its device is served elsewhere.
    pub fn set_reach(&mut self, node: NodeId, reach: Reach) -> bool {
        let mut of_node = self.queues.iter_mut().filter(|queue| queue.node() == node).peekable();
        let is_here = of_node.peek().is_some();
        of_node.for_each(|queue| queue.set_reach(reach));
        is_here
    }

    /// What the queues are doing.
    pub fn status(&self) -> Vec<DeviceStatus> {
        self.queues.iter().map(|queue| queue.status(now())).collect()
    }
}

/// Bytes that went through so far, once also where both ends are here.
fn total(queues: &[Queue]) -> u64 {
    let each = queues.iter().map(Queue::bytes);
    let (sent, received) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    sent.max(received)
}

/// Time since the machine started: the clock of ports.
pub fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}
