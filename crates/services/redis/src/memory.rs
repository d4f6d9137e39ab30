//! A node alone whose pairs are in memory, for tests: nothing is safe.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use weft_kv::node::{Durability, Failover, Node, Report, View};
use weft_kv::store::{Change, Lsn, Pair, Store, StoreError};

/// Pairs in memory.
#[derive(Debug)]
pub struct Memory {
    pairs: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    newest: AtomicU64,
    view: Mutex<Arc<View>>,
    /// The answer to the next writes.
    refusal: Mutex<Option<StoreError>>,
}

impl Default for Memory {
    fn default() -> Self {
        let view = View::alone("0".repeat(40), "127.0.0.1".to_owned(), 6379);
        Self {
            pairs: RwLock::default(),
            newest: AtomicU64::new(0),
            view: Mutex::new(Arc::new(view)),
            refusal: Mutex::default(),
        }
    }
}

impl Memory {
    /// Changes what the node says of its cluster.
    pub fn set_view(&self, view: View) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }

    /// Refuses writes from now on, or takes them again.
    pub fn refuse(&self, error: Option<StoreError>) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// The number of the newest batch.
    #[must_use]
    pub fn newest_batch(&self) -> Lsn {
        self.newest()
    }

    /// How many pairs there are.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.pairs.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Store for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.pairs.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned())
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        if let Some(error) = &*self.refusal.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(error.clone());
        }
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        for change in batch {
            match change {
                Change::Put { key, value } => pairs.insert(key, value),
                Change::Delete { key } => pairs.remove(&key),
            };
        }
        Ok(Lsn(self.newest.fetch_add(1, Ordering::SeqCst) + 1))
    }

    fn commit(&self, _: Lsn) -> Result<(), StoreError> {
        Ok(())
    }

    fn commit_is_quick(&self) -> bool {
        true
    }

    fn newest(&self) -> Lsn {
        Lsn(self.newest.load(Ordering::SeqCst))
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        let range = pairs.range::<[u8], _>((from, to));
        let own = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
        Ok(if backward {
            range.rev().take(limit).map(own).collect()
        } else {
            range.take(limit).map(own).collect()
        })
    }
}

impl Node for Memory {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn durability(&self) -> Durability {
        Durability::Replicated
    }

    fn lease_ms(&self) -> u64 {
        0
    }

    fn report(&self) -> Report {
        Report::default()
    }

    fn failover(&self, _: Failover) -> Result<(), String> {
        Err("there is no other node".to_owned())
    }
}
