//! Each process of a job tells the others its process number and prints that of the next one.
//!
//! ```console
//! $ cargo build -p weft-pmi --example neighbours
//! $ mpiexec.hydra -n 3 target/debug/examples/neighbours
//! ```
#![forbid(unsafe_code)]

use std::time::Duration;

use weft_pmi::{Error, Job};

/// The time in which all processes have to come to the barrier.
const BARRIER_WITHIN: Duration = Duration::from_secs(30);

fn main() -> Result<(), Error> {
    let mut job = Job::join()?;
    let (rank, size) = (job.rank(), job.size());
    job.put(&format!("process-{rank}"), &std::process::id().to_string())?;
    job.barrier(BARRIER_WITHIN)?;
    let next = (rank + 1) % size;
    let process = job.get(next, &format!("process-{next}"))?;
    println!("rank {rank} of {size}: rank {next} is process {process}");
    job.finalize()
}
