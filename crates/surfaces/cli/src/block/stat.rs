//! `weft block stat`: what a running server has done.

use std::process::ExitCode;

use anyhow::Context;
use weft_block_server::control::{Request, ask};
use weft_block_server::service::UnitStatus;

use super::socket_of;
use crate::arguments::block::StatArguments;
use crate::output::{show, show_line};
use crate::table::{Table, bytes, counted, harmless};

/// `weft block stat`.
pub fn stat(arguments: &StatArguments) -> anyhow::Result<ExitCode> {
    let status = ask(&socket_of(&arguments.control), &Request::Status)?;
    let status = status.context("the server gave no status")?;
    if arguments.json {
        show_line!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(ExitCode::SUCCESS);
    }
    for unit in &status.units {
        show!("{}", section(unit));
    }
    Ok(ExitCode::SUCCESS)
}

/// A LUN: a line about it, and a table of its operations.
fn section(unit: &UnitStatus) -> String {
    let mut about = vec![
        format!("{}/{}", unit.target, unit.lun),
        format!("{} bytes", unit.bytes),
        counted(unit.sessions, "session"),
        format!("queue {}", unit.queue),
    ];
    if let Some(node) = unit.node {
        about.push(format!("node {node}"));
    }
    if unit.read_only {
        about.push("read-only".to_owned());
    }
    let about = format!("{}\n{} ({})", about.join(", "), unit.store, unit.driver);
    let mut table = Table::new(["", "operations", "bytes", "mean us", "p99 us", "errors"]);
    for (name, of) in [("reads", &unit.reads), ("writes", &unit.writes), ("others", &unit.others)] {
        table.line([
            name.to_owned(),
            of.operations.to_string(),
            bytes(of.bytes),
            format!("{:.0}", of.mean_us),
            of.p99_us.to_string(),
            of.errors.to_string(),
        ]);
    }
    table.section(&harmless(&about))
}
