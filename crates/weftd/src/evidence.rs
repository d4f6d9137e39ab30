//! What a packet of a program shows, after the kernel was asked about each descriptor in it.
//!
//! All of this happens on the thread of the program's user ([`crate::intake`]) and without the
//! node's lock: closing a descriptor can wait for whoever made it (a file of a file system in user
//! space, a socket that lingers), and then holds up that user alone. What leaves this module holds
//! sealed memory and bells, which nobody can make wait.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, sockopt};
use weft_channel::Packet;
use weft_memory::Segment;
use weft_socket::matchmaker::Tuple;
use weft_transport_shm::lane::LaneLayout;
use weft_wire::control::{Control, End, InvalidMessage, split};
use weft_wire::endpoint_control::KINDS;

use crate::ether::Devices;
use crate::kernel;

/// An end of a connection that a program will serve.
#[derive(Debug)]
pub struct OfferedEnd {
    /// The program's number for it.
    pub token: u64,
    /// Which end.
    pub end: End,
    /// The connection.
    pub tuple: Tuple,
    /// Its number in the program.
    pub descriptor: u32,
    /// The socket's inode.
    pub inode: u64,
    /// The memory of a lane, from an accepting end.
    pub lane: Option<Arc<OwnedFd>>,
}

/// A packet that holds nothing but what its kind needs.
#[derive(Debug)]
pub enum Evidence {
    /// An end is offered.
    Offer(OfferedEnd),
    /// Another program holds an end of this connection.
    Join {
        /// The program's number for it.
        token: u64,
        /// The connection.
        tuple: Tuple,
    },
    /// A socket listens, in a network namespace at an address.
    Listening {
        /// The program's number for it.
        token: u64,
        /// Where, if it is a listener.
        at: Option<(u64, SocketAddr)>,
    },
    /// About endpoints, with checked memory and bells.
    Endpoint(Packet),
    /// Without descriptors.
    Control(Control),
    /// Something is wrong with what was shown; the program is told.
    Refused {
        /// The program's number for it.
        token: u64,
        /// What.
        reason: String,
    },
}

/// Asks the kernel about what `packet` shows, and closes what is no longer needed.
///
/// # Errors
/// [`InvalidMessage`] for what no program of ours sends.
pub fn examine(packet: Packet, devices: Option<&Devices>) -> Result<Evidence, InvalidMessage> {
    let (kind, _) = split(&packet.bytes)?;
    if KINDS.contains(&kind) {
        return Ok(endpoint(packet));
    }
    let located = |socket: Option<&OwnedFd>| {
        let socket = socket.ok_or("no descriptor came with it")?;
        let tuple = kernel::tuple_of(socket.as_fd())?;
        Ok::<_, String>(devices.map_or(tuple, |devices| devices.locate(tuple)))
    };
    Ok(match Control::parse(&packet.bytes)? {
        Control::Offer { token, end, descriptor } => {
            let tuple = located(packet.descriptors.first());
            let offered =
                tuple.and_then(|tuple| offer(token, end, descriptor, tuple, packet.descriptors));
            match offered {
                Ok(offered) => Evidence::Offer(offered),
                Err(reason) => Evidence::Refused { token, reason },
            }
        }
        Control::Join { token } => match located(packet.descriptors.first()) {
            Ok(tuple) => Evidence::Join { token, tuple },
            Err(reason) => Evidence::Refused { token, reason },
        },
        Control::Listening { token } => {
            let socket = packet.descriptors.first();
            let at = socket.and_then(|socket| kernel::listener_of(socket.as_fd()).ok());
            Evidence::Listening { token, at }
        }
        control => Evidence::Control(control),
    })
}

