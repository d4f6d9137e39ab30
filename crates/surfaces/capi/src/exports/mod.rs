//! The functions of the header, by subject, and what they share.

// In the order of the header.
mod general;

mod options;

mod peers;

mod message;

mod memory;

mod one_sided;

mod events;

use std::time::Duration;

use weft_fabric::{Endpoint, Issued, Peer, Value};

use crate::objects::{ENDPOINTS, EndpointObject};
use crate::pointers::{self, Out};
use crate::status::Failure;
use crate::types::weft_status::{self, *};
use crate::types::{WEFT_CONTEXT_END, WEFT_FOREVER, weft_endpoint};

/// A wait without limit, where the fabric wants one.
const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);
/// The context of calls that wait for their own end: `weft_fabric::Blocking`.
const OWN_CONTEXT: u64 = u64::MAX;

/// Calls with an endpoint.
#[inline]
fn with<R>(
    endpoint: *mut weft_endpoint,
    body: impl FnOnce(&mut EndpointObject) -> Result<R, Failure>,
) -> Result<R, Failure> {
    ENDPOINTS.alone(pointers::handle(endpoint), |endpoint| body(endpoint.get_mut()))
}

/// The limit of a wait; `None` stands for no limit.
fn limit(timeout_ms: i32) -> Result<Option<Duration>, Failure> {
    match u64::try_from(timeout_ms) {
        Ok(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        Err(_) if timeout_ms == WEFT_FOREVER => Ok(None),
        Err(_) => Err(Failure::argument(format!(
            "a timeout of {timeout_ms} ms; give 0 or more, or WEFT_FOREVER"
        ))),
    }
}

/// The context of a call, if the program may have it.
#[inline]
fn own_context(context: u64) -> Result<u64, Failure> {
    if context >= WEFT_CONTEXT_END {
        return Err(Failure::argument(format!(
            "context {context:#x} belongs to the library; use one below WEFT_CONTEXT_END"
        )));
    }
    Ok(context)
}

/// The result of a call that may go on.
#[inline]
fn status(issued: Issued, value: Out<u64>) -> weft_status {
    match issued {
        Issued::Done(done) => {
            value.set(done.word().unwrap_or(0));
            WEFT_OK
        }
        Issued::Pending => WEFT_PENDING,
    }
}

/// Waits for the end of a call with [`OWN_CONTEXT`].
fn ended(
    endpoint: &mut EndpointObject,
    issued: Issued,
    timeout: Option<Duration>,
) -> Result<Value, Failure> {
    let result = match issued {
        Issued::Done(value) => return Ok(value),
        Issued::Pending => endpoint.fabric().finish(OWN_CONTEXT, timeout.unwrap_or(YEAR)),
    };
    match result {
        Some(result) => Ok(result?),
        None => Err(Failure::new(
            WEFT_ERROR_TIMEOUT,
            format!("no answer within {:?}; the call was given up", timeout.unwrap_or(YEAR)),
        )),
    }
}

/// A handle of a peer as the fabric has it.
const fn peer_of(peer: u32) -> Peer {
    Peer(peer)
}
