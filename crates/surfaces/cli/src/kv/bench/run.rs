//! Runs the phases of a benchmark on a store, and measures them.
//!
//! Uses the standard library, `hdrhistogram`, `rustix` and `serde`: the peers run the same code.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::workload::{
    KEY_BYTES, Mix, Operation, Operations, Records, Values, Workload, Zipf, key,
};

/// A store that is measured.
pub trait Target: Sync {
    /// The bytes of the value of a key.
    ///
    /// # Errors
    /// The text of the store.
    fn get(&self, key: &[u8]) -> Result<Option<usize>, String>;

    /// Sets a value, given to the operating system when this returns.
    ///
    /// # Errors
    /// The text of the store.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String>;

    /// Waits until there is no work behind.
    ///
    /// # Errors
    /// The text of the store.
    fn settle(&self) -> Result<(), String>;

    /// Bytes that went between replicas, and bytes that backups read in order to compact, since
    /// the start.
    fn replication(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Which phases, and how large.
pub struct Plan {
    /// The phases in order.
    pub workloads: Vec<Workload>,
    /// The sizes of the pairs.
    pub mix: Mix,
    /// Records of the load.
    pub records: u64,
    /// Operations of each other phase.
    pub operations: u64,
    /// Threads that run operations.
    pub threads: usize,
}

/// The figures of a phase.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    workload: &'static str,
    operations: u64,
    ops_per_second: f64,
    cpu_us_per_op: f64,
    device_io_amplification: f64,
    device_read_amplification: f64,
    syscall_io_amplification: f64,
    network_amplification: f64,
    backup_compaction_read_bytes: u64,
    misses: u64,
    latency_us: Latency,
    read_latency_us: Latency,
    write_latency_us: Latency,
}

impl Phase {
    /// The cells of a row for people.
    #[must_use]
    pub fn cells(&self) -> [String; 8] {
        let latency = &self.latency_us;
        [
            self.workload.to_owned(),
            self.operations.to_string(),
            format!("{:.0}", self.ops_per_second),
            format!("{:.2}", self.cpu_us_per_op),
            format!("{:.2}", self.device_io_amplification),
            format!("{:.1}", latency.p50),
            format!("{:.1}", latency.p99),
            format!("{:.1}", latency.p999),
        ]
    }
}

#[derive(Clone, Debug, Serialize)]
struct Latency {
    p50: f64,
    p99: f64,
    p999: f64,
    p9999: f64,
}

/// Runs the phases.
///
/// # Errors
/// The text of the store or of the operating system.
pub fn run(target: &dyn Target, plan: &Plan) -> Result<Vec<Phase>, String> {
    let values = Values::default();
    let zipf = Zipf::new(plan.records);
    let loads = plan.workloads.contains(&Workload::LoadA);
    let records = Records::new(if loads { 0 } else { plan.records }, plan.threads);
    plan.workloads
        .iter()
        .map(|&workload| phase(target, plan, workload, &values, &zipf, &records))
        .collect()
}

/// The sums of the threads of a phase.
struct Sums {
    requests: u64,
    misses: u64,
    reads: Histogram<u64>,
    writes: Histogram<u64>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

fn phase(
    target: &dyn Target,
    plan: &Plan,
    workload: Workload,
    values: &Values,
    zipf: &Zipf,
    records: &Records,
) -> Result<Phase, String> {
    let operations = if workload == Workload::LoadA { plan.records } else { plan.operations };
    let left = AtomicU64::new(operations);
    let sums = Mutex::new(Sums { requests: 0, misses: 0, reads: histogram(), writes: histogram() });
    let before = Usage::now()?;
    let replicated = target.replication();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..plan.threads {
            let (left, sums) = (&left, &sums);
            let own = Operations::new(workload, records, zipf, thread);
            threads.push(scope.spawn(move || {
                let own = operate(target, plan.mix, values, own, left)?;
                let mut sums = sums.lock().expect("no thread panics with it");
                sums.requests += own.requests;
                sums.misses += own.misses;
                sums.reads.add(&own.reads).expect("the same digits");
                sums.writes.add(&own.writes).expect("the same digits");
                Ok::<_, String>(())
            }));
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    target.settle()?;
    let used = Usage::now()?.since(&before);
    let sums = sums.into_inner().expect("no thread panics with it");
    let (network, compaction) = target.replication();
    Ok(report(
        workload,
        operations,
        seconds,
        &used,
        &sums,
        (network - replicated.0, compaction - replicated.1),
    ))
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn report(
    workload: Workload,
    operations: u64,
    seconds: f64,
    used: &Usage,
    sums: &Sums,
    (network, compaction): (u64, u64),
) -> Phase {
    let requests = sums.requests.max(1) as f64;
    let mut all = histogram();
    all.add(&sums.reads).expect("the same digits");
    all.add(&sums.writes).expect("the same digits");
    Phase {
        workload: workload.name(),
        operations,
        ops_per_second: operations as f64 / seconds,
        cpu_us_per_op: used.cpu_us / operations.max(1) as f64,
        device_io_amplification: (used.device_read + used.device_written) as f64 / requests,
        device_read_amplification: used.device_read as f64 / requests,
        syscall_io_amplification: used.syscalls as f64 / requests,
        network_amplification: network as f64 / requests,
        backup_compaction_read_bytes: compaction,
        misses: sums.misses,
        latency_us: latency(&all),
        read_latency_us: latency(&sums.reads),
        write_latency_us: latency(&sums.writes),
    }
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    Latency { p50: at(0.5), p99: at(0.99), p999: at(0.999), p9999: at(0.9999) }
}

fn operate(
    target: &dyn Target,
    mix: Mix,
    values: &Values,
    mut own: Operations<'_>,
    left: &AtomicU64,
) -> Result<Sums, String> {
    let mut sums = Sums { requests: 0, misses: 0, reads: histogram(), writes: histogram() };
    let mut turn = 0;
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
        .is_ok()
    {
        turn += 1;
        let operation = own.next();
        let (Operation::Read(record) | Operation::Write(record)) = operation;
        let bytes = mix.value_bytes(record);
        let key = key(record);
        sums.requests += (KEY_BYTES + bytes) as u64;
        let start = Instant::now();
        if matches!(operation, Operation::Read(_)) {
            match target.get(&key)? {
                None => sums.misses += 1,
                Some(found) if found != bytes => {
                    return Err(format!("record {record} has {found} in place of {bytes} bytes"));
                }
                Some(_) => {}
            }
        } else {
            target.put(&key, values.value(record ^ turn << 40, bytes))?;
            own.done();
        }
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let histogram = if matches!(operation, Operation::Read(_)) {
            &mut sums.reads
        } else {
            &mut sums.writes
        };
        histogram.saturating_record(took);
    }
    Ok(sums)
}

/// The resources that the process used.
#[derive(Clone, Debug, Default)]
struct Usage {
    cpu_us: f64,
    device_read: u64,
    device_written: u64,
    syscalls: u64,
}

impl Usage {
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    fn now() -> Result<Self, String> {
        let text = fs::read_to_string("/proc/self/io").map_err(|error| error.to_string())?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
        };
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Ok(Self {
            cpu_us: time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3,
            device_read: field("read_bytes:"),
            device_written: field("write_bytes:"),
            syscalls: field("rchar:") + field("wchar:"),
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            cpu_us: self.cpu_us - before.cpu_us,
            device_read: self.device_read - before.device_read,
            device_written: self.device_written - before.device_written,
            syscalls: self.syscalls - before.syscalls,
        }
    }
}
