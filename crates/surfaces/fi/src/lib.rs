//! Layer 4: a provider of libfabric over weft.
//!
//! libfabric loads it from the directory that `FI_PROVIDER_PATH` names, and MPI libraries and all
//! else that speaks libfabric run over weft. Endpoints are reliable datagrams (FI_EP_RDM);
//! the protocol is `weft-rdm`, the way to peers `weft-open`. It may depend on both, on the fabric,
//! `weft-libfabric`, `weft-sync` and the operating system.
//!
//! Source: the manual pages fi_provider(7), fi_getinfo(3), fi_endpoint(3), fi_domain(3), fi_av(3),
//! fi_cq(3), fi_cntr(3), fi_eq(3), fi_mr(3), fi_msg(3), fi_tagged(3), fi_rma(3) and fi_atomic(3);
//! `docs/design/019-ofi-provider.md`.
//!
//! | module | what |
//! |---|---|
//! | `pointers` | all that is believed of what a program passes |
//! | `host` | the libfabric that loaded this provider |
//! | `info`, `name` | what is offered; names of endpoints |
//! | `fabric`, `domain`, `av`, `eq`, `cq`, `cntr`, `ep` | objects |
//! | `message`, `rma`, `atomic` | operations |
//! | `state` | what the lock of a domain guards |
//! | `rest` | waiting without keeping the processor from others |
//! | `memory` | memory of the program, copies by the kernel |
//!
//! # Invariants
//! - Nothing unwinds into C: a panic ends the process, as those of all functions of C do.
//! - Each entry of each table is a function.
//! - An object that others hold is not closed (EBUSY).

mod atomic;
mod av;
mod cntr;
mod cq;
mod domain;
mod ep;
mod eq;
mod fabric;
mod host;
mod info;
mod memory;
mod message;
mod name;
mod pointers;
mod rest;
mod rma;
mod state;

use std::ffi::c_int;

pub use info::fuzz_hints;
use weft_libfabric::abi::{Provider, VERSION_NEWEST, errno};

/// The version of this provider: of two with one name the higher one is used.
const PROVIDER_VERSION: u32 = 1 << 16;

static PROVIDER: Provider = Provider {
    version: PROVIDER_VERSION,
    api_version: VERSION_NEWEST,
    context: [0; 4],
    name: c"weft".as_ptr(),
    getinfo: info::getinfo as *const (),
    fabric: fabric::open as *const (),
    cleanup: cleanup as *const (),
};

/// The provider, for libfabric, which writes to its context.
// SAFETY: no other function of this library has this name.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut Provider {
    // libfabric keeps it as long as the process lives, and writes to the context alone.
    let provider = Box::into_raw(Box::new(Provider { ..PROVIDER }));
    host::note(provider);
    weft_libfabric::keep_apart();
    provider
}

extern "C" fn cleanup() {}

/// The entry of a table for what this provider does not have.
pub(crate) extern "C" fn unsupported() -> c_int {
    -errno::ENOSYS
}
