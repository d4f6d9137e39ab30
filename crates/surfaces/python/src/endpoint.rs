//! The endpoint: how it is opened, what comes to it, and how a program waits.

use std::path::Path;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use weft_fabric::{
    Armed, Endpoint as _, EndpointAddress, EndpointLimits, EndpointOptions, Group, MessageHeader,
    NodeId, OperationError, Register, SendError, Vpid, Watchable,
};
use weft_open::{Opening, ServicePlace};

use crate::buffers::Bytes;
use crate::core::{Core, Entered, Shared, Waiting};
use crate::errors;
use crate::events;
use crate::memory::Memory;
use crate::operation::{Begun, Operation, accepted, begin};
use crate::peer::{Peer, PeerHandle};
use crate::time::Deadline;

/// The most events that an inbox may hold.
const INBOX_MAX: usize = 1 << 20;

/// A program's access to the fabric.
///
/// One thread at a time uses an endpoint and its peers, memory and operations; a second one gets
/// `InUse`, but may close it. Used as a context manager, it is closed at the end of the block.
///
/// `name` is the one in `weft status`. `node` or `socket` names the daemon, else it is found, as
/// the `weft` command finds it; `start_daemon` starts one if none answers. `vpid` asks for a number
/// on the node. `offer` offers a service of this name; `service` goes to one, by `NAME`,
/// `NAME@HOST` or `NODE:VPID`, whose address is `host` then. `inbox` is how many messages and
/// notifications may wait in this program, beyond those that wait in the mailbox; `peers` how many
/// peers there may be.
///
/// Raises `NoDaemon`, `NotFound`, `AccessDenied`, `OpenError`.
#[pyclass(frozen, module = "weft")]
pub(crate) struct Endpoint {
    shared: Arc<Shared>,
}

/// Which events a call takes.
#[derive(Clone, Copy)]
enum Wanted {
    Any,
    Message { peer: Option<weft_fabric::Peer>, tag: Option<u8> },
    Notification { peer: Option<weft_fabric::Peer>, tag: Option<u8> },
}

impl Wanted {
    fn peer(self) -> Option<weft_fabric::Peer> {
        match self {
            Self::Any => None,
            Self::Message { peer, .. } | Self::Notification { peer, .. } => peer,
        }
    }

    fn takes(self, waiting: &Waiting) -> bool {
        let fits = |peer: Option<_>, tag: Option<u8>, of, has| {
            peer.is_none_or(|peer| peer == of) && tag.is_none_or(|tag| tag == has)
        };
        match (self, waiting) {
            (Self::Any, _) => true,
            (Self::Message { peer, tag }, Waiting::Message { peer: of, header, .. }) => {
                fits(peer, tag, *of, header.tag)
            }
            (Self::Notification { peer, tag }, Waiting::Notification(told)) => {
                fits(peer, tag, told.peer, told.class)
            }
            // It is the end of what comes of the peer.
            (_, Waiting::Down { peer: of, .. }) => self.peer().is_none_or(|peer| peer == *of),
            (Self::Message { .. }, Waiting::Notification(_))
            | (Self::Notification { .. }, Waiting::Message { .. }) => false,
        }
    }

    /// Takes the first event of the kind. A peer that is down is the exception, unless any event is
    /// wanted.
    fn take(self, core: &mut Core) -> PyResult<Option<Waiting>> {
        let place = core.inbox.iter().position(|waiting| self.takes(waiting));
        match place.and_then(|place| core.inbox.remove(place)) {
            Some(Waiting::Down { address, reason, .. }) if !matches!(self, Self::Any) => {
                Err(errors::peer_died(Some(address), Some(reason)))
            }
            None => match self.peer().filter(|peer| core.reason_of(*peer).is_some()) {
                Some(peer) => Err(core.died(peer)),
                None => Ok(None),
            },
            found => Ok(found),
        }
    }
}

/// The address in a text of the form `NODE:VPID`.
fn address_in(text: &str) -> PyResult<EndpointAddress> {
    let numbers = text.split_once(':').and_then(|(node, vpid)| {
        Some(EndpointAddress::new(NodeId(node.parse().ok()?), Vpid(vpid.parse().ok()?)))
    });
    numbers.ok_or_else(|| {
        PyValueError::new_err(format!("{text:?} is no address of the form NODE:VPID, as 0:5"))
    })
}

fn group_of(number: u8) -> PyResult<Group> {
    let text = || format!("groups have the numbers 0 to 63, not {number}");
    Group::new(number).ok_or_else(|| PyValueError::new_err(text()))
}

