//! Lanes that this process keeps when a connection ends, for the next one with the same process.
//!
//! A lane from the daemon costs two programs as much as a megabyte over TCP. Connections that are
//! expected to carry less than that pays for ([`Outlook::Middling`]) go to a lane that an earlier
//! connection of the same two processes left ([`weft_transport_shm::lane::reserve`]): the connecting
//! end invites, the accepting end looks for an invitation to the connection at its first calls. That
//! there are such lanes at all, both ends ask the daemon for one now and then
//! ([`weft_socket::history::Priming`]).
//!
//! # Invariants
//! - A lane is kept only by the process that came to it, which has not forked since: no other
//!   process has it mapped at this end.
//! - Both processes are one user's, by the word of the daemon, and both sockets are on one host
//!   address, in one network namespace: the fingerprint names one connection.
//! - Kept lanes hold no descriptor, and there are `socket.lanes_kept` at most at either end.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use weft_fabric::{Lane, WaitFor};
use weft_socket::history::primes;
use weft_socket::{SendSide, Side};
use weft_transport_shm::lane::ShmLane;
use weft_transport_shm::lane::reserve::{Invitation, next_round};

use crate::arena::{self, Connection, flag, phase};
use crate::decision::same_host;
use crate::guard::{ForkLock, LocalLock};
use crate::history::Fnv;
use crate::{control, log, process, sys};

/// Invitations in a row that nobody claimed, after which a lane is let go.
const MISSES_MAX: u32 = 3;
/// Calls of a connection within which an invitation to it is looked for, or its answer.
const LOOKS_MAX: u32 = 12;

/// With so many bytes to write an answer is waited for.
const PENDING_WORTH: usize = 1 << 16;

/// What [`crate::arena::Local::round`] says of a lane that is not kept.
pub const NOT_KEPT: u32 = u32::MAX;
/// The round of a lane that came from the daemon.
pub const FIRST_ROUND: u32 = 0;

/// A lane that no connection uses.
struct Kept {
    lane: Box<ShmLane>,
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
/// By address ([`Connection::asked_in_vain`]).
static IN_VAIN: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// How often this process forked.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// What became of an invitation.
pub enum Answer {
    /// The other end took the lane, for this round.
    Claimed(Box<ShmLane>, u32),
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
        connecting.kept.clear();
        connecting.invited.clear();
        KEPT_CONNECTING.store(0, Ordering::Relaxed);
    }
    if let Some(mut accepting) = ACCEPTING.lock() {
        accepting.clear();
        KEPT_ACCEPTING.store(0, Ordering::Relaxed);
    }
}

fn count(kept: &[Kept]) -> u32 {
    u32::try_from(kept.len()).unwrap_or(u32::MAX)
}

/// Puts a lane in front of the others; what is too much goes.
fn add(kept: &mut Vec<Kept>, new: Kept) -> Option<Kept> {
    kept.push(new);
    (kept.len() > process::settings().lanes_kept).then(|| kept.remove(0))
}

/// Which connection that is, the same at both ends. `None` where it cannot be told from others.
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

impl Connection {
    /// Lanes of this process may be kept after this connection.
    pub fn may_keep_lane(&self, peer: u32) {
        self.asked_in_vain().store(0, Ordering::Relaxed);
        let round = if peer == 0 { NOT_KEPT } else { FIRST_ROUND };
        self.uses_in_round(round);
    }

    fn uses_in_round(&self, round: u32) {
        self.local.round.store(round, Ordering::Relaxed);
        self.local.forks.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The daemon knows nothing of its lane, so other programs cannot ask for it.
    pub fn is_on_kept_lane(&self) -> bool {
        let round = self.local.round.load(Ordering::Relaxed);
        self.phase() == phase::LANED && round != FIRST_ROUND && round != NOT_KEPT
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
        let kept = Kept { lane, address, round, sent, misses: 0 };
        let too_much = match self.side() {
            Side::Accepted => keep_accepting(kept),
            Side::Connected => keep_connecting(kept),
        };
        // Unmapped without a lock.
        drop(too_much);
    }

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
        forget_stale(&mut connecting);
        let rests = |kept: &Kept| kept.address == address && kept.lane.rests(kept.round).is_some();
        let Some(place) = connecting.kept.iter().rposition(rests) else { return false };
        let mut kept = connecting.kept.remove(place);
        KEPT_CONNECTING.store(count(&connecting.kept), Ordering::Relaxed);
        let received = kept.lane.rests(kept.round).unwrap_or(0);
        kept.lane.renew(kept.sent, received);
        kept.sent = 0;
        let invitation = Invitation::new(next_round(kept.round), fingerprint);
        kept.lane.invite(invitation);
        let generation = self.shared.generation.load(Ordering::Relaxed);
        connecting.invited.push(Invited { kept, invitation, place: self.place, generation });
        self.set(flag::INVITED, true);
        true
    }

