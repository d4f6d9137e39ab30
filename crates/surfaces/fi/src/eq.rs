//! Event queues. Nothing of this provider is reported by one, since its calls end when they return;
//! what a program writes to one it reads again.

use std::collections::VecDeque;
use std::ffi::c_int;

use parking_lot::{Condvar, Mutex};

use crate::fabric::FabricObject;
use crate::pointers::{In, Object, Out, Table, head, table};
use crate::unsupported;
use weft_libfabric::abi::{EqAttr, Fid, class, errno};

#[repr(C)]
pub struct EqObject {
    fid: Fid,
    ops: &'static Table<5>,
    events: Mutex<VecDeque<(u32, Vec<u8>)>>,
    written: Condvar,
}

/// Events that may wait.
const EVENTS_MAX: usize = 4096;
/// Bytes of an event.
const EVENT_BYTES_MAX: usize = 4096;

table!(EQ_FID: 6 = close, unsupported, unsupported, unsupported, unsupported, unsupported);
table!(EQ: 5 = read, unsupported_read, write, sread, strerror);

pub extern "C" fn open(
    _fabric: Object<FabricObject>,
    _attr: In<EqAttr>,
    eq: Out<Object<EqObject>>,
    context: usize,
) -> c_int {
    let fid = head(class::EQ, context, &EQ_FID);
    let (events, written) = (Mutex::default(), Condvar::new());
    eq.set(Object::new(EqObject { fid, ops: &EQ, events, written }));
    0
}

extern "C" fn close(eq: Object<EqObject>) -> c_int {
    eq.destroy();
    0
}

fn again() -> isize {
    -(errno::EAGAIN as isize)
}

const FLAG_PEEK: u64 = weft_libfabric::abi::flag::PEEK;

extern "C" fn read(
    eq: Object<EqObject>,
    event: Out<u32>,
    buffer: Out<u8>,
    length: usize,
    flags: u64,
) -> isize {
    let mut events = eq.events.lock();
    let Some((number, bytes)) = events.front() else { return again() };
    if bytes.len() > length {
        return -(errno::ETOOSMALL as isize);
    }
    event.set(*number);
    buffer.put(0, bytes);
    let read = isize::try_from(bytes.len()).unwrap_or(0);
    if flags & FLAG_PEEK == 0 {
        events.pop_front();
    }
    read
}

/// There are no errors.
extern "C" fn unsupported_read(_eq: Object<EqObject>, _entry: Out<u8>, _flags: u64) -> isize {
    again()
}

extern "C" fn write(
    eq: Object<EqObject>,
    event: u32,
    buffer: In<u8>,
    length: usize,
    _flags: u64,
) -> isize {
    let mut events = eq.events.lock();
    if length > EVENT_BYTES_MAX {
        return -(errno::EINVAL as isize);
    }
    if events.len() >= EVENTS_MAX {
        return again();
    }
    events.push_back((event, buffer.array(length).to_vec()));
    eq.written.notify_one();
    isize::try_from(length).unwrap_or(0)
}

extern "C" fn sread(
    eq: Object<EqObject>,
    event: Out<u32>,
    buffer: Out<u8>,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    let mut events = eq.events.lock();
    if events.is_empty() {
        match u64::try_from(timeout) {
            Ok(milliseconds) => {
                let time = std::time::Duration::from_millis(milliseconds);
                eq.written.wait_for(&mut events, time);
            }
            // A negative time is one without end.
            Err(_) => eq.written.wait(&mut events),
        }
    }
    drop(events);
    read(eq, event, buffer, length, flags)
}

extern "C" fn strerror(
    _eq: Object<EqObject>,
    _error: c_int,
    _data: In<u8>,
    _text: Out<u8>,
    _length: usize,
) -> *const std::ffi::c_char {
    c"no error".as_ptr()
}
