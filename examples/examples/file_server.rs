//! A server of files by name, for any number of clients of any host (`weft_examples::service`). A
//! client lends four blocks and asks for a file; the server puts it into them as they come back.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use weft_examples::service::{End, Pair};
use weft_fabric::{
    Access, Blocking, Endpoint, EndpointAddress, LocalRange, PATIENCE, Region, ServiceName, Source,
};
use weft_open::now;
use weft_session::{Admission, Event, Options, PoolId, SessionId, Sessions, bytes_of};

/// The files: the sources of the examples.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
const WANTED: [&str; 4] = ["ping_pong.rs", "file_server.rs", "nothing.rs", "hash_table.rs"];
const BLOCK_BYTES: u32 = 1024;

pub(crate) struct FileServer;

struct Server<E: Endpoint> {
    sessions: Sessions<E>,
    pools: BTreeMap<SessionId, PoolId>,
    /// Files on their way, and how much of each has gone.
    files: BTreeMap<SessionId, (File, u64)>,
}

impl<E: Endpoint> End<E> for Server<E> {
    fn sessions(&mut self) -> &mut Sessions<E> {
        &mut self.sessions
    }

    fn turn(&mut self) -> bool {
        let mut requests = Vec::new();
        self.sessions.poll(now(), 64, |event| match event {
            Event::Pool { session, pool, .. } => drop(self.pools.insert(session, pool)),
            Event::Request { session, number, body, .. } => {
                requests.push((session, number, String::from_utf8(bytes_of(&body))));
            }
            Event::Ended { session, .. } => {
                drop((self.pools.remove(&session), self.files.remove(&session)));
            }
            _ => {}
        });
        for (session, number, name) in requests {
            // Nothing but names in the folder.
            let name = name.ok().filter(|name| !name.contains('/'));
            let file = name.and_then(|name| File::open(format!("{FOLDER}/{name}")).ok());
            let length = file.as_ref().map_or(0, |file| file.metadata().map_or(0, |of| of.len()));
            let code = u16::from(file.is_none());
            self.files.extend(file.map(|file| (session, (file, 0))));
            let _ = self.sessions.answer(session, number, code, b"", &[&length.to_le_bytes()]);
        }
        let mut bytes = [0; BLOCK_BYTES as usize];
        self.files.retain(|session, (file, at)| {
            let Some(pool) = self.pools.get(session) else { return true };
            while let Ok(Some(block)) = self.sessions.take(*session, *pool) {
                let count = file.read_at(&mut bytes, *at).unwrap_or(0);
                let source = Source::Bytes(&bytes[..count]);
                if count == 0 || self.sessions.put(*session, block, source, b"").is_err() {
                    let _ = self.sessions.free(*session, block);
                    return count > 0;
                }
                *at += count as u64;
            }
            true
        });
        true
    }
}

struct Client<E: Endpoint> {
    sessions: Sessions<E>,
    session: SessionId,
    region: E::Region,
    received: Vec<u8>,
    /// How many files were asked for, and the length of the last one, once it is known.
    asked: usize,
    length: Option<u64>,
}

impl<E: Endpoint> End<E> for Client<E> {
    fn sessions(&mut self) -> &mut Sessions<E> {
        &mut self.sessions
    }

    fn turn(&mut self) -> bool {
        let (mut is_open, mut used) = (false, Vec::new());
        self.sessions.poll(now(), 64, |event| match event {
            Event::Opened { .. } => is_open = true,
            Event::Answer { answer, .. } => {
                let bytes = bytes_of(&answer.expect("the server lives").body);
                self.length = Some(u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
            }
            Event::Block { block, length, .. } => {
                let begin = self.received.len();
                self.received.resize(begin + length as usize, 0);
                let at = u64::from(block.place) * u64::from(BLOCK_BYTES);
                self.region.read(at, &mut self.received[begin..]).expect("inside");
                used.push(block);
            }
            Event::Ended { why, .. } => panic!("{why}"),
            _ => {}
        });
        used.into_iter().for_each(|block| self.sessions.free(self.session, block).expect("here"));
        if is_open {
            let whole = LocalRange::whole(&self.region);
            self.sessions.lend(self.session, whole, BLOCK_BYTES, Access::WRITE).expect("a pool");
        }
        let is_whole = self.length == Some(self.received.len() as u64);
        if is_whole {
            let file = fs::read(format!("{FOLDER}/{}", WANTED[self.asked - 1])).unwrap_or_default();
            assert!(self.received == file, "it came as it is");
            (self.received, self.length) = (Vec::new(), None);
        }
        if (is_open || is_whole) && self.asked < WANTED.len() {
            let name = WANTED[self.asked].as_bytes();
            self.sessions.request(self.session, b"", &[name], None).expect("it is the only one");
            self.asked += 1;
            return true;
        }
        !is_whole
    }
}

impl Pair for FileServer {
    const NAME: &str = "files";

    fn service<E: Endpoint>(endpoint: E) -> impl End<E> {
        let options = Options { admission: Admission::All, ..Options::default() };
        let mut sessions = Sessions::new(endpoint, options);
        sessions.serve(ServiceName::new(Self::NAME).expect("a name"), &(1..=1));
        Server { sessions, pools: BTreeMap::new(), files: BTreeMap::new() }
    }

    fn client<E: Endpoint>(mut endpoint: E, service: EndpointAddress) -> impl End<E> {
        let peer = endpoint.connect_within(service, PATIENCE).expect("it is there");
        let region = endpoint.register(4 * u64::from(BLOCK_BYTES)).expect("memory");
        let mut sessions = Sessions::new(endpoint, Options::default());
        let files = ServiceName::new(Self::NAME).expect("a name");
        let session = sessions.open(peer, files, &(1..=1), b"", now()).expect("its first");
        Client { sessions, session, region, received: Vec::new(), asked: 0, length: None }
    }
}

fn main() -> std::process::ExitCode {
    weft_examples::service::main(FileServer)
}
