//! An endpoint's lock, what wakes its threads, and the thread that answers peers while the program
//! computes.
//!
//! The program has the helm while it polls, waits or has armed: it takes what the NIC reports.
//! When it does not for a while, the thread does.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use weft_fabric::Armed;

use crate::nic::{Nic, ThreadHolds};
use crate::station::Station;
use crate::watch::Watch;

/// How long the program may leave the helm before the thread takes it.
const HELM_FOR: Duration = Duration::from_millis(2);
/// How long a thread sleeps at most: timers of the state machine are at hand by then.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// How often the NIC is looked at before a sleep that it does not allow yet: it may have work that
/// makes no event.
const LOOKS_BEFORE_SLEEP: usize = 8;
/// How soon the NIC is asked again when it had no room.
const AGAIN_WITHIN: Duration = Duration::from_millis(1);
/// A program that has looked so often since its last sleep polls: the NIC is not watched for it.
const LOOKS_OF_A_POLLER: u64 = 1000;

/// The state that the program's thread and the endpoint's own share.
pub(crate) struct Shared<N> {
    station: Mutex<Station<N>>,
    /// Readable when there may be something for the program that the NIC does not tell of.
    woken: OwnedFd,
    /// The same for the thread.
    called: OwnedFd,
    /// Readable when `woken` is, or the NIC while the program sleeps.
    any: Watch,
    /// Readable when `called` is, or the NIC while the thread sleeps.
    any_for_thread: Watch,
    /// How often the program has taken the helm.
    turns: AtomicU64,
    /// The same when it slept last.
    slept_at: AtomicU64,
    /// The program sleeps, or has armed, and takes what comes.
    sleeps: AtomicBool,
    stops: AtomicBool,
    /// Something waits for the program that was handled without it.
    waits: AtomicBool,
    /// The value that each thread of the endpoint keeps.
    pub(crate) thread_holds: ThreadHolds,
    of_program: Sleeper,
    of_thread: Sleeper,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The thread that answers peers while the program computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Serving {
    /// A thread of the endpoint.
    Thread,
    /// The owner, who has a thread for that.
    Owner,
}

/// The use of a thread's last sleep.
#[derive(Default)]
struct Sleeper {
    /// Something ended it.
    was_woken: AtomicBool,
    /// Reports that were handled before it.
    taken: AtomicU64,
}

impl<N> fmt::Debug for Shared<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl<N: Nic + 'static> Shared<N> {
    /// The endpoint of this state. `wakers` are what others write to that have made news: for the
    /// program and for the thread, which keeps the value of `thread_holds` while it runs.
    pub fn new(
        station: Station<N>,
        wakers: [OwnedFd; 2],
        thread_holds: ThreadHolds,
        serving: Serving,
    ) -> Result<Arc<Self>, Errno> {
        let [any, any_for_thread] = [Watch::new(&wakers[0])?, Watch::new(&wakers[1])?];
        let [woken, called] = wakers;
        let has_descriptor = station.engine.nic().descriptor().is_some();
        let shared = Arc::new(Self {
            station: Mutex::new(station),
            woken,
            called,
            any,
            any_for_thread,
            turns: AtomicU64::new(0),
            slept_at: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            thread_holds,
            of_program: Sleeper::default(),
            of_thread: Sleeper::default(),
            thread: Mutex::new(None),
        });
        if has_descriptor && serving == Serving::Owner {
            return Ok(shared);
        }
        if has_descriptor {
            let own = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("weft-ofi".into());
            let thread = thread.spawn(move || {
                let held = thread_holds();
                own.serve();
                drop(own);
                drop(held);
            });
            let thread = thread.map_err(|_| Errno::AGAIN)?;
            *shared.thread.lock() = Some(thread);
        } else {
            // The network has it answer peers.
            let own = Arc::downgrade(&shared);
            shared.lock().engine.nic_mut().linger(
                thread_holds,
                Box::new(move || {
                    let Some(shared) = own.upgrade() else { return true };
                    if let Some(mut station) = shared.station.try_lock() {
                        station.progress();
                        shared.note(&station);
                    }
                    shared.stops.load(Ordering::Relaxed)
                }),
            );
        }
        Ok(shared)
    }

