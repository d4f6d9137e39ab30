//! Messages to peers and to groups.

use std::ffi::{c_int, c_void};

use weft_fabric::{Endpoint, Group, MessageHeader};

use super::{OWN_CONTEXT, ended, limit, own_context, peer_of, status, with};
use crate::call::call;
use crate::events::GROUP_TAG;
use crate::pointers::{self, Out};
use crate::status::Failure;
use crate::types::weft_status::{WEFT_ERROR_SYSTEM, WEFT_OK};
use crate::types::{weft_endpoint, weft_peer};

/// Sends a message of any length up to weft_limit_values.message_bytes_max (64 MiB). The receiver
/// gets WEFT_EVENT_MESSAGE with the tag and the bytes; messages of a peer arrive in the order of
/// sending. data may be used again when the call returns.
///
/// WEFT_OK: it was accepted. WEFT_PENDING: a longer one; its completion, with the context, says
/// that the receiver has it. WEFT_ERROR_AGAIN: the receiver or a queue is full.
///
/// One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_TOO_LONG, WEFT_ERROR_PEER_DOWN,
/// WEFT_ERROR_NO_PEER, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_send(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    tag: u64,
    data: *const c_void,
    length: usize,
    context: u64,
) -> c_int {
    call(|| {
        let (data, context) = (pointers::bytes(data, length)?, own_context(context)?);
        with(endpoint, |endpoint| {
            let head = tag.to_le_bytes();
            let issued = endpoint.messages.send(peer_of(peer), &head, &[data], context)?;
            Ok(status(issued, Out::of(std::ptr::null_mut())))
        })
    })
}

/// Sends a message of up to weft_limit_values.multicast_bytes_max bytes (112) to all other members
/// of a group, 0 to 62, or to all endpoints that this one can meet, group 63. Members become peers.
/// receivers, which may be NULL, tells their number. The first message to a group may be refused
/// with WEFT_ERROR_AGAIN while the members are looked up; WEFT_EVENT_GROUP_ROOM follows.
///
/// One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_TOO_LONG, WEFT_ERROR_SYSTEM,
/// WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_multicast(
    endpoint: *mut weft_endpoint,
    group: u32,
    tag: u64,
    data: *const c_void,
    length: usize,
    receivers: *mut u32,
) -> c_int {
    use weft_fabric::SendError;

    use crate::types::weft_status::WEFT_ERROR_TOO_LONG;

    call(|| {
        let (data, group) = (pointers::bytes(data, length)?, group_of(group)?);
        let header = MessageHeader::tag(GROUP_TAG);
        let sent = with(endpoint, |endpoint| {
            let parts: [&[u8]; 2] = [&tag.to_le_bytes(), data];
            Ok(endpoint.fabric().send_multicast(group, header, &parts))
        })?;
        let failed = |error: SendError| match error {
            SendError::WouldBlock => Failure::again(),
            SendError::TooLong { .. } => Failure::new(
                WEFT_ERROR_TOO_LONG,
                "a message to a group has up to 112 bytes; send it to each peer",
            ),
            other => Failure::new(WEFT_ERROR_SYSTEM, other.to_string()),
        };
        let count = u32::try_from(sent.map_err(failed)?).unwrap_or(u32::MAX);
        Out::of(receivers).set(count);
        Ok(WEFT_OK)
    })
}

/// Joins a group, 0 to 62. Waits for at most timeout_ms milliseconds.
///
/// One thread at a time. Errors: WEFT_ERROR_TIMEOUT, WEFT_ERROR_NO_DAEMON, WEFT_ERROR_ARGUMENT,
/// WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_join(endpoint: *mut weft_endpoint, group: u32, timeout_ms: c_int) -> c_int {
    call(|| {
        let (group, timeout) = (group_of(group)?, limit(timeout_ms)?);
        with(endpoint, |endpoint| {
            let issued = endpoint.fabric().join(group, OWN_CONTEXT)?;
            ended(endpoint, issued, timeout).map(|_| WEFT_OK)
        })
    })
}

/// Leaves a group. Waits for at most timeout_ms milliseconds.
///
/// One thread at a time. Errors: as weft_join.
#[unsafe(no_mangle)]
pub extern "C" fn weft_leave(endpoint: *mut weft_endpoint, group: u32, timeout_ms: c_int) -> c_int {
    call(|| {
        let (group, timeout) = (group_of(group)?, limit(timeout_ms)?);
        with(endpoint, |endpoint| {
            let issued = endpoint.fabric().leave(group, OWN_CONTEXT)?;
            ended(endpoint, issued, timeout).map(|_| WEFT_OK)
        })
    })
}

fn group_of(group: u32) -> Result<Group, Failure> {
    let known = u8::try_from(group).ok().and_then(Group::new);
    known.ok_or_else(|| Failure::argument(format!("{group} is no group; there are 0 to 63")))
}
