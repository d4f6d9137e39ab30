//! The sequence numbers of a TCP connection, as the kernel of this host has them.
//!
//! The two ends of a connection agree on two numbers of 32 bits, with which the bytes of each
//! direction begin. The kernel chooses them, a new pair for each connection, and network address
//! translation leaves them as they are. So two sockets whose numbers mirror each other are the two
//! ends of one connection, in whatever network namespaces they are. Two that copy a stream from one
//! connection to another, as a proxy does, have different ones.
//!
//! An eBPF program reads them out of the kernel's socket, which notices nothing. `TCP_REPAIR` reads
//! them, too, but calls of the program on that socket would fail meanwhile.
//!
//! # Invariants
//! - The program finds a socket by its addresses in its namespace. Two sockets with the same
//!   addresses exist only where one is bound to an interface; such a socket has no numbers here.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};

use crate::bpf::{self, Instruction, Kind};
use crate::{namespace, sys};

/// The head of an Ethernet frame, which the kernel wants of a packet.
const HEAD: usize = 14;
/// `ETH_P_802_EX1`, which no layer of the kernel looks into.
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];
/// Where the addresses lie in the packet: `struct bpf_sock_tuple`, with those of IPv6 the longer.
const ADDRESSES: usize = 16;
const ADDRESSES_V4: i32 = 12;
const ADDRESSES_V6: i32 = 36;
/// Where the program writes its findings: eight numbers of 64 bits.
const FINDINGS: usize = 56;
const NUMBERS: usize = 6;
const PACKET: usize = FINDINGS + 8 * NUMBERS;
/// Reads until two in a row agree. One that met a segment amid the kernel's own writes is wrong.
const READS_MAX: usize = 16;
/// States in which both numbers are known, from `net/tcp_states.h`: established, FIN_WAIT1,
/// FIN_WAIT2, CLOSE_WAIT, CLOSING, LAST_ACK.
const CONNECTED: [u64; 6] = [1, 4, 5, 8, 11, 9];

/// The numbers with which the two directions of a connection begin, as the kernel counts them at
/// one end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Beginnings {
    /// That of the first byte which this end sends. At the end that connected it is one less: the
    /// kernel counts what began the connection among the bytes that were acknowledged.
    pub sent: u32,
    /// That of the first byte which this end receives.
    pub received: u32,
    /// The user namespace that owns the socket's network namespace. Whoever has the rights of its
    /// root can give a socket there any numbers.
    pub owner: u64,
}

/// Reads the numbers of sockets.
#[derive(Debug)]
pub struct Reader {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Reader {
    /// Loads the programs.
    ///
    /// # Errors
    /// `PERM` without the rights of the host's root, others as for bpf(2).
    pub fn new() -> Result<Self> {
        let load = |bytes| bpf::load(Kind::Classifier, &program(bytes));
        Ok(Self { v4: load(ADDRESSES_V4)?, v6: load(ADDRESSES_V6)? })
    }

