//! poll, ppoll, select and pselect over connections on the fabric and ordinary descriptors.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM,
};
use libc::{c_int, c_short, pollfd};
use rustix::event::PollFlags;
use weft_fabric::WaitFor;
use weft_socket::{Drained, Peer, Phase, StaleWakeups};
use weft_sync::{AdaptiveWait, Learned, Step};

use crate::arena::{Connection, Hold, flag};
use crate::bells::Bell;
use crate::calls::Call;
use crate::carrier::Asleep;
use crate::connection::AtWait;
use crate::settling::Settling;
use crate::signals::Watch;
use crate::table::{self, Entry};
use crate::waits::{self, LOOK_AGAIN_NS, Limit};
use crate::{backlog, carrier, connection, epoll, lanes, process, sys};

/// After this many looks that find nothing, the kernel is asked.
const LOOKS_A_TURN: u32 = 16;

thread_local! {
    /// How often this thread has looked, over all its calls.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
    /// Lessons from the waits of this thread: most threads wait for the same descriptors each time.
    static LEARNED: Cell<Learned> = const { Cell::new(Learned::of(0)) };
}

const READS: c_short = POLLIN | POLLRDNORM;
const WRITES: c_short = POLLOUT | POLLWRNORM;

/// The kernel's wait: takes descriptors and a limit, and returns what the system call did.
pub type KernelWait<'a> = dyn FnMut(&mut [pollfd], Limit) -> c_int + 'a;

/// True when a descriptor is a connection that may be on the fabric. Epoll sets among them show the
/// kernel their readiness.
pub fn concerns(fds: &[pollfd]) -> bool {
    let mut any = false;
    for entry in fds {
        match table::get(entry.fd) {
            Entry::Connection(_) | Entry::Leaving(_) => any |= connection::may_be_ours(entry.fd),
            Entry::Epoll(_) => epoll::watched(entry.fd, None),
            Entry::None | Entry::Unconnected { .. } | Entry::Listener | Entry::LeftToKernel => {}
        }
    }
    any
}

/// Decides for a connection that may have no lane yet, in a wait with `limit`. True when it has one
/// now.
#[cold]
fn is_moved(entry: &pollfd, limit: Limit) -> bool {
    let Some(connection) = connection::find(entry.fd) else { return false };
    if entry.events & (READS | WRITES) != 0 && !connection.has(flag::AWAITED) {
        connection.set(flag::AWAITED, true);
    }
    connection.proves_wait();
    if connection.decide(entry.fd, 0) == Phase::Pending
        && entry.events & WRITES != 0
        && limit != Some(0)
        && connection.has(flag::EARLY)
    {
        connection.wait_for_answer(entry.fd);
    }
    connection.phase() == Phase::Laned
}

/// `poll` of a list with connections.
pub fn wait(fds: &mut [pollfd], limit: Limit, kernel: &mut KernelWait<'_>) -> c_int {
    lanes::look_after();
    // When all connections are on TCP, the kernel waits, as without weft.
    let mut on_fabric = false;
    for entry in fds.iter() {
        on_fabric |= match connection::at_wait(entry.fd) {
            AtWait::None => false,
            AtWait::OnLane => true,
            AtWait::Undecided => is_moved(entry, limit),
        };
    }
    let mut known = None;
    let settings = process::settings();
    let mut adaptive_wait = AdaptiveWait::new(settings.spins, settings.yields).with(LEARNED.get());
    let watch = Watch::new();
    loop {
        let (found, unsure) = look(fds);
        let looks = LOOKS.replace(LOOKS.get().wrapping_add(1));
        // One call reports all ready descriptors, those of lanes and those that the kernel knows.
        let kernel_turn = unsure
            || match found {
                0 => limit == Some(0) || looks.is_multiple_of(LOOKS_A_TURN),
                _ => has_others(fds),
            };
        if kernel_turn {
            match ask_kernel(fds, Some(0), kernel) {
                0 if limit == Some(0) => return 0,
                0 => {}
                count => return found_awake(adaptive_wait, count),
            }
        } else if found > 0 {
            return found_awake(adaptive_wait, found);
        }
        // A call that finds something at once does not ask for the time.
        let deadline = *known.get_or_insert_with(|| waits::deadline(limit));
        if watch.saw_any() {
            sys::set_errno(libc::EINTR);
            return -1;
        }
        match if on_fabric { adaptive_wait.step() } else { Step::Sleep } {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => adaptive_wait.give_way(),
            Step::Sleep => {
                if on_fabric {
                    adaptive_wait.miss();
                    LEARNED.set(adaptive_wait.learned());
                }
                let armed = Armed::new(fds);
                let mut result = 0;
                if look(fds).0 == 0
                    && armed.drain()
                    && let Some(asleep) = armed.falls_asleep()
                {
                    let left = backlog::bounds(armed.bounds(waits::time_left(deadline)));
                    let bell = armed.bell.as_ref().map(|bell| (bell, &asleep));
                    result = ask_kernel_and_bell(fds, left, Some(&armed), bell, kernel);
                }
                drop(armed);
                if result != 0 {
                    return result;
                }
                if deadline.is_some_and(|deadline| sys::now_ns() >= deadline) {
                    return ask_kernel(fds, Some(0), kernel);
                }
            }
        }
    }
}

