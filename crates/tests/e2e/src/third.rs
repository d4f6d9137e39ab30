//! The ways in which a case of `semantics`, `tools` and `redis` runs under weft.
//!
//! With `WEFT_E2E_THIRD` set to 0, 1 or 2, as `cargo verify` does by the commit, a third of the
//! cases runs with one side alone under weft, and each case of `semantics` in a third of the other
//! ways; three values run all. Without it, all cases run in all ways. A few of the dearest cases of
//! other programs run for one of the three values alone ([`crate::Case::in_turn`]).

use crate::setting;

/// The ways of a case besides those in which it always runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// All of them.
    All,
    /// With one side alone under weft.
    OneSided,
    /// Under weft as users have it.
    Usual,
    /// Asking for the fabric from the first byte on.
    Cold,
}

/// The ways in which the case `name` runs.
#[must_use]
pub fn share_of(name: &str) -> Share {
    match third().map(|third| (number_of(name) % 3 + 3 - third % 3) % 3) {
        None => Share::All,
        Some(0) => Share::OneSided,
        Some(1) => Share::Usual,
        Some(_) => Share::Cold,
    }
}

/// Whether the case `name` runs with one side alone under weft, too.
#[must_use]
pub fn is_one_sided(name: &str) -> bool {
    matches!(share_of(name), Share::All | Share::OneSided)
}

/// The third that runs; `None` means all.
pub(crate) fn third() -> Option<u64> {
    std::env::var_os("WEFT_E2E_THIRD").map(|_| setting("WEFT_E2E_THIRD", 0))
}

/// A number for a name, the same in all runs (FNV-1a).
fn number_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
