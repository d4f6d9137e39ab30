//! Through which context an operation goes: it says which PE a number names.

use std::ffi::c_int;

use crate::space;

/// A context of operations.
pub trait Via: Copy {
    /// The PE of the world with a number of the context's team.
    fn pe(self, call: &str, pe: c_int) -> usize;
}

/// The default context.
#[derive(Clone, Copy, Debug)]
pub struct World;

impl Via for World {
    #[inline(always)]
    fn pe(self, call: &str, pe: c_int) -> usize {
        space::checked_pe(call, pe)
    }
}
