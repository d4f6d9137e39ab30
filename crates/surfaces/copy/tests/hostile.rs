//! A server whose client breaks the rules.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use weft_copy::{Clients, CopyError, ServeOptions, Server, Settings};
use weft_open::Opening;
use weft_transfer::{
    Block, Entry, FileId, Frame, HEAD_BYTES, Head, Hello, Kind, Leaf, Meeting, Message, Metadata,
    Role, Segment, Steadiness, Terms, TreePath, VERSION, hash,
};

fn serve(root: &Path) -> SocketAddr {
    let options = ServeOptions {
        // No daemon is there, so that there is no fabric.
        opening: Opening::named("a test").expect("sound options").at(Path::new("/none/weft.sock")),
        listen: "127.0.0.1:0".parse().expect("an address"),
        clients: Clients::All,
        is_read_only: false,
        settings: Settings::default(),
    };
    let server = Server::new(root, options).expect("it listens");
    let address = server.address().expect("it has one").expect("it listens");
    std::thread::spawn(move || server.serve());
    address
}

struct Client(TcpStream);

impl Client {
    fn new(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        Self(stream)
    }

    fn say(&mut self, frame: &Frame, payload: &[u8]) {
        // A server that has hung up is what some cases want.
        let _ = self.0.write_all(&frame.bytes()).and_then(|()| self.0.write_all(payload));
    }

    fn tell(&mut self, message: Message) {
        self.say(&Frame::Message(message), &[]);
    }

    /// The next message, or `None` at the end.
    fn hear(&mut self) -> Option<Message> {
        loop {
            let mut head = [0; HEAD_BYTES];
            self.0.read_exact(&mut head).ok()?;
            let head = Head::parse(&head).expect("a server sends frames");
            let mut body = vec![0; head.length];
            self.0.read_exact(&mut body).ok()?;
            match head.frame(&body).expect("a server sends frames") {
                Frame::Message(Message::Alive) => {}
                Frame::Message(message) => return Some(message),
                Frame::Block(_) => panic!("a target sends no blocks"),
            }
        }
    }

    /// Everything until the end.
    fn hear_all(&mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.hear()).collect()
    }

    fn greet(&mut self, place: &str) {
        self.tell(hello(place, VERSION));
        assert!(matches!(self.hear(), Some(Message::Welcome { .. })));
        self.tell(Message::Begin { identity: 1, tops: 1 });
    }
}

fn hello(place: &str, version: u16) -> Message {
    let terms = Terms {
        block_bytes: 4_096,
        streams: 1,
        is_recursive: true,
        keeps_all: true,
        verifies: true,
        resumes: true,
        is_dry: false,
        deletes: false,
        is_direct: false,
        bytes_per_second: 0,
        excludes: Vec::new(),
    };
    let places = vec![place.as_bytes().to_vec()];
    let (role, meeting) = (Role::Target, Meeting::Here { also: Vec::new() });
    Message::Hello(Hello { version, role, terms, places, meeting })
}

fn entry(number: u64, path: &str, kind: Kind) -> Entry {
    let path = TreePath::new(path).expect("a path");
    let metadata = Metadata { mode: 0o700, ..Metadata::default() };
    Entry { number, path, metadata, kind }
}

fn file(number: u64, path: &str, size: u64) -> Entry {
    entry(number, path, Kind::File(FileId { inode: number, size, ..FileId::default() }))
}

fn block(number: u64, bytes: &[u8]) -> Frame {
    let length = u32::try_from(bytes.len()).expect("short");
    let leaf = Leaf { offset: 0, length, hash: hash(bytes) };
    let segment = Segment { number, leaf, whole: Some(Steadiness::Same) };
    Frame::Block(Block { is_last_credit: false, segments: vec![segment] })
}

