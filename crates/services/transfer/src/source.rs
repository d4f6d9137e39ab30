//! The machine of the end that reads files: which entries are told, and which pieces of which
//! files go into which block.
//!
//! A driver walks the tree and tells what it finds, does the [`Job`]s and tells how they ended, and
//! sends the messages. Invariants: there are never more blocks on their way than the target
//! granted; at most [`Limits::entries_open`] entries are told and not over.

use std::collections::{BTreeMap, VecDeque};

use crate::checksum::{Leaf, root};
use crate::entry::{Entry, FileId, Kind, Metadata};
use crate::message::{
    Answer, Block, Code, LIST_MAX, Message, Need, RANGES_MAX, Range, SEGMENTS_MAX, Segment,
    Steadiness, Summary, Trouble,
};
use crate::offence::Offence;
use crate::path::TreePath;

/// Bounds of the memory of both machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Entries that are told and not over; each takes about 500 bytes and its attributes.
    pub entries_open: usize,
    /// Bytes of those entries, as [`Entry::weight`] counts. The source stops at a third of them.
    pub bytes_open: usize,
    /// Blocks that may be granted at a time.
    pub blocks: u32,
}

/// Most bytes of entries in one message.
const MESSAGE_WEIGHT_MAX: usize = 64 << 10;

impl Default for Limits {
    fn default() -> Self {
        Self { entries_open: 8_192, bytes_open: 192 << 20, blocks: 4_096 }
    }
}

/// Names a block that is being loaded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockNumber(pub u64);

/// A piece of a file that is to be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The file.
    pub number: u64,
    /// Its path.
    pub path: TreePath,
    /// The entry as it was found.
    pub id: FileId,
    /// Where the piece begins.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
    /// Whether it is the whole file, whose steadiness is then told with the piece.
    pub is_whole: bool,
}

/// Work for a driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Job {
    /// Find where a file has data, from a place on. [`Source::mapped`] follows.
    Map {
        /// The file.
        number: u64,
        /// Its path.
        path: TreePath,
        /// The entry as it was found.
        id: FileId,
        /// The place.
        from: u64,
    },
    /// Load pieces into a block, one behind the other. [`Source::loaded`] follows.
    Load {
        /// The block.
        block: BlockNumber,
        /// The pieces.
        pieces: Vec<Piece>,
    },
    /// Tell whether a file is still as it was. [`Source::closed`] follows.
    Close {
        /// The file.
        number: u64,
        /// Its path.
        path: TreePath,
        /// The entry as it was found.
        id: FileId,
    },
}

/// The outcome of a piece: its bytes, or why there are none.
pub type Loaded = Result<(Leaf, Steadiness), (Code, String)>;

/// News for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceEvent {
    /// Something went wrong with an entry, at either end.
    Trouble(Trouble),
    /// A step that a dry run would make.
    Would(String),
    /// The transfer is over.
    Over(Summary),
}

#[derive(Debug)]
struct File {
    path: TreePath,
    id: FileId,
    is_sparse: bool,
    /// Ranges that are to be read and are in no block yet.
    extents: VecDeque<Range>,
    /// Ranges that the target has.
    without: Vec<Range>,
    map: Map,
    /// Pieces that are being loaded.
    loading: u32,
    leaves: BTreeMap<u64, Leaf>,
    steadiness: Steadiness,
    is_small: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Map {
    /// The map has to be asked for from here on.
    From(u64),
    /// It was asked for.
    Asked,
    /// The extents are all there are.
    Known,
    /// The end was asked for, or told.
    Closing,
}

/// The machine.
#[derive(Debug)]
pub struct Source {
    block_bytes: u32,
    limits: Limits,
    next_number: u64,
    open: usize,
    /// The weights of entries that are open, and their sum.
    weights: BTreeMap<u64, usize>,
    open_bytes: usize,
    files: BTreeMap<u64, File>,
    small: VecDeque<u64>,
    large: VecDeque<u64>,
    jobs: VecDeque<Job>,
    credits: u32,
    next_block: u64,
    loading: BTreeMap<BlockNumber, Vec<Segment>>,
    entries: Vec<Entry>,
    weight: usize,
    outgoing: VecDeque<Message>,
    events: VecDeque<SourceEvent>,
    is_over: bool,
    walked: bool,
}

impl Source {
    /// The machine for blocks of this size.
    #[must_use]
    pub fn new(block_bytes: u32, limits: Limits) -> Self {
        Self {
            block_bytes,
            limits,
            next_number: 0,
            open: 0,
            weights: BTreeMap::new(),
            open_bytes: 0,
            files: BTreeMap::new(),
            small: VecDeque::new(),
            large: VecDeque::new(),
            jobs: VecDeque::new(),
            credits: 0,
            next_block: 0,
            loading: BTreeMap::new(),
            entries: Vec::new(),
            weight: 0,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            is_over: false,
            walked: false,
        }
    }

