//! Layer 1: sessions between a client and a service, over any endpoint.
//!
//! Services that have clients need the same things: a hello with versions, requests and answers,
//! memory that is granted once and moved in blocks, an end that both sides see. [`Sessions`] has
//! them for any [`weft_fabric::Endpoint`], so the two may be on one host or on two, and of two
//! users, if the endpoints are in one partition ([`weft_fabric::Partition::Service`]). The crate
//! may depend on `weft-fabric` and `weft-message`. It uses no clock, thread, socket or file.
//!
//! Sources: NUMA-RDMA#rftp (blocks that the receiver grants, credits that come back); RFC 7143
//! section 4 for what a session of storage needs; `docs/design/013-sessions.md`.
//!
//! # Terms
//! | | |
//! |---|---|
//! | *session* | one peer, one protocol, one version; either end may ask once it is open |
//! | *request*, *answer* | a head of up to [`HEAD_BYTES_MAX`] bytes, a body; one answer each |
//! | *pool*, *block* | own memory, granted to the peer once; each block is at one end at a time |
//!
//! # Promises
//! - *Ends*: a request has one [`Event::Answer`], with the answer or the reason why there is none.
//!   A session has one [`Event::Ended`], the last of its events, when the peer cannot reach the
//!   memory of its pools any more.
//! - *Credits*: each end says how many requests may be open, and a pool has its number of blocks.
//!   A caller without one is refused, and told by [`Event::Room`]. All tables are bounded by
//!   [`Options`].
//! - *Order*: requests, answers and blocks of one end arrive in the order in which they were sent.
//!   A block arrives when its put has ended.
//! - *Protection*: a peer that breaks the protocol is ended with all its sessions, and nothing
//!   else is disturbed. It reaches the blocks that it was lent, and nothing else.
//!
//! # Where things are
//! | module | what |
//! |---|---|
//! | `frame` | the format |
//! | `machine`, `calls`, `incoming` | the state machine, without I/O |
//! | `session`, `blocks` | the state of one session, and of one pool |
//! | `driver` | [`Sessions`]: the machine over messages |
//! | `event`, `error`, `options` | what a program sees |
//! | `hostile` | a peer that sends anything, for tests and the fuzzer |
//!
//! # Example
//! ```
//! use std::time::Duration;
//!
//! use weft_fabric::{
//!     Blocking, Endpoint, EndpointOptions, NodeId, PATIENCE, ServiceName, Transport,
//! };
//! use weft_session::{Event, Options, Sessions, bytes_of};
//! use weft_transport_sim::{Settings, SimWorld};
//!
//! let world = SimWorld::new(Settings::seeded(7));
//! let open = |node| world.transport(NodeId(node), 1000).open(&EndpointOptions::default());
//! let mut client = Sessions::new(open(0)?, Options::default());
//! let mut server = Sessions::new(open(1)?, Options::default());
//! let echo = ServiceName::new("echo")?;
//! server.serve(echo, &(1..=2));
//!
//! let to = server.endpoint().address();
//! let to = client.endpoint().connect_within(to, PATIENCE)?;
//! client.open(to, echo, &(1..=1), b"", Duration::ZERO)?;
//!
//! let mut answered = None;
//! while answered.is_none() {
//!     world.advance(1_000);
//!     let now = Duration::from_nanos(world.now());
//!     let (mut hello, mut asked, mut opened) = (None, None, None);
//!     server.poll(now, 16, |event| match event {
//!         Event::Hello { session, version, .. } => hello = Some((session, version)),
//!         Event::Request { session, number, body, .. } => {
//!             asked = Some((session, number, bytes_of(&body)));
//!         }
//!         _ => {}
//!     });
//!     if let Some((session, version)) = hello {
//!         server.accept(session, version, b"")?;
//!     }
//!     if let Some((session, number, body)) = asked {
//!         server.answer(session, number, 0, b"", &[&body])?;
//!     }
//!     client.poll(now, 16, |event| match event {
//!         Event::Opened { session, version: 1, .. } => opened = Some(session),
//!         Event::Answer { answer: Ok(answer), .. } => answered = Some(bytes_of(&answer.body)),
//!         _ => {}
//!     });
//!     if let Some(session) = opened {
//!         client.request(session, b"say", &[b"good ", b"day"], None)?;
//!     }
//! }
//! assert_eq!(answered.as_deref(), Some(&b"good day"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod blocks;
mod calls;
mod driver;
mod error;
mod event;
mod frame;
pub mod hostile;
mod incoming;
mod machine;
mod options;
mod session;

pub use driver::{OWN_CONTEXTS, Sessions, bytes_of};
pub use error::{AnswerError, BlockError, Offence, RequestError, SessionError};
pub use event::{Answer, BlockId, End, Event, PoolId, SessionId, Shape};
pub use frame::{HEAD_BYTES_MAX, TEXT_BYTES_MAX};
pub use options::{Admission, Options};

/// The codes of [`End::Refused`] that are the session's. Those of programs have 16 bits.
pub mod refusals {
    /// The service has another form of frames.
    pub const FORM: u32 = 0x1_0000;
    /// The service has as many sessions as it may have, or its program does not answer.
    pub const BUSY: u32 = 0x1_0001;
    /// The options of the hello are too long.
    pub const TOO_LONG: u32 = 0x1_0002;
    /// The endpoint does not serve the protocol.
    pub const PROTOCOL: u32 = 0x1_0003;
    /// The service speaks other versions of the protocol.
    pub const VERSION: u32 = 0x1_0004;
}
