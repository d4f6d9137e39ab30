//! A limit of packets per second in front of an interface's queue. It uses the kernel's token
//! bucket (`tbf`), which counts bytes: its minimum packet size is set so high that every packet
//! costs the same.

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use rustix::io::Errno;

use crate::NetdevError;
use crate::interface::Interface;
use crate::netlink::Netlink;

/// The handle of our queueing discipline. A discipline with another handle is not changed.
const HANDLE: TcHandle = TcHandle { major: 0x7766, minor: 0 };
/// The bytes that every packet costs at least: the maximum of `tbf`, which few packets exceed.
const PACKET_BYTES: u16 = u16::MAX;
/// Packets that may pass at once after a pause, and after each change of the rate.
const BURST_PACKETS: u32 = 16;
/// Bytes that may wait in the discipline. This bounds senders whose sockets do not block.
const LIMIT_BYTES: u32 = 64 << 20;

/// Constants of `linux/pkt_sched.h` and `linux/rtnetlink.h`.
mod tbf {
    pub const OPTIONS: u16 = 2;
    pub const PARAMETERS: u16 = 1;
    pub const RATE64: u16 = 4;
    pub const BURST: u16 = 6;
    pub const LINK_ETHERNET: u8 = 1;
}

/// The rate limit of one interface.
#[derive(Debug)]
pub struct RateLimit {
    netlink: Netlink,
    index: i32,
    name: String,
}

impl RateLimit {
    /// A handle to the limit of `interface`, in the calling thread's network namespace. Sets no
    /// limit yet.
    ///
    /// # Errors
    /// [`NetdevError::Os`].
    pub fn of(interface: &Interface) -> Result<Self, NetdevError> {
        let name = interface.name().to_owned();
        let index = i32::try_from(interface.index()?).unwrap_or(i32::MAX);
        let netlink = Netlink::open().map_err(|errno| failed(&name, errno))?;
        Ok(Self { netlink, index, name })
    }

    /// Installs a limit of `rate` packets per second, or changes the one installed before.
    ///
    /// # Errors
    /// [`NetdevError::Os`]: `ENOENT` when the kernel has no `tbf`, `EEXIST` when somebody else set
    /// the interface's queueing discipline.
    pub fn put(&self, rate: u32) -> Result<(), NetdevError> {
        match self.set(rate) {
            Ok(()) => Ok(()),
            Err(_) => self.request(rate, NLM_F_CREATE | NLM_F_EXCL),
        }
    }

    /// Changes the installed limit to `rate` packets per second. Packets that wait go on waiting.
    ///
    /// # Errors
    /// [`NetdevError::Os`]: for example, when somebody replaced the queueing discipline.
    pub fn set(&self, rate: u32) -> Result<(), NetdevError> {
        self.request(rate, 0)
    }

    fn request(&self, rate: u32, flags: u16) -> Result<(), NetdevError> {
        let mut message = TcMessage::with_index(self.index);
        message.header.handle = HANDLE;
        message.header.parent = TcHandle::ROOT;
        let options = DefaultNla::new(tbf::OPTIONS, options(rate));
        message.attributes = vec![TcAttribute::Kind("tbf".to_owned()), TcAttribute::Other(options)];
        let message = RouteNetlinkMessage::NewQueueDiscipline(message);
        self.netlink.request(message, flags).map_err(|errno| failed(&self.name, errno))
    }
}

fn failed(name: &str, errno: Errno) -> NetdevError {
    NetdevError::from_call(format!("setting the rate limit of {name}"), "CAP_NET_ADMIN", errno)
}

fn options(rate: u32) -> Vec<u8> {
    let bytes_per_second = u64::from(rate.max(1)) * u64::from(PACKET_BYTES);
    // `struct tc_ratespec`: cell_log, linklayer, overhead, cell_align, mpu, rate.
    let [mpu_low, mpu_high] = PACKET_BYTES.to_ne_bytes();
    let rate = u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
    let [a, b, c, d] = rate.to_ne_bytes();
    let spec = [0, tbf::LINK_ETHERNET, 0, 0, 0, 0, mpu_low, mpu_high, a, b, c, d];
    let burst = BURST_PACKETS * u32::from(PACKET_BYTES);
    // `struct tc_tbf_qopt`: rate, peakrate, limit, buffer, mtu.
    let mut parameters = spec.to_vec();
    parameters.extend([0; 12]);
    parameters.extend(LIMIT_BYTES.to_ne_bytes());
    parameters.extend([0; 8]);
    let mut options = attribute(tbf::PARAMETERS, &parameters);
    options.extend(attribute(tbf::RATE64, &bytes_per_second.to_ne_bytes()));
    options.extend(attribute(tbf::BURST, &burst.to_ne_bytes()));
    options
}

/// A netlink attribute. `value` has a multiple of four bytes, so that no padding is needed.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_for_a_thousand_packets_per_second_have_the_kernels_layout() {
        let options = options(1_000);
        assert_eq!(options.len(), 40 + 12 + 8);
        assert_eq!(options[..4], [40, 0, 1, 0]);
        assert_eq!(options[10..16], [0xff, 0xff, 0x18, 0xfc, 0xe7, 0x03]);
        assert_eq!(options[40..44], [12, 0, 4, 0]);
        assert_eq!(options[44..52], 65_535_000_u64.to_ne_bytes());
    }
}
