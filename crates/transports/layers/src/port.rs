//! The port of an endpoint: opened at the first need, on a thread of somebody else, because a
//! library is loaded. Calls that need it wait meanwhile.
//!
//! # Invariants
//! - The port is opened at the first connect to another node, at the first message to a group with
//!   members that only a port reaches, or when a peer asks for it. Before that, nothing of the
//!   library is in the process.
//! - Where no provider works, the endpoint stays on its node, and the broker knows.
//! - Each wait for the port ends: when the port is there, or is not.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use weft_fabric::{
    ConnectError, Endpoint, EndpointAddress, EndpointLimits, Group, OpenError, OperationError,
    Watchable,
};
use weft_transport_ofi::nic::Nic;
use weft_transport_ofi::{Attachment, Cards, OfiEndpoint, OfiTransport};
use weft_transport_shm::ShmEndpoint;

use crate::calls::Half;
use crate::endpoint::LayeredEndpoint;

/// Work that takes long.
pub type Work = Box<dyn FnOnce() + Send>;

/// Has work done, now or on another thread. Work that is dropped has failed.
pub type Run = fn(Work);

/// Has work done on a thread of its own.
pub fn on_a_thread(work: Work) {
    let thread = std::thread::Builder::new().name("weft-port".into());
    // Where no thread can be made the work is dropped.
    let _ = thread.spawn(work);
}

/// Where the port of an endpoint is made, and how far it is.
pub(crate) struct Door<C: Cards> {
    pub state: State<C::Nic>,
    transport: Arc<OfiTransport<C>>,
    run: Run,
    limits: EndpointLimits,
}

/// How far a port is.
pub(crate) enum State<N: Nic + 'static> {
    /// Nobody has wanted it.
    Closed,
    Opening(Opening<N>),
    Open(Box<OfiEndpoint<N>>),
    /// There is none, for this reason.
    Refused(String),
}

/// A port that is being opened, and what waits for it.
pub(crate) struct Opening<N: Nic + 'static> {
    slot: Slot<N>,
    /// Connects, by the number of the call.
    meetings: Vec<(u64, EndpointAddress)>,
    /// Groups to which a message was refused, one bit each.
    groups: u64,
}

type Opened<N> = Result<OfiEndpoint<N>, OpenError>;
type Slot<N> = Arc<Mutex<Option<Opened<N>>>>;

/// The work of opening: it tells of its end, also if it is dropped.
struct Promise<N: Nic + 'static> {
    slot: Slot<N>,
    woken: Arc<OwnedFd>,
    opened: Option<Opened<N>>,
}

impl<N: Nic> Promise<N> {
    fn keep(mut self, opened: Opened<N>) {
        self.opened = Some(opened);
    }
}

impl<N: Nic> Drop for Promise<N> {
    fn drop(&mut self) {
        let no_thread = || OpenError::Os { call: "clone", errno: Errno::AGAIN.raw_os_error() };
        // Under the lock, so that the taker finds the counter rung.
        let mut slot = self.slot.lock();
        *slot = Some(self.opened.take().unwrap_or_else(|| Err(no_thread())));
        // A full counter wakes as well.
        let _ = rustix::io::write(&*self.woken, &1_u64.to_ne_bytes());
    }
}

/// The descriptors of an endpoint, on which a program sleeps.
#[derive(Debug)]
pub(crate) struct Files {
    /// Readable when any other is.
    any: OwnedFd,
    /// Readable when the port is there, or is not.
    woken: Arc<OwnedFd>,
    /// The port is among them.
    pub has_port: bool,
}

impl Files {
    /// Those of an endpoint without a port.
    pub fn watching(near: &ShmEndpoint) -> Result<Self, OpenError> {
        let os = |call| move |errno: Errno| OpenError::Os { call, errno: errno.raw_os_error() };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let woken = Arc::new(eventfd(0, flags).map_err(os("eventfd"))?);
        let any = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("epoll_create"))?;
        let files = Self { any, woken, has_port: false };
        for file in [near.descriptor(), files.woken.as_fd()] {
            files.add(file).map_err(os("epoll_ctl"))?;
        }
        Ok(files)
    }

    fn add(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.any, file, EventData::new_u64(0), EventFlags::IN)
    }

    pub fn any(&self) -> BorrowedFd<'_> {
        self.any.as_fd()
    }

    pub fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

