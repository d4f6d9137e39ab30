//! The far end of a transfer: what answers a hello, from a remote shell or in a server.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use weft_membership::Role as TlsRole;
use weft_open::Opening;
use weft_transfer::{Hello, Meeting, Message, Role, Terms, VERSION};

use crate::asker::Asker;
use crate::assembly::{self, Settings};
use crate::channel::{Channel, Connections, SILENCE};
use crate::destination::Destination;
use crate::error::CopyError;
use crate::fabric::{self, Offer, Wire};
use crate::inbox::Inbox;
use crate::line::{Line, Lines};
use crate::link::{Listener, Outlet};
use crate::report::{Gauge, Quiet, Reporter};
use crate::root::Root;
use crate::secure::{Key, secure};
use crate::space::Supply;
use crate::tops::Tops;

/// How long a target waits for the source of a third-party transfer.
const MEETING_WITHIN: Duration = Duration::from_secs(30);
/// How long a target tries whether somebody has come.
const LOOK: Duration = Duration::from_millis(20);

/// The rights of a far end.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// The directory that it does not leave; `None` for all that its user may.
    pub within: Option<Arc<Root>>,
    /// Nothing is written.
    pub is_read_only: bool,
    /// The choices that it makes for itself.
    pub settings: Settings,
    /// How it opens endpoints, if it may use the fabric.
    pub opening: Option<Opening>,
}

impl Policy {
    /// Comes to a service that the other end offers, and why not.
    fn come(&self, at: &str) -> Result<Wire, String> {
        let opening = self.opening.as_ref().ok_or("the other end does not use the fabric")?;
        fabric::find(opening, at)
    }

    /// Comes to further services that the other end offers, up to the first that it does not
    /// reach.
    fn come_to_all(&self, services: &[String]) -> Vec<Wire> {
        services.iter().map_while(|at| self.come(at).ok()).collect()
    }
}

/// More connections of a transfer, where there can be some.
pub(crate) trait More {
    /// The token that they show.
    fn token(&self) -> u128;
    /// So many of them, or fewer if they do not come.
    fn gather(&mut self, count: usize) -> Vec<Channel>;
}

/// There is one connection.
pub(crate) struct NoMore;

impl More for NoMore {
    fn token(&self) -> u128 {
        0
    }

    fn gather(&mut self, _: usize) -> Vec<Channel> {
        Vec::new()
    }
}

/// Answers the hello that came over a connection, and takes part in the transfer.
pub(crate) fn answer(
    mut line: Line,
    hello: Hello,
    policy: &Policy,
    more: &mut dyn More,
) -> Result<(), CopyError> {
    match prepare(&hello, policy) {
        Ok(part) => part.take(line, hello, policy, more),
        Err(error) => {
            let text = error.to_string();
            line.say(Message::Refused { text })?;
            if let Line::Fabric(wire) = line {
                wire.end();
            }
            Err(error)
        }
    }
}

/// The role of a far end.
enum Part {
    Source(Arc<Tops>),
    Target(Destination),
}

fn prepare(hello: &Hello, policy: &Policy) -> Result<Part, CopyError> {
    if hello.version != VERSION {
        let text = format!("it speaks version {}, and this end {VERSION}", hello.version);
        return Err(CopyError::Refused(text));
    }
    weft_transfer::Excludes::new(&hello.terms.excludes)?;
    match hello.role {
        Role::Source => {
            let tops = match &policy.within {
                Some(root) => Tops::below(root, &hello.places)?,
                None => Tops::of_user(&hello.places, !hello.terms.is_recursive)?,
            };
            Ok(Part::Source(Arc::new(tops)))
        }
        Role::Target if policy.is_read_only && !hello.terms.is_dry => {
            Err(CopyError::Refused("this server lets files be read and not written".to_owned()))
        }
        Role::Target => {
            let [place] = hello.places.as_slice() else {
                return Err(CopyError::Refused("there is one destination".to_owned()));
            };
            let within = policy.within.clone();
            Ok(Part::Target(Destination { place: place.clone(), within }))
        }
    }
}

