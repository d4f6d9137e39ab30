//! Transfers over the fabric: a session or several for each, and blocks in pools that the writing
//! end grants.
//!
//! A pool is one region of the writing end with one key, for as long as the session. On one host
//! the reading end has it as a window, and the kernel reads files straight into it. Between hosts
//! it reads them into a region of its own, from which libfabric puts them. Files are written
//! straight from the region at the other end. Messages are the bodies of requests of the first
//! session; an answer says that there is room for more. Blocks take whatever session has the most
//! free ones. The frame of a block is its head; one that is longer than a head may be lies behind
//! the bytes, and the head is its length.
//!
//! | module | what |
//! |---|---|
//! | `hub` | the thread that drives the sessions of one endpoint |
//! | `talk` | one session of it |
//! | `lease` | blocks, and the memory that they lie in |
//! | `wire` | the sessions of a transfer as its two ends see them |
//! | `meeting` | how the two ends find each other |

mod hub;
mod lease;
mod meeting;
mod talk;
mod wire;

pub(crate) use lease::{Idle, Lease};
pub(crate) use meeting::{Offer, find, find_server, server_name};
pub(crate) use talk::Early;
pub(crate) use wire::{Mouth, Wire, read, write};

use weft_transfer::{BLOCK_FRAME_BYTES_MAX, Terms};

use crate::assembly::Settings;

/// The protocol of the sessions.
const PROTOCOL: &str = "weft-transfer";
/// Its version: that of the messages, which a hello checks again.
const VERSION: u16 = weft_transfer::VERSION;
/// Bytes of the head of a block whose frame lies behind its bytes: the length of that.
const LENGTH_BYTES: usize = 4;
/// Blocks begin at such a boundary, as `O_DIRECT` wants it.
const ALIGNMENT: usize = 4_096;

/// The blocks of each of so many sessions of a transfer: bytes from one to the next, and how many
/// there are.
fn shape(terms: &Terms, settings: &Settings, sessions: usize) -> (u32, u32) {
    let payload = usize::try_from(terms.block_bytes).expect("a block fits memory");
    let stride = (payload + BLOCK_FRAME_BYTES_MAX).next_multiple_of(ALIGNMENT);
    let count = crate::assembly::block_count(settings, stride).div_ceil(sessions);
    let fits = |number| u32::try_from(number).expect("blocks are bounded");
    (fits(stride), fits(count))
}
