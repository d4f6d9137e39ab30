//! Whether and when a connection asks for a lane. One thread decides for all that hold the
//! connection.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::PollFlags;
use weft_fabric::Carry;
use weft_socket::due::{Due, Threshold};
use weft_socket::history::Outlook;
use weft_socket::{Leave, Phase, SendSide, Side, prepare};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_wire::stats::TcpReason;

use crate::arena::{Connection, flag};
use crate::control::Wanted;
use crate::deferral::Held;
use crate::lane::Lane;
use crate::table::{self, Entry};
use crate::{calls, carrier, control, epoll, lanes, log, other_end, process, stats, sys, waits};

/// One more than the place of the connection on which this process waits in the kernel, or 0.
static IN_KERNEL: AtomicU32 = AtomicU32::new(0);

/// How long a program that starts may take to take a connection over, in nanoseconds. Another
/// program of the same shell pipeline waits for it.
const STARTING_NS: u64 = 50_000_000;

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
    fn has_room_for_a_lane(&self) -> bool {
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

    /// True when this call looks for the answer to an offer. A look costs two system calls, so only
    /// the first calls look, and later ones after so many calls, or so many bytes in a while: what
    /// goes over TCP meanwhile has to be read there before the lane.
    fn looks_again(&self) -> bool {
        const CALLS: u64 = 32;
        const BYTES: u64 = 16 << 10;
        /// About 0.2 ms of processor ticks.
        const PAUSE: u64 = 500_000;
        let done = self.shared.over_tcp.done();
        let looked = &self.local.looked;
        // Two threads may count at once, so that no number of calls is sure to be seen.
        let early = done.calls() < process::settings().switch_calls.saturating_mul(4);
        // A writer that waits for room in the kernel makes no calls.
        let is_bounded = self.has(flag::BOUNDED);
        let looks = early
            || done.calls().wrapping_sub(looked.calls.load(Ordering::Relaxed)) >= CALLS
            || (is_bounded
                || done.bytes.wrapping_sub(looked.bytes.load(Ordering::Relaxed)) >= BYTES)
                && sys::ticks().wrapping_sub(looked.at.load(Ordering::Relaxed)) >= PAUSE;
        if looks {
            looked.calls.store(done.calls(), Ordering::Relaxed);
            looked.bytes.store(done.bytes, Ordering::Relaxed);
            looked.at.store(sys::ticks(), Ordering::Relaxed);
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

    fn is_in_kernel_wait(&self) -> bool {
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

    /// Called before a use that only the kernel serves: a connection without a lane stays on TCP
    /// for good. Returns the phase: laned or declined, except in a signal handler that interrupted
    /// a decision.
    pub fn decide_for_kernel(&self, fd: RawFd) -> Phase {
        loop {
            self.stay_unless_moved(fd, TcpReason::RawUse);
            match self.decide(fd, 0) {
                // A handler that interrupted the deciding thread cannot wait for it.
                waits @ (Phase::Fresh | Phase::Pending) if self.is_deciding() => return waits,
                // Another thread is deciding, and has no answer yet.
                Phase::Fresh | Phase::Pending => {}
                decided => return decided,
            }
        }
    }

    /// The connection becomes a standard stream, which stdio uses without the library. Without a
    /// lane it stays on TCP for that time. With a lane it sends over TCP from now on, and asks for
    /// its unread bytes there.
    pub fn prepare_for_stdio(&self, fd: RawFd) {
        if self.begin_unseen_use() || self.decide_for_kernel(fd) != Phase::Laned {
            return;
        }
        self.request_resend(fd);
        if let Some(mut sending) = self.sending_on_lane(fd) {
            sending.leave(Leave::ForGood);
        }
    }

    /// From now on this process uses the connection where the library does not see it, and the
    /// connection stays on TCP for that time. False when it has or gets a lane, or is on TCP for
    /// good.
    pub fn begin_unseen_use(&self) -> bool {
        let start = sys::now_ns();
        let is_mine = || self.shared.unseen_user.load(Ordering::SeqCst) == process::pid();
        while !is_mine() && !self.is_seen() {
            if sys::now_ns() - start > STARTING_NS {
                // Only one of two such users is noted, and it may end before the other.
                self.stay_unless_moved(stats::NOT_AT_HAND, TcpReason::RawUse);
                return false;
            }
            rustix::thread::sched_yield();
        }
        self.set(flag::UNSEEN, true);
        self.shared.unseen_user.store(process::pid(), Ordering::SeqCst);
        self.wait_until_decided();
        // The offer of another process stays: that process finds the answer when this use is over.
        self.leave_pending();
        matches!(self.phase(), Phase::Fresh | Phase::Pending)
    }

    /// True when an epoll set of this process contains the connection.
    pub fn is_registered(&self) -> bool {
        self.local.registered.load(Ordering::Relaxed) > 0
    }

    /// True when one of the descriptors 0 to 2 leads to the connection.
    pub fn is_standard_stream(&self) -> bool {
        (0..=2).any(|fd| table::get(fd) == Entry::Connection(self.place))
    }

    /// Ends [`Connection::begin_unseen_use`]: this process uses the connection through the library
    /// alone.
    pub fn end_unseen_use(&self) {
        let own = process::pid();
        let unseen_user = &self.shared.unseen_user;
        let _ = unseen_user.compare_exchange(own, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// True when no living process uses the connection where the library does not see it.
    fn is_seen(&self) -> bool {
        let user = self.shared.unseen_user.load(Ordering::SeqCst);
        user == 0 || !sys::is_alive(user)
    }

    /// Makes sure that all bytes of TCP are counted: asks the kernel where the library did not see
    /// all. False when the kernel's counts do not come to rest, or the peer ended its direction.
    fn is_counted(&self, fd: RawFd) -> bool {
        if !self.has(flag::UNSEEN) {
            return true;
        }
        let (Some(receiving), Some(sending)) = (self.receiving(), self.sending()) else {
            return false;
        };
        let Some(position) = sys::tcp_position(fd) else { return false };
        sending.state.set_tcp_written(position.written);
        receiving.state.set_tcp_taken(position.taken);
        true
    }

    /// Makes the calling thread the decider; false when the phase is not `from`. No signal handler
    /// runs in between: it would wait for a decider that it does not know to be its own thread.
    pub fn claim_decision(&self, from: Phase) -> bool {
        let _held = Held::new();
        self.shared.phase.claim(from, sys::task())
    }

    #[cold]
    fn decide_slowly(&self, fd: RawFd, pending: usize) -> Phase {
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
    fn is_deciding(&self) -> bool {
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

    /// True when the library sees what the program does until it reads again. Programs may wait by
    /// system calls of their own, and the kernel shows nothing of what is on a lane: no bytes, and
    /// room in place of none. A connection in an epoll set needs a wait for that set; any other one
    /// a read that may block, or a `poll` or `select`. A program that only writes, and
    /// waits in its writes, has nothing to be told when it is about to write.
    pub fn waits_are_seen(&self, pending: usize) -> bool {
        let registered = self.local.registered.load(Ordering::Relaxed) > 0;
        if registered {
            return self.local.unseen_sets.load(Ordering::Relaxed) == 0;
        }
        let only_writes =
            || pending > 0 && !self.has(flag::NONBLOCKING) && !self.shared.over_tcp.reads.are_any();
        self.has(flag::AWAITED) || only_writes()
    }

    /// Called before a read that may block, in which the library sees the program wait.
    #[inline]
    pub fn note_read(&self) {
        if !self.has(flag::AWAITED) {
            self.set(flag::AWAITED, true);
        }
    }

    /// False when the program moved bytes where the library did not see it: by system calls of its
    /// own, or through a descriptor that it got by one.
    fn saw_all_bytes(&self, fd: RawFd) -> bool {
        let (Some(receiving), Some(sending)) = (self.receiving(), self.sending()) else {
            return true;
        };
        sys::tcp_position(fd).is_none_or(|position| {
            position.written == sending.state.tcp_written()
                && position.taken == receiving.state.tcp_taken()
        })
    }

    fn ask(&self, fd: RawFd) -> Phase {
        if !self.has(flag::UNSEEN) && !self.saw_all_bytes(fd) {
            self.decline(fd, TcpReason::Unseen);
            return Phase::Declined;
        }
        let Ok(Some(remote)) = rustix::net::getpeername(sys::borrow(fd)) else {
            // The socket is not connected yet, or no more. The kernel answers the call.
            return Phase::Fresh;
        };
        let local = rustix::net::getsockname(sys::borrow(fd)).ok();
        let addresses = local
            .and_then(|local| SocketAddr::try_from(local).ok())
            .zip(SocketAddr::try_from(remote).ok());
        let is_here = |(local, remote): (SocketAddr, SocketAddr)| {
            let follows = process::settings().between_hosts || control::carries_networks();
            same_host(local.ip(), remote.ip()) || follows
        };
        let Some((local, remote)) = addresses.filter(|addresses| is_here(*addresses)) else {
            self.decline(fd, TcpReason::NotLocal);
            return Phase::Declined;
        };
        let outlook = self.outlook();
        self.set(flag::EARLY, matches!(outlook, Outlook::Long | Outlook::Middling));
        self.note_socket(fd);
        let is_due_anyhow = self.has(flag::UNSEEN) || process::settings().switch_calls == 0;
        if outlook == Outlook::Middling && !is_due_anyhow {
            if self.side() == Side::Connected && !self.wants_another_lane(fd) {
                if self.invite(fd) {
                    return Phase::Pending;
                }
                if self.kept_lanes() > 0 {
                    // The peer is not done with the kept lane.
                    return Phase::Fresh;
                }
            }
            self.note_asked_to_keep();
        }
        let asks_for_host =
            process::settings().between_hosts && !same_host(local.ip(), remote.ip());
        let asked = match self.side() {
            // The daemon says whether the other end is on this host.
            Side::Accepted if process::settings().switch_calls > 0 || asks_for_host => {
                match control::expect(self.token(), fd) {
                    control::Answer::Wanted(how) => self.make_lane(fd, how),
                    control::Answer::Refused(reason) => Err(reason),
                    control::Answer::Matched(_) | control::Answer::Pending { .. } => {
                        Ok(Phase::Pending)
                    }
                }
            }
            // At the first call: the other end may wait for the lane in its own.
            Side::Accepted => self.make_lane(fd, Wanted::Memory(None)),
            Side::Connected => self.ask_connected(fd),
        };
        // Asked now: the kernel forgets the user of an end that closed.
        if stats::are_read()
            && let Some(own) = control::only_user()
            && other_end::user(local, remote).is_some_and(|user| user != own)
        {
            self.set(flag::OTHER_USER, true);
        }
        match asked {
            Ok(decided) => decided,
            // On a machine that is very busy the daemon may be late, and it may be started anew.
            Err(TcpReason::DaemonLost) => self.puts_off(),
            Err(TcpReason::NoDaemon) if control::was_there() => self.puts_off(),
            Err(reason) => {
                self.decline(fd, reason);
                Phase::Declined
            }
        }
    }

    /// The connection asks again, in a second at the earliest.
    fn puts_off(&self) -> Phase {
        self.set(flag::PUT_OFF, true);
        self.local.looked.at.store(sys::ticks(), Ordering::Relaxed);
        Phase::Fresh
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

    /// Makes a lane and offers it.
    fn make_lane(&self, fd: RawFd, wanted: Wanted) -> Result<Phase, TcpReason> {
        let settings = process::settings();
        let partner = match wanted {
            Wanted::Address if settings.between_hosts => return self.expects_lane(fd),
            Wanted::Address => return Err(TcpReason::Other),
            Wanted::Memory(partner) => partner,
        };
        let options = &process::settings().options;
        let layout = LaneLayout {
            slots: u32::try_from(options.shm_ring_slots()).map_err(|_| TcpReason::Other)?,
            sink_bytes: u32::try_from(options.socket_sink_bytes()).map_err(|_| TcpReason::Other)?,
        };
        let (lane, memory) = ShmLane::create(layout, control::copy_mode()).map_err(|error| {
            log::debug!("no lane: {error}");
            TcpReason::OutOfMemory
        })?;
        // The lane is armed before the peer knows of it, since threads may already sleep on TCP.
        prepare(&lane, Side::Accepted);
        // Under both locks. A reader that found no lane takes under its lock what comes over TCP,
        // and must be done before the peer can go to the lane and back. A thread that ends the
        // sending direction on TCP either sees the lane, or is seen here.
        let (Some(guard), Some(sending)) = (self.receiving(), self.sending()) else {
            return Ok(Phase::Fresh);
        };
        sending.state.tell_former_end(&lane);
        self.set_lane(Box::new(Lane::Memory(lane)));
        drop((guard, sending));
        self.may_keep_lane(partner);
        if let Err(reason) = control::offer_accepted(self.token(), fd, memory.as_fd()) {
            self.drop_lane();
            return Err(reason);
        }
        if !self.has(flag::NONBLOCKING) {
            // The other end takes it at its next call.
            self.set(flag::EARLY, true);
        }
        self.disarm_if_no_sleeper(fd);
        Ok(Phase::Laned)
    }

    /// Offers a lane over the endpoint of this process. The lane comes when the other end asks.
    fn expects_lane(&self, fd: RawFd) -> Result<Phase, TcpReason> {
        let address = carrier::expect(self.waiting(fd)).ok_or(TcpReason::Other)?;
        control::offer_accepted(self.token(), fd, address.as_fd())
            .inspect_err(|_| carrier::forget(self.token()))?;
        Ok(Phase::Pending)
    }

    fn waiting(&self, fd: RawFd) -> carrier::Waiting {
        carrier::Waiting { token: self.token(), place: self.place, fd }
    }

    /// Waits for the lane and for the other end on it if the first call is to wait, as
    /// [`Connection::ask_connected`] does.
    fn waits_for_far_lane(&self, fd: RawFd) -> Result<Phase, TcpReason> {
        let settings = process::settings();
        if settings.switch_calls > 0 {
            return Ok(Phase::Pending);
        }
        let wait = settings.options.socket_switch_wait_us() * 1000;
        let start = sys::now_ns();
        let mut decided = Phase::Pending;
        while sys::now_ns() - start < wait {
            if decided == Phase::Pending {
                match carrier::look(self.token()) {
                    carrier::Look::NotYet => {}
                    carrier::Look::Ready(lane) => decided = self.takes_far_lane(fd, lane)?,
                    carrier::Look::Nothing | carrier::Look::Failed => return Err(TcpReason::Other),
                }
            }
            let is_there = self.sending().is_some_and(|sending| {
                sending.lane.is_some_and(|lane| {
                    lane.is_over() || SendSide::peer_attached(lane, self.side())
                })
            });
            if is_there || decided == Phase::Fresh {
                break;
            }
            rustix::thread::sched_yield();
        }
        Ok(decided)
    }

    /// Puts a lane over the endpoint in place, and says so in it. Until then the peer sends over
    /// TCP, so that nothing is on the lane that a reader without it could miss.
    fn takes_far_lane(&self, fd: RawFd, lane: carrier::FarLane) -> Result<Phase, TcpReason> {
        if self.is_shared() {
            // A relative came to hold the connection meanwhile. The peer is told by the drop.
            return Ok(Phase::Fresh);
        }
        let guard = self.receiving().ok_or(TcpReason::Other)?;
        lane.belongs_to(self.place, fd);
        let lane = Lane::Endpoint(lane);
        prepare(&lane, self.side());
        self.set_lane(Box::new(lane));
        drop(guard);
        self.may_keep_lane(None);
        self.disarm_if_no_sleeper(fd);
        Ok(Phase::Laned)
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
    /// its peer.
    pub fn wait_once(&self, most_ns: u64, is_there: impl Fn() -> bool) {
        if !self.has(flag::EARLY) {
            return;
        }
        self.set(flag::EARLY, false);
        let start = sys::now_ns();
        while !is_there() && sys::now_ns() - start < most_ns {
            rustix::thread::sched_yield();
        }
    }

    fn ask_connected(&self, fd: RawFd) -> Result<Phase, TcpReason> {
        match control::offer_connected(self.token(), fd) {
            control::Answer::Matched(memory) => self.attach(fd, &memory),
            control::Answer::Refused(reason) => Err(reason),
            control::Answer::Wanted(_) => Err(TcpReason::Other),
            // The peer of a connection that had a lane before runs under weft.
            control::Answer::Pending { listening: false } if !self.has(flag::COUNTED) => {
                control::withdraw(self.token());
                Err(TcpReason::PeerNotWeft)
            }
            control::Answer::Pending { .. } => {
                let settings = process::settings();
                if settings.switch_calls > 0 {
                    // The other end asks at its own threshold, and may wait for this end until
                    // then.
                    self.set(flag::EARLY, true);
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
                    // A peer that is gone makes no lane.
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
        let attached = match carrier::look(self.token()) {
            carrier::Look::Nothing => self.asks_daemon_again(fd),
            carrier::Look::NotYet => Ok(Phase::Pending),
            carrier::Look::Ready(lane) => self.takes_far_lane(fd, lane),
            carrier::Look::Failed => Err(TcpReason::Other),
        };
        match attached {
            Ok(decided) => decided,
            Err(reason) => {
                self.decline(fd, reason);
                Phase::Declined
            }
        }
    }

    fn asks_daemon_again(&self, fd: RawFd) -> Result<Phase, TcpReason> {
        match control::matched(self.token()) {
            control::Offered::Matched(memory) => self.attach(fd, &memory),
            // Other connections may have taken the last lane since the offer.
            control::Offered::Wanted(_) if !self.has_room_for_a_lane() => Ok(Phase::Fresh),
            control::Offered::Wanted(how) => self.make_lane(fd, how),
            control::Offered::Lost(reason) => Err(reason),
            control::Offered::Pending => Ok(Phase::Pending),
        }
    }

    fn attach(&self, fd: RawFd, memory: &control::Memory) -> Result<Phase, TcpReason> {
        if let Some(address) = carrier::Address::read(memory.lane.as_fd()) {
            // Without that option the other threads of this process sleep where a lane over an
            // endpoint cannot wake them.
            let may = process::settings().between_hosts;
            return if may && carrier::ask(self.waiting(fd), address) {
                self.waits_for_far_lane(fd)
            } else {
                Err(TcpReason::Other)
            };
        }
        let lane =
            ShmLane::open(memory.lane.as_fd(), 1, control::copy_mode()).map_err(|error| {
                log::debug!("the lane cannot be used: {error}");
                TcpReason::OutOfMemory
            })?;
        // Under both locks. Threads asleep on TCP count themselves before they look for a lane.
        // This end says that it has the lane only when its word is armed for them, and when it said
        // that its sending direction has ended, if that is so.
        let guard = self.receiving().ok_or(TcpReason::Other)?;
        let sending = self.sending().ok_or(TcpReason::Other)?;
        sending.state.tell_former_end(&lane);
        prepare(&lane, Side::Connected);
        self.set_lane(Box::new(Lane::Memory(lane)));
        drop((guard, sending));
        self.may_keep_lane(memory.partner);
        self.disarm_if_no_sleeper(fd);
        Ok(Phase::Laned)
    }

    /// Maps the lane to which another process moved the connection.
    #[cold]
    fn join(&self, fd: RawFd) -> Phase {
        if process::is_cloned() {
            // The line to the daemon is its parent's.
            return Phase::Laned;
        }
        let side = usize::from(self.side() == Side::Connected);
        let lane = control::join(self.token(), fd)
            .and_then(|memory| ShmLane::open(memory.as_fd(), side, control::copy_mode()).ok());
        if let Some(lane) = lane {
            let new = Box::into_raw(Box::new(Lane::Memory(lane)));
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

    /// Keeps a connection without a lane on TCP for good. After the kernel's shutdown of the
    /// sending direction, for example, wakeups of a later lane could not be sent.
    pub fn stay_unless_moved(&self, fd: RawFd, reason: TcpReason) {
        if self.keep_on_tcp(fd, |_| reason) == Some(Phase::Pending) {
            self.stop_asking();
        }
    }

    /// Called before the program ends the sending direction by the kernel's half close. What it
    /// receives may still move: the peer sends wakeups for that, and finds room without any. False
    /// when the connection has a lane by now, or stays on TCP for good.
    pub fn ends_sending_on_tcp(&self, fd: RawFd) -> bool {
        loop {
            // The memory of a lane that others left is for connections that are whole. Across a
            // network an end of file on TCP is an end of the peer.
            let may_move =
                !process::settings().between_hosts && !self.has(flag::INVITED | flag::PRIMES);
            match self.phase() {
                Phase::Fresh | Phase::Pending if may_move => {}
                Phase::Deciding => {
                    self.decide_if_asked(fd);
                    if self.phase() == Phase::Deciding {
                        // A handler that interrupted the deciding thread cannot wait for it.
                        return false;
                    }
                    continue;
                }
                _ => return false,
            }
            // A thread that brings a lane puts it in place under this lock.
            let Some(sending) = self.sending() else { return false };
            if sending.lane.is_none() {
                sending.state.shut_without_lane();
                self.set(flag::SENDING_SHUT, true);
                return true;
            }
        }
    }

    /// Keeps a connection without a lane on TCP until its end, which has begun. Its offer to the
    /// daemon stays until it is closed: a lane that comes by then is kept for the next connection.
    pub fn stay_at_its_end(&self, fd: RawFd) {
        let former = self.keep_on_tcp(fd, |phase| self.why_still_on_tcp(fd, phase));
        if former == Some(Phase::Pending) {
            // A lane over the endpoint serves no other connection.
            carrier::forget(self.token());
            if self.has(flag::INVITED) {
                self.stop_asking();
            }
        }
    }

    /// Keeps a connection without a lane on TCP. Returns its former phase if that changed.
    fn keep_on_tcp(&self, fd: RawFd, reason: impl Fn(Phase) -> TcpReason) -> Option<Phase> {
        let from = self.shared.phase.stay()?;
        self.unbound_backlog();
        self.count_on_tcp(fd, reason(from));
        Some(from)
    }
}

/// True when both addresses are the same, or both are loopback addresses.
pub fn same_host(local: IpAddr, remote: IpAddr) -> bool {
    let (local, remote) = (local.to_canonical(), remote.to_canonical());
    local == remote || (local.is_loopback() && remote.is_loopback())
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