impl Part {
    fn take(
        self,
        mut line: Line,
        hello: Hello,
        policy: &Policy,
        more: &mut dyn More,
    ) -> Result<(), CopyError> {
        let terms = hello.terms;
        match hello.meeting {
            Meeting::Here { also } => {
                let came = match line {
                    Line::Fabric(_) => policy.come_to_all(&also),
                    Line::Stream(_) => Vec::new(),
                };
                line.say(welcome(more.token(), 0, "", (came.len(), "")))?;
                let mut lines = lines(line, &terms, more);
                if let Lines::Fabric(wires) = &mut lines {
                    wires.extend(came);
                }
                self.run(lines, &terms, policy, hello.places)
            }
            Meeting::Nearby { at } => {
                let named = at.split_first();
                let (first, further) =
                    named.ok_or(weft_transfer::Offence("a hello that names no service"))?;
                let came = policy.come(first).map(|first| {
                    let further = policy.come_to_all(further);
                    std::iter::once(first).chain(further).collect::<Vec<_>>()
                });
                let apart = came.as_ref().err().map_or("", String::as_str);
                let count = came.as_ref().map_or(0, Vec::len);
                line.say(welcome(more.token(), 0, "", (count, apart)))?;
                let lines = match came {
                    Ok(wires) => Lines::Fabric(wires),
                    Err(_) => lines(line, &terms, more),
                };
                self.run(lines, &terms, policy, hello.places)
            }
            Meeting::Expects { ticket } => {
                let listener = TcpListener::bind(("::", 0))
                    .or_else(|_| TcpListener::bind(("0.0.0.0", 0)))
                    .map_err(|why| CopyError::system("a place to meet", &why))?;
                let port = listener.local_addr().map_or(0, |address| address.port());
                let offer = policy
                    .opening
                    .as_ref()
                    .map(|opening| Offer::new(opening, &meeting_name()?, None));
                let (at, apart) = match &offer {
                    None => ("", "the other end does not use the fabric"),
                    Some(Ok(offer)) => (offer.place(), ""),
                    Some(Err(why)) => ("", why.as_str()),
                };
                line.say(welcome(0, port, at, (0, apart)))?;
                let offer = offer.and_then(Result::ok);
                let streams = usize::from(terms.streams);
                let met = |gauge: &Gauge| {
                    meet(&listener, &Key::of_ticket(ticket), (offer.as_ref(), streams), gauge)
                };
                self.report(line, met, &terms, policy, hello.places)
            }
            Meeting::Goes { to, at, ticket } => {
                let came = match at.as_str() {
                    "" => Err(String::new()),
                    at => policy.come(at),
                };
                let apart = came.as_ref().err().map_or("", String::as_str);
                line.say(welcome(0, 0, "", (0, apart)))?;
                let streams = terms.streams;
                let met = |_: &Gauge| match came {
                    Ok(wire) => Ok(Lines::Fabric(vec![wire])),
                    Err(why) if to.is_empty() => Err(CopyError::Refused(why)),
                    Err(_) => go(&to, &Key::of_ticket(ticket), streams),
                };
                self.report(line, met, &terms, policy, hello.places)
            }
        }
    }

    /// Runs over a connection to a third end, and tells the one that asked.
    fn report(
        self,
        line: Line,
        meet: impl FnOnce(&Gauge) -> Result<Lines, CopyError>,
        terms: &Terms,
        policy: &Policy,
        places: Vec<Vec<u8>>,
    ) -> Result<(), CopyError> {
        let gauge = Arc::new(Gauge::default());
        let (asker, _signs) = Asker::listen(line, &gauge);
        let reporter: Arc<dyn Reporter> = Arc::clone(&asker) as _;
        let is_target = matches!(self, Self::Target(_));
        let result = meet(&gauge)
            .and_then(|met| self.run_gauged(met, terms, policy, (places, reporter, gauge)));
        match &result {
            Ok(summary) if is_target => asker.tell(Message::Done(*summary)),
            Ok(_) => {}
            // The asker says itself that the same command goes on.
            Err(CopyError::Lost(why)) => asker.tell(Message::Refused { text: why.clone() }),
            Err(error) => asker.tell(Message::Refused { text: error.to_string() }),
        }
        result.map(drop)
    }

