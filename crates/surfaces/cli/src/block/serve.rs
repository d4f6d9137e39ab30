//! `weft block serve`: serves until a signal ends it.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weft_block_server::configuration::{Config, TargetConfig, TlsFiles, fabric_port};
use weft_block_server::control::{self, default_socket};
use weft_block_server::service::{Service, UnitStatus};
use weft_block_server::unix_listener;
use weft_open::Opening;
use weft_wire::stats::Work;

use crate::arguments::block::ServeArguments;
use crate::configuration::Configuration;
use crate::counting;
use crate::output::show_line;
use crate::text_file;

/// Bytes of a configuration at most.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// `weft block serve`.
pub fn serve(
    arguments: &ServeArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let mut config = match &arguments.config {
        Some(path) => {
            let shown = path.display();
            let text = text_file::read(path, CONFIG_BYTES_MAX)
                .with_context(|| format!("{shown} cannot be read"))?;
            Config::parse(&text).with_context(|| format!("{shown} is no configuration"))?
        }
        None => Config {
            listen: arguments.listen.clone(),
            targets: vec![TargetConfig {
                name: arguments.target.clone().unwrap_or_default(),
                luns: arguments.lun.clone(),
                chap: arguments.chap.clone(),
                nbd: arguments.nbd.clone(),
            }],
            ..Config::default()
        },
    };
    config.insecure |= arguments.insecure;
    if let Some(state) = &arguments.state {
        config.state = Some(state.clone());
    }
    if let Some(files) = &arguments.nbd_tls {
        let (certificate, key) =
            files.split_once(',').context("--nbd-tls has the form CERT,KEY")?;
        let (certificate, key) = (certificate.into(), key.into());
        config.nbd_tls = Some(TlsFiles { certificate, key });
    }
    let socket = arguments.control.control.clone().or_else(|| config.control.clone());
    let socket = socket.unwrap_or_else(default_socket);
    // Before anything is served, so that no signal is missed.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let opening = opening(&config, configuration)?;
    let (service, running) = Service::start(&config, socket.clone(), &opening, None)?;
    let listener = unix_listener(&socket)?;
    let of_control = Arc::clone(&service);
    thread::Builder::new()
        .name("weft-block-ctl".to_owned())
        .spawn(move || control::serve(&listener, &of_control))?;
    let nbd = config.targets.iter().flat_map(|target| &target.nbd);
    for place in config.listen.iter().chain(nbd) {
        show_line!("serving at {place}");
    }
    for name in service.offers() {
        show_line!("offered over the fabric as {name}");
    }
    let of_counts = Arc::clone(&service);
    let shown = counting::show(configuration, "weft block", move || totals(&of_counts));
    signals.forever().next();
    drop(shown);
    service.leave_fabric();
    running.stop();
    service.flush();
    // The socket stays when it cannot be removed; the next server takes its place.
    let _ = std::fs::remove_file(&socket);
    Ok(ExitCode::SUCCESS)
}

/// The totals of all units.
fn totals(service: &Service) -> Vec<(Work, u64)> {
    let units = service.status().units;
    let sum = |of: fn(&UnitStatus) -> u64| units.iter().map(of).fold(0, u64::saturating_add);
    vec![
        (Work::BlockReads, sum(|unit| unit.reads.operations)),
        (Work::BlockReadBytes, sum(|unit| unit.reads.bytes)),
        (Work::BlockWrites, sum(|unit| unit.writes.operations)),
        (Work::BlockWrittenBytes, sum(|unit| unit.writes.bytes)),
        (Work::BlockOthers, sum(|unit| unit.others.operations)),
        (
            Work::BlockErrors,
            sum(|unit| unit.reads.errors + unit.writes.errors + unit.others.errors),
        ),
    ]
}

/// Endpoints at the daemon of this node. A server that listens over the fabric alone starts it if
/// it is not there.
fn opening(config: &Config, configuration: &Configuration) -> anyhow::Result<Opening> {
    let opening = Opening::with("weft block", &configuration.options);
    let mut is_alone = false;
    for place in &config.listen {
        is_alone |= fabric_port(place)?.is_some();
    }
    if !is_alone {
        return Ok(opening);
    }
    let command = std::env::current_exe().context("this program's own file cannot be found")?;
    Ok(opening.starting_daemon_by(&command))
}
