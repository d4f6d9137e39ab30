//! A server: answers hellos over TCP, and never leaves one directory.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use weft_open::Opening;
use weft_transfer::Message;

use crate::assembly::Settings;
use crate::channel::Channel;
use crate::error::CopyError;
use crate::fabric::{Offer, Wire, server_name};
use crate::far::{More, NoMore, Policy, answer, tuned};
use crate::line::Line;
use crate::remote::{plain, standard};
use crate::root::Root;
use crate::secure::{self, Key};
use crate::users::{self, User};

/// Most connections at a time. Each transfer may take [`Settings::window_bytes`].
const CONNECTIONS_MAX: usize = 64;
/// How long a stranger may take until it has said what it wants.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How long the service on the fabric waits at a time.
const LOOK: Duration = Duration::from_secs(60);
/// How long a transfer waits for its further connections.
const MORE_WITHIN: Duration = Duration::from_secs(10);

/// How a server serves.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The clients that are served.
    pub clients: Clients,
    /// Whether files are read alone.
    pub is_read_only: bool,
    /// The limits of each transfer.
    pub settings: Settings,
    /// How endpoints are opened.
    pub opening: Opening,
}

/// The clients of a server.
#[derive(Clone, Debug)]
pub enum Clients {
    /// All that reach it. Off loopback it serves hosts of the fabric alone, and does not listen.
    All,
    /// Those that know the key of this text of a key file, and those of the fabric.
    WithKey(String),
    /// The users of this text of a file of users, each with a key, a directory and rights.
    Users(String),
}

/// 16 random bytes.
pub(crate) fn random() -> Result<u128, CopyError> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| CopyError::system("random bytes", &"the system gives none"))?;
    Ok(u128::from_le_bytes(bytes))
}

/// Transfers that wait for further connections, by token, and by the door that they came through.
type Waiting = Arc<Mutex<HashMap<(usize, u128), mpsc::Sender<Channel>>>>;

/// A way in: the key that opens it, and the rights of who comes.
#[derive(Debug)]
struct Door {
    name: String,
    key: Option<Key>,
    policy: Policy,
}

struct Shared {
    /// One, or one for each user.
    doors: Vec<Door>,
    waiting: Waiting,
    connections: AtomicUsize,
}

/// Further connections of one transfer.
struct Further {
    door: usize,
    token: u128,
    came: mpsc::Receiver<Channel>,
    waiting: Waiting,
}

impl More for Further {
    fn token(&self) -> u128 {
        self.token
    }

    fn gather(&mut self, count: usize) -> Vec<Channel> {
        let mut channels = Vec::new();
        while channels.len() < count {
            let Ok(channel) = self.came.recv_timeout(MORE_WITHIN) else { break };
            channels.push(channel);
        }
        channels
    }
}

impl Drop for Further {
    fn drop(&mut self) {
        self.waiting.lock().remove(&(self.door, self.token));
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    /// `None` if hosts of the fabric alone are served.
    listener: Option<TcpListener>,
    doors: Vec<Door>,
    /// The service on the fabric, or why there is none.
    offer: Result<Offer, String>,
}

impl Server {
    /// Listens, for transfers below a directory.
    ///
    /// # Errors
    /// [`CopyError`]: the address is not of the loopback and there is neither a key nor a fabric,
    /// or the directory or the address cannot be used.
    pub fn new(root: &Path, options: ServeOptions) -> Result<Self, CopyError> {
        let failed = |why| CopyError::place(root.display(), why);
        let doors = doors(Root::open(root).map_err(failed)?, &options)?;
        let listens = !matches!(options.clients, Clients::All) || options.listen.ip().is_loopback();
        let listen = || TcpListener::bind(options.listen);
        let listener = listens.then(listen).transpose();
        let listener = listener.map_err(|why| CopyError::place(options.listen, why))?;
        let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let port = address.map_or(options.listen.port(), |address| address.port());
        let offer = match options.clients {
            // An endpoint does not say whose it is.
            Clients::Users(_) => Err("its users show their keys over TCP".to_owned()),
            _ => Offer::new(&options.opening, &server_name(port), None),
        };
        // The first client finds it loaded.
        options.opening.load_ahead();
        if let (None, Err(error)) = (&listener, &offer) {
            let why = format!(
                "is reached from other hosts, so a key is needed (`weft fabric key` makes one), \
                 or a fabric: {error}"
            );
            return Err(CopyError::place(options.listen, why));
        }
        Ok(Self { listener, doors, offer })
    }

    /// Why it does not serve over the fabric; `None` if it does.
    #[must_use]
    pub fn why_no_fabric(&self) -> Option<&str> {
        self.offer.as_ref().err().map(String::as_str)
    }

    /// Where it listens; `None` if hosts of the fabric alone are served.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> Result<Option<SocketAddr>, CopyError> {
        let address = self.listener.as_ref().map(TcpListener::local_addr).transpose();
        address.map_err(|why| CopyError::system("the address", &why))
    }

