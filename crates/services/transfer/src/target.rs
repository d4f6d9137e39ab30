//! The machine of the end that writes files: what is needed, how many blocks are granted, and when
//! a file is whole.
//!
//! A driver makes, checks, stores and finishes, and tells how it ended. Invariants: an entry ends
//! once; a block is stored only if it was granted; nothing is asked of the driver that leads out of
//! the destination, as paths are [`TreePath`]s.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::checksum::{Leaf, root};
use crate::entry::{Entry, FileId, Kind};
use crate::journal::{Kept, PathId};
use crate::message::{
    Answer, Block, Code, LIST_MAX, Message, Need, RANGES_MAX, Range, Steadiness, Summary, Trouble,
};
use crate::offence::Offence;
use crate::path::TreePath;
use crate::source::Limits;
use crate::window::Window;

/// How often pieces of one file are asked for again.
const ROUNDS_MAX: u32 = 4;
/// Most bytes of directories and links that wait for the end, as [`Entry::weight`] counts.
const DEFERRED_BYTES_MAX: usize = 1 << 30;
/// Most names that are remembered, to remove the others; each takes about 60 bytes.
const NAMES_MAX: usize = 16 << 20;

/// A range of a block that is to be stored.
#[derive(Clone, Debug)]
pub struct Store {
    /// The file; `None` if nobody needs the bytes any more.
    pub entry: Option<Arc<Entry>>,
    /// Its number.
    pub number: u64,
    /// Which bytes of the file they are, and their hash.
    pub leaf: Leaf,
    /// For a file that is whole in this piece: how its reading ended. The driver also finishes it.
    pub whole: Option<Steadiness>,
}

/// How storing a piece ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stored {
    /// It is in the temporary file.
    Written,
    /// The file is whole under its name, and what was lost of it, if anything.
    Installed(Lost),
    /// The bytes that are there are not those that were read at the source.
    Damaged,
    /// It could not be.
    Failed(Code, String),
    /// Nobody needed it.
    Passed,
}

/// A property that could not be kept of an entry that is there otherwise.
pub type Lost = Option<(Code, String)>;

/// The part of a file that is there from an earlier run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Checked {
    /// Nothing.
    Nothing,
    /// These pieces are in its temporary file, and have their hashes.
    Pieces(Vec<Leaf>),
    /// It is whole under its name.
    Whole,
}

/// How finishing a file ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finished {
    /// It is whole under its name.
    Installed(Lost),
    /// These pieces are not what was read at the source.
    Damaged(Vec<Leaf>),
    /// It could not be.
    Failed(Code, String),
}

/// How making something ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Made {
    /// It is there, and what could not be kept of it.
    There(Lost),
    /// The system made a copy of the file, without blocks.
    BySystem(Lost),
    /// There is no such short way for this file.
    NoShortWay,
    /// It could not be.
    Failed(Code, String),
}

/// A task of a driver. All but `Check` and `Finish` are to be done at once and in order.
#[derive(Clone, Debug)]
pub enum Task {
    /// Make a directory, or a link or special file with its metadata. [`Target::made`] follows.
    Make(Arc<Entry>),
    /// Copy a file by the system if that takes no time. [`Target::made`] follows.
    Shortcut(Arc<Entry>),
    /// Look what is there of a file. [`Target::checked`] follows.
    Check {
        /// The file.
        entry: Arc<Entry>,
        /// The journal.
        kept: Kept,
    },
    /// Sync a file, read it back, and put it under its name. [`Target::finished`] follows.
    Finish {
        /// The file.
        entry: Arc<Entry>,
        /// Its pieces, in order.
        leaves: Vec<Leaf>,
    },
    /// Remove the temporary file of a file that is given up.
    Discard(Arc<Entry>),
    /// Remove what is in a directory and not among these names. [`Target::pruned`] follows.
    Prune {
        /// The directory.
        path: TreePath,
        /// The names that stay.
        keep: HashSet<Vec<u8>>,
    },
    /// Give a file one more name. [`Target::made`] follows.
    Link(Arc<Entry>),
    /// Give a directory its metadata, when nothing more is made in it. [`Target::made`] follows.
    Settle(Arc<Entry>),
    /// Make everything last. [`Target::synced`] follows.
    Sync,
}

