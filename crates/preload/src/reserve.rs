//! Keeps lanes when connections end, for later connections of the same two processes.
//!
//! A lane from the daemon costs two programs as much as a megabyte over TCP. Connections that are
//! expected to carry less than pays for that ([`weft_socket::history::Outlook::Middling`]) use a
//! lane that an earlier connection of the same two processes left
//! ([`weft_transport_shm::lane::reserve`]). The connecting end writes an invitation into such a
//! lane, and the accepting end looks for one to its connection during its first calls. Now and then
//! both ends ask the daemon for a lane all the same, so that there is one to keep
//! ([`weft_socket::history::should_prime`]).
//!
//! # Invariants
//! - A lane is kept only by the process that mapped it, and only if that process has not forked
//!   since: no other process has this end mapped. Fork takes the locks of this module. A connection
//!   moves to a kept lane under such a lock, and only if no other process holds it.
//! - Both processes belong to one user, as the daemon says. Both sockets have addresses of one
//!   host, in one network namespace, so that a fingerprint names one connection.
//! - A kept lane has no descriptor. Each end keeps `socket.lanes_kept` lanes at most.
//! - The lock of a connection's direction is taken after a lock of this module.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_socket::history::should_prime;
use weft_socket::{Phase, SendSide, Side};
use weft_transport_shm::lane::ShmLane;
use weft_transport_shm::lane::reserve::{FIRST_ROUND, Invitation, next_round};

use crate::arena::{self, Connection, NOT_KEPT, flag};
use crate::decision::same_host;
use crate::guard::{ForkLock, LocalLock};
use crate::history::Fnv;
use crate::lane::Lane;
use crate::{control, lanes, log, process, sys};

/// A lane is no longer kept after more misses than this.
const MISSES_MAX: u32 = 18;
/// An invitation that no peer claimed counts as this many misses. A peer that still uses the lane
/// counts as one.
const MISSES_UNCLAIMED: u32 = 6;
/// During this many calls a connection looks for an invitation to it, or for the answer to its own.
const LOOKS_MAX: u64 = 12;
/// A write of at least this many bytes waits for the answer first.
const PENDING_WORTH: usize = 1 << 16;
/// When a kept lane is used again, this many wasted requests and misses are forgiven.
const FORGIVEN_BY_USE: u32 = 8;
/// The count stops here, so that it can come down again.
const WASTED_MAX: u32 = 64;

/// A kept lane, which no connection uses.
struct Kept {
    lane: ShmLane,
    /// The process at its other end.
    peer: u32,
    /// The address of its last connection, as a place in [`crate::history`].
    address: u32,
    /// The last round in which it was used.
    round: u32,
    /// How many messages this end sent in that round.
    sent: u64,
    misses: u32,
}

/// A kept lane with an invitation to the other end of a connection.
struct Invited {
    kept: Kept,
    invitation: Invitation,
    place: u32,
    generation: u32,
}

#[derive(Default)]
struct Connecting {
    kept: Vec<Kept>,
    invited: Vec<Invited>,
}

static CONNECTING: LocalLock<Connecting> =
    LocalLock::new(Connecting { kept: Vec::new(), invited: Vec::new() });
static ACCEPTING: LocalLock<Vec<Kept>> = LocalLock::new(Vec::new());
/// How many lanes the two lists hold: read without the lock.
static KEPT_CONNECTING: AtomicU32 = AtomicU32::new(0);
static KEPT_ACCEPTING: AtomicU32 = AtomicU32::new(0);
/// Counts the checks whether a kept lane's peer is alive; gives the lane that is checked next.
static CHECKED: AtomicU64 = AtomicU64::new(0);
/// The counts of [`Connection::wasted`], by address.
static WASTED: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// How often this process has forked.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The answer to an invitation.
enum Answer {
    /// The other end claimed the lane.
    Claimed(Kept),
    /// It has not come yet.
    Waiting,
    /// The other end will not claim it.
    Over,
}

/// The locks of this module, for fork.
pub fn locks() -> [&'static dyn ForkLock; 2] {
    [&CONNECTING, &ACCEPTING]
}

