//! The features that the kernel has, and the rights that it gives.

use rustix::fs::{MemfdFlags, SealFlags};

use super::{Check, Kernel, State, is_there};

pub fn checks(kernel: &Kernel) -> Vec<Check> {
    vec![
        modules(kernel),
        seccomp(kernel),
        version(),
        sealing(),
        membarrier(weft_sync::fence::register()),
        uring(kernel),
        ptrace(kernel),
        tun(kernel),
    ]
}

fn modules(kernel: &Kernel) -> Check {
    let confined = kernel.read("proc/self/attr/current").unwrap_or_default();
    let confined = confined.trim_end_matches('\0').to_owned();
    let enforces = kernel.read("sys/fs/selinux/enforce").as_deref() == Some("1");
    let loaded = kernel.read("sys/kernel/security/lsm").unwrap_or_default();
    let by_apparmor = confined.contains("(enforce)");
    match (enforces, by_apparmor) {
        (true, _) => Check::note("SELinux", format!("enforcing; this process is {confined}"))
            .change(
                "If programs do not reach the daemon, look for weft in `ausearch -m avc`",
                "services of confined domains may be put on the fabric",
            ),
        (_, true) => Check::new("AppArmor", State::Slow, format!("confined by {confined}")).change(
            "Let the profile read the preload library and the control socket",
            "programs of this profile are put on the fabric",
        ),
        _ if loaded.is_empty() => Check::good("security modules", "none confines this process"),
        _ => Check::good("security modules", format!("none of {loaded} confines this process")),
    }
}

fn seccomp(kernel: &Kernel) -> Check {
    let status = kernel.read("proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match mode {
        Some("0") => Check::good("seccomp", "no filter of system calls"),
        Some("2") => Check::note(
            "seccomp",
            "a filter of system calls, as containers have; memfd_create, membarrier and pidfd_open \
             must pass it",
        ),
        other => Check::note("seccomp", format!("mode {}", other.unwrap_or("unknown"))),
    }
}

fn version() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release.split(|one: char| !one.is_ascii_digit());
    let mut part = || parts.next().and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    match (part(), part()) >= (5, 15) {
        true => Check::good("kernel", release),
        false => Check::new("kernel", State::Broken, release)
            .change("Use 5.15 or later", "all that weft needs of the kernel is there"),
    }
}

fn sealing() -> Check {
    let sealed =
        rustix::fs::memfd_create("weft-doctor", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)
            .and_then(|file| {
                rustix::fs::ftruncate(&file, 4096)?;
                rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)
            });
    match sealed {
        Ok(()) => Check::good("sealed memory", "memfd_create with seals works"),
        Err(errno) => Check::new("sealed memory", State::Broken, errno.to_string()).change(
            "Permit memfd_create in the filter of this container",
            "programs share memory, without which nothing is on the fabric",
        ),
    }
}

fn membarrier(works: bool) -> Check {
    match works {
        true => Check::good("membarrier", "works"),
        false => Check::new("membarrier", State::Slow, "not there, or not permitted").change(
            "Permit membarrier in the filter of this container",
            "a fence less for each message",
        ),
    }
}

fn uring(kernel: &Kernel) -> Check {
    match kernel.read("proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("0") | None => Check::good("io_uring", "permitted"),
        Some(_) => Check::note("io_uring", "kernel.io_uring_disabled forbids it").change(
            "`sysctl kernel.io_uring_disabled=0`",
            "copies of files and block storage have many requests at the disk at once",
        ),
    }
}

fn ptrace(kernel: &Kernel) -> Check {
    match kernel.read("proc/sys/kernel/yama/ptrace_scope").as_deref() {
        Some("2" | "3") => Check::note("ptrace", "kernel.yama.ptrace_scope is 2 or 3").change(
            "`sysctl kernel.yama.ptrace_scope=1`",
            "OpenSHMEM reaches memory that exists already by one copy instead of two",
        ),
        _ => Check::good("ptrace", "processes of one user may copy from each other"),
    }
}

fn tun(kernel: &Kernel) -> Check {
    match is_there(&kernel.path("dev/net/tun")) {
        true => Check::good("TUN", "/dev/net/tun is there"),
        false => Check::note("TUN", "/dev/net/tun is not there").change(
            "`modprobe tun`, or --device /dev/net/tun of the container",
            "`weft lab` and Ethernet devices work",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::kernel;
    use super::*;

    #[test]
    fn filters_profiles_and_switches_are_told() {
        let (_place, confined) = kernel(&[
            ("proc/self/attr/current", "docker-default (enforce)\n"),
            ("proc/self/status", "Name:\tx\nSeccomp:\t2\n"),
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ("proc/sys/kernel/yama/ptrace_scope", "2\n"),
            ("dev/net/tun", ""),
        ]);
        assert_eq!(modules(&confined).state, State::Slow);
        for check in [seccomp(&confined), uring(&confined), ptrace(&confined)] {
            assert_eq!(check.state, State::Note, "{check:?}");
        }
        assert_eq!(tun(&confined).state, State::Good);
        let (_place, selinux) = kernel(&[("sys/fs/selinux/enforce", "1")]);
        assert_eq!((modules(&selinux).name, tun(&selinux).state), ("SELinux", State::Note));
    }
}
