//! Layer 4: the fabric as a library for C programs, `libweft.so` with `weft.h`.
//!
//! The header is written by cbindgen from the functions and types here, and so is its
//! documentation: `include/weft.h`. It may depend on `weft-open`, `weft-message`, the fabric, its
//! memory and the operating system.
//!
//! | module | what |
//! |---|---|
//! | `types` | the structures and numbers of the header |
//! | `status` | the errors of the fabric as numbers and texts |
//! | `call` | the frame of every call: panics, the last error |
//! | `pointers` | all that is believed of what a program passes |
//! | `table`, `objects` | handles, and the objects that they name |
//! | `events` | events of the fabric as the program reads them |
//! | `key` | keys as bytes that a program sends to peers |
//! | `exports` | the functions |
//!
//! # Invariants
//! - A handle is a number, not an address: one that is wrong, closed or of another kind is an
//!   error, and no memory is read by it.
//! - Nothing unwinds into C.
//! - Structures grow at their end alone, and a program says the size that it knows.
//!
//! Source: `docs/design/022-c-interface.md`; for the form of errors, sizes and handles the public
//! headers of libfabric, UCX and rustls-ffi.
#![allow(clippy::disallowed_methods, reason = "layer 4 owns clocks and threads")]

mod call;
mod events;
mod exports;
mod key;
mod objects;
mod pointers;
mod status;
mod table;
mod types;
