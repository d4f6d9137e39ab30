//! Processors, memory and limits.

use rustix::process::{Resource, getrlimit};

use super::{Check, Kernel, State};

/// Descriptors below which a busy program runs out of them.
const DESCRIPTORS_FEW: u64 = 4096;
/// Bytes of locked memory below which RDMA devices register too little.
const LOCKED_FEW: u64 = 64 << 20;

pub fn checks(kernel: &Kernel) -> Vec<Check> {
    vec![
        cores(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)),
        governor(kernel),
        load(kernel),
        huge_pages(kernel),
        shared_memory(kernel),
        descriptors(getrlimit(Resource::Nofile).current, getrlimit(Resource::Nofile).maximum),
        locked(kernel, getrlimit(Resource::Memlock).current),
    ]
}

fn cores(count: usize) -> Check {
    match count {
        1 => Check::new("cores", State::Slow, "1 for this process").change(
            "Give it two, by the affinity or the quota of its container",
            "two ends that talk need not wait for each other's turn, which costs milliseconds",
        ),
        _ => Check::good("cores", format!("{count} for this process")),
    }
}

fn governor(kernel: &Kernel) -> Check {
    let of = "sys/devices/system/cpu";
    let mut governors: Vec<_> = kernel
        .list(of)
        .iter()
        .filter_map(|cpu| kernel.read(&format!("{of}/{cpu}/cpufreq/scaling_governor")))
        .collect();
    governors.sort();
    governors.dedup();
    let names = governors.join(", ");
    match governors.as_slice() {
        [] => Check::good("governor", "the system does not set the frequency of processors"),
        slow if slow.iter().any(|one| matches!(one.as_str(), "powersave" | "conservative")) => {
            Check::new("governor", State::Slow, names).change(
                "`cpupower frequency-set -g performance`, or `schedutil`",
                "round trips of mostly idle programs no longer run at the lowest frequency",
            )
        }
        _ => Check::good("governor", names),
    }
}

/// How many threads wanted a processor in the last minute, and whether that is more than there are.
pub fn load_of(kernel: &Kernel) -> (f64, bool) {
    let text = kernel.read("proc/loadavg").unwrap_or_default();
    let load: f64 = text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    #[allow(clippy::cast_precision_loss, reason = "a count of processors")]
    let is_busy = load > cores as f64;
    (load, is_busy)
}

fn load(kernel: &Kernel) -> Check {
    let (load, is_busy) = load_of(kernel);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let found = format!("{load:.1} threads want {cores} cores");
    match is_busy {
        true => Check::new("load", State::Note, found)
            .change("Measure when it is idle", "figures that say something about weft"),
        false => Check::good("load", found),
    }
}

fn huge_pages(kernel: &Kernel) -> Check {
    let of = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let chosen = kernel.read(of).and_then(|text| {
        let chosen = text.split_once('[')?.1.split_once(']')?.0;
        Some(chosen.to_owned())
    });
    match chosen.as_deref() {
        None => Check::note("huge pages", "the kernel has none for shared memory"),
        Some(chosen @ ("never" | "deny")) => {
            Check::note("huge pages", format!("{chosen} for shared memory")).change(
                format!("`echo advise > /{of}`"),
                "fewer misses where many megabytes are put or got at once",
            )
        }
        Some(chosen) => Check::good("huge pages", format!("{chosen} for shared memory")),
    }
}

fn shared_memory(kernel: &Kernel) -> Check {
    let text = kernel.read("proc/meminfo").unwrap_or_default();
    let kilobytes = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
    };
    let (available, all) = (kilobytes("MemAvailable"), kilobytes("MemTotal"));
    let found = format!("{} of {} MB available", available / 1000, all / 1000);
    match available < all / 20 {
        true => Check::new("memory", State::Slow, found).change(
            "Free some",
            "lanes and regions are not swapped out, and connections do not stay on TCP for lack \
             of memory",
        ),
        false => Check::good("memory", found),
    }
}

fn descriptors(current: Option<u64>, maximum: Option<u64>) -> Check {
    let text =
        |limit: Option<u64>| limit.map_or("any number".to_owned(), |limit| limit.to_string());
    let found = format!("{} for a process, {} at most", text(current), text(maximum));
    match current.is_some_and(|limit| limit < DESCRIPTORS_FEW) {
        true => Check::note("descriptors", found).change(
            "`ulimit -n 65536`, or LimitNOFILE= of the unit, for programs with many connections",
            "none stays on TCP for lack of descriptors: one on the fabric needs up to two more",
        ),
        false => Check::good("descriptors", found),
    }
}

fn locked(kernel: &Kernel, limit: Option<u64>) -> Check {
    let has_rdma = !kernel.list("sys/class/infiniband").is_empty();
    let found = limit.map_or("any amount".to_owned(), |bytes| format!("{} kB", bytes >> 10));
    let is_small = limit.is_some_and(|bytes| bytes < LOCKED_FEW);
    let root = rustix::process::geteuid().is_root();
    match (is_small && !root, has_rdma) {
        (false, _) => Check::good("locked memory", found),
        (true, true) => Check::new("locked memory", State::Broken, found).change(
            "`ulimit -l unlimited`, or LimitMEMLOCK=infinity of the unit",
            "the RDMA device can register memory, without which it is not used",
        ),
        (true, false) => {
            Check::note("locked memory", format!("{found}; no device here needs more"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::kernel;
    use super::*;

    #[test]
    fn a_slow_governor_and_a_lack_of_locked_memory_are_told_with_what_to_do() {
        let (_place, machine) = kernel(&[
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
            ("sys/class/infiniband/mlx5_0/node_desc", "x"),
            ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never\n"),
            ("proc/meminfo", "MemTotal: 100000 kB\nMemAvailable: 4000 kB\n"),
        ]);
        let told = governor(&machine);
        assert_eq!((told.state, told.found.as_str()), (State::Slow, "performance, powersave"));
        assert_eq!(huge_pages(&machine).found, "advise for shared memory");
        assert_eq!(shared_memory(&machine).state, State::Slow);
        assert_eq!(locked(&machine, None).state, State::Good);
        let (_place, bare) = kernel(&[]);
        assert_eq!(governor(&bare).state, State::Good);
        assert_eq!(huge_pages(&bare).state, State::Note);
        assert_eq!((cores(1).state, cores(2).state), (State::Slow, State::Good));
    }
}
