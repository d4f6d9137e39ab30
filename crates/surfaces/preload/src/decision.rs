//! Whether and when a connection asks for a lane. One thread decides for all that hold the
//! connection.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use weft_socket::due::{Due, Threshold};
use weft_socket::looks::Progress;
use weft_socket::{Phase, SendSide, Side};
use weft_sync::contention;
use weft_wire::stats::TcpReason;

use crate::arena::{Connection, flag};
use crate::deferral::Held;
use crate::table::{self, Entry};
use crate::{calls, carrier, control, epoll, lanes, log, process, stats, sys};

/// One more than the place of the connection on which this process waits in the kernel, or 0.
static IN_KERNEL: AtomicU32 = AtomicU32::new(0);

/// How long a writer waits at most for a peer that is to map the lane, in nanoseconds.
pub const ATTACHES_NS: u64 = 200_000;

/// How long a writer waits at most for a peer that is to ask for a lane, and for the daemon that
/// tells, in nanoseconds. The kernel would take some megabytes meanwhile.
const ANSWERS_NS: u64 = 2_000_000;

/// How long a call waits for another thread's decision before it goes over TCP, in nanoseconds.
const DECISION_NS: u64 = 20_000_000;

impl Connection {
    /// Called before input and output. Asks for a lane when one is due, or looks for the answer.
    /// `pending` bytes are about to be written. Returns the phase to act on, never
    /// [`Phase::Deciding`].
    #[inline]
    pub fn decide(&self, fd: RawFd, pending: usize) -> Phase {
        if self.stays_on_lane() { Phase::Laned } else { self.decide_otherwise(fd, pending) }
    }

    /// [`Connection::decide`] for all other connections, kept out of the calls on a lane.
    #[inline(never)]
    fn decide_otherwise(&self, fd: RawFd, pending: usize) -> Phase {
        match self.phase() {
            Phase::Laned if self.local.lane.load(Ordering::Relaxed).is_null() => self.join(fd),
            Phase::Laned if self.has(flag::GIVING_BACK) => {
                self.gives_back(fd);
                self.decided()
            }
            Phase::Fresh if self.is_in_kernel_wait() || self.is_put_off() => Phase::Fresh,
            waits @ (Phase::Fresh | Phase::Pending) if !self.waits_are_seen(pending) => waits,
            Phase::Fresh if !self.may_be_invited() && !self.is_due(fd, pending) => Phase::Fresh,
            Phase::Pending if !self.looks_again() || self.is_in_kernel_wait() => Phase::Pending,
            Phase::Fresh | Phase::Deciding | Phase::Pending => self.decide_slowly(fd, pending),
            decided => decided,
        }
    }

    /// The phase, after a wait of up to [`DECISION_NS`] for a thread that is deciding.
    fn decided(&self) -> Phase {
        match self.phase() {
            Phase::Deciding => self.wait_for_decision(DECISION_NS),
            decided => decided,
        }
    }

    /// True when the connection did so much over TCP that a lane pays, and may have one. The
    /// accepting end asks later: it makes the lane, for a peer that is there.
    fn is_due(&self, fd: RawFd, pending: usize) -> bool {
        let settings = process::settings();
        let threshold = Threshold::of(self.side(), settings.switch_calls, settings.switch_bytes);
        let pending = if self.side() == Side::Connected { pending as u64 } else { 0 };
        let done = self.shared.over_tcp.done();
        let moved = done.bytes.saturating_add(pending);
        let outlook = (!self.has(flag::UNSEEN)).then(|| self.outlook());
        let is_due = match threshold.due(done.calls(), moved, outlook) {
            Due::Now => true,
            Due::AtLowPrice => !self.has(flag::SENDING_SHUT) && self.is_due_at_low_price(fd),
            Due::NotYet => false,
        };
        // A lane over the endpoint belongs to one process.
        let may = !process::settings().between_hosts || !self.is_shared();
        is_due && may && self.is_seen() && self.has_room_for_a_lane()
    }

    /// True when the process may have one more lane. Otherwise notes that the connection wanted
    /// one.
    pub fn has_room_for_a_lane(&self) -> bool {
        let has_room = lanes::has_free_lane();
        if !has_room {
            self.set(flag::NO_LANE, true);
        }
        has_room
    }

    /// True when other processes hold the connection, too.
    pub fn is_shared(&self) -> bool {
        let all = self.shared.refs.load(Ordering::Relaxed);
        all > self.local.fds.load(Ordering::Relaxed)
    }

