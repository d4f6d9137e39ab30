//! `weft dash`: the dashboard of a node, served by this process on loopback.
//!
//! The process asks the daemon for its status when a browser wants it. The address has a token in
//! its fragment, which a browser keeps to itself: other users of the machine see nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use weft_web::{Server, Site, Snapshot, Source};
use weftd::{Status, Users};

use crate::arguments::DashArguments;
use crate::configuration::Configuration;
use crate::daemon::absence;
use crate::output::show_line;
use crate::text_file;

/// Bytes of a recording at most.
const RECORDING_BYTES_MAX: u64 = 256 << 20;

struct Client {
    socket: PathBuf,
    users: Users,
}

impl Source for Client {
    fn collect(&self) -> Result<Snapshot, String> {
        let status = weftd::client::status(&self.socket).map_err(|error| format!("{error:#}"))?;
        weftd::snapshot(&status, &self.users)
    }
}

/// A recording, which is the same for all who ask.
struct Player(Snapshot);

impl Source for Player {
    fn collect(&self) -> Result<Snapshot, String> {
        Ok(self.0.clone())
    }
}

/// Reads a recording: a status a line.
fn recording(path: &Path) -> anyhow::Result<Player> {
    let shown = path.display();
    let text = text_file::read(path, RECORDING_BYTES_MAX)
        .with_context(|| format!("{shown} cannot be read"))?;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let checked = serde_json::from_str::<Status>(line);
        checked.with_context(|| format!("{shown}, line {}: it is no status", number + 1))?;
        lines.push(line);
    }
    ensure!(!lines.is_empty(), "{shown} has no line; `weft top --json > {shown}` writes one");
    let json = format!("{{\"recording\":[{}]}}", lines.join(","));
    Ok(Player(Snapshot { json: json.into(), metrics: "# EOF\n".into() }))
}

/// `weft dash`.
pub fn dash(arguments: &DashArguments, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let source: Arc<dyn Source> = match &arguments.play {
        Some(path) => Arc::new(recording(path)?),
        None => Arc::new(client(arguments, configuration)?),
    };
    ensure!(
        arguments.listen.ip().to_canonical().is_loopback(),
        "weft dash serves this machine alone; `weft daemon --dash-listen {}` serves others",
        arguments.listen
    );
    let token = weftd::token()?;
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_live = arguments.play.is_none();
    let site = Site { metrics: is_live, dashboard: true, token: Some(token.clone()), name };
    let server = Server::bind(arguments.listen, site)
        .with_context(|| format!("cannot listen at {}", arguments.listen))?;
    let address = format!("http://{}/#token={token}", server.address()?);
    server.start(source)?;
    show_line!("{address}");
    if !arguments.no_open {
        open(&address);
    }
    loop {
        // Until a signal ends the process.
        std::thread::park();
    }
}

fn client(arguments: &DashArguments, configuration: &Configuration) -> anyhow::Result<Client> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    ensure!(weftd::client::answers(&socket.path), "{}", absence(&socket));
    if let Ok(address) = std::fs::read_to_string(weftd::token_file(&socket.path)) {
        eprintln!("weft: the daemon serves the dashboard to others, too, at {}", address.trim());
    }
    Ok(Client { socket: socket.path, users: Users::read() })
}

/// Opens a browser where there is a desktop.
fn open(address: &str) {
    let has_desktop =
        ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let opened = has_desktop.then(|| {
        let quiet = || Stdio::null();
        Command::new("xdg-open").arg(address).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn()
    });
    if !matches!(opened, Some(Ok(_))) {
        eprintln!("weft: open this address in a browser; control-c ends it");
    }
}
