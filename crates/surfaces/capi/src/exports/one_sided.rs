//! Operations on the memory of peers, and their order.

use std::ffi::{c_int, c_void};

use weft_fabric::{
    Atomic, AtomicOperation, Endpoint, Issued, LocalRange, Notify, Operation, Signal, SignalChange,
    Source, Width,
};
use weft_open::AnyEndpoint;

use super::{OWN_CONTEXT, ended, limit, own_context, peer_of, status, with};
use crate::call::call;
use crate::key::Key;
use crate::objects::{AnyRegion, MEMORIES};
use crate::pointers::{self, Out};
use crate::status::Failure;
use crate::types::weft_status::{WEFT_ERROR_KEY, WEFT_OK};
use crate::types::{
    weft_atomic_kind, weft_endpoint, weft_key, weft_memory, weft_operation, weft_operation_flag,
    weft_peer, weft_signal_kind,
};

/// Bytes of weft_operation that each program has: its size, the flags and the context.
const LEAST_BYTES: usize = 16;
const FLAGS: u32 = weft_operation_flag::WEFT_NOTIFY_PEER as u32
    | weft_operation_flag::WEFT_NOTIFY_SELF as u32
    | weft_operation_flag::WEFT_QUIET as u32
    | weft_operation_flag::WEFT_ORDERED as u32
    | weft_operation_flag::WEFT_MORE as u32;

/// The notifications that an operation may cause: at the peer, and here.
struct Notified {
    at_peer: Notify,
    here: Notify,
}

/// Of operations that bring data to the peer.
const WRITES: Notified = Notified { at_peer: Notify::COMPLETER, here: Notify::REQUESTER };
/// Of operations that bring data here.
const READS: Notified = Notified { at_peer: Notify::RESPONDER, here: Notify::COMPLETER };

/// The operation that a program describes.
#[inline]
fn described(place: *const weft_operation, notified: &Notified) -> Result<Operation, Failure> {
    if place.is_null() {
        return Ok(Operation::new(0));
    }
    let none = weft_operation {
        size: 0,
        flags: 0,
        context: 0,
        value: 0,
        notification_class: 0,
        reserved: [0; 7],
    };
    let size = pointers::structure(place.cast::<u32>(), "operation")? as usize;
    if !(LEAST_BYTES..=size_of::<weft_operation>()).contains(&size) {
        return Err(Failure::argument(format!(
            "weft_operation.size is {size}; begin with WEFT_OPERATION, and compile with the header \
             of the library that runs"
        )));
    }
    let given = pointers::beginning(place, size, none);
    if given.flags & !FLAGS != 0 {
        let unknown = given.flags & !FLAGS;
        return Err(Failure::argument(format!(
            "weft_operation.flags has unknown bits {unknown:#x}"
        )));
    }
    let has = |flag: weft_operation_flag| given.flags & flag as u32 != 0;
    let mut notify = Notify::NONE;
    if has(weft_operation_flag::WEFT_NOTIFY_PEER) {
        notify = notify.and(notified.at_peer);
    }
    if has(weft_operation_flag::WEFT_NOTIFY_SELF) {
        notify = notify.and(notified.here);
    }
    let notify = notify.class(given.notification_class).immediate(given.value);
    let mut operation = Operation::new(own_context(given.context)?).notify(notify);
    if has(weft_operation_flag::WEFT_QUIET) {
        operation = operation.quiet();
    }
    operation.ordered = has(weft_operation_flag::WEFT_ORDERED);
    operation.more = has(weft_operation_flag::WEFT_MORE);
    Ok(operation)
}

/// Calls with a region of this endpoint.
#[inline]
fn with_region<R>(
    endpoint: *mut weft_endpoint,
    memory: *const weft_memory,
    body: impl FnOnce(&AnyRegion) -> Result<R, Failure>,
) -> Result<R, Failure> {
    MEMORIES.shared(pointers::handle(memory), |memory| {
        if memory.endpoint != pointers::handle(endpoint) {
            return Err(Failure::argument("the memory is of another endpoint"));
        }
        body(&memory.region)
    })
}

