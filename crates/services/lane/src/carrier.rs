//! A carrier: the endpoint of a program with all lanes over it, behind one lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use weft_fabric::{Armed, Endpoint, Peer, WaitFor};

use crate::cells::Cells;
use crate::end::EndpointLane;
use crate::hub::{Fence, Hub, News};
use crate::layout::Layout;
use crate::message::Refusal;
use crate::table::{Exhausted, LaneNumber, Offer, Table};
use crate::watch::{Alarm, Driving, On, Sleep, Watch};

/// The limits of a carrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The sizes of the lanes that it opens, and the largest that it accepts. Default 256 slots and
    /// 256 KiB. A lane takes twice its layout: its own memory, and copies of what it sent.
    pub layout: Layout,
    /// The most lanes, 1 to 65,536; default 2,048.
    pub lanes_max: u32,
    /// Whether an armed endpoint stays so when it is polled: its descriptor becomes readable with
    /// what comes then. Default false.
    pub arming_lasts: bool,
}

/// How a thread of the program may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Falling {
    /// Something came. It looks at its lanes once more.
    LookAgain,
    /// It has the watch, and sleeps on the endpoint's descriptor, too.
    Watches(Sleep),
    /// It has the watch, and sleeps no longer than this. The descriptor tells nothing.
    Within(Sleep, Duration),
    /// Another thread watches, and has this one woken.
    IsWatched(Sleep),
}

impl Default for Settings {
    fn default() -> Self {
        Self { layout: Layout::default(), lanes_max: 2048, arming_lasts: false }
    }
}

/// An event of a carrier for its program.
pub enum Told<E: Endpoint> {
    /// A peer wants a lane: [`Carrier::accept`] or [`Carrier::refuse`] must follow.
    Offered(Offer),
    /// A lane is there that was opened or accepted with this token.
    Opened {
        /// The use of the lane, as its maker said.
        token: u64,
        /// The own end.
        lane: EndpointLane<E>,
    },
    /// There will be no lane.
    Refused {
        /// The use that it was made for.
        token: u64,
        /// Why there is none.
        why: Refusal,
    },
    /// An armed word of a lane was rung. The thread that sleeps for it must be woken.
    Rung(LaneNumber, WaitFor),
    /// The connection to a peer was ended, since the peer broke the protocol.
    Misbehaved {
        /// The peer.
        peer: Peer,
        /// The fault.
        how: String,
    },
}

/// Owns an endpoint and carries lanes over it. Clones are the same carrier.
pub struct Carrier<E: Endpoint>(Arc<Mutex<Hub<E>>>);

impl<E: Endpoint> fmt::Debug for Told<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offered(offer) => write!(f, "{offer:?}"),
            Self::Opened { token, lane } => write!(f, "Opened({token}, {lane:?})"),
            Self::Refused { token, why } => write!(f, "Refused({token}, {why:?})"),
            Self::Rung(number, what) => write!(f, "Rung({number:?}, {what:?})"),
            Self::Misbehaved { peer, how } => write!(f, "Misbehaved({peer:?}, {how})"),
        }
    }
}

impl<E: Endpoint> fmt::Debug for Carrier<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hub = self.lock();
        write!(f, "Carrier({}, {} lanes)", hub.endpoint.address(), hub.table.count())
    }
}

impl<E: Endpoint> Clone for Carrier<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: Endpoint> Carrier<E> {
    /// A carrier over `endpoint`, which is used for nothing else.
    ///
    /// # Panics
    /// When a setting is outside its bounds.
    #[must_use]
    pub fn new(endpoint: E, settings: Settings) -> Self {
        let Settings { layout, lanes_max, .. } = settings;
        assert!(layout.is_valid(), "{layout:?} is not a layout");
        assert!((1..=LaneNumber::PLACES).contains(&lanes_max), "1 to 65,536 lanes");
        let is_ordered = endpoint.capabilities().ordered;
        Self(Arc::new(Mutex::new(Hub {
            endpoint,
            settings,
            is_ordered,
            table: Table::new(lanes_max, layout),
            held: Vec::new(),
            cells: Cells::new(layout),
            unsent: VecDeque::new(),
            news: VecDeque::new(),
            rung: BTreeSet::new(),
            untold: BTreeSet::new(),
            failed: Vec::new(),
            closing: BTreeMap::new(),
            unfenced: Vec::new(),
            fence: Fence::Idle,
            watch: Watch::new(),
            is_armed: false,
            polls: 0,
        })))
    }

