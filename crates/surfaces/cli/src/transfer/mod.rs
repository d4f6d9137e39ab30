//! `weft transfer`: the far ends of `weft cp`.

mod sim;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use weft_copy::{Clients, ServeOptions, Server, Settings, answer_standard};

use crate::arguments::transfer::{ServeArguments, TransferCommand};
use crate::configuration::Configuration;
use crate::transports::of_transfers;

pub fn transfer(
    command: &TransferCommand,
    configuration: impl FnOnce() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    match command {
        TransferCommand::Serve(arguments) => serve(arguments, &configuration()?),
        TransferCommand::Sim(arguments) => sim::sim(arguments),
        TransferCommand::Answer => {
            // Without sound options there is no fabric.
            let opening = configuration().ok();
            let opening = opening.map(|found| of_transfers("weft cp", &found.options));
            match answer_standard(&Settings::default(), opening) {
                Ok(()) => Ok(ExitCode::SUCCESS),
                // The end that a user started says what went wrong.
                Err(error) => {
                    tracing::info!("the transfer ended: {error}");
                    Ok(ExitCode::FAILURE)
                }
            }
        }
    }
}

fn serve(arguments: &ServeArguments, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let clients = match (&arguments.key, &arguments.users) {
        (_, Some(file)) => Clients::Users(text_of_users(file)?),
        (Some(file), None) => Clients::WithKey(
            std::fs::read_to_string(file)
                .with_context(|| format!("the key file {}", file.display()))?,
        ),
        (None, None) => Clients::All,
    };
    let options = ServeOptions {
        listen: arguments.listen,
        clients,
        is_read_only: arguments.read_only,
        settings: Settings::default(),
        opening: of_transfers("weft transfer", &configuration.options),
    };
    let server = Server::new(&arguments.root, options)?;
    let (root, address) = (arguments.root.display(), server.address()?);
    match (server.why_no_fabric(), address) {
        (None, Some(address)) => eprintln!("weft: serving {root} over the fabric and at {address}"),
        (None, None) => {
            let port = arguments.listen.port();
            eprintln!("weft: serving {root} over the fabric alone, as weft://HOST:{port}");
        }
        (Some(why), address) => {
            let address = address.map(|address| address.to_string()).unwrap_or_default();
            eprintln!("weft: serving {root} at {address}");
            tracing::info!("not over the fabric: {why}");
        }
    }
    server.serve()
}

/// The text of a file of users, which nobody else may read: it has their keys.
fn text_of_users(file: &Path) -> anyhow::Result<String> {
    let shown = file.display();
    let about = || format!("the file of users {shown}");
    let mode = std::fs::metadata(file).with_context(about)?.mode();
    ensure!(mode & 0o077 == 0, "others may read the keys in {shown}; run chmod 600 {shown}");
    std::fs::read_to_string(file).with_context(about)
}
