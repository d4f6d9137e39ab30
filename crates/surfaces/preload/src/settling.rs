//! Executes the heavy fence between arming and the last look before a sleep. One fence serves all
//! connections that a thread is about to sleep for. No fence is needed where the peers have agreed
//! to execute full fences (`weft_transport_shm::sleeper`), nor for lanes over endpoints: there the
//! endpoint is armed behind the last look ([`crate::carrier::falls_asleep`]).

use std::sync::atomic::Ordering;

use weft_fabric::WaitFor;
use weft_sync::fence;
use weft_transport_shm::sleeper::Asking;

use crate::arena::Connection;
use crate::lane::Lane;
use crate::sys;

/// After this many finds in a row without a sleep, a connection counts as awake again.
const FINDS: u32 = 8;

/// How long after a lost heavy fence all stores of peers are taken for visible, in nanoseconds.
/// They are within some hundred, however busy the machine is.
const DRAINED_NS: u64 = 100_000;

/// Called when the heavy fence failed and the peers were asked for full fences: waits until they
/// see that, and this thread sees what they did before. The filter of system calls that took the
/// fence away may forbid others, too, so the thread makes none.
#[cold]
fn wait_for_stores() {
    let start = sys::now_ns();
    while sys::now_ns() - start < DRAINED_NS {
        std::hint::spin_loop();
    }
}

/// Executes the fence after `what` of a lane was armed; one more look must follow.
pub fn settle(lane: &Lane, what: WaitFor) {
    let Some(lane) = lane.in_memory() else { return };
    if let Some(asking) = lane.sleeps(what) {
        if !fence::heavy() {
            lane.lost_heavy_fence();
            wait_for_stores();
        }
        lane.slept(what, asking);
    }
}

/// Several connections that were armed and need one fence.
#[derive(Default)]
pub struct Settling {
    asking: Vec<(Connection, WaitFor, Asking)>,
}

impl Settling {
    /// Adds a connection whose `what` was armed.
    pub fn add(&mut self, connection: Connection, what: WaitFor) {
        connection.counts_sleep();
        if let Some(receiving) = connection.receiving()
            && let Some(lane) = receiving.lane.and_then(Lane::in_memory)
        {
            let asking = lane.sleeps(what);
            self.asking.extend(asking.map(|asking| (connection, what, asking)));
        }
    }

    /// Executes one fence for all of them; one more look at each must follow.
    pub fn settle(self) {
        if self.asking.is_empty() {
            return;
        }
        let is_fenced = fence::heavy();
        for (connection, what, asking) in self.asking {
            if let Some(receiving) = connection.receiving()
                && let Some(lane) = receiving.lane.and_then(Lane::in_memory)
            {
                if !is_fenced {
                    lane.lost_heavy_fence();
                }
                lane.slept(what, asking);
            }
        }
        if !is_fenced {
            wait_for_stores();
        }
    }
}

impl Connection {
    /// Counts a sleep that needs no fence of this thread.
    pub fn counts_sleep(&self) {
        self.local.finds_left.store(FINDS, Ordering::Relaxed);
    }

    /// Executes the fence after `what` was armed; one more look must follow. False without a lane.
    pub fn settle(&self, what: WaitFor) -> bool {
        self.counts_sleep();
        let Some(receiving) = self.receiving() else { return false };
        let Some(lane) = receiving.lane else { return false };
        settle(lane, what);
        true
    }

    /// Counts that a look at the connection found something.
    #[inline]
    pub fn found_awake(&self) {
        let left = self.local.finds_left.load(Ordering::Relaxed);
        if left > 0 {
            self.count_find(left);
        }
    }

    #[cold]
    fn count_find(&self, left: u32) {
        self.local.finds_left.store(left - 1, Ordering::Relaxed);
        if left == 1
            && let Some(receiving) = self.receiving()
            && let Some(lane) = receiving.lane.and_then(Lane::in_memory)
        {
            lane.found_awake(WaitFor::Data);
            lane.found_awake(WaitFor::Room);
        }
    }
}
