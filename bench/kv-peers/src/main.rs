//! Runs one engine through the workloads of `weft kv bench`, and prints the same object.
//!
//! `kv-peers ENGINE DIR WORKLOADS MIX RECORDS OPERATIONS THREADS LEVEL0_BYTES CACHE_BYTES`, where
//! ENGINE is weft, fjall, fjall-kv, rocksdb or rocksdb-blob.

#[path = "../../../crates/surfaces/cli/src/kv/bench/run.rs"]
mod run;
#[path = "../../../crates/surfaces/cli/src/kv/bench/workload.rs"]
mod workload;

mod fjalls;
mod rocks;
mod weft;

use std::path::Path;

use run::{Plan, Target};
use workload::{Mix, Workload};

/// The sizes that all engines get.
pub struct Sizes {
    level0: u64,
    cache: u64,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [engine, dir, workloads, mix, records, operations, threads, level0, cache] = &words[..]
    else {
        eprintln!("nine arguments: see the beginning of main.rs");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let plan = Plan {
        workloads: workloads.split(',').map(|it| Workload::named(it).expect("a workload")).collect(),
        mix: Mix::named(mix).expect("a mix"),
        records: number(records),
        operations: number(operations),
        threads: number(threads) as usize,
    };
    let sizes = Sizes { level0: number(level0), cache: number(cache) };
    let dir = Path::new(dir);
    let target: Box<dyn Target> = match engine.as_str() {
        "weft" => Box::new(weft::Weft::open(dir, &sizes)),
        "fjall" => Box::new(fjalls::Fjall::open(dir, &sizes, false)),
        "fjall-kv" => Box::new(fjalls::Fjall::open(dir, &sizes, true)),
        "rocksdb" => Box::new(rocks::Rocks::open(dir, &sizes, false)),
        "rocksdb-blob" => Box::new(rocks::Rocks::open(dir, &sizes, true)),
        _ => panic!("no engine {engine}"),
    };
    let phases = run::run(&*target, &plan).expect("a run");
    println!("{}", serde_json::json!({ "engine": engine, "phases": phases }));
}
