//! Address vectors, of both types: an address is the place of its name.

use std::ffi::c_int;
use std::sync::Arc;

use crate::domain::DomainObject;
use crate::pointers::{In, Object, Out, Table, Text, head, table};
use crate::state::{Av, Domain, insert as place};
use crate::{name, unsupported};
use weft_libfabric::abi::{ADDRESS_UNSPECIFIED, AvAttr, Fid, class, errno, flag};

#[repr(C)]
pub struct AvObject {
    pub fid: Fid,
    ops: &'static Table<11>,
    pub domain: Arc<Domain>,
    pub number: usize,
}

table!(AV_FID: 6 = close, bind, unsupported, unsupported, unsupported, unsupported);
table!(AV: 11 = insert, insert_service, unsupported, remove, lookup, straddr, unsupported,
    unsupported, unsupported, unsupported, unsupported);

pub extern "C" fn open(
    domain: Object<DomainObject>,
    attr: In<AvAttr>,
    av: Out<Object<AvObject>>,
    context: usize,
) -> c_int {
    // Nothing is inserted later than in the call, and vectors are not shared by name.
    if attr.get().is_some_and(|it| it.flags & flag::EVENT != 0 || !it.name.is_null()) {
        return -errno::ENOSYS;
    }
    let number = place(&mut domain.domain.lock().avs, Av::default());
    let fid = head(class::AV, context, &AV_FID);
    let domain = Arc::clone(&domain.domain);
    av.set(Object::new(AvObject { fid, ops: &AV, domain, number }));
    0
}

extern "C" fn close(av: Object<AvObject>) -> c_int {
    let mut state = av.domain.lock();
    if state.av(av.number).uses > 0 {
        return -errno::EBUSY;
    }
    state.avs[av.number] = None;
    drop(state);
    av.destroy();
    0
}

extern "C" fn bind(_av: Object<AvObject>, other: Object<Fid>, _flags: u64) -> c_int {
    if other.class == class::EQ { 0 } else { -errno::ENOSYS }
}

/// Inserts names. Returns how many are names.
extern "C" fn insert(
    av: Object<AvObject>,
    names: In<u8>,
    count: usize,
    addresses: Out<u64>,
    _flags: u64,
    _context: usize,
) -> c_int {
    let mut inserted = 0;
    for (index, text) in names.array(count * name::BYTES).chunks_exact(name::BYTES).enumerate() {
        let address = add(&av, text);
        addresses.set_at(index, address);
        inserted += c_int::from(address != ADDRESS_UNSPECIFIED);
    }
    inserted
}

extern "C" fn insert_service(
    av: Object<AvObject>,
    node: Text,
    _service: Text,
    address: Out<u64>,
    _flags: u64,
    _context: usize,
) -> c_int {
    let text = node.get().map(|node| node.to_bytes_with_nul());
    let added = text.map_or(ADDRESS_UNSPECIFIED, |text| add(&av, text));
    address.set(added);
    c_int::from(added != ADDRESS_UNSPECIFIED)
}

fn add(av: &AvObject, text: &[u8]) -> u64 {
    let Some(named) = name::parse(text) else { return ADDRESS_UNSPECIFIED };
    let mut state = av.domain.lock();
    let number = place(&mut state.av(av.number).names, named) as u64;
    let endpoints = 0..state.endpoints.len();
    for endpoint in endpoints {
        if state.endpoints[endpoint].as_ref().is_some_and(|ep| ep.av == Some(av.number)) {
            let _ = state.peer(endpoint, number);
        }
    }
    number
}

extern "C" fn remove(av: Object<AvObject>, addresses: In<u64>, count: usize, _flags: u64) -> c_int {
    let mut state = av.domain.lock();
    for address in addresses.array(count) {
        let Ok(place) = usize::try_from(*address) else { return -errno::EINVAL };
        let names = &mut state.av(av.number).names;
        let Some(name) = names.get_mut(place).filter(|name| name.is_some()) else {
            return -errno::EINVAL;
        };
        *name = None;
        state.forget(av.number, place);
    }
    0
}

extern "C" fn lookup(
    av: Object<AvObject>,
    address: u64,
    text: Out<u8>,
    length: Out<usize>,
) -> c_int {
    let mut state = av.domain.lock();
    let place = usize::try_from(address).unwrap_or(usize::MAX);
    let found = state.av(av.number).names.get(place).copied().flatten();
    let (Some((address, birth)), Some(length)) = (found, length.get()) else {
        return -errno::EINVAL;
    };
    let name = name::of(address, birth);
    let bytes = name.as_bytes_with_nul();
    text.put(0, &bytes[..bytes.len().min(*length)]);
    *length = bytes.len();
    0
}

extern "C" fn straddr(
    _av: Object<AvObject>,
    name: In<u8>,
    text: Out<u8>,
    length: Out<usize>,
) -> Out<u8> {
    let bytes = name.array(name::BYTES);
    if let Some(length) = length.get() {
        let part = bytes.len().min(*length);
        text.put(0, &bytes[..part]);
        if part > 0 {
            text.put(part - 1, &[0]);
        }
        *length = bytes.len();
    }
    text
}
