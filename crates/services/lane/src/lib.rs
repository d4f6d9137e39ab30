//! Layer 3: lanes over any endpoint.
//!
//! A [`Carrier`] owns an endpoint and carries many lanes over it, to any number of peers. Each end
//! of a lane is an [`EndpointLane`], which has both halves of [`weft_fabric::Lane`]. The crate may
//! depend on `weft-fabric` only. It reads no clock and starts no thread.
//!
//! Source: EXTOLL-THESIS#5.5 (EXT-DS, Table 5.3), over the operations of EXTOLL-THESIS#3.2.
//!
//! # How a lane is carried
//! Each end has memory that its peer alone may write, and no message of a lane goes through a
//! mailbox:
//!
//! | what | goes as | rings the peer |
//! |---|---|---|
//! | a message | a put with a signal: the payload, then the slot's status word | for data |
//! | bytes of the sink | puts; the message that announces them is an ordered operation | |
//! | a control word | an ordered immediate put | for data and for room |
//! | counts of what was taken | ordered immediate puts, some of them quiet | for room |
//!
//! So all that was accepted reaches the peer's memory without a thread of the peer. It stays
//! readable there after this end has died, and a peer that does not look holds up nobody until its
//! memory is full. In a mailbox, one peer that does not look would hold up all lanes to it, and
//! what waits for room there would die with the sender.
//!
//! The completer notification of a put rings the armed word at the receiver's side. A message whose
//! notification finds no room is refused and sent later: none arrives without its ring.
//!
//! The sender keeps a copy of each message and byte until the peer has taken it. It looks back
//! there without a question.
//!
//! # Invariants
//! - Numbers of the peer are checked where they are read: counts against what was sent, lengths
//!   against the slot, lane numbers against the peer that they belong to.
//! - A message that breaks the protocol ends the connection to its peer, with all lanes to it.
//! - Memory is bounded: by [`Settings::lanes_max`] lanes of [`Settings::layout`]. A peer that wants
//!   a larger layout is refused.
//! - Words that an endpoint refuses for lack of room are kept: at most [`POSTS_MAX`] control words
//!   of a lane, which refuses messages until they are out. More of them end the lane.
//!
//! # Progress
//! A call on a lane makes progress for all lanes of its carrier. While something is kept
//! ([`Carrier::has_backlog`]), and while threads sleep, somebody must poll: the thread that sleeps
//! on the endpoint, or one for all. Where one thread drives for others, [`Carrier::set_alarm`] has
//! it miss nothing that their calls found, and they say when they sleep
//! ([`Carrier::falls_asleep`]).
#![forbid(unsafe_code)]

mod attention;
mod carrier;
mod cells;
mod end;
mod hand;
mod hub;
mod layout;
mod message;
mod outgoing;
mod table;
mod watch;

pub use carrier::{Carrier, Falling, Settings, Told};
pub use end::EndpointLane;
pub use layout::Layout;
pub use message::Refusal;
pub use outgoing::POSTS_MAX;
pub use table::{Exhausted, LaneNumber, Offer};
pub use watch::{Alarm, Sleep};

/// Entry functions for fuzzing.
pub mod fuzz {
    pub use crate::message::fuzz_message;
    pub use crate::table::fuzz_table;
}
