//! Extensions of endpoints, regions and windows on a host: memory with addresses, files and
//! sockets, a descriptor to sleep on. Only this module knows the operating system.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::endpoint::{Endpoint, Region, Window};
use crate::error::{RegisterError, WindowError};

/// Bytes of a region or of a window that lie at an address of this program.
///
/// The kernel copies between them and a file or a socket without a copy in this program. One call
/// moves the bytes of a private `head` and those of the memory behind it, so that a program can
/// look at the head of a packet where nobody else writes.
///
/// ```
/// # use std::os::fd::AsFd;
/// # use std::sync::Arc;
/// use weft_fabric::{Addressable, Endpoint, EndpointOptions, NodeId, Region, Transport};
/// # use weft_transport_shm::broker::Limits;
/// # use weft_transport_shm::local_broker;
/// # use weft_transport_shm::{Parameters, ShmTransport};
///
/// # let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
/// # let transport = ShmTransport::new(broker, Parameters::default());
/// let mut endpoint = transport.open(&EndpointOptions::default())?;
/// let region = endpoint.register(4096)?;
/// region.write(100, b"data")?;
/// let file = std::fs::File::from(rustix::fs::memfd_create("f", rustix::fs::MemfdFlags::CLOEXEC)?);
/// assert_eq!(region.pour(b"some ", 100, 4, file.as_fd(), Some(7))?, 9);
/// let mut head = [0; 3];
/// assert_eq!(region.fill(&mut head, 0, 6, file.as_fd(), Some(7))?, 9);
/// let mut rest = [0; 6];
/// region.read(0, &mut rest)?;
/// assert_eq!((&head, &rest), (b"som", b"e data"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Addressable {
    /// The address of the first byte, for whoever takes addresses: io_uring, a library. Other
    /// programs may write to the bytes at any time, so no reference to them may exist.
    ///
    /// Nothing guards what is read or written by address. While a key to a region is being revoked,
    /// its bytes may move to new memory at the same address, and what this program wrote by address
    /// between the start and the end of that call may be lost: a program that writes by address
    /// does not do so during its own revocations, or writes by [`Region::write`]. A write by
    /// the address of a window counts if [`HostWindow::confirm`] says so behind it.
    fn base(&self) -> NonNull<u8>;

    /// Has the kernel read from `source` with one call: the first bytes into `head`, the rest into
    /// this memory from `offset` on, at most `length` bytes. Returns the number of bytes in all.
    /// They are those at `position` of a file; `None` means the next ones, of a file or a socket.
    ///
    /// # Errors
    /// Those of the kernel; [`io::ErrorKind::InvalidInput`] for a range outside the memory, or if a
    /// put to it would be refused, also if that is found behind the copy. With
    /// [`io::ErrorKind::Other`] a region was moved meanwhile: bytes were read and may be missing.
    fn fill(
        &self,
        head: &mut [u8],
        offset: u64,
        length: u64,
        source: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize>;

    /// Has the kernel write to `target` with one call: `head`, and behind it `length` bytes of this
    /// memory from `offset` on. Returns the number of bytes in all. They go to `position` of a
    /// file; `None` means behind what was written last, to a file or a socket.
    ///
    /// # Errors
    /// Those of the kernel; [`io::ErrorKind::InvalidInput`] for a range outside the memory, or if a
    /// get of it would be refused, also if that is found behind the copy.
    fn pour(
        &self,
        head: &[u8],
        offset: u64,
        length: u64,
        target: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize>;
}

/// Regions that are memory of the host, which the program may have had before.
///
/// [`Endpoint::register`] makes fresh memory and needs none of this. A program that keeps its data
/// where it is makes a [`HostMemory::Memory`] of it once and registers it with each transport that
/// it uses. How a transport reaches each kind of memory is up to the transport: where peers map
/// it, all kinds cost the same once they are registered.
///
/// Endpoints of several threads may register one memory, and each grants keys of its own. A
/// revocation by one of them takes the memory out of reach of the former holder, whatever keys the
/// others granted. These serve again when their endpoints have polled once more, for which they are
/// woken.
///
/// ```
/// use std::sync::Arc;
/// use weft_fabric::{EndpointOptions, HostMemory, NodeId, Region, Transport};
/// use weft_memory::{Memory, MemoryOptions};
/// # use weft_transport_shm::broker::Limits;
/// # use weft_transport_shm::local_broker;
/// # use weft_transport_shm::{Parameters, ShmTransport};
///
/// # let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
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
pub trait HostMemory: Endpoint<Region: Region + Addressable> {
    /// Memory apart from any endpoint. On hosts it is `weft_memory::Memory`: fresh with a NUMA node
    /// or huge pages, from a descriptor, or made of a range of addresses.
    type Memory;

    /// Registers memory. The region keeps it alive.
    ///
    /// # Errors
    /// [`RegisterError`].
    fn register_memory(&mut self, memory: &Self::Memory) -> Result<Self::Region, RegisterError>;
}

/// A window that is memory of the host: a peer's region, mapped into this program.
///
/// The mapping stays valid memory as long as the window, whatever the peer does. When the key is
/// revoked, the peer moves its memory, or the peer dies, loads by address read what was there
/// before, stores reach nobody, and [`HostWindow::confirm`] and all calls fail. A further window
/// shows where the memory is then, if the key is still valid. A store through a window whose key
/// does not allow writing raises SIGSEGV, as for any memory that is mapped for reading.
///
/// ```
/// # use std::sync::Arc;
/// # use weft_fabric::{
/// #     Access, Addressable, Audience, Blocking, Endpoint, EndpointOptions, HostWindow,
/// #     LocalRange, NodeId, PATIENCE, Region, Transport, Window,
/// # };
/// use weft_memory::Reservation;
/// # use weft_transport_shm::broker::Limits;
/// # use weft_transport_shm::local_broker;
/// # use weft_transport_shm::{Parameters, ShmTransport};
/// # let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
/// # let transport = ShmTransport::new(broker, Parameters::default());
/// # let mut owner = transport.open(&EndpointOptions::default())?;
/// # let mut peer = transport.open(&EndpointOptions::default())?;
/// # let region = owner.register(4096)?;
/// # let whole = LocalRange::whole(&region);
/// # let key = owner.grant_within(whole, Audience::Partition, Access::all(), PATIENCE)?;
/// # let to = peer.connect_within(owner.address(), PATIENCE)?;
/// // One range for the memory of all peers, each at a multiple of 1 MiB.
/// let all = Reservation::reserve(64 << 20)?;
/// let window = peer.window(to, key)?.at(&all, 5 << 20)?;
/// assert_eq!(window.base().addr().get(), all.base().addr().get() + (5 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait HostWindow: Window + Addressable + Sized {
    /// A range of addresses that the program reserved. On hosts it is `weft_memory::Reservation`.
    type Reservation;

    /// The same window, mapped once more at `offset` of a reservation, where nothing else may be.
    /// The offset must be a multiple of the page size. Whole pages are mapped: if the key's range
    /// begins inside a page of its memory, then [`Addressable::base`] lies as far behind `offset`.
    /// At the end of the window its addresses are without access, and free for another one.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the pages leave the reservation or something is there;
    /// those of mremap(2).
    fn at(&self, reservation: &Self::Reservation, offset: usize) -> io::Result<Self>;

    /// Whether all that this thread read and wrote by address before was in the peer's memory. Then
    /// the bytes that it wrote are in the region, and those that it read were.
    ///
    /// # Errors
    /// [`WindowError`]: some of it was not, or this is not known.
    fn confirm(&self) -> Result<(), WindowError>;
}

