//! Polling, waiting and sleeping.
//!
//! A poll looks at the summary word of the wakeup, the queue of own notifications and the rings of
//! the active peers. A ring that stays empty is armed and no longer polled: its sender rings. The
//! cost of a poll therefore follows the traffic, not the number of peers.
//!
//! # Falling asleep
//! The endpoint arms every ring, and the room word of every peer whose room it waits for. It then
//! executes one heavy fence, looks at all of them once more, announces the sleep in the state word
//! of the wakeup, looks at the summary and sleeps. A peer that publishes afterwards sees the armed
//! word, sets the summary and finds the state.
//!
//! # Invariants
//! - A sleep lasts at most [`SLICE`], and then the endpoint looks at all rings. A hostile peer that
//!   clears the bits of other peers therefore delays the endpoint, and never hangs it.

use std::time::Duration;

use std::os::fd::AsFd;
use weft_broker::conversation::Announcement;
use weft_fabric::{Armed, DownReason, Event, Register, Waited};
use weft_sync::{Step, fence, futex};

use crate::address_vector::PeerState;
use crate::attention;
use crate::endpoint::{Leaving, ShmEndpoint};
use crate::receive::{Received, head, is_filled, receive};
use crate::rights::ASK_AGAIN_AFTER;
use crate::sys;
use crate::wakeup;

/// Longest sleep before the endpoint looks at all rings.
const SLICE: Duration = Duration::from_millis(100);
/// A ring is armed after this many polls found it empty, if more than [`ACTIVE_MIN`] are polled.
const IDLE_POLLS: u32 = 512;
/// This many rings are always polled: polling them costs less than arming them.
const ACTIVE_MIN: usize = 4;
/// Polls between two looks at the broker's connection and at all rings; a power of two.
const LOOK_EVERY: u32 = 1 << 16;
/// Polls between two searches for idle rings; a power of two.
const TIDY_EVERY: u32 = 1 << 8;
/// Polls after which puts and gets look their keys up again; a multiple of [`TIDY_EVERY`].
const TIME_EVERY: u32 = 1 << 12;
/// How soon to poll again while the wakeup socket is broken or the daemon is gone.
const BROKEN_WAKEUP_POLL: Duration = Duration::from_millis(10);
/// How soon to poll again while own memory moves, or a restarted broker is told of this endpoint.
const STEP_POLL: Duration = Duration::from_micros(100);

