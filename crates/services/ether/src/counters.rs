//! The traffic of a port in packets and bytes. Each packet counts once in each counter that
//! applies.

/// The counters of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets read from the device.
    pub packets_from_device: u64,
    /// Bytes of the packets read from the device, with their offload headers.
    pub bytes_from_device: u64,
    /// Packets read from the device that carry TCP.
    pub tcp_from_device: u64,
    /// Packets written to the device.
    pub packets_to_device: u64,
    /// Bytes of the packets written to the device, with their offload headers.
    pub bytes_to_device: u64,
    /// Packets read from the device that left in one multicast message.
    pub multicast: u64,
    /// Packets from the device that no other node needs: for an address behind this device, or for
    /// a group that no other node wants.
    pub filtered: u64,
    /// Packets for a node that is absent, or for all nodes while none is there, and packets to or
    /// from a node out of reach.
    pub unreachable: u64,
    /// Packets from the device that were refused: malformed, or with another node's source address.
    pub refused_here: u64,
    /// Messages and packets from the fabric that were refused: malformed, forged, or against the
    /// protocol.
    pub refused_from_fabric: u64,
    /// Packets from the fabric for a group that no host here wants. They came because that group
    /// shares a fabric group with a wanted one.
    pub unwanted: u64,
    /// Packets that waited for a node that went away, took nothing for too long, or came out of
    /// reach, and packets whose slot in a ring went before they left.
    pub lost: u64,
}

impl Counters {
    pub(crate) const fn departed(&mut self, bytes: usize, is_tcp: bool) {
        self.packets_from_device += 1;
        self.bytes_from_device += bytes as u64;
        self.tcp_from_device += is_tcp as u64;
    }

    pub(crate) const fn delivered(&mut self, bytes: usize) {
        self.packets_to_device += 1;
        self.bytes_to_device += bytes as u64;
    }
}