    /// How many more entries may be told. Grows by [`Source::message`].
    #[must_use]
    pub fn room(&self) -> usize {
        if self.open_bytes >= self.limits.bytes_open / 3 {
            return 0;
        }
        self.limits.entries_open.saturating_sub(self.open)
    }

    /// Tells an entry. `is_sparse` says that a file may have holes.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn entry(&mut self, path: TreePath, metadata: Metadata, kind: Kind, is_sparse: bool) {
        assert!(self.open < self.limits.entries_open, "there is room for the entry");
        let number = self.next_number;
        self.next_number += 1;
        self.open += 1;
        if let Kind::File(id) = &kind {
            let is_small = !is_sparse && id.size <= u64::from(self.block_bytes / 4);
            let file = File {
                path: path.clone(),
                id: *id,
                is_sparse,
                extents: VecDeque::new(),
                without: Vec::new(),
                map: Map::From(0),
                loading: 0,
                leaves: BTreeMap::new(),
                steadiness: Steadiness::Same,
                is_small,
            };
            self.files.insert(number, file);
        }
        let entry = Entry { number, path, metadata, kind };
        let weight = entry.weight();
        if self.weight + weight > MESSAGE_WEIGHT_MAX || self.entries.len() == LIST_MAX {
            self.flush_entries();
        }
        self.weight += weight;
        self.weights.insert(number, weight);
        self.open_bytes += weight;
        self.entries.push(entry);
    }

    /// Passes the entries that were told on. [`Source::poll_message`] has them then; a driver calls
    /// this when the walk pauses.
    pub fn flush_entries(&mut self) {
        self.weight = 0;
        if !self.entries.is_empty() {
            let entries = std::mem::take(&mut self.entries);
            self.outgoing.push_back(Message::Entries(entries));
        }
    }

    /// All that is in a directory was told.
    pub fn directory_end(&mut self, path: TreePath, is_complete: bool) {
        self.flush_entries();
        self.outgoing.push_back(Message::DirectoryEnd { path, is_complete });
    }

    /// Something could not be told.
    pub fn walk_trouble(&mut self, path: TreePath, code: Code, text: String) {
        self.flush_entries();
        let trouble = Trouble { number: None, path, code, text };
        self.outgoing.push_back(Message::Trouble(trouble.clone()));
        self.events.push_back(SourceEvent::Trouble(trouble));
    }

    /// All was told.
    pub fn walk_end(&mut self) {
        self.flush_entries();
        self.walked = true;
        self.outgoing.push_back(Message::WalkEnd { entries: self.next_number });
    }

