//! Completion queues.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use weft_fabric::Armed;
use weft_rdm::Failure;

use crate::domain::DomainObject;
use crate::pointers::{In, Object, Out, Table, head, table};
use crate::rest::rest;
use crate::state::{Cq, Domain, Entry, State, Waits, insert};
use crate::unsupported;
use weft_libfabric::abi::{self, CqAttr, CqError, Fid, class, errno};

#[repr(C)]
pub struct CqObject {
    pub fid: Fid,
    ops: &'static Table<8>,
    pub domain: Arc<Domain>,
    pub number: usize,
}

table!(CQ_FID: 6 = close, unsupported, control, unsupported, unsupported, unsupported);
table!(CQ: 8 = read, readfrom, readerr, sread, sreadfrom, signal, strerror, unsupported);

/// Nothing is there.
const AGAIN: isize = -(errno::EAGAIN as isize);
/// Bytes of an entry by its format: context, message, data, tagged.
const BYTES: [usize; 5] = [8, 8, 24, 40, 48];
/// Looks of a wait before it gives the core to others, and before it sleeps.
const SPINS: u32 = 64;
const YIELDS: u32 = 128;
/// The longest sleep.
const SLICE: Duration = Duration::from_millis(100);

pub extern "C" fn open(
    domain: Object<DomainObject>,
    attr: In<CqAttr>,
    cq: Out<Object<CqObject>>,
    context: usize,
) -> c_int {
    let format = attr.get().map_or(0, |attr| attr.format);
    let wait = attr.get().map_or(abi::WAIT_NONE, |attr| attr.wait_obj);
    let Some(entry_bytes) = usize::try_from(format).ok().and_then(|it| BYTES.get(it).copied())
    else {
        return -errno::ENOSYS;
    };
    let waits = match wait {
        abi::WAIT_NONE => None,
        abi::WAIT_UNSPEC | abi::WAIT_FD | abi::WAIT_YIELD => match waits() {
            Ok(waits) => Some(waits),
            Err(error) => return -error.raw_os_error(),
        },
        _ => return -errno::ENOSYS,
    };
    let (entries, endpoints) = (Default::default(), Vec::new());
    let state = Cq { entries, entry_bytes, endpoints, uses: 0, waits, was_emptied: false };
    let number = insert(&mut domain.domain.lock().cqs, state);
    let fid = head(class::CQ, context, &CQ_FID);
    let domain = Arc::clone(&domain.domain);
    cq.set(Object::new(CqObject { fid, ops: &CQ, domain, number }));
    0
}

fn waits() -> rustix::io::Result<Waits> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let waits = Waits { set, timer, signal };
    waits.add(&waits.timer)?;
    waits.add(&waits.signal)?;
    Ok(waits)
}

impl Waits {
    /// Adds a descriptor to those that wake.
    pub fn add(&self, file: impl AsFd) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.set, file, data, epoll::EventFlags::IN)
    }

    pub fn remove(&self, file: impl AsFd) {
        // It may not be in the set.
        let _ = epoll::delete(&self.set, file);
    }

    fn wake_within(&self, time: Duration) {
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(1),
            tv_nsec: i64::from(time.subsec_nanos()).max(1),
        };
        let timer = Itimerspec { it_interval: nothing, it_value: value };
        // Without it the sleep ends by its own slice.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
    }
}

extern "C" fn close(cq: Object<CqObject>) -> c_int {
    let mut state = cq.domain.lock();
    if state.cq(cq.number).uses > 0 {
        return -errno::EBUSY;
    }
    state.cqs[cq.number] = None;
    drop(state);
    cq.destroy();
    0
}

extern "C" fn control(cq: Object<CqObject>, command: c_int, value: Out<c_int>) -> c_int {
    if command != abi::CONTROL_GETWAIT {
        return -errno::ENOSYS;
    }
    match &cq.domain.lock().cq(cq.number).waits {
        Some(waits) => {
            value.set(waits.set.as_raw_fd());
            0
        }
        None => -errno::ENODATA,
    }
}