/// News for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TargetEvent {
    /// Something went wrong with an entry, at either end.
    Trouble(Trouble),
    /// A step that a dry run would make.
    Would(String),
    /// The transfer is over.
    Over(Summary),
}

#[derive(Debug)]
enum State {
    /// The driver looks for a short way or for what is there.
    Looking,
    /// Blocks are coming.
    Coming,
    /// The driver finishes it.
    Finishing,
}

#[derive(Debug)]
struct File {
    entry: Arc<Entry>,
    state: State,
    /// The pieces of this run, by place.
    leaves: BTreeMap<u64, Leaf>,
    /// The pieces that were there.
    kept: Vec<Leaf>,
    /// Pieces at the driver.
    storing: u32,
    end: Option<(u64, u128, Steadiness)>,
    rounds: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Opening,
    Walking,
    Walked,
    Settling,
    Syncing,
    Over,
}

/// How the target behaves.
#[derive(Clone, Debug, Default)]
pub struct TargetOptions {
    /// Nothing is written.
    pub is_dry: bool,
    /// Entries that are not at the source are removed.
    pub deletes: bool,
    /// The driver may know a way for whole files without blocks.
    pub has_shortcut: bool,
}

/// The machine.
#[derive(Debug)]
pub struct Target {
    options: TargetOptions,
    limits: Limits,
    journal: HashMap<PathId, Kept>,
    window: Window,
    phase: Phase,
    next_number: u64,
    files: BTreeMap<u64, File>,
    directories: Vec<Arc<Entry>>,
    links: Vec<Arc<Entry>>,
    deferred_bytes: usize,
    open_bytes: usize,
    names_kept: usize,
    names: Option<(TreePath, HashSet<Vec<u8>>)>,
    prunes: Vec<(TreePath, HashSet<Vec<u8>>)>,
    making: usize,
    tasks: VecDeque<Task>,
    answers: Vec<Answer>,
    ended: Vec<(u64, u32)>,
    outgoing: VecDeque<Message>,
    events: VecDeque<TargetEvent>,
    summary: Summary,
}

impl Target {
    /// The machine. `window` says how many blocks may be granted, `journal` what an earlier run
    /// left.
    #[must_use]
    pub fn new(
        options: TargetOptions,
        limits: Limits,
        window: Window,
        journal: HashMap<PathId, Kept>,
    ) -> Self {
        Self {
            options,
            limits,
            journal,
            window,
            phase: Phase::Opening,
            next_number: 0,
            files: BTreeMap::new(),
            directories: Vec::new(),
            links: Vec::new(),
            deferred_bytes: 0,
            open_bytes: 0,
            names_kept: 0,
            names: None,
            prunes: Vec::new(),
            making: 0,
            tasks: VecDeque::new(),
            answers: Vec::new(),
            ended: Vec::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            summary: Summary::default(),
        }
    }

    /// Asks for no more short ways: the driver knows none that works here.
    pub fn forget_shortcut(&mut self) {
        self.options.has_shortcut = false;
    }

    /// Begins: the driver is ready.
    pub fn begin(&mut self) {
        assert_eq!(self.phase, Phase::Opening, "a transfer begins once");
        self.phase = Phase::Walking;
        self.outgoing.push_back(Message::Ready);
        let blocks = self.window.open();
        self.outgoing.push_back(Message::Grant { blocks });
    }

