//! The work behind: which job is next, and the threads that do the jobs.
//!
//! Always true: a level is used by one job at a time. Level 0 comes first, so that writers do not
//! wait; then the levels from the top; then collection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Core;
use super::compact::Step;
use super::log::Spare;
use crate::format::Epoch;
use crate::manifest::{Edit, LEVELS_MAX};
use crate::segment::{Segment, name_of};
use crate::store::StoreError;

/// How long a thread sleeps if nobody wakes it.
const SLEEP: Duration = Duration::from_secs(1);
/// How long a thread waits before it asks a full disk again.
const FULL_AGAIN: Duration = Duration::from_millis(200);

/// The state that jobs share.
pub(crate) struct Jobs {
    pub busy: [bool; LEVELS_MAX + 1],
    pub is_collecting: bool,
    pub next_table: u64,
    pub epoch: Epoch,
    /// The last job found the disk full.
    pub full: Option<String>,
}

enum Job {
    Flush,
    Compact(Step),
    Collect(Arc<Segment>),
}

impl Core {
    pub(super) fn wake(&self) {
        let _jobs = self.jobs.lock();
        self.work.notify_one();
        self.room.notify_all();
    }

    pub(super) fn wake_for_spare(&self) {
        self.work.notify_one();
    }

    /// Does one job. False if there is none that is free.
    pub(super) fn work(&self) -> Result<bool, StoreError> {
        self.check_failure()?;
        self.prepare_segment();
        let Some(job) = self.next_job() else { return Ok(false) };
        let result = match &job {
            Job::Flush => self.flush_frozen(),
            Job::Compact(step) => self.compact(&self.view(), step),
            Job::Collect(segment) => self.collect(segment),
        };
        {
            let mut jobs = self.jobs.lock();
            match job {
                Job::Flush => jobs.busy[0] = false,
                Job::Compact(step) => {
                    jobs.busy[step.level()] = false;
                    jobs.busy[step.level() + 1] = false;
                }
                Job::Collect(_) => jobs.is_collecting = false,
            }
        }
        self.told(result)
    }

    fn told(&self, result: Result<(), StoreError>) -> Result<bool, StoreError> {
        let full = match &result {
            Err(StoreError::Full(full) | StoreError::Unknown(full)) => Some(full.clone()),
            _ => None,
        };
        self.jobs.lock().full = full;
        self.wake();
        match result {
            Ok(()) => Ok(true),
            Err(StoreError::Unknown(full)) => Err(StoreError::Full(full)),
            Err(StoreError::Full(full)) => Err(StoreError::Full(full)),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        // A view that is taken under the lock has what the jobs before have made.
        let view = self.view();
        let level1: u64 =
            view.levels.first().map_or(0, |level| level.iter().map(|it| it.meta().bytes).sum());
        let is_level1_far_too_large = level1 > 2 * self.options.level_bytes(0);
        let can_flush = !jobs.busy[0] && !view.frozen.is_empty();
        if can_flush && !is_level1_far_too_large {
            jobs.busy[0] = true;
            return Some(Job::Flush);
        }
        if let Some(step) = self.next_step(&view, |level| jobs.busy[level]) {
            jobs.busy[step.level()] = true;
            jobs.busy[step.level() + 1] = true;
            return Some(Job::Compact(step));
        }
        if can_flush {
            jobs.busy[0] = true;
            return Some(Job::Flush);
        }
        if jobs.is_collecting || !self.options.collects || !view.frozen.is_empty() {
            return None;
        }
        drop(jobs);
        let segment = self.next_to_collect(&view)?;
        let mut jobs = self.jobs.lock();
        if jobs.is_collecting {
            return None;
        }
        jobs.is_collecting = true;
        Some(Job::Collect(segment))
    }

    /// Makes the file of the next segment before a writer needs it.
    fn prepare_segment(&self) {
        if self.options.threads == 0 {
            return;
        }
        let number = {
            let mut writer = self.writer.lock();
            if !matches!(writer.spare, Spare::None) {
                return;
            }
            writer.spare = Spare::OnItsWay;
            writer.segment.number() + 1
        };
        // A disk that is full is told to the writer that needs the segment.
        let made = self.create_segment(number, self.options.segment_bytes);
        self.writer.lock().spare = made.map_or(Spare::None, Spare::Ready);
        self.spare.notify_all();
    }

    /// Does jobs until the engine stops.
    pub(super) fn run(&self) {
        while !self.is_stopping.load(Ordering::Acquire) {
            let wait = match self.work() {
                Ok(true) => continue,
                Ok(false) | Err(StoreError::ReadOnly(_) | StoreError::Damaged(_)) => SLEEP,
                Err(_) => FULL_AGAIN,
            };
            let mut jobs = self.jobs.lock();
            if !self.is_stopping.load(Ordering::Acquire) {
                self.work.wait_for(&mut jobs, wait);
            }
        }
    }

    pub(super) fn settle(&self) -> Result<(), StoreError> {
        loop {
            let worked = self.work()?;
            let jobs = self.jobs.lock();
            let is_idle = !jobs.is_collecting && !jobs.busy.iter().any(|&busy| busy);
            if !worked && is_idle && self.view.read().frozen.is_empty() {
                return Ok(());
            }
            if !worked {
                let mut jobs = jobs;
                self.room.wait_for(&mut jobs, Duration::from_millis(20));
            }
        }
    }

    pub(super) fn close(&self) -> Result<(), StoreError> {
        self.check_failure()?;
        let end = self.end();
        self.commit(end.lsn)?;
        self.sync_log(end)?;
        self.disk
            .sync_names()
            .map_err(|error| StoreError::ReadOnly(format!("the directory: {error}")))?;
        self.manifest.lock().commit(&Edit { closed: Some(end), ..Edit::default() })?;
        let writer = self.writer.lock();
        // It gives back what it reserved; the next opening begins another segment.
        let _ = writer.segment.file().truncate(end.offset);
        if matches!(writer.spare, Spare::Ready(_)) {
            let _ = self.disk.remove(&name_of(end.segment + 1));
        }
        Ok(())
    }
}
