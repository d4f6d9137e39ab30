//! The third-party programs that the end-to-end tests run, and their installation.

use std::process::{Command, Stdio};

/// A program and the Debian package that contains it.
const PROGRAMS: [(&str, &str); 22] = [
    ("python3", "python3"),
    ("curl", "curl"),
    ("redis-server", "redis-server"),
    ("iperf3", "iperf3"),
    ("nc", "netcat-openbsd"),
    ("sockperf", "sockperf"),
    ("ip", "iproute2"),
    ("ping", "iputils-ping"),
    ("arping", "arping"),
    ("ndisc6", "ndisc6"),
    ("dnsmasq", "dnsmasq-base"),
    ("udhcpc", "udhcpc"),
    ("ethtool", "ethtool"),
    ("tcpdump", "tcpdump"),
    ("nft", "nftables"),
    ("sysctl", "procps"),
    ("pgbench", "postgresql"),
    ("etcd", "etcd-server"),
    ("openssl", "openssl"),
    // Its package brings the library, too.
    ("fi_info", "libfabric-bin"),
    // MPICH's launcher and library, for jobs of other programs.
    ("mpiexec.hydra", "mpich"),
    // Open MPI's launcher, which serves PMIx.
    ("orterun", "openmpi-bin"),
];

/// Installs missing programs as far as possible. Returns those that are still missing.
pub fn provide() -> Vec<&'static str> {
    let missing = missing();
    if missing.is_empty() || !is_root() || !is_there("apt-get") {
        return names(&missing);
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    eprintln!("about to install with apt-get: {}", packages.join(" "));
    // A failed installation shows as a missing program below.
    let _ = apt(&["update"]);
    for package in packages {
        let _ = apt(&["install", "-y", "--no-remove", "--no-install-recommends", package]);
    }
    names(&self::missing())
}

fn missing() -> Vec<(&'static str, &'static str)> {
    PROGRAMS.into_iter().filter(|(program, _)| !is_there(program)).collect()
}

fn names(missing: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    missing.iter().map(|(program, _)| *program).collect()
}

fn apt(arguments: &[&str]) -> std::io::Result<std::process::ExitStatus> {
    Command::new("apt-get")
        .args(["-q", "-o", "Dpkg::Use-Pty=0"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Keeps a newly installed package from starting its service.
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self")
        .is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
}

fn is_there(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    })
}
