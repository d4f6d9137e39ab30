//! Addresses, peers, limits.

use std::ffi::c_int;

use weft_fabric::{Endpoint, Value};

use super::general::of_program;
use super::{OWN_CONTEXT, ended, limit, own_context, peer_of, status, with};
use crate::call::call;
use crate::events::{self, EVENTS_MAX, TAG_BYTES};
use crate::pointers::Out;
use crate::status::Failure;
use crate::types::weft_status::{WEFT_ERROR_NO_PEER, WEFT_ERROR_NOT_FOUND, WEFT_OK};
use crate::types::{weft_address, weft_endpoint, weft_limit_values, weft_peer};

/// The address of an endpoint, by which others connect to it.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_own_address(
    endpoint: *mut weft_endpoint,
    address: *mut weft_address,
) -> c_int {
    call(|| {
        let address = Out::needed(address, "address")?;
        let own = with(endpoint, |endpoint| Ok(endpoint.fabric().address()))?;
        address.set(events::address(own));
        Ok(WEFT_OK)
    })
}

/// The address of the service by which the endpoint was opened (weft_options_set_service).
///
/// One thread at a time. Errors: WEFT_ERROR_NOT_FOUND for an endpoint that was opened in another
/// way, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_service_address(
    endpoint: *mut weft_endpoint,
    address: *mut weft_address,
) -> c_int {
    call(|| {
        let address = Out::needed(address, "address")?;
        let host = with(endpoint, |endpoint| Ok(endpoint.fabric().host()))?;
        let text = "the endpoint was not opened as a client of a service; \
                    weft_options_set_service does that";
        address.set(events::address(host.ok_or(Failure::new(WEFT_ERROR_NOT_FOUND, text))?));
        Ok(WEFT_OK)
    })
}

/// Finds the endpoint at an address and prepares to talk to it. The handle is the same for the same
/// address as long as that endpoint lives. The other end need not connect: it can answer whoever
/// talks to it.
///
/// One thread at a time. It waits for at most timeout_ms milliseconds. Errors:
/// WEFT_ERROR_NOT_FOUND, WEFT_ERROR_TIMEOUT, WEFT_ERROR_NETWORK, WEFT_ERROR_LIMIT,
/// WEFT_ERROR_NO_DAEMON, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_connect(
    endpoint: *mut weft_endpoint,
    to: weft_address,
    timeout_ms: c_int,
    peer: *mut weft_peer,
) -> c_int {
    call(|| {
        let peer = Out::needed(peer, "peer")?;
        let (to, timeout) = (of_program(to)?, limit(timeout_ms)?);
        let found = with(endpoint, |endpoint| {
            let issued = endpoint.fabric().connect(to, OWN_CONTEXT)?;
            ended(endpoint, issued, timeout)
        })?;
        let found = found.peer().ok_or_else(|| unexpected(found))?;
        peer.set(found.0);
        Ok(WEFT_OK)
    })
}

/// As weft_connect, without a wait: a program with a loop goes on meanwhile. WEFT_OK: peer is set.
/// WEFT_PENDING: the completion with the context has the peer, or the error.
///
/// One thread at a time. Errors: as weft_connect.
#[unsafe(no_mangle)]
pub extern "C" fn weft_connect_start(
    endpoint: *mut weft_endpoint,
    to: weft_address,
    context: u64,
    peer: *mut weft_peer,
) -> c_int {
    call(|| {
        let peer = Out::needed(peer, "peer")?;
        let (to, context) = (of_program(to)?, own_context(context)?);
        let issued = with(endpoint, |endpoint| Ok(endpoint.fabric().connect(to, context)?))?;
        if let weft_fabric::Issued::Done(Value::Peer(found)) = issued {
            peer.set(found.0);
        }
        Ok(status(issued, Out::of(std::ptr::null_mut())))
    })
}

/// Gives a peer up: what is pending on it ends with WEFT_ERROR_PEER_DOWN, and both ends get
/// WEFT_EVENT_PEER_DOWN. Either may connect again, with a new handle.
///
/// One thread at a time. Errors: WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_disconnect(endpoint: *mut weft_endpoint, peer: weft_peer) -> c_int {
    call(|| {
        with(endpoint, |endpoint| Ok(endpoint.fabric().disconnect(peer_of(peer))?))?;
        Ok(WEFT_OK)
    })
}

/// The address of a peer, also of one that is down.
///
/// One thread at a time. Errors: WEFT_ERROR_NO_PEER, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_peer_address(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    address: *mut weft_address,
) -> c_int {
    call(|| {
        let address = Out::needed(address, "address")?;
        let found = with(endpoint, |endpoint| Ok(endpoint.fabric().peer_address(peer_of(peer))))?;
        let text = format!("{peer} is no peer of this endpoint; connect first");
        address.set(events::address(found.ok_or(Failure::new(WEFT_ERROR_NO_PEER, text))?));
        Ok(WEFT_OK)
    })
}

/// The limits of an endpoint. size is sizeof(weft_limit_values) of the program; members that the
/// library does not know become 0.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_limits(
    endpoint: *mut weft_endpoint,
    limits: *mut weft_limit_values,
    size: usize,
) -> c_int {
    call(|| {
        let limits = Out::needed(limits, "limits")?;
        known_size(size, size_of::<u64>())?;
        let values = with(endpoint, |endpoint| {
            let messages = weft_message::Options::default();
            let of = endpoint.fabric().capabilities();
            let number = |count: usize| count as u64;
            Ok(weft_limit_values {
                message_bytes_max: messages.bounce_bytes_max.min(messages.receive_bytes_max),
                eager_bytes_max: number(messages.eager_bytes_max - TAG_BYTES),
                multicast_bytes_max: number(of.message_bytes_max - TAG_BYTES),
                operations_max: number(of.operations_max),
                peers_max: number(of.peers_max),
                keys_max: number(of.keys_max),
                memories_max: number(of.regions_max),
                events_max: number(EVENTS_MAX),
            })
        })?;
        limits.set_sized(0, size, &values);
        Ok(WEFT_OK)
    })
}

/// Checks the size that a program gives for one of its structures.
pub fn known_size(size: usize, least: usize) -> Result<(), Failure> {
    if (least..=4096).contains(&size) {
        return Ok(());
    }
    Err(Failure::argument(format!("{size} is no size of the structure; pass sizeof")))
}

/// The fabric gave the value of another call.
pub fn unexpected(value: Value) -> Failure {
    let status = crate::types::weft_status::WEFT_ERROR_INTERNAL;
    Failure::new(status, format!("the fabric answered with {value:?}; please report it"))
}