    /// A message of the target.
    ///
    /// # Errors
    /// [`Offence`]: the target broke the protocol, and the transfer is over.
    pub fn message(&mut self, message: Message) -> Result<(), Offence> {
        match message {
            Message::Answers(answers) => answers.into_iter().try_for_each(|one| self.answer(one)),
            Message::Grant { blocks } => {
                let sum = self.credits.checked_add(blocks);
                let sum = sum.filter(|sum| *sum <= self.limits.blocks);
                self.credits = sum.ok_or(Offence("more blocks than there may be"))?;
                Ok(())
            }
            Message::Again { number, ranges } => self.again(number, ranges),
            Message::Ended(ended) => {
                for (first, count) in ended {
                    let end = first.checked_add(u64::from(count));
                    let end = end.filter(|end| *end <= self.next_number);
                    let end = end.ok_or(Offence("the end of an entry that was not told"))?;
                    self.end(first, end)?;
                }
                Ok(())
            }
            Message::Trouble(trouble) => {
                if let Some(number) = trouble.number {
                    if number >= self.next_number {
                        return Err(Offence("trouble with an entry that was not told"));
                    }
                    self.end(number, number + 1)?;
                }
                self.events.push_back(SourceEvent::Trouble(trouble));
                Ok(())
            }
            Message::Would(text) => {
                self.events.push_back(SourceEvent::Would(text));
                Ok(())
            }
            Message::Done(summary) if self.walked => {
                self.is_over = true;
                self.events.push_back(SourceEvent::Over(summary));
                Ok(())
            }
            Message::Alive => Ok(()),
            _ => Err(Offence("a message that a target does not send")),
        }
    }

    fn end(&mut self, first: u64, end: u64) -> Result<(), Offence> {
        let count = usize::try_from(end - first).unwrap_or(usize::MAX);
        let open = self.open.checked_sub(count);
        self.open = open.ok_or(Offence("more entries ended than were open"))?;
        for number in first..end {
            self.files.remove(&number);
            // Whoever ends an entry twice has ended more than were open.
            let weight = self.weights.remove(&number);
            self.open_bytes -= weight.ok_or(Offence("an entry that has ended ends again"))?;
        }
        Ok(())
    }

    fn answer(&mut self, answer: Answer) -> Result<(), Offence> {
        let end = answer.first.checked_add(u64::from(answer.count));
        let end = end.filter(|end| *end <= self.next_number);
        let end = end.ok_or(Offence("an answer about an entry that was not told"))?;
        if end - answer.first > self.limits.entries_open as u64 {
            return Err(Offence("an answer about more entries than are open"));
        }
        let without = match answer.need {
            Need::Nothing => return Ok(()),
            Need::All => Vec::new(),
            Need::Without(ranges) => ranges,
        };
        for number in answer.first..end {
            // The file may have had trouble meanwhile.
            let Some(file) = self.files.get_mut(&number) else { continue };
            if file.map != Map::From(0) || file.loading > 0 {
                return Err(Offence("two answers about one file"));
            }
            file.without.clone_from(&without);
            if file.is_small && without.is_empty() {
                file.map = Map::Known;
                self.small.push_back(number);
            } else if file.is_sparse {
                file.map = Map::Asked;
                self.jobs.push_back(map_job(number, file, 0));
            } else {
                file.map = Map::Known;
                let whole = Range { start: 0, end: file.id.size };
                file.extents.extend(left_of(whole, &file.without));
                self.large.push_back(number);
                self.close_if_read(number);
            }
        }
        Ok(())
    }

    fn again(&mut self, number: u64, mut ranges: Vec<Range>) -> Result<(), Offence> {
        let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
        ranges.sort_unstable();
        let are_sound = ranges.iter().all(|range| range.end <= file.id.size)
            && ranges.is_sorted_by(|one, next| one.end <= next.start);
        let is_read = file.map == Map::Closing || (file.is_small && !file.leaves.is_empty());
        if !are_sound || !is_read || file.loading > 0 {
            return Err(Offence("pieces are asked for again that were not sent"));
        }
        file.is_small = false;
        file.map = Map::Known;
        file.extents.extend(ranges);
        self.large.push_back(number);
        self.close_if_read(number);
        Ok(())
    }

