//! The loop of the end that writes: the machine of the target and its writers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_transfer::{
    Checked, Entry, Finished, Journal, Kind, Leaf, Limits, Made, Message, Store, Stored, Summary,
    Target, TargetEvent, TargetOptions, Task, Terms, TreePath, Trouble, Window,
};

use crate::destination::{Destination, Landing};
use crate::error::CopyError;
use crate::inbox::Inbox;
use crate::journal_file::JournalFile;
use crate::link::{Incoming, Outlet};
use crate::making::Making;
use crate::near::Machine;
use crate::report::{Gauge, Reporter};
use crate::shortcut::Shortcut;
use crate::source_end::tell_why;
use crate::space::Space;
use crate::workers::Workers;
use crate::writing::Writing;

const LOOK: Duration = Duration::from_millis(100);
/// Blocks that are granted at first.
const FIRST_BLOCKS: u32 = 4;

/// Events of the loop.
#[derive(Debug)]
pub(crate) enum Input {
    Incoming(Incoming),
    Stored(Vec<(u64, Leaf)>, Vec<Stored>),
    Checked(u64, Checked),
    Finished(u64, Finished),
    Copied(Arc<Entry>, Made),
}

impl From<Incoming> for Input {
    fn from(incoming: Incoming) -> Self {
        Self::Incoming(incoming)
    }
}

/// The target of the end, and how it writes.
pub(crate) struct TargetEnd {
    pub destination: Destination,
    pub terms: Terms,
    pub writers: usize,
    pub umask: u32,
    /// Blocks that may be granted.
    pub blocks: usize,
    /// A way for whole files that needs no blocks.
    pub shortcut: Option<Arc<Shortcut>>,
    pub inbox: Arc<Inbox<Input>>,
    pub outlet: Arc<dyn Outlet>,
    pub reporter: Arc<dyn Reporter>,
    pub gauge: Arc<Gauge>,
}

enum Work {
    Store(Vec<Store>, Space),
    Check(Arc<Entry>, weft_transfer::Kept),
    Finish(Arc<Entry>, Vec<Leaf>),
    Copy(Arc<Entry>),
}

/// The end of a transfer at the target.
pub(crate) struct Written {
    pub summary: Summary,
    pub window: u32,
}

struct Running<'a> {
    end: &'a TargetEnd,
    machine: Target,
    making: Making,
    writers: Workers<Work>,
    /// The name that the source gets here.
    renames: Option<Vec<u8>>,
    /// The name that it has there, once it is known.
    original: Option<Vec<u8>>,
}

impl TargetEnd {
    /// Runs the transfer to its end.
    pub fn run(&self) -> Result<Written, CopyError> {
        let result = self.run_inside();
        if let Err(error) = &result {
            tell_why(&*self.outlet, error);
        }
        self.inbox.close();
        self.gauge.done.get_or_init(Instant::now);
        self.outlet.finish();
        result
    }

    fn run_inside(&self) -> Result<Written, CopyError> {
        let (identity, tops, early) = self.await_begin()?;
        self.gauge.ready.get_or_init(Instant::now);
        let resumes = self.terms.resumes && !self.terms.is_dry;
        let landing = self.destination.resolve(tops, identity, resumes)?;
        let Landing { root, renames, is_bare, transfer } = landing;
        if let Some(shortcut) = &self.shortcut {
            shortcut.set_renamed(renames.is_some());
        }
        let (file, journal) =
            JournalFile::take_up(root.top(), transfer, self.terms.block_bytes, resumes)?;
        if renames.is_some() && resumes {
            // From now on the name may be there, and a later run has to know that it is not the
            // directory to copy into.
            file.append_start();
        }
        let own = (self.umask, Arc::clone(&self.gauge));
        let options = (self.terms.keeps_all, self.terms.verifies, self.terms.is_direct);
        let writing = Arc::new(Writing::new(root, file, transfer, options, own));
        let excludes = weft_transfer::Excludes::new(&self.terms.excludes)?.bare(is_bare);
        let making = Making::new(Arc::clone(&writing), excludes, self.terms.is_dry);
        let writers = self.start_writers(&writing)?;
        let machine = self.machine(journal);
        let running = Running { end: self, machine, making, writers, renames, original: None };
        running.run(&writing, early)
    }