/// Called before this process forks.
pub fn before_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// In a forked child: the kept lanes are the parent's.
pub fn forked() {
    if let Some(mut connecting) = CONNECTING.lock() {
        *connecting = Connecting::default();
        KEPT_CONNECTING.store(0, Ordering::Relaxed);
    }
    if let Some(mut accepting) = ACCEPTING.lock() {
        accepting.clear();
        KEPT_ACCEPTING.store(0, Ordering::Relaxed);
    }
}

/// The process ends: tells the peers that the kept lanes get no invitations any more.
pub fn end() {
    if let Some(connecting) = CONNECTING.lock() {
        connecting.kept.iter().for_each(|kept| kept.lane.abandon());
    }
}

/// True when lanes are kept. Those over an endpoint are not: their number costs nothing there, and
/// the daemon's part of making one is small.
fn keeps_lanes() -> bool {
    process::settings().lanes_kept > 0 && !process::settings().over_endpoint
}

fn count(kept: &[Kept]) -> u32 {
    u32::try_from(kept.len()).unwrap_or(u32::MAX)
}

/// Adds a kept lane. Returns the oldest one when there are too many.
fn add(kept: &mut Vec<Kept>, new: Kept) -> Option<Kept> {
    kept.push(new);
    (kept.len() > process::settings().lanes_kept).then(|| kept.remove(0))
}

/// A hash that names the connection, the same at both ends. `None` if the ends are not on one host,
/// or the kernel does not name their network namespace.
fn fingerprint(fd: RawFd, side: Side) -> Option<u64> {
    let socket = sys::borrow(fd);
    let own = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let other = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    if !same_host(own.ip(), other.ip()) {
        return None;
    }
    let (client, server) = if side == Side::Connected { (own, other) } else { (other, own) };
    let mut hasher = Fnv::default();
    sys::network_cookie(fd)?.hash(&mut hasher);
    for address in [client, server] {
        address.ip().to_canonical().hash(&mut hasher);
        address.port().hash(&mut hasher);
    }
    Some(hasher.finish())
}

/// Both ends: which lanes are kept.
impl Connection {
    /// Notes that its lane came from the daemon, which says that `peer` is at the other end. The
    /// lane may be kept if `peer` is a process of the same user, and not 0.
    pub fn may_keep_lane(&self, peer: u32) {
        self.set_round(if peer == 0 { NOT_KEPT } else { FIRST_ROUND }, peer);
    }