    /// A message of the source.
    ///
    /// # Errors
    /// [`Offence`]: the source broke the protocol, and the transfer is over.
    pub fn message(&mut self, message: Message) -> Result<(), Offence> {
        match message {
            Message::Entries(entries) if self.phase == Phase::Walking => {
                entries.into_iter().try_for_each(|entry| self.entry(entry))
            }
            Message::DirectoryEnd { path, is_complete } if self.phase == Phase::Walking => {
                self.directory_end(path, is_complete);
                Ok(())
            }
            Message::WalkEnd { entries } if self.phase == Phase::Walking => {
                if entries != self.next_number {
                    return Err(Offence("entries are missing"));
                }
                self.phase = Phase::Walked;
                self.proceed();
                Ok(())
            }
            Message::FileEnd { number, leaves, root, steadiness } => {
                self.file_end(number, (leaves, root, steadiness))
            }
            Message::Trouble(trouble) => {
                if let Some(number) = trouble.number {
                    if number >= self.next_number {
                        return Err(Offence("trouble with an entry that was not told"));
                    }
                    if !self.files.contains_key(&number) {
                        return Ok(());
                    }
                    self.give_up(number);
                }
                self.summary.troubled += 1;
                self.events.push_back(TargetEvent::Trouble(trouble));
                self.proceed();
                Ok(())
            }
            Message::Alive => Ok(()),
            _ => Err(Offence("a message that a source does not send now")),
        }
    }

    fn entry(&mut self, entry: Entry) -> Result<(), Offence> {
        if entry.number != self.next_number {
            return Err(Offence("entries are out of order"));
        }
        if self.files.len() >= self.limits.entries_open || self.open_bytes > self.limits.bytes_open
        {
            return Err(Offence("more entries than may be open"));
        }
        self.next_number += 1;
        self.remember(&entry.path);
        let entry = Arc::new(entry);
        if self.options.is_dry {
            let text = entry.path.to_string();
            self.outgoing.push_back(Message::Would(text.clone()));
            self.events.push_back(TargetEvent::Would(text));
            self.count(&entry);
            self.end(entry.number);
            return Ok(());
        }
        match &entry.kind {
            Kind::File(id) => self.file(*id, &entry),
            Kind::HardLink { .. } => {
                if !self.may_wait(&entry) {
                    self.fail(&entry, Code::Refused, "there are too many hard links".to_owned());
                } else {
                    self.links.push(Arc::clone(&entry));
                }
                self.end(entry.number);
            }
            _ => {
                self.making += 1;
                self.tasks.push_back(Task::Make(entry));
            }
        }
        Ok(())
    }

    fn file(&mut self, id: FileId, entry: &Arc<Entry>) {
        let number = entry.number;
        let kept = self.journal.remove(&PathId::of(&entry.path));
        let kept = kept.filter(|kept| match kept {
            Kept::Pieces { id: of, .. } | Kept::Whole { id: of, .. } => *of == id,
        });
        let state = if let Some(kept) = kept {
            self.tasks.push_back(Task::Check { entry: Arc::clone(entry), kept });
            State::Looking
        } else if self.options.has_shortcut && id.size > 0 {
            self.tasks.push_back(Task::Shortcut(Arc::clone(entry)));
            self.making += 1;
            State::Looking
        } else {
            self.answer(number, Need::All);
            State::Coming
        };
        let file = File {
            entry: Arc::clone(entry),
            state,
            leaves: BTreeMap::new(),
            kept: Vec::new(),
            storing: 0,
            end: None,
            rounds: 0,
        };
        self.open_bytes += entry.weight();
        self.files.insert(number, file);
    }

    fn remove(&mut self, number: u64) -> Option<File> {
        let file = self.files.remove(&number)?;
        self.open_bytes -= file.entry.weight();
        Some(file)
    }

    /// Remembers the names of a directory, for what is to be removed from it.
    fn remember(&mut self, path: &TreePath) {
        if !self.options.deletes {
            return;
        }
        let Some((parent, name)) = path.split() else { return };
        match &mut self.names {
            Some((directory, names)) if *directory == parent => {
                if self.names_kept < NAMES_MAX {
                    self.names_kept += 1;
                    names.insert(name.to_vec());
                }
            }
            names => *names = Some((parent, HashSet::from([name.to_vec()]))),
        }
    }

