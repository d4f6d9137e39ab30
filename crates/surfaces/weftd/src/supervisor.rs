//! Tells the supervisor of this process, such as systemd, that it serves (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the supervisor that names its socket in `NOTIFY_SOCKET` that the daemon is ready. One that
/// does not read is not waited for.
pub fn tell_ready() {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty()) else {
        return;
    };
    if let Err(error) = tell(&place, b"READY=1") {
        tracing::warn!("the supervisor at {} is not told: {error}", place.display());
    }
}

fn tell(place: &OsStr, words: &[u8]) -> io::Result<()> {
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(words, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_is_told_by_path_and_by_abstract_name() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("notify");
        let name = format!("weft-notify-{}", std::process::id());
        let of_name = SocketAddr::from_abstract_name(&name).expect("short enough");
        let of_path = SocketAddr::from_pathname(&path).expect("short enough");
        for (address, words) in
            [(of_path, path.as_os_str().to_owned()), (of_name, format!("@{name}").into())]
        {
            let supervisor = UnixDatagram::bind_addr(&address).expect("bound");
            tell(&words, b"READY=1").expect("it listens");
            let mut space = [0; 32];
            let length = supervisor.recv(&mut space).expect("told");
            assert_eq!(&space[..length], b"READY=1");
        }
        tell(path.join("nobody").as_os_str(), b"x").expect_err("nobody is there");
    }
}
