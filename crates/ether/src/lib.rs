//! Layer 3: Ethernet over the fabric without I/O.
//!
//! - [`mac`]: addresses, and the layout that carries the number of a node.
//! - [`frame`]: what a frame says of itself, checked before anybody believes it.
//! - [`offload`]: the header in front of each frame, which lets a super-packet cross whole.
//! - [`forwarding`]: behind which node an address lives: learning, ageing, moves, forgeries.
//! - [`membership`]: what hosts and routers say about IP multicast groups (IGMP, MLD).
//! - [`groups`]: who wants which group.
//! - [`switch`]: which way a frame goes.
//! - [`query`]: the questions that a switch asks its hosts.
//! - [`reach`]: which nodes a port reaches.
//! - [`segment`]: where the ports of a network are, one for each queue.
//! - [`message`]: what ports say to each other.
//! - [`assembly`], [`ring`]: packets in pieces, and packets in rings.
//! - [`packet`]: packets between rings and the device, which the kernel copies alone.
//! - [`pace`]: how fast a device may hand packets over whose queue cannot be stopped.
//! - [`throttle`]: how long a loop leaves queues alone that it has emptied.
//! - [`hostile`]: a node that says anything, for fuzzing.
//! - [`port`]: all of it at an endpoint.
//!
//! Sources: 003 section 5.4 (EXT-Eth), 000 section 3 (Ptlnet), 004 section 2 (forwarding table).
//! May depend on `weft-fabric` alone; knows no device, thread, clock or memory of others. Moments
//! are durations since any one start, the same for all calls.
#![forbid(unsafe_code)]

mod arrival;
pub mod assembly;
mod checksum;
pub mod counters;
pub mod forwarding;
pub mod frame;
pub mod groups;
pub mod hostile;
pub mod mac;
pub mod membership;
pub mod message;
pub mod offload;
pub mod pace;
pub mod packet;
mod peer;
pub mod port;
pub mod query;
pub mod reach;
pub mod ring;
pub mod segment;
pub mod switch;
pub mod throttle;

pub use counters::Counters;
pub use forwarding::{Forwarding, Place};
pub use frame::{Frame, FrameError};
pub use mac::MacAddress;
pub use offload::{Offload, OffloadError};
pub use pace::Pace;
pub use packet::{Delivery, Space};
pub use peer::{Limits, STALLS_AFTER};
pub use port::Port;
pub use reach::Reach;
pub use segment::{Seat, Segment};
pub use switch::{Departure, SharedSwitch, Switch};
pub use throttle::Throttle;
