//! The traits that a transport implements.
//!
//! An endpoint belongs to one thread at a time (`Send`, not `Sync`). Only [`Endpoint::wait`] and
//! [`Endpoint::finish`] block, and both end with their timeout. [`crate::Blocking`] has calls for
//! programs without a loop.

use std::time::Duration;

use crate::address::{EndpointAddress, Group, PartitionId};
use crate::atomic::Atomic;
use crate::capabilities::{Capabilities, Reach};
use crate::error::{
    ConnectError, GrantError, GroupError, InviteError, OpenError, OperationError, RegionError,
    RegisterError, SendError, WindowError,
};
use crate::event::Event;
use crate::opening::EndpointOptions;
use crate::operation::{
    Access, Issued, MessageHeader, Operation, RemoteKey, Signal, Target, Value,
};
use crate::register::Register;
use crate::request::Request;
use crate::service::Ticket;
use crate::word::Word;

/// A transport between endpoints: shm, sim, ofi.
///
/// A program that is generic over it runs over all of them.
///
/// ```
/// use weft_fabric::{EndpointOptions, NodeId, Endpoint, OpenError, Transport};
///
/// fn pair<T: Transport>(transport: &T) -> Result<[T::Endpoint; 2], OpenError> {
///     let options = EndpointOptions::default();
///     Ok([transport.open(&options)?, transport.open(&options)?])
/// }
///
/// let world = weft_transport_sim::SimWorld::new(weft_transport_sim::Settings::seeded(1));
/// let [one, two] = pair(&world.transport(NodeId(0), 1000))?;
/// assert_ne!(one.address(), two.address());
/// # Ok::<(), OpenError>(())
/// ```
pub trait Transport {
    /// The endpoints of this transport.
    type Endpoint: Endpoint;

    /// The limits and properties of this transport.
    fn capabilities(&self) -> &Capabilities;

    /// Opens an endpoint.
    ///
    /// # Errors
    /// [`OpenError`] when the address is taken, the partition is not open to the caller or
    /// resources are missing.
    fn open(&self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError>;
}

/// An endpoint's handle for a peer that it connected to. Valid for that endpoint only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer(pub u32);

/// A range of a local region.
#[derive(Debug)]
pub struct LocalRange<'a, R> {
    /// The region.
    pub region: &'a R,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl<'a, R: Region> LocalRange<'a, R> {
    /// `length` bytes of `region` from `offset` on.
    #[must_use]
    pub const fn new(region: &'a R, offset: u64, length: u64) -> Self {
        Self { region, offset, length }
    }

    /// All of `region`.
    #[must_use]
    pub fn whole(region: &'a R) -> Self {
        Self { region, offset: 0, length: region.length() }
    }
}

impl<R> Clone for LocalRange<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for LocalRange<'_, R> {}

/// The source of the bytes of a put.
#[derive(Debug)]
pub enum Source<'a, R> {
    /// Any memory. It may be reused when the call returns.
    Bytes(&'a [u8]),
    /// A range of a local region. It must not change until the operation completes.
    Region(LocalRange<'a, R>),
}

impl<R> Clone for Source<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Source<'_, R> {}

impl<R> Source<'_, R> {
    /// Number of bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Region(range) => range.length,
        }
    }
}

/// The endpoints that may use a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    /// All endpoints of the partition.
    Partition,
    /// One connected peer, for this life of it: an endpoint that is opened at its address later
    /// cannot use the key.
    Peer(Peer),
}

/// How a revocation ended. The key is void in both cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revoked {
    /// The broker knows, too: no peer hears of the key any more.
    Published,
    /// The broker did not answer. A peer that asks it may still get the key, finds that it is not
    /// in force, and fails with [`OperationError::InvalidKey`].
    Local,
}