    fn machine(&self, journal: Journal) -> Target {
        let options = TargetOptions {
            is_dry: self.terms.is_dry,
            deletes: self.terms.deletes,
            has_shortcut: self.shortcut.is_some(),
        };
        let blocks = u32::try_from(self.blocks).unwrap_or(u32::MAX);
        let window = Window::new(FIRST_BLOCKS, blocks.min(Limits::default().blocks));
        Target::new(options, Limits::default(), window, journal.files)
    }

    /// Waits until the source begins. What came behind that is returned, too.
    fn await_begin(&self) -> Result<(u128, u32, Vec<Input>), CopyError> {
        let mut inputs = Vec::new();
        loop {
            self.inbox.take(&mut inputs, 0, LOOK);
            if self.gauge.stops() {
                return Err(CopyError::Stopped);
            }
            let mut came = inputs.drain(..);
            while let Some(input) = came.next() {
                match input {
                    Input::Incoming(Incoming::Message(Message::Begin { identity, tops })) => {
                        return Ok((identity, tops, came.collect()));
                    }
                    Input::Incoming(Incoming::Message(Message::Refused { text })) => {
                        return Err(CopyError::Refused(text));
                    }
                    Input::Incoming(Incoming::Message(Message::Alive)) => {}
                    Input::Incoming(Incoming::Lost(why)) => return Err(CopyError::Lost(why)),
                    _ => return Err(weft_transfer::Offence("something before the begin").into()),
                }
            }
        }
    }

    fn start_writers(&self, writing: &Arc<Writing>) -> Result<Workers<Work>, CopyError> {
        let make = || {
            let (writing, inbox) = (Arc::clone(writing), Arc::clone(&self.inbox));
            let (shortcut, gauge) = (self.shortcut.clone(), Arc::clone(&self.gauge));
            move |work| {
                inbox.tell(match work {
                    Work::Store(stores, space) => {
                        let stored = gauge.storing.time(|| writing.store(&stores, &space));
                        let pieces = stores.iter().map(|store| (store.number, store.leaf));
                        let pieces = pieces.collect();
                        // The memory is free before the block is granted again.
                        drop(space);
                        Input::Stored(pieces, stored)
                    }
                    Work::Check(entry, kept) => {
                        Input::Checked(entry.number, writing.check(&entry, &kept))
                    }
                    Work::Finish(entry, leaves) => {
                        let finish = || writing.finish(&entry, &leaves);
                        Input::Finished(entry.number, gauge.finishing.time(finish))
                    }
                    Work::Copy(entry) => {
                        let shortcut = shortcut.as_ref().expect("there is one, or it is not asked");
                        let made = shortcut.copy(&writing, &entry);
                        Input::Copied(entry, made)
                    }
                });
            }
        };
        let near = Machine::own().and_then(|machine| machine.near_files([&**writing.root.top()]));
        self.gauge.storing.stays(near.as_ref());
        Workers::start("weft-write", (self.writers, near.as_ref()), make)
            .map_err(|why| CopyError::system("threads cannot be started", &why))
    }
}

