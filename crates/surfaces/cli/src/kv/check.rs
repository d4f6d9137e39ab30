//! `weft kv admin check`: reads all of a stopped store, or of all regions of a stopped node.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use serde_json::json;
use weft_kv::engine::{Options, check_directory};
use weft_kv_server::regions_in;

use crate::arguments::kv_bench::CheckArguments;
use crate::output::show_line;

/// `weft kv admin check`.
pub fn check(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let data = &arguments.data;
    ensure!(data.is_dir(), "{} is no directory", data.display());
    let regions = regions_in(data);
    let stores: Vec<(String, PathBuf)> = match regions.is_empty() {
        true => vec![(String::new(), data.clone())],
        false => regions.into_iter().map(|(id, place)| (format!("region {id}: "), place)).collect(),
    };
    let (mut damage, mut discarded, mut lsns) = (Vec::new(), Vec::new(), Vec::new());
    for (name, place) in stores {
        let (found, report) = check_directory(&place, Options::default())
            .with_context(|| format!("{} cannot be checked", place.display()))?;
        damage.extend(found.iter().map(|text| format!("{name}{text}")));
        discarded.extend(report.discarded.iter().map(|text| format!("{name}{text}")));
        lsns.push((name, report.lsn));
    }
    if arguments.json {
        let lsn: u64 = lsns.iter().map(|(_, lsn)| lsn).sum();
        show_line!("{}", json!({ "damage": damage, "discarded": discarded, "lsn": lsn }));
    } else {
        for text in &discarded {
            show_line!("to be discarded: {text}");
        }
        for text in &damage {
            show_line!("{text}");
        }
        if damage.is_empty() {
            for (name, lsn) in lsns {
                show_line!("{name}clean up to batch {lsn}");
            }
        }
    }
    Ok(if damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