/// Returns `count`, the descriptors that a look found ready. The wait learns from a look after the
/// first that it was worth to stay awake.
fn found_awake(mut adaptive_wait: AdaptiveWait, count: c_int) -> c_int {
    if !adaptive_wait.is_fresh() {
        adaptive_wait.hit();
        LEARNED.set(adaptive_wait.learned());
    }
    count
}

fn is_laned(fd: RawFd) -> bool {
    connection::phase_of(fd) == Some(Phase::Laned)
}

fn laned(fd: RawFd) -> Option<Call> {
    let connection = connection::find(fd)?;
    (connection.phase() == Phase::Laned).then_some(connection)
}

/// The events for which a connection on a lane is ready, and those that only the kernel can report.
fn compute(entry: &pollfd, connection: Connection) -> (c_short, c_short) {
    let mut ready = 0;
    // Urgent bytes come over TCP alone.
    let mut kernel = entry.events & POLLPRI;
    let (readable, end) = connection.read_readiness(entry.fd);
    if end.hung_up {
        ready |= POLLHUP;
    }
    if end.failed {
        ready |= POLLERR;
    }
    if entry.events & (READS | POLLRDHUP) != 0 {
        match readable {
            Some(true) => {
                connection.found_awake();
                ready |= entry.events & READS;
                if end.ended {
                    ready |= entry.events & POLLRDHUP;
                }
            }
            Some(false) => {}
            None => kernel |= entry.events & (READS | POLLRDHUP),
        }
    }
    if entry.events & WRITES != 0 {
        match connection.writable(entry.fd) {
            Some(true) => ready |= entry.events & WRITES,
            Some(false) => {}
            None => kernel |= entry.events & WRITES,
        }
    }
    (ready, kernel)
}

/// Sets `revents` of the connections that are ready. Returns how many there are, and true if only
/// the kernel knows the readiness of some direction.
fn look(fds: &mut [pollfd]) -> (c_int, bool) {
    let mut found = 0;
    let mut unsure = false;
    for entry in fds.iter_mut() {
        entry.revents = 0;
        if let Some(connection) = laned(entry.fd) {
            let (ready, kernel) = compute(entry, *connection);
            entry.revents = ready;
            found += c_int::from(ready != 0);
            unsure |= kernel & !POLLPRI != 0;
        }
    }
    (found, unsure)
}

/// In `revents` while the kernel is asked: the connection is on the fabric, or may come there.
const MAY_MOVE: c_short = libc::POLLNVAL;
/// In `revents` while the kernel is asked: the connection has a lane now.
const IS_LANED: c_short = libc::POLLRDBAND;

fn has_others(fds: &[pollfd]) -> bool {
    fds.iter().any(|entry| entry.fd >= 0 && !is_laned(entry.fd))
}

/// Asks the kernel about everything that lanes do not answer, and merges both answers.
fn ask_kernel(fds: &mut [pollfd], limit: Limit, kernel: &mut KernelWait<'_>) -> c_int {
    ask_kernel_and_bell(fds, limit, None, None, kernel)
}