/// A registered memory region of an endpoint.
///
/// Peers may write to it at any time, so it is never borrowed as a slice: bytes are copied out and
/// in.
///
/// ```
/// # use weft_fabric::{Endpoint, EndpointOptions, NodeId, Region, Transport};
/// # let world = weft_transport_sim::SimWorld::new(weft_transport_sim::Settings::seeded(1));
/// # let transport = world.transport(NodeId(0), 1000);
/// let mut endpoint = transport.open(&EndpointOptions::default())?;
/// let region = endpoint.register(4096)?;
/// region.write(100, b"hello")?;
/// let mut bytes = [0; 5];
/// region.read(100, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// region.store(8, 7)?;
/// assert_eq!(region.load(8)?, 7);
/// assert!(region.read(4095, &mut bytes).is_err(), "outside");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Region: Send + Sync + Clone {
    /// Bytes of the region.
    fn length(&self) -> u64;

    /// Copies bytes out of the region, from `offset` on.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), RegionError>;

    /// Copies bytes into the region, from `offset` on.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    fn write(&self, offset: u64, source: &[u8]) -> Result<(), RegionError>;

    /// Loads a 64-bit word with acquire order.
    ///
    /// # Errors
    /// [`RegionError`] when the word is outside the region or `offset` is not a multiple of 8.
    fn load(&self, offset: u64) -> Result<u64, RegionError>;

    /// Stores a 64-bit word with release order.
    ///
    /// # Errors
    /// [`RegionError`] when the word is outside the region or `offset` is not a multiple of 8.
    fn store(&self, offset: u64, value: u64) -> Result<(), RegionError>;
}

/// A peer's region, mapped into the own program (EXTOLL-THESIS#3.2.4).
///
/// With [`Capabilities::window_is_memory`] an access costs a load or a store. Accesses through two
/// windows are not ordered: windows are not coherent in the sense of EXTOLL-THESIS#3.2.4.
/// [`Endpoint::fence`] orders them.
///
/// A window ends with [`OperationError::InvalidKey`] when its key is revoked, and when its owner
/// moves the memory because another key was. In the second case a further window shows where it is.
///
/// ```
/// # use weft_fabric::{
/// #     Access, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, NodeId, PATIENCE,
/// #     Region, Transport, Window,
/// # };
/// # let world = weft_transport_sim::SimWorld::new(weft_transport_sim::Settings::seeded(1));
/// # let transport = world.transport(NodeId(0), 1000);
/// # let mut owner = transport.open(&EndpointOptions::default())?;
/// # let mut peer = transport.open(&EndpointOptions::default())?;
/// let region = owner.register(4096)?;
/// let whole = LocalRange::whole(&region);
/// let both = Access::READ | Access::WRITE;
/// let key = owner.grant_within(whole, Audience::Partition, both, PATIENCE)?;
///
/// let to = peer.connect_within(owner.address(), PATIENCE)?;
/// let window = peer.window(to, key)?;
/// window.store(16, b"seen")?;
/// let mut bytes = [0; 4];
/// region.read(16, &mut bytes)?;
/// assert_eq!(&bytes, b"seen");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Window: Send {
    /// Bytes of the window.
    fn length(&self) -> u64;

    /// Copies bytes out of the window, from `offset` on.
    ///
    /// # Errors
    /// [`WindowError`] as for a get.
    fn load(&self, offset: u64, target: &mut [u8]) -> Result<(), WindowError>;

    /// Copies bytes into the window, from `offset` on.
    ///
    /// # Errors
    /// [`WindowError`] as for a put.
    fn store(&self, offset: u64, source: &[u8]) -> Result<(), WindowError>;

    /// Loads the word at `offset` with acquire order. Where the window is memory, that is one
    /// access of its width; elsewhere the word is fetched whole.
    ///
    /// # Errors
    /// [`WindowError`] as for a get; [`OperationError::Misaligned`] unless the word lies at a
    /// multiple of its size in the peer's memory.
    fn load_word<W: Word>(&self, offset: u64) -> Result<W, WindowError>;

    /// Stores a word at `offset` with release order. Where the window is memory, that is one access
    /// of its width; elsewhere the word is written whole.
    ///
    /// # Errors
    /// [`WindowError`] as for a put; [`OperationError::Misaligned`] as for
    /// [`Window::load_word`].
    fn store_word<W: Word>(&self, offset: u64, word: W) -> Result<(), WindowError>;
}

/// The result of [`Endpoint::wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// [`Endpoint::poll`] has events.
    Ready,
    /// The timeout has passed.
    TimedOut,
}

/// The result of [`Endpoint::arm`]: whether the caller may sleep on the endpoint's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Armed {
    /// The descriptor becomes readable with the next event. The caller may sleep.
    Sleep,
    /// Events are there already. The caller has to poll first.
    Busy,
    /// This transport has no descriptor to sleep on. The caller has to poll again within this time.
    PollWithin(Duration),
}