    fn run(
        self,
        lines: Lines,
        terms: &Terms,
        policy: &Policy,
        places: Vec<Vec<u8>>,
    ) -> Result<(), CopyError> {
        let (reporter, gauge) = (Arc::new(Quiet), Arc::new(Gauge::default()));
        self.run_gauged(lines, terms, policy, (places, reporter, gauge)).map(drop)
    }

    fn run_gauged(
        self,
        lines: Lines,
        terms: &Terms,
        policy: &Policy,
        (places, reporter, gauge): (Vec<Vec<u8>>, Arc<dyn Reporter>, Arc<Gauge>),
    ) -> Result<weft_transfer::Summary, CopyError> {
        match self {
            Self::Source(tops) => {
                let identity = assembly::identity(&places);
                run_source(lines, (&tops, identity), terms, &policy.settings, (reporter, gauge))
                    .map(|read| read.summary)
            }
            Self::Target(destination) => {
                run_target(lines, destination, terms, &policy.settings, (reporter, gauge))
                    .map(|written| written.summary)
            }
        }
    }
}

/// The end of a transfer at the source.
pub(crate) struct Read {
    pub summary: weft_transfer::Summary,
    /// Over the fabric: whether blocks lie in memory that both ends have mapped, as far as this end
    /// knows.
    pub shares_memory: Option<bool>,
}

/// Reads files and sends them.
pub(crate) fn run_source(
    lines: Lines,
    (tops, identity): (&Arc<Tops>, u128),
    terms: &Terms,
    settings: &Settings,
    reports: (Arc<dyn Reporter>, Arc<Gauge>),
) -> Result<Read, CopyError> {
    let inbox = Arc::new(Inbox::default());
    let listener: Arc<dyn Listener> = Arc::clone(&inbox) as _;
    let (supply, outlet, wire): (_, Arc<dyn Outlet>, _) = match lines {
        Lines::Streams(channels) => {
            let outlet = Arc::new(Connections::start(channels, &listener, None)?);
            (Supply::Own(assembly::pool(terms, settings)?), outlet, None)
        }
        Lines::Fabric(wires) => {
            let (idle, outlet) = fabric::read(wires, terms, settings, &listener);
            (Supply::Lent(idle), Arc::clone(&outlet) as _, Some(outlet))
        }
    };
    let there = (tops, identity, None);
    let gauge = Arc::clone(&reports.1);
    let source = assembly::source(there, terms, settings, (supply, inbox, outlet), reports)?;
    let summary = source.run()?;
    gauge.stayed(wire.as_ref().and_then(|wire| wire.near()));
    let shares_memory = wire.and_then(|wire| wire.shares_memory());
    Ok(Read { summary, shares_memory })
}

/// Writes files that come.
pub(crate) fn run_target(
    lines: Lines,
    destination: Destination,
    terms: &Terms,
    settings: &Settings,
    reports: (Arc<dyn Reporter>, Arc<Gauge>),
) -> Result<crate::target_end::Written, CopyError> {
    let inbox = Arc::new(Inbox::default());
    let listener: Arc<dyn Listener> = Arc::clone(&inbox) as _;
    let (blocks, outlet, wire): (_, Arc<dyn Outlet>, _) = match lines {
        Lines::Streams(channels) => {
            let pool = assembly::pool(terms, settings)?;
            let outlet = Arc::new(Connections::start(channels, &listener, Some(&pool))?);
            (pool.count(), outlet, None)
        }
        Lines::Fabric(wires) => {
            let (blocks, outlet) = fabric::write(wires, terms, settings, &listener);
            (blocks, Arc::clone(&outlet) as _, Some(outlet))
        }
    };
    let gauge = Arc::clone(&reports.1);
    let end = assembly::target(destination, terms, settings, (blocks, inbox, outlet), reports);
    let written = end.run()?;
    gauge.stayed(wire.and_then(|wire| wire.near()));
    Ok(written)
}

