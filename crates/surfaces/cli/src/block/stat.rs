//! `weft block stat`: what a running server has done.

use std::process::ExitCode;

use anyhow::Context;
use weft_block_server::control::{Request, ask};

use super::socket_of;
use crate::arguments::block::StatArguments;
use crate::output::{show, show_line};
use crate::table::Table;

/// `weft block stat`.
pub fn stat(arguments: &StatArguments) -> anyhow::Result<ExitCode> {
    let status = ask(&socket_of(&arguments.control), &Request::Status)?;
    let status = status.context("the server gave no status")?;
    if arguments.json {
        show_line!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new([
        "lun", "store", "bytes", "node", "sessions", "queue", "reads", "MB", "us", "p99", "writes",
        "MB", "us", "p99", "errors",
    ]);
    for unit in &status.units {
        let node = unit.node.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let mut row = vec![
            format!("{}/{}", unit.target, unit.lun),
            unit.store.clone(),
            unit.bytes.to_string(),
            node,
            unit.sessions.to_string(),
            unit.queue.to_string(),
        ];
        for of in [&unit.reads, &unit.writes] {
            row.push(of.operations.to_string());
            row.push((of.bytes / 1_000_000).to_string());
            row.push(format!("{:.0}", of.mean_us));
            row.push(of.p99_us.to_string());
        }
        let errors = unit.reads.errors + unit.writes.errors + unit.others.errors;
        row.push(errors.to_string());
        table.line(row);
    }
    show!("{}", table.render());
    Ok(ExitCode::SUCCESS)
}
