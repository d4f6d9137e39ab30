//! Lanes that this process keeps when a connection ends, for the next one with the same process.
//!
//! A lane from the daemon costs two programs as much as a megabyte over TCP. Connections that are
//! expected to carry less than it pays for ([`weft_socket::history::Outlook::Middling`]) go to a
//! lane that an earlier connection of the same two processes left
//! ([`weft_transport_shm::lane::reserve`]): the connecting end invites, the accepting end looks for
//! an invitation to the connection at its first calls. Both ends ask the daemon for a lane now and
//! then, so that there is one to keep ([`weft_socket::history::primes`]).
//!
//! # Invariants
//! - A lane is kept only by the process that came to it, which has not forked since: no other
//!   process has it mapped at this end. Fork takes the locks of this module, under which a
//!   connection that nobody else holds goes to its lane.
//! - Both processes are one user's, by the word of the daemon. Both sockets are on one host
//!   address, in one network namespace: the fingerprint names one connection.
//! - Kept lanes hold no descriptor, and there are `socket.lanes_kept` at most at either end.
//! - The lock of a connection's direction is taken behind those of this module.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_socket::history::primes;
use weft_socket::{SendSide, Side};
use weft_transport_shm::lane::ShmLane;
use weft_transport_shm::lane::reserve::{FIRST_ROUND, Invitation, next_round};

use crate::arena::{self, Connection, flag, phase};
use crate::decision::same_host;
use crate::guard::{ForkLock, LocalLock};
use crate::history::Fnv;
use crate::{control, lanes, log, process, sys};

/// A lane is let go after so many misses,
const MISSES_MAX: u32 = 18;
/// of which an invitation that nobody claimed is so many. A peer that is not done with it is one.
const MISSES_UNCLAIMED: u32 = 6;
/// Calls of a connection within which an invitation to it is looked for, or its answer.
const LOOKS_MAX: u32 = 12;
/// With so many bytes to write an answer is waited for.
const PENDING_WORTH: usize = 1 << 16;
/// So many asked and missed in vain one use of a kept lane makes up for.
const WORTH_OF_USE: u32 = 8;
/// More is not counted, so that what was learned can be forgotten.
const IN_VAIN_MAX: u32 = 64;

/// The value of [`crate::arena::Local::round`] for a lane that is not kept.
pub const NOT_KEPT: u32 = 0;

/// A lane that no connection uses.
struct Kept {
    lane: Box<ShmLane>,
    /// The process at its other end.
    peer: u32,
    /// Where its last connection's address is remembered ([`crate::history`]).
    address: u32,
    /// The last round in which it was used.
    round: u32,
    /// Messages that this end sent in it.
    sent: u64,
    misses: u32,
}

/// A lane that is offered to the other end of a connection.
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
/// Lanes in the two, looked at before a lock is taken.
static KEPT_CONNECTING: AtomicU32 = AtomicU32::new(0);
static KEPT_ACCEPTING: AtomicU32 = AtomicU32::new(0);
/// Which kept lane's peer is asked for next, whether it lives.
static CHECKED: AtomicU64 = AtomicU64::new(0);
/// By address ([`Connection::asked_in_vain`]).
static IN_VAIN: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// How often this process forked.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The answer to an invitation.
enum Answer {
    /// The other end took the lane.
    Claimed(Kept),
    /// It has not come yet.
    Waiting,
    /// It will not come.
    Over,
}

/// The locks of this module, for fork.
pub fn locks() -> [&'static dyn ForkLock; 2] {
    [&CONNECTING, &ACCEPTING]
}

/// This process is about to fork.
pub fn before_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// In a forked child: what was kept is its parent's.
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

/// The process ends: its peers need not wait for invitations.
pub fn end() {
    if let Some(connecting) = CONNECTING.lock() {
        connecting.kept.iter().for_each(|kept| kept.lane.abandon());
    }
}

fn count(kept: &[Kept]) -> u32 {
    u32::try_from(kept.len()).unwrap_or(u32::MAX)
}

/// Adds a lane behind the others; returns the oldest when there is one too many.
fn add(kept: &mut Vec<Kept>, new: Kept) -> Option<Kept> {
    kept.push(new);
    (kept.len() > process::settings().lanes_kept).then(|| kept.remove(0))
}

/// A number of the connection, the same at both ends. `None` where it cannot be told from others.
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

/// Both ends keep lanes, and go to them.
impl Connection {
    /// Its lane came from the daemon, which says that `peer` is at the other end. It may be kept
    /// when that process is of the same user; else `peer` is 0.
    pub fn may_keep_lane(&self, peer: u32) {
        self.uses(if peer == 0 { NOT_KEPT } else { FIRST_ROUND }, peer);
    }

