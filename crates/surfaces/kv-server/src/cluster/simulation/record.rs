//! The record of the simulated cluster. Answers are lost, and changes come late.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_kv::cluster::Record;

use super::super::coordination::{Coordination, NoRecord, Seen};
use super::{Planted, world};

/// The place of the record.
pub(super) struct Cell {
    pub record: Option<Record>,
    pub version: u64,
    /// Changes on their way, with the version that they replace.
    late: Vec<(Record, u64)>,
    /// Nodes that do not reach it, until when.
    pub blind_until: Vec<Duration>,
    random: ChaCha8Rng,
    is_calm: bool,
}

impl Cell {
    pub fn new(nodes: usize, random: ChaCha8Rng) -> Self {
        let blind_until = vec![Duration::ZERO; nodes];
        Self { record: None, version: 0, late: Vec::new(), blind_until, random, is_calm: false }
    }

    fn replace(&mut self, record: &Record, was: u64) -> bool {
        let may = self.version == was;
        if may {
            self.record = Some(record.clone());
            self.version += 1;
        }
        may
    }

    /// A change that was on its way arrives, at some time.
    pub fn arrive(&mut self) {
        if self.random.random_range(0..20) == 0 && !self.late.is_empty() {
            let place = self.random.random_range(0..self.late.len());
            let (record, was) = self.late.remove(place);
            self.replace(&record, was);
        }
    }

    /// No answer is lost from now on.
    pub fn heal(&mut self) {
        self.late.clear();
        self.blind_until.fill(Duration::ZERO);
        self.is_calm = true;
    }
}

/// The way of a node to the record.
pub(super) struct Way {
    pub cell: Arc<Mutex<Cell>>,
    pub node: usize,
    pub planted: Option<Planted>,
}

impl Coordination for Way {
    fn read(&mut self) -> Result<Seen, NoRecord> {
        let cell = self.cell.lock().unwrap_or_else(PoisonError::into_inner);
        if cell.blind_until[self.node] > world() {
            return Err(NoRecord("it is not reached".to_owned()));
        }
        let mut record = cell.record.clone();
        if let (Some(Planted::AnyNodeStands), Some(record)) = (self.planted, &mut record) {
            let all = 0..u32::try_from(record.members.len()).unwrap_or(0);
            record.in_sync.extend(all);
        }
        Ok(Seen { record, version: cell.version })
    }

    fn replace(&mut self, record: &Record, was: u64) -> Result<bool, NoRecord> {
        let mut cell = self.cell.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = || NoRecord("no answer came".to_owned());
        if cell.blind_until[self.node] > world() {
            return Err(lost());
        }
        match if cell.is_calm { 9 } else { cell.random.random_range(0..30) } {
            0 => {
                cell.replace(record, was);
                Err(lost())
            }
            1 => {
                cell.late.push((record.clone(), was));
                Err(lost())
            }
            _ => Ok(cell.replace(record, was)),
        }
    }
}
