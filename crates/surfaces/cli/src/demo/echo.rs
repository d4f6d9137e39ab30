//! An echo server and its client over ordinary sockets, for machines that have no other programs.
//!
//! They are ordinary TCP programs that know nothing of weft.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;

use crate::arguments::EchoPart;
use crate::output::show_line;

/// Length of a message, bytes.
const MESSAGE_BYTES: usize = 64;
/// Round trips of the client.
const ROUND_TRIPS: u32 = 20_000;

/// Is one of the two programs.
pub fn part(part: EchoPart, port: u16) -> anyhow::Result<ExitCode> {
    match part {
        EchoPart::Server => serve(&TcpListener::bind(("127.0.0.1", port))?)?,
        EchoPart::Client => {
            show_line!("{}", ask(TcpStream::connect(("127.0.0.1", port))?, ROUND_TRIPS)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(listener: &TcpListener) -> anyhow::Result<()> {
    loop {
        let (connection, _) = listener.accept()?;
        echo(connection)?;
    }
}

fn echo(mut connection: TcpStream) -> anyhow::Result<()> {
    connection.set_nodelay(true)?;
    let mut bytes = [0; 4096];
    loop {
        let count = connection.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        connection.write_all(&bytes[..count])?;
    }
}

/// Microseconds of one round trip.
fn ask(mut connection: TcpStream, round_trips: u32) -> anyhow::Result<f64> {
    connection.set_nodelay(true)?;
    let start = Instant::now();
    for number in 0..round_trips {
        let mut message = [0; MESSAGE_BYTES];
        message[..4].copy_from_slice(&number.to_le_bytes());
        connection.write_all(&message)?;
        let mut answer = [0; MESSAGE_BYTES];
        connection.read_exact(&mut answer)?;
        ensure!(answer == message, "the echo of message {number} differs");
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(round_trips))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_comes_back_unchanged() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || echo(listener.accept().expect("a client").0));
        let took = ask(TcpStream::connect(address).expect("a server"), 10).expect("echoes");
        assert!(took > 0.0);
        server.join().expect("no panic").expect("an orderly end");
    }
}
