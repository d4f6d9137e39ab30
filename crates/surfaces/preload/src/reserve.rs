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
//!   since: no other process has this end mapped. A forked child unmaps what was kept. A child by
//!   clone(2) does not, so its parent gives up all lanes. Fork takes the locks of this module. A
//!   connection moves to a kept lane under such a lock, and only if no other process holds it.
//! - The daemon says which lanes may be kept, and with whom. Both sockets have addresses of one
//!   host, in one network namespace, so that a fingerprint names one connection.
//! - A kept lane serves a connection only if the kernel says that the other end is a socket of the
//!   partner's user ([`other_end::is_of`]). Both ends ask: the accepting end before it claims,
//!   since the invitation may be to a connection of others; the connecting end after the claim,
//!   since a process that did not accept the connection may have claimed the lane. They ask also
//!   where both are of one user: a third user may choose addresses whose fingerprint is that of a
//!   connection between them.
//! - A kept lane has no descriptor. Each end keeps `socket.lanes_kept` lanes at most.
//! - The lock of a connection's direction is taken after a lock of this module.

use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_socket::history::should_prime;
use weft_socket::kept::{self, Misses};
use weft_socket::{Phase, SendSide, Side};
use weft_transport_shm::lane::ShmLane;
use weft_transport_shm::lane::reserve::{FIRST_ROUND, Invitation, next_round};
use weft_unread::socket_table::Ends;
use weft_wire::control::Partner;

use crate::arena::{self, Connection, NOT_KEPT, flag};
use crate::asking::same_host;
use crate::decision::ATTACHES_NS;
use crate::guard::{ForkLock, LocalLock, Rank};
use crate::history::Fnv;
use crate::lane::Lane;
use crate::{control, lanes, log, other_end, process, sys};

/// During this many calls a connection looks for an invitation to it, or for the answer to its own.
const LOOKS_MAX: u64 = 12;
/// A write of at least this many bytes waits for the answer first.
const PENDING_WORTH: usize = 1 << 16;
/// A kept lane, which no connection uses.
struct Kept {
    lane: ShmLane,
    /// The process at its other end.
    partner: Partner,
    /// The address of its last connection, as a place in [`crate::history`].
    address: u32,
    /// The last round in which it was used.
    round: u32,
    /// How many messages this end sent in that round; `None` when the lane is as new.
    sent: Option<u64>,
    misses: Misses,
    /// The count of [`CLONES`] when it was first kept.
    clones: u32,
}

impl Kept {
    /// True when a child by clone(2) has its end mapped, too.
    fn is_shared(&self) -> bool {
        self.clones != CLONES.load(Ordering::Acquire)
    }

    /// True when its other end is no longer there to claim an invitation.
    fn is_in_vain(&self) -> bool {
        self.lane.is_retired() || !sys::is_alive(self.partner.process)
    }
}

/// A kept lane with an invitation to the other end of a connection.
struct Invited {
    kept: Kept,
    invitation: Invitation,
    /// The connection that it is for, as the kernel and as the table of connections know it.
    ends: Ends,
    place: u32,
    generation: u32,
}

impl Invited {
    fn is_claimed(&self) -> bool {
        self.kept.lane.is_claimed(self.invitation)
    }
}

#[derive(Default)]
struct Connecting {
    kept: Vec<Kept>,
    invited: Vec<Invited>,
}

static CONNECTING: LocalLock<Connecting> =
    LocalLock::new(Rank::Connecting, Connecting { kept: Vec::new(), invited: Vec::new() });
static ACCEPTING: LocalLock<Vec<Kept>> = LocalLock::new(Rank::Accepting, Vec::new());
/// How many lanes the two lists hold: read without the lock.
static KEPT_CONNECTING: AtomicU32 = AtomicU32::new(0);
static KEPT_ACCEPTING: AtomicU32 = AtomicU32::new(0);
/// Counts the checks whether a kept lane's peer is alive; gives the lane that is checked next.
static CHECKED: AtomicU64 = AtomicU64::new(0);
/// The counts of [`Connection::wasted`], by address.
static WASTED: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// True, by address, when nobody claimed the invitations to the last connection that had some: a
/// process with which no lane is kept may have accepted it.
static UNCLAIMED: [AtomicBool; 64] = [const { AtomicBool::new(false) }; 64];
/// How often this process has forked.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// How often it has made a child that keeps all lanes mapped, as by clone(2).
static CLONES: AtomicU32 = AtomicU32::new(0);

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
    FORKS.fetch_add(1, Ordering::Release);
}

