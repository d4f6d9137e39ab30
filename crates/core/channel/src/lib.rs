//! Layer 1: packets with descriptors between the programs and the daemon of one host.
//!
//! A channel is a `SOCK_SEQPACKET` UNIX socket: packets keep their bounds, descriptors travel with
//! them, the kernel names the process at the other end, and the death of that process is an end of
//! file. Calls are raw system calls through rustix, so that a preload library can use them inside
//! its own hooks. [`ConnectError`] lists the control sockets that are refused. May depend on
//! `weft-wire` and the operating system.

mod sys;
mod trust;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::{ClockId, clock_gettime};
use weft_wire::control::{BYTES_MAX, DESCRIPTORS_MAX};

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptors.
    pub descriptors: Vec<OwnedFd>,
    /// Descriptors were lost, because this process has its maximum of descriptors open.
    pub descriptors_lost: bool,
}

/// The process at the other end, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The process; 0 where the own process namespace has no number for it.
    pub pid: u32,
    /// The user.
    pub uid: u32,
}

pub use sys::network_namespace;
pub use trust::{ConnectError, open_directory, trust_user};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

impl Channel {
    /// Connects to the daemon that listens at `path`. Refuses a socket that a user other than the
    /// own, root and that of [`trust_user`] could have put there, or at which such a user listens.
    /// Waits at most [`CONNECT_WITHIN`] while the daemon's queue of connections is full.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(path: &Path) -> Result<Self, ConnectError> {
        Self::connect_by(path, connect)
    }

    /// The same without waiting: fails with `AGAIN` while the daemon's queue of connections is
    /// full.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_now(path: &Path) -> Result<Self, ConnectError> {
        Self::connect_by(path, |socket, address| rustix::net::connect(socket, address))
    }

    fn connect_by(
        path: &Path,
        connect: impl Fn(&OwnedFd, &SocketAddrUnix) -> Result<(), Errno>,
    ) -> Result<Self, ConnectError> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = trust::open_directory(directory.unwrap_or(Path::new(".")))?;
        let name = Path::new(path.file_name().ok_or(Errno::ISDIR)?);
        if !trust::is_socket(&directory, name) {
            // A symbolic link is refused as well: it could lead to another user's socket.
            return Err(Errno::NOENT.into());
        }
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        let fixed = SocketAddrUnix::new(trust::fixed_path(&directory, name))?;
        match connect(&socket, &fixed) {
            // `/proc` is not mounted.
            Err(Errno::NOENT) => connect(&socket, &SocketAddrUnix::new(path)?)?,
            other => other?,
        }
        let channel = Self { socket };
        trust::check_listener(channel.peer()?)?;
        Ok(channel)
    }

    /// A channel over a connected socket.
    #[must_use]
    pub const fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Two connected ends, for tests and for helper processes of one program.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn pair() -> Result<(Self, Self), Errno> {
        let (one, two) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        Ok((Self::new(one), Self::new(two)))
    }

    /// Sends a packet. Never blocks.
    ///
    /// # Errors
    /// `AGAIN` when the other end does not read, `PIPE` when it is gone.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(Errno::TOOMANYREFS);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let sent =
                rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags);
            match sent {
                Err(Errno::INTR) => {}
                other => return other.map(|_| ()),
            }
        }
    }

    /// Sends a request to which the other end answers, or has answered already: a daemon that
    /// refuses a program sends why and closes the channel. Never blocks.
    ///
    /// # Errors
    /// `AGAIN` when the other end does not read.
    pub fn ask(&self, bytes: &[u8]) -> Result<(), Errno> {
        match self.send(bytes, &[]) {
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            other => other,
        }
    }

    /// Receives a packet. `Ok(None)` means that the other end is gone. Never blocks.
    ///
    /// # Errors
    /// `AGAIN` when there is no packet, `MSGSIZE` for a packet that was too long and is lost.
    pub fn receive(&self) -> Result<Option<Packet>, Errno> {
        let mut bytes = vec![0; BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut was_reset = false;
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.socket, &mut parts, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                // The other end closed without having read all. The kernel says so once, and then
                // hands out the last packets of the other end.
                Err(Errno::CONNRESET) if !was_reset => was_reset = true,
                other => break other?,
            }
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(Errno::MSGSIZE);
        }
        bytes.truncate(received.bytes);
        let descriptors_lost = received.flags.contains(ReturnFlags::CTRUNC);
        Ok(Some(Packet { bytes, descriptors, descriptors_lost }))
    }

    /// Receives a packet. Waits at most `milliseconds` for it, even if signals interrupt the wait.
    ///
    /// # Errors
    /// `TIMEDOUT` when no packet came, others as for [`Channel::receive`].
    pub fn receive_within(&self, milliseconds: u32) -> Result<Option<Packet>, Errno> {
        let limit = Duration::from_millis(u64::from(milliseconds));
        let start = clock_gettime(ClockId::Monotonic);
        loop {
            match self.receive() {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
            let passed = (clock_gettime(ClockId::Monotonic) - start).try_into().unwrap_or(limit);
            let left = limit.saturating_sub(passed);
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut waiting, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Shuts the channel down at both ends. The descriptor stays open until it is dropped.
    pub fn hang_up(&self) {
        // Fails only if the channel is shut down already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Closes the channel without waiting. Closing descriptors that lie in it unread could block
    /// the calling thread otherwise.
    pub fn close_without_waiting(self) {
        sys::close_without_waiting(self.socket);
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn peer(&self) -> Result<Credentials, Errno> {
        let (pid, uid, _) = sys::peer_of(self.socket.as_fd())?;
        Ok(Credentials { pid, uid })
    }

    /// The groups of the process at the other end.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn peer_groups(&self) -> Result<Vec<u32>, Errno> {
        let (_, _, group) = sys::peer_of(self.socket.as_fd())?;
        let mut groups = sys::peer_groups(self.socket.as_fd())?;
        groups.push(group);
        Ok(groups)
    }

    /// The cookie of the network namespace in which the other end connected, on a channel that was
    /// accepted: the kernel makes an accepted UNIX socket in the namespace of the one that
    /// connected.
    ///
    /// # Errors
    /// As for [`network_namespace`].
    pub fn peer_network(&self) -> Result<u64, Errno> {
        network_namespace(self.socket.as_fd())
    }

    /// A descriptor that becomes readable when the process that connected has ended. The channel
    /// may still be open then in a process that it forked.
    ///
    /// # Errors
    /// `SRCH` when it has ended already, others as for pidfd_open(2).
    pub fn peer_process(&self) -> Result<OwnedFd, Errno> {
        let (pid, ..) = sys::peer_of(self.socket.as_fd())?;
        sys::process_of_peer(self.socket.as_fd(), pid)
    }

    /// Returns the socket.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// How long [`Channel::connect`] waits while the daemon's queue of connections is full.
pub const CONNECT_WITHIN: Duration = Duration::from_millis(100);

/// Connects. If the daemon's queue is full, waits in the kernel: waiters are served in order there,
/// so that a program that tries again and again does not keep others out.
fn connect(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    match rustix::net::connect(socket, address) {
        Err(Errno::AGAIN) => {}
        other => return other,
    }
    let nonblocking = rustix::fs::fcntl_getfl(socket)?;
    rustix::fs::fcntl_setfl(socket, nonblocking - OFlags::NONBLOCK)?;
    set_socket_timeout(socket, Timeout::Send, Some(CONNECT_WITHIN))?;
    rustix::net::connect(socket, address)?;
    rustix::fs::fcntl_setfl(socket, nonblocking)
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The daemon's side: a socket to which programs connect.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Listens at `path`, which must not exist.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub fn bind(path: &Path) -> Result<Self, Errno> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 1024)?;
        Ok(Self { socket })
    }

    /// The channel of the next program that connected.
    ///
    /// # Errors
    /// `AGAIN` when no program is waiting.
    pub fn accept(&self) -> Result<Channel, Errno> {
        rustix::net::accept_with(&self.socket, FLAGS).map(Channel::new)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_their_bounds_and_their_descriptors() {
        let (one, two) = Channel::pair().expect("sockets");
        one.send(b"first", &[one.as_fd()]).expect("room");
        one.send(b"second", &[]).expect("room");
        let first = two.receive().expect("there").expect("open");
        assert_eq!((first.bytes.as_slice(), first.descriptors.len()), (b"first".as_slice(), 1));
        let second = two.receive().expect("there").expect("open");
        assert_eq!((second.bytes.as_slice(), second.descriptors.len()), (b"second".as_slice(), 0));
        assert_eq!(two.receive().err(), Some(Errno::AGAIN));
        assert_eq!(two.peer().expect("local").pid, std::process::id());
        let group = rustix::process::getegid().as_raw();
        assert!(two.peer_groups().expect("local").contains(&group));
        drop((one, first));
        assert!(two.receive().expect("an end").is_none());
    }

    #[test]
    fn the_last_packet_of_an_end_that_closed_arrives() {
        for closed_first in [false, true] {
            let (program, daemon) = Channel::pair().expect("sockets");
            daemon.send(b"refused", &[]).expect("room");
            if closed_first {
                drop(daemon);
                program.ask(b"hello").expect("an answer is there");
            } else {
                program.ask(b"hello").expect("room");
                drop(daemon);
            }
            let packet = program.receive_within(1000).expect("it is there").expect("it is there");
            assert_eq!(packet.bytes, b"refused");
            assert!(program.receive().expect("an end").is_none());
        }
    }

    #[test]
    fn connecting_without_a_listener_fails_at_once() {
        let path = std::env::temp_dir().join("weft-channel-nobody");
        let directory = path.join("none");
        assert_eq!(Channel::connect(&directory).err(), Some(Errno::NOENT.into()));
    }

    #[test]
    fn a_daemon_of_the_own_user_is_found_in_a_directory_of_its_own_alone() {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode;
        let root = std::env::temp_dir().join(format!("weft-channel-{}", std::process::id()));
        std::fs::create_dir(&root).expect("free");
        let path = root.join("n.sock");
        assert_eq!(Channel::connect(&path).err(), Some(Errno::NOENT.into()));
        let listener = Listener::bind(&path).expect("free");
        let channel = Channel::connect(&path).expect("the own user listens");
        assert_eq!(channel.peer().expect("local").uid, rustix::process::geteuid().as_raw());
        let linked = root.join("linked.sock");
        std::os::unix::fs::symlink(&path, &linked).expect("free");
        assert_eq!(Channel::connect(&linked).err(), Some(Errno::NOENT.into()));
        for open in [0o777, 0o1777, 0o770] {
            std::fs::set_permissions(&root, mode(open)).expect("the test owns the directory");
            let refused = Channel::connect(&path).expect_err("others can write there");
            assert!(refused.is_distrust(), "{refused}");
        }
        std::fs::set_permissions(&root, mode(0o755)).expect("the test owns the directory");
        let below = root.join("below");
        std::fs::create_dir(&below).expect("free");
        std::fs::rename(&path, below.join("n.sock")).expect("the test owns the directory");
        std::fs::set_permissions(&root, mode(0o1777)).expect("the test owns the directory");
        Channel::connect(&below.join("n.sock")).expect("the sticky bit protects it");
        std::fs::set_permissions(&root, mode(0o777)).expect("the test owns the directory");
        assert!(Channel::connect(&below.join("n.sock")).is_err_and(|error| error.is_distrust()));
        drop(listener);
        std::fs::remove_dir_all(&root).expect("the test owns the directory");
    }
}