/// `came` says to how many services of the hello this end came, and why not to the first.
fn welcome(token: u128, port: u16, at: &str, (came, apart): (usize, &str)) -> Message {
    let came = u16::try_from(came).expect("a hello names few services");
    Message::Welcome { token, port, at: at.to_owned(), came, apart: apart.to_owned() }
}

/// A name for a service that one transfer meets at.
pub(crate) fn meeting_name() -> Result<String, String> {
    Ok(format!("cp.{:032x}", crate::server::random().map_err(|why| why.to_string())?))
}

/// All connections of a transfer that goes over the one of its hello.
fn lines(line: Line, terms: &Terms, more: &mut dyn More) -> Lines {
    match line {
        Line::Stream(channel) => {
            let mut channels = vec![channel];
            channels.extend(more.gather(usize::from(terms.streams) - 1));
            Lines::Streams(channels)
        }
        Line::Fabric(wire) => Lines::Fabric(vec![wire]),
    }
}

/// Waits for the one source that knows the key, or comes over the fabric. Others are turned away.
/// Over TCP it comes with so many connections.
fn meet(
    listener: &TcpListener,
    key: &Key,
    (offer, streams): (Option<&Offer>, usize),
    gauge: &Gauge,
) -> Result<Lines, CopyError> {
    let system = |why| CopyError::system("a place to meet", &why);
    listener.set_nonblocking(true).map_err(system)?;
    let until = std::time::Instant::now() + MEETING_WITHIN;
    let mut channels = Vec::new();
    while std::time::Instant::now() < until {
        if gauge.stops() {
            return Err(CopyError::Stopped);
        }
        if let Some(wire) = offer.and_then(|offer| offer.accept(Duration::ZERO)) {
            return Ok(Lines::Fabric(vec![wire]));
        }
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(system)?;
                if let Ok(channel) =
                    tuned(&stream).and_then(|()| secure(stream, TlsRole::Listener, key))
                {
                    channels.push(channel);
                    if channels.len() == streams {
                        return Ok(Lines::Streams(channels));
                    }
                }
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
    Err(CopyError::Lost("the source did not come".to_owned()))
}

/// Goes to a target that expects this end.
fn go(to: &str, key: &Key, streams: u16) -> Result<Lines, CopyError> {
    let channels = (0..streams).map(|_| secure(dial(to)?, TlsRole::Dialer, key));
    channels.collect::<Result<_, _>>().map(Lines::Streams)
}

/// Connects to `HOST:PORT`.
pub(crate) fn dial(to: &str) -> Result<TcpStream, CopyError> {
    use std::net::ToSocketAddrs;
    let unreachable = |why: String| CopyError::Unreachable { place: to.to_owned(), why };
    let addresses = to.to_socket_addrs().map_err(|why| unreachable(why.to_string()))?;
    let mut why = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, MEETING_WITHIN) {
            Ok(stream) => {
                tuned(&stream)?;
                return Ok(stream);
            }
            Err(error) => why = error.to_string(),
        }
    }
    Err(unreachable(why))
}

/// Sets what a connection of a transfer needs: heads leave at once, and an end that is gone is
/// noticed.
pub(crate) fn tuned(stream: &TcpStream) -> Result<(), CopyError> {
    let set = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(SILENCE)))
        .and_then(|()| stream.set_write_timeout(Some(SILENCE)));
    set.map_err(|why| CopyError::system("the connection", &why))
}
