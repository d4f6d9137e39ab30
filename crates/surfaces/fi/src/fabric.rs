//! Fabrics, which open domains.

use std::ffi::c_int;
use std::sync::Arc;

use weft_fabric::Armed;

use crate::cq::{self, CqObject};
use crate::domain::{DOMAIN, DOMAIN_FID, DomainObject, MR};
use crate::eq;
use crate::pointers::{In, Object, Out, Table, head, table};
use crate::state::Domain;
use crate::unsupported;
use weft_libfabric::abi::{self, FabricAttr, Fid, Info, class, errno};

#[repr(C)]
pub struct FabricObject {
    fid: Fid,
    ops: &'static Table<6>,
    api_version: u32,
}

table!(FABRIC_FID: 6 = close, unsupported, unsupported, unsupported, unsupported, unsupported);
table!(FABRIC: 6 = domain, unsupported, eq::open, unsupported, trywait, domain2);

/// `fabric` of the provider.
pub extern "C" fn open(
    attr: In<FabricAttr>,
    fabric: Out<Object<FabricObject>>,
    context: usize,
) -> c_int {
    let fid = head(class::FABRIC, context, &FABRIC_FID);
    let api_version = attr.get().map_or(abi::VERSION_NEWEST, |attr| attr.api_version);
    fabric.set(Object::new(FabricObject { fid, ops: &FABRIC, api_version }));
    0
}

extern "C" fn close(fabric: Object<FabricObject>) -> c_int {
    fabric.destroy();
    0
}

extern "C" fn domain(
    _fabric: Object<FabricObject>,
    info: In<Info>,
    domain: Out<Object<DomainObject>>,
    context: usize,
) -> c_int {
    let Some(info) = info.get() else { return -errno::EINVAL };
    let mode = Out::from(info.domain).get().map_or(0, |attr| attr.mr_mode);
    let is_basic = mode == abi::mr_mode::BASIC;
    let has = |bit| is_basic || (mode != abi::mr_mode::SCALABLE && mode & bit != 0);
    let state = Domain::new(has(abi::mr_mode::VIRT_ADDR), has(abi::mr_mode::PROV_KEY));
    let fid = head(class::DOMAIN, context, &DOMAIN_FID);
    domain.set(Object::new(DomainObject { fid, ops: &DOMAIN, mr: &MR, domain: Arc::new(state) }));
    0
}

extern "C" fn domain2(
    fabric: Object<FabricObject>,
    info: In<Info>,
    found: Out<Object<DomainObject>>,
    _flags: u64,
    context: usize,
) -> c_int {
    domain(fabric, info, found, context)
}

/// Prepares to sleep on the descriptors of queues: EAGAIN if one has something.
extern "C" fn trywait(_fabric: Object<FabricObject>, fids: In<Object<Fid>>, count: c_int) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    for fid in fids.array(count) {
        match fid.class {
            class::CQ => {
                let queue: Object<CqObject> = fid.cast();
                if cq::prepare(&queue) == Armed::Busy {
                    return -errno::EAGAIN;
                }
            }
            class::EQ | class::CNTR => {}
            _ => return -errno::ENOSYS,
        }
    }
    0
}