/// An endpoint that a program can watch by epoll(7) or poll(2), beside its sockets.
///
/// ```
/// use std::os::fd::AsFd;
/// use rustix::event::{PollFd, PollFlags, poll};
/// use weft_fabric::{Armed, Endpoint, Watchable};
/// # use std::sync::Arc;
/// # use weft_fabric::{Blocking, EndpointOptions, MessageHeader, NodeId, PATIENCE, Transport};
/// # use weft_transport_shm::broker::Limits;
/// # use weft_transport_shm::local_broker;
/// # use weft_transport_shm::{Parameters, ShmTransport};
/// # let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
/// # let transport = ShmTransport::new(broker, Parameters::default());
/// # let mut endpoint = transport.open(&EndpointOptions::default())?;
/// # let mut peer = transport.open(&EndpointOptions::default())?;
/// # let to = peer.connect_within(endpoint.address(), PATIENCE)?;
/// # while endpoint.arm() != Armed::Sleep { endpoint.poll(16, &mut |_| {}); }
/// # peer.send_short(to, MessageHeader::tag(1), &[b"wake up"])?;
/// # let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let mut events = 0;
/// while events == 0 {
///     if endpoint.arm() == Armed::Sleep {
///         let both = [endpoint.descriptor(), socket.as_fd()];
///         let mut both = both.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
///         poll(&mut both, None)?;
///     }
///     events = endpoint.poll(16, &mut |_| {});
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Watchable: Endpoint {
    /// A descriptor that becomes readable with the next event after [`Endpoint::arm`] returned
    /// [`Armed::Sleep`](crate::Armed::Sleep).
    fn descriptor(&self) -> BorrowedFd<'_>;
}
