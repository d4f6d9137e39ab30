//! One request to a server: what `weft kv admin` needs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use weft_resp::{Protocol, Reply, Value};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The connection.
    #[error("{0}")]
    Connection(#[from] io::Error),
    /// The answer is not of the Redis protocol.
    #[error(transparent)]
    Malformed(#[from] weft_resp::Malformed),
    /// The server said no.
    #[error("the server says: {0}")]
    Refused(String),
}

/// Sends one request, after the password, and waits for the answer.
///
/// # Errors
/// When there is none, or the answer is an error.
pub fn ask(
    address: SocketAddr,
    password: Option<&[u8]>,
    request: &[&[u8]],
) -> Result<Value, AskError> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if let Some(password) = password {
        exchange(&mut stream, &[b"AUTH", password])?;
    }
    exchange(&mut stream, request)
}

fn exchange(stream: &mut TcpStream, request: &[&[u8]]) -> Result<Value, AskError> {
    let mut bytes = Vec::new();
    let mut reply = Reply::new(&mut bytes, Protocol::Resp2, usize::MAX);
    reply.array(request.len());
    request.iter().for_each(|word| reply.bulk(word));
    stream.write_all(&bytes)?;
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        if let Some((value, _)) = Value::decode(&answer)? {
            return match value {
                Value::Error(text) => Err(AskError::Refused(text)),
                value => Ok(value),
            };
        }
        match stream.read(&mut part)? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => answer.extend_from_slice(&part[..count]),
        }
    }
}
