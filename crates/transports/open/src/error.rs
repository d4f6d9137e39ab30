//! Why an endpoint was not opened, and what to do.

use std::path::PathBuf;

use weft_fabric::{EndpointAddress, InvalidName, OpenError};
use weft_options::runtime_path::InvalidNodeName;
use weft_session::End;

/// Why an endpoint was not opened. The texts say what to do next.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpeningError {
    /// A variable of the environment has a value that is not valid.
    #[error("{0}")]
    Option(String),
    /// The node has a name that no node can have.
    #[error(transparent)]
    Node(#[from] InvalidNodeName),
    /// `daemon.trust_uid` is set, and the socket is not named.
    #[error(
        "daemon.trust_uid is for a socket that is named; name it with --daemon-socket or \
         WEFT_DAEMON_SOCKET, or leave daemon.trust_uid out"
    )]
    TrustWithoutSocket,
    /// No daemon answers.
    #[error(
        "no daemon answers at {}: {reason}; start `weft daemon` on this host",
        .socket.display()
    )]
    NoDaemon {
        /// Its socket.
        socket: PathBuf,
        /// The attempted step and its error.
        reason: String,
    },
    /// A daemon was started, and none answers.
    #[error("no node daemon could be started: {reason}")]
    NotStarted {
        /// The words of the command that was to start it, which say what to do.
        reason: String,
    },
    /// The daemon serves its host alone.
    #[error(
        "the daemon at {} has joined no fabric; start it with --fabric-key and --fabric-listen",
        .socket.display()
    )]
    NoFabric {
        /// Its socket.
        socket: PathBuf,
    },
    /// There is no way to other hosts: libfabric or its provider is missing.
    #[error(transparent)]
    Libfabric(#[from] weft_libfabric::Error),
    /// The name of a service is none.
    #[error("{name:?}: {error}")]
    Name {
        /// The text.
        name: String,
        /// The error.
        error: InvalidName,
    },
    /// No host of the fabric has this name or address.
    #[error("no host {host:?} is known here; `weft fabric nodes` lists those that are")]
    NoSuchHost {
        /// The host.
        host: String,
    },
    /// The endpoint at an address offers no service.
    #[error("endpoint {address} offers no service; `weft status` lists those that do")]
    NothingOffered {
        /// The address.
        address: EndpointAddress,
    },
    /// A service was found, and no way leads to it.
    #[error("the service {service} is not reached: {reason}; look with `weft fabric nodes`")]
    NotReached {
        /// The service.
        service: String,
        /// The error.
        reason: String,
    },
    /// A service did not accept a session.
    #[error("no session with {service}: {why}")]
    NoSession {
        /// The service.
        service: String,
        /// Why.
        why: End,
    },
    /// The transport did not open the endpoint.
    #[error(transparent)]
    Endpoint(#[from] OpenError),
}