extern "C" fn read(cq: Object<CqObject>, buffer: Out<u8>, count: usize) -> isize {
    readfrom(cq, buffer, count, Out::from(std::ptr::null_mut()))
}

extern "C" fn readfrom(
    cq: Object<CqObject>,
    buffer: Out<u8>,
    count: usize,
    sources: Out<u64>,
) -> isize {
    let mut state = cq.domain.lock();
    let taken = take(&mut state, cq.number, (buffer, count), sources);
    if taken == AGAIN && state.patience.is_over() {
        drop(state);
        rest(&cq.domain);
    }
    taken
}

/// Makes progress, and takes entries.
#[inline]
fn take(
    state: &mut State,
    number: usize,
    (buffer, count): (Out<u8>, usize),
    sources: Out<u64>,
) -> isize {
    let queue = state.cq(number);
    if queue.entries.is_empty() || count == 0 {
        if std::mem::take(&mut queue.was_emptied) && count > 0 {
            return AGAIN;
        }
        state.progress_cq(number);
    }
    let queue = state.cq(number);
    let mut taken = 0;
    let (first, second) = queue.entries.as_slices();
    let good = first.iter().chain(second).take(count).take_while(|entry| entry.error == 0);
    for entry in good {
        write(entry, queue.entry_bytes, buffer, taken);
        sources.set_at(taken, entry.source);
        taken += 1;
    }
    if taken > 0 {
        queue.entries.drain(..taken);
        queue.was_emptied = queue.entries.is_empty();
        return isize::try_from(taken).unwrap_or(0);
    }
    match queue.entries.front() {
        Some(entry) if entry.error != 0 => -(errno::EAVAIL as isize),
        _ => AGAIN,
    }
}

/// Writes an entry, as far as its format goes.
#[inline]
fn write(entry: &Entry, bytes: usize, buffer: Out<u8>, index: usize) {
    let context = entry.context as u64;
    let message = [context, entry.flags, entry.length as u64];
    let [_, flags, length] = message;
    match bytes {
        8 => buffer.cast().set_at(index, context),
        24 => buffer.cast().set_at(index, message),
        40 => {
            let words = [context, flags, length, entry.buffer as u64, entry.data];
            buffer.cast().set_at(index, words);
        }
        _ => {
            let words = [context, flags, length, entry.buffer as u64, entry.data, entry.tag];
            buffer.cast().set_at(index, words);
        }
    }
}

extern "C" fn readerr(cq: Object<CqObject>, buffer: Out<CqError>, _flags: u64) -> isize {
    let mut state = cq.domain.lock();
    let queue = state.cq(cq.number);
    let Some(entry) = queue.entries.front().copied().filter(|entry| entry.error != 0) else {
        return AGAIN;
    };
    queue.entries.pop_front();
    if let Some(error) = buffer.get() {
        error.context = std::ptr::without_provenance_mut(entry.context);
        error.flags = entry.flags;
        error.length = entry.length;
        error.buffer = std::ptr::without_provenance_mut(entry.buffer);
        error.data = entry.data;
        error.tag = entry.tag;
        error.surplus = entry.surplus;
        error.error = entry.error;
        error.provider_error = entry.failure.map_or(0, |failure| failure as c_int + 1);
        error.error_data_size = 0;
    }
    1
}

extern "C" fn sread(
    cq: Object<CqObject>,
    buffer: Out<u8>,
    count: usize,
    condition: usize,
    timeout: c_int,
) -> isize {
    sreadfrom(cq, buffer, count, Out::from(std::ptr::null_mut()), condition, timeout)
}

