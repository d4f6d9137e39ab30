//! Examines each descriptor that came with a packet, by asking the kernel.
//!
//! This runs on the thread of the program's user ([`crate::intake`]) and without a lock. Closing a
//! descriptor can wait for its maker (a file of a file system in user space, a socket that
//! lingers); the wait then affects only that user. Services get sealed memory and wakeups, which no
//! program can make wait. Each descriptor counts against its user while the daemon holds it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use weft_memory::Segment;
use weft_socket::tuple::Tuple;

use crate::kernel;
use crate::quota::{Lease, Pool};

/// A descriptor that the daemon holds, with its lease.
#[derive(Debug)]
pub struct LeasedFile {
    file: OwnedFd,
    lease: Lease,
}

impl LeasedFile {
    /// The descriptor and its lease.
    pub fn into_parts(self) -> (OwnedFd, Lease) {
        (self.file, self.lease)
    }
}

impl AsFd for LeasedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A descriptor of a packet, as the kernel describes it.
#[derive(Debug)]
pub enum Shown {
    /// A memfd of ordinary pages, sealed against shrinking and growing.
    Memory {
        /// The memfd.
        file: LeasedFile,
        /// Its size in bytes.
        length: u64,
    },
    /// A UNIX socket that is empty and can receive nothing.
    Wakeup(LeasedFile),
    /// A connected TCP socket; the daemon has closed its copy.
    Connection {
        /// Its network namespace and addresses, and what is known of its other end.
        tuple: Tuple,
        /// Its inode number.
        inode: u64,
        /// The user who made it.
        owner: u32,
    },
    /// A listening TCP socket; the daemon has closed its copy.
    Listener {
        /// The cookie of its network namespace.
        namespace: u64,
        /// The address at which it listens.
        address: SocketAddr,
    },
    /// Any other descriptor, already closed, and the reason why it cannot be used.
    Unusable(String),
}

