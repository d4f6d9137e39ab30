//! A connection asks for a lane, makes it, or takes the one that the answer brings.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use weft_fabric::Carry;
use weft_socket::history::Outlook;
use weft_socket::{Phase, SendSide, Side, prepare};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_wire::stats::TcpReason;

use crate::arena::{Connection, flag};
use crate::control::Wanted;
use crate::lane::Lane;
use crate::{carrier, control, epoll, lanes, log, other_end, process, stats, sys, waits};

impl Connection {
    pub fn ask(&self, fd: RawFd) -> Phase {
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

    pub fn waiting(&self, fd: RawFd) -> carrier::Waiting {
        carrier::Waiting { token: self.token(), place: self.place, fd }
    }

    /// Waits for the lane and for the other end on it if the first call is to wait, as
    /// [`Connection::ask_connected`] does.
    fn waits_for_far_lane(&self, fd: RawFd) -> Result<Phase, TcpReason> {
        if process::settings().switch_calls > 0 {
            return Ok(Phase::Pending);
        }
        let mut decided = Phase::Pending;
        let waited = self.in_first_call(fd, || {
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
            Ok((is_there || decided == Phase::Fresh).then_some(()))
        });
        waited.map(|_| decided)
    }

    /// Looks again and again for what a first call waits for, `socket.switch_wait_us` at most.
    /// `None` when it did not come. A peer that is gone brings nothing, and a process that ends
    /// waits for nothing.
    fn in_first_call<T>(
        &self,
        fd: RawFd,
        mut look: impl FnMut() -> Result<Option<T>, TcpReason>,
    ) -> Result<Option<T>, TcpReason> {
        /// For so long it gives way between looks, in nanoseconds. Then it sleeps.
        const YIELDS_NS: u64 = 1_000_000;
        const NAP_NS: u64 = 100_000;
        let wait = process::settings().options.socket_switch_wait_us() * 1000;
        let start = sys::now_ns();
        loop {
            let found = look()?;
            let past = sys::now_ns() - start;
            if found.is_some() || past >= wait || process::is_ending() {
                return Ok(found);
            }
            let pause = if past > YIELDS_NS { NAP_NS } else { 0 };
            let seen = waits::poll_within(fd, PollFlags::RDHUP, Some(pause));
            let is_gone = seen.is_ok_and(|seen| !seen.is_empty());
            if is_gone {
                return look();
            }
            if pause == 0 {
                rustix::thread::sched_yield();
            }
        }
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

    fn ask_connected(&self, fd: RawFd) -> Result<Phase, TcpReason> {
        match control::offer_connected(self.token(), fd) {
            control::Answer::Matched(memory) => self.attach(fd, &memory),
            control::Answer::Refused(reason) => Err(reason),
            control::Answer::Wanted(_) => Err(TcpReason::Other),
            control::Answer::Pending { listening: false } if self.goes_without_listener() => {
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
                let matched = self.in_first_call(fd, || match control::matched(self.token()) {
                    control::Offered::Matched(memory) => Ok(Some(memory)),
                    control::Offered::Wanted(_) => Err(TcpReason::Other),
                    control::Offered::Lost(reason) => Err(reason),
                    control::Offered::Pending => Ok(None),
                })?;
                matched.map_or(Ok(Phase::Pending), |memory| self.attach(fd, &memory))
            }
        }
    }

    /// True for an end that stays on TCP if no program under weft listens at the address. The peer
    /// of a connection that had a lane before runs under weft.
    fn goes_without_listener(&self) -> bool {
        self.side() == Side::Connected && !self.has(flag::COUNTED)
    }

    pub fn ask_again(&self, fd: RawFd) -> Phase {
        let attached = match carrier::look(self.token()) {
            carrier::Look::Nothing => self.asks_daemon_again(fd),
            carrier::Look::NotYet => Ok(Phase::Pending),
            carrier::Look::Ready(lane) => self.takes_far_lane(fd, lane),
            carrier::Look::Failed => Err(TcpReason::Other),
        };
        match attached {
            Ok(decided) => decided,
            Err(TcpReason::DaemonLost) => self.puts_off(),
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
            control::Offered::Lost(TcpReason::PeerNotWeft) if !self.goes_without_listener() => {
                Ok(Phase::Pending)
            }
            control::Offered::Lost(reason) => {
                control::withdraw(self.token());
                Err(reason)
            }
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
    pub fn join(&self, fd: RawFd) -> Phase {
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
}

/// True when both addresses are the same, or both are loopback addresses.
pub fn same_host(local: IpAddr, remote: IpAddr) -> bool {
    let (local, remote) = (local.to_canonical(), remote.to_canonical());
    local == remote || (local.is_loopback() && remote.is_loopback())
}
