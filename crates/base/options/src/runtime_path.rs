//! Where the control socket of a node is: one rule for daemon, command and preload library.
//!
//! Pure: the caller says who it is, what its environment says, and whether a system daemon is
//! there. Nothing is created here; whoever creates a private directory makes it mode 0700, and
//! whoever uses it checks that it is a directory of its own user that others cannot write.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::Options;

/// Name of the node when nobody gives one.
pub const NODE_DEFAULT: &str = "default";
/// Longest name of a node, bytes.
pub const NODE_BYTES_MAX: usize = 32;
/// The directory of system daemons' sockets.
pub const SYSTEM_DIRECTORY: &str = "/run/weft";

/// Why a name cannot be that of a node.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "node name {name:?} is not valid; use 1 to {NODE_BYTES_MAX} letters, digits, \
     underscores and hyphens"
)]
pub struct InvalidNodeName {
    /// The name.
    pub name: String,
}

/// Everything that decides where the socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Surroundings<'a> {
    /// The effective user.
    pub uid: u32,
    /// `--node`, where it was given.
    pub node_flag: Option<&'a str>,
    /// `WEFT_NODE`.
    pub node_variable: Option<&'a str>,
    /// `WEFT_SOCKET`: beats everything but an explicit node.
    pub socket_variable: Option<&'a str>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_directory: Option<&'a str>,
}

/// The owner of the directory that holds the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Named by an option or variable: taken as it is.
    Explicit,
    /// The system daemon's, for all users: mode 0755, owned by root.
    System,
    /// The user's own: mode 0700, owned by the user.
    User,
}

/// The control socket of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlSocket {
    /// The node's name.
    pub node: String,
    /// The socket.
    pub path: PathBuf,
    /// The owner of its directory.
    pub scope: Scope,
}

impl ControlSocket {
    /// The directory of the socket.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// The log of a daemon that was started in the background, beside its socket.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        if self.path.extension().is_some_and(|extension| extension == "sock") {
            return self.path.with_extension("log");
        }
        // `x.1` and `x.2` may be two sockets.
        let mut path = self.path.clone().into_os_string();
        path.push(".log");
        path.into()
    }
}

/// Checks the name of a node.
///
/// # Errors
/// [`InvalidNodeName`] unless it is 1 to 32 of `A-Z a-z 0-9 _ -`.
pub fn check_node_name(name: &str) -> Result<(), InvalidNodeName> {
    let valid = (1..=NODE_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if valid { Ok(()) } else { Err(InvalidNodeName { name: name.to_owned() }) }
}

/// The control socket for `surroundings`; `is_served` says whether a daemon's socket is at a path
/// and is asked about the system's only.
///
/// In order: the socket that `weft run` passed on (unless another node is asked for),
/// `daemon.socket`, the system's for root or when it is served, `$XDG_RUNTIME_DIR`, `/tmp`.
///
/// # Errors
/// [`InvalidNodeName`].
pub fn control_socket(
    surroundings: &Surroundings<'_>,
    options: &Options,
    is_served: impl Fn(&Path) -> bool,
) -> Result<ControlSocket, InvalidNodeName> {
    let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    let node = given(surroundings.node_flag)
        .or_else(|| given(surroundings.node_variable))
        .unwrap_or_else(|| NODE_DEFAULT.to_owned());
    check_node_name(&node)?;

    let passed_on = given(surroundings.socket_variable)
        .filter(|path| path.starts_with('/') && surroundings.node_flag.is_none());
    if let Some(path) = passed_on.or_else(|| given(options.daemon_socket())) {
        return Ok(ControlSocket { node, path: PathBuf::from(path), scope: Scope::Explicit });
    }
    let file = format!("{node}.sock");
    let system = Path::new(SYSTEM_DIRECTORY).join(&file);
    if surroundings.uid == 0 || is_served(&system) {
        return Ok(ControlSocket { node, path: system, scope: Scope::System });
    }
    let directory = given(surroundings.runtime_directory)
        .filter(|directory| directory.starts_with('/'))
        .map_or_else(
            || PathBuf::from(format!("/tmp/weft-{}", surroundings.uid)),
            |directory| Path::new(&directory).join("weft"),
        );
    Ok(ControlSocket { node, path: directory.join(file), scope: Scope::User })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(surroundings: &Surroundings<'_>, served: bool) -> (String, Scope) {
        let options = Options::default();
        let found = control_socket(surroundings, &options, |_| served).expect("a valid name");
        (found.path.display().to_string(), found.scope)
    }

    #[test]
    fn root_and_users_of_a_system_daemon_share_one_socket() {
        let root = Surroundings { runtime_directory: Some("/run/user/0"), ..Default::default() };
        assert_eq!(path(&root, false), ("/run/weft/default.sock".into(), Scope::System));
        let user = Surroundings { uid: 1000, node_flag: Some("n1"), ..Default::default() };
        assert_eq!(path(&user, true), ("/run/weft/n1.sock".into(), Scope::System));
    }

    #[test]
    fn a_user_without_system_daemon_has_a_private_socket() {
        let mut user = Surroundings { uid: 1000, ..Default::default() };
        assert_eq!(path(&user, false), ("/tmp/weft-1000/default.sock".into(), Scope::User));
        user.runtime_directory = Some("/run/user/1000");
        user.node_variable = Some("lab");
        assert_eq!(path(&user, false).0, "/run/user/1000/weft/lab.sock");
    }

    #[test]
    fn a_relative_runtime_directory_is_passed_over() {
        let user = Surroundings { uid: 7, runtime_directory: Some("here"), ..Default::default() };
        assert_eq!(path(&user, false).0, "/tmp/weft-7/default.sock");
    }

    #[test]
    fn an_explicit_socket_wins_unless_another_node_is_asked_for() {
        let mut user =
            Surroundings { uid: 7, socket_variable: Some("/x/y.sock"), ..Default::default() };
        assert_eq!(path(&user, true), ("/x/y.sock".into(), Scope::Explicit));
        user.node_flag = Some("other");
        assert_eq!(path(&user, true).0, "/run/weft/other.sock");
    }

    #[test]
    fn node_names_cannot_leave_the_directory() {
        let long = "x".repeat(33);
        for bad in ["../x", "a/b", ".", "a b", "ä", &long] {
            assert!(check_node_name(bad).is_err(), "{bad}");
        }
        assert!(check_node_name(&long[..32]).is_ok());
        assert!(check_node_name("A-z_09").is_ok());
    }

    #[test]
    fn log_and_directory_lie_beside_the_socket() {
        let found = control_socket(&Surroundings::default(), &Options::default(), |_| false)
            .expect("a valid name");
        assert_eq!(found.log(), Path::new("/run/weft/default.log"));
        assert_eq!(found.directory(), Path::new("/run/weft"));
        let other = ControlSocket { path: "/run/weft/x.1".into(), ..found };
        assert_eq!(other.log(), Path::new("/run/weft/x.1.log"));
    }
}
