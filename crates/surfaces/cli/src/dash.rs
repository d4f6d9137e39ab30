//! `weft dash`: the dashboard of a node, served by this process on loopback.
//!
//! The process asks the daemon for its status when a browser wants it. The address has a token in
//! its fragment, which a browser keeps to itself: other users of the machine see nothing.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use weft_web::{Server, Site, Snapshot, Source};
use weftd::Users;

use crate::arguments::DashArguments;
use crate::configuration::Configuration;
use crate::daemon::absence;
use crate::output::show_line;

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

/// `weft dash`.
pub fn dash(arguments: &DashArguments, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    ensure!(weftd::client::answers(&socket.path), "{}", absence(&socket));
    ensure!(
        arguments.listen.ip().to_canonical().is_loopback(),
        "weft dash serves this machine alone; `weft daemon --dash-listen {}` serves others",
        arguments.listen
    );
    if let Ok(address) = std::fs::read_to_string(weftd::token_file(&socket.path)) {
        eprintln!("weft: the daemon serves the dashboard to others, too, at {}", address.trim());
    }
    let token = weftd::token()?;
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let site = Site { metrics: true, dashboard: true, token: Some(token.clone()), name };
    let server = Server::bind(arguments.listen, site)
        .with_context(|| format!("cannot listen at {}", arguments.listen))?;
    let address = format!("http://{}/#token={token}", server.address()?);
    server.start(Arc::new(Client { socket: socket.path, users: Users::read() }))?;
    show_line!("{address}");
    if !arguments.no_open {
        open(&address);
    }
    loop {
        // Until a signal ends the process.
        std::thread::park();
    }
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