extern "C" fn sreadfrom(
    cq: Object<CqObject>,
    buffer: Out<u8>,
    count: usize,
    sources: Out<u64>,
    _condition: usize,
    timeout: c_int,
) -> isize {
    if cq.domain.lock().cq(cq.number).waits.is_none() {
        return -(errno::ENOSYS as isize);
    }
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let start = now();
    let mut looks = 0;
    loop {
        let taken = take(&mut cq.domain.lock(), cq.number, (buffer, count), sources);
        if taken != AGAIN {
            return taken;
        }
        looks += 1;
        if looks < SPINS {
            std::hint::spin_loop();
            continue;
        }
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return taken;
        }
        if looks < SPINS + YIELDS && !weft_sync::contention::is_computing() {
            weft_sync::contention::yield_core();
            continue;
        }
        if sleep(&cq, left) {
            return taken;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a surface has the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Sleeps until something may have come. True if `fi_cq_signal` woke it.
fn sleep(cq: &CqObject, left: Option<Duration>) -> bool {
    let time = match prepare(cq) {
        Armed::Busy => return false,
        Armed::Sleep => SLICE,
        Armed::PollWithin(time) => time.min(SLICE),
    };
    let time = left.map_or(time, |left| left.min(time));
    let (set, signal) = {
        let mut state = cq.domain.lock();
        let Some(waits) = &state.cq(cq.number).waits else { return false };
        let files = (waits.set.try_clone(), waits.signal.try_clone());
        let (Ok(set), Ok(signal)) = files else { return false };
        (set, signal)
    };
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(1),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    // An interruption is a look too much.
    let _ = poll(&mut [PollFd::new(&set, PollFlags::IN)], Some(&time));
    let mut count = [0; 8];
    rustix::io::read(&signal, &mut count).is_ok()
}

/// Prepares to sleep on a queue.
pub fn prepare(cq: &CqObject) -> Armed {
    let mut state = cq.domain.lock();
    state.progress_cq(cq.number);
    if !state.cq(cq.number).entries.is_empty() {
        return Armed::Busy;
    }
    let endpoints = state.cq(cq.number).endpoints.clone();
    let armed = state.arm(&endpoints);
    if let Some(waits) = &state.cq(cq.number).waits {
        // The last expiry is read away, so that the descriptor is not ready by it.
        let mut count = [0; 8];
        let _ = rustix::io::read(&waits.timer, &mut count);
        if let Armed::PollWithin(time) = armed {
            waits.wake_within(time);
        }
    }
    armed
}

extern "C" fn signal(cq: Object<CqObject>) -> c_int {
    match &cq.domain.lock().cq(cq.number).waits {
        Some(waits) => {
            let _ = rustix::io::write(&waits.signal, &1_u64.to_ne_bytes());
            0
        }
        None => -errno::ENOSYS,
    }
}

extern "C" fn strerror(
    _cq: Object<CqObject>,
    error: c_int,
    _data: usize,
    text: Out<u8>,
    length: usize,
) -> *const c_char {
    let words = words(error);
    let bytes = words.to_bytes_with_nul();
    if length > 0 {
        let part = bytes.len().min(length);
        text.put(0, &bytes[..part]);
        text.put(part - 1, &[0]);
    }
    words.as_ptr()
}

/// The words for a provider's error.
fn words(error: c_int) -> &'static std::ffi::CStr {
    let is = |failure: Failure| error == failure as c_int + 1;
    if is(Failure::PeerDown) {
        c"the peer ended or cannot be reached; see why its process ended"
    } else if is(Failure::Truncated) {
        c"the message is longer than the receive"
    } else if is(Failure::Cancelled) {
        c"the operation was cancelled"
    } else if is(Failure::NoMessage) {
        c"no such message has arrived"
    } else if is(Failure::UnknownKey) {
        c"the peer has no memory registered by that key"
    } else if is(Failure::OutOfBounds) {
        c"the range is outside of the memory that the peer registered"
    } else if is(Failure::Denied) {
        c"the peer's registration does not allow that access"
    } else if is(Failure::Fault) {
        c"the memory is not there, or a word of it not aligned"
    } else if is(Failure::Unsupported) {
        c"the peer does not support the operation"
    } else {
        c"no error of this provider"
    }
}
