//! TLS 1.3 over a TCP connection, and the proof that both ends know the key.
//!
//! The keys of TLS are made for the connection. What counts is the proof: an HMAC by the shared key
//! over the exporter of the connection, the role and the TLS key of the one who proves, as between
//! daemons of a fabric (`weft-membership`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::Connection;
use weft_membership::{FabricKeys, Identity, OwnIdentity, Role, Tls, identity_of};

use crate::channel::Channel;
use crate::error::CopyError;

/// The protocol's name in the handshake.
const ALPN: &[u8] = b"weft-transfer";
/// The label of the key material that binds the proofs to their connection.
const EXPORTER: &[u8] = b"EXPORTER-weft-transfer-1";
/// Bytes of plain text that are sealed at once: sixteen records.
const CHUNK_BYTES: usize = 256 << 10;

/// The key that both ends of a connection know.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    keys: Arc<FabricKeys>,
}

impl Key {
    /// The keys of a file, as `weft fabric key` makes them.
    pub fn of_text(text: &str) -> Result<Self, CopyError> {
        let keys = FabricKeys::parse(text).map_err(|why| CopyError::place("the key", why))?;
        Ok(Self { keys: Arc::new(keys) })
    }

    /// A key that is made of a ticket.
    pub fn of_ticket(ticket: u128) -> Self {
        let hmac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &ticket.to_le_bytes());
        let secret = ring::hmac::sign(&hmac, b"weft transfer ticket 1");
        let secret: [u8; 32] = secret.as_ref().try_into().expect("SHA-256 has 32 bytes");
        Self { keys: Arc::new(FabricKeys::of_secret(&secret)) }
    }
}

fn failed(why: impl ToString) -> CopyError {
    CopyError::Refused(why.to_string())
}

/// Shakes hands over a connection and proves the key, both ways.
pub(crate) fn secure(stream: TcpStream, role: Role, key: &Key) -> Result<Channel, CopyError> {
    match role {
        Role::Dialer => {
            let mut hands = shake(stream, role)?;
            hands.prove(key)?;
            let shown = hands.hear()?;
            if !hands.accepts(key, &shown) {
                return Err(failed("the other end does not know the key"));
            }
            Ok(hands.channel())
        }
        Role::Listener => answer(stream, [key]).map(|(channel, _)| channel),
    }
}

/// Shakes hands with one that dialed, and finds out which of the keys it knows: the number of it is
/// returned. One that knows none is shown no proof.
pub(crate) fn answer<'a>(
    stream: TcpStream,
    keys: impl IntoIterator<Item = &'a Key>,
) -> Result<(Channel, usize), CopyError> {
    let mut hands = shake(stream, Role::Listener)?;
    let shown = hands.hear()?;
    let found = keys.into_iter().enumerate().find(|(_, key)| hands.accepts(key, &shown));
    let (number, key) = found.ok_or_else(|| failed("the other end does not know the key"))?;
    hands.prove(key)?;
    Ok((hands.channel(), number))
}

/// A connection under TLS whose ends have not proved a key yet.
struct Hands {
    reading: Reading,
    writing: Writing,
    role: Role,
    exporter: [u8; 32],
    own: Identity,
    other: Identity,
}

impl Hands {
    fn prove(&mut self, key: &Key) -> Result<(), CopyError> {
        let proof = key.keys.prove(&self.exporter, self.role, &self.own);
        self.writing.write_all(&proof).map_err(failed)
    }

    /// The proof of the other end.
    fn hear(&mut self) -> Result<[u8; 32], CopyError> {
        let mut shown = [0; 32];
        let heard = self.reading.read_exact(&mut shown);
        heard.map_err(|_| failed("the other end does not accept the key"))?;
        Ok(shown)
    }

    fn accepts(&self, key: &Key, shown: &[u8; 32]) -> bool {
        key.keys.accept(shown, &self.exporter, self.role.other(), &self.other)
    }

    fn channel(self) -> Channel {
        Channel::new(self.reading, self.writing)
    }
}

fn shake(stream: TcpStream, role: Role) -> Result<Hands, CopyError> {
    let own = OwnIdentity::generate().map_err(failed)?;
    let tls = Tls::of_protocol(&own, ALPN).map_err(failed)?;
    let mut connection = tls.connection(role).map_err(failed)?;
    let mut socket = &stream;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).map_err(|why| {
            failed(format!("it does not speak this protocol, or has another key: {why}"))
        })?;
    }
    if connection.alpn_protocol() != Some(ALPN) {
        return Err(failed("it speaks TLS for something else"));
    }
    let mut exporter = [0; 32];
    exporter = connection.export_keying_material(exporter, EXPORTER, None).map_err(failed)?;
    let other = identity_of(&connection).ok_or_else(|| failed("it showed no key"))?;
    // Sealed bytes leave at once.
    connection.set_buffer_limit(None);
    let shared = Arc::new(Shared { tls: Mutex::new(connection), writing: Mutex::new(()), stream });
    let reading =
        Reading { shared: Arc::clone(&shared), space: vec![0; 64 << 10], start: 0, end: 0 };
    Ok(Hands { reading, writing: Writing(shared), role, exporter, own: own.identity(), other })
}

/// A connection whose halves belong to two threads.
struct Shared {
    tls: Mutex<Connection>,
    /// Held while records go to the socket, so that they go in the order in which they were
    /// sealed.
    writing: Mutex<()>,
    stream: TcpStream,
}

impl Shared {
    /// Writes what is sealed. The caller holds `writing`.
    fn flush(&self, sealed: &mut Vec<u8>) -> io::Result<()> {
        sealed.clear();
        {
            let mut tls = self.tls.lock();
            while tls.wants_write() {
                tls.write_tls(sealed)?;
            }
        }
        (&self.stream).write_all(sealed)
    }
}

struct Reading {
    shared: Arc<Shared>,
    /// Sealed bytes, of which those from `start` to `end` are still to be opened.
    space: Vec<u8>,
    start: usize,
    end: usize,
}

impl Read for Reading {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.shared.tls.lock().reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.start == self.end {
                self.start = 0;
                self.end = (&self.shared.stream).read(&mut self.space)?;
                if self.end == 0 {
                    // The end of TCP without that of TLS: somebody may have cut the connection.
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            // TLS takes more only when what it has opened was taken.
            let mut sealed = &self.space[self.start..self.end];
            let mut tls = self.shared.tls.lock();
            self.start += tls.read_tls(&mut sealed)?;
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

struct Writing(Arc<Shared>);

impl Write for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _order = self.0.writing.lock();
        let count = bytes.len().min(CHUNK_BYTES);
        self.0.tls.lock().writer().write_all(&bytes[..count])?;
        self.0.flush(&mut Vec::new())?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let _order = self.0.writing.lock();
        self.0.tls.lock().send_close_notify();
        // An end that is gone does not hear it.
        let _ = self.0.flush(&mut Vec::new());
        let _ = self.0.stream.shutdown(std::net::Shutdown::Write);
    }
}
