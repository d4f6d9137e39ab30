//! Threads near the memory node of the device that they use.
//!
//! Readers stay at the node of the disk that the sources lie on, writers at that of the
//! destination, and the thread of an endpoint between hosts at that of the network device. Their
//! pages come from there by themselves, as they touch them first. The policy is static
//! (NUMA-RDMA#numa-tuning).
//! Always true: where one node is all that there is, or the kernel does not say where a device is,
//! as for files in memory, no thread is bound; the system moves threads better then.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, major, minor};
use weft_netdev::addresses::interface_of;
use weft_numa::{ProcessorSet, Topology, node_of_device};

/// The nodes of a machine, and where its devices are.
pub(crate) struct Machine {
    /// The folder of the kernel, `/sys`.
    system: PathBuf,
    topology: Topology,
    /// The processors that this process may use.
    allowed: ProcessorSet,
}

/// Processors of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Near {
    node: u32,
    processors: ProcessorSet,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (processors {})", self.node, self.processors)
    }
}

impl Near {
    /// Keeps this thread there. Where the system does not let it, the thread goes on as it is.
    pub fn bind(&self) {
        if let Err(error) = weft_numa::bind_thread(&self.processors) {
            tracing::warn!("cannot bind a thread to {self}: {error}");
        }
    }
}

impl Machine {
    /// This machine, if it has several nodes.
    pub fn own() -> Option<Self> {
        Self::read(Path::new("/sys"), weft_numa::allowed_processors().ok()?)
    }

    fn read(system: &Path, allowed: ProcessorSet) -> Option<Self> {
        let topology = Topology::read(&system.join("devices/system/node")).ok()?;
        let has_several = topology.nodes().len() > 1;
        has_several.then(|| Self { system: system.to_owned(), topology, allowed })
    }

    /// The processors of a node that this process may use; `None` if it may use none of them.
    fn at(&self, node: u32) -> Option<Near> {
        let processors = self.topology.processors_near(node)?.and(&self.allowed);
        (!processors.is_empty()).then_some(Near { node, processors })
    }

    /// Near the disk of a device number.
    fn near_disk(&self, (major, minor): (u32, u32)) -> Option<Near> {
        let folder = self.system.join(format!("dev/block/{major}:{minor}"));
        self.at(node_of_device(&folder)?)
    }

    fn near_interface(&self, name: &str) -> Option<Near> {
        self.at(node_of_device(&self.system.join("class/net").join(name))?)
    }

    /// Near the disk that all of these files lie on; `None` if they are near several nodes.
    pub fn near_files(&self, files: impl IntoIterator<Item = impl AsFd>) -> Option<Near> {
        one(files.into_iter().map(|file| {
            let device = fstat(file).ok()?.st_dev;
            self.near_disk((major(device), minor(device)))
        }))
    }

    /// Near the network device that has an address.
    pub fn near_address(&self, address: IpAddr) -> Option<Near> {
        self.near_interface(&interface_of(address).ok()??)
    }
}

/// The one that all are.
fn one(all: impl IntoIterator<Item = Option<Near>>) -> Option<Near> {
    let mut all = all.into_iter();
    let first = all.next()??;
    all.all(|next| next.as_ref() == Some(&first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder as the kernel's: two nodes of four processors, a disk at the second, a network
    /// device at the first, and a device in memory.
    fn system() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("inside")).expect("fresh");
            fs::write(path, text).expect("fresh");
        };
        let link = |path: &str, to: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("inside")).expect("fresh");
            std::os::unix::fs::symlink(to, path).expect("fresh");
        };
        for (node, processors, distances) in [(0, "0-3", "10 21"), (1, "4-7", "21 10")] {
            write(&format!("devices/system/node/node{node}/cpulist"), processors);
            write(&format!("devices/system/node/node{node}/distance"), distances);
        }
        let disk = "devices/pci0000:80/0000:80:01.1/0000:81:00.0";
        write(&format!("{disk}/numa_node"), "1\n");
        write(&format!("{disk}/nvme/nvme0/nvme0n1/nvme0n1p2/partition"), "2\n");
        link("dev/block/259:2", &format!("../../{disk}/nvme/nvme0/nvme0n1/nvme0n1p2"));
        let card = "devices/pci0000:00/0000:00:02.0/0000:17:00.0";
        write(&format!("{card}/numa_node"), "0\n");
        write(&format!("{card}/net/eth0/mtu"), "9000\n");
        link("class/net/eth0", &format!("../../{card}/net/eth0"));
        write("devices/virtual/net/lo/mtu", "65536\n");
        link("class/net/lo", "../../devices/virtual/net/lo");
        directory
    }

    fn machine(system: &Path, allowed: &str) -> Machine {
        Machine::read(system, allowed.parse().expect("a list")).expect("two nodes")
    }

    #[test]
    fn threads_stay_at_the_node_of_their_disk_or_of_their_network_device() {
        let system = system();
        let machine = machine(system.path(), "0-7");
        let said = |near: Option<Near>| near.map(|near| near.to_string());
        assert_eq!(said(machine.near_disk((259, 2))).as_deref(), Some("node 1 (processors 4-7)"));
        assert_eq!(
            said(machine.near_interface("eth0")).as_deref(),
            Some("node 0 (processors 0-3)")
        );
        assert_eq!(machine.near_disk((0, 26)), None, "a file system in memory");
        assert_eq!(machine.near_interface("lo"), None);
    }

    #[test]
    fn a_thread_stays_among_the_processors_that_a_container_left_it() {
        let system = system();
        let few = machine(system.path(), "2,5");
        assert_eq!(few.at(1), Some(Near { node: 1, processors: "5".parse().expect("a list") }));
        let other = machine(system.path(), "0-3");
        assert_eq!(other.at(1), None, "the node has none that it may use");
    }

    #[test]
    fn nothing_is_bound_where_there_is_one_node_or_where_files_are_near_several() {
        let system = system();
        let nodes = system.path().join("devices/system/node");
        let machine = machine(system.path(), "0-7");
        let (first, second) = (machine.at(0), machine.at(1));
        assert!(first.is_some() && second.is_some());
        assert_eq!(one([second.clone(), second.clone()]), second);
        assert_eq!(one([first.clone(), second]), None);
        assert_eq!(one([first, None]), None);
        fs::remove_dir_all(nodes.join("node1")).expect("it is there");
        assert!(Machine::read(system.path(), "0-3".parse().expect("a list")).is_none());
        fs::remove_dir_all(nodes).expect("it is there");
        assert!(Machine::read(system.path(), "0-3".parse().expect("a list")).is_none());
    }

    #[test]
    fn a_thread_that_is_bound_runs_there() {
        let before = weft_numa::allowed_processors().expect("a thread");
        let last: ProcessorSet = before.iter().last().into_iter().collect();
        let near = Near { node: 0, processors: last.clone() };
        let bound = std::thread::spawn(move || {
            near.bind();
            weft_numa::allowed_processors().expect("a thread")
        });
        assert_eq!(bound.join().expect("it ends"), last);
    }
}