/// As [`ask_kernel`], in a sleep that a bell ends, too. 0 if only the bell rang.
fn ask_kernel_and_bell(
    fds: &mut [pollfd],
    limit: Limit,
    armed: Option<&Armed>,
    bell: Option<(&Bell, &Asleep)>,
    kernel: &mut KernelWait<'_>,
) -> c_int {
    let own = bell.into_iter().flat_map(|(bell, asleep)| {
        [Some(bell.as_fd().as_raw_fd()), asleep.descriptor()].into_iter().flatten()
    });
    let watched = fds.len() + own.clone().count();
    let mut few = [pollfd { fd: -1, events: 0, revents: 0 }; 32];
    let mut many = Vec::new();
    let copies: &mut [pollfd] = if watched <= few.len() {
        &mut few[..watched]
    } else {
        many.resize(watched, few[0]);
        &mut many
    };
    for (copy, fd) in copies[fds.len()..].iter_mut().zip(own) {
        *copy = pollfd { fd, events: POLLIN, revents: 0 };
    }
    let limit = bell.map_or(limit, |(_, asleep)| asleep.bounds(limit));
    // The kernel's answers are about these connections, not about others with their numbers.
    let mut few_known = [0; 32];
    let mut many_known = Vec::new();
    let known: &mut [u64] = if fds.len() <= few_known.len() {
        &mut few_known[..fds.len()]
    } else {
        many_known.resize(fds.len(), 0);
        &mut many_known
    };
    let (found, _) = look(fds);
    for ((copy, entry), known) in copies.iter_mut().zip(fds.iter_mut()).zip(known.iter_mut()) {
        *copy = *entry;
        copy.revents = 0;
        let Some(connection) = connection::find(entry.fd) else { continue };
        *known = connection.identity();
        entry.revents = MAY_MOVE;
        if connection.phase() == Phase::Laned {
            copy.events = compute(entry, *connection).1;
            // Recorded for the merge: what is asked in addition below is about wakeups.
            entry.revents = copy.events | MAY_MOVE | IS_LANED;
            // A wakeup ends a sleep as a readable byte. Without a sleep, wakeups that were not
            // drained must not count.
            if limit != Some(0) {
                let mut wakes = connection.wakes_by_kernel(entry.fd);
                if armed.is_some_and(|armed| armed.leaves_wakeups(entry.fd)) {
                    wakes.remove(PollFlags::IN);
                }
                copy.events |= wakes.bits().cast_signed();
                if copy.events == 0 && connection.peer() != Peer::Alive {
                    // The kernel would tell an end again that the lane has yet to tell.
                    copy.fd = -1;
                }
            }
        }
    }
    let limit = if found > 0 { Some(0) } else { limit };
    let result = kernel(copies, limit);
    if result < 0 {
        let errno = sys::errno();
        let found = if found > 0 { look(fds).0 } else { 0 };
        fds.iter_mut().for_each(|entry| entry.revents &= !(MAY_MOVE | IS_LANED));
        sys::set_errno(errno);
        return if found > 0 { found } else { result };
    }
    let mut count = 0;
    for ((copy, entry), known) in copies.iter_mut().zip(fds.iter_mut()).zip(known.iter()) {
        let is_other = || connection::find(entry.fd).map_or(0, |now| now.identity()) != *known;
        if copy.revents != 0 && is_other() {
            // The number was closed meanwhile. The next look is at what it leads to now.
            count += c_int::from(tells_of_number(entry, copy, kernel));
            continue;
        }
        if copy.revents & READS != 0
            && entry.revents & IS_LANED == 0
            && let Some(connection) = connection::find(entry.fd)
        {
            connection.wait_until_decided();
        }
        match laned(entry.fd) {
            Some(connection) => {
                if entry.revents & IS_LANED == 0 {
                    // The connection came to its lane meanwhile. The kernel's answer counts for
                    // directions on TCP.
                    entry.revents = compute(entry, *connection).1;
                }
                merge(entry, *copy, *connection);
            }
            // The connection left the fabric meanwhile. The kernel may have seen wakeups, so it is
            // asked again.
            None if copy.revents != 0
                && entry.revents & MAY_MOVE != 0
                && (entry.revents & IS_LANED != 0 || connection::find(entry.fd).is_none()) =>
            {
                *copy = pollfd { revents: 0, ..*entry };
                kernel(std::slice::from_mut(copy), Some(0));
                entry.revents = copy.revents;
            }
            None => entry.revents = copy.revents,
        }
        count += c_int::from(entry.revents != 0);
    }
    count
}

