//! Structures that calls take and return.

use std::ffi::{c_char, c_int, c_void};

use super::numbers::Address;
use super::tables::{Domain, Fabric, Fid};

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
    pub iov: *const libc::iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
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

/// `fi_cq_err_entry` of version 1.17.
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
}

/// `fi_msg`.
#[repr(C)]
pub struct Msg {
    pub iov: *const libc::iovec,
    pub descriptors: *mut *mut c_void,
    pub iov_count: usize,
    pub address: Address,
    pub context: *mut c_void,
    pub data: u64,
}

/// `fi_msg_tagged`.
#[repr(C)]
pub struct MsgTagged {
    pub iov: *const libc::iovec,
    pub descriptors: *mut *mut c_void,
    pub iov_count: usize,
    pub address: Address,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
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

/// `fi_ioc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ioc {
    pub address: usize,
    pub count: usize,
}

/// `fi_msg_atomic`.
#[repr(C)]
pub struct MsgAtomic {
    pub iov: *const Ioc,
    pub descriptors: *mut *mut c_void,
    pub iov_count: usize,
    pub address: Address,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub datatype: c_int,
    pub op: c_int,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}

/// `fi_provider`.
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

macro_rules! of_zeros {
    ($($name:ident)*) => {$(
        impl Default for $name {
            /// All zero, as hints begin.
            fn default() -> Self {
                // SAFETY: numbers and pointers, of which zero is one.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}
of_zeros!(Info TxAttr RxAttr EpAttr DomainAttr FabricAttr);

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
    assert!(size_of::<CntrAttr>() == 24);
    assert!(size_of::<EqAttr>() == 32);
    assert!(size_of::<WaitPollFd>() == 24);
    assert!(size_of::<CqEntry>() == 40);
    assert!(size_of::<CqError>() == 80);
    assert!(size_of::<Msg>() == 48);
    assert!(size_of::<MsgTagged>() == 64);
    assert!(size_of::<MsgRma>() == 64);
    assert!(size_of::<MsgAtomic>() == 72);
    assert!(size_of::<Provider>() == 72);
};
