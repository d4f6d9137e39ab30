//! Which cases of `semantics`, `tools` and `redis` run with one side alone under weft.
//!
//! With `WEFT_E2E_THIRD` set to 0, 1 or 2, as `cargo verify` does by the commit, these are a third
//! of the cases; without it, all.

use crate::setting;

/// Whether the case `name` runs with one side alone under weft, too.
#[must_use]
pub fn is_one_sided(name: &str) -> bool {
    third().is_none_or(|third| third == number_of(name) % 3)
}

/// The third that runs; `None` means all.
fn third() -> Option<u64> {
    std::env::var_os("WEFT_E2E_THIRD").map(|_| setting("WEFT_E2E_THIRD", 0))
}

/// A number for a name, the same in all runs (FNV-1a).
fn number_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