/// Asks the kernel about a number that leads to another file than at the beginning of a wait. True
/// when there is something to tell: of a connection on the fabric, the next look tells.
#[cold]
fn tells_of_number(entry: &mut pollfd, copy: &mut pollfd, kernel: &mut KernelWait<'_>) -> bool {
    entry.revents = 0;
    if connection::find(entry.fd).is_none() {
        *copy = *entry;
        kernel(std::slice::from_mut(copy), Some(0));
        entry.revents = copy.revents;
    }
    entry.revents != 0
}

fn merge(entry: &mut pollfd, copy: pollfd, connection: Connection) {
    connection.note_poll(PollFlags::from_bits_truncate(copy.revents.cast_unsigned()));
    if copy.revents & POLLIN != 0 {
        connection.woken_by_bytes();
    }
    let asked = entry.revents;
    let (ready, kernel) = compute(entry, connection);
    let mut kernel = kernel & asked;
    if kernel & copy.revents & READS != 0 && !connection.has_bytes_still(entry.fd) {
        kernel &= !READS;
    }
    entry.revents = ready | copy.revents & (kernel | POLLNVAL);
    if kernel & !POLLPRI != 0 {
        entry.revents |= copy.revents & (POLLERR | POLLHUP);
    }
}

/// Connections that are armed for one sleep.
struct Armed {
    connections: Vec<ArmedOne>,
    /// Rings where lanes go over an endpoint.
    bell: Option<Bell>,
    /// Some of them leave wakeups to others.
    is_deaf: Cell<bool>,
}

struct ArmedOne {
    connection: Hold,
    fd: RawFd,
    writes: bool,
    stale: StaleWakeups,
    /// Wakeups for others lie in the kernel's socket.
    leaves_wakeups: Cell<bool>,
}

/// How long a thread sleeps for something else than data, in ns, while wakeups for data stay in the
/// kernel's socket: it does not hear its own.
const DEAF_NS: u64 = 1_000_000;

impl Armed {
    fn new(fds: &[pollfd]) -> Self {
        let bell = process::settings().between_hosts.then(|| {
            let places = fds.iter().filter_map(|entry| Some(connection::find(entry.fd)?.place));
            Bell::take(places.collect())
        });
        let bell = bell.flatten();
        let mut connections = Vec::new();
        let mut settling = Settling::default();
        for entry in fds {
            let Some(connection) = connection::find(entry.fd) else { continue };
            let writes = entry.events & WRITES != 0;
            connection.proves_wait();
            connection.shared.common.begin_sleep(WaitFor::Data);
            let mut stale = connection.arm(entry.fd, WaitFor::Data);
            settling.add(*connection, WaitFor::Data);
            if writes {
                connection.shared.common.begin_sleep(WaitFor::Room);
                stale = connection.arm(entry.fd, WaitFor::Room);
                settling.add(*connection, WaitFor::Room);
            }
            connections.push(ArmedOne {
                connection: connection.hold(),
                fd: entry.fd,
                writes,
                stale,
                leaves_wakeups: Cell::new(false),
            });
        }
        settling.settle();
        Self { connections, bell, is_deaf: Cell::new(false) }
    }

    /// The calling thread falls asleep. `None` if it must look once more.
    fn falls_asleep(&self) -> Option<Asleep> {
        if self.connections.iter().any(|armed| armed.connection.0.is_on_far_lane()) {
            carrier::falls_asleep(None)
        } else {
            Some(Asleep::of_no_endpoint())
        }
    }

    /// The slices into which the sleep must be cut, in ns: it is also for room, which may
    /// never come, or the kernel told an end that the lane of a connection has yet to tell.
    fn slice_ns(&self) -> Option<u64> {
        let told = |armed: &ArmedOne| armed.connection.0.peer() != Peer::Alive;
        let is_unsure = self.bell.is_some() && self.connections.iter().any(told);
        let writers = self.connections.iter().filter(|armed| armed.writes);
        let slices = writers.map(|armed| armed.connection.0.room_slice_ns());
        slices.chain(is_unsure.then_some(LOOK_AGAIN_NS)).min()
    }

    /// The longest sleep, where the program's limit is `left`.
    fn bounds(&self, left: Limit) -> Limit {
        let slice = if self.is_deaf.get() { Some(DEAF_NS) } else { self.slice_ns() };
        slice.map_or(left, |slice| Some(waits::at_most(left, slice)))
    }