    pub fn lock(&self) -> MutexGuard<'_, Station<N>> {
        self.station.lock()
    }

    pub fn now(&self) -> Duration {
        self.lock().engine.nic().now()
    }

    /// Takes the helm, and handles what has come.
    pub fn progress(&self) -> MutexGuard<'_, Station<N>> {
        // Only the program writes it, so that no other write can be lost.
        let turns = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        self.turns.store(turns, Ordering::Relaxed);
        if self.sleeps.load(Ordering::Relaxed) {
            self.sleeps.store(false, Ordering::Relaxed);
            clear(&self.woken);
        }
        let mut station = self.lock();
        if self.any.has_card()
            && turns.wrapping_sub(self.slept_at.load(Ordering::Relaxed)) > LOOKS_OF_A_POLLER
            && let Some(card) = station.engine.nic().descriptor()
        {
            self.any.remove(card);
            // Another thread of the program may still sleep on it, and has to arm again.
            ring(&self.woken);
        }
        station.progress();
        self.waits.store(false, Ordering::Relaxed);
        station
    }

    /// Has the NIC end the next sleeps of the program. False if it does not.
    fn watch_for_program(&self, station: &Station<N>) -> bool {
        self.slept_at.store(self.turns.load(Ordering::Relaxed), Ordering::Relaxed);
        station.engine.nic().descriptor().is_some_and(|card| self.any.add(card))
    }

    /// Has the program look, if something waits for it.
    fn note(&self, station: &Station<N>) {
        if station.engine.has_events() {
            self.waits.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something waits for the program that was handled without it.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Sleeps until something may have come, at most `time`.
    pub fn sleep(&self, time: Duration) {
        let mut station = self.lock();
        if station.engine.nic().descriptor().is_none() {
            return station.engine.nic_mut().pass(time);
        }
        self.sleeps.store(true, Ordering::Relaxed);
        self.look(&mut station);
        let is_watched = self.watch_for_program(&station);
        for _ in 0..LOOKS_BEFORE_SLEEP {
            station.progress();
            if station.engine.has_events() {
                return;
            }
            if is_watched && station.engine.nic().may_sleep() {
                let waits = station.engine.waits_for_the_card();
                let most = if waits { AGAIN_WITHIN } else { SLEEP_MAX };
                let taken = station.engine.taken();
                drop(station);
                return self.doze(self.any.as_fd(), time.min(most), &self.of_program, taken);
            }
        }
        drop(station);
        std::thread::sleep(AGAIN_WITHIN.min(time));
    }

    /// Before a sleep: looks at the connection to the broker, and has it end the sleep.
    fn look(&self, station: &mut Station<N>) {
        station.look();
        station.watch([self.any.as_fd(), self.any_for_thread.as_fd()]);
    }

    /// Sleeps until `file` is readable. `taken` reports of the NIC were handled so far.
    fn doze(&self, file: BorrowedFd<'_>, time: Duration, sleeper: &Sleeper, taken: u64) {
        // The descriptor of a provider stays readable while data wait for which there is no buffer.
        let was_woken = sleeper.was_woken.swap(false, Ordering::Relaxed);
        if sleeper.taken.swap(taken, Ordering::Relaxed) == taken && was_woken {
            return std::thread::sleep(AGAIN_WITHIN.min(time));
        }
        let time = Timespec::try_from(time).ok();
        // A signal ends the sleep, as anything else does.
        let woken = poll(&mut [PollFd::from_borrowed_fd(file, PollFlags::IN)], time.as_ref());
        sleeper.was_woken.store(woken != Ok(0), Ordering::Relaxed);
    }

    /// Prepares the program's sleep on [`Shared::descriptor`].
    pub fn arm(&self) -> Armed {
        let mut station = self.progress();
        self.sleeps.store(true, Ordering::Relaxed);
        // The line to the broker ends the sleep, so most sleeps begin without a look at it.
        if !station.is_line_watched() {
            self.look(&mut station);
        }
        let is_watched = self.watch_for_program(&station);
        for _ in 0..LOOKS_BEFORE_SLEEP {
            station.progress();
            if station.engine.has_events() {
                return Armed::Busy;
            }
            if !is_watched || station.engine.waits_for_the_card() {
                break;
            }
            if station.engine.nic().may_sleep() {
                return Armed::Sleep;
            }
        }
        Armed::PollWithin(AGAIN_WITHIN)
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.any.as_fd()
    }

    pub fn each_descriptor(&self, look: &mut dyn FnMut(BorrowedFd<'_>)) {
        let sets = [self.any.as_fd(), self.any_for_thread.as_fd()];
        for file in [self.woken.as_fd(), self.called.as_fd()].into_iter().chain(sets) {
            look(file);
        }
        let station = self.lock();
        station.engine.nic().descriptor().into_iter().for_each(&mut *look);
        station.line().into_iter().for_each(look);
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
        ring(&self.called);
        if let Some(thread) = self.thread.lock().take() {
            // It does not panic, and if it did, the endpoint is closed all the same.
            let _ = thread.join();
        }
    }

    /// The thread: answers peers while the program does something else.
    fn serve(&self) {
        let mut seen = 0;
        while !self.stops.load(Ordering::Relaxed) {
            let turns = self.turns.load(Ordering::Relaxed);
            if turns != seen {
                // The program is at work here.
                seen = turns;
                if self.any_for_thread.has_card()
                    && let Some(card) = self.lock().engine.nic().descriptor()
                {
                    self.any_for_thread.remove(card);
                }
                std::thread::sleep(HELM_FOR);
                continue;
            }
            let (may_sleep, taken) = {
                let mut station = self.lock();
                self.look(&mut station);
                let card = station.engine.nic().descriptor();
                let is_watched = card.is_some_and(|card| self.any_for_thread.add(card));
                station.progress();
                let events = station.engine.has_events();
                self.note(&station);
                if events && self.sleeps.load(Ordering::Relaxed) {
                    ring(&self.woken);
                }
                let waits = station.engine.waits_for_the_card();
                (is_watched && station.engine.nic().may_sleep() && !waits, station.engine.taken())
            };
            if may_sleep {
                self.sleep_on_the_card(taken);
            } else {
                std::thread::sleep(AGAIN_WITHIN);
            }
        }
    }

    /// Sleeps until the NIC reports something. A program that sleeps, too, goes first.
    fn sleep_on_the_card(&self, taken: u64) {
        let turns = self.turns.load(Ordering::Relaxed);
        self.doze(self.any_for_thread.as_fd(), SLEEP_MAX, &self.of_thread, taken);
        clear(&self.called);
        if self.sleeps.load(Ordering::Relaxed) && self.turns.load(Ordering::Relaxed) == turns {
            std::thread::sleep(AGAIN_WITHIN);
        }
    }
}

/// A counter that wakes whoever waits for it.
pub(crate) fn counter() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes whoever waits for a counter.
pub(crate) fn ring(counter: &OwnedFd) {
    // A full counter wakes as well.
    let _ = rustix::io::write(counter, &1_u64.to_ne_bytes());
}

fn clear(counter: &OwnedFd) {
    // It is empty if nobody rang.
    let _ = rustix::io::read(counter, &mut [0; 8]);
}
