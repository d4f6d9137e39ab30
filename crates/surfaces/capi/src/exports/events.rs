//! Events, and ways to wait for them.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::Duration;

use weft_fabric::{Armed, Endpoint, Peer, Watchable};

use super::peers::known_size;
use super::{limit, own_context, peer_of, with};
use crate::call::{call, number};
use crate::events::address;
use crate::objects::EndpointObject;
use crate::pointers::Out;
use crate::status::Failure;
use crate::types::weft_event_type::WEFT_EVENT_MESSAGE;
use crate::types::weft_status::WEFT_OK;
use crate::types::{weft_endpoint, weft_event, weft_peer};

/// Events of one call at most.
const TAKEN_MAX: usize = 256;
/// Bytes of weft_event that each program has: to the length of a message.
const LEAST_BYTES: usize = 56;

/// Takes up to count events that are there, and makes progress. size is sizeof(weft_event) of the
/// program. Returns the number of events, 0 if there are none. What data of earlier events pointed
/// to is no longer valid.
///
/// One thread at a time. Never waits. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_poll(
    endpoint: *mut weft_endpoint,
    events: *mut weft_event,
    size: usize,
    count: usize,
) -> c_int {
    number(|| {
        let events = places(events, size, count)?;
        with(endpoint, |endpoint| {
            endpoint.events.give_back();
            let room = count.min(TAKEN_MAX).saturating_sub(endpoint.events.len());
            if room > 0 {
                endpoint.progress(room);
            }
            Ok(hand_out(endpoint, events, size, count))
        })
    })
}

/// As weft_poll, but waits until there is an event, or timeout_ms milliseconds have passed; 0 is
/// the result then. It looks for a while before it sleeps, as long as that was worth it lately.
/// WEFT_FOREVER waits without limit, also when a signal comes: a program that is to end by one
/// waits by weft_fd or in turns.
///
/// One thread at a time. Errors: as weft_poll.
#[unsafe(no_mangle)]
pub extern "C" fn weft_wait(
    endpoint: *mut weft_endpoint,
    events: *mut weft_event,
    size: usize,
    count: usize,
    timeout_ms: c_int,
) -> c_int {
    number(|| {
        let (events, timeout) = (places(events, size, count)?, limit(timeout_ms)?);
        with(endpoint, |endpoint| {
            endpoint.events.give_back();
            endpoint.wait(timeout, count.min(TAKEN_MAX));
            Ok(hand_out(endpoint, events, size, count))
        })
    })
}

fn places(events: *mut weft_event, size: usize, count: usize) -> Result<Out<weft_event>, Failure> {
    known_size(size, LEAST_BYTES)?;
    if count == 0 {
        return Err(Failure::argument("count is 0; have a place for one event at least"));
    }
    Out::needed(events, "events")
}

/// Hands out events to an array of the program.
fn hand_out(
    endpoint: &mut EndpointObject,
    events: Out<weft_event>,
    size: usize,
    count: usize,
) -> c_int {
    let mut taken = 0;
    while taken < count.min(TAKEN_MAX)
        && let Some(mut event) = endpoint.events.hand_out()
    {
        if event.r#type == WEFT_EVENT_MESSAGE as u32
            && let Some(of_peer) = endpoint.fabric().peer_address(Peer(event.peer))
        {
            event.address = address(of_peer);
        }
        events.set_sized(taken, size, &event);
        taken += 1;
    }
    c_int::try_from(taken).unwrap_or(c_int::MAX)
}

/// Waits until what was begun with a context has ended, and takes its completion: for programs that
/// have no loop. Other events stay for weft_poll. value, which may be NULL, gets the former word of
/// an atomic or the peer of weft_connect_start. What data of earlier events pointed to stays valid.
///
/// A call that returned WEFT_OK has no completion: do not wait for it.
///
/// One thread at a time. It waits for at most timeout_ms milliseconds. Errors: that of the
/// completion; WEFT_ERROR_TIMEOUT: what was begun goes on; WEFT_ERROR_LIMIT: too many other events
/// wait; WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_finish(
    endpoint: *mut weft_endpoint,
    context: u64,
    timeout_ms: c_int,
    value: *mut u64,
) -> c_int {
    call(|| {
        let (context, timeout) = (own_context(context)?, limit(timeout_ms)?);
        Out::of(value).set(with(endpoint, |endpoint| endpoint.finish(context, timeout))?);
        Ok(WEFT_OK)
    })
}

/// Waits until there is room for a peer after a WEFT_ERROR_AGAIN, and takes that event. Other
/// events stay for weft_poll.
///
/// One thread at a time. It waits for at most timeout_ms milliseconds. Errors:
/// WEFT_ERROR_PEER_DOWN, WEFT_ERROR_TIMEOUT, WEFT_ERROR_LIMIT, WEFT_ERROR_ARGUMENT,
/// WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_wait_room(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    timeout_ms: c_int,
) -> c_int {
    call(|| {
        let timeout = limit(timeout_ms)?;
        with(endpoint, |endpoint| endpoint.wait_room(peer_of(peer), timeout)).map(|()| WEFT_OK)
    })
}

/// The descriptor of an endpoint, for poll, select, epoll or the loop of a library. It is the same
/// as long as the endpoint is open, becomes readable behind weft_arm alone, and belongs to the
/// library: never read or close it.
///
/// One thread at a time. Returns the descriptor. Errors: WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_fd(endpoint: *mut weft_endpoint) -> c_int {
    number(|| with(endpoint, |endpoint| Ok(endpoint.fabric().descriptor().as_raw_fd())))
}

/// Prepares to sleep on weft_fd, and says how long the sleep may last: timeout_ms becomes 0 if
/// there are events already, -1 if the descriptor tells of the next event, or a time after which to
/// look. It is what poll and epoll_wait take; a program with timers sleeps for the shorter time.
/// Behind the sleep comes weft_poll until it returns 0, then weft_arm again. Nothing that comes
/// after the call is missed.
///
/// One thread at a time. Never waits. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_arm(endpoint: *mut weft_endpoint, timeout_ms: *mut c_int) -> c_int {
    call(|| {
        let timeout = Out::needed(timeout_ms, "timeout_ms")?;
        let armed = with(endpoint, |endpoint| {
            Ok(if endpoint.events.len() > 0 { Armed::Busy } else { endpoint.messages.arm() })
        })?;
        timeout.set(match armed {
            Armed::Busy => 0,
            Armed::Sleep => -1,
            Armed::PollWithin(time) => {
                let rounded = time.saturating_add(Duration::from_micros(999)).as_millis();
                c_int::try_from(rounded).unwrap_or(c_int::MAX)
            }
        });
        Ok(WEFT_OK)
    })
}
