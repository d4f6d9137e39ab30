//! The traits that a transport implements, and the example of their use.
//!
//! An endpoint belongs to one thread at a time (`Send`, not `Sync`); no call blocks but
//! [`Endpoint::connect`], [`Endpoint::join`], [`Endpoint::leave`], [`Endpoint::grant`] and
//! [`Endpoint::revoke`], which may ask the node's broker and are bounded by its timeout, and
//! [`Endpoint::wait`], which is bounded by its own.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::address::{EndpointAddress, Group, PartitionId, Vpid};
use crate::capabilities::Capabilities;
use crate::error::{
    ConnectError, GrantError, GroupError, OpenError, OperationError, RegionError, RegisterError,
    SendError, WindowError,
};
use crate::event::Event;
use crate::operation::{
    Access, Atomic, Issued, LockRequest, MessageHeader, Notify, RemoteKey, Target,
};
use crate::register::Register;

/// A way to move bytes between endpoints: shm, sim, ofi.
pub trait Transport {
    /// Its endpoints.
    type Endpoint: Endpoint;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Opens an endpoint.
    ///
    /// # Errors
    /// [`OpenError`] when the address is taken, the partition is not the caller's or resources
    /// are missing.
    fn open(&self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError>;
}

/// What an endpoint is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointOptions {
    /// The VPID wanted; [`Vpid::ANY`] takes the next free one.
    pub vpid: Vpid,
    /// The partition; `None` is that of the user.
    pub partition: Option<PartitionId>,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self { vpid: Vpid::ANY, partition: None }
    }
}

/// A handle of one endpoint for another that it connected to; valid for that endpoint alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer(pub u32);