    fn directory_end(&mut self, path: TreePath, is_complete: bool) {
        if !self.options.deletes {
            return;
        }
        let keep = match self.names.take() {
            Some((directory, names)) if directory == path => names,
            _ => HashSet::new(),
        };
        if !is_complete || self.names_kept >= NAMES_MAX {
            let text = if is_complete {
                "nothing is removed from it, as there are too many names"
            } else {
                "nothing is removed from it, as not all of its source was read"
            };
            let text = text.to_owned();
            let trouble = Trouble { number: None, path, code: Code::Read, text };
            self.events.push_back(TargetEvent::Trouble(trouble));
            return;
        }
        self.prunes.push((path, keep));
        self.proceed();
    }

    /// Something was made, linked or settled, as a task asked.
    pub fn made(&mut self, entry: &Arc<Entry>, made: Made) {
        self.making -= 1;
        let is_settling = self.phase == Phase::Settling;
        if let Some(file) = self.files.get_mut(&entry.number) {
            file.state = State::Coming;
            match made {
                Made::NoShortWay => self.answer(entry.number, Need::All),
                Made::There(lost) | Made::BySystem(lost) => {
                    self.summary.by_system += 1;
                    self.whole(entry.number, lost);
                }
                Made::Failed(code, text) => self.failed(entry.number, code, text),
            }
            self.proceed();
            return;
        }
        match made {
            Made::There(lost) | Made::BySystem(lost) => {
                if let Some((code, text)) = lost {
                    self.fail(entry, code, text);
                } else if !is_settling || matches!(entry.kind, Kind::HardLink { .. }) {
                    self.count(entry);
                }
                if !is_settling && entry.kind == Kind::Directory {
                    self.defer(entry);
                }
            }
            Made::NoShortWay => {}
            Made::Failed(code, text) => self.fail(entry, code, text),
        }
        if !is_settling {
            self.end(entry.number);
        }
        self.proceed();
    }

    /// Whether there is memory to keep an entry until the end.
    fn may_wait(&mut self, entry: &Entry) -> bool {
        let sum = self.deferred_bytes + entry.weight();
        let may = sum <= DEFERRED_BYTES_MAX;
        if may {
            self.deferred_bytes = sum;
        }
        may
    }

    fn defer(&mut self, entry: &Arc<Entry>) {
        if !self.may_wait(entry) {
            let text = "there are too many directories to keep the times of this one".to_owned();
            self.fail(entry, Code::Refused, text);
        } else {
            self.directories.push(Arc::clone(entry));
        }
    }

    /// Takes the parts of a file that are there, as [`Task::Check`] asked.
    pub fn checked(&mut self, number: u64, checked: Checked) {
        let Some(file) = self.files.get_mut(&number) else { return };
        file.state = State::Coming;
        match checked {
            Checked::Nothing => self.answer(number, Need::All),
            Checked::Whole => {
                if let Kind::File(id) = file.entry.kind {
                    self.summary.resumed += id.size;
                }
                self.answer(number, Need::Nothing);
                self.whole(number, None);
            }
            Checked::Pieces(mut leaves) => {
                leaves.sort_unstable();
                leaves.dedup_by_key(|leaf| leaf.offset);
                let ranges = merged(&leaves);
                leaves.retain(|leaf| {
                    ranges.iter().any(|range| range.start <= leaf.offset && leaf.end() <= range.end)
                });
                let bytes: u64 = leaves.iter().map(|leaf| u64::from(leaf.length)).sum();
                self.summary.resumed += bytes;
                file.kept = leaves;
                let need = if ranges.is_empty() { Need::All } else { Need::Without(ranges) };
                self.answer(number, need);
            }
        }
        self.proceed();
    }

