//! Looks at the hot connections of a set directly, and leaves quiet ones to the kernel.

use std::os::fd::RawFd;

use rustix::event::PollFlags;
use weft_fabric::WaitFor;

use super::kernel::{agree, has_fired, kernel_ctl, parse_tag, tell_kernel};
use super::registration::{Registration, compute, is_quiet};
use super::sets::Set;
use super::{ERR, HUP, IN, ONESHOT, OUT, RDHUP, RDNORM};
use weft_socket::Phase;

use crate::arena::{self, Connection};
use crate::settling::Settling;
use crate::waits;

/// After this many looks without a find, a hot connection is armed and left to the kernel.
const LOOKS_MAX: u32 = 512;
/// The looks of all hot connections together. With many of them each has fewer, so that looking
/// costs no more than asking the kernel.
const LOOKS_OF_ALL: u32 = 4096;
const LOOKS_MIN: u32 = 8;
/// Up to this many connections stay hot while nothing is found at all: a thread that only waits
/// loses no time by looking, and their peers need not ring.
const WATCHED_MAX: u32 = 64;

impl Set {
    /// A registration is new or changed: it is looked at next. If a thread sleeps in the kernel's
    /// wait, the connection is armed instead, and that thread is woken if the connection is ready
    /// already.
    pub(super) fn enlist(&mut self, epfd: RawFd, index: u32) {
        if self.sleeping == 0 && !self.nested {
            self.warm(index);
            return;
        }
        let Some(registration) = self.get(index) else { return };
        let Some(connection) = arena::at(registration.place) else { return };
        let stale = registration.arm(connection);
        let writes = registration.events & OUT != 0;
        registration.settle(connection);
        if is_quiet(registration, connection, stale) {
            agree(epfd, registration, index);
            if writes {
                self.wait_for_room(connection);
            }
        } else {
            registration.woken = true;
            tell_kernel(epfd, registration, index);
            self.warm(index);
        }
    }

    /// Notes that a connection waits for room.
    fn wait_for_room(&mut self, connection: Connection) {
        self.room_ns = Some(waits::at_most(self.room_ns, connection.room_slice_ns()));
    }

    /// Makes the connections hot that wait for room, so that they are looked at again.
    pub(super) fn warm_writers(&mut self) {
        self.room_ns = None;
        for index in 0..u32::try_from(self.registrations.len()).unwrap_or(0) {
            let writes = self.get(index).is_some_and(|r| r.laned && r.events & OUT != 0);
            if writes {
                self.warm(index);
            }
        }
    }

    pub(super) fn warm(&mut self, index: u32) {
        if let Some(registration) = self.get(index) {
            registration.idle = 0;
            if !registration.hot {
                registration.hot = true;
                self.hot.push(index);
            }
        }
    }

    /// Looks at the hot connections and stores their events. Returns how many were found, and true
    /// if only the kernel knows the readiness of some direction.
    #[inline(always)]
    pub(super) fn look(&mut self, epfd: RawFd, events: &mut [libc::epoll_event]) -> (usize, bool) {
        let mut found = 0;
        let mut unsure = false;
        let mut cold = Vec::new();
        let count = u32::try_from(self.hot.len()).unwrap_or(u32::MAX);
        let looks_max = (LOOKS_OF_ALL / count.max(1)).clamp(LOOKS_MIN, LOOKS_MAX);
        let counts = u32::from(self.busy || count > WATCHED_MAX);
        for place in 0..self.hot.len() {
            // Starts at another place each time, so that a small buffer starves no connection.
            let index = self.hot[(place + self.looks as usize) % self.hot.len()];
            if found == events.len() {
                break;
            }
            let Some(registration) = self.get(index) else { continue };
            let Some(connection) = arena::at(registration.place) else { continue };
            let ready = compute(registration, connection, true);
            agree(epfd, registration, index);
            unsure |= !registration.kernel_edge;
            if ready != 0 {
                registration.idle = 0;
                connection.found_awake();
                events[found] = libc::epoll_event { events: ready, u64: registration.data };
                found += 1;
            } else {
                registration.idle += counts;
                if registration.idle > looks_max {
                    cold.push(index);
                }
            }
        }
        if !cold.is_empty() {
            self.rest(epfd, &cold);
        }
        self.busy = found > 0;
        (found, unsure)
    }

    /// A wait ends: if others wait for this set, its hot connections are armed, and the kernel is
    /// made to report those that are ready.
    pub(super) fn leave(&mut self, epfd: RawFd) {
        if self.nested {
            for index in std::mem::take(&mut self.hot) {
                if let Some(registration) = self.get(index) {
                    registration.hot = false;
                }
                self.enlist(epfd, index);
            }
        }
    }

    /// Arms hot connections and leaves them to the kernel, except those that are ready after all.
    /// True when there is one.
    pub(super) fn rest(&mut self, epfd: RawFd, indices: &[u32]) -> bool {
        let mut armed = Vec::with_capacity(indices.len());
        let mut settling = Settling::default();
        for index in indices {
            let Some(registration) = self.get(*index) else { continue };
            registration.idle = 0;
            let connection = arena::at(registration.place).filter(|_| !registration.spent);
            let Some(connection) = connection else {
                registration.hot = false;
                continue;
            };
            let writes = registration.events & OUT != 0;
            armed.push((*index, connection, registration.arm(connection)));
            settling.add(connection, WaitFor::Data);
            if writes {
                self.wait_for_room(connection);
                settling.add(connection, WaitFor::Room);
            }
        }
        settling.settle();
        let mut ready = false;
        for (index, connection, stale) in armed {
            let Some(registration) = self.get(index) else { continue };
            if is_quiet(registration, connection, stale) {
                agree(epfd, registration, index);
                registration.hot = false;
            } else {
                registration.woken_by_kernel(connection);
                ready = true;
            }
        }
        let mut hot = std::mem::take(&mut self.hot);
        hot.retain(|index| self.get(*index).is_some_and(|registration| registration.hot));
        self.hot = hot;
        ready
    }

