//! Structures, tables of functions and numbers of libfabric's interface, version 1.17, on 64-bit
//! Linux.
//!
//! From 1.17 to 2.7 libfabric's structures grew at their end only, so these layouts serve all of
//! them. Structures that libfabric allocates are read as far as this module has them. Those that a
//! call takes are followed by zeros, for the fields of later versions ([`Padded`]).
//!
//! Source: the headers `rdma/fabric.h`, `fi_domain.h`, `fi_endpoint.h`, `fi_rma.h`, `fi_cm.h`,
//! `fi_eq.h` and `fi_ext.h` of libfabric 1.17.

use std::ffi::{c_char, c_int, c_void};

/// The version of the interface that this module describes.
pub const VERSION: u32 = 1 << 16 | 17;

/// The address of a peer in an address vector (`fi_addr_t`).
pub type Address = u64;
/// No peer, or any.
pub const ADDRESS_UNSPECIFIED: Address = u64::MAX;

/// Capabilities, and flags of operations.
pub mod flags {
    pub const MSG: u64 = 1 << 1;
    pub const RMA: u64 = 1 << 2;
    pub const READ: u64 = 1 << 8;
    pub const WRITE: u64 = 1 << 9;
    pub const RECV: u64 = 1 << 10;
    pub const SEND: u64 = 1 << 11;
    pub const REMOTE_READ: u64 = 1 << 12;
    pub const REMOTE_WRITE: u64 = 1 << 13;
    pub const COMPLETION: u64 = 1 << 24;
    pub const DELIVERY_COMPLETE: u64 = 1 << 28;
    pub const SOURCE: u64 = 1 << 57;
}

/// Modes: duties of the caller.
pub mod mode {
    pub const CONTEXT: u64 = 1 << 59;
    pub const CONTEXT2: u64 = 1 << 52;
}

/// Modes of memory registration.
pub mod mr_mode {
    use std::ffi::c_int;

    pub const LOCAL: c_int = 4;
    pub const VIRT_ADDR: c_int = 16;
    pub const ALLOCATED: c_int = 32;
    pub const PROV_KEY: c_int = 64;
    pub const ENDPOINT: c_int = 512;
}

/// Orders of messages and operations.
pub mod order {
    /// A send after a write.
    pub const SAW: u64 = 1 << 7;
    /// A send after a send.
    pub const SAS: u64 = 1 << 8;
}

/// Formats of names: those from `SOCKADDR` to `SOCKADDR_IB` begin with an address family.
pub const FORMAT_SOCKADDR: u32 = 1;
pub const FORMAT_SOCKADDR_IN6: u32 = 3;
pub const FORMAT_SOCKADDR_IB: u32 = 4;
/// A string that ends with a zero.
pub const FORMAT_STR: u32 = 9;

pub const EP_RDM: c_int = 3;
pub const AV_TABLE: c_int = 2;
pub const THREAD_DOMAIN: c_int = 3;
pub const PROGRESS_AUTO: c_int = 1;
pub const RESOURCES_ENABLED: c_int = 2;
pub const CQ_FORMAT_DATA: c_int = 3;
pub const WAIT_NONE: c_int = 0;
pub const WAIT_FD: c_int = 3;
pub const WAIT_POLLFD: c_int = 6;
pub const CONTROL_GETWAIT: c_int = 5;
pub const CONTROL_ENABLE: c_int = 6;

/// Errors of libfabric's own, as they are returned: negative.
pub const EAGAIN: isize = -11;
pub const ENOMEM: isize = -12;
pub const ENOKEY: c_int = -126;
pub const ENODATA: c_int = -61;
pub const EAVAIL: isize = -259;

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

/// The kind of a [`Monitor`].
pub const CLASS_MEM_MONITOR: usize = 23;

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

/// `fi_rma_iov`.
#[repr(C)]
pub struct RmaIov {
    pub address: u64,
    pub length: usize,
    pub key: u64,
}

/// `fi_msg_rma`.
#[repr(C)]
pub struct MsgRma {
    pub iov: *const libc::iovec,
    pub descriptors: *mut *mut c_void,
    pub iov_count: usize,
    pub address: Address,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub address_format: u32,
    pub source_length: usize,
    pub destination_length: usize,
    pub source: *mut c_void,
    pub destination: *mut c_void,
    pub handle: *mut Fid,
    pub tx: *mut TxAttr,
    pub rx: *mut RxAttr,
    pub ep: *mut EpAttr,
    pub domain: *mut DomainAttr,
    pub fabric: *mut FabricAttr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub traffic_class: u32,
}

#[repr(C)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut Domain,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub traffic_class: u32,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut Fabric,
    pub name: *mut c_char,
    pub provider: *mut c_char,
    pub provider_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

/// `fi_wait_pollfd`.
#[repr(C)]
pub struct WaitPollFd {
    pub change_index: u64,
    pub count: usize,
    pub files: *mut libc::pollfd,
}

/// `fi_cq_data_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CqEntry {
    pub context: *mut c_void,
    pub flags: u64,
    pub length: usize,
    pub buffer: *mut c_void,
    pub data: u64,
}

impl CqEntry {
    /// An entry to be written.
    pub const NOTHING: Self = Self {
        context: std::ptr::null_mut(),
        flags: 0,
        length: 0,
        buffer: std::ptr::null_mut(),
        data: 0,
    };
}

/// `fi_cq_err_entry`, with room for what later versions put behind it.
#[repr(C)]
pub struct CqError {
    pub context: *mut c_void,
    pub flags: u64,
    pub length: usize,
    pub buffer: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub surplus: usize,
    pub error: c_int,
    pub provider_error: c_int,
    pub error_data: *mut c_void,
    pub error_data_size: usize,
    pub later: [u64; 8],
}

/// A structure that a call takes, and zeros behind it for the fields of later versions.
#[repr(C)]
pub struct Padded<T> {
    pub known: T,
    later: [u64; 8],
}

impl<T> Padded<T> {
    pub const fn new(known: T) -> Self {
        Self { known, later: [0; 8] }
    }
}

/// Memory of the provider's for an operation that is under way (`fi_context2`).
pub type Context = [u64; 8];

const _: () = {
    assert!(size_of::<Info>() == 120);
    assert!(size_of::<TxAttr>() == 80);
    assert!(size_of::<RxAttr>() == 64);
    assert!(size_of::<EpAttr>() == 96);
    assert!(size_of::<DomainAttr>() == 192);
    assert!(size_of::<FabricAttr>() == 32);
    assert!(size_of::<AvAttr>() == 48);
    assert!(size_of::<CqAttr>() == 40);
    assert!(size_of::<WaitPollFd>() == 24);
    assert!(size_of::<CqEntry>() == 40);
    assert!(size_of::<CqError>() == 80 + 64);
    assert!(size_of::<MsgRma>() == 64);
    assert!(size_of::<Mr>() == 40);
};