    /// True when wakeups for others stay in the kernel's socket of `fd`, and would end the sleep.
    fn leaves_wakeups(&self, fd: RawFd) -> bool {
        let leaves = |armed: &ArmedOne| armed.fd == fd && armed.leaves_wakeups.get();
        self.is_deaf.get() && self.connections.iter().any(leaves)
    }

    /// A look after arming found nothing: takes out stale wakeups, which must not end the sleep.
    /// False when a connection is ready after all.
    fn drain(&self) -> bool {
        let mut nothing = true;
        for armed in &self.connections {
            let place = armed.connection.0.place;
            // Looked up once more, since the number may have been closed.
            let Some(found) = connection::find(armed.fd).filter(|found| found.place == place)
            else {
                nothing = false;
                continue;
            };
            let alone = found.shared.common.is_only_sleeper();
            match found.drain(armed.fd, armed.stale, alone) {
                Drained::All => {}
                Drained::NotYet => {
                    armed.leaves_wakeups.set(true);
                    self.is_deaf.set(true);
                }
                Drained::Broken => nothing = false,
            }
        }
        nothing
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        for ArmedOne { connection: Hold(connection), fd, writes, .. } in &self.connections {
            connection.shared.common.end_sleep(WaitFor::Data);
            connection.stop_waiting(*fd, WaitFor::Data);
            if *writes {
                connection.shared.common.end_sleep(WaitFor::Room);
                connection.stop_waiting(*fd, WaitFor::Room);
            }
        }
    }
}

/// The three sets of `select` as a list for [`wait`].
pub struct Selection {
    list: Vec<pollfd>,
}

impl Selection {
    /// The descriptors below `count` that are in any of the sets.
    ///
    /// # Safety
    /// Each set is null or points at enough words for `count` bits.
    pub unsafe fn new(
        count: c_int,
        reads: *const libc::fd_set,
        writes: *const libc::fd_set,
        exceptions: *const libc::fd_set,
    ) -> Self {
        let mut list = Vec::new();
        for fd in 0..count {
            let mut events = 0;
            for (set, wanted) in [(reads, POLLIN), (writes, POLLOUT), (exceptions, libc::POLLPRI)] {
                // SAFETY: the caller's promise.
                if unsafe { word(set, fd) }.is_some_and(|(word, bit)| unsafe { *word } & bit != 0) {
                    events |= wanted;
                }
            }
            if events != 0 {
                list.push(pollfd { fd, events, revents: 0 });
            }
        }
        Self { list }
    }

    /// The list, for [`wait`].
    pub fn list(&mut self) -> &mut [pollfd] {
        &mut self.list
    }

    /// Leaves in the sets the bits of ready descriptors, and returns how many bits those are.
    ///
    /// # Safety
    /// As [`Selection::new`].
    pub unsafe fn store(
        &self,
        reads: *mut libc::fd_set,
        writes: *mut libc::fd_set,
        exceptions: *mut libc::fd_set,
    ) -> c_int {
        let mut bits = 0;
        for entry in &self.list {
            let answers = [
                (reads, POLLIN, POLLIN | POLLHUP | POLLERR | POLLRDHUP),
                (writes, POLLOUT, POLLOUT | POLLERR),
                (exceptions, libc::POLLPRI, libc::POLLPRI),
            ];
            for (set, asked, answer) in answers {
                // SAFETY: the caller's promise.
                let Some((word, bit)) = (unsafe { word(set, entry.fd) }) else { continue };
                if entry.events & asked == 0 {
                    continue;
                }
                if entry.revents & answer != 0 {
                    bits += 1;
                } else {
                    // SAFETY: the word lies in the caller's set.
                    unsafe { *word &= !bit };
                }
            }
        }
        bits
    }

    /// True when a descriptor is not open. `select` returns an error then.
    pub fn is_invalid(&self) -> bool {
        self.list.iter().any(|entry| entry.revents & POLLNVAL != 0)
    }
}

/// The word of a set that holds a descriptor's bit, and the bit.
///
/// # Safety
/// `set` is null or has a bit for `fd`.
unsafe fn word(set: *const libc::fd_set, fd: RawFd) -> Option<(*mut u64, u64)> {
    if set.is_null() {
        return None;
    }
    let index = usize::try_from(fd).ok()?;
    // SAFETY: sets are arrays of 64-bit words on 64-bit Linux; the word is in the caller's set.
    let word = unsafe { set.cast_mut().cast::<u64>().add(index / 64) };
    Some((word, 1 << (index % 64)))
}
