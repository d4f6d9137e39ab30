//! What a port has done, in packets and bytes. Each packet is counted once in each place.

/// The counters of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets that the device gave.
    pub packets_from_device: u64,
    /// Their bytes, with the headers of offloads.
    pub bytes_from_device: u64,
    /// Of the packets that the device gave, those of TCP.
    pub tcp_from_device: u64,
    /// Packets handed to the device.
    pub packets_to_device: u64,
    /// Their bytes.
    pub bytes_to_device: u64,
    /// Of those that the device gave, how many one message to a group carried.
    pub multicast: u64,
    /// For an address behind the own device, or a group that no other node wants.
    pub filtered: u64,
    /// For the own address of a node that is not there, and to or from one out of reach.
    pub unreachable: u64,
    /// From the device, and refused: malformed, or with the address of another node.
    pub refused_here: u64,
    /// From the fabric, and refused: malformed, forged, or against the protocol.
    pub refused_from_fabric: u64,
    /// From the fabric, for others: groups that share one of the fabric.
    pub unwanted: u64,
    /// Waited for a node that went.
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
