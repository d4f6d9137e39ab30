//! What a transport can do, as numbers that a program can ask for.
//!
//! The defaults are the limits of the Extoll NIC (003 sections 3.2.1 to 3.2.4), so that a program
//! written against them runs on any transport; a transport may offer more, never less.

/// Who drives an operation to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// A put, get or atomic needs nothing from the target's threads.
    Auto,
    /// The target must poll now and then.
    Manual,
}

/// The limits and properties of one transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The transport's name: `shm`, `sim`, `ofi`.
    pub transport: &'static str,
    /// Largest mailbox message, bytes.
    pub message_bytes_max: usize,
    /// Payload of one packet on the wire, bytes; larger operations are split below the API.
    pub mtu_bytes: usize,
    /// Largest put or get that travels as one descriptor, bytes; longer ones are split below the
    /// API.
    pub descriptor_bytes_max: u64,
    /// Endpoints a node can have.
    pub vpids: u16,
    /// Multicast groups.
    pub groups: u8,
    /// Intervals of a window's global address map.
    pub intervals: u8,
    /// Messages from one sender that wait in a mailbox before the sender is refused.
    pub mailbox_depth: usize,
    /// Operations of one endpoint that may be pending.
    pub operations_max: usize,
    /// Locks of the fetch-compare-and-add kind each endpoint holds.
    pub locks: u32,
    /// Registered regions an endpoint can have.
    pub regions_max: usize,
    /// Who drives one-sided operations.
    pub progress: Progress,
    /// Operations end inside the call that starts them.
    pub completes_inline: bool,
    /// A window is plain memory: loads and stores cost no call.
    pub window_is_memory: bool,
    /// [`crate::Endpoint::descriptor`] gives a descriptor to sleep on.
    pub descriptor: bool,
}

impl Capabilities {
    /// The limits of Extoll's Tourmalet NIC.
    #[must_use]
    pub const fn extoll(transport: &'static str) -> Self {
        Self {
            transport,
            message_bytes_max: 120,
            mtu_bytes: 496,
            descriptor_bytes_max: 8 << 20,
            vpids: 256,
            groups: 64,
            intervals: 64,
            mailbox_depth: 256,
            operations_max: 1024,
            locks: 4096,
            regions_max: 1024,
            progress: Progress::Auto,
            completes_inline: false,
            window_is_memory: false,
            descriptor: false,
        }
    }
}
