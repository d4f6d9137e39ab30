//! A server on the fabric: a file that arrives, and clients that break the rules.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_broker::Limits;
use weft_copy::{Clients, ServeOptions, Server, Settings};
use weft_fabric::{NodeId, Source};
use weft_open::{AnyEndpoint, Client, Opening, Service, Waiter, turn};
use weft_options::Options;
use weft_session::{Event, PoolId, SessionId, Sessions, bytes_of};
use weft_transfer::{
    Block, Entry, FileId, Frame, Hello, Kind, Leaf, Meeting, Message, Metadata, Role, Segment,
    Steadiness, Terms, TreePath, VERSION, hash,
};
use weft_transport_shm::local_broker;

const PATIENCE: Duration = Duration::from_secs(30);

/// A server in this process, and an opening at its broker.
fn serve(root: &Path) -> (Opening, String) {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let opening = Opening::with("a test", &Options::default()).by(broker);
    let options = ServeOptions {
        listen: "127.0.0.1:0".parse().expect("an address"),
        clients: Clients::All,
        is_read_only: false,
        settings: Settings { window_bytes: 64 << 10, ..Settings::default() },
        opening: opening.clone(),
    };
    let server = Server::new(root, options).expect("it listens");
    assert_eq!(server.why_no_fabric(), None);
    let port = server.address().expect("an address").expect("it listens").port();
    std::thread::spawn(move || server.serve());
    (opening, format!("transfer.{port}"))
}

/// A client that says what a test wants.
struct Peer {
    sessions: Sessions<AnyEndpoint>,
    session: SessionId,
    pool: Option<(PoolId, u32)>,
    heard: Vec<Message>,
    is_over: bool,
}

impl Peer {
    fn new((opening, name): &(Opening, String)) -> Self {
        let versions = VERSION..=VERSION;
        let place = weft_open::ServicePlace::parse(name, name).expect("a name");
        let endpoint = opening.clone().finding(&place).and_then(|opening| opening.open());
        let endpoint = endpoint.expect("it is offered");
        let options = weft_session::Options::default();
        let client = Client::over(endpoint, "weft-transfer", &versions, options);
        let (sessions, session) = client.expect("a session").into_sessions();
        Self::over(sessions, session)
    }

    fn over(sessions: Sessions<AnyEndpoint>, session: SessionId) -> Self {
        Self { sessions, session, pool: None, heard: Vec::new(), is_over: false }
    }

    /// Waits for the server at a service that this end offers.
    fn await_server(service: Service) -> Self {
        let (mut sessions, mut waiter) = (service.into_sessions(), Waiter::default());
        let (mut came, begun) = (None, Instant::now());
        while came.is_none() {
            assert!(begun.elapsed() < PATIENCE, "the server does not come");
            turn(&mut sessions, &mut waiter, &[], Some(PATIENCE / 10), |event| {
                if let Event::Hello { session, .. } = event {
                    came = Some(session);
                }
            });
        }
        let session = came.expect("it was waited for");
        sessions.accept(session, VERSION, b"").expect("it waits");
        Self::over(sessions, session)
    }

    fn say(&mut self, bytes: &[u8]) {
        self.sessions.request(self.session, &[], &[bytes], None).expect("there is room");
    }

    fn tell(&mut self, message: Message) {
        self.say(&Frame::Message(message).bytes());
    }

    /// Goes on until something is true.
    fn until(&mut self, what: &str, is_true: impl Fn(&Self) -> bool) {
        let (mut waiter, begun) = (Waiter::default(), Instant::now());
        while !is_true(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", self.heard);
            let (mut asked, session) = (Vec::new(), self.session);
            let Self { sessions, pool, heard, is_over, .. } = self;
            turn(sessions, &mut waiter, &[], Some(PATIENCE / 10), |event| match event {
                Event::Request { number, body, .. } => {
                    let bytes = bytes_of(&body);
                    let mut left = &bytes[..];
                    while let Some((Frame::Message(message), length)) =
                        Frame::parse(left).expect("a server sends frames")
                    {
                        heard.push(message);
                        left = &left[length..];
                    }
                    asked.push(number);
                }
                Event::Pool { pool: id, shape, .. } => *pool = Some((id, shape.block_bytes)),
                Event::Ended { .. } => *is_over = true,
                _ => {}
            });
            for number in asked {
                let _ = self.sessions.answer(session, number, 0, &[], &[]);
            }
        }
    }

