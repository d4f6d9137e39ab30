//! `fi_getinfo`: what this provider offers, and whether that is what a program wants.
//!
//! The only other answer is "no data": libfabric logs another one, and may stop the search. Other
//! types of endpoints are refused at once, since libfabric would else build its own providers of
//! reliable datagrams on top of this one.

mod fuzz;

use std::ffi::c_int;
use std::sync::OnceLock;

use weft_open::Opening;
use weft_rdm::Options;

use crate::memory::PIECES_MAX;
use crate::pointers::{In, Out, Text};
use crate::{host, name};
use weft_libfabric::abi::{
    self, DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr, errno, flag,
};

pub use fuzz::fuzz_hints;

/// The words of the protocol, `weft` in ASCII.
const PROTOCOL: u32 = 0x7765_6674;
const PROTOCOL_VERSION: u32 = 1;
/// The longest message.
const MESSAGE_BYTES_MAX: usize = 1 << 46;
/// Operations that an endpoint says it has room for. More are refused by EAGAIN, receives never.
const QUEUE: usize = 4096;
/// The tag format that allows all bits.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

const SEND_CAPS: u64 =
    flag::MSG | flag::TAGGED | flag::RMA | flag::ATOMIC | flag::SEND | flag::READ | flag::WRITE;
const RECEIVE_CAPS: u64 = flag::MSG
    | flag::TAGGED
    | flag::RMA
    | flag::ATOMIC
    | flag::RECV
    | flag::REMOTE_READ
    | flag::REMOTE_WRITE
    | flag::MULTI_RECV
    | flag::RMA_EVENT
    | flag::SOURCE
    | flag::DIRECTED_RECV;
const DOMAIN_CAPS: u64 = flag::LOCAL_COMM | flag::REMOTE_COMM;
const CAPS: u64 = SEND_CAPS | RECEIVE_CAPS | DOMAIN_CAPS;
/// Those that nobody pays for who does not use them. A program gets them unasked.
const DEFAULT_CAPS: u64 = CAPS & !flag::DIRECTED_RECV;

/// RAR, RAW, RAS, WAR, WAW, WAS, SAR, SAW, SAS, and those of writes and of atomics apart.
const ORDER: u64 = 0x1ff | 0xf << 32 | 0xf << 36;
const OP_FLAGS: u64 = flag::COMPLETION
    | flag::INJECT
    | flag::INJECT_COMPLETE
    | flag::TRANSMIT_COMPLETE
    | flag::DELIVERY_COMPLETE
    | flag::MATCH_COMPLETE
    | flag::MULTI_RECV;

/// The limits and thresholds, with those that the options of weft say.
pub fn options() -> &'static Options {
    static READ: OnceLock<Options> = OnceLock::new();
    READ.get_or_init(|| {
        // Wrong options are told when an endpoint is opened.
        let Ok(opening) = Opening::named("fi") else { return Options::default() };
        let set = opening.options();
        Options {
            inline_bytes_max: set.mpi_inline_bytes(),
            chunk_bytes_max: set.mpi_eager_bytes(),
            ends_receives: set.mpi_ends_receives(),
            ..Options::default()
        }
    })
}

/// Bytes that an operation can have that is injected, or that is to be in order.
pub fn inline_bytes_max() -> usize {
    options().inline_bytes_max
}

/// The request of a program.
struct Wish<'a> {
    hints: Option<&'a Info>,
    tx: Option<&'a TxAttr>,
    rx: Option<&'a RxAttr>,
    ep: Option<&'a EpAttr>,
    domain: Option<&'a DomainAttr>,
    fabric: Option<&'a FabricAttr>,
}

/// A structure that hints point to.
fn part<'a, T>(pointer: *mut T) -> Option<&'a T> {
    // SAFETY: hints of a program point to structures, or to nothing.
    unsafe { pointer.as_ref() }
}

fn is_named(text: *mut std::ffi::c_char) -> bool {
    // SAFETY: a name that a program gives ends with a zero.
    text.is_null() || unsafe { std::ffi::CStr::from_ptr(text) } == c"weft"
}

impl<'a> Wish<'a> {
    fn new(hints: Option<&'a Info>) -> Self {
        Self {
            hints,
            tx: hints.and_then(|it| part(it.tx)),
            rx: hints.and_then(|it| part(it.rx)),
            ep: hints.and_then(|it| part(it.ep)),
            domain: hints.and_then(|it| part(it.domain)),
            fabric: hints.and_then(|it| part(it.fabric)),
        }
    }

    fn caps(&self) -> u64 {
        self.hints.map_or(0, |hints| hints.caps)
    }

