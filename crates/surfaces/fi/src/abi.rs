//! Structures and numbers of libfabric's interface, as providers see them.
//!
//! The layouts are those of version 1.17 on 64-bit Linux. Later versions only added fields at the
//! ends, which are left as the host made them.
//!
//! Source: `rdma/fabric.h`, `fi_domain.h`, `fi_endpoint.h`, `fi_tagged.h`, `fi_rma.h`,
//! `fi_atomic.h`, `fi_eq.h` and `fi_cm.h` of libfabric 1.17 and 2.5.

use std::ffi::{c_char, c_int, c_void};

use crate::pointers::{In, Text};

/// The newest version of the interface that is claimed.
pub const VERSION: u32 = 2 << 16 | 7;
/// The address of no peer, or of any (`FI_ADDR_UNSPEC`, `FI_ADDR_NOTAVAIL`).
pub const ADDRESS_UNSPECIFIED: u64 = u64::MAX;

/// Capabilities, and flags of operations.
pub mod flag {
    pub const MSG: u64 = 1 << 1;
    pub const RMA: u64 = 1 << 2;
    pub const TAGGED: u64 = 1 << 3;
    pub const ATOMIC: u64 = 1 << 4;
    pub const READ: u64 = 1 << 8;
    pub const WRITE: u64 = 1 << 9;
    pub const RECV: u64 = 1 << 10;
    pub const SEND: u64 = 1 << 11;
    pub const REMOTE_READ: u64 = 1 << 12;
    pub const REMOTE_WRITE: u64 = 1 << 13;
    pub const MULTI_RECV: u64 = 1 << 16;
    pub const REMOTE_CQ_DATA: u64 = 1 << 17;
    pub const PEEK: u64 = 1 << 19;
    pub const COMPLETION: u64 = 1 << 24;
    pub const INJECT: u64 = 1 << 25;
    pub const INJECT_COMPLETE: u64 = 1 << 26;
    pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
    pub const DELIVERY_COMPLETE: u64 = 1 << 28;
    pub const MATCH_COMPLETE: u64 = 1 << 31;
    pub const LOCAL_COMM: u64 = 1 << 51;
    pub const REMOTE_COMM: u64 = 1 << 52;
    pub const RMA_EVENT: u64 = 1 << 56;
    pub const SOURCE: u64 = 1 << 57;
    pub const DIRECTED_RECV: u64 = 1 << 59;
    /// For receives: the message was claimed by a peek before.
    pub const CLAIM: u64 = 1 << 59;
    /// For receives: the message is dropped.
    pub const DISCARD: u64 = 1 << 58;
    /// For binding a queue: entries for operations with `COMPLETION` alone.
    pub const SELECTIVE_COMPLETION: u64 = 1 << 59;
    /// For `fi_getinfo`: the node is the own one. And for an address vector: the call is
    /// asynchronous.
    pub const SOURCE_NODE: u64 = 1 << 57;
    pub const EVENT: u64 = 1 << 24;
    /// For `fi_query_atomic`.
    pub const FETCH_ATOMIC: u64 = 1 << 58;
    pub const COMPARE_ATOMIC: u64 = 1 << 59;
}

/// Modes of registration.
pub mod mr_mode {
    use std::ffi::c_int;

    pub const BASIC: c_int = 1;
    pub const SCALABLE: c_int = 2;
    pub const VIRT_ADDR: c_int = 16;
    pub const PROV_KEY: c_int = 64;
}

pub const FORMAT_STR: u32 = 9;
pub const EP_RDM: c_int = 3;
pub const THREAD_SAFE: c_int = 1;
pub const PROGRESS_AUTO: c_int = 1;
pub const PROGRESS_MANUAL: c_int = 2;
pub const RESOURCES_ENABLED: c_int = 2;
pub const WAIT_NONE: c_int = 0;
pub const WAIT_UNSPEC: c_int = 1;
pub const WAIT_FD: c_int = 3;
pub const WAIT_YIELD: c_int = 5;
pub const CONTROL_GETWAIT: c_int = 5;
pub const CONTROL_ENABLE: c_int = 6;
pub const LEVEL_ENDPOINT: c_int = 0;
pub const OPTION_MIN_MULTI_RECV: c_int = 0;

/// Classes of objects.
pub mod class {
    pub const FABRIC: usize = 1;
    pub const DOMAIN: usize = 2;
    pub const EP: usize = 3;
    pub const AV: usize = 11;
    pub const MR: usize = 12;
    pub const EQ: usize = 13;
    pub const CQ: usize = 14;
    pub const CNTR: usize = 15;
}

/// Errors, positive.
pub mod errno {
    use std::ffi::c_int;

