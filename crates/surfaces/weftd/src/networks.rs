//! The network namespaces of programs: who may join from another one than the daemon's, and which
//! connections may lead to another one.
//!
//! # Invariants
//! - A program in another network namespace is served only if `daemon.allow` names its user or one
//!   of its groups. Nodes of a lab are as the daemon's own namespace.
//! - While no such program joined, a connection costs what it costs without them.
//! - Between namespaces a connection is told by how it began in the kernel
//!   ([`weft_netdev::stream`]), never by its addresses alone and never by its bytes. Without the
//!   rights to ask the kernel it stays on TCP.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_broker::Site;
use weft_channel::{Channel, network_namespace};
use weft_netdev::stream::{Beginnings, Reader};
use weft_netdev::translation::{Direction, opposite};
use weft_options::{Options, People};
use weft_socket::tuple::{Route, Trace, Tuple};

use crate::ether::Devices;

/// Where a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// In the daemon's own network namespace, or in a node of a lab.
    Home,
    /// In another network namespace.
    Away,
}

/// The rules for programs and connections of other network namespaces.
pub struct Networks {
    /// The cookie of the daemon's own namespace. `None` before Linux 5.14, which has no cookies and
    /// no connections of the fabric.
    own: Option<u64>,
    allow: People,
    /// `None` when the kernel cannot be asked how connections began.
    reader: Option<Reader>,
    /// The devices know the namespaces of the nodes of a lab.
    devices: Option<Arc<Devices>>,
    /// Whether a program joined from another namespace.
    has_away: AtomicBool,
}

/// The cookie of the network namespace of the calling thread; `None` before Linux 5.14.
pub fn own() -> Option<u64> {
    UnixStream::pair().ok().and_then(|(one, _)| network_namespace(one.as_fd()).ok())
}

impl Networks {
    /// The rules of a daemon with these options and devices. Must be called in the daemon's own
    /// network namespace.
    pub fn new(options: &Options, devices: Option<Arc<Devices>>) -> Self {
        let own = own();
        let allow = options.daemon_allow();
        let is_closed = allow == People::These { users: Vec::new(), groups: Vec::new() };
        let reader = if is_closed { None } else { reader() };
        Self { own, allow, reader, devices, has_away: AtomicBool::new(false) }
    }

    /// Where the program at the other end of `channel` is.
    ///
    /// # Errors
    /// The reason why a program of `user` may not join from there.
    pub fn admit(&self, channel: &Channel, user: u32) -> Result<Origin, String> {
        let network = channel.peer_network().ok();
        if self.own.is_none() || network == self.own {
            return Ok(Origin::Home);
        }
        if self
            .devices
            .as_ref()
            .zip(network)
            .is_some_and(|(devices, at)| devices.site_at(at).is_some())
        {
            return Ok(Origin::Home);
        }
        let groups = channel.peer_groups().unwrap_or_default();
        if self.allow.contain(user, &groups) {
            return Ok(Origin::Away);
        }
        Err(format!(
            "the program is in another network namespace than the daemon, and daemon.allow names \
             neither user {user} nor a group of that user; start the daemon with \
             `--daemon-allow {user}` if such programs may join"
        ))
    }

    /// The node of a lab in which the program at the other end of `channel` is.
    pub fn site(&self, channel: &Channel) -> Option<Site> {
        self.devices.as_ref()?.site_at(channel.peer_network().ok()?)
    }

    /// A program joined from another namespace. True if it is the first one, and connections may
    /// lead to it.
    pub fn joined(&self) -> bool {
        self.reader.is_some() && !self.has_away.swap(true, Ordering::Relaxed)
    }

    /// Whether a connection to another address may end at a program of this host.
    pub fn reach_further(&self) -> bool {
        self.devices.is_some() || self.follows()
    }

    fn follows(&self) -> bool {
        self.reader.is_some() && self.has_away.load(Ordering::Relaxed)
    }

