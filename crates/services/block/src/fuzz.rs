//! Entry functions for fuzzing: whatever peers can say, over a unit in a byte array.
//!
//! Bytes are read as a list of messages, each made plausible in the fields that would otherwise
//! stop nearly all of them at once (magic numbers, the numbers of commands). The targets are in
//! `fuzz/fuzz_targets`; `tests/corpus.rs` replays what they found.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::iscsi::pdu::{Head, padding};
use crate::iscsi::{self, Connection, Start, Target, Targets};
use crate::nbd::{self, Exports, Server};
use crate::scsi::{Begun, Identity, NoUnits, Outcome, Port, Unit, UnitOptions};
use crate::store::{Extent, Store, StoreError};

/// Blocks of the unit.
const BLOCKS: usize = 64;
const NAME: &str = "iqn.2026-11.example:test";

/// A store in a byte array, which can be told to fail.
#[derive(Debug)]
pub struct Bytes {
    /// The bytes.
    pub bytes: Mutex<Vec<u8>>,
    /// An error that every call has.
    pub fails: Mutex<Option<StoreError>>,
    /// How often it was flushed.
    pub flushes: Mutex<u32>,
}

impl Bytes {
    /// So many zeros.
    #[must_use]
    pub fn new(length: usize) -> Arc<Self> {
        let (bytes, fails) = (Mutex::new(vec![0; length]), Mutex::new(None));
        Arc::new(Self { bytes, fails, flushes: Mutex::new(0) })
    }

    fn check(&self) -> Result<(), StoreError> {
        self.fails.lock().map_or(Ok(()), Err)
    }
}

fn place(at: u64) -> usize {
    usize::try_from(at).expect("a place in a small array")
}

impl Store for Bytes {
    fn bytes(&self) -> u64 {
        self.bytes.lock().len() as u64
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn is_thin(&self) -> bool {
        true
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.check()?;
        into.copy_from_slice(&self.bytes.lock()[place(at)..place(at) + into.len()]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), StoreError> {
        self.check()?;
        self.bytes.lock()[place(at)..place(at) + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.check()?;
        *self.flushes.lock() += 1;
        Ok(())
    }

    fn zero(&self, at: u64, length: u64, _: bool) -> Result<(), StoreError> {
        self.write(at, &vec![0; place(length)])
    }

    fn extents(&self, _: u64, length: u64, _: usize) -> Result<Vec<Extent>, StoreError> {
        Ok(vec![Extent { length, is_hole: false }])
    }
}

/// A unit over a store.
///
/// # Panics
/// Never: nothing was kept from earlier.
#[must_use]
pub fn unit_over(store: Arc<dyn Store>) -> Arc<Unit> {
    let identity = Identity::new(NAME, 0);
    let unit = Unit::new(identity, UnitOptions::default(), store, None, None);
    Arc::new(unit.expect("nothing was kept that could be damaged"))
}

/// A connection at a server of one target with one unit, before login.
///
/// # Panics
/// Never: the target is well-formed and alone.
#[must_use]
pub fn connection(credentials: Vec<iscsi::Credentials>) -> Connection {
    let targets = Targets::default();
    let target = Target::new(NAME, credentials).expect("a name");
    target.add(0, unit_over(Bytes::new(BLOCKS * 512))).expect("the target has no unit yet");
    targets.add(Arc::new(target)).expect("there is no target yet");
    let (portal, random) = ("127.0.0.1:3260".to_owned(), [5; 17]);
    Connection::new(Start { targets: Arc::new(targets), portal, random, now: Duration::ZERO })
}

/// The bytes of a PDU without digests.
#[must_use]
pub fn pdu(head: &Head, data: &[u8]) -> Vec<u8> {
    let mut bytes = head.with_data_bytes(data.len()).0.to_vec();
    bytes.extend(data);
    bytes.resize(bytes.len() + padding(data.len()), 0);
    bytes
}

/// A login request with all keys that have to be there, and more.
#[must_use]
pub fn login(more: &str) -> Vec<u8> {
    let keys = format!("InitiatorName=iqn.i\0TargetName={NAME}\0SessionType=Normal\0{more}");
    pdu(&Head::new(0x43, 0x87, 1).with(24, 10), keys.as_bytes())
}

/// Gives bytes to a connection as far as it takes them, runs its jobs, and returns what it sends.
pub fn exchange(connection: &mut Connection, mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let before = bytes.len();
        if connection.wants_input() && !bytes.is_empty() {
            let (first, second) = connection.space();
            let taken = fill(first, second, bytes);
            bytes = &bytes[taken..];
            connection.filled(taken, Duration::ZERO);
        }
        let mut worked = false;
        while let Some(event) = connection.poll_event() {
            worked = true;
            if let iscsi::Event::Run { ticket, job, data, mut into } = event {
                let outcome = job.run(&data, &mut into, &NoUnits);
                connection.finished(ticket, outcome, into, data);
            }
        }
        let mut parts = Vec::new();
        connection.parts(&mut parts);
        let sent: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
        if !sent.is_empty() {
            connection.sent(sent.len());
            out.extend(sent);
        } else if !worked && bytes.len() == before {
            return out;
        }
    }
}

/// The same for a connection of NBD.
pub fn exchange_nbd(server: &mut Server, mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let before = bytes.len();
        if server.wants_input() && !bytes.is_empty() {
            let (first, second) = server.space();
            let taken = fill(first, second, bytes);
            bytes = &bytes[taken..];
            server.filled(taken);
        }
        let mut worked = false;
        while let Some(event) = server.poll_event() {
            worked = true;
            match event {
                nbd::Event::Run { ticket, job, data, mut into } => {
                    let outcome = job.run(&data, &mut into, &NoUnits);
                    server.finished(ticket, &outcome, into, data);
                }
                nbd::Event::StartTls => server.tls_started(),
                nbd::Event::Chosen(_) => {}
            }
        }
        let mut parts = Vec::new();
        server.parts(&mut parts);
        let sent: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
        if !sent.is_empty() {
            server.sent(sent.len());
            out.extend(sent);
        } else if !worked && bytes.len() == before {
            return out;
        }
    }
}

fn fill(first: &mut [u8], second: &mut [u8], bytes: &[u8]) -> usize {
    let one = first.len().min(bytes.len());
    first[..one].copy_from_slice(&bytes[..one]);
    let two = second.len().min(bytes.len() - one);
    second[..two].copy_from_slice(&bytes[one..one + two]);
    one + two
}

/// An exporter of one unit, by the names "" and "0".
#[derive(Debug)]
pub struct One(pub Arc<Unit>);

impl Exports for One {
    fn find(&self, name: &str) -> Option<Arc<Unit>> {
        (name.is_empty() || name == "0").then(|| Arc::clone(&self.0))
    }