    /// Where a file has data, as [`Job::Map`] asked: ranges in order, and from where on more is to
    /// be asked for.
    pub fn mapped(
        &mut self,
        number: u64,
        found: Result<(Vec<Range>, Option<u64>), (Code, String)>,
    ) {
        let Some(file) = self.files.get_mut(&number) else { return };
        match found {
            Err((code, text)) => self.trouble(number, code, text),
            Ok((ranges, next)) => {
                let ranges = ranges.into_iter().filter(|range| range.start < range.end);
                for range in ranges {
                    file.extents.extend(left_of(range, &file.without));
                }
                file.map = next.map_or(Map::Known, Map::From);
                self.large.push_back(number);
                self.close_if_read(number);
            }
        }
    }

    /// The next job. `has_buffer` says that a block may be loaded now. There may be one after
    /// any call.
    pub fn poll_job(&mut self, has_buffer: bool) -> Option<Job> {
        if let Some(job) = self.jobs.pop_front() {
            return Some(job);
        }
        if !has_buffer || self.credits == 0 {
            return None;
        }
        let pieces = self.small_pieces();
        let pieces = if pieces.is_empty() { self.large_piece()? } else { pieces };
        self.credits -= 1;
        let block = BlockNumber(self.next_block);
        self.next_block += 1;
        let segments = pieces.iter().map(|piece| Segment {
            number: piece.number,
            leaf: Leaf { offset: piece.offset, length: piece.length, hash: 0 },
            whole: piece.is_whole.then_some(Steadiness::Same),
        });
        self.loading.insert(block, segments.collect());
        Some(Job::Load { block, pieces })
    }

    /// Small files, each whole, as many as fit a block.
    fn small_pieces(&mut self) -> Vec<Piece> {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while let Some(number) = self.small.front() {
            let Some(file) = self.files.get_mut(number) else {
                self.small.pop_front();
                continue;
            };
            let length = u32::try_from(file.id.size).expect("a small file fits a block");
            if pieces.len() == SEGMENTS_MAX || bytes + length > self.block_bytes {
                break;
            }
            bytes += length;
            file.loading += 1;
            pieces.push(piece(*number, file, 0, length, true));
            self.small.pop_front();
        }
        pieces
    }

    /// The next piece of a large file. Pieces end where blocks of the file end.
    fn large_piece(&mut self) -> Option<Vec<Piece>> {
        loop {
            let number = *self.large.front()?;
            let Some(file) = self.files.get_mut(&number) else {
                self.large.pop_front();
                continue;
            };
            let Some(range) = file.extents.front_mut() else {
                self.large.pop_front();
                if let Map::From(from) = file.map {
                    file.map = Map::Asked;
                    let job = map_job(number, file, from);
                    self.jobs.push_back(job);
                }
                continue;
            };
            let block = u64::from(self.block_bytes);
            let end = (range.start / block + 1).saturating_mul(block).min(range.end);
            let offset = range.start;
            let length = u32::try_from(end - offset).expect("a piece is at most a block");
            range.start = end;
            if range.start == range.end {
                file.extents.pop_front();
            }
            file.loading += 1;
            return Some(vec![piece(number, file, offset, length, false)]);
        }
    }

    /// The pieces of a block were loaded. Returns the head to send with their bytes; `None` if
    /// nothing could be loaded, so that the block is not sent.
    ///
    /// # Panics
    /// When the block is not being loaded, or the pieces are others.
    pub fn loaded(&mut self, block: BlockNumber, pieces: Vec<Loaded>) -> Option<Block> {
        let asked = self.loading.remove(&block).expect("the block is being loaded");
        assert_eq!(asked.len(), pieces.len(), "each piece has its end");
        let mut segments = Vec::with_capacity(asked.len());
        for (segment, loaded) in asked.into_iter().zip(pieces) {
            match loaded {
                Ok((leaf, steadiness)) => {
                    assert!(leaf.length <= segment.leaf.length, "as was asked for, or less");
                    self.piece_loaded(&segment, leaf, steadiness, &mut segments);
                }
                Err((code, text)) => self.trouble(segment.number, code, text),
            }
        }
        if segments.is_empty() {
            self.credits += 1;
            return None;
        }
        let is_last_credit = self.credits == 0;
        Some(Block { is_last_credit, segments })
    }