/// Starts an operation by a key.
#[inline]
fn start(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    value: *mut u64,
    body: impl FnOnce(&Key, &mut AnyEndpoint) -> Result<Issued, Failure>,
) -> c_int {
    call(|| {
        let key = Key::parse(&pointers::structure(key, "key")?)?;
        with(endpoint, |endpoint| match body(&key, endpoint.fabric()) {
            Ok(issued) => Ok(status(issued, Out::of(value))),
            Err(failure) => Err(explained(failure, &key, peer, endpoint.fabric())),
        })
    })
}

/// The same failure. Of a key that is used with the wrong peer it says so.
#[cold]
fn explained(
    mut failure: Failure,
    key: &Key,
    peer: weft_peer,
    endpoint: &mut AnyEndpoint,
) -> Failure {
    let at = endpoint.peer_address(peer_of(peer)).filter(|at| *at != key.owner);
    if failure.status == WEFT_ERROR_KEY
        && let Some(at) = at
    {
        let (owner, text) = (key.owner, failure.text);
        failure.text =
            format!("the key is of endpoint {owner}, and the peer is {at}: {text}").into();
    }
    failure
}

/// Writes length bytes into a peer's memory, from offset of the key's range on. data may be used
/// again when the call returns. A put that has completed is visible to whoever reads there.
///
/// The first use of a key may be refused with WEFT_ERROR_AGAIN while the key is looked up:
/// weft_resolve does that before.
///
/// One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_KEY, WEFT_ERROR_ACCESS,
/// WEFT_ERROR_RANGE, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_INTERRUPTED,
/// WEFT_ERROR_UNSUPPORTED, WEFT_ERROR_NETWORK, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL; from the call or as the status of the completion.
#[unsafe(no_mangle)]
pub extern "C" fn weft_put(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    offset: u64,
    data: *const c_void,
    length: usize,
    operation: *const weft_operation,
) -> c_int {
    start(endpoint, peer, key, std::ptr::null_mut(), |key, endpoint| {
        let source = Source::Bytes(pointers::bytes(data, length)?);
        let target = key.target(offset, length as u64)?;
        let operation = described(operation, &WRITES)?;
        Ok(endpoint.put(peer_of(peer), source, target, operation)?)
    })
}

/// As weft_put, out of a memory of this endpoint: nothing is copied before. The bytes must not
/// change until the put has completed.
///
/// One thread at a time. Errors: as weft_put.
#[unsafe(no_mangle)]
pub extern "C" fn weft_put_memory(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    offset: u64,
    memory: *const weft_memory,
    memory_offset: u64,
    length: u64,
    operation: *const weft_operation,
) -> c_int {
    start(endpoint, peer, key, std::ptr::null_mut(), |key, of| {
        let target = key.target(offset, length)?;
        let operation = described(operation, &WRITES)?;
        with_region(endpoint, memory, |region| {
            let source = Source::Region(LocalRange::new(region, memory_offset, length));
            Ok(of.put(peer_of(peer), source, target, operation)?)
        })
    })
}

/// Writes length bytes into a peer's memory and then changes a 64-bit word of the peer in the way
/// of a weft_signal_kind. A peer that reads the word's new value also reads the data. word_key may
/// be another key of the same peer.
///
/// One thread at a time. Errors: as weft_put; WEFT_ERROR_ALIGNMENT.
#[unsafe(no_mangle)]
pub extern "C" fn weft_put_signal(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    offset: u64,
    data: *const c_void,
    length: usize,
    word_key: *const weft_key,
    word_offset: u64,
    kind: u32,
    value: u64,
    operation: *const weft_operation,
) -> c_int {
    start(endpoint, peer, key, std::ptr::null_mut(), |key, endpoint| {
        let source = Source::Bytes(pointers::bytes(data, length)?);
        let target = key.target(offset, length as u64)?;
        let word = Key::parse(&pointers::structure(word_key, "word_key")?)?;
        let change = match kind {
            kind if kind == weft_signal_kind::WEFT_SIGNAL_SET as u32 => SignalChange::Set(value),
            kind if kind == weft_signal_kind::WEFT_SIGNAL_ADD as u32 => SignalChange::Add(value),
            _ => return Err(Failure::argument(format!("{kind} is no kind of signal"))),
        };
        let signal = Signal { target: word.target(word_offset, 8)?, change };
        let operation = described(operation, &WRITES)?;
        Ok(endpoint.put_signal(peer_of(peer), source, target, signal, operation)?)
    })
}

