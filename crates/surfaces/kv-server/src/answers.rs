//! Answers that wait until what they depend on is safe. Without sockets and threads.
//!
//! Always true: an answer is sent after a commit of all batches that were taken before it, or not.

use std::collections::{BTreeSet, VecDeque};

use weft_kv::node::Node;
use weft_kv::store::{Lsn, StoreError};

/// The answers to one client.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Bytes of answers; commands add to them.
    pub bytes: Vec<u8>,
    /// Bytes that were sent, and bytes that may be sent.
    sent: usize,
    ready: usize,
    /// Up to where the bytes may be sent when which batch is safe.
    held: VecDeque<(Lsn, usize)>,
}

impl Answers {
    /// The answers since the last call may be sent when this batch is safe.
    fn hold(&mut self, lsn: Lsn) {
        let last = self.held.back().map_or(self.ready, |(_, end)| *end);
        if self.bytes.len() > last {
            self.held.push_back((lsn, self.bytes.len()));
        }
    }

    /// Whether answers wait for a batch.
    pub fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// All batches up to this one are safe.
    pub fn release(&mut self, safe: Lsn) {
        while let Some((lsn, end)) = self.held.front() {
            if *lsn > safe {
                break;
            }
            self.ready = *end;
            self.held.pop_front();
        }
    }

    /// Answers that wait for a batch are never sent.
    pub fn cut_off(&mut self) {
        self.held.clear();
        self.bytes.truncate(self.ready);
    }

    /// Bytes that may be sent and were not.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..self.ready]
    }

    /// So many bytes of [`Answers::unsent`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
    }

    /// Bytes that were not sent, those that wait among them.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Forgets what was sent. True if nothing is left.
    pub fn shrink(&mut self) -> bool {
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            (self.sent, self.ready) = (0, 0);
        } else if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.ready -= self.sent;
            self.held.iter_mut().for_each(|(_, end)| *end -= self.sent);
            self.sent = 0;
        }
        self.bytes.is_empty()
    }
}

/// The clients whose answers wait, and what is safe.
#[derive(Debug)]
pub(crate) struct Waiting {
    safe: Lsn,
    clients: BTreeSet<u64>,
}

impl Waiting {
    /// Nobody waits, and all that the node has is safe.
    pub fn new(node: &dyn Node) -> Self {
        Self { safe: node.newest(), clients: BTreeSet::new() }
    }

    /// The client's answers wait for all that the node has taken.
    pub fn hold(&mut self, client: u64, answers: &mut Answers, node: &dyn Node) {
        answers.hold(node.newest());
        if answers.is_held() {
            self.clients.insert(client);
        }
    }

    /// The batch to commit, if one is not safe.
    pub fn wanted(&self, node: &dyn Node) -> Option<Lsn> {
        Some(node.newest()).filter(|newest| *newest > self.safe)
    }

    /// A commit ended. Returns the clients to cut off: whether their commands happened is not
    /// known. What is newer is to be committed.
    pub fn settle(&mut self, result: Result<Lsn, StoreError>, node: &dyn Node) -> BTreeSet<u64> {
        match result {
            Ok(lsn) => {
                self.safe = self.safe.max(lsn);
                BTreeSet::new()
            }
            Err(error) => {
                match self.clients.len() {
                    0 => tracing::debug!("a commit failed that no client waits for: {error}"),
                    held => tracing::error!("a commit failed, {held} clients are cut off: {error}"),
                }
                self.safe = self.safe.max(node.settled());
                std::mem::take(&mut self.clients)
            }
        }
    }

    /// Goes through the clients whose answers wait: `release` gets each one with what is safe, and
    /// says whether it waits on.
    pub fn release(&mut self, mut release: impl FnMut(u64, Lsn) -> bool) {
        let safe = self.safe;
        self.clients.retain(|client| release(*client, safe));
    }

    /// A client is gone.
    pub fn forget(&mut self, client: u64) {
        self.clients.remove(&client);
    }
}

/// The commits of a front end, one after the other. While one runs, batches gather for the next:
/// the group is as large as the commit is slow.
#[derive(Debug)]
pub(crate) struct Commits {
    wanted: Lsn,
    done: Lsn,
    error: Option<StoreError>,
}

impl Commits {
    /// All up to this batch is safe.
    pub fn new(done: Lsn) -> Self {
        Self { wanted: done, done, error: None }
    }

    /// Asks for a commit up to this batch. True if that is news.
    pub fn want(&mut self, lsn: Lsn) -> bool {
        let is_news = lsn > self.wanted;
        self.wanted = self.wanted.max(lsn);
        is_news
    }

    /// The commit that is to be carried out.
    pub fn next(&self) -> Option<Lsn> {
        (self.wanted > self.done).then_some(self.wanted)
    }

    /// The commit that [`Commits::next`] named ended.
    pub fn finish(&mut self, upto: Lsn, result: Result<(), StoreError>) {
        match result {
            Ok(()) => self.done = upto,
            Err(error) => {
                self.error = Some(error);
                // The same may be wanted again, if it is not settled.
                if self.wanted == upto {
                    self.wanted = self.done;
                }
            }
        }
    }

    /// The newest batch that is safe, or why one is not.
    pub fn result(&mut self) -> Result<Lsn, StoreError> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.done),
        }
    }
}