    /// What became of its invitation. When `is_last`, nobody waits for an answer any longer.
    pub fn invitation_answered(&self, is_last: bool) -> Answer {
        let Some(mut connecting) = CONNECTING.lock() else { return Answer::Waiting };
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let is_its = |one: &Invited| one.place == self.place && one.generation == generation;
        let Some(place) = connecting.invited.iter().position(is_its) else { return Answer::Over };
        let invited = &connecting.invited[place];
        if !invited.kept.lane.is_claimed(invited.invitation) {
            if !is_last {
                return Answer::Waiting;
            }
            if invited.kept.lane.withdraw(invited.invitation) {
                let Invited { mut kept, .. } = connecting.invited.swap_remove(place);
                kept.misses += 1;
                let too_much = put_back(&mut connecting, kept);
                drop(connecting);
                drop(too_much);
                return Answer::Over;
            }
        }
        let Invited { kept, invitation, .. } = connecting.invited.swap_remove(place);
        Answer::Claimed(kept.lane, invitation.round())
    }

    /// Takes back what it offered to the other end or to the daemon, since it goes on, or ends,
    /// without a lane.
    pub fn withdraws(&self) {
        if self.has(flag::INVITED) {
            self.set(flag::INVITED, false);
            // A claimed lane goes with the connection.
            drop(self.invitation_answered(true));
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
        let lane = ShmLane::open(memory.lane.as_fd(), 1, control::copy_mode());
        let (Ok(lane), true) = (lane, memory.process != 0 && !self.is_shared()) else { return };
        self.asked_in_vain().store(0, Ordering::Relaxed);
        let address = self.shared.address.load(Ordering::Relaxed);
        let (lane, round) = (Box::new(lane), FIRST_ROUND);
        drop(keep_connecting(Kept { lane, address, round, sent: 0, misses: 0 }));
    }

    /// Whether it looks for an invitation now: at its first calls, while lanes are kept.
    #[inline]
    pub fn may_be_invited(&self) -> bool {
        self.side() == Side::Accepted
            && KEPT_ACCEPTING.load(Ordering::Relaxed) > 0
            && self.shared.calls.load(Ordering::Relaxed) < LOOKS_MAX
    }

    /// Takes the lane that the other end offers for this connection.
    pub fn claims(&self, fd: RawFd) -> Option<(Box<ShmLane>, u32)> {
        let mut accepting = ACCEPTING.lock()?;
        if accepting.iter().all(|kept| kept.lane.invitation().is_none()) {
            return None;
        }
        let fingerprint = fingerprint(fd, Side::Accepted)?;
        let found = accepting.iter().enumerate().find_map(|(place, kept)| {
            let invitation = kept.lane.invitation()?;
            (invitation.is_for(fingerprint) && kept.lane.claim(invitation))
                .then_some((place, invitation.round()))
        });
        let (place, round) = found?;
        let kept = accepting.remove(place);
        KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
        Some((kept.lane, round))
    }

    /// Goes to a lane that was kept; false in a handler that interrupted the connection's user.
    pub fn goes_to_kept_lane(&self, lane: Box<ShmLane>, round: u32) -> bool {
        if self.side() == Side::Accepted {
            // Before the peer comes: threads may sleep on TCP already.
            lane.arm(WaitFor::Data);
        }
        self.pulls_from(&lane, 0);
        // Under the lock of readers, as where the daemon brought it.
        let Some(guard) = self.receiving() else { return false };
        if self.side() == Side::Connected {
            SendSide::attach(&*lane);
        }
        self.set_lane(lane);
        drop(guard);
        self.uses_in_round(round);
        self.disarm_for_nobody();
        log::debug!("connection {} goes to a lane that was kept", self.place);
        true
    }

    /// Goes to the lane that the other end offers for it, if there is one.
    #[cold]
    pub fn goes_where_invited(&self, fd: RawFd) -> bool {
        if self.is_shared() {
            return false;
        }
        let Some((lane, round)) = self.claims(fd) else { return false };
        self.note_socket(fd);
        self.set(flag::EARLY, true);
        self.goes_to_kept_lane(lane, round)
    }

    fn is_claimed(&self) -> bool {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        CONNECTING.lock().is_none_or(|connecting| {
            let own = connecting
                .invited
                .iter()
                .find(|one| one.place == self.place && one.generation == generation);
            own.is_none_or(|own| own.kept.lane.is_claimed(own.invitation))
        })
    }

    /// Looks what became of its invitation; returns the phase. With much to write, `pending`, it
    /// waits for the answer shortly: what goes over TCP meanwhile the other end has to read before
    /// anything on the lane.
    pub fn look_for_answer(&self, pending: usize) -> u32 {
        if pending >= PENDING_WORTH {
            self.wait_once(|| self.is_claimed());
        }
        let is_last = self.shared.calls.load(Ordering::Relaxed) >= LOOKS_MAX;
        let (lane, round) = match self.invitation_answered(is_last) {
            Answer::Waiting => return phase::PENDING,
            Answer::Over => {
                self.set(flag::INVITED, false);
                return phase::FRESH;
            }
            Answer::Claimed(lane, round) => (lane, round),
        };
        self.set(flag::INVITED, false);
        if self.goes_to_kept_lane(lane, round) { phase::LANED } else { phase::FRESH }
    }

    /// A lane for it pays if it is there already, or is kept for those that follow.
    pub fn is_due_at_low_price(&self) -> bool {
        const CALLS_MAX: u32 = 4;
        let calls = self.shared.calls.load(Ordering::Relaxed);
        if calls >= CALLS_MAX || self.is_shared() || process::settings().lanes_kept == 0 {
            return false;
        }
        if self.side() == Side::Connected && self.has_kept_lane() {
            return true;
        }
        // The accepting end later: it finds that the other has asked.
        let is_time = calls == u32::from(self.side() == Side::Accepted);
        let in_vain = self.asked_in_vain().load(Ordering::Relaxed);
        is_time && primes(self.side(), self.token(), in_vain)
    }

    /// It asks the daemon for a lane that only pays when it is kept.
    pub fn asks_to_keep(&self) {
        self.asked_in_vain().fetch_add(1, Ordering::Relaxed);
    }

    /// How often lanes were asked for that only pay when they are kept, for its address.
    fn asked_in_vain(&self) -> &'static AtomicU32 {
        let place = usize::try_from(self.shared.address.load(Ordering::Relaxed)).unwrap_or(0);
        &IN_VAIN[place % IN_VAIN.len()]
    }
}