#[test]
fn links_that_a_source_sends_are_not_followed() {
    let place = tempfile::tempdir().expect("a directory");
    let (root, outside) = (place.path().join("root"), place.path().join("outside"));
    std::fs::create_dir(&root).expect("a directory");
    std::fs::create_dir(&outside).expect("a directory");
    std::fs::write(outside.join("secret"), "secret").expect("a file");
    let mut client = Client::new(serve(&root));
    client.greet("in");
    let text = outside.as_os_str().as_encoded_bytes().to_vec();
    client.tell(Message::Entries(vec![
        entry(0, "t", Kind::Directory),
        entry(1, "t/l", Kind::Symlink { text }),
        file(2, "t/l/x", 3),
        entry(3, "t/l/d", Kind::Directory),
        entry(4, "t/l", Kind::Directory),
        entry(5, "t/h", Kind::HardLink { first: TreePath::new("t/l/secret").expect("a path") }),
        entry(6, "t/fifo", Kind::Fifo),
        entry(7, "t/fifo", Kind::Directory),
    ]));
    client.say(&block(2, b"abc"), b"abc");
    client.tell(Message::WalkEnd { entries: 8 });
    let heard = client.hear_all();
    let troubles = heard.iter().filter_map(|message| match message {
        Message::Trouble(trouble) => Some(trouble.path.to_string()),
        _ => None,
    });
    let mut troubles: Vec<String> = troubles.collect();
    troubles.sort();
    assert_eq!(troubles, ["t/fifo", "t/h", "t/l", "t/l/d", "t/l/x"], "{heard:?}");
    assert!(matches!(heard.last(), Some(Message::Done(_))), "{heard:?}");
    let names: Vec<_> = std::fs::read_dir(&outside).expect("it is there").flatten().collect();
    assert_eq!(names.len(), 1, "nothing came there: {names:?}");
    assert!(root.join("in/l").is_symlink() && !root.join("in/h").exists());
}

#[test]
fn clients_that_break_the_protocol_are_refused_and_others_are_served() {
    let root = tempfile::tempdir().expect("a directory");
    let server = serve(root.path());
    let refused = |client: &mut Client, why: &str| {
        let heard = client.hear_all();
        let is_told = heard
            .iter()
            .any(|message| matches!(message, Message::Refused { text } if text.contains(why)));
        assert!(is_told, "not {why:?}: {heard:?}");
    };
    let mut client = Client::new(server);
    client.tell(hello("x", 99));
    refused(&mut client, "version");
    for place in ["../x", "a/../../x"] {
        let mut client = Client::new(server);
        client.greet(place);
        refused(&mut client, place);
    }
    let mut client = Client::new(server);
    client.greet("a");
    client.tell(Message::Entries(vec![file(0, "a", 3)]));
    for _ in 0..200 {
        client.say(&block(0, b"abcd"), b"abcd");
    }
    refused(&mut client, "behind the end of a file");
    let mut client = Client::new(server);
    client.greet("b");
    client.say(&block(7, b"abc"), b"abc");
    refused(&mut client, "not told");
    let mut client = Client::new(server);
    client.greet("c");
    let long = vec![0; 8_192];
    client.say(&block(0, &long), &long);
    assert!(!client.hear_all().iter().any(|message| matches!(message, Message::Done(_))));
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64]] {
        let mut client = Client::new(server);
        client.0.write_all(bytes).expect("it listens");
        assert_eq!(client.hear_all(), []);
    }
    let mut client = Client::new(server);
    client.tell(Message::Attach { token: 5 });
    assert_eq!(client.hear_all(), []);
    // One that keeps to the rules.
    let mut client = Client::new(server);
    client.greet("good");
    client.tell(Message::Entries(vec![file(0, "f", 3)]));
    client.say(&block(0, b"abc"), b"abc");
    client.tell(Message::WalkEnd { entries: 1 });
    assert!(matches!(client.hear_all().last(), Some(Message::Done(_))));
    assert_eq!(std::fs::read(root.path().join("good")).expect("it came"), b"abc");
    // The journals of those that were cut off stay, for whoever goes on.
    let names = std::fs::read_dir(root.path()).expect("it is there").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let others: Vec<_> = names.filter(|name| !name.starts_with(".weft-")).collect();
    assert_eq!(others, ["good"], "nothing else is left");
}

#[test]
fn a_server_off_loopback_needs_a_key() {
    let options = ServeOptions {
        // No daemon is there, so that there is no fabric.
        opening: Opening::named("a test").expect("sound options").at(Path::new("/none/weft.sock")),
        listen: "0.0.0.0:0".parse().expect("an address"),
        clients: Clients::All,
        is_read_only: true,
        settings: Settings::default(),
    };
    let refused = Server::new(Path::new("/"), options).map(drop);
    assert!(matches!(refused, Err(CopyError::Place { why, .. }) if why.contains("key")));
}