    fn uses(&self, round: u32, peer: u32) {
        self.local.round.store(round, Ordering::Relaxed);
        self.local.peer.store(peer, Ordering::Relaxed);
        self.local.forks.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The daemon knows nothing of its lane, so other programs cannot ask for it.
    pub fn is_on_kept_lane(&self) -> bool {
        self.phase() == phase::LANED && self.local.round.load(Ordering::Relaxed) > FIRST_ROUND
    }

    /// Its last descriptor is closed: its lane is kept, or unmapped.
    pub fn keep_or_drop_lane(&self) {
        let (receiving, sending) = (self.receiving(), self.sending());
        let sent = sending.as_ref().map(|sending| sending.state.messages());
        let lane = self.take_lane();
        drop((receiving, sending));
        let round = self.local.round.swap(NOT_KEPT, Ordering::Relaxed);
        let is_kept = round != NOT_KEPT
            && !process::is_ending()
            && self.local.forks.load(Ordering::Relaxed) == FORKS.load(Ordering::Relaxed);
        let (Some(lane), Some(sent), true) = (lane, sent, is_kept) else { return };
        let address = self.shared.address.load(Ordering::Relaxed);
        let peer = self.local.peer.load(Ordering::Relaxed);
        let kept = Kept { lane, peer, address, round, sent, misses: 0 };
        // Lanes beyond the limit are unmapped here, without a lock.
        match self.side() {
            Side::Accepted => drop(keep_accepting(kept)),
            Side::Connected => drop(keep_connecting(kept)),
        }
    }

    /// Goes to a lane that was kept, under the lock under which nobody else came to hold it. False,
    /// with the lane unused, in a handler that interrupted the connection's user.
    fn goes_to(&self, lane: Box<ShmLane>) -> bool {
        // Under the lock of readers, as where the daemon brought it.
        let Some(guard) = self.receiving() else { return false };
        if self.side() == Side::Connected {
            SendSide::attach(&*lane);
        }
        self.set_lane(lane);
        drop(guard);
        log::debug!("connection {} goes to a lane that was kept", self.place);
        true
    }

    /// A lane for it pays if it is there already, or is kept for those that follow.
    pub fn is_due_at_low_price(&self) -> bool {
        const CALLS_MAX: u32 = 4;
        let calls = self.shared.calls.load(Ordering::Relaxed);
        if calls >= CALLS_MAX || self.is_shared() || process::settings().lanes_kept == 0 {
            return false;
        }
        let in_vain = self.asked_in_vain().load(Ordering::Relaxed);
        if !primes(self.side(), self.token(), in_vain) {
            return false;
        }
        // The accepting end later: it finds that the other has asked.
        let is_time = calls == u32::from(self.side() == Side::Accepted);
        is_time || self.side() == Side::Connected && self.has_kept_lane()
    }

    /// It asks the daemon for a lane that only pays when it is kept.
    pub fn asks_to_keep(&self) {
        self.set(flag::PRIMES, true);
        self.was_in_vain(1);
    }

    fn was_in_vain(&self, more: u32) {
        let now = self.asked_in_vain().load(Ordering::Relaxed).saturating_add(more);
        self.asked_in_vain().store(now.min(IN_VAIN_MAX), Ordering::Relaxed);
    }

    /// A lane was used again. Where that is the exception, as on a crowded machine, it does not
    /// make up for what the rule costs.
    fn was_not_in_vain(&self) {
        let now = self.asked_in_vain().load(Ordering::Relaxed);
        self.asked_in_vain().store(now.saturating_sub(WORTH_OF_USE), Ordering::Relaxed);
    }

    /// How often lanes were asked for, for its address, that only pay when they are kept, and were
    /// not used again.
    fn asked_in_vain(&self) -> &'static AtomicU32 {
        let place = usize::try_from(self.shared.address.load(Ordering::Relaxed)).unwrap_or(0);
        &IN_VAIN[place % IN_VAIN.len()]
    }
}

/// The connecting end.
impl Connection {
    /// Whether lanes are kept for connections to its address.
    pub fn has_kept_lane(&self) -> bool {
        let address = self.shared.address.load(Ordering::Relaxed);
        KEPT_CONNECTING.load(Ordering::Relaxed) > 0
            && CONNECTING.lock().is_some_and(|connecting| {
                connecting.kept.iter().any(|kept| kept.address == address)
            })
    }

    /// Offers a lane that is kept to the other end; false when there is none for it now.
    pub fn invites(&self, fd: RawFd) -> bool {
        let Some(fingerprint) = fingerprint(fd, Side::Connected) else { return false };
        let address = self.shared.address.load(Ordering::Relaxed);
        let Some(mut connecting) = CONNECTING.lock() else { return false };
        if self.is_shared() {
            return false;
        }
        let mut gone = stale(&mut connecting);
        let rests = |kept: &Kept| kept.address == address && kept.lane.rests(kept.round).is_some();
        let found = connecting.kept.iter().rposition(rests);
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
            // Peers that are not done with them, if they are there at all.
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

    /// The place of its invitation among all.
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

    /// The answer to its invitation. When `is_last`, nobody waits for one any longer.
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
        self.was_in_vain(MISSES_UNCLAIMED);
        drop(put_back(connecting, kept));
        Answer::Over
    }