/// Reads length bytes of a peer's memory into a memory of this endpoint.
///
/// One thread at a time. Errors: as weft_put.
#[unsafe(no_mangle)]
pub extern "C" fn weft_get(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    offset: u64,
    memory: *mut weft_memory,
    memory_offset: u64,
    length: u64,
    operation: *const weft_operation,
) -> c_int {
    start(endpoint, peer, key, std::ptr::null_mut(), |key, of| {
        let source = key.target(offset, length)?;
        let operation = described(operation, &READS)?;
        with_region(endpoint, memory, |region| {
            let into = LocalRange::new(region, memory_offset, length);
            Ok(of.get(peer_of(peer), source, into, operation)?)
        })
    })
}

/// Changes a word of a peer in the way of a weft_atomic_kind. width is 4 or 8 bytes, and the word
/// lies at a multiple of it. former, if it is not NULL, gets the word's former value when the call
/// returns WEFT_OK; when it returns WEFT_PENDING, the completion has it. With NULL nothing is
/// fetched. compare is for WEFT_ATOMIC_COMPARE_SWAP alone.
///
/// One thread at a time. Errors: as weft_put; WEFT_ERROR_ALIGNMENT.
#[unsafe(no_mangle)]
pub extern "C" fn weft_atomic(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    offset: u64,
    kind: u32,
    width: u32,
    operand: u64,
    compare: u64,
    operation: *const weft_operation,
    former: *mut u64,
) -> c_int {
    start(endpoint, peer, key, former, |key, endpoint| {
        let kind = atomic_kind(kind)?;
        let width = match width {
            4 => Width::Bits32,
            8 => Width::Bits64,
            _ => return Err(Failure::argument(format!("a word has 4 or 8 bytes, not {width}"))),
        };
        let fetches = !former.is_null() || kind == AtomicOperation::Read;
        let atomic = Atomic { operation: kind, width, operand, compare, fetches };
        let target = key.target(offset, width.bytes())?;
        let operation = described(operation, &READS)?;
        Ok(endpoint.atomic(peer_of(peer), target, atomic, operation)?)
    })
}

fn atomic_kind(kind: u32) -> Result<AtomicOperation, Failure> {
    use weft_atomic_kind::*;
    Ok(match kind {
        kind if kind == WEFT_ATOMIC_READ as u32 => AtomicOperation::Read,
        kind if kind == WEFT_ATOMIC_ADD as u32 => AtomicOperation::FetchAdd,
        kind if kind == WEFT_ATOMIC_SWAP as u32 => AtomicOperation::Swap,
        kind if kind == WEFT_ATOMIC_COMPARE_SWAP as u32 => AtomicOperation::CompareSwap,
        kind if kind == WEFT_ATOMIC_AND as u32 => AtomicOperation::And,
        kind if kind == WEFT_ATOMIC_OR as u32 => AtomicOperation::Or,
        kind if kind == WEFT_ATOMIC_XOR as u32 => AtomicOperation::Xor,
        _ => return Err(Failure::argument(format!("{kind} is no kind of atomic"))),
    })
}

/// weft_atomic that adds to a word of 8 bytes.
///
/// One thread at a time. Errors: as weft_atomic.
#[unsafe(no_mangle)]
pub extern "C" fn weft_fetch_add(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    offset: u64,
    operand: u64,
    operation: *const weft_operation,
    former: *mut u64,
) -> c_int {
    let kind = weft_atomic_kind::WEFT_ATOMIC_ADD as u32;
    weft_atomic(endpoint, peer, key, offset, kind, 8, operand, 0, operation, former)
}

