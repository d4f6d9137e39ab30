//! Layer 0: atomics, asymmetric fences, adaptive waiting, cross-process locks, threads without
//! signals.
//!
//! All code that orders memory between threads or processes uses this crate, so that the model
//! checker can replace the machine (`--cfg loom`). May depend on the operating system's fence and
//! futex calls, and on nothing of weft's.

mod adaptive_wait;
pub mod atomic;
pub mod contention;
#[cfg(not(loom))]
pub mod fence;
#[cfg(loom)]
#[path = "fence_loom.rs"]
pub mod fence;
#[cfg(not(loom))]
pub mod futex;
#[cfg(not(loom))]
pub mod lock;
mod naps;
mod own_time;
#[cfg(target_os = "linux")]
pub mod signals;
mod sys;

pub use adaptive_wait::{AdaptiveWait, Learned, Step};
pub use naps::Naps;
pub use own_time::OwnTime;