impl ShmEndpoint {
    #[inline]
    pub(crate) fn do_poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.polls = self.polls.wrapping_add(1);
        let asked = self.has_requests() || self.requests.has_ended() || self.unread;
        let due =
            self.armed || asked || !self.batches.is_empty() || self.polls & (TIDY_EVERY - 1) == 0;
        if due || self.doorbell.words().is_rung() {
            self.do_rare_work();
        }
        let mut events = 0;
        if !self.leaving.is_empty() || !self.local.is_empty() || self.requests.has_ended() {
            events += self.poll_own(budget, sink);
        }
        events += self.poll_rings(budget - events, sink);
        if !self.waits_for_room.is_empty() {
            events += self.poll_room(budget - events, sink);
        }
        if self.groups.wait() {
            events += self.poll_groups(budget - events, sink);
        }
        events
    }

    /// Whether revocations go on that only polls of this endpoint advance.
    #[inline]
    pub(crate) fn has_steps(&self) -> bool {
        self.moves.are_under_way() || self.partings.are_under_way()
    }

    /// Whether something goes on that polls have to look after.
    #[inline]
    fn has_requests(&self) -> bool {
        self.broker.waits() || self.has_steps() || self.broker.is_announcing(sys::now)
    }

    /// The rare part of a poll: leaves sleep, handles the wakeup, searches for idle rings.
    #[cold]
    fn do_rare_work(&mut self) {
        if self.armed {
            self.rise();
        }
        if !self.batches.is_empty() {
            self.ring_for_batches();
        }
        if self.doorbell.words().is_rung() {
            self.answer_wakeup();
        }
        if self.has_requests() || self.unread {
            self.handle_broker_messages();
        }
        if self.polls & (TIME_EVERY - 1) == 0 {
            // Puts and gets look their keys up then, and some of those are timed.
            self.recently.forget();
        }
        if self.polls & (TIDY_EVERY - 1) == 0 {
            self.tidy();
        }
    }

    /// Hands out events of peers that are gone, and notifications of own operations.
    #[inline(never)]
    fn poll_own(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let mut events = 0;
        while events < budget
            && let Some(event) = self.requests.pop()
        {
            events += 1;
            sink(event);
        }
        events += self.poll_leaving(budget - events, sink);
        let before = events;
        while events < budget
            && let Some(notification) = self.local.pop()
        {
            events += 1;
            sink(Event::Notification(notification));
        }
        self.registers.count(Register::NotificationsReceived, (events - before) as u64);
        events
    }

    #[inline]
    fn poll_rings(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        if self.active.is_empty() {
            return 0;
        }
        let own = self.address.vpid.0;
        let mut events = 0;
        // Rings may have been removed, so `turn` may lie beyond the end of the list.
        let mut place = if self.turn < self.active.len() { self.turn } else { 0 };
        for _ in 0..self.active.len() {
            if events >= budget {
                break;
            }
            let Some(vpid) = self.active.get(place).copied() else { break };
            place += 1;
            if place >= self.active.len() {
                place = 0;
            }
            let Some(peer) = self.peers.by_vpid(vpid) else { continue };
            let Received { events: some, is_breach } = match head(peer) {
                Ok(None) => {
                    peer.idle = peer.idle.saturating_add(1);
                    continue;
                }
                Ok(Some(status)) => {
                    let left = budget - events;
                    receive(peer, status, own, left, &self.registers, sink)
                }
                Err(_) => Received { events: 0, is_breach: true },
            };
            events += some;
            peer.idle = 0;
            if is_breach {
                // `peer_gone` changed the list; the next poll serves the other rings.
                self.peer_gone(vpid, DownReason::Misbehaved);
                self.end_pair(vpid);
                return events;
            }
        }
        self.turn += 1;
        if self.turn >= self.active.len() {
            self.turn = 0;
        }
        events
    }

    /// Hands out the last messages of peers that are gone, and then their `PeerDown`.
    fn poll_leaving(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let own = self.address.vpid.0;
        let mut events = 0;
        while events < budget
            && let Some(Leaving { peer, until, reason }) = self.leaving.first_mut()
        {
            let left = until.wrapping_sub(peer.receive.messages);
            let left = usize::try_from(left).unwrap_or(0).min(budget - events);
            if left > 0
                && let Ok(Some(status)) = head(peer)
            {
                let received = receive(peer, status, own, left, &self.registers, sink);
                events += received.events;
                if !received.is_breach {
                    continue;
                }
            }
            let (peer, address, reason) = (peer.handle, peer.address, *reason);
            self.leaving.remove(0);
            self.registers.count(Register::PeersDown, 1);
            events += 1;
            sink(Event::PeerDown { peer, address, reason });
        }
        events
    }

    #[cold]
    fn poll_room(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        // A send may have failed because the local queue was full. A retry is worthwhile when the
        // queue is half empty.
        let mut events = 0;
        let mut place = 0;
        while events < budget && place < self.waits_for_room.len() {
            let local = self.local.has_room();
            let vpid = self.waits_for_room[place];
            let Some(peer) = self.peers.by_vpid(vpid) else {
                self.waits_for_room.swap_remove(place);
                continue;
            };
            if peer.is_cut_off() || !(local && peer.has_room()) {
                place += 1;
                continue;
            }
            let is_wanted = std::mem::take(&mut peer.wants_room);
            attention::watch(peer.pair.own_room());
            let handle = peer.handle;
            self.waits_for_room.swap_remove(place);
            if is_wanted {
                events += 1;
                sink(Event::Room { peer: handle });
            }
        }
        events
    }

    /// Handles everything that peers and the broker rang for.
    #[cold]
    pub(crate) fn answer_wakeup(&mut self) {
        let rung = self.doorbell.words().take();
        if rung.broker {
            self.handle_broker_messages();
        }
        for (word, bits) in (0u16..).zip(rung.peers) {
            let mut bits = bits;
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                self.activate(word * 64 + u16::try_from(bit).unwrap_or(0));
            }
        }
    }

    /// Polls the ring of a peer from now on, unless it is cut off.
    pub(crate) fn activate(&mut self, vpid: u16) {
        let Some(peer) = self.peers.by_vpid(vpid).filter(|peer| !peer.is_cut_off()) else { return };
        peer.idle = 0;
        if !peer.active {
            peer.active = true;
            attention::watch(peer.pair.own_data());
            self.active.push(vpid);
        }
    }

    /// Arms the ring of a peer that is cut off, and polls it no more.
    pub(crate) fn stop_polling(&mut self, vpid: u16) {
        let Some(peer) = self.peers.by_vpid(vpid) else { return };
        attention::arm(peer.pair.own_data());
        peer.active = false;
        self.active.retain(|other| *other != vpid);
        self.turn = 0;
        // As for all that are armed: the peer sees it, or what it sent is seen at the next look.
        fence::heavy();
    }

    /// Polls the ring of a peer from now on, if the ring holds a slot.
    pub(crate) fn activate_if_filled(&mut self, vpid: u16) {
        let filled = self.peers.by_vpid(vpid).is_some_and(|peer| is_filled(peer));
        if filled {
            self.activate(vpid);
        }
    }

    /// Arms idle rings, and from time to time looks at all rings.
    #[cold]
    fn tidy(&mut self) {
        if self.active.len() > ACTIVE_MIN {
            self.arm_rings(IDLE_POLLS);
        }
        if self.polls & (LOOK_EVERY - 1) == 0 {
            self.look_at_all();
        } else if self.moves.are_behind() {
            self.handle_broker_messages();
        }
    }

    /// Looks at the broker's connection and at every ring. A hostile peer may have cleared a bit,
    /// and a daemon that died does not ring.
    fn look_at_all(&mut self) {
        self.handle_broker_messages();
        let filled: Vec<u16> = self
            .peers
            .iter()
            .filter(|peer| !peer.active && is_filled(peer))
            .map(PeerState::vpid)
            .collect();
        for vpid in filled {
            self.activate(vpid);
        }
    }

    /// Arms the rings that were empty for `idle` polls. A ring that turns out to be filled stays
    /// active.
    fn arm_rings(&mut self, idle: u32) {
        let mut armed = Vec::new();
        for vpid in &self.active {
            if let Some(peer) = self.peers.by_vpid(*vpid)
                && peer.idle >= idle
            {
                attention::arm(peer.pair.own_data());
                peer.active = false;
                armed.push(*vpid);
            }
        }
        if armed.is_empty() {
            return;
        }
        self.active.retain(|vpid| !armed.contains(vpid));
        self.turn = 0;
        fence::heavy();
        for vpid in armed {
            self.activate_if_filled(vpid);
        }
    }

    /// Whether a poll would hand out an event, or a port is wanted.
    pub(crate) fn is_ready(&mut self) -> bool {
        if !self.batches.is_empty() {
            self.ring_for_batches();
        }
        if self.doorbell.words().is_rung() {
            self.answer_wakeup();
        }
        if self.has_requests() || self.unread {
            self.handle_broker_messages();
        }
        let has_ended = self.requests.has_ended() || self.port_is_wanted();
        if has_ended || !self.local.is_empty() || !self.leaving.is_empty() {
            return true;
        }
        let filled = |vpid: &u16| self.peers.by_vpid(*vpid).is_some_and(|peer| is_filled(peer));
        if self.active.iter().any(filled) {
            return true;
        }
        // The local queue is empty, so room depends on the peers' rings only.
        let tells = |peer: &mut PeerState| peer.wants_room && !peer.is_cut_off() && peer.has_room();
        let mut waiting = self.waits_for_room.iter();
        if waiting.any(|vpid| self.peers.by_vpid(*vpid).is_some_and(tells)) {
            return true;
        }
        self.groups.wait() && self.groups_with_room() != 0
    }

    /// Arms all rings and announces the sleep. False when there is something to poll.
    fn prepare_sleep(&mut self, state: u32) -> bool {
        for vpid in &self.waits_for_room {
            if let Some(peer) = self.peers.by_vpid(*vpid) {
                attention::arm(peer.pair.own_room());
            }
        }
        if self.groups.wait() {
            self.arm_groups();
        }
        let waits = !self.waits_for_room.is_empty() || self.groups.wait();
        if self.active.is_empty() && waits {
            fence::heavy();
        }
        self.arm_rings(0);
        if self.is_ready() || self.unread {
            return false;
        }
        self.doorbell.words().prepare(state)
    }

    pub(crate) fn do_wait(&mut self, timeout: Option<Duration>) -> Waited {
        if self.armed {
            self.rise();
        }
        let mut until = None;
        let mut left = || {
            let timeout = timeout?;
            let now = sys::now();
            let until = *until.get_or_insert(now.saturating_add(timeout));
            Some(until.saturating_sub(now))
        };
        let mut slept = false;
        self.adaptive_wait.restart();
        loop {
            if self.is_ready() {
                if slept {
                    self.adaptive_wait.miss()
                } else {
                    self.adaptive_wait.hit()
                }
                return Waited::Ready;
            }
            let step = self.adaptive_wait.step();
            if step == Step::Spin {
                weft_sync::atomic::pause();
                continue;
            }
            let left = left();
            if left == Some(Duration::ZERO) {
                return Waited::TimedOut;
            }
            if step == Step::Yield {
                self.adaptive_wait.give_way();
            } else {
                slept = true;
                self.sleep(left.map_or(SLICE, |left| left.min(SLICE)));
            }
        }
    }

    /// Sleeps until a peer or the broker rings, at most `longest`.
    fn sleep(&mut self, longest: Duration) {
        if self.has_steps() || self.broker.announcement() == Announcement::Naming {
            self.adaptive_wait.give_way();
            return;
        }
        let asked = self.broker.waits() || self.broker.is_announcing(sys::now);
        if asked && self.wakeup_and_line.is_some() {
            let asks_again = self.asks_again();
            self.sleep_for_broker(if asks_again { longest.min(ASK_AGAIN_AFTER) } else { longest });
            return;
        }
        if !self.prepare_sleep(wakeup::ON_WORD) {
            return;
        }
        self.registers.count(Register::Sleeps, 1);
        let words = self.doorbell.words();
        let slept = futex::wait(words.state(), wakeup::ON_WORD, Some(longest));
        words.rise();
        if slept == futex::Slept::TimedOut {
            self.look_at_all();
        }
    }

    /// Sleeps until a peer rings or the broker answers, at most `longest`.
    fn sleep_for_broker(&mut self, longest: Duration) {
        if !self.prepare_sleep(wakeup::ON_DESCRIPTOR) {
            return;
        }
        self.registers.count(Register::Sleeps, 1);
        if let Some(both) = &self.wakeup_and_line {
            sys::await_readable(both.as_fd(), longest);
        }
        self.rise();
    }

    pub(crate) fn do_arm(&mut self) -> Armed {
        if self.armed {
            self.rise();
        }
        // A daemon that died rings no wakeup. A caller that only sleeps on the descriptor learns it
        // here.
        self.handle_broker_messages();
        if self.wakeup_broken || self.broker.is_lost() || self.moves.are_behind() {
            return if self.is_ready() {
                Armed::Busy
            } else {
                Armed::PollWithin(BROKEN_WAKEUP_POLL)
            };
        }
        if self.has_steps() || self.broker.has_steps() {
            return Armed::PollWithin(STEP_POLL);
        }
        if self.asks_again() {
            return Armed::PollWithin(ASK_AGAIN_AFTER);
        }
        if !self.prepare_sleep(wakeup::ON_DESCRIPTOR) {
            return Armed::Busy;
        }
        self.registers.count(Register::Sleeps, 1);
        self.armed = true;
        if let (Some(timer), Some(late)) = (&self.timer, self.broker.next_late()) {
            let left = late.saturating_sub(sys::now()).max(Duration::from_millis(1));
            sys::set_timer(timer.as_fd(), left);
            self.timer_is_set = true;
        }
        Armed::Sleep
    }

    /// Ends the announced sleep on the descriptor.
    #[cold]
    fn rise(&mut self) {
        self.armed = false;
        self.doorbell.words().rise();
        if let Some(timer) = &self.timer
            && std::mem::take(&mut self.timer_is_set)
        {
            sys::set_timer(timer.as_fd(), Duration::ZERO);
        }
        // The wake-up may have come from the broker's connection.
        self.handle_broker_messages();
        if !sys::drain(self.woken.as_fd()) {
            self.wakeup_broken = true;
        }
    }
}
