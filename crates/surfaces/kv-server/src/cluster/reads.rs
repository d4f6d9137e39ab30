//! Reads of clients at a backup: how old what it knows may be, and who reads.
//!
//! Always true: what is answered was the state of the region, all that was acknowledged and nothing
//! else, at some moment of the last lease. The primary says the number of the newest acknowledged
//! batch while its lease is valid, with the time of the backup's own clock that it heard last: the
//! number is not older than that.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weft_kv::engine::Reader;
use weft_kv::store::{Change, Lsn, Pair, Store, StoreError};

use super::backup::Backup;
use super::regions::Firsts;
use super::wire::Word;

/// A reader that nobody uses for so long retires.
const IDLE: Duration = Duration::from_secs(60);

/// The state of reads at a backup.
#[derive(Default)]
pub(super) struct Reads(Mutex<State>);

#[derive(Default)]
struct State {
    /// The newest word of the primary of the session, if there is one.
    word: Option<Word>,
    reader: Option<Arc<Reader>>,
    used: Duration,
}

impl Reads {
    /// The primary said this.
    pub fn hear(&self, word: Word, now: Duration) {
        let mut state = self.0.lock();
        // It cannot have heard what was not said yet.
        state.word = Some(Word { answered: word.answered.min(now), ..word });
        if now > state.used + IDLE
            && let Some(reader) = state.reader.take()
        {
            reader.retire();
        }
        if let Some(reader) = &state.reader {
            reader.acknowledge(word.acknowledged);
        }
    }

    /// There is no primary, or another one.
    pub fn forget(&self) {
        self.0.lock().word = None;
    }

    /// The reader, if what is known is not older than this; `make` makes one.
    pub fn reader(
        &self,
        now: Duration,
        most: Duration,
        make: impl FnOnce() -> Option<Arc<Reader>>,
    ) -> Result<Arc<Reader>, StoreError> {
        let refused = |why: &str| StoreError::NotServed(why.to_owned());
        let old = || refused("this replica did not hear of its primary for a lease");
        let fresh = |state: &State| state.word.filter(|word| now <= word.answered + most);
        let mut state = self.0.lock();
        let mut word = fresh(&state).ok_or_else(old)?;
        state.used = now;
        let live = state.reader.clone().filter(|reader| !reader.has_retired());
        if let Some(reader) = live {
            return Ok(reader);
        }
        drop(state);
        let made = make().ok_or_else(|| refused("this replica is not ready for reads"))?;
        let mut state = self.0.lock();
        word = fresh(&state).unwrap_or(word);
        made.acknowledge(word.acknowledged);
        state.reader = Some(Arc::clone(&made));
        Ok(made)
    }
}

/// A backup that may be read.
pub(super) trait Readable: Send + Sync {
    /// A reader, or why there is none at present.
    fn reader(&self) -> Result<Arc<Reader>, StoreError>;
}

impl<S: Copy + PartialEq + Send> Readable for Backup<S> {
    fn reader(&self) -> Result<Arc<Reader>, StoreError> {
        Self::reader(self)
    }
}

/// All regions that a node backs up as one store for reads.
pub(super) struct ReplicaStore {
    backups: Vec<Arc<dyn Readable>>,
    firsts: Firsts,
}

impl ReplicaStore {
    /// The backups of all regions, in the order of their slots.
    pub fn new(backups: Vec<Arc<dyn Readable>>) -> Self {
        let firsts = Firsts::new(backups.len());
        Self { backups, firsts }
    }

    fn of(&self, key: &[u8]) -> Result<Arc<Reader>, StoreError> {
        self.backups[self.firsts.place_of(key)].reader()
    }
}

impl Store for ReplicaStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.of(key)?.get(key)
    }

    fn write(&self, _: Vec<Change>) -> Result<Lsn, StoreError> {
        Err(StoreError::NotServed("a replica takes no writes".to_owned()))
    }

    fn commit(&self, _: Lsn) -> Result<(), StoreError> {
        Ok(())
    }

    fn newest(&self) -> Lsn {
        Lsn(0)
    }

    /// The pairs of a range, which is one of a slot: it is read in the region of its beginning.
    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let key = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        self.of(key)?.scan(from, to, backward, limit)
    }
}

#[cfg(test)]
mod tests {
    use weft_kv::disk::Disk;
    use weft_kv::disk::simulated::SimulatedDisk;
    use weft_kv::engine::Options;

    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// However late a question comes, the word in it is as old as the answer before it.
    #[test]
    fn a_replica_that_heard_nothing_newer_for_a_lease_refuses() {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new());
        let reads = Reads::default();
        let is_read = |now| {
            let make = || Reader::open(&disk, &Options::default()).ok().map(Arc::new);
            let reader = reads.reader(at(now), at(1_000), make);
            reader.is_ok_and(|reader| reader.get(b"key") == Ok(None))
        };
        assert!(!is_read(5), "it heard nothing yet");
        reads.hear(Word { acknowledged: 0, answered: at(10) }, at(900));
        assert!(is_read(900) && is_read(1_010) && !is_read(1_011));
        // A time that did not come yet is not believed.
        reads.hear(Word { acknowledged: 0, answered: at(9_000) }, at(1_100));
        assert!(is_read(2_100) && !is_read(2_101));
        reads.hear(Word { acknowledged: 0, answered: at(2_200) }, at(2_300));
        assert!(is_read(2_300));
        reads.forget();
        assert!(!is_read(2_300));
        // Of what is acknowledged and did not come nothing is answered.
        reads.hear(Word { acknowledged: 1, answered: at(2_400) }, at(2_400));
        assert!(!is_read(2_400));
    }

    #[test]
    fn a_reader_that_nobody_uses_retires() {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new());
        let reads = Reads::default();
        let word = Word { acknowledged: 0, answered: at(0) };
        reads.hear(word, at(0));
        let make = || Reader::open(&disk, &Options::default()).ok().map(Arc::new);
        let reader = reads.reader(at(500), at(1_000), make);
        reads.hear(word, at(500) + IDLE);
        assert!(reader.as_ref().is_ok_and(|reader| !reader.has_retired()));
        reads.hear(word, at(501) + IDLE);
        assert!(reader.is_ok_and(|reader| reader.has_retired()));
    }
}