/// Called before this process makes a child that keeps all lanes mapped, and after it. It may be
/// called in any signal handler: the lanes are given up when one is looked for.
pub fn around_clone() {
    before_fork();
    CLONES.fetch_add(1, Ordering::Release);
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

/// The process ends: tells the peers that the kept lanes are not used again.
pub fn end() {
    if let Some(connecting) = CONNECTING.lock() {
        connecting.kept.iter().for_each(|kept| kept.lane.abandon());
    }
    if let Some(accepting) = ACCEPTING.lock() {
        accepting.iter().for_each(|kept| kept.lane.retire());
    }
}

/// True when lanes are kept. Those over an endpoint are not: such a lane is bound to its two
/// endpoints, and it is not in the form that an invitation renews.
fn keeps_lanes() -> bool {
    process::settings().lanes_kept > 0 && !process::settings().between_hosts
}

fn count(kept: &[Kept]) -> u32 {
    u32::try_from(kept.len()).unwrap_or(u32::MAX)
}

/// Adds a kept lane. Returns the oldest one when there are too many.
fn add(kept: &mut Vec<Kept>, new: Kept) -> Option<Kept> {
    kept.push(new);
    (kept.len() > process::settings().lanes_kept).then(|| kept.remove(0))
}

/// The partner, with its user where this process knows the number; `None` when the kernel cannot be
/// asked for the user, so that the lane may not be kept.
fn verifiable(partner: Option<Partner>) -> Option<Partner> {
    let partner = partner?;
    match (partner.user, other_end::names_users()?) {
        (Some(_), false) => None,
        (None, true) => {
            let own = rustix::process::geteuid().as_raw();
            Some(Partner { user: Some(own), ..partner })
        }
        (Some(_), true) | (None, false) => Some(partner),
    }
}

/// A hash that names the connection, the same at both ends. `None` if the ends are not on one host.
fn fingerprint(ends: &Ends, side: Side) -> Option<u64> {
    let Ends { own, other, network } = *ends;
    if !same_host(own.ip(), other.ip()) {
        return None;
    }
    let (client, server) = if side == Side::Connected { (own, other) } else { (other, own) };
    let mut hasher = Fnv::default();
    network.hash(&mut hasher);
    for address in [client, server] {
        address.ip().to_canonical().hash(&mut hasher);
        address.port().hash(&mut hasher);
    }
    Some(hasher.finish())
}

/// Both ends: which lanes are kept.
impl Connection {
    /// Notes that its lane came from the daemon, and with whom it may be kept.
    pub fn may_keep_lane(&self, partner: Option<Partner>) {
        let partner = verifiable(partner);
        let round = if partner.is_none() { NOT_KEPT } else { FIRST_ROUND };
        self.set_round(round, partner, FORKS.load(Ordering::Relaxed));
    }

    /// `forks` is the count of [`FORKS`] when no other process had the lane mapped.
    fn set_round(&self, round: u32, partner: Option<Partner>, forks: u32) {
        if round == FIRST_ROUND && self.side() == Side::Connected {
            self.unclaimed().store(false, Ordering::Relaxed);
        }
        self.local.round.store(round, Ordering::Relaxed);
        self.local.partner.store(Partner::word(partner), Ordering::Relaxed);
        self.local.forks.store(forks, Ordering::Relaxed);
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
        let clones = CLONES.load(Ordering::Acquire);
        let is_kept = round != NOT_KEPT
            && !process::is_ending()
            && self.local.forks.load(Ordering::Relaxed) == FORKS.load(Ordering::Relaxed);
        let partner = Partner::of(self.local.partner.load(Ordering::Relaxed));
        let lane = lane.map(|lane| *lane);
        let (Some(Lane::Memory(lane)), Some(sent), Some(partner), true) =
            (lane, sent, partner, is_kept)
        else {
            return;
        };
        let address = self.shared.address.load(Ordering::Relaxed);
        let kept = Kept {
            lane,
            partner,
            address,
            round,
            sent: Some(sent),
            misses: Misses::default(),
            clones,
        };
        // Lanes over the limit are unmapped here, after the lock is free.
        match self.side() {
            Side::Accepted => drop(keep_accepting(kept)),
            Side::Connected => drop(keep_connecting(kept)),
        }
    }

    /// True when it is worth to ask for a lane that pays only if it is kept, or is kept already.
    pub fn is_due_at_low_price(&self, fd: RawFd) -> bool {
        const CALLS_MAX: u64 = 4;
        let calls = self.shared.over_tcp.calls();
        if calls >= CALLS_MAX || self.is_shared() || !keeps_lanes() {
            return false;
        }
        if self.side() == Side::Connected && self.kept_lanes() > 0 {
            return true;
        }
        // The accepting end asks one call later, when the other end has asked.
        let is_time = calls == u64::from(self.side() == Side::Accepted);
        is_time && self.is_chosen(fd, self.wasted().load(Ordering::Relaxed))
    }

    /// [`should_prime`], with a number that both ends know: they choose the same connections.
    fn is_chosen(&self, fd: RawFd, wasted: u32) -> bool {
        let number = Ends::of(sys::borrow(fd)).and_then(|ends| fingerprint(&ends, self.side()));
        number.is_some_and(|number| should_prime(self.side(), number, wasted))
    }

    /// For the connecting end: true when it asks for one more lane, beside those that it keeps.
    pub fn wants_another_lane(&self, fd: RawFd) -> bool {
        // As the accepting end, which asks for few.
        let is_chosen = || {
            let wasted = self.wasted().load(Ordering::Relaxed);
            let number =
                Ends::of(sys::borrow(fd)).and_then(|ends| fingerprint(&ends, Side::Connected));
            number.is_some_and(|number| should_prime(Side::Accepted, number, wasted))
        };
        self.unclaimed().load(Ordering::Relaxed)
            && self.kept_lanes() < process::settings().lanes_kept
            && is_chosen()
    }

    /// Notes that it asks the daemon for a lane that pays only if it is kept.
    pub fn note_asked_to_keep(&self) {
        self.set(flag::PRIMES, true);
        self.count_wasted(1);
    }

    fn count_wasted(&self, more: u32) {
        let now = self.wasted().load(Ordering::Relaxed);
        self.wasted().store(kept::wasted(now, more), Ordering::Relaxed);
    }

    /// Notes that a kept lane was used again.
    fn decrease_wasted(&self) {
        let now = self.wasted().load(Ordering::Relaxed);
        self.wasted().store(kept::wasted_after_use(now), Ordering::Relaxed);
    }

    /// How often lanes for connections to its address were requested or offered, and not used
    /// again.
    fn wasted(&self) -> &'static AtomicU32 {
        &WASTED[self.place_of_address(WASTED.len())]
    }

    fn unclaimed(&self) -> &'static AtomicBool {
        &UNCLAIMED[self.place_of_address(UNCLAIMED.len())]
    }

    fn place_of_address(&self, places: usize) -> usize {
        usize::try_from(self.shared.address.load(Ordering::Relaxed)).unwrap_or(0) % places
    }
}

