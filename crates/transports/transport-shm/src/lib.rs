//! Layer 2: the shared-memory transport, for endpoints of one host.
//!
//! Every ordered pair of endpoints has a ring in memory that only those two endpoints map
//! ([`ring`]). A [`lane`] is two such rings with a sink each; direct sockets use lanes. Memory is
//! passed as sealed memfds by a broker ([`weft_broker`]), never by name. The initiator of a put or
//! a get does the copy.
//!
//! The feature `test-doors` adds the functions with which tests and fuzz targets end an endpoint
//! abruptly and overwrite shared memory. The product is built without it.
//!
//! May depend on `weft-fabric`, `weft-broker`, `weft-memory`, `weft-sync`, `weft-channel`,
//! `weft-wire`, `weft-options` and the operating system.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use weft_fabric::{Blocking, Endpoint, EndpointOptions, Event, MessageHeader, NodeId, Transport};
//! use weft_transport_shm::broker::Limits;
//! use weft_transport_shm::{Parameters, ShmTransport, local_broker};
//!
//! let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
//! let transport = ShmTransport::new(broker, Parameters::default());
//! let mut one = transport.open(&EndpointOptions::default()).unwrap();
//! let mut two = transport.open(&EndpointOptions::default()).unwrap();
//! let peer = one.connect_within(two.address(), Duration::from_secs(1)).unwrap();
//! one.send_short(peer, MessageHeader::tag(1), &[b"hello"]).unwrap();
//! two.poll(1, &mut |event| match event {
//!     Event::Message(message) => assert_eq!(message.payload, b"hello"),
//!     other => panic!("{other:?}"),
//! });
//! ```

#[cfg(not(loom))]
mod address_vector;
#[cfg(not(loom))]
mod atomic;
pub mod attention;
#[cfg(not(loom))]
mod attr;
#[cfg(not(loom))]
mod bell;
#[cfg(not(loom))]
mod beside;
#[cfg(not(loom))]
mod completion;
#[cfg(not(loom))]
mod descriptors;
#[cfg(not(loom))]
mod domain;
#[cfg(all(not(loom), any(test, feature = "test-doors")))]
pub mod door;
#[cfg(all(not(loom), not(any(test, feature = "test-doors"))))]
mod door;
#[cfg(not(loom))]
mod doorbell;
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod greeting;
#[cfg(not(loom))]
mod groups;
#[cfg(all(not(loom), any(test, feature = "test-doors")))]
pub mod hostile;
#[cfg(not(loom))]
mod introductions;
#[cfg(not(loom))]
mod invitation;
#[cfg(not(loom))]
pub mod lane;
#[cfg(not(loom))]
mod memory;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod moves;
#[cfg(not(loom))]
mod msg;
#[cfg(not(loom))]
mod pair;
#[cfg(not(loom))]
mod partings;
#[cfg(not(loom))]
mod progress;
#[cfg(not(loom))]
mod receive;
#[cfg(not(loom))]
mod recent;
#[cfg(not(loom))]
mod registers;
#[cfg(not(loom))]
mod requests;
#[cfg(all(test, not(loom)))]
mod requests_tests;
#[cfg(all(test, not(loom)))]
mod revocation_tests;
#[cfg(not(loom))]
mod rights;
pub mod ring;
#[cfg(not(loom))]
mod rma;
#[cfg(not(loom))]
mod sharing;
#[cfg(all(test, not(loom)))]
mod sharing_tests;
pub mod sleeper;
#[cfg(not(loom))]
mod slot;
#[cfg(not(loom))]
mod sys;
#[cfg(all(test, not(loom)))]
mod test_broker;
pub mod wakeup;
#[cfg(not(loom))]
mod ways;
#[cfg(not(loom))]
mod window;

#[cfg(not(loom))]
pub use attr::{LOCAL_EVENTS_MAX, Parameters, REGIONS_MAX, VPIDS_MAX};
#[cfg(not(loom))]
pub use bell::{local_broker, open_bell};
#[cfg(not(loom))]
pub use domain::ShmTransport;
#[cfg(not(loom))]
pub use doorbell::Doorbell;
#[cfg(not(loom))]
pub use endpoint::ShmEndpoint;
#[cfg(not(loom))]
pub use memory::ShmRegion;
#[cfg(not(loom))]
pub use pair::tap as pair_tap;
#[cfg(not(loom))]
pub use registers::read_registers;
/// The broker, for programs that keep one in their own process.
#[cfg(not(loom))]
pub use weft_broker as broker;
#[cfg(not(loom))]
pub use window::ShmWindow;
