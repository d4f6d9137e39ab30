//! `weft kv bench`: the workloads of RED-SEA-D2.3#2.1.3 on the engine of this process.

pub mod run;
pub mod workload;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use serde_json::json;
use weft_kv::engine::{Engine, Options};
use weft_kv::store::{Change, Store};

use crate::arguments::kv_bench::BenchArguments;
use crate::output::show_line;
use crate::table::Table;
use run::{Phase, Plan, Target};
use workload::{Mix, Workload};

/// `weft kv bench`.
pub fn bench(arguments: &BenchArguments) -> anyhow::Result<ExitCode> {
    if arguments.replicas > 1 {
        bail!("replicas are not built yet; measure the engine with --replicas 1");
    }
    let plan = plan(arguments)?;
    let engine = open(&arguments.data, arguments)?;
    let phases = run::run(&Embedded(&engine), &plan).map_err(|text| anyhow!(text))?;
    engine.close().context("the store could not be closed")?;
    if arguments.json {
        show_line!("{}", json!({ "phases": phases }));
    } else {
        show_line!("{}", table(&phases).render());
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(arguments: &BenchArguments) -> anyhow::Result<Plan> {
    let named = |name: &String| {
        Workload::named(name).ok_or_else(|| {
            anyhow!("{name} is no workload; there are load-a, run-a, run-b, run-c and run-d")
        })
    };
    let mix = Mix::named(&arguments.mix)
        .ok_or_else(|| anyhow!("{} is no mix; there are S, M, L, SD, MD and LD", arguments.mix))?;
    Ok(Plan {
        workloads: arguments.workload.iter().map(named).collect::<anyhow::Result<_>>()?,
        mix,
        records: arguments.records,
        operations: arguments.operations,
        threads: arguments.threads,
    })
}

fn open(data: &Path, arguments: &BenchArguments) -> anyhow::Result<Engine> {
    let mut options = Options::default();
    if let Some(bytes) = arguments.level0_bytes {
        options.level0_bytes = usize::try_from(bytes).context("--level0-bytes is too large")?;
    }
    options.cache_bytes = arguments.cache_bytes.unwrap_or(options.cache_bytes);
    Engine::open(data, options)
        .map_err(|error| anyhow!("{} cannot be opened: {error}", data.display()))
}

/// The engine of this process.
struct Embedded<'a>(&'a Engine);

impl Target for Embedded<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        let value = self.0.get(key).map_err(|error| error.to_string())?;
        Ok(value.map(|value| value.len()))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let put = Change::Put { key: key.to_vec(), value: value.to_vec() };
        let lsn = self.0.write(vec![put]).map_err(|error| error.to_string())?;
        self.0.commit(lsn).map_err(|error| error.to_string())
    }

    fn settle(&self) -> Result<(), String> {
        self.0.settle().map_err(|error| error.to_string())
    }
}

fn table(phases: &[Phase]) -> Table {
    let mut table = Table::new([
        "phase",
        "operations",
        "ops/s",
        "CPU us/op",
        "device I/O",
        "p50 us",
        "p99",
        "p99.9",
    ]);
    for phase in phases {
        table.line(phase.cells());
    }
    table
}
