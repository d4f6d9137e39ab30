//! What a transport offers beyond the core where its regions are memory of the host.

use std::ptr::NonNull;

use crate::endpoint::Endpoint;
use crate::error::RegisterError;

/// Regions that are memory of the host, which the program may have had before.
///
/// [`Endpoint::register`] makes fresh memory and needs none of this. A program that keeps its data
/// where it is makes a [`HostMemory::Memory`] of it once and registers it with each transport that
/// it uses. What a transport does with each kind of memory is up to the transport: where peers map
/// it, all kinds cost the same once they are registered.
pub trait HostMemory: Endpoint {
    /// Memory apart from any endpoint. On hosts it is `weft_memory::Memory`: fresh with a NUMA node
    /// or huge pages, from a descriptor, or made of a range of addresses.
    type Memory;

    /// Registers memory. The region keeps it alive.
    ///
    /// # Errors
    /// [`RegisterError`].
    fn register_memory(&mut self, memory: &Self::Memory) -> Result<Self::Region, RegisterError>;

    /// The address of a region's first byte, for whoever takes addresses: io_uring, a library.
    /// Peers may write to the bytes at any time, so no reference to them may exist.
    fn base(region: &Self::Region) -> NonNull<u8>;
}
