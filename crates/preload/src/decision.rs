//! Whether a connection gets a lane: when it asks, what the daemon says, and who decides for all.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::PollFlags;
use weft_socket::due::{Due, Threshold};
use weft_socket::history::Outlook;
use weft_socket::{Leave, Phase, SendSide, Side, prepare};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_wire::stats::TcpReason;

use crate::arena::{self, Connection, flag};
use crate::deferral::Held;
use crate::table::{self, Entry};
use crate::{control, epoll, lanes, log, other_end, process, stats, sys, waits};

/// One more than the place of the connection that this process waits for in the kernel, 0 for none.
static IN_KERNEL: AtomicU32 = AtomicU32::new(0);

/// So long a program that starts takes to take a connection over; another one, beside it in a pipe
/// of the shell, waits for it.
const STARTING_NS: u64 = 50_000_000;

/// So long a call waits for another thread that asks, before it goes over TCP.
const DECISION_NS: u64 = 20_000_000;

impl Connection {
    /// Called before input and output: asks for the fabric when that is due, and looks whether an
    /// answer has come. `pending` bytes are about to be written. Returns the phase to act on, which
    /// is never DECIDING.
    #[inline]
    pub fn decide(&self, fd: RawFd, pending: usize) -> Phase {
        match self.phase() {
            Phase::Laned if self.local.lane.load(Ordering::Relaxed).is_null() => self.join(fd),
            Phase::Laned if self.has(flag::GIVING_BACK) => {
                self.gives_back(fd);
                self.decided()
            }
            Phase::Fresh if self.is_in_kernel() => Phase::Fresh,
            Phase::Fresh if !self.may_be_invited() && !self.is_due(pending) => Phase::Fresh,
            Phase::Pending if !self.looks_again() || self.is_in_kernel() => Phase::Pending,
            Phase::Fresh | Phase::Deciding | Phase::Pending => self.decide_slowly(fd, pending),
            decided => decided,
        }
    }

    /// The phase, once nobody is deciding any more.
    fn decided(&self) -> Phase {
        match self.phase() {
            Phase::Deciding => self.wait_for_decision(DECISION_NS),
            decided => decided,
        }
    }

    /// It has done so much over TCP that a lane pays. The end that accepted asks later: it makes
    /// the lane, for a peer that is there.
    fn is_due(&self, pending: usize) -> bool {
        let settings = process::settings();
        let threshold = Threshold::of(self.side(), settings.switch_calls, settings.switch_bytes);
        let pending = if self.side() == Side::Connected { pending as u64 } else { 0 };
        let moved = self.shared.moved.load(Ordering::Relaxed).saturating_add(pending);
        let outlook = (!self.has(flag::UNSEEN)).then(|| self.outlook());
        let is_due = match threshold.due(self.shared.calls.load(Ordering::Relaxed), moved, outlook)
        {
            Due::Now => true,
            Due::AtLowPrice => self.is_due_at_low_price(),
            Due::NotYet => false,
        };
        is_due && self.is_seen() && self.has_room_for_a_lane()
    }

    /// The process may have one more.
    fn has_room_for_a_lane(&self) -> bool {
        let has_room = lanes::is_one_free();
        if !has_room {
            self.set(flag::NO_LANE, true);
        }
        has_room
    }

    /// Other processes hold it, too.
    pub fn is_shared(&self) -> bool {
        let all = self.shared.refs.load(Ordering::Relaxed);
        all > self.local.fds.load(Ordering::Relaxed)
    }

    /// While an offer is pending the answer is looked for at first, then less and less often, since
    /// that costs a system call.
    fn looks_again(&self) -> bool {
        const EVERY: u32 = 32;
        let calls = self.shared.calls.load(Ordering::Relaxed);
        let early = calls < process::settings().switch_calls.saturating_mul(4);
        early || calls.is_power_of_two() || calls.is_multiple_of(EVERY)
    }

    /// The one thread of this process is about to wait for data in the kernel, where it takes what
    /// comes: until it is out again, a handler that interrupts it must not move the connection.
    /// Returns what [`Connection::out_of_kernel`] takes.
    pub fn stay_while_in_kernel(&self) -> u32 {
        IN_KERNEL.swap(self.place + 1, Ordering::Relaxed)
    }

    /// It is out.
    pub fn out_of_kernel(former: u32) {
        IN_KERNEL.store(former, Ordering::Relaxed);
    }

    fn is_in_kernel(&self) -> bool {
        IN_KERNEL.load(Ordering::Relaxed) == self.place + 1
    }