    /// A block came. Returns what to store; [`Target::stored`] follows for each piece, then
    /// [`Target::freed`].
    ///
    /// # Errors
    /// [`Offence`].
    pub fn block(&mut self, block: &Block) -> Result<Vec<Store>, Offence> {
        self.window.came(block.is_last_credit)?;
        let mut stores = Vec::with_capacity(block.segments.len());
        for segment in &block.segments {
            let (number, leaf) = (segment.number, segment.leaf);
            if number >= self.next_number {
                return Err(Offence("bytes of an entry that was not told"));
            }
            self.summary.received += u64::from(leaf.length);
            let Some(file) = self.files.get_mut(&number) else {
                stores.push(Store { entry: None, number, leaf, whole: None });
                continue;
            };
            let Kind::File(id) = file.entry.kind else { unreachable!("files have this kind") };
            if leaf.end() > id.size {
                return Err(Offence("bytes behind the end of a file"));
            }
            if !matches!(file.state, State::Coming) {
                return Err(Offence("bytes that were not asked for"));
            }
            let is_whole = segment.whole.is_some();
            if is_whole && (file.storing > 0 || !file.leaves.is_empty() || !file.kept.is_empty()) {
                return Err(Offence("a whole file in pieces"));
            }
            file.storing += 1;
            if let Some(steadiness) = segment.whole {
                file.end = Some((1, 0, steadiness));
            }
            let entry = Some(Arc::clone(&file.entry));
            stores.push(Store { entry, number, leaf, whole: segment.whole });
        }
        Ok(stores)
    }

    /// A piece was stored, or not.
    pub fn stored(&mut self, number: u64, leaf: Leaf, stored: Stored) {
        let Some(file) = self.files.get_mut(&number) else { return };
        if stored == Stored::Passed {
            return;
        }
        file.storing -= 1;
        match stored {
            Stored::Written => {
                if leaf.length > 0 {
                    file.leaves.insert(leaf.offset, leaf);
                }
                self.finish_if_whole(number);
            }
            Stored::Installed(lost) => self.whole(number, lost),
            Stored::Damaged => {
                file.end = None;
                self.ask_again(number, &[leaf]);
            }
            Stored::Failed(code, text) => self.failed(number, code, text),
            Stored::Passed => unreachable!("it was looked at above"),
        }
        self.proceed();
    }

    /// The memory of a block is free again.
    pub fn freed(&mut self) {
        let blocks = self.window.freed();
        if blocks > 0 {
            self.outgoing.push_back(Message::Grant { blocks });
        }
    }

    fn file_end(&mut self, number: u64, end: (u64, u128, Steadiness)) -> Result<(), Offence> {
        if number >= self.next_number {
            return Err(Offence("the end of a file that was not told"));
        }
        let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
        if !matches!(file.state, State::Coming) || file.end.is_some() {
            return Err(Offence("the end of a file that does not come"));
        }
        file.end = Some(end);
        self.finish_if_whole(number);
        Ok(())
    }

    fn finish_if_whole(&mut self, number: u64) {
        let Some(file) = self.files.get_mut(&number) else { return };
        let Some((count, expected, _)) = file.end else { return };
        let is_there = file.leaves.len() as u64 >= count && file.storing == 0;
        if !matches!(file.state, State::Coming) || !is_there {
            return;
        }
        let leaves: Vec<Leaf> = file.leaves.values().copied().collect();
        let Kind::File(id) = file.entry.kind else { unreachable!("files have this kind") };
        if root(id.size, &leaves) != expected {
            // No piece is known to be wrong, so all are.
            file.end = None;
            self.ask_again(number, &leaves);
            return;
        }
        file.state = State::Finishing;
        let mut all = [leaves, file.kept.clone()].concat();
        all.sort_unstable();
        self.tasks.push_back(Task::Finish { entry: Arc::clone(&file.entry), leaves: all });
    }