    /// Calls `act` with the endpoint, for example to connect to a peer.
    pub fn with_endpoint<T>(&self, act: impl FnOnce(&mut E) -> T) -> T {
        let mut hub = self.lock();
        // Each of its calls may poll, and so end the arming.
        hub.is_armed &= hub.settings.arming_lasts;
        act(&mut hub.endpoint)
    }

    /// Calls `look` with the endpoint and the regions of its lanes. `look` must not use the
    /// carrier.
    pub fn look_at_endpoint<T>(&self, look: impl FnOnce(&E, &[E::Region]) -> T) -> T {
        let hub = self.lock();
        look(&hub.endpoint, hub.cells.regions())
    }

    /// Begins to make a lane to a connected peer. `token` says to the peer's program what it is
    /// for. [`Told::Opened`] or [`Told::Refused`] follows.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn open(&self, peer: Peer, token: u64) -> Result<LaneNumber, Exhausted> {
        let mut hub = self.lock();
        let number = hub.table.open(peer, token)?;
        hub.act();
        Ok(number)
    }

    /// Begins to make the other end of an offered lane. [`Told::Opened`] or [`Told::Refused`]
    /// follows.
    ///
    /// # Errors
    /// [`Exhausted`]. The peer is told.
    pub fn accept(&self, offer: Offer) -> Result<LaneNumber, Exhausted> {
        let mut hub = self.lock();
        let begun = hub.table.accept(offer);
        hub.act();
        begun
    }

    /// Makes no other end of an offered lane.
    pub fn refuse(&self, offer: Offer) {
        let mut hub = self.lock();
        hub.table.refuse(offer, Refusal::Unwanted);
        hub.act();
    }

    /// Makes progress. Never blocks.
    pub fn poll(&self) {
        self.lock().poll();
    }

    /// The next thing that the program should know.
    #[must_use]
    pub fn told(&self) -> Option<Told<E>> {
        let mut hub = self.lock();
        if let Some((number, is_data)) = hub.rung.pop_first() {
            let what = if is_data { WaitFor::Data } else { WaitFor::Room };
            return Some(Told::Rung(number, what));
        }
        loop {
            return Some(match hub.news.pop_front()? {
                News::Offered(offer) => Told::Offered(offer),
                News::Refused(token, why) => Told::Refused { token, why },
                News::Misbehaved(peer, violation) => {
                    Told::Misbehaved { peer, how: violation.to_string() }
                }
                News::Opened(number, token) => {
                    let Some(end) = hub.end(number) else { continue };
                    let shared = Arc::clone(&end.shared);
                    drop(hub);
                    let lane = EndpointLane::new(self.clone(), shared, number, token);
                    Told::Opened { token, lane }
                }
            });
        }
    }

    /// True while something waits for room in the endpoint. Until it is out, somebody must poll,
    /// or peers wait in vain.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        self.lock().has_backlog()
    }

    /// True when all that was sent has arrived at the peers, for a program that ends. Makes
    /// progress; to be called until it is true.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.lock().is_out()
    }

    pub(crate) fn lock(&self) -> Locked<'_, E> {
        Locked(self.0.lock())
    }
}

