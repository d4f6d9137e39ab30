//! Places to listen at, and where reservations are kept by default.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::configuration::{NbdPlace, TlsFiles, addresses};
use crate::socket::Listener;

/// The default place for reservations.
pub fn default_state() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/var/lib/weft/block".into();
    }
    let home = std::env::var_os("HOME").map_or_else(|| "/tmp".into(), PathBuf::from);
    let base = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    base.unwrap_or_else(|| home.join(".local/state")).join("weft/block")
}

pub fn nbd_listeners(place: &NbdPlace) -> anyhow::Result<Vec<(Listener, bool)>> {
    match place {
        NbdPlace::Unix(path) => {
            let listener = unix_listener(path)?;
            Ok(vec![(Listener::Unix(listener), false)])
        }
        NbdPlace::Tcp(place) => addresses(place)?
            .into_iter()
            .map(|address| {
                let listener = TcpListener::bind(address)
                    .with_context(|| format!("cannot listen at {address}"))?;
                listener.set_nonblocking(true)?;
                Ok((Listener::Tcp(listener), true))
            })
            .collect(),
    }
}

/// Listens at a path for the own user alone, in place of a socket that nobody serves any more.
///
/// # Errors
/// Somebody listens there, or the path is something else.
pub fn unix_listener(path: &Path) -> anyhow::Result<UnixListener> {
    let shown = path.display();
    if let Ok(about) = fs::symlink_metadata(path) {
        ensure!(about.file_type().is_socket(), "{shown} is there and is no socket");
        ensure!(UnixStream::connect(path).is_err(), "another process listens at {shown}");
        fs::remove_file(path).with_context(|| format!("cannot remove {shown}"))?;
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {shown}"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

pub fn tls_config(files: &TlsFiles) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let shown = files.certificate.display();
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("{shown} has no certificates in PEM"))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("{} has no private key in PEM", files.key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| format!("{shown} and its key do not belong together"))?;
    Ok(Arc::new(config))
}