    fn ask_again(&mut self, number: u64, leaves: &[Leaf]) {
        let Some(file) = self.files.get_mut(&number) else { return };
        file.rounds += 1;
        let is_hopeless = file.rounds > ROUNDS_MAX || leaves.len() > RANGES_MAX;
        let ranges: Vec<Range> = leaves
            .iter()
            .filter(|leaf| leaf.length > 0)
            .map(|leaf| Range { start: leaf.offset, end: leaf.end() })
            .collect();
        if is_hopeless || ranges.is_empty() {
            let text = "what was written is not what was read, again and again".to_owned();
            self.failed(number, Code::Verification, text);
            return;
        }
        file.state = State::Coming;
        for leaf in leaves {
            file.leaves.remove(&leaf.offset);
            file.kept.retain(|kept| kept.offset != leaf.offset);
        }
        self.summary.repaired += ranges.len() as u64;
        self.outgoing.push_back(Message::Again { number, ranges });
    }

    /// A file was finished, or not.
    pub fn finished(&mut self, number: u64, finished: Finished) {
        let Some(file) = self.files.get_mut(&number) else { return };
        match finished {
            Finished::Installed(lost) => self.whole(number, lost),
            Finished::Damaged(leaves) => {
                file.end = None;
                self.ask_again(number, &leaves);
            }
            Finished::Failed(code, text) => self.failed(number, code, text),
        }
        self.proceed();
    }

    /// A file is under its name.
    fn whole(&mut self, number: u64, lost: Lost) {
        let Some(file) = self.remove(number) else { return };
        self.count(&file.entry);
        let changed = matches!(file.end, Some((_, _, Steadiness::Changed)));
        if changed {
            self.summary.changed += 1;
            let text = "it changed while it was read; it was copied as it was read".to_owned();
            self.tell(&file.entry, Code::Changed, text);
        }
        if let Some((code, text)) = lost {
            self.fail(&file.entry, code, text);
        }
        self.end(number);
    }

    fn failed(&mut self, number: u64, code: Code, text: String) {
        let Some(file) = self.files.get(&number) else { return };
        let entry = Arc::clone(&file.entry);
        self.give_up(number);
        self.fail(&entry, code, text);
    }

    fn give_up(&mut self, number: u64) {
        if let Some(file) = self.remove(number) {
            self.tasks.push_back(Task::Discard(file.entry));
            self.end(number);
        }
    }

    fn fail(&mut self, entry: &Entry, code: Code, text: String) {
        self.summary.troubled += 1;
        self.tell(entry, code, text);
    }

    fn tell(&mut self, entry: &Entry, code: Code, text: String) {
        let trouble = Trouble { number: None, path: entry.path.clone(), code, text };
        self.outgoing.push_back(Message::Trouble(trouble.clone()));
        self.events.push_back(TargetEvent::Trouble(trouble));
    }

    fn count(&mut self, entry: &Entry) {
        if let Kind::File(id) = entry.kind {
            self.summary.files += 1;
            self.summary.bytes += id.size;
        } else {
            self.summary.others += 1;
        }
    }

    fn answer(&mut self, number: u64, need: Need) {
        if let Some(last) = self.answers.last_mut()
            && last.need == need
            && !matches!(need, Need::Without(_))
            && last.first + u64::from(last.count) == number
        {
            last.count += 1;
            return;
        }
        self.answers.push(Answer { first: number, count: 1, need });
        // An answer with ranges may fill a message.
        let is_long = matches!(self.answers.last(), Some(Answer { need: Need::Without(_), .. }));
        if is_long || self.answers.len() == LIST_MAX {
            self.flush();
        }
    }

    fn end(&mut self, number: u64) {
        match self.ended.last_mut() {
            Some((first, count)) if *first + u64::from(*count) == number => *count += 1,
            _ => self.ended.push((number, 1)),
        }
        if self.ended.len() == LIST_MAX {
            self.flush();
        }
    }