    /// Turns an event of the kernel into one for the program; `None` when there is nothing to
    /// report. Events of a connection that a look has `found` already are added there.
    pub(super) fn translate(
        &mut self,
        epfd: RawFd,
        event: libc::epoll_event,
        found: &mut [libc::epoll_event],
    ) -> Option<libc::epoll_event> {
        let Some((index, generation)) = parse_tag(event.u64) else {
            if self.untagged.is_empty() {
                return Some(event);
            }
            return self.translate_untagged(epfd, event, found);
        };
        let registration = self.get(index)?;
        if registration.generation != generation {
            return None;
        }
        if registration.dormant {
            kernel_ctl(epfd, libc::EPOLL_CTL_DEL, registration.fd, std::ptr::null_mut());
            self.remove(index);
            return None;
        }
        if registration.spent {
            // The bytes are for others that wait for this connection.
            registration.is_off = true;
            tell_kernel(epfd, registration, index);
            return None;
        }
        self.translate_tagged(epfd, event, index, found)
    }

    fn translate_tagged(
        &mut self,
        epfd: RawFd,
        mut event: libc::epoll_event,
        index: u32,
        found: &mut [libc::epoll_event],
    ) -> Option<libc::epoll_event> {
        let registration = self.get(index)?;
        let connection = arena::at(registration.place)?;
        let data = registration.data;
        if !registration.laned {
            if event.events & IN != 0 {
                connection.wait_until_decided();
                let laned = connection.phase() == Phase::Laned;
                if laned && connection.readable(registration.fd).is_some() {
                    // The bytes are wakeups, or data that a look at the lane reports.
                    return self.tells_of_the_lane(epfd, index, event);
                }
            }
            event.u64 = data;
            if registration.events & ONESHOT != 0 {
                registration.spent = true;
            }
            return Some(event);
        }
        let kernel = event.events;
        // The bits of poll and epoll are the same.
        let bits = u16::try_from(kernel & u32::from(u16::MAX)).unwrap_or(0);
        connection.note_poll(PollFlags::from_bits_truncate(bits));
        if kernel & IN != 0 {
            connection.woken_by_bytes();
        }
        registration.woken_by_kernel(connection);
        let was_edge = registration.kernel_edge;
        let mut ready = compute(registration, connection, true);
        agree(epfd, registration, index);
        // A connection that just came back from the lane is reported again if it has more than
        // wakeups.
        if !registration.wants_edge && !was_edge && !registration.spent {
            // This direction is still on TCP, so the kernel saw data.
            let mut told = kernel & (IN | RDHUP | HUP | ERR) & (registration.events | HUP | ERR);
            if told & IN != 0 && !connection.has_bytes_still(registration.fd) {
                told &= !IN;
            }
            ready |= told;
            registration.spent = ready != 0 && registration.events & ONESHOT != 0;
            registration.fresh &= ready == 0;
            if ready == 0 && registration.events & ONESHOT != 0 {
                // A wakeup used up the kernel's one-shot.
                tell_kernel(epfd, registration, index);
            }
        }
        self.warm(index);
        if ready == 0 {
            return None;
        }
        // A look may have found room while the kernel reports data: one event has both, since an
        // edge comes only once.
        let told = found.iter_mut().find(|other| {
            let other_data = other.u64;
            other_data == data
        });
        if let Some(told) = told {
            told.events |= ready;
            return None;
        }
        event.events = ready;
        event.u64 = data;
        Some(event)
    }

    /// The kernel reported something by the program's data. It may be a connection that came to its
    /// lane since, and is then told as one. If that tells of nothing, it may be another descriptor
    /// with the same data, of which the program must be told.
    #[cold]
    fn translate_untagged(
        &mut self,
        epfd: RawFd,
        event: libc::epoll_event,
        found: &mut [libc::epoll_event],
    ) -> Option<libc::epoll_event> {
        let data = event.u64;
        let all = std::mem::take(&mut self.untagged);
        let waits = |registration: &Registration| registration.laned && !registration.tagged;
        self.untagged =
            all.into_iter().filter(|index| self.get(*index).is_some_and(|r| waits(r))).collect();
        let is_it = |set: &mut Self, index| set.get(index).is_some_and(|r| r.data == data);
        let it = self.untagged.clone().into_iter().find(|index| is_it(self, *index));
        let Some(index) = it else { return Some(event) };
        let registration = self.get(index)?;
        registration.spent |= has_fired(epfd, registration);
        let told = self.translate_tagged(epfd, event, index, found);
        let has_data = |other: &libc::epoll_event| {
            let other_data = other.u64;
            other_data == data
        };
        if told.is_none() && !found.iter().any(has_data) { Some(event) } else { told }
    }

    /// The kernel reported a connection that another thread is moving to its lane. The bytes are
    /// wakeups, or the look that follows reports them.
    #[cold]
    fn tells_of_the_lane(
        &mut self,
        epfd: RawFd,
        index: u32,
        mut event: libc::epoll_event,
    ) -> Option<libc::epoll_event> {
        event.events &= !(IN | RDNORM);
        let registration = self.get(index)?;
        event.u64 = registration.data;
        let shot = registration.events & ONESHOT != 0;
        registration.spent = shot && event.events != 0;
        if shot && event.events == 0 {
            tell_kernel(epfd, registration, index);
        }
        self.moved_to_lane(epfd, index);
        (event.events != 0).then_some(event)
    }
}