    fn names_this_provider(&self) -> bool {
        self.fabric.is_some_and(|it| !it.provider.is_null() && is_named(it.provider))
    }

    /// True if this provider has all that is wanted.
    fn is_served(&self) -> bool {
        let caps = self.caps();
        let hints = self.hints.is_none_or(|it| {
            let format = it.address_format;
            caps & !CAPS == 0 && (format == 0 || format == abi::FORMAT_STR)
        });
        hints && self.is_ep_served() && self.are_queues_served() && self.is_domain_served()
    }

    fn is_ep_served(&self) -> bool {
        self.ep.is_none_or(|it| {
            (it.kind == 0 || it.kind == abi::EP_RDM)
                && (it.protocol == 0 || it.protocol == PROTOCOL)
                && it.protocol_version <= PROTOCOL_VERSION
                && it.max_msg_size <= MESSAGE_BYTES_MAX
                && it.max_order_raw_size <= inline_bytes_max()
                && it.max_order_war_size <= inline_bytes_max()
                && it.max_order_waw_size <= inline_bytes_max()
                && it.tx_ctx_cnt <= 1
                && it.rx_ctx_cnt <= 1
                && it.auth_key_size == 0
        })
    }

    fn are_queues_served(&self) -> bool {
        let tx = self.tx.is_none_or(|it| {
            it.caps & !(SEND_CAPS | DOMAIN_CAPS) == 0
                && it.op_flags & !OP_FLAGS == 0
                && it.msg_order & !ORDER == 0
                && it.comp_order == 0
                && it.inject_size <= inline_bytes_max()
                && it.size <= QUEUE
                && it.iov_limit <= PIECES_MAX
                && it.rma_iov_limit <= 1
        });
        let rx = self.rx.is_none_or(|it| {
            it.caps & !(RECEIVE_CAPS | DOMAIN_CAPS) == 0
                && it.op_flags & !OP_FLAGS == 0
                && it.msg_order & !ORDER == 0
                && it.comp_order == 0
                && it.iov_limit <= PIECES_MAX
        });
        tx && rx
    }

    fn is_domain_served(&self) -> bool {
        let fabric = self.fabric.is_none_or(|it| is_named(it.name));
        let domain = self.domain.is_none_or(|it| {
            is_named(it.name)
                && (0..=5).contains(&it.threading)
                && it.data_progress != abi::PROGRESS_AUTO
                && it.cq_data_size <= 8
                && it.max_ep_stx_ctx == 0
                && it.max_ep_srx_ctx == 0
                && it.mr_iov_limit <= PIECES_MAX
                && it.caps & !DOMAIN_CAPS == 0
                && it.auth_key_size == 0
        });
        fabric && domain
    }

    /// The capabilities of the answer: with the kinds of operations that a program names it gets
    /// their directions, unless it names some.
    fn granted(&self) -> u64 {
        let wanted = self.caps();
        if wanted == 0 {
            return DEFAULT_CAPS;
        }
        let mut caps = wanted | DOMAIN_CAPS;
        let messages = flag::SEND | flag::RECV;
        if wanted & (flag::MSG | flag::TAGGED) != 0 && wanted & messages == 0 {
            caps |= messages;
        }
        let memory = flag::READ | flag::WRITE | flag::REMOTE_READ | flag::REMOTE_WRITE;
        if wanted & (flag::RMA | flag::ATOMIC) != 0 && wanted & memory == 0 {
            caps |= memory;
        }
        caps
    }
}

/// `getinfo` of the provider.
pub extern "C" fn getinfo(
    version: u32,
    node: Text,
    _service: Text,
    flags: u64,
    hints: In<Info>,
    found: Out<*mut Info>,
) -> c_int {
    let wish = Wish::new(hints.get());
    let is_own = flags & flag::SOURCE_NODE != 0;
    let peer = node.get().map(|node| name::parse(node.to_bytes_with_nul()));
    // A name of another kind is that of a host, which other providers reach. A program that wants
    // this provider alone uses it for something else, such as to exchange addresses.
    let is_foreign = peer == Some(None) && !is_own && !wish.names_this_provider();
    if is_foreign || !wish.is_served() {
        return -errno::ENODATA;
    }
    let Some(info) = host::empty_info() else { return -errno::ENODATA };
    let Some(filled) = Out::from(info).get() else { return -errno::ENOMEM };
    fill(filled, &wish, version);
    put_names(filled);
    if let Some(Some((address, birth))) = peer
        && !is_own
    {
        filled.destination = host::text(&name::of(address, birth)).cast();
        filled.destination_length = name::BYTES;
    } else if let Some(hints) = wish.hints
        && !hints.destination.is_null()
        && hints.destination_length >= name::BYTES
    {
        let given = In::<u8>::from(hints.destination.cast_const().cast());
        let Some((address, birth)) = name::parse(given.array(name::BYTES)) else {
            // It is freed with the list that the host would have got.
            found.set(std::ptr::null_mut());
            return -errno::ENODATA;
        };
        filled.destination = host::text(&name::of(address, birth)).cast();
        filled.destination_length = name::BYTES;
    }
    found.set(info);
    0
}