/// Sleeps until one of the files is readable, at most `time`. A signal may end it early.
pub(crate) fn sleep_on(files: &[BorrowedFd<'_>], time: Duration) {
    let mut files: Vec<PollFd<'_>> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    let _ = poll(&mut files, Timespec::try_from(time).ok().as_ref());
}

impl<C: Cards + 'static> Door<C> {
    pub fn new(transport: Arc<OfiTransport<C>>, run: Run, limits: EndpointLimits) -> Self {
        Self { state: State::Closed, transport, run, limits }
    }

    /// The port, if it is open.
    #[inline]
    pub fn open(&mut self) -> Option<&mut OfiEndpoint<C::Nic>> {
        match &mut self.state {
            State::Open(far) => Some(far),
            State::Closed | State::Opening(_) | State::Refused(_) => None,
        }
    }

    /// Whether nothing comes from here.
    pub fn is_quiet(&self) -> bool {
        matches!(self.state, State::Closed | State::Refused(_))
    }

    /// Begins to open the port of an endpoint, unless that was begun.
    fn begin(&mut self, near: &ShmEndpoint, files: &Files) {
        if !matches!(self.state, State::Closed) {
            return;
        }
        let slot = Slot::default();
        let woken = Arc::clone(&files.woken);
        let promise = Promise { slot: Arc::clone(&slot), woken, opened: None };
        let attachment = Attachment {
            address: near.address(),
            partition: near.partition(),
            birth: near.birth(),
            limits: self.limits,
        };
        self.state = State::Opening(Opening { slot, meetings: Vec::new(), groups: 0 });
        let transport = Arc::clone(&self.transport);
        (self.run)(Box::new(move || promise.keep(transport.attach(&attachment))));
    }
}

impl<C: Cards + 'static> LayeredEndpoint<C> {
    /// Opens the port, unless that was begun.
    pub(crate) fn want_port(&mut self) {
        self.begin_port();
        self.attend();
    }

    fn begin_port(&mut self) {
        self.door.begin(&self.near, &self.files);
        self.calls.watch_port(!self.door.is_quiet());
    }

    /// Looks whether a port is wanted, and whether one that was begun is there.
    pub(crate) fn attend(&mut self) {
        if self.near.port_is_wanted() {
            self.near.port_is_there();
            match self.door.state {
                State::Closed => self.begin_port(),
                State::Refused(_) => self.near.refuse_port(),
                State::Opening(_) | State::Open(_) => {}
            }
        }
        let State::Opening(opening) = &mut self.door.state else { return };
        let Some(opened) = opening.slot.lock().take() else { return };
        // It was rung before the lock was free.
        let _ = rustix::io::read(self.files.woken(), &mut [0; 8]);
        let (meetings, groups) = (std::mem::take(&mut opening.meetings), opening.groups);
        match opened {
            Ok(far) => self.opened(far, &meetings),
            Err(error) => self.not_opened(&error, &meetings),
        }
        self.calls.watch_port(!self.door.is_quiet());
        for number in (0..Group::COUNT).filter(|number| groups & 1 << number != 0) {
            if let Some(group) = Group::new(number) {
                self.calls.tell_group_room(group);
            }
        }
    }

    fn opened(&mut self, mut far: OfiEndpoint<C::Nic>, meetings: &[(u64, EndpointAddress)]) {
        for (key, granted) in &self.grants {
            let range = (granted.start, granted.length);
            far.offer(*key, &granted.memory, range, granted.access);
        }
        self.files.has_port = self.files.add(far.descriptor()).is_ok();
        self.door.state = State::Open(Box::new(far));
        for (number, to) in meetings {
            self.meet(*number, *to);
            self.finish_call(*number);
        }
    }

    fn not_opened(&mut self, error: &OpenError, meetings: &[(u64, EndpointAddress)]) {
        let reason = error.to_string();
        self.door.state = if matches!(error, OpenError::Provider { .. }) {
            self.near.refuse_port();
            State::Refused(reason.clone())
        } else {
            // It may succeed another time.
            State::Closed
        };
        for (number, _) in meetings {
            let error = ConnectError::Provider { reason: reason.clone() };
            self.calls.issued(*number, Half::Far, Err(OperationError::Connect(error)));
            self.finish_call(*number);
        }
    }

    /// Asks the port for a meeting, for a call.
    pub(crate) fn meet(&mut self, number: u64, to: EndpointAddress) {
        let Some(far) = self.door.open() else { return };
        let issued = far.connect(to, number).map_err(OperationError::Connect);
        self.calls.issued(number, Half::Far, issued);
    }

    /// Has a call wait for the port.
    pub(crate) fn meet_later(&mut self, number: u64, to: EndpointAddress) {
        if let State::Opening(opening) = &mut self.door.state {
            opening.meetings.push((number, to));
        }
    }

    /// Tells of room in a group when the port is there, or is not.
    pub(crate) fn tell_group_later(&mut self, group: Group) {
        match &mut self.door.state {
            State::Opening(opening) => opening.groups |= 1 << group.number(),
            State::Closed | State::Open(_) | State::Refused(_) => {
                self.calls.tell_group_room(group);
            }
        }
    }

    /// A call does not wait for the port any more.
    pub(crate) fn meet_never(&mut self, number: u64) {
        if let State::Opening(opening) = &mut self.door.state {
            opening.meetings.retain(|(of, _)| *of != number);
        }
    }
}