/// Examines the descriptors that a program of `user` sent, and closes those that are not needed.
/// `locate` adds what is known of the other end of a connection.
pub fn examine(
    descriptors: Vec<OwnedFd>,
    user: u32,
    pool: &Arc<Pool>,
    locate: impl Fn(BorrowedFd<'_>, Tuple) -> Tuple,
) -> Vec<Shown> {
    let look = |file: OwnedFd| match kernel::is_tcp(file.as_fd()) {
        Ok(true) => match kernel::tuple_of(file.as_fd()) {
            Ok(tuple) => {
                let (inode, owner) = kernel::socket_of(&file).ok_or("the socket has no inode")?;
                Ok(Shown::Connection { tuple: locate(file.as_fd(), tuple), inode, owner })
            }
            Err(why) => {
                let (namespace, address) = kernel::listener_of(file.as_fd()).map_err(|_| why)?;
                Ok(Shown::Listener { namespace, address })
            }
        },
        Ok(false) => {
            kernel::silence(file.as_fd())?;
            Ok(Shown::Wakeup(keep(file, user, pool)?))
        }
        Err(_) => {
            let length = Segment::sealed_length(file.as_fd()).map_err(|error| {
                format!("a descriptor is neither a socket nor sealed memory: {error}")
            })?;
            Ok(Shown::Memory { file: keep(file, user, pool)?, length })
        }
    };
    let shown = |file| look(file).unwrap_or_else(Shown::Unusable);
    descriptors.into_iter().map(shown).collect()
}

fn keep(file: OwnedFd, user: u32, pool: &Arc<Pool>) -> Result<LeasedFile, String> {
    let lease = pool.lease(user, 1).ok_or_else(|| out_of_descriptors(user, pool))?;
    Ok(LeasedFile { file, lease })
}

/// The reason for a user who has too many descriptors.
pub fn out_of_descriptors(user: u32, pool: &Pool) -> String {
    format!(
        "user {user} holds the most of the daemon's {} descriptors that one user may (ulimit -n, \
         daemon.user_share)",
        pool.maximum()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;

    const USER: u32 = 1000;

    fn pool() -> Arc<Pool> {
        Pool::new(4, Quota { user_share: 50, own_user: 1 })
    }

    fn one(file: impl Into<OwnedFd>, pool: &Arc<Pool>) -> Shown {
        let mut shown = examine(vec![file.into()], USER, pool, |_, tuple| tuple);
        shown.pop().expect("one for each")
    }

    #[test]
    fn only_sealed_memory_and_wakeups_are_kept() {
        let pool = pool();
        let memory = Segment::create_file("weft-test", 4096).expect("memory");
        let memory = one(memory, &pool);
        assert!(matches!(memory, Shown::Memory { length: 4096, .. }), "{memory:?}");
        let (wakeup, _woken) = UnixStream::pair().expect("sockets");
        let wakeup = one(wakeup, &pool);
        assert!(matches!(wakeup, Shown::Wakeup(_)), "{wakeup:?}");
        assert_eq!(pool.of(USER), 2);
        drop((memory, wakeup));
        assert_eq!(pool.of(USER), 0);
        for other in [
            OwnedFd::from(std::fs::File::open("/dev/null").expect("always there")),
            UdpSocket::bind("127.0.0.1:0").expect("loopback").into(),
            std::io::pipe().expect("a pipe").0.into(),
        ] {
            let shown = one(other, &pool);
            assert!(matches!(shown, Shown::Unusable(_)), "{shown:?}");
        }
    }

    #[test]
    fn a_wakeup_is_emptied_and_receives_nothing() {
        use weft_channel::Channel;
        let (wakeup, mine) = UnixStream::pair().expect("sockets");
        let mine = Channel::new(mine.into());
        let (mut end, hidden) = std::io::pipe().expect("a pipe");
        mine.send(b"x", &[hidden.as_fd()]).expect("room");
        drop(hidden);
        let wakeup = one(wakeup, &pool());
        let Shown::Wakeup(kept) = &wakeup else { panic!("{wakeup:?}") };
        assert_eq!(std::io::Read::read(&mut end, &mut [0]).ok(), Some(0), "it is closed by now");
        assert_eq!(mine.send(b"x", &[]).err(), Some(rustix::io::Errno::PIPE));
        rustix::io::write(kept, b"ring").expect("it still rings");
        assert_eq!(mine.receive().expect("there").expect("open").bytes, b"ring");
        let listener = std::env::temp_dir().join(format!("weft-wakeup-{}", std::process::id()));
        let listens = std::os::unix::net::UnixListener::bind(&listener).expect("free");
        std::fs::remove_file(&listener).expect("there");
        for other in [listens.into(), Channel::pair().expect("sockets").0.into_socket()] {
            let shown = one(other, &pool());
            assert!(matches!(shown, Shown::Unusable(_)), "{shown:?}");
        }
    }

    #[test]
    fn only_the_addresses_of_connections_and_listeners_are_kept() {
        let pool = pool();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let at = listener.local_addr().expect("bound");
        let client = TcpStream::connect(at).expect("listening");
        let shown = one(client, &pool);
        assert!(
            matches!(shown, Shown::Connection { tuple, .. } if tuple.remote == at),
            "{shown:?}"
        );
        let shown = one(listener, &pool);
        assert!(matches!(shown, Shown::Listener { address, .. } if address == at), "{shown:?}");
        assert_eq!(pool.of(USER), 0);
    }

    #[test]
    fn a_descriptor_beyond_the_allowance_is_closed() {
        let pool = pool();
        let memory = || Segment::create_file("weft-test", 4096).expect("memory");
        let shown = examine(vec![memory(), memory(), memory()], USER, &pool, |_, tuple| tuple);
        assert!(matches!(
            &shown[..],
            [Shown::Memory { .. }, Shown::Memory { .. }, Shown::Unusable(why)]
                if why.contains("daemon.user_share")
        ));
    }
}