    fn piece_loaded(
        &mut self,
        asked: &Segment,
        leaf: Leaf,
        steadiness: Steadiness,
        segments: &mut Vec<Segment>,
    ) {
        let number = asked.number;
        let is_whole = asked.whole.is_some();
        let whole = is_whole.then_some(steadiness);
        // A file that is over has its bytes in the block all the same, and the target passes over
        // them.
        segments.push(Segment { number, leaf, whole });
        let Some(file) = self.files.get_mut(&number) else { return };
        file.loading -= 1;
        if steadiness == Steadiness::Changed || leaf.length < asked.leaf.length {
            file.steadiness = Steadiness::Changed;
        }
        if leaf.length > 0 || is_whole {
            file.leaves.insert(leaf.offset, leaf);
        }
        if !is_whole {
            self.close_if_read(number);
        }
    }

    fn close_if_read(&mut self, number: u64) {
        let Some(file) = self.files.get_mut(&number) else { return };
        if file.map == Map::Known && file.extents.is_empty() && file.loading == 0 {
            file.map = Map::Closing;
            let job = Job::Close { number, path: file.path.clone(), id: file.id };
            self.jobs.push_back(job);
        }
    }

    /// Whether a file is still as it was, as [`Job::Close`] asked.
    pub fn closed(&mut self, number: u64, steadiness: Steadiness) {
        let Some(file) = self.files.get_mut(&number) else { return };
        if steadiness == Steadiness::Changed {
            file.steadiness = Steadiness::Changed;
        }
        let leaves: Vec<Leaf> = file.leaves.values().copied().collect();
        let root = root(file.id.size, &leaves);
        let (leaves, steadiness) = (leaves.len() as u64, file.steadiness);
        self.outgoing.push_back(Message::FileEnd { number, leaves, root, steadiness });
    }

    fn trouble(&mut self, number: u64, code: Code, text: String) {
        // Its place among the open entries is given back by the target, which ends it.
        let Some(file) = self.files.remove(&number) else { return };
        let trouble = Trouble { number: Some(number), path: file.path, code, text };
        self.outgoing.push_back(Message::Trouble(trouble.clone()));
        self.events.push_back(SourceEvent::Trouble(trouble));
    }

    /// The next message to send.
    pub fn poll_message(&mut self) -> Option<Message> {
        self.outgoing.pop_front()
    }

    /// The next thing that a person hears of.
    pub fn poll_event(&mut self) -> Option<SourceEvent> {
        self.events.pop_front()
    }

    /// Whether the target said that all is done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Entries that were told.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.next_number
    }
}

fn piece(number: u64, file: &File, offset: u64, length: u32, is_whole: bool) -> Piece {
    Piece { number, path: file.path.clone(), id: file.id, offset, length, is_whole }
}

fn map_job(number: u64, file: &File, from: u64) -> Job {
    Job::Map { number, path: file.path.clone(), id: file.id, from }
}

/// The parts of `range` that are in none of the sorted ranges `without`.
fn left_of(range: Range, without: &[Range]) -> Vec<Range> {
    debug_assert!(without.len() <= RANGES_MAX, "as many as a message has");
    let (mut left, mut start) = (Vec::new(), range.start);
    let first = without.partition_point(|have| have.end <= range.start);
    for have in &without[first..] {
        if have.start >= range.end {
            break;
        }
        if have.start > start {
            left.push(Range { start, end: have.start });
        }
        start = start.max(have.end);
    }
    if start < range.end {
        left.push(Range { start, end: range.end });
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_left_out_of_a_range() {
        let range = |start, end| Range { start, end };
        let without = [range(2, 4), range(6, 8), range(20, 30)];
        assert_eq!(left_of(range(0, 10), &without), [range(0, 2), range(4, 6), range(8, 10)]);
        assert_eq!(left_of(range(3, 7), &without), [range(4, 6)]);
        assert_eq!(left_of(range(21, 22), &without), []);
        assert_eq!(left_of(range(0, 40), &[]), [range(0, 40)]);
    }
}