/// The connecting end.
impl Connection {
    /// How many lanes are kept for connections to its address.
    pub fn kept_lanes(&self) -> usize {
        let address = self.shared.address.load(Ordering::Relaxed);
        if KEPT_CONNECTING.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        CONNECTING.lock().map_or(0, |connecting| {
            connecting.kept.iter().filter(|kept| kept.address == address).count()
        })
    }

    /// Offers kept lanes to the other end, one for each process that it may be; false when there is
    /// none for it now.
    pub fn invite(&self, fd: RawFd) -> bool {
        let Some(ends) = Ends::of(sys::borrow(fd)) else { return false };
        let Some(fingerprint) = fingerprint(&ends, Side::Connected) else { return false };
        let address = self.shared.address.load(Ordering::Relaxed);
        let Some(mut connecting) = CONNECTING.lock() else { return false };
        if self.is_shared() {
            return false;
        }
        let mut gone = stale(&mut connecting);
        let is_over = |kept: &mut Kept| kept.lane.is_retired() || kept.is_shared();
        gone.extend(connecting.kept.extract_if(.., is_over));
        let free = take_free(&mut connecting.kept, address);
        let is_any = !free.is_empty();
        for mut kept in free {
            let received = kept.lane.rests(kept.round).unwrap_or(0);
            if let Some(sent) = kept.sent.take() {
                kept.lane.renew(sent, received);
            }
            let invitation = Invitation::new(next_round(kept.round), fingerprint);
            kept.lane.invite(invitation);
            let generation = self.shared.generation.load(Ordering::Relaxed);
            let place = self.place;
            connecting.invited.push(Invited { kept, invitation, ends, place, generation });
        }
        if is_any {
            self.set(flag::INVITED, true);
        } else {
            // Their peers still use these lanes, or are gone.
            for kept in connecting.kept.iter_mut().filter(|kept| kept.address == address) {
                kept.misses = kept.misses.and_one();
            }
            gone.extend(connecting.kept.extract_if(.., |kept| kept.misses.are_too_many()));
        }
        KEPT_CONNECTING.store(count(&connecting.kept), Ordering::Relaxed);
        drop(connecting);
        gone.iter().for_each(|kept| kept.lane.abandon());
        is_any
    }