    /// True when this call looks for the answer to an offer ([`Progress::looks_again`]).
    fn looks_again(&self) -> bool {
        let done = self.shared.over_tcp.done();
        let now = Progress { calls: done.calls(), bytes: done.bytes, ticks: sys::ticks() };
        let looked = &self.local.looked;
        let last = Progress {
            calls: looked.calls.load(Ordering::Relaxed),
            bytes: looked.bytes.load(Ordering::Relaxed),
            ticks: looked.at.load(Ordering::Relaxed),
        };
        let early = process::settings().switch_calls.saturating_mul(4);
        let looks = now.looks_again(last, early, self.has(flag::BOUNDED));
        if looks {
            looked.calls.store(now.calls, Ordering::Relaxed);
            looked.bytes.store(now.bytes, Ordering::Relaxed);
            looked.at.store(now.ticks, Ordering::Relaxed);
        }
        looks
    }

    /// Called when the only thread of this process is about to wait in the kernel, in a call that
    /// takes data. A signal handler must not move the connection until
    /// [`Connection::end_kernel_wait`], which takes the value returned here.
    pub fn begin_kernel_wait(&self) -> u32 {
        IN_KERNEL.swap(self.place + 1, Ordering::Relaxed)
    }

    /// Ends [`Connection::begin_kernel_wait`].
    pub fn end_kernel_wait(former: u32) {
        IN_KERNEL.store(former, Ordering::Relaxed);
    }

    pub fn is_in_kernel_wait(&self) -> bool {
        IN_KERNEL.load(Ordering::Relaxed) == self.place + 1
    }

    /// The phase to act on. Asks for no lane if nobody asked before.
    pub fn decide_if_asked(&self, fd: RawFd) -> Phase {
        match self.phase() {
            Phase::Fresh => Phase::Fresh,
            _ => self.decide(fd, 0),
        }
    }

    /// The phase to act on. Asks for nothing unless the connection has a lane, which another
    /// process brought.
    pub fn decide_if_laned(&self, fd: RawFd) -> Phase {
        match self.phase() {
            Phase::Laned => self.decide(fd, 0),
            other => other,
        }
    }

    /// Makes the calling thread the decider; false when the phase is not `from`. No signal handler
    /// runs in between: it would wait for a decider that it does not know to be its own thread.
    pub fn claim_decision(&self, from: Phase) -> bool {
        let _held = Held::new();
        self.shared.phase.claim(from, sys::task())
    }

    #[cold]
    pub fn decide_slowly(&self, fd: RawFd, pending: usize) -> Phase {
        let from = self.phase();
        if from == Phase::Deciding {
            return self.wait_for_decision(DECISION_NS);
        }
        if process::is_cloned() {
            return from;
        }
        if !self.claim_decision(from) {
            return self.wait_for_decision(DECISION_NS);
        }
        self.counts_as_asleep();
        let decided = match from {
            // Checked under the claim, since an unseen use may have begun before it.
            stays @ (Phase::Fresh | Phase::Pending) if !(self.is_seen() && self.is_counted(fd)) => {
                stays
            }
            stays @ (Phase::Fresh | Phase::Pending) if !self.waits_are_seen(pending) => stays,
            // Looked at under the claim, for which the thread that ends the process waits.
            stays @ (Phase::Fresh | Phase::Pending) if process::is_ending() => stays,
            Phase::Fresh if self.may_be_invited() && self.accept_invitation(fd) => Phase::Laned,
            Phase::Fresh if !self.is_due(fd, pending) => Phase::Fresh,
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
            // Another thread declined the connection meanwhile, so the lane must not be used.
            control::withdraw(self.token());
            if decided == Phase::Laned {
                self.stop_wakeups(fd);
            }
            self.drop_lane();
            return self.phase();
        }
        if decided == Phase::Laned {
            log::debug!("connection {} has a lane", self.place);
            epoll::moved(*self);
            // The thread that ends the process saw no lane yet.
            fence(Ordering::SeqCst);
            if process::is_ending() {
                self.announce_end(fd);
            }
        }
        decided
    }

    /// Tells the lane the buffer sizes that the program set, so that it holds no more than they
    /// would.
    pub fn fix_buffers(&self, fd: RawFd) {
        let (send, receive) = sys::fixed_buffers(fd);
        if let Some(sending) = self.sending()
            && let Some(lane) = sending.lane
        {
            sending.state.fix_buffers(lane, send, receive);
        }
    }

    /// True in a signal handler that interrupted the deciding thread.
    pub fn is_deciding(&self) -> bool {
        let decider = self.shared.phase.decider();
        self.phase() == Phase::Deciding && decider == sys::task()
    }

    /// Waits until no thread is deciding, up to a second, which is longer than any answer takes.
    /// While a thread brings the connection to a lane, what the kernel has to read may be a wakeup,
    /// which is not for the program.
    pub fn wait_until_decided(&self) {
        if self.phase() == Phase::Deciding {
            self.wait_for_decision(1_000_000_000);
        }
    }