    /// Passes answers on that were gathered. [`Target::poll_message`] does so when there is nothing
    /// else.
    fn flush(&mut self) {
        if !self.answers.is_empty() {
            let answers = std::mem::take(&mut self.answers);
            self.outgoing.push_back(Message::Answers(answers));
        }
        if !self.ended.is_empty() {
            let ended = std::mem::take(&mut self.ended);
            self.outgoing.push_back(Message::Ended(ended));
        }
    }

    /// Entries were removed from a directory, as [`Task::Prune`] asked: how many, and what went
    /// wrong.
    pub fn pruned(&mut self, path: &TreePath, removed: &[TreePath], troubles: Vec<Trouble>) {
        self.making -= 1;
        self.summary.deleted += removed.len() as u64;
        if self.options.is_dry {
            for path in removed {
                let text = format!("deleting {path}");
                self.outgoing.push_back(Message::Would(text.clone()));
                self.events.push_back(TargetEvent::Would(text));
            }
        }
        for trouble in troubles {
            debug_assert!(trouble.path.bytes().starts_with(path.bytes()), "below the directory");
            self.summary.troubled += 1;
            self.outgoing.push_back(Message::Trouble(trouble.clone()));
            self.events.push_back(TargetEvent::Trouble(trouble));
        }
        self.proceed();
    }

    /// Everything lasts, or not.
    pub fn synced(&mut self, result: Result<(), String>) {
        assert_eq!(self.phase, Phase::Syncing, "it was asked for");
        if let Err(text) = result {
            let path = TreePath::default();
            let trouble = Trouble { number: None, path, code: Code::Write, text };
            self.summary.troubled += 1;
            self.outgoing.push_back(Message::Trouble(trouble.clone()));
            self.events.push_back(TargetEvent::Trouble(trouble));
        }
        self.flush();
        self.phase = Phase::Over;
        self.outgoing.push_back(Message::Done(self.summary));
        self.events.push_back(TargetEvent::Over(self.summary));
    }

    /// Goes on to the next phase when all of this one is over. What is in directories comes first,
    /// then what is removed, then links, then metadata of directories from the deepest up.
    fn proceed(&mut self) {
        let is_idle = self.files.is_empty() && self.making == 0;
        if self.phase == Phase::Walked && is_idle {
            self.phase = Phase::Settling;
            for (path, keep) in std::mem::take(&mut self.prunes) {
                self.making += 1;
                self.tasks.push_back(Task::Prune { path, keep });
            }
            for link in std::mem::take(&mut self.links) {
                self.making += 1;
                self.tasks.push_back(Task::Link(link));
            }
            for directory in std::mem::take(&mut self.directories).into_iter().rev() {
                self.making += 1;
                self.tasks.push_back(Task::Settle(directory));
            }
        }
        if self.phase == Phase::Settling && self.making == 0 {
            self.phase = Phase::Syncing;
            self.tasks.push_back(Task::Sync);
        }
    }

    /// The next task. May have more after any call.
    pub fn poll_task(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    /// The next message to send.
    pub fn poll_message(&mut self) -> Option<Message> {
        if self.outgoing.is_empty() {
            self.flush();
        }
        self.outgoing.pop_front()
    }

    /// The next thing that a person hears of.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// Whether all is done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The counters so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// The most blocks that were granted at a time so far.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window.granted_max()
    }
}

/// The ranges that sorted leaves cover, as many as a message has.
fn merged(leaves: &[Leaf]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for leaf in leaves.iter().filter(|leaf| leaf.length > 0) {
        let is_full = ranges.len() == RANGES_MAX;
        match ranges.last_mut() {
            Some(last) if last.end == leaf.offset => last.end = leaf.end(),
            Some(last) if last.end > leaf.offset => {}
            _ if is_full => break,
            _ => ranges.push(Range { start: leaf.offset, end: leaf.end() }),
        }
    }
    ranges
}