/// The accepting end keeps a lane, which from here on is its other end's.
fn keep_accepting(kept: Kept) -> Option<Box<ShmLane>> {
    let mut accepting = ACCEPTING.lock()?;
    accepting.retain(|kept| !kept.lane.is_abandoned());
    kept.lane.rest(kept.round, kept.sent);
    let too_much = add(&mut accepting, kept);
    KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
    too_much.map(|kept| kept.lane)
}

fn keep_connecting(kept: Kept) -> Option<Box<ShmLane>> {
    put_back(&mut *CONNECTING.lock()?, kept)
}

fn put_back(connecting: &mut Connecting, kept: Kept) -> Option<Box<ShmLane>> {
    let too_much = match kept.misses {
        MISSES_MAX.. => Some(kept),
        _ => add(&mut connecting.kept, kept),
    };
    KEPT_CONNECTING.store(count(&connecting.kept), Ordering::Relaxed);
    too_much.map(|kept| {
        kept.lane.abandon();
        kept.lane
    })
}

/// Lets invitations go whose connections ended elsewhere than by a close that was seen.
fn forget_stale(connecting: &mut Connecting) {
    connecting.invited.retain(|one| {
        let stays = arena::at(one.place).is_some_and(|connection| {
            connection.shared.generation.load(Ordering::Relaxed) == one.generation
                && connection.has(flag::INVITED)
        });
        if !stays {
            one.kept.lane.abandon();
        }
        stays
    });
}