/// A program's access to the fabric.
///
/// Calls that may take time have a `context`, a number of the caller's choice, which their
/// notifications and their completion carry. A call that returns [`Issued::Done`] has completed,
/// and no [`Event::Completion`] follows.
///
/// # Completion and order
/// An operation that completed well is visible to whoever reads the target's memory from then on.
/// Messages and notifications to one peer arrive in order. Operations to one peer have no order
/// among themselves, nor with messages, unless [`Capabilities::ordered`] says so or
/// [`Endpoint::order`] asks for it.
///
/// # A program
/// ```
/// use weft_fabric::{
///     Access, Audience, Blocking, Endpoint, EndpointOptions, Event, Issued, LocalRange, NodeId,
///     Notify, Operation, PATIENCE, Region, Source, Target, Transport, Value,
/// };
///
/// # let world = weft_transport_sim::SimWorld::new(weft_transport_sim::Settings::seeded(1));
/// let options = EndpointOptions::default();
/// let mut owner = world.transport(NodeId(0), 1000).open(&options)?;
/// let mut writer = world.transport(NodeId(1), 1000).open(&options)?;
///
/// // The owner lets the endpoints of its partition write to its memory.
/// let region = owner.register(4096)?;
/// let whole = LocalRange::whole(&region);
/// let key = owner.grant_within(whole, Audience::Partition, Access::WRITE, PATIENCE)?;
///
/// // The writer puts into it, and has the owner told. The context is a number of its choice.
/// let peer = writer.connect_within(owner.address(), PATIENCE)?;
/// let operation = Operation::new(1).notify(Notify::COMPLETER.class(7));
/// let issued = writer.put(peer, Source::Bytes(b"data"), Target::new(key, 100), operation)?;
///
/// // Over a network the put takes its time: the completion is an event.
/// let mut over = matches!(issued, Issued::Done(_));
/// while !over {
///     writer.wait(Some(PATIENCE));
///     writer.poll(16, &mut |event| {
///         if let Event::Completion(end) = event {
///             assert_eq!((end.context, end.result), (1, Ok(Value::Nothing)));
///             over = true;
///         }
///     });
/// }
/// let mut bytes = [0; 4];
/// region.read(100, &mut bytes)?;
/// assert_eq!(&bytes, b"data");
/// owner.poll(16, &mut |event| {
///     let Event::Notification(told) = event else { return };
///     assert_eq!((told.class, told.offset, told.length), (7, 100, 4));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Endpoint: Send {
    /// The regions of this endpoint.
    type Region: Region;
    /// The windows of this endpoint.
    type Window: Window;

    /// The endpoint's address.
    fn address(&self) -> EndpointAddress;

    /// The limits and properties of this endpoint.
    fn capabilities(&self) -> &Capabilities;

    /// The endpoint's partition; [`PartitionId::user`] says whose it is.
    fn partition(&self) -> PartitionId;

    /// The endpoint that offered the service or gave the ticket by which this one was opened;
    /// `None` for an endpoint that was opened in another way.
    fn host(&self) -> Option<EndpointAddress>;

    /// Makes a ticket by which one endpoint of any user can be opened in this partition
    /// ([`crate::Partition::Ticket`]). It is good for one opening, from the end of the call on, for
    /// the time `within`, as long as this endpoint lives. The user of the partition must be the
    /// caller's, and the partition must not be [`crate::Partition::OfUser`].
    ///
    /// # Errors
    /// [`InviteError`], from the call or as [`OperationError::Invite`] from the completion.
    fn invite(&mut self, within: Duration, context: u64) -> Result<(Ticket, Issued), InviteError>;

    /// Finds the endpoint at `to` and prepares to talk to it. The value is the peer's handle,
    /// [`Value::Peer`]: the same for the same address as long as the peer lives.
    ///
    /// # Errors
    /// [`ConnectError`], from the call or as [`OperationError::Connect`] from the completion.
    fn connect(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, ConnectError>;

    /// Gives a peer up: all that is pending on it ends with [`OperationError::PeerDown`], and both
    /// ends get an [`Event::PeerDown`]. Either may connect again, with a new handle.
    ///
    /// # Errors
    /// [`OperationError::PeerDown`], [`OperationError::UnknownPeer`].
    fn disconnect(&mut self, peer: Peer) -> Result<(), OperationError>;

    /// How memory of each kind of a peer is reached. It may be found out by the first call for a
    /// peer, and stays so as long as the peer lives.
    ///
    /// # Errors
    /// [`OperationError::PeerDown`], [`OperationError::UnknownPeer`].
    ///
    /// ```
    /// use weft_fabric::{Blocking, Endpoint, EndpointOptions, NodeId, PATIENCE, Transport, Way};
    ///
    /// # let world = weft_transport_sim::SimWorld::new(weft_transport_sim::Settings::seeded(1));
    /// # let mut one = world.transport(NodeId(0), 1000).open(&EndpointOptions::default())?;
    /// # let two = world.transport(NodeId(1), 1000).open(&EndpointOptions::default())?;
    /// let peer = one.connect_within(two.address(), PATIENCE)?;
    /// match one.reach(peer)?.in_place {
    ///     Way::Direct | Way::Kernel => println!("puts need nothing of the peer"),
    ///     Way::Refused => println!("the peer has to register other memory"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn reach(&mut self, peer: Peer) -> Result<Reach, OperationError>;

    /// The address of a peer, or `None` for a handle that was never returned.
    fn peer_address(&self, peer: Peer) -> Option<EndpointAddress>;

    /// Bytes of a message to this peer, at most. It is [`Capabilities::message_bytes_max`], which
    /// holds for all peers, or more where the way to this one carries more.
    fn message_bytes_to(&self, peer: Peer) -> usize {
        let _ = peer;
        self.capabilities().message_bytes_max
    }

    /// Sends a message of up to [`Endpoint::message_bytes_to`] bytes, gathered from `parts`
    /// (EXTOLL-THESIS#3.2.2). The memory of `parts` may be reused when the call returns.
    ///
    /// # Errors
    /// [`SendError`].
    fn send_short(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError>;

    /// Sends a message to every other member of a group and returns the number of receivers. On
    /// error no member receives it. Members become peers; one that has its maximum of peers, and is
    /// no peer of this endpoint, is left out.
    ///
    /// The first message to a group, and the first after its members have changed, may have to look
    /// the members up and connect to them. It is refused with [`SendError::WouldBlock`] then, too,
    /// and [`Event::GroupRoom`] follows.
    ///
    /// ```
    /// use weft_fabric::{Endpoint, Event, Group, MessageHeader, PATIENCE, SendError};
    ///
    /// /// Sends once to every other endpoint of the partition.
    /// fn to_all<E: Endpoint>(endpoint: &mut E, bytes: &[u8]) -> Result<usize, SendError> {
    ///     let (group, header) = (Group::BROADCAST, MessageHeader::tag(1));
    ///     loop {
    ///         match endpoint.send_multicast(group, header, &[bytes]) {
    ///             Err(SendError::WouldBlock) => {}
    ///             sent => return sent,
    ///         }
    ///         let mut has_room = false;
    ///         while !has_room {
    ///             endpoint.wait(Some(PATIENCE));
    ///             endpoint.poll(64, &mut |event| {
    ///                 has_room |= event == Event::GroupRoom { group };
    ///             });
    ///         }
    ///     }
    /// }
    /// # use weft_fabric::{EndpointOptions, NodeId, Transport};
    /// # let world = weft_transport_sim::SimWorld::new(weft_transport_sim::Settings::seeded(1));
    /// # let transport = world.transport(NodeId(0), 1000);
    /// # let mut ends = [0; 3].map(|_| transport.open(&EndpointOptions::default()).unwrap());
    /// assert_eq!(to_all(&mut ends[0], b"hello"), Ok(2));
    /// ```
    ///
    /// # Errors
    /// [`SendError`]; [`SendError::WouldBlock`] when any member's mailbox is full or the members
    /// are not known yet, [`SendError::Exhausted`] when this endpoint may not have so many peers,
    /// [`SendError::Broker`] when the members could not be looked up.
    fn send_multicast(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError>;

    /// Joins a multicast group of the endpoint's partition.
    ///
    /// # Errors
    /// [`GroupError`], from the call or as [`OperationError::Group`] from the completion.
    fn join(&mut self, group: Group, context: u64) -> Result<Issued, GroupError>;

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// As [`Endpoint::join`].
    fn leave(&mut self, group: Group, context: u64) -> Result<Issued, GroupError>;

    /// Registers a new region of `length` zeroed bytes.
    ///
    /// # Errors
    /// [`RegisterError`].
    fn register(&mut self, length: u64) -> Result<Self::Region, RegisterError>;

    /// Grants access to a range of a region. The value is the key ([`Value::Key`]), which names the
    /// range to the audience (EXTOLL-THESIS#3.2.5); its offset 0 is the first byte of the range.
    ///
    /// # Errors
    /// [`GrantError`], from the call or as [`OperationError::Grant`] from the completion.
    fn grant(
        &mut self,
        range: LocalRange<'_, Self::Region>,
        audience: Audience,
        access: Access,
        context: u64,
    ) -> Result<Issued, GrantError>;

    /// Invalidates a key: operations that start after the end of the call fail with
    /// [`OperationError::InvalidKey`]. The value is [`Value::Revoked`].
    ///
    /// It is a fence for operations that started before: each that ended well is in the region at
    /// the end of the call, and every other ends with an error. No byte by that key appears later,
    /// whatever other keys there are, also those of other endpoints that registered the memory. On
    /// shm that takes membarrier(2), where both ends had it when they opened. It does not hold for
    /// the memory of somebody else's memfd, nor for memory that a port of a network has registered,
    /// too: that stays where it is, and a holder that breaks the rules can still write to it.
    ///
    /// Memory in place does not move, so the call waits for peers that have begun a write. If one
    /// does not end within a second, the call fails with [`GrantError::StillWriting`]: the key is
    /// void, and the memory must not be used for another thing yet.
    ///
    /// # Errors
    /// [`GrantError::UnknownKey`]; [`OperationError::Grant`] from the completion.
    fn revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError>;

    /// Prepares the use of a peer's key. Not needed: the first operation that uses the key does the
    /// same, but where that takes time, it is refused with [`OperationError::WouldBlock`] until
    /// [`Event::Room`] comes. A key that is not valid may be found out here or by the operation.
    ///
    /// # Errors
    /// [`OperationError`], from the call or from the completion.
    fn resolve(&mut self, of: Peer, key: RemoteKey, context: u64)
    -> Result<Issued, OperationError>;

    /// Starts a one-sided operation. The calls below, down to [`Endpoint::atomic`], and
    /// [`Endpoint::fence`] are this one with a request of their own.
    ///
    /// # Errors
    /// [`OperationError`]; nothing was done then.
    fn issue(
        &mut self,
        to: Peer,
        request: Request<'_, Self::Region>,
        operation: Operation,
    ) -> Result<Issued, OperationError>;

    /// Writes into a peer's region. Any length is allowed, including 0.
    ///
    /// # Errors
    /// [`OperationError`]; nothing was written then.
    fn put(
        &mut self,
        to: Peer,
        source: Source<'_, Self::Region>,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.issue(to, Request::Put { ranges: &[(source, target)] }, operation)
    }

    /// Writes the low `length` bytes (1 to 8) of `value`, little-endian. They travel in the
    /// descriptor.
    ///
    /// # Errors
    /// [`OperationError`].
    fn put_immediate(
        &mut self,
        to: Peer,
        value: u64,
        length: u8,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.issue(to, Request::PutImmediate { value, length, target }, operation)
    }

    /// Writes several ranges as one operation, with one completion and one notification. The
    /// notification has the key and offset of the first range, and the number of bytes of all.
    ///
    /// # Errors
    /// [`OperationError`]; nothing was written then. [`OperationError::Empty`] without any range.
    fn put_vectored(
        &mut self,
        to: Peer,
        ranges: &[(Source<'_, Self::Region>, Target)],
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.issue(to, Request::Put { ranges }, operation)
    }

    /// Writes into a peer's region and then changes one word of the peer. A peer that reads the
    /// word's new value also reads the data. Both happen, or neither.
    ///
    /// # Errors
    /// [`OperationError`]; nothing was written then.
    fn put_signal(
        &mut self,
        to: Peer,
        source: Source<'_, Self::Region>,
        target: Target,
        signal: Signal,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.issue(to, Request::PutSignal { source, target, signal }, operation)
    }

    /// Adds a notification with `value` and `class` to the peer's queue. Needs no region.
    ///
    /// # Errors
    /// [`OperationError`].
    fn put_notification(&mut self, to: Peer, class: u8, value: u64) -> Result<(), OperationError>;

    /// Reads a range of a peer's region into a local region.
    ///
    /// # Errors
    /// [`OperationError`].
    fn get(
        &mut self,
        from: Peer,
        source: Target,
        into: LocalRange<'_, Self::Region>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.issue(from, Request::Get { ranges: &[(source, into)] }, operation)
    }

    /// Reads several ranges as one operation; see [`Endpoint::put_vectored`].
    ///
    /// # Errors
    /// [`OperationError`]. [`OperationError::Empty`] without any range.
    fn get_vectored(
        &mut self,
        from: Peer,
        ranges: &[(Target, LocalRange<'_, Self::Region>)],
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.issue(from, Request::Get { ranges }, operation)
    }

    /// Applies an atomic operation to a word of a peer's region. The value is the word's former
    /// one, [`Value::Word`], if [`Atomic::fetches`].
    ///
    /// # Errors
    /// [`OperationError`].
    fn atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.issue(to, Request::Atomic { target, atomic }, operation)
    }

    /// Orders what this endpoint does to a peer: operations, messages and notifications that come
    /// later take effect after all that came before. Nothing waits in the caller. Where one
    /// operation alone has to come later, [`Operation::ordered`] costs less.
    ///
    /// # Errors
    /// [`OperationError::PeerDown`], [`OperationError::UnknownPeer`].
    fn order(&mut self, to: Peer) -> Result<(), OperationError>;

    /// Completes when everything that this endpoint did to the peer before is visible there or has
    /// ended with an error.
    ///
    /// # Errors
    /// [`OperationError::PeerDown`], [`OperationError::UnknownPeer`].
    fn fence(&mut self, to: Peer, context: u64) -> Result<Issued, OperationError> {
        self.issue(to, Request::Fence, Operation::new(context))
    }

    /// Completes when everything that this endpoint did to any peer before is visible there or has
    /// ended with an error.
    ///
    /// # Errors
    /// [`OperationError::WouldBlock`].
    fn fence_all(&mut self, context: u64) -> Result<Issued, OperationError>;

    /// Asks to give up the operation of `context` on a peer. It ends with
    /// [`OperationError::Cancelled`] if nothing of it has left this endpoint: nothing of it is done
    /// then. Else, and if there is no such operation, this has no effect.
    ///
    /// # Errors
    /// [`OperationError::PeerDown`], [`OperationError::UnknownPeer`].
    fn cancel(&mut self, to: Peer, context: u64) -> Result<(), OperationError>;

    /// Opens a peer's region as a window.
    ///
    /// # Errors
    /// [`WindowError`].
    fn window(&mut self, to: Peer, key: RemoteKey) -> Result<Self::Window, WindowError>;

    /// Reads a register of this endpoint.
    fn register_value(&self, register: Register) -> u64;

    /// Passes up to `budget` events to `sink` and returns their number. Never blocks. Makes
    /// progress.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize;

    /// Waits at most `timeout` for the end of the connect, join, leave, grant, revoke, resolve or
    /// invite that was started with `context`, and takes its completion, which [`Endpoint::poll`]
    /// then does not hand out. Events of other calls stay where they are. `None` after the timeout:
    /// the call is given up, and a key that it would have granted is not in force.
    fn finish(&mut self, context: u64, timeout: Duration) -> Option<Result<Value, OperationError>>;

    /// Waits at most `timeout` until [`Endpoint::poll`] has events. It spins, then yields, then
    /// sleeps; how long it spins depends on how often spinning paid off before.
    fn wait(&mut self, timeout: Option<Duration>) -> Waited;

    /// Prepares to sleep on [`Watchable::descriptor`](crate::Watchable::descriptor). Nothing that
    /// comes after the call is missed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weft_fabric::{Armed, Watchable};
    ///
    /// /// Sleeps until `endpoint` may have events. `sleep` waits until a descriptor is readable or
    /// /// a time has passed: poll(2), or the loop of a runtime.
    /// fn idle<E: Watchable>(endpoint: &mut E, sleep: impl Fn(Option<i32>, Option<Duration>)) {
    ///     use std::os::fd::AsRawFd;
    ///     match endpoint.arm() {
    ///         Armed::Sleep => sleep(Some(endpoint.descriptor().as_raw_fd()), None),
    ///         Armed::PollWithin(time) => sleep(None, Some(time)),
    ///         Armed::Busy => {}
    ///     }
    ///     // Then the program polls.
    /// }
    /// # use std::sync::Arc;
    /// # use weft_fabric::{EndpointOptions, NodeId, Transport};
    /// # use weft_transport_shm::broker::Limits;
    /// # use weft_transport_shm::local_broker;
    /// # use weft_transport_shm::{Parameters, ShmTransport};
    /// # let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    /// # let transport = ShmTransport::new(broker, Parameters::default());
    /// # let mut endpoint = transport.open(&EndpointOptions::default())?;
    /// # idle(&mut endpoint, |file, time| assert!(file.is_some() || time.is_some()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn arm(&mut self) -> Armed;
}