    /// `tuple` of `socket` with what the kernel says of its other end.
    pub fn locate(&self, socket: BorrowedFd<'_>, tuple: Tuple) -> Tuple {
        let located = self.devices.as_ref().map_or(tuple, |devices| devices.locate(tuple));
        match &self.reader {
            Some(reader) if located == tuple && self.follows() => {
                self.trace(reader, socket, tuple).unwrap_or(tuple)
            }
            _ => located,
        }
    }

    /// `None` when the connection stays in its namespace, or the kernel does not know how it began.
    fn trace(&self, reader: &Reader, socket: BorrowedFd<'_>, tuple: Tuple) -> Option<Tuple> {
        let Tuple { local, remote, route: Route::Namespaces { here, .. } } = tuple else {
            return None;
        };
        let is_within = is_within(local.ip(), remote.ip());
        // Packets between a container and itself are not seen in the daemon's namespace.
        if is_within && Some(here) != self.own {
            return None;
        }
        let sent = Direction { source: local, target: remote };
        let answered = opposite(sent).inspect_err(|errno| {
            tracing::debug!(%errno, "the kernel's connection tracking cannot be asked");
        });
        let plain = Direction { source: remote, target: local };
        let far = answered.ok().flatten().unwrap_or(plain);
        if is_within && far == plain {
            return None;
        }
        let begun = reader.read(socket).inspect_err(|errno| {
            tracing::debug!(%errno, %local, %remote, "the beginning of a connection is not known");
        });
        let Beginnings { sent, received, owner } = begun.ok()?;
        let (far_local, far_remote) = (far.source, far.target);
        let trace = Trace { owner, sent, received, far_local, far_remote };
        Some(Tuple { local, remote, route: Route::Traced(trace) })
    }
}

/// True when a connection between these addresses does not leave its namespace, unless they are
/// translated.
fn is_within(local: IpAddr, remote: IpAddr) -> bool {
    local == remote || (local.is_loopback() && remote.is_loopback())
}

fn reader() -> Option<Reader> {
    match Reader::new() {
        Ok(reader) => Some(reader),
        Err(errno) => {
            tracing::warn!(
                "connections between network namespaces stay on TCP, since the kernel does not \
                 let this daemon load an eBPF program ({errno}); a daemon of root's may \
                 (CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN)"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(allow: &str) -> Networks {
        let (options, problems) = Options::from_environment([("WEFT_DAEMON_ALLOW", allow)]);
        assert!(problems.is_empty(), "{problems:?}");
        Networks::new(&options, None)
    }

    #[test]
    fn a_program_of_the_own_namespace_joins_and_one_of_another_is_asked_for() {
        let (_program, daemon) = Channel::pair().expect("sockets");
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(networks("").admit(&daemon, own), Ok(Origin::Home));
        let away = |allow: &str| Networks { own: Some(1), ..networks(allow) };
        let refused = away("").admit(&daemon, own).expect_err("nobody is allowed");
        assert!(refused.contains("daemon.allow"), "{refused}");
        let other = (own + 1).to_string();
        assert!(away(&other).admit(&daemon, own).is_err());
        assert_eq!(away(&own.to_string()).admit(&daemon, own), Ok(Origin::Away));
        let group = format!("@{}", rustix::process::getegid().as_raw());
        assert_eq!(away(&group).admit(&daemon, own), Ok(Origin::Away));
        assert_eq!(away("any").admit(&daemon, own), Ok(Origin::Away));
    }

    #[test]
    fn connections_are_followed_from_the_first_program_of_another_namespace_on() {
        let closed = networks("");
        assert!(!closed.joined() && !closed.reach_further());
        let open = networks("any");
        assert!(!open.reach_further());
        if open.reader.is_none() {
            return eprintln!("skipped: the kernel lets this user load no programs");
        }
        assert!(open.joined() && !open.joined() && open.reach_further());
    }
}
