//! `weft kv bench`: the workloads of RED-SEA-D2.3#2.1.3 on the engine of this process, alone or
//! with backups, which are threads of it.

pub mod run;
pub mod workload;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde_json::json;
use weft_broker::Limits;
use weft_fabric::NodeId;
use weft_kv::engine::{Engine, Options};
use weft_kv::store::{Change, Store};
use weft_kv_server::{Replicated, Replication};
use weft_open::Opening;
use weft_transport_shm::local_broker;

use crate::arguments::kv_bench::{BenchArguments, ReplicationMode};
use crate::configuration::Configuration;
use crate::output::show_line;
use crate::table::Table;
use run::{Phase, Plan, Target};
use workload::{Mix, Workload};

/// `weft kv bench`.
pub fn bench(
    arguments: &BenchArguments,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    let plan = plan(arguments)?;
    let phases = match arguments.replicas {
        1 => alone(arguments, &plan)?,
        _ => replicated(arguments, &plan, &configuration()?)?,
    };
    if arguments.json {
        show_line!("{}", json!({ "phases": phases }));
    } else {
        show_line!("{}", table(&phases).render());
    }
    Ok(ExitCode::SUCCESS)
}

fn alone(arguments: &BenchArguments, plan: &Plan) -> anyhow::Result<Vec<Phase>> {
    let data = &arguments.data;
    let engine = Engine::open(data, options(arguments)?)
        .map_err(|error| anyhow!("{} cannot be opened: {error}", data.display()))?;
    let phases = run::run(&Embedded(&engine), plan).map_err(|text| anyhow!(text))?;
    engine.close().context("the store could not be closed")?;
    Ok(phases)
}

/// Primary and backups are in this process, and their endpoints reach each other by a broker of
/// its own: no daemon takes part.
fn replicated(
    arguments: &BenchArguments,
    plan: &Plan,
    configuration: &Configuration,
) -> anyhow::Result<Vec<Phase>> {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let opening = Opening::with("weft kv bench", &configuration.options).by(broker);
    let replication = match arguments.replication {
        ReplicationMode::SendIndex => Replication::SendIndex,
        ReplicationMode::BuildIndex => Replication::BuildIndex,
    };
    let (data, backups) = (&arguments.data, arguments.replicas - 1);
    let store = Replicated::open(data, options(arguments)?, backups, replication, &opening)
        .map_err(|error| anyhow!("{} cannot be measured: {error}", data.display()))?;
    let phases = run::run(&WithBackups(&store), plan).map_err(|text| anyhow!(text))?;
    store.close().context("the stores could not be closed")?;
    Ok(phases)
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

fn options(arguments: &BenchArguments) -> anyhow::Result<Options> {
    let mut options = Options::default();
    if let Some(bytes) = arguments.level0_bytes {
        options.level0_bytes = usize::try_from(bytes).context("--level0-bytes is too large")?;
    }
    options.cache_bytes = arguments.cache_bytes.unwrap_or(options.cache_bytes);
    Ok(options)
}

/// The engine of this process.
struct Embedded<'a>(&'a Engine);

impl Target for Embedded<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        get(self.0, key)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        put(self.0, key, value)
    }

    fn settle(&self) -> Result<(), String> {
        self.0.settle().map_err(|error| error.to_string())
    }
}

/// The engine with its backups.
struct WithBackups<'a>(&'a Replicated);

impl Target for WithBackups<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        get(self.0.engine(), key)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        put(self.0.engine(), key, value)
    }

    fn settle(&self) -> Result<(), String> {
        self.0.settle().map_err(|error| error.to_string())
    }

    fn replication(&self) -> (u64, u64) {
        (self.0.sent_bytes(), self.0.backup_compaction_read_bytes())
    }
}

fn get(engine: &Engine, key: &[u8]) -> Result<Option<usize>, String> {
    let value = engine.get(key).map_err(|error| error.to_string())?;
    Ok(value.map(|value| value.len()))
}

fn put(engine: &Engine, key: &[u8], value: &[u8]) -> Result<(), String> {
    let put = Change::Put { key: key.to_vec(), value: value.to_vec() };
    let lsn = engine.write(vec![put]).map_err(|error| error.to_string())?;
    engine.commit(lsn).map_err(|error| error.to_string())
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