    /// Serves until the process ends.
    pub fn serve(self) -> ! {
        let (doors, waiting) = (self.doors, Waiting::default());
        let shared = Arc::new(Shared { doors, waiting, connections: AtomicUsize::new(0) });
        let Some(listener) = self.listener else {
            let offer = self.offer.expect("there is one, or a listener");
            serve_fabric(&offer, &shared)
        };
        if let Ok(offer) = self.offer {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || serve_fabric(&offer, &shared));
        }
        loop {
            let Ok((stream, from)) = listener.accept() else {
                // Too many descriptors, for example. It passes when transfers end.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            begin(&shared, from.to_string(), move |shared| converse(stream, shared));
        }
    }
}

/// The ways in.
fn doors(root: Root, options: &ServeOptions) -> Result<Vec<Door>, CopyError> {
    let door = |name: &str, key, root, is_read_only| Door {
        name: name.to_owned(),
        key,
        policy: Policy {
            within: Some(root),
            is_read_only: is_read_only || options.is_read_only,
            settings: options.settings.clone(),
            opening: Some(options.opening.clone()),
        },
    };
    Ok(match &options.clients {
        Clients::All => vec![door("a client", None, Arc::new(root), false)],
        Clients::WithKey(text) => {
            vec![door("a client", Some(Key::of_text(text)?), Arc::new(root), false)]
        }
        Clients::Users(text) => {
            let users = users::parse(text, &root)?.into_iter();
            let door =
                |User { name, key, root, is_read_only }| door(&name, Some(key), root, is_read_only);
            users.map(door).collect()
        }
    })
}

/// Serves one connection on a thread of its own, if there are not too many.
fn begin(
    shared: &Arc<Shared>,
    from: String,
    converse: impl FnOnce(&Shared) -> Result<(), CopyError> + Send + 'static,
) {
    if shared.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!("{from} is turned away: there are {CONNECTIONS_MAX} connections");
        return;
    }
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        if let Err(error) = converse(&shared) {
            tracing::info!("the transfer with {from} ended: {error}");
        }
        shared.connections.fetch_sub(1, Ordering::Relaxed);
    });
}

fn serve_fabric(offer: &Offer, shared: &Arc<Shared>) -> ! {
    loop {
        let Some(wire) = offer.accept(LOOK) else { continue };
        begin(shared, "a client on the fabric".to_owned(), move |shared| {
            converse_on_fabric(wire, shared)
        });
    }
}

fn converse_on_fabric(mut wire: Wire, shared: &Shared) -> Result<(), CopyError> {
    let heard = wire.hear(HELLO_WITHIN);
    if let Ok(Message::Hello(hello)) = heard {
        let policy = &shared.doors[0].policy;
        return answer(Line::Fabric(wire), hello, policy, &mut NoMore);
    }
    wire.end();
    heard?;
    Err(weft_transfer::Offence("another message than a hello").into())
}

fn converse(stream: TcpStream, shared: &Shared) -> Result<(), CopyError> {
    let system = |why| CopyError::system("the connection", &why);
    let again = stream.try_clone().map_err(system)?;
    tuned(&stream)?;
    stream.set_read_timeout(Some(HELLO_WITHIN)).map_err(system)?;
    let keys: Vec<&Key> = shared.doors.iter().filter_map(|door| door.key.as_ref()).collect();
    let (mut channel, door) = match keys.is_empty() {
        true => (plain(stream)?, 0),
        // Each door has a key, or the one has none.
        false => secure::answer(stream, keys)?,
    };
    let Door { name, policy, .. } = &shared.doors[door];
    let message = channel.hear()?;
    tuned(&again)?;
    match message {
        Message::Hello(hello) => {
            let (send, came) = mpsc::channel();
            let token = random()?;
            shared.waiting.lock().insert((door, token), send);
            let waiting = Arc::clone(&shared.waiting);
            let mut more = Further { door, token, came, waiting };
            tracing::info!("{name} begins a transfer");
            answer(Line::Stream(channel), hello, policy, &mut more)
        }
        Message::Attach { token } => {
            // One that names no transfer is dropped.
            if let Some(send) = shared.waiting.lock().get(&(door, token)) {
                let _ = send.send(channel);
            }
            Ok(())
        }
        _ => Err(weft_transfer::Offence("another message than a hello").into()),
    }
}

/// Answers one hello over standard input and output, as a remote shell starts it.
///
/// # Errors
/// [`CopyError`]. The other end was told.
pub fn answer_standard(settings: &Settings, opening: Option<Opening>) -> Result<(), CopyError> {
    // The other end loads it meanwhile, too.
    if let Some(opening) = &opening {
        opening.load_ahead();
    }
    let mut channel = standard()?;
    let Message::Hello(hello) = channel.hear()? else {
        return Err(weft_transfer::Offence("another message than a hello").into());
    };
    let settings = settings.clone();
    let policy = Policy { within: None, is_read_only: false, settings, opening };
    answer(Line::Stream(channel), hello, &policy, &mut NoMore)
}