/// weft_atomic that compares and swaps a word of 8 bytes: it has become desired if former is
/// expected.
///
/// One thread at a time. Errors: as weft_atomic.
#[unsafe(no_mangle)]
pub extern "C" fn weft_compare_swap(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    offset: u64,
    expected: u64,
    desired: u64,
    operation: *const weft_operation,
    former: *mut u64,
) -> c_int {
    let kind = weft_atomic_kind::WEFT_ATOMIC_COMPARE_SWAP as u32;
    weft_atomic(endpoint, peer, key, offset, kind, 8, desired, expected, operation, former)
}

/// Gives a peer a WEFT_EVENT_NOTIFICATION with a class and a value. Needs no memory.
///
/// One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER,
/// WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_notify(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    notification_class: u8,
    value: u64,
) -> c_int {
    call(|| {
        with(endpoint, |endpoint| {
            endpoint.fabric().put_notification(peer_of(peer), notification_class, value)?;
            Ok(WEFT_OK)
        })
    })
}

/// Prepares the use of a key: afterwards operations by it are not refused because it is looked up.
///
/// One thread at a time. It waits for at most timeout_ms milliseconds. Errors: WEFT_ERROR_KEY,
/// WEFT_ERROR_TIMEOUT, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_NO_DAEMON,
/// WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_resolve(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    key: *const weft_key,
    timeout_ms: c_int,
) -> c_int {
    call(|| {
        let key = Key::parse(&pointers::structure(key, "key")?)?;
        let timeout = limit(timeout_ms)?;
        with(endpoint, |endpoint| {
            let resolved = match endpoint.fabric().resolve(peer_of(peer), key.key, OWN_CONTEXT) {
                Ok(issued) => ended(endpoint, issued, timeout),
                Err(error) => Err(error.into()),
            };
            match resolved {
                Ok(_) => Ok(WEFT_OK),
                Err(failure) => Err(explained(failure, &key, peer, endpoint.fabric())),
            }
        })
    })
}

/// Later operations to this peer take effect after all that came before: operations, messages and
/// notifications. Nothing waits. For one operation alone WEFT_ORDERED costs less.
///
/// One thread at a time. Errors: WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_order(endpoint: *mut weft_endpoint, peer: weft_peer) -> c_int {
    call(|| {
        with(endpoint, |endpoint| Ok(endpoint.fabric().order(peer_of(peer))?)).map(|()| WEFT_OK)
    })
}

/// Ends when all that this endpoint did to a peer before is visible there or has ended with an
/// error: WEFT_OK, or WEFT_PENDING and a completion with the context.
///
/// One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER,
/// WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_fence(endpoint: *mut weft_endpoint, peer: weft_peer, context: u64) -> c_int {
    call(|| {
        let context = own_context(context)?;
        let issued =
            with(endpoint, |endpoint| Ok(endpoint.fabric().fence(peer_of(peer), context)?))?;
        Ok(status(issued, Out::of(std::ptr::null_mut())))
    })
}

/// As weft_fence, for all peers.
///
/// One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_fence_all(endpoint: *mut weft_endpoint, context: u64) -> c_int {
    call(|| {
        let context = own_context(context)?;
        let issued = with(endpoint, |endpoint| Ok(endpoint.fabric().fence_all(context)?))?;
        Ok(status(issued, Out::of(std::ptr::null_mut())))
    })
}

/// Asks to give up what was begun on a peer with a context: a message or an operation. It ends with
/// WEFT_ERROR_CANCELLED if nothing of it is done; else, and if there is none, this has no effect.
///
/// One thread at a time. Errors: WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_ARGUMENT,
/// WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_cancel(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    context: u64,
) -> c_int {
    call(|| {
        let context = own_context(context)?;
        with(endpoint, |endpoint| {
            if !endpoint.messages.cancel(peer_of(peer), context) {
                endpoint.fabric().cancel(peer_of(peer), context)?;
            }
            Ok(WEFT_OK)
        })
    })
}
