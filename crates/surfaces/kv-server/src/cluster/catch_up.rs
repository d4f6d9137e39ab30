//! The parts that a backup lacks when it joins, one after the other.

use std::collections::VecDeque;

use weft_kv::engine::Snapshot;
use weft_kv::format::Epoch;
use weft_kv::replication::message::{LogEnd, Message, Offer};

/// The parts that a backup lacks, and how they are read.
pub(super) struct CatchUp {
    snapshot: Snapshot,
    ends: Vec<LogEnd>,
    tables: VecDeque<(Epoch, u64)>,
    log: VecDeque<(u64, u64)>,
    /// Whether the backup said what it lacks.
    is_known: bool,
}

/// The next part.
pub(super) enum Next {
    /// The backup did not say yet what it lacks.
    Unknown,
    /// This one.
    Part(Box<Message>),
    /// There are no more.
    Over,
}

impl CatchUp {
    pub fn new(offer: &Offer, snapshot: Snapshot) -> Self {
        let (tables, log) = (VecDeque::new(), VecDeque::new());
        Self { snapshot, ends: offer.log.clone(), tables, log, is_known: false }
    }

    /// The backup said what it lacks.
    pub fn lacks(&mut self, tables: Vec<(Epoch, u64)>, log: Vec<(u64, u64)>) {
        self.tables = tables.into();
        self.log = log.into();
        self.is_known = true;
    }

    /// The next part, which is not given a second time. An error says why the session has to end.
    pub fn next(&mut self) -> Result<Next, String> {
        if !self.is_known {
            return Ok(Next::Unknown);
        }
        if let Some((epoch, id)) = self.tables.pop_front() {
            let table = self.snapshot.table(epoch, id).map_err(|error| error.to_string())?;
            return Ok(Next::Part(Box::new(Message::Table { meta: table.0, bytes: table.1 })));
        }
        let Some((segment, offset)) = self.log.pop_front() else { return Ok(Next::Over) };
        let end = self.ends.iter().find(|it| it.segment == segment);
        let end = end.ok_or("it wants a segment that was not offered")?.end;
        let read = self.snapshot.log(segment, offset, end);
        let bytes = read.map_err(|error| error.to_string())?;
        Ok(Next::Part(Box::new(Message::Log { segment, offset, bytes, newest: None })))
    }
}