/// The texts, which the host frees. An endpoint gets its address when it is opened, whatever
/// service was named.
fn put_names(info: &mut Info) {
    info.source = host::text(&name::to_be_opened()).cast();
    info.source_length = name::BYTES;
    if let Some(domain) = Out::from(info.domain).get() {
        domain.name = host::text(c"weft");
    }
    if let Some(fabric) = Out::from(info.fabric).get() {
        fabric.name = host::text(c"weft");
    }
}

fn fill(info: &mut Info, wish: &Wish<'_>, version: u32) {
    let caps = wish.granted();
    info.caps = caps;
    info.mode = 0;
    info.address_format = abi::FORMAT_STR;
    if let Some(tx) = Out::from(info.tx).get() {
        tx.caps = caps & SEND_CAPS;
        tx.op_flags = wish.tx.map_or(0, |it| it.op_flags);
        tx.msg_order = ORDER;
        tx.inject_size = inline_bytes_max();
        tx.size = QUEUE;
        tx.iov_limit = PIECES_MAX;
        tx.rma_iov_limit = 1;
    }
    if let Some(rx) = Out::from(info.rx).get() {
        rx.caps = caps & RECEIVE_CAPS;
        rx.op_flags = wish.rx.map_or(0, |it| it.op_flags);
        rx.msg_order = ORDER;
        rx.size = QUEUE;
        rx.iov_limit = PIECES_MAX;
    }
    if let Some(ep) = Out::from(info.ep).get() {
        ep.kind = abi::EP_RDM;
        ep.protocol = PROTOCOL;
        ep.protocol_version = PROTOCOL_VERSION;
        ep.max_msg_size = MESSAGE_BYTES_MAX;
        ep.max_order_raw_size = inline_bytes_max();
        ep.max_order_war_size = inline_bytes_max();
        ep.max_order_waw_size = inline_bytes_max();
        let format = wish.ep.map_or(0, |it| it.mem_tag_format);
        ep.mem_tag_format = if format == 0 { TAG_FORMAT } else { format };
        ep.tx_ctx_cnt = 1;
        ep.rx_ctx_cnt = 1;
    }
    if let Some(domain) = Out::from(info.domain).get() {
        fill_domain(domain, wish, version);
    }
    if let Some(fabric) = Out::from(info.fabric).get() {
        fabric.provider_version = crate::PROVIDER_VERSION;
        fabric.api_version = version;
    }
}

fn fill_domain(domain: &mut DomainAttr, wish: &Wish<'_>, version: u32) {
    let asked = |value: fn(&DomainAttr) -> c_int| wish.domain.map_or(0, value);
    let threading = asked(|it| it.threading);
    domain.threading = if threading == 0 { abi::THREAD_SAFE } else { threading };
    domain.control_progress = abi::PROGRESS_MANUAL;
    domain.data_progress = abi::PROGRESS_MANUAL;
    if asked(|it| it.control_progress) == abi::PROGRESS_AUTO {
        // Vectors and registrations change within their calls.
        domain.control_progress = abi::PROGRESS_AUTO;
    }
    domain.resource_mgmt = abi::RESOURCES_ENABLED;
    domain.av_type = asked(|it| it.av_type);
    // Nothing has to be registered, and keys and offsets are the program's. Two modes of old
    // programs say so in whole values.
    domain.mr_mode = match asked(|it| it.mr_mode) {
        abi::mr_mode::BASIC => abi::mr_mode::BASIC,
        abi::mr_mode::SCALABLE => abi::mr_mode::SCALABLE,
        0 if version < (1 << 16 | 5) => abi::mr_mode::SCALABLE,
        _ => 0,
    };
    domain.mr_key_size = 8;
    domain.cq_data_size = 8;
    (domain.cq_cnt, domain.ep_cnt, domain.cntr_cnt) = (1 << 16, 256, 1 << 16);
    (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (256, 256);
    (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
    domain.mr_iov_limit = PIECES_MAX;
    domain.caps = DOMAIN_CAPS;
    domain.mr_cnt = 1 << 20;
}