    /// Waits up to `most_ns` nanoseconds for the deciding thread, which takes about as long as the
    /// daemon's answer. After that, and in a handler that interrupted this thread, the call goes
    /// over TCP.
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
                // The thread that decided died, so the connection stays on TCP.
                Phase::Deciding => {
                    self.decline(stats::NOT_AT_HAND, TcpReason::Other);
                    return Phase::Declined;
                }
                decided => return decided,
            }
        }
    }

    /// True for a connection that asked, had no answer, and is not to ask yet.
    #[inline]
    pub fn is_put_off(&self) -> bool {
        /// About a second of processor ticks.
        const PAUSE: u64 = 2_500_000_000;
        self.has(flag::PUT_OFF)
            && sys::ticks().wrapping_sub(self.local.looked.at.load(Ordering::Relaxed)) < PAUSE
    }

    /// Notes the inode and the mode of the kernel's socket, which a connection with a lane needs.
    pub fn note_socket(&self, fd: RawFd) {
        let inode = rustix::fs::fstat(sys::borrow(fd)).map_or(0, |status| status.st_ino);
        self.shared.inode.store(inode, Ordering::Relaxed);
        self.set(flag::NONBLOCKING, sys::is_nonblocking(fd));
    }

    /// Waits once, shortly, after the first piece of a transfer that is expected to be long. The
    /// peer looks at that piece and receives the daemon's answer. It would have to read what goes
    /// over TCP meanwhile before it reads the lane.
    #[cold]
    pub fn wait_for_peer(&self) {
        if self.phase() == Phase::Laned {
            self.wait_once(ATTACHES_NS, || {
                self.sending().is_none_or(|sending| {
                    sending.lane.is_none_or(|lane| SendSide::peer_attached(lane, self.side()))
                })
            });
        }
    }

    /// Called before a thread that may wait sends more of a long transfer, or waits until it can.
    /// Waits once, shortly, for the peer that has had enough bytes to ask for a lane, for the same
    /// reason. Returns the phase to act on.
    #[cold]
    pub fn wait_for_answer(&self, fd: RawFd) -> Phase {
        let enough = process::settings().switch_bytes.saturating_mul(3);
        let is_long = self.shared.over_tcp.done().bytes >= enough;
        if is_long && self.phase() == Phase::Pending && !self.has(flag::INVITED) {
            self.wait_once(ANSWERS_NS, || {
                self.phase() != Phase::Pending || self.decide_slowly(fd, 0) != Phase::Pending
            });
        }
        self.decided()
    }

    /// Waits up to `most_ns` nanoseconds until `is_there`, once, if the connection is to wait for
    /// its peer. Where others use the processors, it waits up to ten times as long, and sleeps: the
    /// daemon and the peer wait for a processor, too.
    pub fn wait_once(&self, most_ns: u64, is_there: impl Fn() -> bool) {
        const CROWDED: u64 = 10;
        const NAP: rustix::thread::Timespec =
            rustix::thread::Timespec { tv_sec: 0, tv_nsec: 100_000 };
        if !self.has(flag::EARLY) {
            return;
        }
        self.set(flag::EARLY, false);
        let start = sys::now_ns();
        while !is_there() {
            let past = sys::now_ns() - start;
            let is_crowded = contention::is_contended() || contention::is_computing();
            if past >= most_ns && !(is_crowded && past < most_ns * CROWDED) {
                break;
            }
            if is_crowded {
                let _ = rustix::thread::nanosleep(&NAP);
            } else {
                contention::yield_core();
            }
        }
    }
}

/// A lane over the endpoint of this process is there for a connection, or there will be none: moves
/// the connection, whose program may not look for long.
pub fn settled(waiting: carrier::Waiting) {
    let carrier::Waiting { token, place, fd } = waiting;
    let connection =
        calls::enter(fd).filter(|found| found.place == place && found.token() == token);
    match connection.as_ref().map(|connection| (connection, connection.phase())) {
        Some((connection, Phase::Pending)) if !connection.is_in_kernel_wait() => {
            connection.decide_slowly(fd, 0);
        }
        // Another thread decides, or finds the lane when it is out of the kernel.
        Some((_, Phase::Pending | Phase::Deciding)) => {}
        // The connection ended or stays on TCP.
        Some(_) | None => carrier::forget(token),
    }
}

/// Decides for each pending connection whose answer from the daemon has come.
pub fn move_answered() {
    let answered = control::answered();
    if answered.is_empty() {
        return;
    }
    for (fd, entry) in table::walk(0, u32::MAX) {
        if let Entry::Connection(_) = entry
            && let Some(connection) = calls::enter(fd)
            && connection.phase() == Phase::Pending
            && answered.contains(&connection.token())
            && !connection.is_in_kernel_wait()
        {
            connection.decide_slowly(fd, 0);
        }
    }
}
