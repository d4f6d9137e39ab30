//! Transfers over the fabric: a session for each, and blocks in a pool that the writing end grants.
//!
//! The pool is one region of the writing end with one key, for as long as the session. On one host
//! the reading end has it as a window, and the kernel reads files straight into it. Between hosts
//! it reads them into a region of its own, from which libfabric puts them. Files are written
//! straight from the region at the other end. Messages are the bodies of requests; an answer says
//! that there is room for more. Behind the bytes of a block comes its frame.
//!
//! | module | what |
//! |---|---|
//! | `hub` | the thread that drives the sessions of one endpoint |
//! | `talk` | one session of it |
//! | `lease` | blocks, and the memory that they lie in |
//! | `wire` | a session as the two ends of a transfer see it |
//! | `meeting` | how the two ends find each other |

mod hub;
mod lease;
mod meeting;
mod talk;
mod wire;

pub(crate) use lease::{Idle, Lease};
pub(crate) use meeting::{Offer, find, find_server, server_name};
pub(crate) use wire::Wire;

use weft_transfer::{BLOCK_FRAME_BYTES_MAX, Terms};

use crate::assembly::Settings;

/// The protocol of the sessions.
const PROTOCOL: &str = "weft-transfer";
/// Its version: that of the messages, which a hello checks again.
const VERSION: u16 = weft_transfer::VERSION;
/// Bytes of the head of a block that is passed: the length of its frame.
const HEAD_BYTES: usize = 4;
/// Blocks begin at such a boundary, as `O_DIRECT` wants it.
const ALIGNMENT: usize = 4_096;

/// The blocks of a transfer: bytes from one to the next, and how many there are.
fn shape(terms: &Terms, settings: &Settings) -> (u32, u32) {
    let payload = usize::try_from(terms.block_bytes).expect("a block fits memory");
    let stride = (payload + BLOCK_FRAME_BYTES_MAX).next_multiple_of(ALIGNMENT);
    let count = crate::assembly::block_count(settings, stride);
    let fits = |number| u32::try_from(number).expect("blocks are bounded");
    (fits(stride), fits(count))
}
