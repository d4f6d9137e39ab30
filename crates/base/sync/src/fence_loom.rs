//! The asymmetric fence in the model checker: a full fence on both sides.

/// Stands for the registration of the process, which always succeeds.
pub fn register() -> bool {
    true
}

/// The sleeper's half.
pub fn heavy() -> bool {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    true
}

/// The sender's half.
pub fn light(_full: bool) {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}