    fn set_round(&self, round: u32, peer: u32) {
        self.local.round.store(round, Ordering::Relaxed);
        self.local.peer.store(peer, Ordering::Relaxed);
        self.local.forks.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// True when the daemon does not know its lane, so that no other process can ask for it.
    pub fn is_on_kept_lane(&self) -> bool {
        self.phase() == Phase::Laned && self.local.round.load(Ordering::Relaxed) > FIRST_ROUND
    }

    /// Its last descriptor was closed: keeps its lane, or unmaps it.
    pub fn keep_or_drop_lane(&self) {
        let (receiving, sending) = (self.receiving(), self.sending());
        let sent = sending.as_ref().map(|sending| sending.state.messages());
        let lane = self.take_lane();
        drop((receiving, sending));
        let round = self.local.round.swap(NOT_KEPT, Ordering::Relaxed);
        let is_kept = round != NOT_KEPT
            && !process::is_ending()
            && self.local.forks.load(Ordering::Relaxed) == FORKS.load(Ordering::Relaxed);
        let (Some(Lane::Memory(lane)), Some(sent), true) = (lane.map(|lane| *lane), sent, is_kept)
        else {
            return;
        };
        let address = self.shared.address.load(Ordering::Relaxed);
        let peer = self.local.peer.load(Ordering::Relaxed);
        let kept = Kept { lane, peer, address, round, sent, misses: 0 };
        // Lanes over the limit are unmapped here, after the lock is free.
        match self.side() {
            Side::Accepted => drop(keep_accepting(kept)),
            Side::Connected => drop(keep_connecting(kept)),
        }
    }

    /// Puts a kept lane in place. The caller holds the lock of the list, so that no fork shares the
    /// connection meanwhile. False, and the lane is dropped, in a handler that interrupted a user
    /// of the connection.
    fn move_to_kept(&self, lane: ShmLane) -> bool {
        // Under the lock of readers, as for a lane from the daemon.
        let Some(guard) = self.receiving() else { return false };
        if self.side() == Side::Connected {
            SendSide::attach(&lane);
        }
        self.set_lane(Box::new(Lane::Memory(lane)));
        drop(guard);
        log::debug!("connection {} goes to a lane that was kept", self.place);
        true
    }

    /// True when it is worth to ask for a lane that pays only if it is kept, or is kept already.
    pub fn is_due_at_low_price(&self) -> bool {
        const CALLS_MAX: u64 = 4;
        let calls = self.shared.over_tcp.calls();
        if calls >= CALLS_MAX || self.is_shared() || !keeps_lanes() {
            return false;
        }
        let wasted = self.wasted().load(Ordering::Relaxed);
        if !should_prime(self.side(), self.token(), wasted) {
            return false;
        }
        // The accepting end asks one call later, when the other end has asked.
        let is_time = calls == u64::from(self.side() == Side::Accepted);
        is_time || self.side() == Side::Connected && self.has_kept_lane()
    }

    /// Notes that it asks the daemon for a lane that pays only if it is kept.
    pub fn note_asked_to_keep(&self) {
        self.set(flag::PRIMES, true);
        self.count_wasted(1);
    }

    fn count_wasted(&self, more: u32) {
        let now = self.wasted().load(Ordering::Relaxed).saturating_add(more);
        self.wasted().store(now.min(WASTED_MAX), Ordering::Relaxed);
    }

    /// Notes that a kept lane was used again. A rare use, as on a crowded machine, must not make up
    /// for all that was wasted.
    fn decrease_wasted(&self) {
        let now = self.wasted().load(Ordering::Relaxed);
        self.wasted().store(now.saturating_sub(FORGIVEN_BY_USE), Ordering::Relaxed);
    }

    /// How often lanes for connections to its address were requested or offered, and not used
    /// again.
    fn wasted(&self) -> &'static AtomicU32 {
        let place = usize::try_from(self.shared.address.load(Ordering::Relaxed)).unwrap_or(0);
        &WASTED[place % WASTED.len()]
    }
}

/// The connecting end.
impl Connection {
    /// True when lanes are kept for connections to its address.
    pub fn has_kept_lane(&self) -> bool {
        let address = self.shared.address.load(Ordering::Relaxed);
        KEPT_CONNECTING.load(Ordering::Relaxed) > 0
            && CONNECTING.lock().is_some_and(|connecting| {
                connecting.kept.iter().any(|kept| kept.address == address)
            })
    }

    /// Offers a kept lane to the other end; false when there is none for it now.
    pub fn invite(&self, fd: RawFd) -> bool {
        let Some(fingerprint) = fingerprint(fd, Side::Connected) else { return false };
        let address = self.shared.address.load(Ordering::Relaxed);
        let Some(mut connecting) = CONNECTING.lock() else { return false };
        if self.is_shared() {
            return false;
        }
        let mut gone = stale(&mut connecting);
        let is_free =
            |kept: &Kept| kept.address == address && kept.lane.rests(kept.round).is_some();
        let found = connecting.kept.iter().rposition(is_free);
        if let Some(place) = found {
            let mut kept = connecting.kept.remove(place);
            let received = kept.lane.rests(kept.round).unwrap_or(0);
            kept.lane.renew(kept.sent, received);
            kept.sent = 0;
            let invitation = Invitation::new(next_round(kept.round), fingerprint);
            kept.lane.invite(invitation);
            let generation = self.shared.generation.load(Ordering::Relaxed);
            connecting.invited.push(Invited { kept, invitation, place: self.place, generation });
            self.set(flag::INVITED, true);
        } else {
            // Their peers still use these lanes, or are gone.
            for kept in connecting.kept.iter_mut().filter(|kept| kept.address == address) {
                kept.misses += 1;
            }
            gone.extend(connecting.kept.extract_if(.., |kept| kept.misses > MISSES_MAX));
        }
        KEPT_CONNECTING.store(count(&connecting.kept), Ordering::Relaxed);
        drop(connecting);
        gone.iter().for_each(|kept| kept.lane.abandon());
        found.is_some()
    }

