//! `weft block attach`: a LUN of another host as an NBD export of this one.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weft_block_server::configuration::{Config, TargetConfig};
use weft_block_server::remote::RemoteLun;
use weft_block_server::service::Service;
use weft_open::Opening;

use crate::arguments::block::AttachArguments;
use crate::configuration::Configuration;
use crate::output::show_line;

/// `weft block attach`. Ends with a signal, or when the LUN cannot be reached any more.
pub fn attach(
    arguments: &AttachArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let lun: RemoteLun = arguments.lun.parse()?;
    let read_only = if arguments.read_only { ",ro" } else { "" };
    let config = Config {
        targets: vec![TargetConfig {
            name: lun.target.clone(),
            luns: vec![format!("{}={lun}{read_only}", lun.lun)],
            nbd: arguments.nbd.clone(),
            ..TargetConfig::default()
        }],
        insecure: arguments.insecure,
        ..Config::default()
    };
    // Before anything is served, so that no signal is missed.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (over, ended) = channel();
    let by_signal = over.clone();
    let opening = Opening::with("weft block attach", &configuration.options);
    let when_over = Box::new(move |why: &str| {
        // The other end of the channel goes with the process alone.
        let _ = over.send(Some(why.to_owned()));
    });
    let (service, running) = Service::start(&config, PathBuf::new(), &opening, Some(when_over))?;
    thread::Builder::new().name("weft-block-sig".to_owned()).spawn(move || {
        signals.forever().next();
        let _ = by_signal.send(None);
    })?;
    for place in &arguments.nbd {
        show_line!("serving at {place}");
    }
    let why = ended.recv().context("nobody watches the session")?;
    if why.is_none() {
        service.flush();
    }
    running.stop();
    remove_sockets(&arguments.nbd);
    match why {
        Some(why) => bail!("{lun} is gone: {why}; writes without a flush may be lost"),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Removes the sockets, which nobody serves any more. Those that cannot be removed stay; the next
/// server takes their place.
fn remove_sockets(places: &[String]) {
    for path in places.iter().filter_map(|place| place.strip_prefix("unix:")) {
        let _ = std::fs::remove_file(path);
    }
}
