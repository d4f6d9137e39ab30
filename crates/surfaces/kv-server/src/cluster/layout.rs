//! The directory of a node: whose it is, and where the regions lie.
//!
//! A node of a cluster with one region has its store in the directory itself; with several each
//! region has a directory of its own below it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use weft_kv::cluster::REGIONS_MAX;
use weft_kv::engine::Options;
use weft_kv::store::StoreError;

/// The file with the name of the cluster that a directory belongs to.
const CLUSTER: &str = "cluster-name";

/// Least bytes of a level 0, a segment and a cache, however many regions share a node.
const LEVEL0_BYTES_MIN: usize = 4 << 20;
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
const CACHE_BYTES_MIN: u64 = 4 << 20;

/// The directories of the regions of a cluster with several that are below a directory.
#[must_use]
pub fn regions_in(directory: &Path) -> Vec<(u32, PathBuf)> {
    let place = |region| (region, place_of(directory, region));
    (0..REGIONS_MAX).map(place).filter(|(_, place)| place.is_dir()).collect()
}

/// The directory of a region, of several.
pub(super) fn place_of(directory: &Path, region: u32) -> PathBuf {
    directory.join(format!("region-{region}"))
}

/// The directories of so many regions.
pub(super) fn directories(directory: &Path, regions: u32) -> Result<Vec<PathBuf>, StoreError> {
    let there = regions_in(directory);
    let name = directory.display();
    let refused = |why: String| Err(StoreError::NotServed(why));
    let is_foreign = there.iter().any(|(region, _)| *region >= regions);
    match regions {
        1 if !there.is_empty() => refused(format!(
            "{name} has {} regions, and the cluster has one; take another directory",
            there.len()
        )),
        1 => Ok(vec![directory.to_owned()]),
        _ if directory.join("super-0").exists() => refused(format!(
            "{name} has a store of one region, and the cluster has {regions}; take another \
             directory, or a cluster of one region"
        )),
        _ if is_foreign => refused(format!(
            "{name} has more regions than the cluster, which has {regions}; take another directory"
        )),
        _ => Ok((0..regions).map(|region| place_of(directory, region)).collect()),
    }
}

/// The options of a region's engine, of so many on a node: together they take about as much memory
/// and space as one.
pub(super) fn share(options: Options, region: u32, regions: u32) -> Options {
    let parts = regions as usize;
    Options {
        region,
        level0_bytes: (options.level0_bytes / parts).max(LEVEL0_BYTES_MIN),
        // An empty store of three regions is as large as three stores.
        segment_bytes: (options.segment_bytes * 3 / u64::from(regions).max(3))
            .max(SEGMENT_BYTES_MIN),
        cache_bytes: (options.cache_bytes / u64::from(regions)).max(CACHE_BYTES_MIN),
        files_max: (options.files_max / parts).max(16),
        ..options
    }
}

/// Notes whose directory this is.
pub(super) fn mark(directory: &Path, cluster: &str) -> Result<(), StoreError> {
    let file = directory.join(CLUSTER);
    match fs::read_to_string(&file) {
        Ok(text) if text.trim() == cluster => Ok(()),
        Ok(text) => Err(StoreError::NotServed(format!(
            "{} belongs to the cluster {}",
            directory.display(),
            text.trim()
        ))),
        Err(_) => fs::write(&file, format!("{cluster}\n"))
            .map_err(|error| StoreError::ReadOnly(format!("{}: {error}", file.display()))),
    }
}

/// The cluster that a directory belongs to, if it belongs to one.
#[must_use]
pub fn cluster_of(directory: &Path) -> Option<(String, PathBuf)> {
    let file = directory.join(CLUSTER);
    let text = fs::read_to_string(&file).ok()?;
    Some((text.trim().to_owned(), file))
}

/// Bytes that a directory takes on its device.
pub(super) fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok());
    files.filter(fs::Metadata::is_file).map(|file| file.blocks() * 512).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may end by a panic")]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_not_taken_for_another_number_of_regions() {
        let root = tempfile::tempdir().unwrap();
        let (one, three) = (root.path().join("one"), root.path().join("three"));
        fs::create_dir(&one).unwrap();
        assert_eq!(directories(&one, 1).unwrap(), std::slice::from_ref(&one));
        fs::write(one.join("super-0"), "").unwrap();
        assert_eq!(directories(&one, 1).unwrap(), std::slice::from_ref(&one));
        assert!(directories(&one, 3).unwrap_err().to_string().contains("store of one region"));
        for place in directories(&three, 3).unwrap() {
            fs::create_dir_all(place).unwrap();
        }
        assert_eq!(regions_in(&three).len(), 3);
        assert_eq!(directories(&three, 3).unwrap().len(), 3);
        assert!(directories(&three, 1).unwrap_err().to_string().contains("has 3 regions"));
        assert!(directories(&three, 2).unwrap_err().to_string().contains("more regions"));
    }

    #[test]
    fn regions_share_what_a_node_has() {
        let whole = Options::default();
        assert_eq!(share(whole.clone(), 0, 1), whole);
        for regions in 2..=REGIONS_MAX {
            let part = share(whole.clone(), 1, regions);
            let count = regions as usize;
            assert!(part.level0_bytes * count <= whole.level0_bytes.max(LEVEL0_BYTES_MIN * count));
            assert!(part.segment_bytes * u64::from(regions) <= whole.segment_bytes * 3);
            assert_eq!(part.region, 1);
        }
    }
}
