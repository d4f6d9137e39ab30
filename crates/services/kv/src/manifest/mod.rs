//! The manifest: which tables and segments a region consists of, as records that are appended.
//!
//! ```text
//! manifest = header, record …, zeros
//! header   = magic 8 | region 4 | number 8 | 0 … | crc 4
//! record   = length 4 | crc 4 | an [`Edit`]
//! super    = magic 8 | region 4 | generation 8 | manifest 8 | 0 … | crc 4, in `super-0`, `super-1`
//! ```
//! Always true: an edit happened when its record is synced, and not before. The superblock of the
//! higher generation names the manifest; a new manifest begins with the whole [`State`], and the
//! other superblock then names it. A record that is torn at the end of a manifest is an edit that
//! did not happen; a bad record with a valid one behind it is damage. If damage hits the last
//! record, then the files that its edit removed are missed, or the log says the same again.

mod state;

use std::sync::Arc;

pub use state::{Edit, Joint, LEVELS_MAX, NOWHERE, Position, State, TableAt};

use crate::disk::{Disk, DiskFile, read_error, write_error};
use crate::format::{Region, checksum, damaged, seed, u32_at, u64_at};
use crate::record::HEADER_BYTES as RECORDS_AT;
use crate::store::StoreError;

const MAGIC: &[u8; 8] = b"weftman1";
const SUPER_MAGIC: &[u8; 8] = b"weftsup1";
const HEADER_BYTES: usize = 64;
const RECORD_HEAD: usize = 8;
/// Space that a manifest reserves, and bytes after which a new one begins.
const MANIFEST_BYTES: u64 = 1 << 20;
const SUPERS: [&str; 2] = ["super-0", "super-1"];

/// The manifest that edits are appended to, and the state that they sum up to.
pub struct Manifest {
    disk: Arc<dyn Disk>,
    region: Region,
    generation: u64,
    number: u64,
    file: Arc<dyn DiskFile>,
    end: u64,
    state: State,
}

/// The contents of a directory.
pub enum Found {
    /// No store was ever made here.
    Nothing,
    /// A store; it takes edits after [`Stored::take_over`].
    Store(Box<Stored>),
}

/// A manifest that was read, and not yet changed.
pub struct Stored {
    /// The region of the store.
    pub region: Region,
    /// The sum of the edits.
    pub state: State,
    /// Bytes of a torn record at the end, which did not happen.
    pub torn_bytes: u64,
    generation: u64,
    number: u64,
}

fn name_of(number: u64) -> String {
    format!("manifest-{number:012x}")
}

/// Seals bytes: the last four are the checksum of the others.
fn seal(region: Region, number: u64, bytes: &mut [u8; HEADER_BYTES]) {
    let crc = checksum(seed(region, 0, number), &bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
}

fn header(region: Region, number: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&region.to_le_bytes());
    bytes[12..20].copy_from_slice(&number.to_le_bytes());
    seal(region, number, &mut bytes);
    bytes
}

fn superblock(region: Region, generation: u64, number: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(SUPER_MAGIC);
    bytes[8..12].copy_from_slice(&region.to_le_bytes());
    bytes[12..20].copy_from_slice(&generation.to_le_bytes());
    bytes[20..28].copy_from_slice(&number.to_le_bytes());
    seal(region, generation, &mut bytes);
    bytes
}

/// Region, generation and manifest of a superblock.
fn parse_super(bytes: &[u8]) -> Option<(Region, u64, u64)> {
    let (region, generation, number) = (u32_at(bytes, 8)?, u64_at(bytes, 12)?, u64_at(bytes, 20)?);
    (superblock(region, generation, number) == bytes).then_some((region, generation, number))
}

fn record(seed: u32, edit: &Edit) -> Vec<u8> {
    let body = postcard::to_allocvec(edit).expect("an edit is plain data");
    let mut out = Vec::with_capacity(RECORD_HEAD + body.len());
    let length = u32::try_from(body.len()).expect("an edit below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&checksum(seed, &body).to_le_bytes());
    out.extend_from_slice(&body);
    out
}

/// Takes a record off the front, with the number of its bytes.
fn parse_record(seed: u32, bytes: &[u8]) -> Option<(Edit, usize)> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let crc = u32_at(bytes, 4)?;
    let end = RECORD_HEAD.checked_add(length)?;
    let body = bytes.get(RECORD_HEAD..end)?;
    if length == 0 || checksum(seed, body) != crc {
        return None;
    }
    Some((postcard::from_bytes(body).ok()?, end))
}