impl Endpoint {
    fn next<'py>(
        &self,
        py: Python<'py>,
        wanted: Wanted,
        what: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut entered = self.shared.enter()?;
        // Without a look at the clock, if one is there.
        let event = match wanted.take(entered.core())? {
            Some(event) => event,
            None => {
                let deadline = Deadline::of(timeout)?;
                entered
                    .wait_for(py, deadline, |core| wanted.take(core))?
                    .ok_or_else(|| errors::timed_out(what))?
            }
        };
        drop(entered);
        events::object(py, &self.shared, event)
    }

    fn next_nowait<'py>(
        &self,
        py: Python<'py>,
        wanted: Wanted,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut entered = self.shared.enter()?;
        let core = entered.core();
        let event = match wanted.take(core)? {
            None if core.poll()? > 0 => wanted.take(core)?,
            found => found,
        };
        drop(entered);
        event.map(|event| events::object(py, &self.shared, event)).transpose()
    }

    fn handle(&self, peer: Option<&Bound<'_, Peer>>) -> PyResult<Option<weft_fabric::Peer>> {
        match peer.map(Bound::get) {
            None => Ok(None),
            Some(peer) if peer.0.is_of(&self.shared) => Ok(Some(peer.0.peer)),
            Some(_) => Err(PyValueError::new_err("the peer is one of another endpoint")),
        }
    }

    fn change_group(
        &self,
        py: Python<'_>,
        (what, timeout): (&'static str, Option<f64>),
        start: impl Fn(&mut Core, u64) -> Result<weft_fabric::Issued, OperationError>,
    ) -> PyResult<()> {
        let deadline = Deadline::of(timeout)?;
        let mut entered = self.shared.enter()?;
        let begun = begun(py, &mut entered, (what, deadline), start)?;
        begun.wait(py, &mut entered, deadline).map(drop)
    }
}

/// Starts to connect to the endpoint at `address`, or to the host of the service.
fn connecting(
    py: Python<'_>,
    entered: &mut Entered<'_>,
    address: Option<&str>,
    deadline: Deadline,
) -> PyResult<Begun> {
    let to = match address {
        Some(address) => address_in(address)?,
        None => entered.core().endpoint.host().ok_or_else(|| {
            PyValueError::new_err("an endpoint that was opened for no service needs an address")
        })?,
    };
    begun(py, entered, ("connect", deadline), |core, context| {
        core.endpoint.connect(to, context).map_err(OperationError::Connect)
    })
}

