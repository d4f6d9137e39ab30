//! The engine against a model: what each batch left, on a disk that forgets, tears and fails.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]
#![allow(clippy::disallowed_methods, reason = "a test has threads")]

mod damage;
mod kill;
mod model;
mod power;
mod threads;