    pub const EAGAIN: c_int = 11;
    pub const ENOMEM: c_int = 12;
    pub const EACCES: c_int = 13;
    pub const EFAULT: c_int = 14;
    pub const EBUSY: c_int = 16;
    pub const EINVAL: c_int = 22;
    pub const ENOSYS: c_int = 38;
    pub const ENOMSG: c_int = 42;
    pub const ENODATA: c_int = 61;
    pub const EMSGSIZE: c_int = 90;
    pub const ENOPROTOOPT: c_int = 92;
    pub const EOPNOTSUPP: c_int = 95;
    pub const ECONNRESET: c_int = 104;
    pub const ETIMEDOUT: c_int = 110;
    pub const ECANCELED: c_int = 125;
    pub const ENOKEY: c_int = 266;
    pub const ETOOSMALL: c_int = 257;
    pub const EAVAIL: c_int = 259;
    pub const EBADFLAGS: c_int = 260;
    pub const ENOCQ: c_int = 263;
    pub const ETRUNC: c_int = 265;
    pub const ENOAV: c_int = 267;
}

/// The head of each object.
#[repr(C)]
pub struct Fid {
    pub class: usize,
    pub context: usize,
    pub ops: *const c_void,
}

/// `fi_info`.
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
    pub domain: *mut c_void,
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
    pub fabric: *mut c_void,
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
    pub name: Text,
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

#[repr(C)]
pub struct CntrAttr {
    pub events: c_int,
    pub wait_obj: c_int,
    pub wait_set: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct MrAttr {
    pub iov: In<libc::iovec>,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: usize,
}

/// `fi_cq_err_entry` of version 1.17. What later versions have behind it is left alone.
#[repr(C)]
pub struct CqError {
    pub context: usize,
    pub flags: u64,
    pub length: usize,
    pub buffer: usize,
    pub data: u64,
    pub tag: u64,
    pub surplus: usize,
    pub error: c_int,
    pub provider_error: c_int,
    pub error_data: *mut c_void,
    pub error_data_size: usize,
}

#[repr(C)]
pub struct Msg {
    pub iov: In<libc::iovec>,
    pub desc: *mut c_void,
    pub iov_count: usize,
    pub address: u64,
    pub context: usize,
    pub data: u64,
}

#[repr(C)]
pub struct MsgTagged {
    pub iov: In<libc::iovec>,
    pub desc: *mut c_void,
    pub iov_count: usize,
    pub address: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: usize,
    pub data: u64,
}

/// `fi_rma_iov` and `fi_rma_ioc`: the length is in bytes or in words.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RmaIov {
    pub address: u64,
    pub length: usize,
    pub key: u64,
}

#[repr(C)]
pub struct MsgRma {
    pub iov: In<libc::iovec>,
    pub desc: *mut c_void,
    pub iov_count: usize,
    pub address: u64,
    pub rma_iov: In<RmaIov>,
    pub rma_iov_count: usize,
    pub context: usize,
    pub data: u64,
}

/// `fi_ioc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ioc {
    pub address: usize,
    pub count: usize,
}

#[repr(C)]
pub struct MsgAtomic {
    pub iov: In<Ioc>,
    pub desc: *mut c_void,
    pub iov_count: usize,
    pub address: u64,
    pub rma_iov: In<RmaIov>,
    pub rma_iov_count: usize,
    pub datatype: c_int,
    pub op: c_int,
    pub context: usize,
    pub data: u64,
}

#[repr(C)]
pub struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}

#[repr(C)]
pub struct Provider {
    pub version: u32,
    pub api_version: u32,
    pub context: [u64; 4],
    pub name: *const c_char,
    pub getinfo: *const (),
    pub fabric: *const (),
    pub cleanup: *const (),
}

// SAFETY: it is filled once, with addresses of functions and of a string that stay.
unsafe impl Sync for Provider {}

const _: () = {
    assert!(size_of::<Info>() == 120);
    assert!(size_of::<TxAttr>() == 80);
    assert!(size_of::<RxAttr>() == 64);
    assert!(size_of::<EpAttr>() == 96);
    assert!(size_of::<DomainAttr>() == 192);
    assert!(size_of::<FabricAttr>() == 32);
    assert!(size_of::<AvAttr>() == 48);
    assert!(size_of::<CqAttr>() == 40);
    assert!(size_of::<CntrAttr>() == 24);
    assert!(size_of::<EqAttr>() == 32);
    assert!(size_of::<CqError>() == 80);
    assert!(size_of::<Msg>() == 48);
    assert!(size_of::<MsgTagged>() == 64);
    assert!(size_of::<MsgRma>() == 64);
    assert!(size_of::<MsgAtomic>() == 72);
    assert!(size_of::<Provider>() == 72);
};
