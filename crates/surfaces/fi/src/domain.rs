//! Domains, and registered memory.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use weft_rdm::Registration;
use weft_rdm::atomics::{Datatype, Operator};

use crate::cntr::CntrObject;
use crate::memory::Pieces;
use crate::pointers::{In, Object, Out, Table, head, table};
use crate::state::{Domain, Mr, rights};
use crate::{atomic, av, cntr, cq, ep, unsupported};
use weft_libfabric::abi::{AtomicAttr, Fid, MrAttr, class, errno, flag};

#[repr(C)]
pub struct DomainObject {
    pub fid: Fid,
    pub ops: &'static Table<12>,
    pub mr: &'static Table<3>,
    pub domain: Arc<Domain>,
}

#[repr(C)]
struct MrObject {
    fid: Fid,
    descriptor: *mut c_void,
    key: u64,
    domain: Arc<Domain>,
}

table!(DOMAIN_FID: 6 = close, bind, unsupported, unsupported, unsupported, unsupported);
table!(DOMAIN: 12 = av::open, cq::open, ep::open, unsupported, cntr::open, unsupported,
    unsupported, unsupported, query_atomic, unsupported, ep::open2, unsupported);
table!(MR: 3 = reg, regv, regattr);
table!(MR_FID: 6 = close_mr, bind_mr, control_mr, unsupported, unsupported, unsupported);

extern "C" fn close(domain: Object<DomainObject>) -> c_int {
    // Each object of the domain holds its state.
    if Arc::strong_count(&domain.domain) > 1 {
        return -errno::EBUSY;
    }
    domain.destroy();
    0
}

/// Event queues, to which nothing is reported: calls end when they return.
extern "C" fn bind(_fid: Object<Fid>, other: Object<Fid>, _flags: u64) -> c_int {
    if other.class == class::EQ { 0 } else { -errno::ENOSYS }
}

/// Counts what peers do to the memory.
extern "C" fn bind_mr(mr: Object<MrObject>, other: Object<Fid>, flags: u64) -> c_int {
    if other.class == class::EP {
        return 0;
    }
    if other.class != class::CNTR {
        return -errno::ENOSYS;
    }
    let counter: Object<CntrObject> = other.cast();
    if !Arc::ptr_eq(&counter.domain, &mr.domain) {
        return -errno::EINVAL;
    }
    let mut state = mr.domain.lock();
    let Some(it) = state.mrs.get_mut(&mr.key) else { return -errno::EINVAL };
    let mut uses = 0;
    for (place, bit) in [(&mut it.writes, flag::REMOTE_WRITE), (&mut it.reads, flag::REMOTE_READ)] {
        if flags & bit != 0 && place.is_none() {
            *place = Some(counter.number);
            uses += 1;
        }
    }
    let counter = state.counter(counter.number);
    counter.uses += uses;
    counter.is_of_memory = true;
    for ep in state.endpoints.iter_mut().flatten() {
        ep.rdm.report_remote(true);
    }
    0
}

extern "C" fn control_mr(_mr: Object<MrObject>, command: c_int, _value: usize) -> c_int {
    // Memory is registered at once, so enabling it is nothing.
    if command == weft_libfabric::abi::CONTROL_ENABLE { 0 } else { -errno::ENOSYS }
}

extern "C" fn query_atomic(
    _domain: Object<DomainObject>,
    datatype: c_int,
    op: c_int,
    attr: Out<AtomicAttr>,
    flags: u64,
) -> c_int {
    let form = match flags {
        0 => atomic::Form::Plain,
        flag::FETCH_ATOMIC => atomic::Form::Fetch,
        flag::COMPARE_ATOMIC => atomic::Form::Compare,
        _ => return -errno::EOPNOTSUPP,
    };
    match atomic::valid(datatype, op, form) {
        Some((datatype, _)) => {
            attr.set(AtomicAttr { count: atomic::count(datatype), size: datatype.bytes() });
            0
        }
        None => -errno::EOPNOTSUPP,
    }
}

/// The type and the operation with these numbers.
pub fn numbered(datatype: c_int, op: c_int) -> Option<(Datatype, Operator)> {
    Some((Datatype::of(u8::try_from(datatype).ok()?)?, Operator::of(u8::try_from(op).ok()?)?))
}

extern "C" fn reg(
    domain: Object<DomainObject>,
    buffer: usize,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    _flags: u64,
    mr: Out<Object<Fid>>,
    context: usize,
) -> c_int {
    register(domain, Pieces::one(buffer, length), (access, offset, key), mr, context)
}

extern "C" fn regv(
    domain: Object<DomainObject>,
    iov: In<libc::iovec>,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    _flags: u64,
    mr: Out<Object<Fid>>,
    context: usize,
) -> c_int {
    let Some(pieces) = Pieces::of(iov.array(count)) else { return -errno::EINVAL };
    register(domain, pieces, (access, offset, key), mr, context)
}

extern "C" fn regattr(
    domain: Object<DomainObject>,
    attr: In<MrAttr>,
    _flags: u64,
    mr: Out<Object<Fid>>,
) -> c_int {
    let Some(attr) = attr.get() else { return -errno::EINVAL };
    let Some(pieces) = Pieces::of(In::from(attr.iov).array(attr.iov_count)) else {
        return -errno::EINVAL;
    };
    let asked = (attr.access, attr.offset, attr.requested_key);
    register(domain, pieces, asked, mr, attr.context.addr())
}

fn register(
    domain: Object<DomainObject>,
    memory: Pieces,
    (access, offset, key): (u64, u64, u64),
    mr: Out<Object<Fid>>,
    context: usize,
) -> c_int {
    let shared = &domain.domain;
    let mut state = shared.lock();
    let key = if shared.has_own_keys {
        state.keys += 1;
        state.keys
    } else {
        key
    };
    if state.mrs.contains_key(&key) {
        return -errno::ENOKEY;
    }
    let base = if shared.has_virtual_addresses { memory.address() as u64 } else { offset };
    let registration = Registration { memory, base, rights: rights(access) };
    for ep in state.endpoints.iter_mut().flatten() {
        ep.rdm.register(key, registration.clone());
    }
    state.mrs.insert(key, Mr { registration, key, writes: None, reads: None });
    drop(state);
    let fid = head(class::MR, context, &MR_FID);
    let domain = Arc::clone(shared);
    let object = MrObject { fid, descriptor: std::ptr::null_mut(), key, domain };
    mr.set(Object::new(object).cast());
    0
}

extern "C" fn close_mr(mr: Object<MrObject>) -> c_int {
    let mut state = mr.domain.lock();
    let removed = state.mrs.remove(&mr.key);
    let counters = removed.map(|mr| [mr.writes, mr.reads]).into_iter().flatten().flatten();
    for counter in counters {
        state.counter(counter).uses -= 1;
    }
    for ep in state.endpoints.iter_mut().flatten() {
        ep.rdm.deregister(mr.key);
    }
    drop(state);
    mr.destroy();
    0
}
