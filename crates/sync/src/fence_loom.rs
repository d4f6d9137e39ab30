//! The asymmetric fence as the model checker sees it: a full fence on both sides.

/// Stands for registering the process: always succeeds.
pub fn register() -> bool {
    true
}

/// The sleeper's half.
pub fn heavy() -> bool {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    true
}

/// The half of those who are awake.
pub fn light(_full: bool) {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}