/// The whole file.
fn read_whole(disk: &dyn Disk, name: &str) -> Result<Vec<u8>, StoreError> {
    let file = disk.open(name).map_err(|error| read_error(name, &error))?;
    let size = file.size().map_err(|error| read_error(name, &error))?;
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_at(0, &mut bytes).map_err(|error| read_error(name, &error))?;
    Ok(bytes)
}

/// Whether there is more than a store has that is being made: a segment without records.
fn has_data(disk: &dyn Disk, names: &[String]) -> Result<bool, StoreError> {
    for name in names {
        let is_data = if name.starts_with("log-") {
            let bytes = read_whole(disk, name)?;
            bytes.iter().skip(RECORDS_AT).any(|&byte| byte != 0)
        } else {
            name.starts_with("table-")
        };
        if is_data {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the manifest of a directory.
///
/// # Errors
/// [`StoreError::Damaged`].
pub fn find(disk: &dyn Disk) -> Result<Found, StoreError> {
    let names = disk.list().map_err(|error| read_error("the directory", &error))?;
    let mut newest = None;
    for name in SUPERS.iter().filter(|name| names.iter().any(|there| there == *name)) {
        let found = parse_super(&read_whole(disk, name)?);
        newest = newest.max(found.map(|(region, generation, number)| (generation, number, region)));
    }
    let Some((generation, number, region)) = newest else {
        if has_data(disk, &names)? {
            return Err(damaged("super-0, super-1", "no superblock has a right checksum"));
        }
        return Ok(Found::Nothing);
    };
    let name = name_of(number);
    let bytes = read_whole(disk, &name)?;
    if bytes.get(..HEADER_BYTES) != Some(&header(region, number)[..]) {
        return Err(damaged(&name, "its header has a wrong checksum"));
    }
    let (state, torn_bytes) = replay(&name, seed(region, 0, number), &bytes[HEADER_BYTES..])?;
    Ok(Found::Store(Box::new(Stored { region, state, torn_bytes, generation, number })))
}

fn replay(name: &str, seed: u32, mut rest: &[u8]) -> Result<(State, u64), StoreError> {
    let mut state = None;
    while let Some((edit, bytes)) = parse_record(seed, rest) {
        rest = &rest[bytes..];
        let state = state.get_or_insert_with(State::default);
        state.apply(&edit).map_err(|what| damaged(name, &what))?;
    }
    let Some(state) = state else {
        return Err(damaged(name, "its first record has a wrong checksum"));
    };
    let torn = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let is_followed = (1..torn).any(|start| parse_record(seed, &rest[start..]).is_some());
    if is_followed {
        return Err(damaged(name, "a record in the middle has a wrong checksum"));
    }
    Ok((state, torn as u64))
}

impl Stored {
    /// Begins a new manifest with a state that follows this one, and takes edits from now on.
    ///
    /// # Errors
    /// Those of a write.
    pub fn take_over(&self, disk: &Arc<dyn Disk>, state: State) -> Result<Manifest, StoreError> {
        Manifest::begin(disk, self.region, self.generation + 1, self.number + 1, state)
    }
}

impl Manifest {
    /// Makes the manifest of a new store.
    ///
    /// # Errors
    /// Those of a write.
    pub fn create(disk: &Arc<dyn Disk>, region: Region, state: State) -> Result<Self, StoreError> {
        Self::begin(disk, region, 1, 1, state)
    }

    fn begin(
        disk: &Arc<dyn Disk>,
        region: Region,
        generation: u64,
        number: u64,
        state: State,
    ) -> Result<Self, StoreError> {
        let name = name_of(number);
        let failed = |error: &std::io::Error| write_error(&name, error);
        let file = disk.create(&name, MANIFEST_BYTES).map_err(|error| failed(&error))?;
        let mut bytes = header(region, number).to_vec();
        bytes.extend_from_slice(&record(seed(region, 0, number), &state.as_edit()));
        file.write_at(0, &bytes).map_err(|error| failed(&error))?;
        file.sync().map_err(|error| failed(&error))?;
        disk.sync_names().map_err(|error| failed(&error))?;
        let which = SUPERS[usize::from(!generation.is_multiple_of(2))];
        let failed = |error: &std::io::Error| write_error(which, error);
        let there = disk.open(which).or_else(|_| disk.create(which, HEADER_BYTES as u64));
        let there = there.map_err(|error| failed(&error))?;
        there.write_at(0, &superblock(region, generation, number)).map_err(|e| failed(&e))?;
        there.sync().map_err(|error| failed(&error))?;
        disk.sync_names().map_err(|error| failed(&error))?;
        let end = bytes.len() as u64;
        let manifest =
            Self { disk: Arc::clone(disk), region, generation, number, file, end, state };
        manifest.remove_older();
        Ok(manifest)
    }

    /// Removes manifests that no superblock needs; one that stays costs its space only.
    fn remove_older(&self) {
        let own = name_of(self.number);
        for name in self.disk.list().unwrap_or_default() {
            if name.starts_with("manifest-") && name != own {
                let _ = self.disk.remove(&name);
            }
        }
    }

    /// The sum of the edits.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Appends an edit and syncs it.
    ///
    /// # Errors
    /// [`StoreError::Full`]: the edit did not happen. [`StoreError::ReadOnly`]: it is unknown
    /// whether it did; the store must stop.
    ///
    /// # Panics
    /// If the edit names a table to remove that is not there.
    pub fn commit(&mut self, edit: &Edit) -> Result<(), StoreError> {
        let name = name_of(self.number);
        let bytes = record(seed(self.region, 0, self.number), edit);
        self.file.write_at(self.end, &bytes).map_err(|error| write_error(&name, &error))?;
        if let Err(error) = self.file.sync() {
            return Err(StoreError::ReadOnly(format!("{name}: {error}")));
        }
        self.end += bytes.len() as u64;
        self.state.apply(edit).expect("an edit of this state");
        if self.end > MANIFEST_BYTES {
            // On a full disk the old manifest serves on; the next edit tries again.
            let (generation, number) = (self.generation + 1, self.number + 1);
            match Self::begin(&self.disk, self.region, generation, number, self.state.clone()) {
                Ok(next) => *self = next,
                Err(StoreError::Full(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::simulated::SimulatedDisk;

    fn segment(number: u64) -> Edit {
        Edit { live: vec![(number, 7)], ..Edit::default() }
    }

    fn made() -> (SimulatedDisk, Manifest) {
        let simulated = SimulatedDisk::new();
        let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
        let mut manifest = Manifest::create(&disk, 5, State::default()).unwrap();
        for number in 1..=3 {
            manifest.commit(&segment(number)).unwrap();
        }
        (simulated, manifest)
    }

    fn stored(disk: &SimulatedDisk) -> Result<Box<Stored>, StoreError> {
        match find(disk)? {
            Found::Store(stored) => Ok(stored),
            Found::Nothing => panic!("a store"),
        }
    }

    #[test]
    fn edits_come_back_also_from_the_next_manifest() {
        let (simulated, manifest) = made();
        let found = stored(&simulated).unwrap();
        assert_eq!((found.region, &found.state), (5, manifest.state()));
        let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
        found.take_over(&disk, found.state.clone()).unwrap().commit(&segment(9)).unwrap();
        assert_eq!(stored(&simulated).unwrap().state.segments.len(), 4);
    }

    #[test]
    fn a_flipped_bit_is_damage_or_takes_back_the_last_edit() {
        let (simulated, manifest) = made();
        let end = usize::try_from(manifest.end).unwrap();
        let mut taken_back = 0;
        for bit in 0..end * 8 {
            let flip = |bytes: &mut Vec<u8>| bytes[bit / 8] ^= 1 << (bit % 8);
            simulated.damage("manifest-000000000001", flip);
            match stored(&simulated) {
                Err(StoreError::Damaged(_)) => {}
                Ok(found) => {
                    assert_eq!(found.state.segments.len(), 2);
                    assert!(found.torn_bytes > 0);
                    taken_back += 1;
                }
                Err(error) => panic!("{error}"),
            }
            simulated.damage("manifest-000000000001", flip);
        }
        assert!(taken_back > 0);
    }

    #[test]
    fn many_edits_begin_new_manifests_and_remove_the_old() {
        let (simulated, mut manifest) = made();
        for number in 0..2_000 {
            let live = (0..100).map(|offset| (number + offset, u64::MAX - number)).collect();
            manifest.commit(&Edit { live, ..Edit::default() }).unwrap();
        }
        assert!(manifest.number > 1);
        let found = stored(&simulated).unwrap();
        assert_eq!(&found.state, manifest.state());
        let names = simulated.list().unwrap();
        assert_eq!(names.iter().filter(|name| name.starts_with("manifest")).count(), 1);
    }
}
