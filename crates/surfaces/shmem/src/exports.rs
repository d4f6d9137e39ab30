//! The C functions and objects. The functions come from the table, by the build script.

use std::ffi::{c_char, c_int, c_long, c_void};

use weft_pgas::context::{ContextHandle, SessionConfig};
use weft_pgas::number::{And, Complex, LongDouble, Max, Min, Or, Product, Sum, Xor};
use weft_pgas::team::{SHARED, TeamConfig, TeamHandle, WORLD};
use weft_pgas::via::World;
use weft_pgas::{active_set, amo, collective, context, lock, memory, order, rma, team, wait};

use crate::setup;

/// The default context.
#[unsafe(no_mangle)]
pub static SHMEM_CTX_DEFAULT: ContextHandle = ContextHandle::DEFAULT;
/// All PEs.
#[unsafe(no_mangle)]
pub static SHMEM_TEAM_WORLD: TeamHandle = TeamHandle::of(WORLD);
/// The PEs that share memory with this one.
#[unsafe(no_mangle)]
pub static SHMEM_TEAM_SHARED: TeamHandle = TeamHandle::of(SHARED);

#[allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    clippy::too_many_arguments,
    reason = "the specification is the contract of these functions, and each passes it on"
)]
mod functions {
    use super::*;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}
