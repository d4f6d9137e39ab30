//! Registered memory of an endpoint: a region of shared memory, which the port registers, too, when
//! an operation of its needs it.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use weft_fabric::{Addressable, HostMemory, LocalRange, Region, RegionError, RegisterError};
use weft_memory::Memory;
use weft_transport_ofi::nic::Nic;
use weft_transport_ofi::{OfiEndpoint, OfiRegion};
use weft_transport_shm::ShmRegion;

/// By which regions know their endpoint.
pub(crate) type Mark = Arc<()>;

/// A region of an endpoint over two transports. Clones share the memory.
#[derive(Clone, Debug)]
pub struct LayeredRegion {
    near: ShmRegion,
    far: Arc<OnceLock<OfiRegion>>,
    mark: Mark,
}

impl LayeredRegion {
    pub(crate) fn new(near: ShmRegion, mark: &Mark) -> Self {
        Self { near, far: Arc::default(), mark: Arc::clone(mark) }
    }

    /// Whether the region is of the endpoint with this mark.
    pub(crate) fn is_of(&self, mark: &Mark) -> bool {
        Arc::ptr_eq(&self.mark, mark)
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.near.memory()
    }

    /// The region as shared memory.
    #[inline]
    pub(crate) fn near(&self) -> &ShmRegion {
        &self.near
    }

    /// The region as the port has it. The first call registers it.
    pub(crate) fn far<N: Nic>(
        &self,
        endpoint: &mut OfiEndpoint<N>,
    ) -> Result<&OfiRegion, RegisterError> {
        if let Some(far) = self.far.get() {
            return Ok(far);
        }
        let far = endpoint.register_memory(self.memory())?;
        Ok(self.far.get_or_init(|| far))
    }
}

/// A range as one of shared memory.
#[inline]
pub(crate) fn near(range: LocalRange<'_, LayeredRegion>) -> LocalRange<'_, ShmRegion> {
    LocalRange { region: range.region.near(), offset: range.offset, length: range.length }
}

/// A range as one of the port.
pub(crate) fn far<'a, N: Nic>(
    range: LocalRange<'a, LayeredRegion>,
    endpoint: &mut OfiEndpoint<N>,
) -> Result<LocalRange<'a, OfiRegion>, RegisterError> {
    let region = range.region.far(endpoint)?;
    Ok(LocalRange { region, offset: range.offset, length: range.length })
}

impl Region for LayeredRegion {
    fn length(&self) -> u64 {
        self.near.length()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), RegionError> {
        self.near.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<(), RegionError> {
        self.near.write(offset, source)
    }

    fn load(&self, offset: u64) -> Result<u64, RegionError> {
        self.near.load(offset)
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), RegionError> {
        self.near.store(offset, value)
    }
}

impl Addressable for LayeredRegion {
    fn base(&self) -> NonNull<u8> {
        self.near.base()
    }

    fn fill(
        &self,
        head: &mut [u8],
        offset: u64,
        length: u64,
        source: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        self.near.fill(head, offset, length, source, position)
    }

    fn pour(
        &self,
        head: &[u8],
        offset: u64,
        length: u64,
        target: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        self.near.pour(head, offset, length, target, position)
    }
}