    /// Where its invitation is in the list.
    fn place_of_invitation(&self, connecting: &Connecting) -> Option<usize> {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let is_its = |one: &Invited| one.place == self.place && one.generation == generation;
        connecting.invited.iter().position(is_its)
    }

    fn is_claimed(&self) -> bool {
        CONNECTING.lock().is_none_or(|connecting| {
            self.place_of_invitation(&connecting).is_none_or(|place| {
                let own = &connecting.invited[place];
                own.kept.lane.is_claimed(own.invitation)
            })
        })
    }

    /// The answer to its invitation. With `is_last` an invitation that was not claimed is
    /// withdrawn.
    fn answer(&self, connecting: &mut Connecting, is_last: bool) -> Answer {
        let Some(place) = self.place_of_invitation(connecting) else { return Answer::Over };
        let invited = &connecting.invited[place];
        let is_claimed = invited.kept.lane.is_claimed(invited.invitation);
        if !is_claimed && !is_last {
            return Answer::Waiting;
        }
        let is_withdrawn = !is_claimed && invited.kept.lane.withdraw(invited.invitation);
        let Invited { mut kept, invitation, .. } = connecting.invited.swap_remove(place);
        if !is_withdrawn {
            kept.round = invitation.round();
            return Answer::Claimed(kept);
        }
        kept.misses += MISSES_UNCLAIMED;
        self.count_wasted(MISSES_UNCLAIMED);
        drop(put_back(connecting, kept));
        Answer::Over
    }

    /// Looks for the answer to its invitation, and returns the new phase. If `pending` bytes to
    /// write are many, it waits for the answer for a short time: the other end would have to read
    /// what goes over TCP before it reads the lane.
    pub fn look_for_answer(&self, fd: RawFd, pending: usize) -> Phase {
        if pending >= PENDING_WORTH {
            self.wait_once(|| self.is_claimed());
        }
        let calls = self.shared.over_tcp.calls();
        let Some(mut connecting) = CONNECTING.lock() else { return Phase::Pending };
        // Another process that holds the connection by now has not mapped the lane.
        let is_last = calls >= LOOKS_MAX || self.is_shared();
        let kept = match self.answer(&mut connecting, is_last) {
            Answer::Waiting => return Phase::Pending,
            Answer::Claimed(kept) if !self.is_shared() => kept,
            Answer::Claimed(kept) => {
                self.set(flag::INVITED, false);
                kept.lane.abandon();
                return Phase::Fresh;
            }
            Answer::Over => {
                self.set(flag::INVITED, false);
                return Phase::Fresh;
            }
        };
        self.set(flag::INVITED, false);
        if !self.move_to_kept(kept.lane) {
            return Phase::Fresh;
        }
        drop(connecting);
        self.decrease_wasted();
        self.set_round(kept.round, kept.peer);
        self.disarm_if_no_sleeper(fd);
        Phase::Laned
    }

    /// Withdraws its invitation, or its offer to the daemon, since it goes on or ends without a
    /// lane.
    pub fn stop_asking(&self) {
        if self.has(flag::INVITED) {
            self.set(flag::INVITED, false);
            let answer = CONNECTING.lock().map(|mut connecting| self.answer(&mut connecting, true));
            if let Some(Answer::Claimed(kept)) = answer {
                // The other end claimed the lane, and will not keep it after this connection.
                kept.lane.abandon();
            }
            return;
        }
        if self.side() == Side::Connected
            && let control::Offered::Matched(memory) = control::matched(self.token())
        {
            // The lane comes too late for this connection. The next one may use it.
            self.keep_unused(&memory);
        }
        control::withdraw(self.token());
    }

    fn keep_unused(&self, memory: &control::Memory) {
        if memory.process == 0 || process::is_ending() || self.is_shared() {
            return;
        }
        let lane = ShmLane::open(memory.lane.as_fd(), 1, control::copy_mode());
        let Ok(lane) = lane else { return };
        let (peer, round) = (memory.process, FIRST_ROUND);
        let address = self.shared.address.load(Ordering::Relaxed);
        drop(keep_connecting(Kept { lane, peer, address, round, sent: 0, misses: 0 }));
    }
}

