//! Numbers: capabilities, flags, modes, orders, classes and errors.

use std::ffi::c_int;

/// The version of the interface that these layouts describe, which weft asks for.
pub const VERSION: u32 = 1 << 16 | 17;
/// The newest version that weft's provider claims: what came since are fields at the ends.
pub const VERSION_NEWEST: u32 = 2 << 16 | 7;

/// The address of a peer in an address vector (`fi_addr_t`).
pub type Address = u64;
/// The address of no peer, or of any (`FI_ADDR_UNSPEC`, `FI_ADDR_NOTAVAIL`).
pub const ADDRESS_UNSPECIFIED: Address = u64::MAX;

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

/// Modes: duties of the caller.
pub mod mode {
    pub const CONTEXT: u64 = 1 << 59;
    pub const CONTEXT2: u64 = 1 << 52;
}

/// Modes of memory registration.
pub mod mr_mode {
    use std::ffi::c_int;

    pub const BASIC: c_int = 1;
    pub const SCALABLE: c_int = 2;
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
pub const THREAD_SAFE: c_int = 1;
pub const THREAD_DOMAIN: c_int = 3;
pub const PROGRESS_AUTO: c_int = 1;
pub const PROGRESS_MANUAL: c_int = 2;
pub const RESOURCES_ENABLED: c_int = 2;
pub const CQ_FORMAT_DATA: c_int = 3;
pub const WAIT_NONE: c_int = 0;
pub const WAIT_UNSPEC: c_int = 1;
pub const WAIT_FD: c_int = 3;
pub const WAIT_YIELD: c_int = 5;
pub const WAIT_POLLFD: c_int = 6;
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
    pub const MEM_MONITOR: usize = 23;
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

/// Errors as transfers return them.
pub mod refusal {
    use super::errno;

    pub const EAGAIN: isize = -(errno::EAGAIN as isize);
    pub const ENOMEM: isize = -(errno::ENOMEM as isize);
    pub const EAVAIL: isize = -(errno::EAVAIL as isize);
}
