//! An extension of endpoints whose regions are memory of the host.

use std::ptr::NonNull;

use crate::endpoint::Endpoint;
use crate::error::RegisterError;

/// Regions that are memory of the host, which the program may have had before.
///
/// [`Endpoint::register`] makes fresh memory and needs none of this. A program that keeps its data
/// where it is makes a [`HostMemory::Memory`] of it once and registers it with each transport that
/// it uses. How a transport reaches each kind of memory is up to the transport: where peers map
/// it, all kinds cost the same once they are registered.
///
/// ```
/// use std::sync::Arc;
/// use weft_fabric::{EndpointOptions, HostMemory, NodeId, Region, Transport};
/// use weft_memory::{Memory, MemoryOptions};
/// # use weft_transport_shm::broker::{Limits, local::LocalBroker};
/// # use weft_transport_shm::{Parameters, ShmTransport};
///
/// # let broker = Arc::new(LocalBroker::new(NodeId::LOCAL, Limits::default()));
/// # let transport = ShmTransport::new(broker, Parameters::default());
/// let mut one = transport.open(&EndpointOptions::default())?;
/// let mut two = transport.open(&EndpointOptions::default())?;
/// let memory = Memory::fresh(MemoryOptions::bytes(1 << 20).populate())?;
/// let (here, there) = (one.register_memory(&memory)?, two.register_memory(&memory)?);
/// here.write(5, b"the same")?;
/// let mut bytes = [0; 8];
/// there.read(5, &mut bytes)?;
/// assert_eq!(&bytes, b"the same");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