/// The accepting end.
impl Connection {
    /// True when it must look for an invitation: during its first calls, while lanes are kept.
    #[inline]
    pub fn may_be_invited(&self) -> bool {
        self.side() == Side::Accepted
            && KEPT_ACCEPTING.load(Ordering::Relaxed) > 0
            && self.shared.over_tcp.calls() < LOOKS_MAX
    }

    /// Claims a lane with an invitation to it, and moves there; false when there is none.
    #[cold]
    pub fn accept_invitation(&self, fd: RawFd) -> bool {
        // Asked before the lock is taken, since connections may give their lanes back in this call.
        if !lanes::has_free_lane() {
            return false;
        }
        let Some(mut accepting) = ACCEPTING.lock() else { return false };
        let is_any = accepting.iter().any(|kept| kept.lane.invitation().is_some());
        if !is_any || self.is_shared() {
            return false;
        }
        let Some(fingerprint) = fingerprint(fd, Side::Accepted) else { return false };
        // Readers are locked out before the claim. After it the other end may write to the lane,
        // and a reader that found no lane would take its wakeups for data of TCP.
        let Some(receiving) = self.receiving() else { return false };
        let claimed = accepting.iter().enumerate().find_map(|(place, kept)| {
            let invitation = kept.lane.invitation()?;
            (invitation.is_for(fingerprint) && kept.lane.claim(invitation))
                .then_some((place, invitation.round()))
        });
        let Some((place, round)) = claimed else { return false };
        let Kept { lane, peer, .. } = accepting.remove(place);
        KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
        self.set_lane(Box::new(Lane::Memory(lane)));
        drop(receiving);
        drop(accepting);
        log::debug!("connection {} goes to a lane that was kept", self.place);
        self.decrease_wasted();
        self.set_round(round, peer);
        self.note_socket(fd);
        // Has the first write wait for the other end once.
        self.set(flag::EARLY, true);
        self.disarm_if_no_sleeper(fd);
        true
    }
}

/// Keeps a lane at the accepting end; from here on its other end may offer it. Returns lanes that
/// are not kept any more.
fn keep_accepting(kept: Kept) -> Vec<Kept> {
    let Some(mut accepting) = ACCEPTING.lock() else { return Vec::new() };
    let mut gone: Vec<Kept> = accepting.extract_if(.., |kept| kept.lane.is_abandoned()).collect();
    if let Ok(number) = usize::try_from(CHECKED.fetch_add(1, Ordering::Relaxed))
        && let Some(place) = number.checked_rem(accepting.len())
        && !sys::is_alive(accepting[place].peer)
    {
        gone.push(accepting.remove(place));
    }
    if kept.lane.is_abandoned() {
        gone.push(kept);
    } else {
        kept.lane.rest(kept.round, kept.sent);
        gone.extend(add(&mut accepting, kept));
    }
    KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
    gone
}

fn keep_connecting(kept: Kept) -> Option<Kept> {
    put_back(&mut *CONNECTING.lock()?, kept)
}

/// Keeps `kept` at the connecting end. Returns the lane that is not kept any more: the oldest or
/// `kept`.
fn put_back(connecting: &mut Connecting, kept: Kept) -> Option<Kept> {
    let too_much = match kept.misses {
        0..=MISSES_MAX => add(&mut connecting.kept, kept),
        _ => Some(kept),
    };
    KEPT_CONNECTING.store(count(&connecting.kept), Ordering::Relaxed);
    if let Some(kept) = &too_much {
        kept.lane.abandon();
    }
    too_much
}

/// Removes and returns invited lanes whose connections ended without a close in this process.
fn stale(connecting: &mut Connecting) -> Vec<Kept> {
    let is_stale = |one: &mut Invited| {
        !arena::at(one.place).is_some_and(|connection| {
            connection.shared.generation.load(Ordering::Relaxed) == one.generation
                && connection.has(flag::INVITED)
        })
    };
    connecting.invited.extract_if(.., is_stale).map(|one| one.kept).collect()
}