fn offer(
    token: u64,
    end: End,
    descriptor: u32,
    tuple: Tuple,
    descriptors: Vec<OwnedFd>,
) -> Result<OfferedEnd, String> {
    let given = descriptors.len();
    let due = if end == End::Accepted { 1..=2 } else { 1..=1 };
    if !due.contains(&given) {
        return Err(format!("{given} descriptors where {} were due", due.end()));
    }
    let mut descriptors = descriptors.into_iter();
    let inode = descriptors.next().and_then(kernel::inode_of).ok_or("the socket has no inode")?;
    let lane = descriptors.next().map(lane).transpose()?.map(Arc::new);
    Ok(OfferedEnd { token, end, tuple, descriptor, inode, lane })
}

/// Memory that may be a lane: whoever gets it looks at more.
fn lane(memory: OwnedFd) -> Result<OwnedFd, String> {
    let length = Segment::sealed_length(memory.as_fd()).map_err(|error| error.to_string())?;
    if length > LaneLayout::BYTES_MAX {
        return Err(format!("a lane of {length} bytes is longer than any"));
    }
    Ok(memory)
}

/// Endpoints hand over memory and bells; anything else is no descriptor of theirs.
fn endpoint(packet: Packet) -> Evidence {
    let is_known = |file: &OwnedFd| {
        Segment::sealed_length(file.as_fd()).is_ok()
            || sockopt::socket_domain(file) == Ok(AddressFamily::UNIX)
    };
    if packet.descriptors.iter().all(is_known) {
        return Evidence::Endpoint(packet);
    }
    let reason = "a descriptor is neither sealed memory nor a bell".to_owned();
    Evidence::Refused { token: 0, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::sync::OnceLock;

    fn packet(control: &Control, descriptors: Vec<OwnedFd>) -> Packet {
        Packet { bytes: control.emit(), descriptors, descriptors_lost: false }
    }

    fn connection() -> OwnedFd {
        static LISTENER: OnceLock<TcpListener> = OnceLock::new();
        let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("loopback"));
        TcpStream::connect(listener.local_addr().expect("bound")).expect("listening").into()
    }

    fn refusal(control: &Control, descriptors: Vec<OwnedFd>) -> String {
        match examine(packet(control, descriptors), None) {
            Ok(Evidence::Refused { token: 7, reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_sealed_memory_of_a_lanes_size_is_taken_for_a_lane() {
        let offer = Control::Offer { token: 7, end: End::Accepted, descriptor: 3 };
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("always there"));
        assert!(refusal(&offer, vec![connection(), file()]).contains("sealed"));
        assert!(refusal(&offer, vec![file()]).contains("TCP"));
        assert!(refusal(&offer, vec![]).contains("no descriptor"));
        assert!(refusal(&offer, vec![connection(), file(), file()]).contains("3 descriptors"));
        let long = usize::try_from(LaneLayout::BYTES_MAX).expect("64 bits") + 4096;
        let memory = |length| Segment::create_file("weft-test", length).expect("memory");
        assert!(refusal(&offer, vec![connection(), memory(long)]).contains("longer"));
        let good = examine(packet(&offer, vec![connection(), memory(4096)]), None);
        assert!(matches!(good, Ok(Evidence::Offer(OfferedEnd { lane: Some(_), .. }))), "{good:?}");
    }

    #[test]
    fn endpoints_hand_over_memory_and_bells_alone() {
        use weft_wire::control::join;
        use weft_wire::endpoint_control::{EndpointControl, Open};
        let open = EndpointControl::from(Open::default());
        let bytes = join(open.kind(), &open.emit());
        let with =
            |descriptors| Packet { bytes: bytes.clone(), descriptors, descriptors_lost: false };
        let file = OwnedFd::from(std::fs::File::open("/dev/null").expect("always there"));
        let refused = examine(with(vec![file]), None);
        assert!(matches!(refused, Ok(Evidence::Refused { .. })), "{refused:?}");
        let memory = Segment::create_file("weft-test", 4096).expect("memory");
        let (bell, _) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let taken = examine(with(vec![memory, bell.into()]), None);
        assert!(matches!(taken, Ok(Evidence::Endpoint(_))), "{taken:?}");
    }
}