    /// True for invitations to this connection.
    fn is_invited_by(&self) -> impl Fn(&Invited) -> bool {
        let (place, generation) = (self.place, self.shared.generation.load(Ordering::Relaxed));
        move |one| one.place == place && one.generation == generation
    }

    /// True when the other end claimed an invitation, or will not any more.
    fn is_answered(&self) -> bool {
        CONNECTING.lock().is_none_or(|connecting| {
            let is_its = self.is_invited_by();
            let mut own = connecting.invited.iter().filter(|one| is_its(one)).peekable();
            own.peek().is_none() || own.any(Invited::is_claimed)
        })
    }

    /// The answer to its invitations. When there is one, or with `is_last`, those that were not
    /// claimed are withdrawn. A claim counts if the other end may be the partner's.
    fn answer(
        &self,
        connecting: &mut Connecting,
        is_last: bool,
        may_be_of: impl Fn(&Ends, Partner) -> bool,
    ) -> Answer {
        let is_its = self.is_invited_by();
        let is_claimed = connecting.invited.iter().any(|one| is_its(one) && one.is_claimed());
        if !is_claimed && !is_last && connecting.invited.iter().any(&is_its) {
            return Answer::Waiting;
        }
        let own: Vec<Invited> = connecting.invited.extract_if(.., |one| is_its(one)).collect();
        let (mut claimed, mut unclaimed) = (None, Vec::new());
        for Invited { mut kept, invitation, ends, .. } in own {
            if kept.lane.withdraw(invitation) {
                unclaimed.push(kept);
            } else if claimed.is_none() && may_be_of(&ends, kept.partner) {
                kept.round = invitation.round();
                claimed = Some(kept);
            } else {
                // One process accepted the connection, so any other had no right to the lane. It
                // must not keep that one from the connection.
                kept.lane.abandon();
            }
        }
        if claimed.is_none() && !unclaimed.is_empty() {
            self.count_wasted(1);
            self.unclaimed().store(true, Ordering::Relaxed);
        }
        for mut kept in unclaimed {
            if kept.is_in_vain() {
                kept.misses = Misses::of_a_lane_in_vain();
            } else if claimed.is_none() {
                kept.misses = kept.misses.and_one();
            }
            drop(put_back(connecting, kept));
        }
        claimed.map_or(Answer::Over, Answer::Claimed)
    }

    /// Looks for the answer to its invitation, and returns the new phase. If `pending` bytes to
    /// write are many, it waits for the answer for a short time: the other end would have to read
    /// what goes over TCP before it reads the lane.
    pub fn look_for_answer(&self, fd: RawFd, pending: usize) -> Phase {
        if pending >= PENDING_WORTH {
            self.wait_once(ATTACHES_NS, || self.is_answered());
        }
        let calls = self.shared.over_tcp.calls();
        let Some(mut connecting) = CONNECTING.lock() else { return Phase::Pending };
        // Readers are locked out as for a lane from the daemon. A handler that interrupted one
        // leaves the answer to a later call.
        let Some(receiving) = self.receiving() else { return Phase::Pending };
        // Another process that holds the connection by now has not mapped the lane.
        let is_last = calls >= LOOKS_MAX || self.is_shared();
        let may_be_of = |ends: &Ends, partner: Partner| other_end::is_of(ends, partner.user);
        let kept = match self.answer(&mut connecting, is_last, may_be_of) {
            Answer::Waiting => return Phase::Pending,
            Answer::Over => {
                self.set(flag::INVITED, false);
                return Phase::Fresh;
            }
            Answer::Claimed(kept) => kept,
        };
        self.set(flag::INVITED, false);
        // Before the look for a clone, so that one from here on is noticed when the lane is kept.
        let forks = FORKS.load(Ordering::Acquire);
        // The lock of the list is held, so that no fork shares the connection meanwhile.
        if self.is_shared() || kept.is_shared() {
            kept.lane.abandon();
            return Phase::Fresh;
        }
        SendSide::attach(&kept.lane);
        self.set_lane(Box::new(Lane::Memory(kept.lane)));
        drop(receiving);
        drop(connecting);
        self.decrease_wasted();
        log::debug!("connection {} goes to a lane that was kept", self.place);
        self.set_round(kept.round, Some(kept.partner), forks);
        self.disarm_if_no_sleeper(fd);
        Phase::Laned
    }