    fn names(&self) -> Vec<String> {
        vec!["0".to_owned()]
    }
}

/// An initiator that sends anything. The first byte says whether it is logged in; then each
/// message has a byte for its kind, one for the length of its data, and a head.
pub fn fuzz_iscsi(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let mut connection = connection(Vec::new());
    if first & 1 != 0 {
        exchange(&mut connection, &login(if first & 2 != 0 { "InitialR2T=No\0" } else { "" }));
    } else if first & 4 != 0 {
        exchange(&mut connection, rest);
        return;
    }
    let mut number = 10;
    for message in rest.chunks_exact(50) {
        let kind = usize::from(message[0] & 7);
        let mut head = Head(std::array::from_fn(|byte| message[2 + byte]));
        let opcodes = [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, head.0[0] & 0x3f];
        let tag = u32::from(head.0[19] & 3);
        head.0[0] = opcodes[kind] | head.0[0] & 0x40;
        head.0[4] = 0;
        head.0[8..16].fill(0);
        head = head.with(16, tag).with(24, number);
        if !head.is_immediate() && kind != 5 {
            number = number.wrapping_add(1);
        }
        if kind == 1 {
            head = head.with(20, head.word(20) & 0xfff);
        }
        exchange(&mut connection, &pdu(&head, &vec![message[2]; usize::from(message[1]) * 4]));
        if connection.is_over() {
            return;
        }
    }
}

/// A client that sends anything. The first byte says how far it is; then each message has a byte
/// for its kind, one for the length of its data, and 28 bytes.
pub fn fuzz_nbd(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let exports = Arc::new(One(unit_over(Bytes::new(BLOCKS * 512))));
    let start = nbd::Start { exports, requires_tls: first & 4 != 0, now: Duration::ZERO };
    let mut server = Server::new(&start);
    exchange_nbd(&mut server, &3_u32.to_be_bytes());
    if first & 1 != 0 {
        exchange_nbd(&mut server, b"IHAVEOPT\0\0\0\x08\0\0\0\0");
        let query = b"IHAVEOPT\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
        exchange_nbd(&mut server, query);
    }
    if first & 2 != 0 {
        exchange_nbd(&mut server, b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    }
    for message in rest.chunks_exact(30) {
        let (kind, length, raw) = (message[0] & 3, usize::from(message[1]), &message[2..]);
        let bytes = match kind {
            0 => {
                let data = &raw[..length % 28];
                let mut bytes = b"IHAVEOPT\0\0\0".to_vec();
                bytes.push(raw[0] % 12);
                bytes.extend([0, 0, 0, u8::try_from(data.len()).expect("less than 28")]);
                bytes.extend(data);
                bytes
            }
            1 | 2 => {
                let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
                bytes.extend([0, raw[5] & 15, 0, raw[7] % 9]);
                bytes.extend(&raw[8..16]);
                bytes.extend([0, 0, 0, 0, 0, 0, raw[22], raw[23], 0, 0, raw[26], raw[27]]);
                bytes.extend(vec![raw[0]; length]);
                bytes
            }
            _ => raw.to_vec(),
        };
        exchange_nbd(&mut server, &bytes);
        if server.is_over() {
            return;
        }
    }
}

/// Commands of two sessions with any data: each has a byte for the session, one for the length of
/// its data, 16 bytes of command, and the data.
pub fn fuzz_scsi(input: &[u8]) {
    let unit = unit_over(Bytes::new(BLOCKS * 512));
    let port = |number: u8| Port { name: "iqn.i".to_owned(), isid: [number; 6] };
    let (Some(one), Some(two)) = (unit.attach(&port(1)), unit.attach(&port(2))) else { return };
    let mut rest = input;
    while let Some((head, behind)) = rest.split_first_chunk::<18>() {
        let command = std::array::from_fn(|byte| head[2 + byte]);
        let data = &behind[..behind.len().min(head[1].into())];
        rest = &behind[data.len()..];
        let link = if head[0] & 1 == 0 { &one } else { &two };
        let Begun::Job(job) = unit.begin(link, &command, &NoUnits) else { continue };
        let mut data = data.to_vec();
        if head[0] & 2 != 0 {
            data.resize(place(job.data_out()), head[0]);
        }
        if let Outcome::Continues(rest) = job.run(&data, &mut Vec::new(), &NoUnits) {
            let _ = rest.run(&[], &mut Vec::new(), &NoUnits);
        }
    }
}
