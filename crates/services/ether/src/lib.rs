//! Layer 3: Ethernet over the fabric without I/O.
//!
//! - [`mac`]: MAC addresses, and those that contain a node's number.
//! - [`frame`]: the headers of a frame, parsed and checked.
//! - [`offload`]: the header in front of each frame, with which a super-packet crosses whole.
//! - [`forwarding`]: the forwarding table: learning, ageing, moves, forgeries.
//! - [`snooping`]: reports and queries of IP multicast groups (IGMP, MLD), read from frames.
//! - [`groups`]: which nodes want which group.
//! - [`switch`]: where a frame goes.
//! - [`query`]: the membership queries that a switch sends to its hosts.
//! - [`reach`]: which nodes a port reaches.
//! - [`segment`]: the fabric addresses of a network's ports, one for each queue.
//! - [`message`]: the messages between ports.
//! - [`assembly`], [`ring`]: packets in fragments, and packets in rings.
//! - [`way`]: how long packets get out of the ring of their sender: mapped, or fetched. `inbox`,
//!   `buffers` and `behind`: packets that are fetched, their order and their memory.
//! - [`packet`]: packets that the kernel copies directly between a ring and the device.
//! - [`pace`]: the rate limit for a device whose queue cannot be stopped.
//! - [`throttle`]: how long a loop pauses after it has emptied its queues.
//! - [`hostile`]: a node that sends arbitrary messages, for fuzzing.
//! - [`port`]: all of this at one endpoint.
//!
//! Sources: EXTOLL-THESIS#5.4 (EXT-Eth), RED-SEA-D2.3#3 (Ptlnet), ANGARA-ETH#2 (forwarding table).
//! May depend on `weft-fabric` only. Uses no device, thread, clock or foreign memory. A moment is a
//! duration since a fixed start, which is the same for all calls.
#![forbid(unsafe_code)]

mod arrival;
pub mod assembly;
mod behind;
mod buffers;
mod checksum;
pub mod counters;
pub mod forwarding;
pub mod frame;
pub mod groups;
pub mod hostile;
mod inbox;
pub mod mac;
pub mod message;
pub mod offload;
pub mod pace;
pub mod packet;
pub mod port;
pub mod query;
pub mod reach;
pub mod ring;
pub mod segment;
pub mod snooping;
pub mod switch;
pub mod throttle;
pub mod way;

pub use counters::Counters;
pub use forwarding::{Forwarding, Location};
pub use frame::{Frame, FrameError};
pub use mac::MacAddress;
pub use offload::{Offload, OffloadError};
pub use pace::Pace;
pub use packet::{Delivery, Space};
pub use port::{Limits, Port, STALLS_AFTER};
pub use reach::Reach;
pub use segment::{Seat, Segment};
pub use switch::{Departure, SharedSwitch, Switch};
pub use throttle::Throttle;
pub use way::Way;
