//! The third-party programs that the end-to-end tests run, and their installation.

use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// A program and the Debian package that contains it.
const PROGRAMS: &[(&str, &str)] = &[
    ("python3", "python3"),
    // Of these the tests of the package for Python use the modules.
    ("pytest-3", "python3-pytest"),
    ("f2py3", "python3-numpy"),
    ("hypothesis", "python3-hypothesis"),
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
    // The judge of trees that were copied, and a real shell to another host.
    ("rsync", "rsync"),
    ("sshd", "openssh-server"),
    ("fakeroot-tcp", "fakeroot"),
    // Its package brings the library, too.
    ("fi_info", "libfabric-bin"),
    // Its headers, as seen from the directory of programs.
    ("../include/rdma/fabric.h", "libfabric-dev"),
    // Programs of MPI over libfabric are compiled with Open MPI's compiler, which needs headers.
    ("mpicc.openmpi", "libopenmpi-dev"),
    ("gcc", "gcc"),
    // MPICH's launcher and library, for jobs of other programs.
    ("mpiexec.hydra", "mpich"),
    // Open MPI's launcher, which serves PMIx.
    ("orterun", "openmpi-bin"),
    ("promtool", "prometheus"),
    ("tmux", "tmux"),
];

/// An installation that goes on while other stages build.
#[derive(Debug)]
pub struct Installation(JoinHandle<Vec<&'static str>>);

impl Installation {
    /// Begins to install the missing programs as far as possible.
    pub fn begin() -> Self {
        Self(std::thread::spawn(provide))
    }

    /// Waits for its end. Returns the programs that are still missing.
    pub fn end(self) -> Vec<&'static str> {
        self.0.join().unwrap_or_else(|_| names(&missing()))
    }
}

fn provide() -> Vec<&'static str> {
    let wanted = missing();
    if wanted.is_empty() || !is_root() || !is_there("apt-get") {
        return names(&wanted);
    }
    eprintln!("about to install with apt-get: {}", packages(&wanted).join(" "));
    // A failed installation shows as a missing program below.
    let _ = apt(&["update"]);
    let _ = install(&packages(&wanted));
    // One package that cannot be had has kept the others away.
    for package in packages(&missing()) {
        let _ = install(&[package]);
    }
    names(&missing())
}

fn missing() -> Vec<(&'static str, &'static str)> {
    PROGRAMS.iter().copied().filter(|(program, _)| !is_there(program)).collect()
}

fn names(missing: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    missing.iter().map(|(program, _)| *program).collect()
}

fn packages(missing: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    missing.iter().map(|(_, package)| *package).collect()
}

fn install(packages: &[&str]) -> std::io::Result<std::process::ExitStatus> {
    let options = ["install", "-y", "--no-remove", "--no-install-recommends"];
    apt(&[&options, packages].concat())
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
