//! The far end of a transfer: what answers a hello, from a remote shell or in a server.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use weft_membership::Role as TlsRole;
use weft_transfer::{Hello, Meeting, Message, Role, Terms, Trouble, VERSION};

use crate::assembly::{self, Settings};
use crate::channel::{Channel, Connections, SILENCE};
use crate::destination::Destination;
use crate::error::CopyError;
use crate::inbox::Inbox;
use crate::link::Listener;
use crate::report::{Gauge, Quiet, Reporter};
use crate::root::Root;
use crate::secure::{Key, secure};
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
    mut channel: Channel,
    hello: Hello,
    policy: &Policy,
    more: &mut dyn More,
) -> Result<(), CopyError> {
    match prepare(&hello, policy) {
        Ok(part) => part.take(channel, hello, policy, more),
        Err(error) => {
            let text = error.to_string();
            channel.say(Message::Refused { text })?;
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
        mut channel: Channel,
        hello: Hello,
        policy: &Policy,
        more: &mut dyn More,
    ) -> Result<(), CopyError> {
        let terms = hello.terms;
        match hello.meeting {
            Meeting::Here => {
                channel.say(Message::Welcome { token: more.token(), port: 0 })?;
                let mut channels = vec![channel];
                channels.extend(more.gather(usize::from(terms.streams) - 1));
                self.run(channels, &terms, policy, (hello.places, Arc::new(Quiet)))
            }
            Meeting::Expects { ticket } => {
                let listener = TcpListener::bind(("::", 0))
                    .or_else(|_| TcpListener::bind(("0.0.0.0", 0)))
                    .map_err(|why| CopyError::system("a place to meet", &why))?;
                let port = listener.local_addr().map_or(0, |address| address.port());
                channel.say(Message::Welcome { token: 0, port })?;
                let met = meet(&listener, &Key::of_ticket(ticket));
                self.report(channel, met, &terms, policy, hello.places)
            }
            Meeting::Goes { to, ticket } => {
                channel.say(Message::Welcome { token: 0, port: 0 })?;
                let key = Key::of_ticket(ticket);
                let met = dial(&to).and_then(|stream| secure(stream, TlsRole::Dialer, &key));
                self.report(channel, met, &terms, policy, hello.places)
            }
        }
    }

    /// Runs over a connection to a third end, and tells the one that asked.
    fn report(
        self,
        channel: Channel,
        met: Result<Channel, CopyError>,
        terms: &Terms,
        policy: &Policy,
        places: Vec<Vec<u8>>,
    ) -> Result<(), CopyError> {
        let Channel { reader, writer } = channel;
        let asker = Arc::new(Asker(parking_lot::Mutex::new(Channel { reader, writer })));
        let reporter: Arc<dyn Reporter> = Arc::clone(&asker) as _;
        let is_target = matches!(self, Self::Target(_));
        let result = met.and_then(|met| {
            let gauge = Arc::new(Gauge::default());
            self.run_gauged(vec![met], terms, policy, (places, reporter, gauge))
        });
        match &result {
            Ok(summary) if is_target => asker.tell(Message::Done(*summary)),
            Ok(_) => {}
            Err(error) => asker.tell(Message::Refused { text: error.to_string() }),
        }
        result.map(drop)
    }

    fn run(
        self,
        channels: Vec<Channel>,
        terms: &Terms,
        policy: &Policy,
        (places, reporter): (Vec<Vec<u8>>, Arc<dyn Reporter>),
    ) -> Result<(), CopyError> {
        let gauge = Arc::new(Gauge::default());
        self.run_gauged(channels, terms, policy, (places, reporter, gauge)).map(drop)
    }

    fn run_gauged(
        self,
        channels: Vec<Channel>,
        terms: &Terms,
        policy: &Policy,
        (places, reporter, gauge): (Vec<Vec<u8>>, Arc<dyn Reporter>, Arc<Gauge>),
    ) -> Result<weft_transfer::Summary, CopyError> {
        match self {
            Self::Source(tops) => {
                let identity = assembly::identity(&places);
                run_source(channels, (&tops, identity), terms, &policy.settings, (reporter, gauge))
            }
            Self::Target(destination) => {
                run_target(channels, destination, terms, &policy.settings, (reporter, gauge))
                    .map(|written| written.summary)
            }
        }
    }
}

/// Reads files and sends them over connections.
pub(crate) fn run_source(
    channels: Vec<Channel>,
    (tops, identity): (&Arc<Tops>, u128),
    terms: &Terms,
    settings: &Settings,
    reports: (Arc<dyn Reporter>, Arc<Gauge>),
) -> Result<weft_transfer::Summary, CopyError> {
    let pool = assembly::pool(terms, settings)?;
    let inbox = Arc::new(Inbox::default());
    let listener: Arc<dyn Listener> = Arc::clone(&inbox) as _;
    let outlet = Arc::new(Connections::start(channels, &listener, None)?);
    let there = (tops, identity, None);
    assembly::source(there, terms, settings, (pool, inbox, outlet), reports)?.run()
}

/// Writes files that come over connections.
pub(crate) fn run_target(
    channels: Vec<Channel>,
    destination: Destination,
    terms: &Terms,
    settings: &Settings,
    reports: (Arc<dyn Reporter>, Arc<Gauge>),
) -> Result<crate::target_end::Written, CopyError> {
    let pool = assembly::pool(terms, settings)?;
    let inbox = Arc::new(Inbox::default());
    let listener: Arc<dyn Listener> = Arc::clone(&inbox) as _;
    let outlet = Arc::new(Connections::start(channels, &listener, Some(&pool))?);
    assembly::target(destination, terms, settings, (pool, inbox, outlet), reports).run()
}

/// Who asked for a third-party transfer hears of it.
struct Asker(parking_lot::Mutex<Channel>);

impl Asker {
    fn tell(&self, message: Message) {
        // One that is gone does not hear it, and the transfer goes on.
        let _ = self.0.lock().say(message);
    }
}

impl Reporter for Asker {
    fn trouble(&self, trouble: &Trouble) {
        self.tell(Message::Trouble(Trouble { number: None, ..trouble.clone() }));
    }

    fn would(&self, text: &str) {
        self.tell(Message::Would(text.to_owned()));
    }
}

/// Waits for the one source that knows the key. Others are turned away.
fn meet(listener: &TcpListener, key: &Key) -> Result<Channel, CopyError> {
    let system = |why| CopyError::system("a place to meet", &why);
    listener.set_nonblocking(true).map_err(system)?;
    let until = std::time::Instant::now() + MEETING_WITHIN;
    while std::time::Instant::now() < until {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(system)?;
                if let Ok(channel) =
                    tuned(&stream).and_then(|()| secure(stream, TlsRole::Listener, key))
                {
                    return Ok(channel);
                }
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
    Err(CopyError::Lost("the source did not come".to_owned()))
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