/// Starts an operation that is for no one peer.
fn begun(
    py: Python<'_>,
    entered: &mut Entered<'_>,
    (what, deadline): (&'static str, Deadline),
    start: impl Fn(&mut Core, u64) -> Result<weft_fabric::Issued, OperationError>,
) -> PyResult<Begun> {
    accepted(py, entered, (what, None), deadline, |_, core| begin(core, (what, None), None, &start))
}

#[pymethods]
impl Endpoint {
    #[new]
    #[pyo3(signature = (
        name="python", *, node=None, socket=None, start_daemon=false, vpid=None, offer=None,
        service=None, inbox=16384, peers=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        name: &str,
        node: Option<&str>,
        socket: Option<std::path::PathBuf>,
        start_daemon: bool,
        vpid: Option<u16>,
        offer: Option<&str>,
        service: Option<&str>,
        inbox: usize,
        peers: Option<usize>,
    ) -> PyResult<Self> {
        if node.is_some() && socket.is_some() {
            return Err(PyValueError::new_err("either `node` or `socket` names the daemon"));
        }
        if offer.is_some() && service.is_some() {
            return Err(PyValueError::new_err("an endpoint offers a service or goes to one"));
        }
        if !(1..=INBOX_MAX).contains(&inbox) {
            let text = format!("an inbox holds 1 to {INBOX_MAX} events, not {inbox}");
            return Err(PyValueError::new_err(text));
        }
        let opened = py.detach(|| {
            let limits = EndpointLimits { peers, ..EndpointLimits::default() };
            let vpid = vpid.map_or(Vpid::ANY, Vpid);
            let options = EndpointOptions { vpid, limits, ..EndpointOptions::default() };
            // Signals are for the threads of Python.
            let mut opening = Opening::named(name)?.endpoint(options).without_signals();
            if let Some(node) = node {
                opening = opening.of_node(node);
            }
            if let Some(socket) = &socket {
                opening = opening.at(Path::new(socket));
            }
            if start_daemon {
                opening = opening.starting_daemon();
            }
            if let Some(name) = offer {
                opening = opening.offering(name)?;
            }
            if let Some(place) = service {
                opening = opening.finding(&ServicePlace::parse(place, "")?)?;
            }
            opening.open()
        });
        let endpoint = opened.map_err(|error| errors::opening(&error))?;
        Ok(Self { shared: Shared::new(endpoint, inbox) })
    }

    /// The address, `NODE:VPID`, by which peers connect.
    #[getter]
    fn address(&self) -> String {
        self.shared.address.to_string()
    }

    /// The address of the endpoint that offers the service which this one was opened for, else
    /// None.
    #[getter]
    fn host(&self) -> PyResult<Option<String>> {
        let mut entered = self.shared.enter()?;
        Ok(entered.core().endpoint.host().map(|host| host.to_string()))
    }

    /// The counts of the endpoint, by name: messages, bytes, operations, refusals, sleeps.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut entered = self.shared.enter()?;
        let (core, counters) = (entered.core(), PyDict::new(py));
        for register in Register::ALL {
            counters.set_item(register.name(), core.endpoint.register_value(register))?;
        }
        Ok(counters)
    }

    /// The limits and properties, by name.
    fn capabilities<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut entered = self.shared.enter()?;
        let (own, told) = (entered.core().endpoint.capabilities(), PyDict::new(py));
        told.set_item("transport", own.transport)?;
        told.set_item("message_bytes_max", own.message_bytes_max)?;
        told.set_item("mailbox_depth", own.mailbox_depth)?;
        told.set_item("operations_max", own.operations_max)?;
        told.set_item("peers_max", own.peers_max)?;
        told.set_item("keys_max", own.keys_max)?;
        told.set_item("regions_max", own.regions_max)?;
        told.set_item("ordered", own.ordered)?;
        Ok(told)
    }

    /// Connects to the endpoint at `address`, and returns the peer: the same for the same address,
    /// as long as the peer lives. Without `address` it is the endpoint that offers the service
    /// which this one was opened for (`host`).
    ///
    /// Raises `NotFound`, `ConnectError`, `TimedOut`.
    #[pyo3(signature = (address=None, timeout=5.0))]
    fn connect(
        &self,
        py: Python<'_>,
        address: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Peer> {
        let deadline = Deadline::of(timeout)?;
        let mut entered = self.shared.enter()?;
        let begun = connecting(py, &mut entered, address, deadline)?;
        let value = begun.wait(py, &mut entered, deadline)?;
        let peer = value.peer().ok_or_else(|| errors::unexpected(value))?;
        Ok(Peer::of(PeerHandle::new(&self.shared, peer)))
    }

    /// As `connect`, but does not wait. The value of the operation is the peer.
    #[pyo3(signature = (address=None))]
    fn start_connect(&self, py: Python<'_>, address: Option<&str>) -> PyResult<Operation> {
        let mut entered = self.shared.enter()?;
        let begun = connecting(py, &mut entered, address, Deadline::of(Some(0.0))?)?;
        Ok(begun.handed_out(&self.shared))
    }

    /// Registers `length` fresh bytes, all 0.
    ///
    /// Raises `Exhausted`.
    fn register(&self, py: Python<'_>, length: u64) -> PyResult<Memory> {
        let mut entered = self.shared.enter()?;
        let core = entered.core();
        let region = py
            .detach(|| core.endpoint.register(length))
            .map_err(|error| errors::register(&error))?;
        let region = Arc::new(region);
        core.remember(&region);
        Ok(Memory::new(&self.shared, &region))
    }

    /// Waits for the next message, of `peer` and with `tag` if these are given.
    ///
    /// A peer that goes down is `PeerDied`, behind all messages of its. Without `peer` that is
    /// raised once for each peer, and a further call waits for the others.
    ///
    /// Raises `PeerDied`, `TimedOut`, `InboxFull`.
    #[pyo3(signature = (timeout=None, *, peer=None, tag=None))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        peer: Option<&Bound<'py, Peer>>,
        tag: Option<u8>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wanted = Wanted::Message { peer: self.handle(peer)?, tag };
        self.next(py, wanted, "receive", timeout)
    }

    /// As `receive`, but None if there is no such message.
    #[pyo3(signature = (*, peer=None, tag=None))]
    fn receive_nowait<'py>(
        &self,
        py: Python<'py>,
        peer: Option<&Bound<'py, Peer>>,
        tag: Option<u8>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.next_nowait(py, Wanted::Message { peer: self.handle(peer)?, tag })
    }

    /// Waits for the next notification, of `peer` and with `tag` if these are given; else as
    /// `receive`.
    #[pyo3(signature = (timeout=None, *, peer=None, tag=None))]
    fn notification<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        peer: Option<&Bound<'py, Peer>>,
        tag: Option<u8>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wanted = Wanted::Notification { peer: self.handle(peer)?, tag };
        self.next(py, wanted, "notification", timeout)
    }

    /// As `notification`, but None if there is no such notification.
    #[pyo3(signature = (*, peer=None, tag=None))]
    fn notification_nowait<'py>(
        &self,
        py: Python<'py>,
        peer: Option<&Bound<'py, Peer>>,
        tag: Option<u8>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.next_nowait(py, Wanted::Notification { peer: self.handle(peer)?, tag })
    }

    /// Waits for the next event of any kind: a `Message`, a `Notification` or a `PeerDown`.
    ///
    /// Raises `TimedOut`.
    #[pyo3(signature = (timeout=None))]
    fn event<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.next(py, Wanted::Any, "event", timeout)
    }

    /// As `event`, but None if there is none.
    fn event_nowait<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.next_nowait(py, Wanted::Any)
    }

    /// Joins a multicast group, 0 to 62, of the partition. All endpoints are in group 63.
    #[pyo3(signature = (group, timeout=5.0))]
    fn join(&self, py: Python<'_>, group: u8, timeout: Option<f64>) -> PyResult<()> {
        let group = group_of(group)?;
        self.change_group(py, ("join", timeout), |core, context| {
            core.endpoint.join(group, context).map_err(OperationError::Group)
        })
    }

    /// Leaves a multicast group.
    #[pyo3(signature = (group, timeout=5.0))]
    fn leave(&self, py: Python<'_>, group: u8, timeout: Option<f64>) -> PyResult<()> {
        let group = group_of(group)?;
        self.change_group(py, ("leave", timeout), |core, context| {
            core.endpoint.leave(group, context).map_err(OperationError::Group)
        })
    }

    /// Sends a message of up to 120 bytes to every other member of a group, and returns their
    /// number. Waits while a mailbox is full.
    #[pyo3(signature = (data, group=63, *, tag=0, kind=0, timeout=None))]
    fn multicast(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        group: u8,
        tag: u8,
        kind: u8,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let (group, deadline) = (group_of(group)?, Deadline::of(timeout)?);
        let (bytes, header) = (Bytes::of(data)?, MessageHeader { tag, kind });
        let mut entered = self.shared.enter()?;
        let mut tried = None;
        let sent = entered.wait_for(py, deadline, |core| {
            if tried == Some(core.tries) {
                return Ok(None);
            }
            tried = Some(core.tries);
            match core.endpoint.send_multicast(group, header, &[bytes.as_slice()]) {
                Ok(receivers) => Ok(Some(receivers)),
                Err(SendError::WouldBlock) => Ok(None),
                Err(error) => {
                    Err(errors::send(&error).unwrap_or_else(|| errors::peer_died(None, None)))
                }
            }
        })?;
        sent.ok_or_else(|| errors::timed_out("multicast"))
    }

    /// Waits until all that this endpoint did to any peer before is visible there or has failed.
    #[pyo3(signature = (timeout=None))]
    fn fence(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = Deadline::of(timeout)?;
        let mut entered = self.shared.enter()?;
        let begun = begun(py, &mut entered, ("fence", deadline), |core, context| {
            core.endpoint.fence_all(context)
        })?;
        begun.wait(py, &mut entered, deadline).map(drop)
    }

    /// Takes what came into the inbox, and returns the number of events. Never waits.
    ///
    /// Raises `InboxFull`.
    fn poll(&self) -> PyResult<usize> {
        self.shared.enter()?.core().poll()
    }

    /// The number of messages, notifications and reports of peers that wait in the inbox.
    #[getter]
    fn waiting(&self) -> PyResult<usize> {
        Ok(self.shared.enter()?.core().inbox.len())
    }

    /// A descriptor for poll(2) and loops of events. It can be read when something comes after
    /// `arm` returned None.
    fn fileno(&self) -> PyResult<i32> {
        use std::os::fd::AsRawFd;
        Ok(self.shared.enter()?.core().endpoint.descriptor().as_raw_fd())
    }

    /// Prepares to sleep on the descriptor. Returns None if the program may sleep, 0 if it has to
    /// `poll` first, or the seconds within which it has to.
    fn arm(&self) -> PyResult<Option<f64>> {
        let mut entered = self.shared.enter()?;
        Ok(match entered.core().endpoint.arm() {
            Armed::Sleep => None,
            Armed::Busy => Some(0.0),
            Armed::PollWithin(time) => Some(time.as_secs_f64()),
        })
    }

    /// Closes it: peers are told, and its keys are void. Memory stays where it is as long as
    /// anybody has a view of it. A call of another thread that waits ends with `Closed`. A second
    /// call does nothing.
    ///
    /// Raises `InUse` if a call goes on for longer, as that which a signal handler interrupted.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.close(py)
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<weft.Endpoint {}{state}>", self.shared.address)
    }
}
