//! A network namespace without a name: it is gone with its last user.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(File);

fn current() -> File {
    File::open("/proc/thread-self/ns/net").expect("the kernel has network namespaces")
}

fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("this process is root");
}

impl Namespace {
    /// A new one, in which nothing is up but loopback.
    ///
    /// # Panics
    /// When the process is not root.
    #[must_use]
    pub fn new() -> Self {
        // It ends when its input does, and has said before that it is in the namespace.
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec cat"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut maker = piped.expect("util-linux is installed");
        let told = maker.stdout.as_mut().map(|output| output.read_exact(&mut [0]));
        assert!(matches!(told, Some(Ok(()))), "network namespaces need root");
        let made = File::open(format!("/proc/{}/ns/net", maker.id())).expect("it runs");
        drop(maker.stdin.take());
        let _ = maker.wait();
        let made = Self(made);
        made.ip("link set lo up");
        made
    }

    /// Calls `work` with this thread in the namespace. What it starts stays there.
    ///
    /// # Panics
    /// When the process is not root any more.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = current();
        enter(&self.0);
        let done = work();
        enter(&before);
        done
    }

    /// Calls ip(8) in the namespace.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, arguments: &str) {
        let mut command = Command::new("ip");
        command.args(arguments.split_whitespace());
        let status = self.inside(|| command.status()).expect("iproute2 is installed");
        assert!(status.success(), "ip {arguments}: {status}");
    }

    /// Hosts on one switch: the namespace of the switch, and theirs, of which number n (from 1 on)
    /// has the address 10.9.0.n on its interface `cable`.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn switched(hosts: usize) -> (Self, Vec<Self>) {
        let switch = Self::new();
        switch.ip("link add switch type bridge");
        switch.ip("link set switch up");
        let hosts = (1..=hosts).map(|number| {
            let host = Self::new();
            let place = format!("/proc/{}/fd/{}", std::process::id(), host.0.as_raw_fd());
            switch.ip(&format!("link add port{number} type veth peer name cable netns {place}"));
            switch.ip(&format!("link set port{number} master switch up"));
            host.ip(&format!("address add 10.9.0.{number}/24 dev cable"));
            host.ip("link set cable up");
            host
        });
        let hosts = hosts.collect();
        (switch, hosts)
    }

    /// Lays a cable to another namespace. This one has the address 10.9.0.1, the other 10.9.0.2.
    ///
    /// # Panics
    /// When it fails.
    pub fn cable_to(&self, other: &Self) {
        let place = format!("/proc/{}/fd/{}", std::process::id(), other.0.as_raw_fd());
        self.ip(&format!("link add cable type veth peer name cable netns {place}"));
        for (namespace, number) in [(self, 1), (other, 2)] {
            namespace.ip(&format!("address add 10.9.0.{number}/24 dev cable"));
            namespace.ip("link set cable up");
        }
    }

    /// A second handle of it.
    ///
    /// # Panics
    /// When this process has no descriptor left.
    #[must_use]
    pub fn again(&self) -> Self {
        Self(self.0.try_clone().expect("a descriptor"))
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}
