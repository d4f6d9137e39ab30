//! The replicated key-value store that ships its index (000 section 2.1, Tebis).
//!
//! Layer 3. [`store`] is what a front end (the Redis protocol, the native protocol) sees of a store;
//! [`node`] what it sees of the node and its cluster.

#![forbid(unsafe_code)]

pub mod node;
pub mod store;
