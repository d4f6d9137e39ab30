//! Layer 1: messages of any length over any endpoint.
//!
//! A mailbox message of the fabric has up to 120 bytes. [`Messages`] sends more over any
//! [`weft_fabric::Endpoint`]. The crate may depend on `weft-fabric` alone, and stands in layer 1
//! beside it, so that services can import it. It uses no clock, thread, socket or file.
//!
//! Source: EXTOLL-THESIS#5.4.1 (eager and rendezvous); UCX's active messages for a head that the
//! receiver decides by.
//!
//! # How a message goes
//! | a message of | goes as | ends for the sender |
//! |---|---|---|
//! | up to 112 bytes | one mailbox message | when it was accepted |
//! | up to [`Options::eager_bytes_max`] | as many as it needs | when the last was accepted |
//! | more | an announcement, a get by the receiver, an answer | when the answer came |
//!
//! A message has a head and a body. The head, of up to [`HEAD_BYTES_MAX`] bytes, comes with the
//! announcement, so that a receiver can decide by it ([`Placement::Ask`]).
//!
//! # Promises
//! - *Order*: the messages from one peer are handed out in the order of sending, whatever their
//!   lengths. Between peers, and between the two directions, there is no order.
//! - *Credits*: a sender needs a credit of its receiver for each packet. A receiver holds no more
//!   for a peer than [`Options::window`] packets and, of announced messages, what
//!   [`Options::receive_bytes_max`] allows for all peers. A sender without credit is refused with
//!   [`SendError::WouldBlock`], and told by [`Event::Room`].
//! - *Ends*: a message that was [`Issued::Pending`](weft_fabric::Issued::Pending) ends by one
//!   [`Event::Completion`]. If the peer is down, that comes before the report of it.
//! - *Protection*: a peer that breaks the protocol is ended, [`Event::Misbehaved`] says how, and
//!   nothing else is disturbed. A peer can read the regions that ranges were sent to it from, and
//!   copies that were made for it alone.
//!
//! # Where things are
//! | module | what |
//! |---|---|
//! | `packet` | the format |
//! | `machine`, `sending`, `receiving` | the state machine, without I/O |
//! | `link`, `links` | the state of one peer, and the table of them |
//! | `share`, `pool` | memory to send from, memory to receive into |
//! | `driver` | [`Messages`]: the machine on an endpoint |
//! | `event`, `error`, `options` | what a program sees |
//! | `hostile` | a peer that sends anything, for tests and the fuzzer |
//!
//! # Example
//! ```
//! use weft_fabric::{Blocking, Endpoint, EndpointOptions, NodeId, PATIENCE, Region, Transport};
//! use weft_message::{Body, Event, Messages, Options};
//! use weft_transport_sim::{Settings, SimWorld};
//!
//! let world = SimWorld::new(Settings::seeded(7));
//! let open = |node| world.transport(NodeId(node), 1000).open(&EndpointOptions::default());
//! let mut alice = Messages::new(open(0)?, Options::default());
//! let mut bob = Messages::new(open(1)?, Options::default());
//!
//! let address = bob.endpoint().address();
//! let to_bob = alice.endpoint().connect_within(address, PATIENCE)?;
//! let letter = vec![7; 100_000];
//! alice.send(to_bob, b"a letter", &[&letter], 1)?;
//!
//! let (mut received, mut ended) = (Vec::new(), false);
//! while !ended {
//!     world.advance(1_000);
//!     bob.poll(16, |event| {
//!         if let Event::Message(message) = event {
//!             assert_eq!(message.head, b"a letter");
//!             if let Body::Range { region, offset, length, .. } = message.body {
//!                 received.resize(length as usize, 0);
//!                 region.read(offset, &mut received).expect("the range is inside");
//!             }
//!         }
//!     });
//!     alice.poll(16, |event| {
//!         if let Event::Completion { context: 1, result } = event {
//!             ended = result.is_ok();
//!         }
//!     });
//! }
//! assert_eq!(received, letter);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod driver;
mod error;
mod event;
pub mod hostile;
mod link;
mod links;
mod machine;
mod options;
mod packet;
mod pool;
mod receiving;
mod sending;
mod share;

pub use driver::{Messages, OWN_CONTEXTS};
pub use error::{MessageError, Offence, PlaceError, SendError, UnshareError};
pub use event::{Body, Event, Message, Ticket};
pub use machine::{Action, Census, Machine, Piece};
pub use options::{Options, Placement};
pub use packet::{HEAD_BYTES_MAX, Head, Packet};
pub use sending::Slip;
pub use share::{CopyRegion, Share};
