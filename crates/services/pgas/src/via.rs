//! Through which context an operation goes: it says which PE a number names.

use std::ffi::c_int;

use crate::space::{self, Reach};

/// A context of operations.
pub trait Via: Copy {
    /// The PE with a number of the context's team, in a job on one host. Nothing for a wrong
    /// number, and in a job across hosts: [`Via::reach`] tells then.
    fn near(self, call: &str, pe: c_int) -> Option<usize>;

    /// How the PE with a number of the context's team is reached.
    fn reach(self, call: &str, pe: c_int) -> Reach;
}

/// The default context.
#[derive(Clone, Copy, Debug)]
pub struct World;

impl Via for World {
    #[inline(always)]
    fn near(self, _call: &str, pe: c_int) -> Option<usize> {
        space::near(pe)
    }

    fn reach(self, call: &str, pe: c_int) -> Reach {
        space::reach(call, pe)
    }
}
