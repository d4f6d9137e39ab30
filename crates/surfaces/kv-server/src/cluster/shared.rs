//! The state of a region that the front end and the thread of control share, and the store that the
//! front end sees of it: that of the reign of the moment.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use weft_kv::node::{Failover, View};
use weft_kv::replication::Shipper;
use weft_kv::store::{Change, Lsn, Pair, Peek, Store, StoreError};

use super::bell::Bell;
use super::numbers::Numbers;
use super::reign::Reign;

/// The state of a region that the front end and the thread of control share.
pub(super) struct Shared {
    pub view: RwLock<Arc<View>>,
    pub reign: RwLock<Option<Arc<Reign>>>,
    pub numbers: Numbers,
    /// A failover that was asked for and did not begin.
    pub failover: Mutex<Option<Failover>>,
    /// One that began goes on.
    pub is_handing_over: AtomicBool,
    /// It is to end.
    pub aborts_failover: AtomicBool,
    pub is_ending: AtomicBool,
    /// The trouble, for the status.
    pub trouble: Mutex<Option<String>>,
    pub control: Arc<Bell>,
}

/// A commit that is under way.
pub(super) struct Commit {
    pub reign: Arc<Reign>,
    /// The batch, as its engine counts.
    pub lsn: Lsn,
}

impl Shared {
    /// The state of a node that is not in the cluster yet.
    pub fn new(view: View, control: Arc<Bell>) -> Self {
        Self {
            view: RwLock::new(Arc::new(view)),
            reign: RwLock::default(),
            numbers: Numbers::default(),
            failover: Mutex::default(),
            is_handing_over: AtomicBool::new(false),
            aborts_failover: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            trouble: Mutex::default(),
            control,
        }
    }

    /// The reign, if this node is the primary.
    pub fn reign(&self) -> Result<Arc<Reign>, StoreError> {
        let reign = self.reign.read().clone();
        reign.ok_or_else(|| StoreError::NotServed("this node is not the primary".to_owned()))
    }

    /// The reign, if commands may be carried out now.
    pub fn serving(&self) -> Result<Arc<Reign>, StoreError> {
        let reign = self.reign()?;
        reign.check()?;
        Ok(reign)
    }

    /// Ends a failover that was asked for. False if none goes on.
    pub fn abort_failover(&self) -> bool {
        if self.failover.lock().take().is_some() {
            return true;
        }
        let goes_on = self.is_handing_over.load(Ordering::Acquire);
        if goes_on {
            self.aborts_failover.store(true, Ordering::Release);
            self.control.ring();
        }
        goes_on
    }

    /// Whether a failover was asked for, or goes on.
    pub fn is_failing_over(&self) -> bool {
        self.failover.lock().is_some() || self.is_handing_over.load(Ordering::Acquire)
    }

    /// Begins a commit up to a number of the front end.
    pub fn begin_commit(&self, upto: Lsn) -> Result<Commit, StoreError> {
        let unknown =
            || StoreError::Unknown("this node was deposed before it had an answer".to_owned());
        // Of a reign that is over, if there is none a moment later.
        let given = self.numbers.given();
        let Ok(reign) = self.reign() else {
            self.numbers.settle(given);
            return Err(unknown());
        };
        // Those that wait since an earlier reign have to be cut off before one of this reign is
        // acknowledged, whose number is higher.
        if !self.numbers.settle(reign.before) {
            return Err(unknown());
        }
        let lsn = Lsn(upto.0.saturating_sub(reign.base));
        Ok(Commit { reign, lsn })
    }

    /// Begins a commit, and gives all up to a number of the front end to the operating system.
    pub fn write_out(&self, upto: Lsn) -> Result<Commit, StoreError> {
        let commit = self.begin_commit(upto)?;
        if let Err(error) = commit.reign.engine.write_out(commit.lsn) {
            self.end_commit(upto, false);
            return Err(error);
        }
        Ok(commit)
    }

    /// The commit ended.
    pub fn end_commit(&self, upto: Lsn, is_well: bool) {
        let settled = if is_well { upto.0 } else { self.numbers.given() };
        self.numbers.settle(settled);
    }
}

impl Store for Shared {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.serving()?.engine.get(key)
    }

    fn peek(&self, key: &[u8], at_most: usize) -> Result<Option<Peek>, StoreError> {
        self.serving()?.engine.peek(key, at_most)
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        // As long as it is held here, no other reign begins.
        let reign = self.serving()?;
        let number = reign.base + reign.engine.write(batch)?.0;
        self.numbers.give(number);
        Ok(Lsn(number))
    }

    fn commit(&self, upto: Lsn) -> Result<(), StoreError> {
        let commit = self.write_out(upto)?;
        let result = commit.reign.court.wait(commit.lsn.0);
        self.end_commit(upto, result.is_ok());
        result
    }

    fn newest(&self) -> Lsn {
        let reign = self.reign.read();
        let newest = reign.as_ref().map_or(0, |reign| reign.newest());
        Lsn(self.numbers.give(newest))
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.serving()?.engine.scan(from, to, backward, limit)
    }

    fn peek_scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
        at_most: usize,
    ) -> Result<Vec<(Vec<u8>, Peek)>, StoreError> {
        self.serving()?.engine.peek_scan(from, to, backward, limit, at_most)
    }
}
