//! Counters.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::domain::DomainObject;
use crate::pointers::{In, Object, Out, Table, head, table};
use crate::rest::rest;
use crate::state::{Counter, Domain, State, insert};
use crate::unsupported;
use weft_libfabric::abi::{self, CntrAttr, Fid, class, errno};

#[repr(C)]
pub struct CntrObject {
    pub fid: Fid,
    ops: &'static Table<8>,
    pub domain: Arc<Domain>,
    pub number: usize,
}

table!(CNTR_FID: 6 = close, unsupported, unsupported, unsupported, unsupported, unsupported);
table!(CNTR: 8 = read, readerr, add, set, wait, adderr, seterr, unsupported);

/// Looks of a wait before it sleeps now and then.
const LOOKS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(50);

pub extern "C" fn open(
    domain: Object<DomainObject>,
    attr: In<CntrAttr>,
    cntr: Out<Object<CntrObject>>,
    context: usize,
) -> c_int {
    let wait = attr.get().map_or(abi::WAIT_NONE, |attr| attr.wait_obj);
    // A counter has no descriptor; it is waited for by its own call.
    if !matches!(wait, abi::WAIT_NONE | abi::WAIT_UNSPEC | abi::WAIT_YIELD) {
        return -errno::ENOSYS;
    }
    let number = insert(&mut domain.domain.lock().counters, Counter::default());
    let fid = head(class::CNTR, context, &CNTR_FID);
    let domain = Arc::clone(&domain.domain);
    cntr.set(Object::new(CntrObject { fid, ops: &CNTR, domain, number }));
    0
}

extern "C" fn close(cntr: Object<CntrObject>) -> c_int {
    let mut state = cntr.domain.lock();
    if state.counter(cntr.number).uses > 0 {
        return -errno::EBUSY;
    }
    state.counters[cntr.number] = None;
    drop(state);
    cntr.destroy();
    0
}

/// Makes progress on the endpoints of a counter.
fn progress(state: &mut State, number: usize) {
    let endpoints = if state.counter(number).is_of_memory {
        (0..state.endpoints.len()).filter(|it| state.endpoints[*it].is_some()).collect()
    } else {
        state.counter(number).endpoints.clone()
    };
    for endpoint in endpoints {
        state.progress(endpoint);
    }
}

extern "C" fn read(cntr: Object<CntrObject>) -> u64 {
    look(&cntr).0
}

extern "C" fn readerr(cntr: Object<CntrObject>) -> u64 {
    look(&cntr).1
}

/// Makes progress. Returns the value and the errors.
fn look(cntr: &CntrObject) -> (u64, u64) {
    let mut state = cntr.domain.lock();
    progress(&mut state, cntr.number);
    let counter = state.counter(cntr.number);
    let found = (counter.value, counter.errors);
    if state.patience.is_over() {
        drop(state);
        rest(&cntr.domain);
    }
    found
}

extern "C" fn add(cntr: Object<CntrObject>, value: u64) -> c_int {
    let mut state = cntr.domain.lock();
    let counter = state.counter(cntr.number);
    counter.value = counter.value.wrapping_add(value);
    0
}

extern "C" fn set(cntr: Object<CntrObject>, value: u64) -> c_int {
    cntr.domain.lock().counter(cntr.number).value = value;
    0
}

extern "C" fn adderr(cntr: Object<CntrObject>, value: u64) -> c_int {
    let mut state = cntr.domain.lock();
    let counter = state.counter(cntr.number);
    counter.errors = counter.errors.wrapping_add(value);
    0
}

extern "C" fn seterr(cntr: Object<CntrObject>, value: u64) -> c_int {
    cntr.domain.lock().counter(cntr.number).errors = value;
    0
}

/// Waits until the counter has reached a value. An error during the wait ends it.
#[expect(clippy::disallowed_methods, reason = "a surface has the clock")]
extern "C" fn wait(cntr: Object<CntrObject>, threshold: u64, timeout: c_int) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let start = Instant::now();
    let errors = cntr.domain.lock().counter(cntr.number).errors;
    let mut looks: u32 = 0;
    loop {
        let (value, failed) = look(&cntr);
        if value >= threshold {
            return 0;
        }
        if failed != errors {
            return -errno::EAVAIL;
        }
        looks = looks.saturating_add(1);
        if looks.is_multiple_of(64) && limit.is_some_and(|limit| start.elapsed() >= limit) {
            return -errno::ETIMEDOUT;
        }
        if looks > LOOKS {
            std::thread::sleep(NAP);
        }
    }
}
