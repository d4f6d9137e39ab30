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
    let about = harmless(&about.join(", "));
    let store = harmless(&format!("{} ({})", unit.store, unit.driver));
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
    table.section(&format!("{about}\n  {store}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lun_is_told_in_lines_that_fit_a_terminal() {
        let counters = |operations: u64| {
            json!({
                "operations": operations, "errors": 0, "bytes": operations * 4096,
                "mean_us": 9.6, "median_us": 8, "p99_us": 16,
            })
        };
        let unit = json!({
            "target": "iqn.2026-11.com.example:disks", "lun": 3, "store": "file:/srv/disk",
            "driver": "io_uring", "bytes": 1 << 30, "node": 1, "read_only": false, "sessions": 1,
            "queue": 2, "reads": counters(1), "writes": counters(0), "others": counters(0),
        });
        let text = section(&serde_json::from_value(unit).expect("the fields of a unit"));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let begin = "iqn.2026-11.com.example:disks/3, 1073741824 bytes, 1 session";
        assert!(lines[0].starts_with(begin), "{text}");
        assert_eq!(lines[1], "  file:/srv/disk (io_uring)");
        let words: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(words, ["reads", "1", "4096", "B", "10", "16", "0"], "{text}");
    }
}