impl Running<'_> {
    fn run(mut self, writing: &Writing, early: Vec<Input>) -> Result<Written, CopyError> {
        self.machine.begin();
        let result = self.turn_until_over(early);
        if result.is_ok() {
            writing.journal.remove();
        }
        result
    }

    fn turn_until_over(&mut self, early: Vec<Input>) -> Result<Written, CopyError> {
        for input in early {
            self.take_in(input)?;
        }
        let mut inputs = Vec::new();
        loop {
            if let Some(summary) = self.put_out() {
                return Ok(Written { summary, window: self.machine.window() });
            }
            self.end.inbox.take(&mut inputs, 0, LOOK);
            if self.end.gauge.stops() {
                return Err(CopyError::Stopped);
            }
            for input in inputs.drain(..) {
                self.take_in(input)?;
            }
        }
    }

    fn take_in(&mut self, input: Input) -> Result<(), CopyError> {
        match input {
            Input::Incoming(Incoming::Message(Message::Refused { text })) => {
                return Err(CopyError::Refused(text));
            }
            Input::Incoming(Incoming::Message(message)) => {
                let message = self.renamed(message)?;
                self.machine.message(message)?;
            }
            Input::Incoming(Incoming::Block(block, space)) => {
                let stores = self.machine.block(&block)?;
                Gauge::add(&self.end.gauge.bytes_moved, block.payload());
                self.writers.give(Work::Store(stores, space));
            }
            Input::Incoming(Incoming::Sent) => {}
            Input::Incoming(Incoming::Lost(why)) => return Err(CopyError::Lost(why)),
            Input::Stored(pieces, stored) => {
                for ((number, leaf), stored) in pieces.into_iter().zip(stored) {
                    self.machine.stored(number, leaf, stored);
                }
                self.machine.freed();
            }
            Input::Checked(number, checked) => self.machine.checked(number, checked),
            Input::Finished(number, finished) => self.machine.finished(number, finished),
            Input::Copied(entry, made) => {
                if let (Made::BySystem(_), Kind::File(id)) = (&made, &entry.kind) {
                    Gauge::add(&self.end.gauge.bytes_moved, id.size);
                }
                if self.end.shortcut.as_ref().is_some_and(|shortcut| shortcut.is_useless()) {
                    self.machine.forget_shortcut();
                }
                self.machine.made(&entry, made);
            }
        }
        Ok(())
    }

    /// The trouble, with the path that it has at the source, which is the one that a person
    /// named.
    fn told(&self, mut trouble: Trouble) -> Trouble {
        if let (Some(name), Some(original)) = (&self.renames, &self.original)
            && let Some(below) = trouble.path.bytes().strip_prefix(name.as_slice())
            && (below.is_empty() || below.starts_with(b"/"))
        {
            let path = if original.is_empty() {
                TreePath::new(below.strip_prefix(b"/").unwrap_or(below))
            } else {
                TreePath::new([original, below].concat())
            };
            trouble.path = path.unwrap_or(trouble.path);
        }
        trouble
    }

    /// A message with the paths that they have at the destination.
    fn renamed(&mut self, mut message: Message) -> Result<Message, CopyError> {
        let Some(first) = self.renames.clone() else { return Ok(message) };
        let rename = |path: &mut TreePath| -> Result<(), CopyError> {
            *path = path.renamed(&first).map_err(|_| {
                weft_transfer::Offence("a path that is too long at the destination")
            })?;
            Ok(())
        };
        match &mut message {
            Message::Entries(entries) => {
                if let (None, Some(entry)) = (&self.original, entries.first()) {
                    let name = entry.path.bytes().split(|byte| *byte == b'/').next();
                    self.original = name.map(<[u8]>::to_vec);
                }
                for entry in entries {
                    rename(&mut entry.path)?;
                    if let Kind::HardLink { first } = &mut entry.kind {
                        rename(first)?;
                    }
                }
            }
            Message::DirectoryEnd { path, .. } => rename(path)?,
            _ => {}
        }
        Ok(message)
    }

    fn put_out(&mut self) -> Option<Summary> {
        while let Some(task) = self.machine.poll_task() {
            self.begin(task);
        }
        while let Some(message) = self.machine.poll_message() {
            self.end.outlet.message(match message {
                Message::Trouble(trouble) => Message::Trouble(self.told(trouble)),
                message => message,
            });
        }
        let mut over = None;
        while let Some(event) = self.machine.poll_event() {
            match event {
                TargetEvent::Trouble(trouble) => {
                    // Faults of the source have their path already.
                    self.end.reporter.trouble(&self.told(trouble));
                }
                TargetEvent::Would(text) => self.end.reporter.would(&text),
                TargetEvent::Over(summary) => over = Some(summary),
            }
        }
        over
    }

    fn begin(&mut self, task: Task) {
        match task {
            Task::Make(entry) => {
                let made = self.making.make(&entry);
                self.machine.made(&entry, made);
            }
            Task::Shortcut(entry) => self.writers.give(Work::Copy(entry)),
            Task::Check { entry, kept } => self.writers.give(Work::Check(entry, kept)),
            Task::Finish { entry, leaves } => self.writers.give(Work::Finish(entry, leaves)),
            Task::Discard(entry) => self.making.writing.discard(&entry),
            Task::Prune { path, keep } => {
                let (removed, troubles) = self.making.prune(&path, &keep);
                self.machine.pruned(&path, &removed, troubles);
            }
            Task::Link(entry) => {
                let made = self.making.link(&entry);
                self.machine.made(&entry, made);
            }
            Task::Settle(entry) => {
                let made = self.making.settle(&entry);
                self.machine.made(&entry, made);
            }
            Task::Sync => self.machine.synced(self.making.sync()),
        }
    }
}