    /// Says hello as a source, with further services.
    fn hello(&mut self, also: Vec<String>) {
        let terms = Terms {
            block_bytes: 4_096,
            streams: 1,
            is_recursive: true,
            keeps_all: false,
            verifies: true,
            resumes: true,
            is_dry: false,
            deletes: false,
            is_direct: false,
            bytes_per_second: 0,
            excludes: Vec::new(),
        };
        let (places, meeting) = (vec![b".".to_vec()], Meeting::Here { also });
        let hello = Hello { version: VERSION, role: Role::Target, terms, places, meeting };
        self.tell(Message::Hello(hello));
    }

    /// Tells of a file.
    fn begin(&mut self, name: &str, size: u64) {
        self.tell(Message::Begin { identity: 1, tops: 1 });
        let id = FileId { size, ..FileId::default() };
        let metadata = Metadata { mode: 0o600, ..Metadata::default() };
        let path = TreePath::new(name).expect("a path");
        let entry = Entry { number: 0, path, metadata, kind: Kind::File(id) };
        self.tell(Message::Entries(vec![entry]));
        self.tell(Message::WalkEnd { entries: 1 });
        self.until("it grants", |peer| {
            let grants = |message: &Message| matches!(message, Message::Grant { .. });
            peer.pool.is_some() && peer.heard.iter().any(grants)
        });
    }

    fn greet(&mut self, name: &str, size: u64) {
        self.hello(Vec::new());
        self.begin(name, size);
    }

    /// Puts a block with a head.
    fn put(&mut self, bytes: &[u8], head: &[u8]) {
        let (pool, _) = self.pool.expect("it was granted");
        let block = self.sessions.take(self.session, pool).expect("a pool").expect("a block");
        self.sessions.put(self.session, block, Source::Bytes(bytes), head).expect("there is room");
    }

    /// Puts a block with a frame behind it, and says how long the frame is.
    fn put_behind(&mut self, payload: &[u8], frame: &[u8], said: u32) {
        self.put(&[payload, frame].concat(), &said.to_le_bytes());
    }

    fn is_done(&self) -> bool {
        matches!(self.heard.last(), Some(Message::Done(_)))
    }
}

fn frame(number: u64, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    let leaf = Leaf { offset: 0, length, hash: hash(bytes) };
    let segment = Segment { number, leaf, whole: Some(Steadiness::Same) };
    Frame::Block(Block { is_last_credit: false, segments: vec![segment] }).bytes()
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("short")
}

fn has(root: &Path, name: &str) -> bool {
    std::fs::read(root.join(name)).is_ok_and(|bytes| bytes == b"bytes")
}

#[test]
fn a_frame_is_the_head_of_its_block_or_lies_behind_the_bytes() {
    let root = tempfile::tempdir().expect("a directory");
    let server = serve(root.path());
    let frame = frame(0, b"bytes");
    let mut peer = Peer::new(&server);
    peer.greet("behind", 5);
    peer.put_behind(b"bytes", &frame, length(&frame));
    peer.until("it is done", Peer::is_done);
    let mut peer = Peer::new(&server);
    peer.greet("head", 5);
    peer.put(b"bytes", &frame);
    peer.until("it is done", Peer::is_done);
    assert!(has(root.path(), "behind") && has(root.path(), "head"));
}