    /// The numbers of a connected TCP socket.
    ///
    /// # Errors
    /// `NOTCONN` when the kernel does not find it so, `BUSY` when its numbers do not come to rest,
    /// `PERM` when this process may not enter its network namespace.
    pub fn read(&self, socket: BorrowedFd<'_>) -> Result<Beginnings> {
        let parse = |address| SocketAddr::try_from(address).map_err(|_| Errno::AFNOSUPPORT);
        let local = parse(rustix::net::getsockname(socket)?)?;
        let remote = parse(rustix::net::getpeername(socket)?.ok_or(Errno::NOTCONN)?)?;
        if sys::bound_to(socket)? != 0 {
            return Err(Errno::NOTCONN);
        }
        let network = sys::network_of(socket)?;
        let owner = rustix::fs::fstat(sys::owner_of(network.as_fd())?)?.st_ino;
        let (addresses, program) = match packed(local, remote) {
            (addresses, true) => (addresses, &self.v6),
            (addresses, false) => (addresses, &self.v4),
        };
        let (sent, received) =
            namespace::within(&network, || beginnings(program.as_fd(), &addresses))?;
        Ok(Beginnings { sent, received, owner })
    }
}

/// The addresses of the connection as of a packet that arrives on it, and whether they are of IPv6.
fn packed(local: SocketAddr, remote: SocketAddr) -> (Vec<u8>, bool) {
    let mut bytes = Vec::with_capacity(PACKET - ADDRESSES);
    let ips = [remote, local].map(|address| address.ip().to_canonical());
    for ip in ips {
        match ip {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    bytes.extend([remote, local].iter().flat_map(|address| address.port().to_be_bytes()));
    (bytes, ips[0].is_ipv6())
}

fn beginnings(program: BorrowedFd<'_>, addresses: &[u8]) -> Result<(u32, u32)> {
    let mut last = None;
    for _ in 0..READS_MAX {
        let now = look(program, addresses)?;
        if last.replace(now) == Some(now) {
            return Ok(now);
        }
    }
    Err(Errno::BUSY)
}

/// One look at the socket.
fn look(program: BorrowedFd<'_>, addresses: &[u8]) -> Result<(u32, u32)> {
    let mut packet = [0; PACKET];
    packet[HEAD - 2..HEAD].copy_from_slice(&EXPERIMENTAL);
    let place = packet.get_mut(ADDRESSES..ADDRESSES + addresses.len()).ok_or(Errno::INVAL)?;
    place.copy_from_slice(addresses);
    bpf::run(program, &mut packet)?;
    let (found, _) = packet[FINDINGS..].as_chunks::<8>();
    let mut numbers = [0; NUMBERS];
    for (number, bytes) in numbers.iter_mut().zip(found) {
        *number = u64::from_ne_bytes(*bytes);
    }
    let [state, interface, acknowledged, bytes_acknowledged, next, bytes_received] = numbers;
    if !CONNECTED.contains(&state) || interface != 0 {
        return Err(Errno::NOTCONN);
    }
    // Sequence numbers have 32 bits and wrap around.
    #[allow(clippy::cast_possible_truncation, reason = "the numbers wrap around at 32 bits")]
    let before = |number: u64, bytes: u64| number.wrapping_sub(bytes) as u32;
    Ok((before(acknowledged, bytes_acknowledged), before(next, bytes_received)))
}

/// A program that looks a socket up by the addresses in the packet, and writes into the packet:
/// its state, the interface that it is bound to, `snd_una`, `bytes_acked`, `rcv_nxt` and
/// `bytes_received`; all zero when there is none.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "places and lengths below a hundred"
)]
fn program(addresses: i32) -> Vec<Instruction> {
    use bpf::helper::{LOAD_BYTES, LOOK_UP_TCP, RELEASE_SOCKET, STORE_BYTES, TCP_SOCKET};
    use bpf::register::{FRAME, R0, R1, R2, R3, R4, R5, R6, R7};
    /// Places on the stack.
    const TUPLE: i16 = -40;
    const FOUND: i16 = TUPLE - 8 * NUMBERS as i16;
    /// `struct bpf_sock` and `struct bpf_tcp_sock`.
    const BOUND: i16 = 0;
    const STATE: i16 = 72;
    const RCV_NXT: i16 = 16;
    const SND_UNA: i16 = 24;
    const BYTES_RECEIVED: i16 = 80;
    const BYTES_ACKED: i16 = 88;
    let found = |place: i16| FOUND + 8 * place;
    let from_tcp_socket = [
        Instruction::load_word(R1, R0, SND_UNA),
        Instruction::store_register(FRAME, found(2), R1),
        Instruction::load_double(R1, R0, BYTES_ACKED),
        Instruction::store_register(FRAME, found(3), R1),
        Instruction::load_word(R1, R0, RCV_NXT),
        Instruction::store_register(FRAME, found(4), R1),
        Instruction::load_double(R1, R0, BYTES_RECEIVED),
        Instruction::store_register(FRAME, found(5), R1),
    ];
    let from_socket = [
        Instruction::copy(R7, R0),
        Instruction::load_word(R1, R7, STATE),
        Instruction::store_register(FRAME, found(0), R1),
        Instruction::load_word(R1, R7, BOUND),
        Instruction::store_register(FRAME, found(1), R1),
        Instruction::copy(R1, R7),
        Instruction::call(TCP_SOCKET),
        Instruction::jump_if_zero(R0, from_tcp_socket.len() as i16),
    ];
    let release = [Instruction::copy(R1, R7), Instruction::call(RELEASE_SOCKET)];
    let mut program = vec![
        Instruction::copy(R6, R1),
        // The addresses, to the stack.
        Instruction::set(R2, ADDRESSES as i32),
        Instruction::copy(R3, FRAME),
        Instruction::add(R3, i32::from(TUPLE)),
        Instruction::set(R4, addresses),
        Instruction::call(LOAD_BYTES),
        Instruction::set(R1, 0),
    ];
    program.extend((0..NUMBERS as i16).map(|at| Instruction::store_register(FRAME, found(at), R1)));
    program.extend([
        Instruction::copy(R1, R6),
        Instruction::copy(R2, FRAME),
        Instruction::add(R2, i32::from(TUPLE)),
        Instruction::set(R3, addresses),
        // The namespace of the packet, which is that of the thread.
        Instruction::set(R4, -1),
        Instruction::set(R5, 0),
        Instruction::call(LOOK_UP_TCP),
        Instruction::jump_if_zero(
            R0,
            (from_socket.len() + from_tcp_socket.len() + release.len()) as i16,
        ),
    ]);
    program.extend(from_socket);
    program.extend(from_tcp_socket);
    program.extend(release);
    program.extend([
        Instruction::copy(R1, R6),
        Instruction::set(R2, FINDINGS as i32),
        Instruction::copy(R3, FRAME),
        Instruction::add(R3, i32::from(FOUND)),
        Instruction::set(R4, 8 * NUMBERS as i32),
        Instruction::set(R5, 0),
        Instruction::call(STORE_BYTES),
        Instruction::set(R0, 0),
        Instruction::exit(),
    ]);
    program
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests own threads and sockets")]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn reader() -> Option<Reader> {
        match Reader::new() {
            Ok(reader) => Some(reader),
            Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
                eprintln!("skipped: the kernel lets this user load no programs");
                None
            }
            Err(errno) => panic!("{errno}"),
        }
    }

    fn connection(at: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(at).expect("loopback");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
        (client, listener.accept().expect("connected").0)
    }

    #[test]
    fn the_numbers_of_two_ends_mirror_each_other_before_and_after_data() {
        let Some(reader) = reader() else { return };
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let (mut client, mut server) = connection(at);
            let both = |client: &TcpStream, server: &TcpStream| {
                [client, server].map(|end| reader.read(end.as_fd()).expect("connected"))
            };
            let [one, other] = both(&client, &server);
            assert_eq!(one.sent.wrapping_add(1), other.received, "{at}");
            assert_eq!((one.received, one.owner), (other.sent, other.owner), "{at}");
            let mut bytes = vec![7; 100_000];
            client.write_all(&bytes).expect("room");
            server.read_exact(&mut bytes).expect("sent");
            server.write_all(&bytes[..10_000]).expect("room");
            assert_eq!(both(&client, &server), [one, other], "{at}");
            server.shutdown(std::net::Shutdown::Write).expect("connected");
            client.read_to_end(&mut Vec::new()).expect("sent");
            assert_eq!(both(&client, &server), [one, other], "{at}, after an end");
        }
    }

    #[test]
    fn the_numbers_stay_while_data_move() {
        let Some(reader) = reader() else { return };
        let (mut client, mut server) = connection("127.0.0.1:0");
        let first = reader.read(client.as_fd()).expect("connected");
        let other = reader.read(server.as_fd()).expect("connected");
        let (sender, receiver) =
            (client.try_clone().expect("a number"), server.try_clone().expect("a number"));
        let writes = std::thread::spawn(move || {
            for _ in 0..200 {
                client.write_all(&[1; 65_536]).expect("read by the other end");
            }
        });
        let reads = std::thread::spawn(move || {
            let mut bytes = vec![0; 65_536];
            for _ in 0..200 {
                server.read_exact(&mut bytes).expect("sent");
            }
        });
        while !writes.is_finished() {
            for (end, expected) in [(&sender, first), (&receiver, other)] {
                match reader.read(end.as_fd()) {
                    Ok(read) => assert_eq!(read, expected),
                    Err(Errno::BUSY) => {}
                    Err(errno) => panic!("{errno}"),
                }
            }
        }
        writes.join().expect("no panic");
        reads.join().expect("no panic");
    }

    #[test]
    fn two_connections_have_different_numbers_and_other_sockets_none() {
        let Some(reader) = reader() else { return };
        let (one, _server) = connection("127.0.0.1:0");
        let (two, _other) = connection("127.0.0.1:0");
        let [one, two] = [&one, &two].map(|end| reader.read(end.as_fd()).expect("connected"));
        assert_ne!((one.sent, one.received), (two.sent, two.received));
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        assert_eq!(reader.read(listener.as_fd()), Err(Errno::NOTCONN));
    }
}
