//! Facts about a program's socket or process, taken from the kernel and never from the program.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketType, ipproto, sockopt};
use weft_socket::tuple::Tuple;

use crate::status::DaemonStatus;

/// Most reads that empty a wakeup.
const WAKEUP_READS_MAX: usize = 1024;

/// The daemon's own process, without quotas. A number that the kernel does not tell is 0.
pub fn own_process() -> DaemonStatus {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let part = |part| u64::try_from(part).unwrap_or(0);
    DaemonStatus {
        resident_bytes: pages * rustix::param::page_size() as u64,
        descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64),
        cpu_us: part(used.tv_sec) * 1_000_000 + part(used.tv_nsec) / 1_000,
        quotas: Vec::new(),
    }
}

/// Whether a descriptor is a TCP socket.
///
/// # Errors
/// `NOTSOCK` when the descriptor is not a socket.
pub fn is_tcp(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let is_tcp = sockopt::socket_protocol(file)? == Some(ipproto::TCP);
    Ok(is_tcp && sockopt::socket_type(file)? == SocketType::STREAM)
}

/// The network namespace and addresses of a connected TCP socket.
pub fn tuple_of(socket: BorrowedFd<'_>) -> Result<Tuple, String> {
    let describe = |call: &str, errno: rustix::io::Errno| format!("{call}: {errno}");
    let local = rustix::net::getsockname(socket).map_err(|e| describe("getsockname", e))?;
    let remote = rustix::net::getpeername(socket)
        .map_err(|e| describe("getpeername", e))?
        .ok_or("the socket is not connected")?;
    let parse = |address| SocketAddr::try_from(address).map_err(|_| "not an IP socket".to_owned());
    let namespace = weft_channel::network_namespace(socket)
        .map_err(|errno| describe("SO_NETNS_COOKIE", errno))?;
    Ok(Tuple::new(namespace, parse(local)?, parse(remote)?))
}

/// The network namespace and address of a listening TCP socket.
pub fn listener_of(socket: BorrowedFd<'_>) -> Result<(u64, SocketAddr), String> {
    if sockopt::socket_acceptconn(socket) != Ok(true) {
        return Err("the socket does not listen".to_owned());
    }
    let address = rustix::net::getsockname(socket).map_err(|e| format!("getsockname: {e}"))?;
    let address = SocketAddr::try_from(address).map_err(|_| "not an IP socket".to_owned())?;
    let namespace = weft_channel::network_namespace(socket)
        .map_err(|errno| format!("SO_NETNS_COOKIE: {errno}"))?;
    Ok((namespace, address))
}

/// Empties a wakeup and shuts down its receiving side for good. Descriptors that lie in a socket
/// are closed with the socket, and closing one can take as long as its maker likes.
pub fn silence(wakeup: BorrowedFd<'_>) -> Result<(), String> {
    let is_stream = sockopt::socket_domain(wakeup) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(wakeup) == Ok(SocketType::STREAM)
        && rustix::net::getpeername(wakeup).is_ok_and(|peer| peer.is_some());
    if !is_stream {
        return Err("the descriptor is neither a TCP socket nor a connected UNIX stream".to_owned());
    }
    // Nothing arrives after this shutdown; the loop reads what is there up to the end.
    let shut = rustix::net::shutdown(wakeup, Shutdown::Read);
    shut.map_err(|errno| format!("shutdown: {errno}"))?;
    let mut bytes = [0; 4096];
    for _ in 0..WAKEUP_READS_MAX {
        match rustix::net::recv(wakeup, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(format!("a wakeup cannot be read: {errno}")),
        }
    }
    Err("a wakeup has too many unread bytes".to_owned())
}

/// The inode of a socket, and the user who made or accepted it.
pub fn socket_of(socket: impl AsFd) -> Option<(u64, u32)> {
    let status = rustix::fs::fstat(socket).ok()?;
    let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
    is_socket.then_some((status.st_ino, status.st_uid))
}

/// False when process `pid` has certainly closed the socket `inode` without telling the daemon.
/// `number` is the descriptor number under which the process had the socket.
pub fn still_holds(pid: u32, number: u32, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let is_wanted = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == wanted.as_str())
    };
    let directory = PathBuf::from(format!("/proc/{pid}/fd"));
    if is_wanted(&directory.join(number.to_string())) {
        return true;
    }
    // Programs duplicate a connection to another number and close the first one.
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.flatten().any(|entry| is_wanted(&entry.path())),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

/// Whether this process is in the first user namespace of the kernel, in which each user has a
/// number of its own.
pub fn is_in_first_user_namespace() -> bool {
    /// `PROC_USER_INIT_INO` of linux/proc_ns.h.
    const FIRST: u64 = 0xefff_fffd;
    rustix::fs::stat("/proc/self/ns/user").is_ok_and(|status| status.st_ino == FIRST)
}

/// Whether `process` is in the same process namespace as this process.
pub fn shares_process_numbers(process: u32) -> bool {
    let namespace = |process: &str| {
        rustix::fs::stat(format!("/proc/{process}/ns/pid")).ok().map(|status| status.st_ino)
    };
    let own = namespace("self");
    own.is_some() && own == namespace(&process.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_of_a_connection_have_mirrored_tuples() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let client = TcpStream::connect(address).expect("listening");
        let (server, _) = listener.accept().expect("connected");
        let tuple = tuple_of(client.as_fd()).expect("TCP");
        assert_eq!(tuple.mirrored(), tuple_of(server.as_fd()).expect("TCP"));
        let own = weft_channel::network_namespace(client.as_fd()).expect("Linux 5.14");
        assert_eq!(listener_of(listener.as_fd()), Ok((own, address)));
        assert_eq!(is_tcp(client.as_fd()), Ok(true));
        assert!(tuple_of(listener.as_fd()).is_err());
        assert!(listener_of(client.as_fd()).is_err());
    }

    #[test]
    fn process_numbers_are_shared_with_this_process_and_not_with_an_absent_one() {
        assert!(shares_process_numbers(std::process::id()));
        assert!(!shares_process_numbers(u32::MAX));
    }

    #[test]
    fn other_sockets_and_files_are_refused() {
        let datagram = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        assert_eq!(is_tcp(datagram.as_fd()), Ok(false));
        let file = std::fs::File::open("/dev/null").expect("always there");
        assert_eq!(is_tcp(file.as_fd()), Err(Errno::NOTSOCK));
        assert_eq!(socket_of(&file), None);
    }

    #[test]
    fn a_descriptor_that_was_closed_is_noticed() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let (inode, owner) = socket_of(&socket).expect("a socket");
        assert_eq!(owner, rustix::process::geteuid().as_raw());
        let number = socket.as_raw_fd().unsigned_abs();
        assert!(still_holds(std::process::id(), number, inode));
        assert!(!still_holds(std::process::id(), number, inode + 1));
        assert!(still_holds(std::process::id(), 999_999, inode), "under another number");
        drop(socket);
        assert!(!still_holds(std::process::id(), number, inode));
    }
}