#[test]
fn blocks_come_over_each_session_to_which_the_server_came() {
    let root = tempfile::tempdir().expect("a directory");
    let server = serve(root.path());
    let endpoint = server.0.clone().offering("cp.second").and_then(|opening| opening.open());
    let (endpoint, versions) = (endpoint.expect("a service"), VERSION..=VERSION);
    let options = weft_session::Options::default();
    let second = Service::over(endpoint, "weft-transfer", &versions, options).expect("a service");
    let mut peer = Peer::new(&server);
    // Nobody offers the last one, and the transfer goes on without it.
    peer.hello(vec!["cp.second".to_owned(), "cp.third".to_owned()]);
    let mut second = Peer::await_server(second);
    let welcome = |message: &Message| matches!(message, Message::Welcome { came: 1, .. });
    peer.until("it came to one", |peer| peer.heard.iter().any(welcome));
    peer.begin("file", 5);
    second.until("a pool of its own", |second| second.pool.is_some());
    second.put(b"bytes", &frame(0, b"bytes"));
    peer.until("it is done", Peer::is_done);
    assert!(has(root.path(), "file"));
    second.until("all sessions end", |second| second.is_over);
}

#[test]
fn a_client_that_breaks_the_rules_is_ended_and_others_are_served() {
    let root = tempfile::tempdir().expect("a directory");
    let server = serve(root.path());
    let good = frame(0, b"bytes");
    let lies: [(&str, &[u8], Vec<u8>, u32); 6] = [
        ("a frame that is longer than its block", b"bytes", good.clone(), 10_000),
        ("no frame", b"bytes", Vec::new(), 0),
        ("a frame of other bytes", b"byte", good.clone(), length(&good)),
        ("a frame that is damaged", b"bytes", [&good[..20], &[1; 20]].concat(), 40),
        ("an entry that was not told", b"bytes", frame(7, b"bytes"), length(&good)),
        ("a message in a block", b"", Frame::Message(Message::Ready).bytes(), 16),
    ];
    for (what, payload, frame, said) in lies {
        let mut peer = Peer::new(&server);
        peer.greet("lie", 5);
        peer.put_behind(payload, &frame, said);
        peer.until(what, |peer| peer.is_over);
    }
    let heads: [(&str, &[u8], &[u8]); 4] = [
        ("no head", b"bytes", b""),
        ("a head that is no frame", b"bytes", b"frame"),
        ("a frame of other bytes", b"byte", &good),
        ("a frame that is cut", b"bytes", &good[..40]),
    ];
    for (what, payload, head) in heads {
        let mut peer = Peer::new(&server);
        peer.greet("lie", 5);
        peer.put(payload, head);
        peer.until(what, |peer| peer.is_over);
    }
    // Words in place of messages, more than a conversation has, and a pool that nobody wants.
    let mut peer = Peer::new(&server);
    peer.say(b"GET / HTTP/1.1\r\n\r\n and some more");
    peer.until("words end it", |peer| peer.is_over);
    let mut peer = Peer::new(&server);
    let many: Vec<u8> = (0..500).flat_map(|_| Frame::Message(Message::Ready).bytes()).collect();
    peer.say(&many);
    peer.until("a word that is no hello ends it", |peer| peer.is_over);
    let mut peer = Peer::new(&server);
    peer.greet("sound", 5);
    peer.put(b"bytes", &good);
    peer.until("it is done", Peer::is_done);
    assert!(has(root.path(), "sound") && !root.path().join("lie").exists());
}

#[test]
fn a_block_whose_bytes_are_not_those_of_its_hash_is_asked_for_again() {
    let root = tempfile::tempdir().expect("a directory");
    let server = serve(root.path());
    let mut peer = Peer::new(&server);
    peer.greet("file", 5);
    let good = frame(0, b"bytes");
    peer.put(b"bites", &good);
    let again = |message: &Message| matches!(message, Message::Again { number: 0, .. });
    peer.until("it asks again", |peer| peer.heard.iter().any(again));
    assert!(!root.path().join("file").exists(), "nothing wrong is under its name");
}
