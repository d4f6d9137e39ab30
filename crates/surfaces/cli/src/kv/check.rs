//! `weft kv admin check`: reads all of a stopped store.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use serde_json::json;
use weft_kv::engine::{Options, check_directory};

use crate::arguments::kv_bench::CheckArguments;
use crate::output::show_line;

/// `weft kv admin check`.
pub fn check(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let data = &arguments.data;
    ensure!(data.is_dir(), "{} is no directory", data.display());
    let (damage, report) = check_directory(data, Options::default())
        .with_context(|| format!("{} cannot be checked", data.display()))?;
    if arguments.json {
        let discarded = &report.discarded;
        show_line!("{}", json!({ "damage": damage, "discarded": discarded, "lsn": report.lsn }));
    } else {
        for text in &report.discarded {
            show_line!("to be discarded: {text}");
        }
        for text in &damage {
            show_line!("{text}");
        }
        if damage.is_empty() {
            show_line!("clean up to batch {}", report.lsn);
        }
    }
    Ok(if damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
