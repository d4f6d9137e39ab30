//! `weft status`: what a node daemon serves, as text for people or as JSON for scripts.

mod devices;
mod report;

use std::process::ExitCode;

use anyhow::bail;

use crate::arguments::StatusArguments;
use crate::configuration::Configuration;
use crate::daemon::absence;
use crate::output::{show, show_line};
use report::Report;

/// `weft status`.
pub fn status(
    arguments: &StatusArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    if !weftd::client::answers(&socket.path) {
        bail!("{}", absence(&socket));
    }
    let status = weftd::client::status(&socket.path)?;
    if arguments.json {
        // By way of a value, whose fields are in the order of their names.
        show_line!("{}", serde_json::to_string_pretty(&serde_json::to_value(&status)?)?);
    } else {
        let users = weftd::Users::read();
        show!("{}", Report { status: &status, socket: &socket, users: &users }.text());
    }
    Ok(ExitCode::SUCCESS)
}
