//! The daemon's HTTP servers: of metrics, and of the dashboard.
//!
//! Both are off unless an option names their address. They run on threads of their own and collect
//! the status as `weft status` does.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use weft_web::{Server, Site, Snapshot, Source, exposition};

use crate::hub::Hub;
use crate::{Config, Status, Users, metrics};

/// A status in the forms of the HTTP server.
///
/// # Errors
/// It cannot be written as JSON.
pub fn snapshot(status: &Status, users: &Users) -> Result<Snapshot, String> {
    let json = serde_json::to_vec(status).map_err(|error| error.to_string())?;
    let samples = metrics::samples(status, &|uid| users.name(uid));
    Ok(Snapshot { json: json.into(), metrics: exposition(samples).into() })
}

/// The file with the address and the token of the dashboard of the daemon at `socket`; there is one
/// while the daemon serves the dashboard beyond loopback.
#[must_use]
pub fn token_file(socket: &Path) -> PathBuf {
    socket.with_extension("dash-token")
}

struct Collector {
    hub: Arc<Hub>,
    users: Users,
}

impl Source for Collector {
    fn collect(&self) -> Result<Snapshot, String> {
        snapshot(&self.hub.collected(), &self.users)
    }
}

/// Begins to serve what the options name.
///
/// # Errors
/// An address cannot be listened at, or the token cannot be written.
pub fn serve(config: &Config, hub: &Arc<Hub>) -> anyhow::Result<()> {
    let start = |option: &str, address: SocketAddr, is_dash: bool, token: Option<String>| {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let site = Site { metrics: !is_dash, dashboard: is_dash, token, name };
        let server = Server::bind(address, site)
            .with_context(|| format!("{option}: cannot listen at {address}"))?;
        let at = server.address()?;
        tracing::info!(%at, option, "serving");
        if config.foreground {
            let path = if is_dash { "" } else { "metrics" };
            eprintln!("weft daemon: {option}: serving http://{at}/{path}");
        }
        server.start(Arc::new(Collector { hub: Arc::clone(hub), users: Users::read() }))
    };
    if let Some(address) = config.options.metrics_listen() {
        start("metrics.listen", address, false, None)?;
    }
    if let Some(address) = config.options.dash_listen() {
        let is_within = address.ip().to_canonical().is_loopback();
        let token = (!is_within).then(token).transpose()?;
        // One of a former daemon may be there.
        let _ = std::fs::remove_file(token_file(&config.socket));
        if let Some(token) = &token {
            write_address(&config.socket, &format!("http://{address}/#token={token}\n"))?;
        }
        start("dash.listen", address, true, token)?;
    }
    Ok(())
}

/// A new token: 192 random bits.
///
/// # Errors
/// The system has no random numbers.
pub fn token() -> anyhow::Result<String> {
    let mut random = [0; 24];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .context("no random numbers for a token")?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes the address with the token for the daemon's user alone.
fn write_address(socket: &Path, address: &str) -> anyhow::Result<()> {
    let path = token_file(socket);
    OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| file.write_all(address.as_bytes()))
        .with_context(|| format!("the token cannot be written to {}", path.display()))
}