    /// Withdraws its invitation, or its offer to the daemon, since it goes on or ends without a
    /// lane.
    pub fn stop_asking(&self) {
        if self.has(flag::INVITED) {
            self.set(flag::INVITED, false);
            let answer = CONNECTING
                .lock()
                .map(|mut connecting| self.answer(&mut connecting, true, |_, _| true));
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
        let Some(partner) = verifiable(memory.partner) else { return };
        if process::is_ending() || self.is_shared() {
            return;
        }
        let clones = CLONES.load(Ordering::Acquire);
        let lane = ShmLane::open(memory.lane.as_fd(), 1, control::copy_mode());
        let Ok(lane) = lane else { return };
        let (round, address) = (FIRST_ROUND, self.shared.address.load(Ordering::Relaxed));
        // The other end has used its half of the lane.
        let sent = Some(0);
        drop(keep_connecting(Kept {
            lane,
            partner,
            address,
            round,
            sent,
            misses: Misses::default(),
            clones,
        }));
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
            && !self.has(flag::SENDING_SHUT)
    }

    /// Claims a lane with an invitation to it, and moves there; false when there is none.
    #[cold]
    pub fn accept_invitation(&self, fd: RawFd) -> bool {
        // Asked before the lock is taken, since connections may give their lanes back in this call.
        if !lanes::has_free_lane() {
            return false;
        }
        let Some(mut accepting) = ACCEPTING.lock() else { return false };
        let forks = FORKS.load(Ordering::Acquire);
        let shared: Vec<Kept> = accepting.extract_if(.., |kept| kept.is_shared()).collect();
        if !shared.is_empty() {
            shared.iter().for_each(|kept| kept.lane.retire());
            KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
        }
        let is_any = accepting.iter().any(|kept| kept.lane.invitation().is_some());
        if !is_any || self.is_shared() {
            return false;
        }
        let Some(ends) = Ends::of(sys::borrow(fd)) else { return false };
        let Some(fingerprint) = fingerprint(&ends, Side::Accepted) else { return false };
        // Readers are locked out before the claim. After it the other end may write to the lane,
        // and a reader that found no lane would take its wakeups for data of TCP.
        let Some(receiving) = self.receiving() else { return false };
        let found = accepting.iter().enumerate().find_map(|(place, kept)| {
            let invitation = kept.lane.invitation()?;
            invitation.is_for(fingerprint).then_some((place, invitation))
        });
        let Some((place, invitation)) = found else { return false };
        if !other_end::is_of(&ends, accepting[place].partner.user) {
            // The partner does not hold the connection to which it invites.
            let forged = accepting.remove(place);
            forged.lane.retire();
            KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
            drop((receiving, accepting, forged));
            return false;
        }
        if !accepting[place].lane.claim(invitation) {
            return false;
        }
        let Kept { lane, partner, .. } = accepting.remove(place);
        KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
        self.set_lane(Box::new(Lane::Memory(lane)));
        drop(receiving);
        drop(accepting);
        log::debug!("connection {} goes to a lane that was kept", self.place);
        self.decrease_wasted();
        self.set_round(invitation.round(), Some(partner), forks);
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
        && !sys::is_alive(accepting[place].partner.process)
    {
        gone.push(accepting.remove(place));
    }
    if kept.lane.is_abandoned() {
        gone.push(kept);
    } else {
        kept.lane.rest(kept.round, kept.sent.unwrap_or(0));
        gone.extend(add(&mut accepting, kept));
    }
    // An invitation that was written meanwhile is withdrawn, as any that nobody claims.
    gone.iter().for_each(|kept| kept.lane.retire());
    KEPT_ACCEPTING.store(count(&accepting), Ordering::Relaxed);
    gone
}

fn keep_connecting(kept: Kept) -> Option<Kept> {
    put_back(&mut *CONNECTING.lock()?, kept)
}

/// Keeps `kept` at the connecting end. Returns the lane that is not kept any more: the oldest or
/// `kept`.
fn put_back(connecting: &mut Connecting, kept: Kept) -> Option<Kept> {
    let too_much = match kept.misses.are_too_many() {
        false => add(&mut connecting.kept, kept),
        true => Some(kept),
    };
    KEPT_CONNECTING.store(count(&connecting.kept), Ordering::Relaxed);
    if let Some(kept) = &too_much {
        kept.lane.abandon();
    }
    too_much
}

/// Takes the lanes for connections to `address` that rest, the last used one of each process.
fn take_free(kept: &mut Vec<Kept>, address: u32) -> Vec<Kept> {
    let is_free = |one: &Kept| one.address == address && one.lane.rests(one.round).is_some();
    let partners = kept.iter().map(|one| is_free(one).then_some(one.partner.process));
    let chosen = kept::choose(&partners.collect::<Vec<_>>());
    chosen.into_iter().map(|place| kept.remove(place)).collect()
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
