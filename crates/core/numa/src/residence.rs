//! The nodes that pages and devices are on.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// How many pages of the mapping at `address` each node has, as `/proc/self/numa_maps` says. For
/// tests, and for people who ask where their memory is.
///
/// # Errors
/// The file cannot be read: the kernel has no support for nodes.
pub fn pages_by_node(address: usize) -> io::Result<BTreeMap<u32, u64>> {
    let maps = fs::read_to_string("/proc/self/numa_maps")?;
    Ok(pages_in(&maps, address))
}

/// The pages of one mapping: `7f1c2c000000 bind:1 file=/memfd:x dirty=256 N1=256`.
fn pages_in(maps: &str, address: usize) -> BTreeMap<u32, u64> {
    let lines = maps.lines().filter_map(|line| {
        let (start, rest) = line.split_once(' ')?;
        Some((usize::from_str_radix(start, 16).ok()?, rest))
    });
    let Some((_, rest)) = lines.filter(|(start, _)| *start <= address).max_by_key(|line| line.0)
    else {
        return BTreeMap::new();
    };
    rest.split_whitespace()
        .filter_map(|word| {
            let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
            Some((node.parse().ok()?, pages.parse().ok()?))
        })
        .collect()
}

/// The node that a device is near, from its folder in `/sys`, such as `/sys/class/net/eth0` or
/// `/sys/dev/block/259:0`. A disk that is made of others, as a volume of LVM, is where all of these
/// are. `None` when the system does not say, as for other virtual devices.
#[must_use]
pub fn node_of_device(directory: &Path) -> Option<u32> {
    node_within(directory, PARTS_DEPTH)
}

/// How deep disks that are made of others are looked into.
const PARTS_DEPTH: u32 = 4;

fn node_within(directory: &Path, depth: u32) -> Option<u32> {
    // A partition says it by its disk, a disk by its controller: each is a folder further up.
    let directory = fs::canonicalize(directory).ok()?;
    let own = directory.ancestors().find_map(|folder| {
        let text = ["numa_node", "device/numa_node"]
            .iter()
            .find_map(|name| fs::read_to_string(folder.join(name)).ok())?;
        text.trim().parse().ok()
    });
    if own.is_some() || depth == 0 {
        return own;
    }
    let parts = fs::read_dir(directory.join("slaves")).ok()?;
    let mut nodes = parts.flatten().map(|part| node_within(&part.path(), depth - 1));
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_a_mapping_are_counted_by_node() {
        let maps = "7f00 default N0=9\n8000 bind:1 file=/x dirty=4 N0=1 N1=3\n9000 default\n";
        assert_eq!(pages_in(maps, 0x8123), BTreeMap::from([(0, 1), (1, 3)]));
        assert_eq!(pages_in(maps, 0x9000), BTreeMap::new());
        assert_eq!(pages_in(maps, 0x10), BTreeMap::new());
    }

    #[test]
    fn a_device_is_near_the_node_of_the_folder_above_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = directory.path().join("pci0/nvme0/nvme0n1");
        fs::create_dir_all(disk.join("nvme0n1p1")).expect("fresh");
        fs::write(directory.path().join("pci0/numa_node"), "1\n").expect("fresh");
        assert_eq!(node_of_device(&disk.join("nvme0n1p1")), Some(1));
        fs::write(disk.join("numa_node"), "-1\n").expect("fresh");
        assert_eq!(node_of_device(&directory.path().join("pci0")), Some(1));
        assert_eq!(node_of_device(&directory.path().join("none")), None);
    }

    #[test]
    fn a_disk_of_disks_is_near_the_node_of_all_of_them() {
        let directory = tempfile::tempdir().expect("a directory");
        for (disk, node) in [("a", "1"), ("b", "1"), ("c", "0")] {
            let disk = directory.path().join(format!("pci-{disk}/{disk}"));
            fs::create_dir_all(&disk).expect("fresh");
            fs::write(disk.with_file_name("numa_node"), node).expect("fresh");
        }
        let volume = |name: &str, parts: &[&str]| {
            let volume = directory.path().join("virtual").join(name);
            fs::create_dir_all(volume.join("slaves")).expect("fresh");
            for part in parts {
                let to = format!("../../../pci-{part}/{part}");
                std::os::unix::fs::symlink(to, volume.join("slaves").join(part)).expect("fresh");
            }
            node_of_device(&volume)
        };
        assert_eq!(volume("dm-0", &["a", "b"]), Some(1));
        assert_eq!(volume("dm-1", &["b", "c"]), None);
        assert_eq!(volume("dm-2", &[]), None);
    }
}