/// Where the bytes of a put come from.
#[derive(Debug)]
pub enum Source<'a, R> {
    /// Any memory; it is free for reuse when the call returns.
    Bytes(&'a [u8]),
    /// A range of a local region, which must stay as it is until the operation ended.
    Region {
        /// The region.
        region: &'a R,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

/// Registered memory of the own endpoint.
///
/// Others may write it at any time, so it is never seen as a slice: bytes are copied out and in.
pub trait Region: Send + Sync + Clone {
    /// Its size in bytes.
    fn length(&self) -> u64;

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), RegionError>;

    /// Copies bytes in, starting at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    fn write(&self, offset: u64, source: &[u8]) -> Result<(), RegionError>;

    /// Has the kernel read from `source` into the region, where [`Capabilities::window_is_memory`]:
    /// by one call the first bytes into `head` and what follows from `offset` on, at most `length`
    /// bytes. Returns how many bytes that were in all.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::InvalidInput`] for a range that leaves the region,
    /// and [`io::ErrorKind::Unsupported`] where the memory is not this program's.
    fn fill(
        &self,
        head: &mut [u8],
        offset: u64,
        length: u64,
        source: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        let _ = (head, offset, length, source);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Loads a word with acquire order.
    ///
    /// # Errors
    /// [`RegionError`] when it leaves the region or is not a multiple of 8.
    fn load(&self, offset: u64) -> Result<u64, RegionError>;

    /// Stores a word with release order.
    ///
    /// # Errors
    /// [`RegionError`] when it leaves the region or is not a multiple of 8.
    fn store(&self, offset: u64, value: u64) -> Result<(), RegionError>;
}

/// A peer's region as an address range of the own program (003 section 3.2.4).
///
/// Where [`Capabilities::window_is_memory`], an access costs a load or a store. Not coherent in
/// the sense of 003: order between two windows is given by [`Endpoint::fence`].
pub trait Window: Send {
    /// Bytes it spans.
    fn length(&self) -> u64;

    /// Loads bytes.
    ///
    /// # Errors
    /// [`WindowError`] as for a get.
    fn load(&self, offset: u64, target: &mut [u8]) -> Result<(), WindowError>;

    /// Stores bytes.
    ///
    /// # Errors
    /// [`WindowError`] as for a put.
    fn store(&self, offset: u64, source: &[u8]) -> Result<(), WindowError>;

    /// Has the kernel write to `target` out of the window, where
    /// [`Capabilities::window_is_memory`]: by one call `head` and behind it `length` bytes from
    /// `offset` on. Returns how many bytes that were in all.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::InvalidInput`] for what a get would be refused for,
    /// and [`io::ErrorKind::Unsupported`] where the window is no memory.
    fn pour(
        &self,
        head: &[u8],
        offset: u64,
        length: u64,
        target: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        let _ = (head, offset, length, target);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// How [`Endpoint::wait`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// There is something to poll.
    Ready,
    /// The time is over.
    TimedOut,
}

/// Whether it is safe to sleep on the endpoint's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Armed {
    /// The descriptor becomes readable with the next event; sleep.
    Sleep,
    /// Events are there already; poll first.
    Busy,
    /// This transport cannot sleep; poll again within the time given.
    PollWithin(Duration),
}

/// A program's own door to the fabric.
///
/// Operations take a `context`, which their notification and completion carry. A call that
/// returns [`Issued::Done`] is over and has no [`Event::Completion`].
pub trait Endpoint: Send {
    /// Its registered memory.
    type Region: Region;
    /// Its windows.
    type Window: Window;

    /// Its address.
    fn address(&self) -> EndpointAddress;

    /// What its transport can do.
    fn capabilities(&self) -> &Capabilities;

    /// Finds the endpoint at `to` and makes ready to talk to it; the same handle for the same
    /// address while the peer lives.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn connect(&mut self, to: EndpointAddress) -> Result<Peer, ConnectError>;

    /// The address behind a handle, or `None` for a handle that was never given out.
    fn peer_address(&self, peer: Peer) -> Option<EndpointAddress>;

    /// Sends a message of up to [`Capabilities::message_bytes_max`] bytes, gathered from `parts`,
    /// which are free for reuse when the call returns (003 section 3.2.2).
    ///
    /// # Errors
    /// [`SendError`].
    fn send_short(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError>;

    /// Sends a message to every other member of a group and returns to how many. All of them get
    /// it or, on error, none.
    ///
    /// # Errors
    /// [`SendError`]; [`SendError::WouldBlock`] when any member's mailbox is full.
    fn send_multicast(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError>;

    /// Joins a multicast group of the own partition.
    ///
    /// # Errors
    /// [`GroupError`].
    fn join(&mut self, group: Group) -> Result<(), GroupError>;

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// [`GroupError`].
    fn leave(&mut self, group: Group) -> Result<(), GroupError>;

    /// Registers `length` bytes of fresh zeroed memory.
    ///
    /// # Errors
    /// [`RegisterError`].
    fn register(&mut self, length: u64) -> Result<Self::Region, RegisterError>;

    /// Grants access to a region and returns the key that names it to the endpoints of the own
    /// partition (003 section 3.2.5).
    ///
    /// # Errors
    /// [`GrantError`].
    fn grant(&mut self, region: &Self::Region, access: Access) -> Result<RemoteKey, GrantError>;

    /// Makes a key worthless: operations that start afterwards fail with
    /// [`OperationError::InvalidKey`].
    ///
    /// # Errors
    /// [`GrantError::UnknownKey`].
    fn revoke(&mut self, key: RemoteKey) -> Result<(), GrantError>;

    /// Writes into a peer's region; any length, 0 included.
    ///
    /// # Errors
    /// [`OperationError`]; nothing was written then.
    fn put(
        &mut self,
        to: Peer,
        source: Source<'_, Self::Region>,
        target: Target,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError>;

    /// Writes the low `length` bytes (1 to 8) of `value`, little-endian, from the descriptor.
    ///
    /// # Errors
    /// [`OperationError`].
    fn put_immediate(
        &mut self,
        to: Peer,
        value: u64,
        length: u8,
        target: Target,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError>;

    /// Puts `value` and `class` straight into the peer's notifications; needs no region.
    ///
    /// # Errors
    /// [`OperationError`].
    fn put_notification(&mut self, to: Peer, class: u8, value: u64) -> Result<(), OperationError>;

    /// Reads `length` bytes of a peer's region into a local one.
    ///
    /// # Errors
    /// [`OperationError`].
    #[allow(clippy::too_many_arguments, reason = "two places, a length, and who is told")]
    fn get(
        &mut self,
        from: Peer,
        source: Target,
        region: &Self::Region,
        offset: u64,
        length: u64,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError>;

    /// Changes a word of a peer's region; the former value is the result.
    ///
    /// # Errors
    /// [`OperationError`].
    fn atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError>;

    /// Fetch-compare-and-add on a lock of the peer; see [`Issued::Done`] for the result.
    ///
    /// # Errors
    /// [`OperationError`].
    fn lock(
        &mut self,
        to: Peer,
        request: LockRequest,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError>;

    /// Ends when everything this endpoint did towards the peer before is visible there.
    ///
    /// # Errors
    /// [`OperationError::PeerDown`], [`OperationError::UnknownPeer`].
    fn fence(&mut self, to: Peer, context: u64) -> Result<Issued, OperationError>;

    /// Opens a peer's region as a window.
    ///
    /// # Errors
    /// [`WindowError`].
    fn window(&mut self, to: Peer, key: RemoteKey) -> Result<Self::Window, WindowError>;

    /// Reads one of the own registers.
    fn register_value(&self, register: Register) -> u64;

    /// Writes [`Register::Scratch`].
    fn set_scratch(&mut self, value: u64);

    /// Reads a register of a peer; the value is the result.
    ///
    /// # Errors
    /// [`OperationError`].
    fn read_register(
        &mut self,
        of: Peer,
        register: Register,
        context: u64,
    ) -> Result<Issued, OperationError>;

    /// Hands up to `budget` events to `sink` and returns how many. Never blocks. Drives progress.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize;

    /// Waits until [`Endpoint::poll`] has something, at most `timeout`: spins, then yields, then
    /// sleeps, as far as the last waits were worth it.
    fn wait(&mut self, timeout: Option<Duration>) -> Waited;

    /// Prepares to sleep on [`Endpoint::descriptor`].
    fn arm(&mut self) -> Armed;

    /// A descriptor that is readable while events wait, once [`Endpoint::arm`] said so.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
