//! The thread that drives the endpoint of this process.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_fabric::{Armed, Carry, Watchable};
use weft_lane::{Carrier, Told};

use super::opening::Own;
use super::{CALLS, FarLane, Making, MakingState, STATE, Stage, Waiting};
use crate::deferral::Held;
use crate::{bells, log, process, rescue, sys};

/// Longest sleep of the driving thread, as of an endpoint that waits.
const SLICE: Duration = Duration::from_millis(100);
/// From this sleep on the driving thread is woken when a thread of the program leaves the watch.
const LATE: Duration = Duration::from_millis(16);
/// The same while bytes of a lost lane wait for the kernel.
const AGAIN_SOON: Duration = Duration::from_millis(5);
/// How often the driving thread looks whether others still poll. A program that computes may leave
/// its peers without an answer for as long.
const BESIDE_OTHERS: Duration = Duration::from_millis(2);

/// The driving thread.
pub(super) fn drive(carrier: &Carrier<Own>, alarm: &Arc<OwnedFd>) {
    // It stays open as long as the carrier.
    let descriptor = carrier.with_endpoint(|it| it.descriptor().as_raw_fd());
    let mut polls = 0;
    // It doubles while a thread of the program has the watch.
    let mut rest = BESIDE_OTHERS;
    loop {
        carrier.wake();
        carrier.poll();
        while let Some(told) = carrier.told() {
            if rest >= LATE && matches!(told, Told::Rung(..)) {
                carrier.dismiss_watcher();
            }
            tell(carrier, told);
        }
        let Some(mut state) = STATE.lock() else { return };
        let gone: Vec<FarLane> = state.left.extract_if(.., |lane| lane.is_over()).collect();
        // Lanes that are still being made are dropped, and with them the peers' ends.
        let unwanted = match state.stage {
            Stage::Serves => Vec::new(),
            Stage::Asked | Stage::Leaves | Stage::Ends | Stage::Barren => {
                std::mem::take(&mut state.makings)
            }
        };
        if state.stage == Stage::Asked {
            state.stage = have_them_leave(alarm);
        }
        let is_last = state.stage == Stage::Ends && state.lanes.is_empty() && state.left.is_empty();
        let driver = if is_last { state.driver.take() } else { None };
        let is_over = state.driver.is_none();
        let settled: Vec<Waiting> = (state.makings.iter())
            .filter(|making| making.is_settled())
            .map(|making| making.connection)
            .collect();
        drop(state);
        drop((gone, unwanted, driver));
        if is_over {
            return;
        }
        if let Some(calls) = CALLS.get() {
            (calls.go_on)();
        }
        if let (false, Some(calls)) = (settled.is_empty(), CALLS.get()) {
            settled.iter().copied().for_each(calls.settled);
        }
        let others = std::mem::replace(&mut polls, carrier.polls()).wrapping_add(1) != polls;
        let is_watched = carrier.is_watched();
        if is_watched || others && !carrier.is_wanted() || !settled.is_empty() {
            // They find what arrives by themselves, or wake this thread for another one. A thread
            // that decides for a connection just now has decided by then.
            let is_hurried = rescue::are_waiting() || !settled.is_empty() || !is_watched;
            rest = if is_hurried { BESIDE_OTHERS } else { (2 * rest).min(SLICE) };
            if carrier.rest(rest >= LATE) {
                sleep(None, alarm, rest);
            }
            continue;
        }
        rest = BESIDE_OTHERS;
        let slice = if rescue::are_waiting() { AGAIN_SOON } else { SLICE };
        match carrier.sleep() {
            Armed::Busy => {}
            Armed::Sleep => sleep(Some(descriptor), alarm, slice),
            Armed::PollWithin(time) => sleep(None, alarm, time),
        }
    }
}

/// Takes the connections back to TCP, in a thread of its own: their peers may be in this process,
/// and need the driving thread when they follow. Called with the state locked.
fn have_them_leave(alarm: &Arc<OwnedFd>) -> Stage {
    let Some(calls) = CALLS.get() else { return Stage::Ends };
    let alarm = Arc::clone(alarm);
    let builder = std::thread::Builder::new().name("weft-leave".to_owned()).stack_size(256 << 10);
    let begun = builder.spawn(move || {
        let _held = Held::new();
        (calls.leave)();
        if let Some(mut state) = STATE.lock() {
            state.stage = Stage::Ends;
        }
        bells::ring_one(&*alarm);
        process::own_thread_ends();
    });
    match begun {
        Ok(_) => {
            process::has_own_thread();
            Stage::Leaves
        }
        Err(error) => {
            log::warn_user!("no thread: {error}; connections stay on their lanes");
            Stage::Ends
        }
    }
}

fn sleep(descriptor: Option<RawFd>, alarm: &OwnedFd, most: Duration) {
    let nanoseconds = i64::from(most.subsec_nanos());
    let timeout = Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    let borrowed: Option<BorrowedFd<'_>> = descriptor.map(sys::borrow);
    let mut fds = vec![PollFd::new(alarm, PollFlags::IN)];
    fds.extend(borrowed.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
    let _ = poll(&mut fds, Some(&timeout));
    let _ = rustix::io::read(alarm, &mut [0; 8]);
}

fn tell(carrier: &Carrier<Own>, told: Told<Own>) {
    match told {
        Told::Offered(offer) => {
            let is_expected = STATE.lock().is_some_and(|mut state| {
                let expected = |making: &&mut Making| {
                    making.number == offer.token && matches!(making.state, MakingState::Expected)
                };
                state.makings.iter_mut().find(expected).is_some_and(|making| {
                    making.state = MakingState::UnderWay;
                    true
                })
            });
            if !is_expected {
                carrier.refuse(offer);
            } else if carrier.accept(offer).is_err() {
                settle(offer.token, MakingState::Failed);
            }
        }
        Told::Opened { token, lane } => settle(token, MakingState::Ready(lane)),
        Told::Refused { token, why } => {
            log::debug!("no lane over the endpoint: {why:?}");
            settle(token, MakingState::Failed);
        }
        Told::Rung(number, _) => {
            let found = STATE.lock().and_then(|state| state.lanes.get(&number).copied());
            if let (Some((place, fd)), Some(calls)) = (found, CALLS.get()) {
                (calls.arrived)(place, fd);
            }
        }
        Told::Misbehaved { how, .. } => log::warn_user!("a peer's lanes are ended: {how}"),
    }
}

/// A lane came to its end of being made. One that nobody wants any more is dropped, which tells the
/// peer.
fn settle(number: u64, settled: MakingState) {
    let left = STATE.lock().map_or(MakingState::Failed, |mut state| {
        match state.makings.iter_mut().find(|making| making.number == number) {
            Some(making) => std::mem::replace(&mut making.state, settled),
            None => settled,
        }
    });
    drop(left);
}