/// For threads of a program that sleep, and one that drives the carrier for all of them.
///
/// Each call on a lane polls the endpoint, so that a thread may find the ring of a word on which
/// another one sleeps, and may end the arming of the endpoint. Then the driving thread is woken.
impl<E: Endpoint> Carrier<E> {
    /// A thread falls asleep that has armed a word of a lane, and has looked at the lane since. It
    /// must also be woken when its word was rung. `thread` tells it from others.
    ///
    /// [`Carrier::woke`] must follow, but after [`Falling::LookAgain`].
    #[must_use]
    pub fn falls_asleep(&self, thread: u64) -> Falling {
        let mut hub = self.lock();
        let watches = hub.watch.may_watch(thread);
        if !watches {
            return Falling::IsWatched(hub.watch.begin(thread, None));
        }
        match hub.arm() {
            Armed::Busy => Falling::LookAgain,
            Armed::Sleep => Falling::Watches(hub.watch.begin(thread, Some(On::Descriptor))),
            Armed::PollWithin(time) => {
                Falling::Within(hub.watch.begin(thread, Some(On::Nothing)), time)
            }
        }
    }

    /// A sleep is over. Makes progress if it had the watch, and returns the lanes whose words were
    /// rung: the caller wakes the threads that sleep for them.
    pub fn woke(&self, sleep: Sleep) -> Vec<LaneNumber> {
        let mut hub = self.lock();
        if !hub.watch.end(sleep) {
            return Vec::new();
        }
        hub.poll();
        let rung = std::mem::take(&mut hub.rung);
        let mut lanes: Vec<LaneNumber> = rung.into_iter().map(|(number, _)| number).collect();
        lanes.dedup();
        lanes
    }

    /// For the driving thread, after it has polled and taken all news: whether a thread of the
    /// program has the watch.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.lock().watch.is_kept()
    }

    /// For the driving thread: whether it has to watch for threads that sleep.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.lock().watch.is_wanted()
    }

    /// For the driving thread, which found something long after a thread of the program took the
    /// watch: that thread will not take it.
    pub fn dismiss_watcher(&self) {
        self.lock().watch.dismiss();
    }

    /// Sets what wakes the driving thread. It is called with the carrier locked, and must neither
    /// block nor use the carrier.
    pub fn set_alarm(&self, alarm: Alarm) {
        self.lock().watch.alarm = Some(alarm);
    }

    /// How often the endpoint was polled, by whomever. Where it stands still, no other thread makes
    /// progress.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.lock().polls
    }

    /// The driving thread looks again soon, or when there is something to tell. If it looks `late`,
    /// also when the thread that has the watch wakes up. False if there is something already.
    #[must_use]
    pub fn rest(&self, late: bool) -> bool {
        let mut hub = self.lock();
        hub.tell_taken();
        let is_deaf = hub.watch.needs_arming() && !hub.is_armed;
        let is_busy = hub.has_news() || is_deaf && hub.arm() == Armed::Busy;
        if !is_busy {
            hub.watch.driving = if late { Driving::Idle } else { Driving::Resting };
        }
        !is_busy
    }

    /// The driving thread takes the watch: arms the endpoint, and asks for the alarm also when
    /// another thread ends that. [`Armed::Busy`] if there is something to do first.
    pub fn sleep(&self) -> Armed {
        let mut hub = self.lock();
        if hub.has_news() {
            return Armed::Busy;
        }
        hub.tell_taken();
        let armed = hub.arm();
        match armed {
            Armed::Sleep => hub.watch.driving = Driving::Watching,
            Armed::PollWithin(_) => hub.watch.driving = Driving::Peering,
            Armed::Busy => {}
        }
        armed
    }

    /// The driving thread goes on, and needs no alarm.
    pub fn wake(&self) {
        self.lock().watch.driving = Driving::Awake;
    }
}

/// A carrier's state while it is locked. When that ends, the driving thread is woken if need be.
pub(crate) struct Locked<'a, E: Endpoint>(MutexGuard<'a, Hub<E>>);

impl<E: Endpoint> Deref for Locked<'_, E> {
    type Target = Hub<E>;

    fn deref(&self) -> &Hub<E> {
        &self.0
    }
}

impl<E: Endpoint> DerefMut for Locked<'_, E> {
    fn deref_mut(&mut self) -> &mut Hub<E> {
        &mut self.0
    }
}

impl<E: Endpoint> Drop for Locked<'_, E> {
    fn drop(&mut self) {
        self.0.alarm();
    }
}