    /// Counts what a write moved over TCP.
    pub fn wrote_over_tcp(&self, bytes: usize) {
        self.shared.writes.fetch_add(1, Ordering::Relaxed);
        self.read_over_tcp(bytes);
    }

    /// Counts what a read moved over TCP.
    pub fn read_over_tcp(&self, bytes: usize) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        self.shared.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The phase to act on, without asking for the fabric where nobody did yet.
    pub fn decide_if_asked(&self, fd: RawFd) -> Phase {
        match self.phase() {
            Phase::Fresh => Phase::Fresh,
            _ => self.decide(fd, 0),
        }
    }

    /// Called before a use that only the kernel serves: a connection without a lane stays on TCP
    /// for good. Returns the phase.
    pub fn decide_for_kernel(&self, fd: RawFd) -> Phase {
        loop {
            self.stay_unless_moved(TcpReason::RawUse);
            match self.decide(fd, 0) {
                // A handler that interrupted the asking cannot wait for its end.
                waits @ (Phase::Fresh | Phase::Pending) if self.is_deciding() => return waits,
                // Another thread was asking, and no answer has come yet.
                Phase::Fresh | Phase::Pending => {}
                decided => return decided,
            }
        }
    }

    /// It becomes one of the standard streams, which stdio reads and writes by itself: a connection
    /// that did not move yet stays on TCP as long, and others send there from now on.
    pub fn becomes_standard_stream(&self, fd: RawFd) {
        if self.becomes_unseen() || self.decide_for_kernel(fd) != Phase::Laned {
            return;
        }
        self.recall(fd);
        if let Some(mut sending) = self.sending_on_lane(fd) {
            sending.leave(Leave::ForGood);
        }
    }

    /// From here on this process uses it where the library does not see that, and it stays on TCP
    /// as long. False when it is on its way to a lane, or there, or stays on TCP anyhow.
    pub fn becomes_unseen(&self) -> bool {
        let start = sys::now_ns();
        let is_mine = || self.shared.unseen_user.load(Ordering::SeqCst) == process::pid();
        while !is_mine() && !self.is_seen() {
            if sys::now_ns() - start > STARTING_NS {
                // Two such users, of whom one may end before the other.
                self.stay_unless_moved(TcpReason::RawUse);
                return false;
            }
            rustix::thread::sched_yield();
        }
        self.set(flag::UNSEEN, true);
        self.shared.unseen_user.store(process::pid(), Ordering::SeqCst);
        self.wait_until_decided();
        // An offer of a relative stays: it finds the answer when this user is gone.
        self.leave_pending();
        matches!(self.phase(), Phase::Fresh | Phase::Pending)
    }

    /// An epoll set of this process has it.
    pub fn is_registered(&self) -> bool {
        self.local.registered.load(Ordering::Relaxed) > 0
    }

    /// One of the descriptors 0 to 2 leads to it.
    pub fn is_standard_stream(&self) -> bool {
        (0..=2).any(|fd| table::get(fd) == Entry::Connection(self.place))
    }

