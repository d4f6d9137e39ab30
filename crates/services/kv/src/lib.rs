//! The replicated key-value store that ships its index (000 section 2.1, Tebis).
//!
//! Layer 3. [`store`] is what a front end (the Redis protocol, the native protocol) sees of it.

#![forbid(unsafe_code)]

pub mod store;
