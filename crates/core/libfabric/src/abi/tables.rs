//! Objects and their tables of functions, as users of libfabric call them.
//!
//! A provider's objects begin in the same way; behind that is its own.

use std::ffi::{c_char, c_int, c_void};

use super::numbers::Address;
use super::structures::{AvAttr, CqAttr, CqError, Info, MsgRma};

/// The head of each object.
#[repr(C)]
pub struct Fid {
    pub class: usize,
    pub context: *mut c_void,
    pub ops: *const FidOps,
}

#[repr(C)]
pub struct FidOps {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

/// A monitor of memory that the program brings. libfabric writes to it.
#[repr(C)]
pub struct Monitor {
    pub fid: Fid,
    pub ops: *const MonitorOps,
    pub notify: *mut c_void,
}

#[repr(C)]
pub struct MonitorOps {
    pub size: usize,
    pub start: extern "C" fn(*mut Monitor) -> c_int,
    pub stop: extern "C" fn(*mut Monitor),
    pub subscribe: extern "C" fn(*mut Monitor, *const c_void, usize) -> c_int,
    pub unsubscribe: extern "C" fn(*mut Monitor, *const c_void, usize),
    pub valid: extern "C" fn(*mut Monitor, *const c_void, usize) -> bool,
}

#[repr(C)]
pub struct Fabric {
    pub fid: Fid,
    pub ops: *const FabricOps,
}

#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain:
        unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
    pub passive_ep: *const c_void,
    pub eq_open: *const c_void,
    pub wait_open: *const c_void,
    pub trywait: unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub struct Domain {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct MrOps {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut Mr,
        *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub struct Mr {
    pub fid: Fid,
    pub descriptor: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct Av {
    pub fid: Fid,
    pub ops: *const AvOps,
}

#[repr(C)]
pub struct AvOps {
    pub size: usize,
    pub insert: unsafe extern "C" fn(
        *mut Av,
        *const c_void,
        usize,
        *mut Address,
        u64,
        *mut c_void,
    ) -> c_int,
    pub insertsvc: *const c_void,
    pub insertsym: *const c_void,
    pub remove: unsafe extern "C" fn(*mut Av, *mut Address, usize, u64) -> c_int,
}

#[repr(C)]
pub struct Cq {
    pub fid: Fid,
    pub ops: *const CqOps,
}

#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
    pub readfrom: *const c_void,
    pub readerr: unsafe extern "C" fn(*mut Cq, *mut CqError, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut Cq, *mut c_void, usize, *const c_void, c_int) -> isize,
    pub sreadfrom: *const c_void,
    pub signal: *const c_void,
    pub strerror:
        unsafe extern "C" fn(*mut Cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub struct Ep {
    pub fid: Fid,
    pub ops: *const c_void,
    pub cm: *const CmOps,
    pub msg: *const MsgOps,
    pub rma: *const RmaOps,
}

#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: *const c_void,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(
        *mut Ep,
        *mut c_void,
        usize,
        *mut c_void,
        Address,
        *mut c_void,
    ) -> isize,
    pub recvv: *const c_void,
    pub recvmsg: *const c_void,
    pub send: unsafe extern "C" fn(
        *mut Ep,
        *const c_void,
        usize,
        *mut c_void,
        Address,
        *mut c_void,
    ) -> isize,
    pub sendv: *const c_void,
    pub sendmsg: *const c_void,
    pub inject: unsafe extern "C" fn(*mut Ep, *const c_void, usize, Address) -> isize,
}

#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read: *const c_void,
    pub readv: *const c_void,
    pub readmsg: unsafe extern "C" fn(*mut Ep, *const MsgRma, u64) -> isize,
    pub write: *const c_void,
    pub writev: *const c_void,
    pub writemsg: unsafe extern "C" fn(*mut Ep, *const MsgRma, u64) -> isize,
}

const _: () = assert!(size_of::<Mr>() == 40);