    /// This process uses it by way of the library alone again.
    pub fn is_seen_again(&self) {
        let own = process::pid();
        let unseen_user = &self.shared.unseen_user;
        let _ = unseen_user.compare_exchange(own, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Nobody uses it where the library does not see that.
    fn is_seen(&self) -> bool {
        let user = self.shared.unseen_user.load(Ordering::SeqCst);
        user == 0 || !sys::is_alive(user)
    }

    /// How much went over TCP is known: the kernel is asked where the library did not see all of
    /// it. False when that changes all the time, or the peer sends no more.
    fn is_counted(&self, fd: RawFd) -> bool {
        if !self.has(flag::UNSEEN) {
            return true;
        }
        let (Some(receiving), Some(sending)) = (self.receiving(), self.sending()) else {
            return false;
        };
        let Some(position) = sys::tcp_position(fd) else { return false };
        sending.state.has_written(position.written);
        receiving.state.has_taken(position.taken);
        true
    }

    /// True when this thread decides from here on. No signal handler runs in between: it would wait
    /// for a decider that it does not take for its own thread.
    pub fn claims_decision(&self, from: Phase) -> bool {
        let _held = Held::new();
        self.shared.phase.claim(from, sys::task())
    }

    #[cold]
    fn decide_slowly(&self, fd: RawFd, pending: usize) -> Phase {
        let from = self.phase();
        if from == Phase::Deciding {
            return self.wait_for_decision(DECISION_NS);
        }
        if !self.claims_decision(from) {
            return self.wait_for_decision(DECISION_NS);
        }
        let decided = match from {
            // Asked again, since somebody may have begun in between.
            stays @ (Phase::Fresh | Phase::Pending) if !(self.is_seen() && self.is_counted(fd)) => {
                stays
            }
            Phase::Fresh if self.may_be_invited() && self.goes_where_invited(fd) => Phase::Laned,
            Phase::Fresh if !self.is_due(pending) => Phase::Fresh,
            Phase::Fresh => self.ask(fd),
            Phase::Pending if self.has(flag::INVITED) => self.look_for_answer(fd, pending),
            Phase::Pending => self.ask_again(fd),
            other => other,
        };
        if decided == Phase::Laned {
            let bringer = if self.is_shared() { process::pid() } else { 0 };
            self.shared.bringer.store(bringer, Ordering::Relaxed);
            self.fix_buffers(fd);
            self.ring_at_once(fd);
        }
        if !self.shared.phase.decide(decided) {
            // Another thread lost patience and went on over TCP: the lane must not be used.
            control::withdraw(self.token());
            if decided == Phase::Laned {
                self.rings_no_more(fd);
            }
            self.drop_lane();
            return self.phase();
        }
        if decided == Phase::Laned {
            log::debug!("connection {} has a lane", self.place);
            epoll::moved(*self);
        }
        decided
    }

    /// Tells the lane which sizes of buffers the program fixed: as on TCP, less goes in then.
    pub fn fix_buffers(&self, fd: RawFd) {
        let (send, receive) = sys::fixed_buffers(fd);
        if let Some(sending) = self.sending()
            && let Some(lane) = sending.lane
        {
            sending.state.fix_buffers(lane, send, receive);
        }
    }

    /// The calling thread is asking: this is a handler that interrupted it.
    fn is_deciding(&self) -> bool {
        let decider = self.shared.phase.decider();
        self.phase() == Phase::Deciding && decider == sys::task()
    }

    /// The kernel says that there is something to read. While another thread is bringing the
    /// connection to a lane that may be a wakeup, which is not for the program: waits for the end
    /// of that, longer than any answer takes.
    pub fn wait_until_decided(&self) {
        if self.phase() == Phase::Deciding {
            self.wait_for_decision(1_000_000_000);
        }
    }

    /// Another thread is asking; that takes about as long as the daemon's answer. When it takes
    /// longer, or this is a handler that interrupted the asking, the call goes over TCP.
    fn wait_for_decision(&self, most_ns: u64) -> Phase {
        let start = sys::now_ns();
        loop {
            match self.phase() {
                Phase::Deciding if self.is_deciding() => return Phase::Pending,
                Phase::Deciding if sys::now_ns() - start < most_ns => {
                    rustix::thread::sched_yield();
                }
                Phase::Deciding if sys::is_alive(self.shared.phase.decider()) => {
                    return Phase::Pending;
                }
                // The process that asked died: whoever comes next is on TCP.
                Phase::Deciding => {
                    self.decline(TcpReason::Other);
                    return Phase::Declined;
                }
                decided => return decided,
            }
        }
    }

    fn ask(&self, fd: RawFd) -> Phase {
        let Ok(Some(remote)) = rustix::net::getpeername(sys::borrow(fd)) else {
            // Not connected yet, or no more: the kernel answers for now.
            return Phase::Fresh;
        };
        let local = rustix::net::getsockname(sys::borrow(fd)).ok();
        let addresses = local
            .and_then(|local| SocketAddr::try_from(local).ok())
            .zip(SocketAddr::try_from(remote).ok());
        let is_here = |(local, remote): (SocketAddr, SocketAddr)| {
            same_host(local.ip(), remote.ip()) || control::carries_networks()
        };
        let Some((local, remote)) = addresses.filter(|addresses| is_here(*addresses)) else {
            self.decline(TcpReason::NotLocal);
            return Phase::Declined;
        };
        let outlook = self.outlook();
        self.set(flag::EARLY, matches!(outlook, Outlook::Long | Outlook::Middling));
        self.note_socket(fd);
        let is_due_anyhow = self.has(flag::UNSEEN) || process::settings().switch_calls == 0;
        if outlook == Outlook::Middling && !is_due_anyhow {
            if self.side() == Side::Connected {
                if self.invites(fd) {
                    return Phase::Pending;
                }
                if self.has_kept_lane() {
                    // Its peer is not done with it.
                    return Phase::Fresh;
                }
            }
            self.asks_to_keep();
        }
        let asked = match self.side() {
            Side::Accepted if process::settings().switch_calls > 0 => {
                match control::expect(self.token(), fd) {
                    control::Answer::Wanted(peer) => self.make_lane(fd, peer),
                    control::Answer::Refused(reason) => Err(reason),
                    control::Answer::Matched(_) | control::Answer::Pending { .. } => {
                        Ok(Phase::Pending)
                    }
                }
            }
            // From the first call on: the other end may wait for the lane in its own.
            Side::Accepted => self.make_lane(fd, 0),
            Side::Connected => self.ask_connected(fd),
        };
        // Now, since it is not known any more when the other end has closed.
        if stats::are_read()
            && let Some(own) = control::only_user()
            && other_end::user(local, remote).is_some_and(|user| user != own)
        {
            self.set(flag::OTHER_USER, true);
        }
        match asked {
            Ok(decided) => decided,
            Err(reason) => {
                self.decline(reason);
                Phase::Declined
            }
        }
    }

    /// Notes the inode and the mode of the kernel's socket, which a connection that moves needs.
    pub fn note_socket(&self, fd: RawFd) {
        let inode = rustix::fs::fstat(sys::borrow(fd)).map_or(0, |status| status.st_ino);
        self.shared.inode.store(inode, Ordering::Relaxed);
        self.set(flag::NONBLOCKING, sys::is_nonblocking(fd));
    }

    /// `peer` is the process at the other end as in [`control::Memory`].
    fn make_lane(&self, fd: RawFd, peer: u32) -> Result<Phase, TcpReason> {
        let options = &process::settings().options;
        let layout = LaneLayout {
            slots: u32::try_from(options.shm_ring_slots()).map_err(|_| TcpReason::Other)?,
            sink_bytes: u32::try_from(options.socket_sink_bytes()).map_err(|_| TcpReason::Other)?,
        };
        let (lane, memory) = ShmLane::create(layout, control::copy_mode()).map_err(|error| {
            log::debug!("no lane: {error}");
            TcpReason::OutOfMemory
        })?;
        // Before the peer can know of it: threads may sleep on TCP already.
        prepare(&lane, Side::Accepted);
        // Under the lock of readers: one that found no lane takes whatever comes over TCP, and has
        // to be done with that before the peer can go to the lane, and back.
        let Some(guard) = self.receiving() else { return Ok(Phase::Fresh) };
        self.set_lane(Box::new(lane));
        drop(guard);
        self.may_keep_lane(peer);
        if let Err(reason) = control::offer_accepted(self.token(), fd, memory.as_fd()) {
            self.drop_lane();
            return Err(reason);
        }
        self.disarm_for_nobody(fd);
        Ok(Phase::Laned)
    }

    /// After the first piece of a transfer that is expected to be long: the peer, which is looking
    /// at that piece, has its answer from the daemon. What goes over TCP meanwhile it would have to
    /// read before anything on the lane. Waits for it once, shortly.
    #[cold]
    pub fn wait_for_peer(&self) {
        self.wait_once(|| {
            self.phase() != Phase::Laned
                || self.sending().is_none_or(|sending| {
                    sending.lane.is_none_or(|lane| SendSide::peer_attached(lane, self.side()))
                })
        });
    }

    /// Waits shortly until `is_there`, unless that was waited for before.
    pub fn wait_once(&self, is_there: impl Fn() -> bool) {
        const WAIT_NS: u64 = 200_000;
        if !self.has(flag::EARLY) {
            return;
        }
        self.set(flag::EARLY, false);
        let start = sys::now_ns();
        while !is_there() && sys::now_ns() - start < WAIT_NS {
            rustix::thread::sched_yield();
        }
    }

    fn ask_connected(&self, fd: RawFd) -> Result<Phase, TcpReason> {
        match control::offer_connected(self.token(), fd) {
            control::Answer::Matched(memory) => self.attach(fd, &memory),
            control::Answer::Refused(reason) => Err(reason),
            control::Answer::Wanted(_) => Err(TcpReason::Other),
            // One that had a lane before has a peer under weft.
            control::Answer::Pending { listening: false } if !self.has(flag::COUNTED) => {
                control::withdraw(self.token());
                Err(TcpReason::PeerNotWeft)
            }
            control::Answer::Pending { .. } => {
                let settings = process::settings();
                if settings.switch_calls > 0 {
                    // The other end asks when it has done as much; it may wait for this one.
                    return Ok(Phase::Pending);
                }
                let wait = settings.options.socket_switch_wait_us() * 1000;
                let start = sys::now_ns();
                loop {
                    match control::matched(self.token()) {
                        control::Offered::Matched(memory) => return self.attach(fd, &memory),
                        control::Offered::Wanted(_) => return Err(TcpReason::Other),
                        control::Offered::Lost(reason) => return Err(reason),
                        control::Offered::Pending => {}
                    }
                    // A peer that is gone will not come.
                    let gone =
                        waits::poll_one(fd, PollFlags::RDHUP, 0).is_ok_and(|e| !e.is_empty());
                    if gone || sys::now_ns() - start >= wait {
                        return Ok(Phase::Pending);
                    }
                    rustix::thread::sched_yield();
                }
            }
        }
    }

    fn ask_again(&self, fd: RawFd) -> Phase {
        let attached = match control::matched(self.token()) {
            control::Offered::Matched(memory) => self.attach(fd, &memory),
            // Others may hold it since it was offered.
            control::Offered::Wanted(_) if !self.has_room_for_a_lane() => Ok(Phase::Fresh),
            control::Offered::Wanted(peer) => self.make_lane(fd, peer),
            control::Offered::Lost(reason) => Err(reason),
            control::Offered::Pending => Ok(Phase::Pending),
        };
        match attached {
            Ok(decided) => decided,
            Err(reason) => {
                self.decline(reason);
                Phase::Declined
            }
        }
    }

    fn attach(&self, fd: RawFd, memory: &control::Memory) -> Result<Phase, TcpReason> {
        let lane =
            ShmLane::open(memory.lane.as_fd(), 1, control::copy_mode()).map_err(|error| {
                log::debug!("the lane cannot be used: {error}");
                TcpReason::OutOfMemory
            })?;
        // Under the lock of readers: threads asleep on TCP count themselves before they look for a
        // lane, and the end says that it has it only when its word is armed for them.
        let guard = self.receiving().ok_or(TcpReason::Other)?;
        prepare(&lane, Side::Connected);
        self.set_lane(Box::new(lane));
        drop(guard);
        self.may_keep_lane(memory.process);
        self.disarm_for_nobody(fd);
        Ok(Phase::Laned)
    }

    /// A forked process moved the connection to a lane that this one has not mapped.
    #[cold]
    fn join(&self, fd: RawFd) -> Phase {
        let side = usize::from(self.side() == Side::Connected);
        let lane = control::join(self.token(), fd)
            .and_then(|memory| ShmLane::open(memory.as_fd(), side, control::copy_mode()).ok());
        if let Some(lane) = lane {
            let new = Box::into_raw(Box::new(lane));
            let set = self.local.lane.compare_exchange(
                std::ptr::null_mut(),
                new,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if set.is_ok() {
                lanes::taken();
            } else {
                // SAFETY: the box was made just now and nobody else saw it.
                drop(unsafe { Box::from_raw(new) });
            }
            epoll::moved(*self);
        } else {
            log::warn_user!("a connection inherited by fork cannot be followed to the fabric");
        }
        Phase::Laned
    }

    /// Without a lane there must not come one any more: after the kernel's shutdown of the sending
    /// direction, say, its wakeups could not ring.
    pub fn stay_unless_moved(&self, reason: TcpReason) {
        if self.stays_in_phase(|_| reason) == Some(Phase::Pending) {
            self.withdraws();
        }
    }

    /// The same where the connection ends as it is. A lane that comes too late is looked for when
    /// it is closed.
    pub fn stay_at_its_end(&self, fd: RawFd) {
        let former = self.stays_in_phase(|phase| self.why_still_on_tcp(fd, phase));
        if former == Some(Phase::Pending) && self.has(flag::INVITED) {
            self.withdraws();
        }
    }

    /// Returns the phase that it was in, if it stays now and did not before.
    fn stays_in_phase(&self, reason: impl Fn(Phase) -> TcpReason) -> Option<Phase> {
        let from = self.shared.phase.stay()?;
        self.count_on_tcp(reason(from));
        Some(from)
    }
}

/// Both ends have the same address, or addresses of the host's own.
pub fn same_host(local: IpAddr, remote: IpAddr) -> bool {
    let (local, remote) = (local.to_canonical(), remote.to_canonical());
    local == remote || (local.is_loopback() && remote.is_loopback())
}

/// Moves the connections whose answer from the daemon has come.
pub fn move_answered() {
    let answered = control::answered();
    if answered.is_empty() {
        return;
    }
    for (fd, entry) in table::walk(0, u32::MAX) {
        if let Entry::Connection(place) = entry
            && let Some(connection) = arena::at(place)
            && connection.phase() == Phase::Pending
            && answered.contains(&connection.token())
            && !connection.is_in_kernel()
        {
            connection.decide_slowly(fd, 0);
        }
    }
}