    /// Looks for the answer to its invitation; returns the phase. With much to write, `pending`, it
    /// waits for the answer shortly: what goes over TCP meanwhile the other end has to read before
    /// anything on the lane.
    pub fn look_for_answer(&self, pending: usize) -> u32 {
        if pending >= PENDING_WORTH {
            self.wait_once(|| self.is_claimed());
        }
        let calls = self.shared.calls.load(Ordering::Relaxed);
        let Some(mut connecting) = CONNECTING.lock() else { return phase::PENDING };
        // Another process that came to hold it does not have the lane.
        let is_last = calls >= LOOKS_MAX || self.is_shared();
        let kept = match self.answer(&mut connecting, is_last) {
            Answer::Waiting => return phase::PENDING,
            Answer::Claimed(kept) if !self.is_shared() => kept,
            Answer::Claimed(kept) => {
                self.set(flag::INVITED, false);
                kept.lane.abandon();
                return phase::FRESH;
            }
            Answer::Over => {
                self.set(flag::INVITED, false);
                return phase::FRESH;
            }
        };
        self.set(flag::INVITED, false);
        if !self.goes_to(kept.lane) {
            return phase::FRESH;
        }
        drop(connecting);
        self.was_not_in_vain();
        self.uses(kept.round, kept.peer);
        self.disarm_for_nobody();
        phase::LANED
    }

    /// Takes back what it offered to the other end or to the daemon, since it goes on, or ends,
    /// without a lane.
    pub fn withdraws(&self) {
        if self.has(flag::INVITED) {
            self.set(flag::INVITED, false);
            let answer = CONNECTING.lock().map(|mut connecting| self.answer(&mut connecting, true));
            if let Some(Answer::Claimed(kept)) = answer {
                // The other end has it, and keeps it no longer than the connection.
                kept.lane.abandon();
            }
            return;
        }
        if self.side() == Side::Connected
            && let control::Offered::Matched(memory) = control::matched(self.token())
        {
            // Too late for this connection, and in time for the next.
            self.keep_unused(&memory);
        }
        control::withdraw(self.token());
    }

    fn keep_unused(&self, memory: &control::Memory) {
        if memory.process == 0 || process::is_ending() || self.is_shared() {
            return;
        }
        let lane = ShmLane::open(memory.lane.as_fd(), 1, control::copy_mode());
        let Ok(lane) = lane.map(Box::new) else { return };
        let (peer, round) = (memory.process, FIRST_ROUND);
        let address = self.shared.address.load(Ordering::Relaxed);
        drop(keep_connecting(Kept { lane, peer, address, round, sent: 0, misses: 0 }));
    }
}

/// The accepting end.
impl Connection {
    /// Whether it looks for an invitation now: at its first calls, while lanes are kept.
    #[inline]
    pub fn may_be_invited(&self) -> bool {
        self.side() == Side::Accepted
            && KEPT_ACCEPTING.load(Ordering::Relaxed) > 0
            && self.shared.calls.load(Ordering::Relaxed) < LOOKS_MAX
    }

    /// Goes to the lane that the other end offers for it, if there is one.
    #[cold]
    pub fn goes_where_invited(&self, fd: RawFd) -> bool {
        // Asked without the lock: it may make one free.
        if !lanes::is_one_free() {
            return false;
        }
        let Some(mut accepting) = ACCEPTING.lock() else { return false };
        let is_any = accepting.iter().any(|kept| kept.lane.invitation().is_some());
        if !is_any || self.is_shared() {
            return false;
        }
        let Some(fingerprint) = fingerprint(fd, Side::Accepted) else { return false };
        // Before the claim: from there on the other end may write to the lane, and a reader that
        // found none takes whatever comes over TCP.
        let Some(receiving) = self.receiving() else { return false };
        let claimed = accepting.iter().enumerate().find_map(|(place, kept)| {
            let invitation = kept.lane.invitation()?;
            (invitation.is_for(fingerprint) && kept.lane.claim(invitation))
                .then_some((place, invitation.round()))
        });
        let Some((place, round)) = claimed else { return false };
        let Kept { lane, peer, .. } = accepting.remove(place);
        KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
        self.set_lane(lane);
        drop(receiving);
        drop(accepting);
        log::debug!("connection {} goes to a lane that was kept", self.place);
        self.was_not_in_vain();
        self.uses(round, peer);
        self.note_socket(fd);
        // Once it waits for the other end to come.
        self.set(flag::EARLY, true);
        self.disarm_for_nobody();
        true
    }
}

/// The accepting end keeps a lane, which from here on is its other end's. Returns those that are
/// let go.
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

/// Returns the lane that is let go for it, or itself.
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

/// Invited lanes whose connections ended elsewhere than by a close that was seen.
fn stale(connecting: &mut Connecting) -> Vec<Kept> {
    let is_stale = |one: &mut Invited| {
        !arena::at(one.place).is_some_and(|connection| {
            connection.shared.generation.load(Ordering::Relaxed) == one.generation
                && connection.has(flag::INVITED)
        })
    };
    connecting.invited.extract_if(.., is_stale).map(|one| one.kept).collect()
}
