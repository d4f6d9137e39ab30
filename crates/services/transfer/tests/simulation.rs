//! Both machines over a simulated way, with files in memory: any order of what ends when, cuts at
//! any step, journals cut at any byte, and flipped bits.

use std::collections::{BTreeMap, HashMap, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_transfer::{
    Block, BlockNumber, Checked, Code, FileId, Finished, Frame, Job, Journal, Kept, Kind, Leaf,
    Limits, Loaded, Made, Message, Metadata, PathId, Piece, Range, Record, Source, SourceEvent,
    Steadiness, Store, Stored, Summary, Target, TargetOptions, Task, TreePath, Window, hash,
};

const BLOCK: u32 = 4_096;
const TRANSFER: u128 = 9;

type Files = BTreeMap<TreePath, Vec<u8>>;

/// The files that survive at the target when everything else dies.
#[derive(Default)]
struct Disk {
    files: Files,
    temporary: HashMap<PathId, Vec<u8>>,
    journal: Vec<u8>,
}

impl Disk {
    fn record(&mut self, record: &Record) {
        if self.journal.is_empty() {
            let start = Record::Start { transfer: TRANSFER, block_bytes: BLOCK };
            self.journal.extend(start.bytes());
        }
        self.journal.extend(record.bytes());
    }

    fn is_sound(&self, path: PathId, leaf: &Leaf) -> bool {
        let Some(bytes) = self.temporary.get(&path) else { return false };
        bytes.get(place(leaf)).is_some_and(|bytes| hash(bytes) == leaf.hash)
    }
}

fn place(leaf: &Leaf) -> std::ops::Range<usize> {
    let start = usize::try_from(leaf.offset).expect("small");
    start..start + usize::try_from(leaf.length).expect("small")
}

fn id(path: &TreePath, bytes: &[u8]) -> FileId {
    let inode = u64::try_from(hash(path.bytes()) >> 64).expect("64 bits");
    FileId { inode, size: bytes.len() as u64, ..FileId::default() }
}

enum Work {
    Read(BlockNumber, Vec<Piece>),
    Plain(Job),
    Store(Vec<Store>, Vec<u8>),
    Task(Task),
}

/// Fewer than the rounds after which a file is given up.
const FLIPS_MAX: u32 = 3;

struct World<'a> {
    random: ChaCha8Rng,
    source_files: &'a Files,
    disk: &'a mut Disk,
    source: Source,
    target: Target,
    to_target: VecDeque<Message>,
    to_source: VecDeque<Message>,
    blocks: Vec<(Block, Vec<u8>)>,
    works: Vec<Work>,
    walk: VecDeque<TreePath>,
    walked: bool,
    /// How often bits of each file may still be flipped on the way: a file that is damaged in every
    /// round is given up.
    flips: BTreeMap<TreePath, u32>,
    sent: u64,
    summary: Option<Summary>,
}

impl<'a> World<'a> {
    fn new(seed: u64, source_files: &'a Files, disk: &'a mut Disk, flips: bool) -> Self {
        let journal = Journal::read(&disk.journal, TRANSFER, BLOCK);
        disk.journal.truncate(journal.sound);
        let limits = Limits { entries_open: 16, blocks: 64, ..Limits::default() };
        let options = TargetOptions { has_shortcut: seed.is_multiple_of(3), ..Default::default() };
        let mut target = Target::new(options, limits, Window::new(2, 16), journal.files);
        target.begin();
        Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            source_files,
            disk,
            source: Source::new(BLOCK, limits),
            target,
            to_target: VecDeque::new(),
            to_source: VecDeque::new(),
            blocks: Vec::new(),
            works: Vec::new(),
            walk: source_files.keys().cloned().collect(),
            walked: false,
            flips: source_files
                .keys()
                .map(|path| (path.clone(), if flips { FLIPS_MAX } else { 0 }))
                .collect(),
            sent: 0,
            summary: None,
        }
    }

    /// One step of something. False when the transfer is over.
    fn step(&mut self) -> bool {
        self.collect();
        if self.summary.is_some() {
            return false;
        }
        match self.random.random_range(0..5) {
            0 => self.walk_on(),
            1 => {
                if let Some(message) = self.to_target.pop_front() {
                    // Ready is for the driver.
                    self.target.message(carried(message)).expect("no offence");
                }
            }
            2 => {
                if let Some(message) = self.to_source.pop_front() {
                    self.source.message(carried(message)).expect("no offence");
                }
            }
            3 => {
                // Streams do not keep the order of blocks.
                if !self.blocks.is_empty() {
                    let index = self.random.random_range(0..self.blocks.len());
                    let (block, bytes) = self.blocks.swap_remove(index);
                    let stores = self.target.block(&block).expect("no offence");
                    self.works.push(Work::Store(stores, bytes));
                }
            }
            _ => {
                if !self.works.is_empty() {
                    let index = self.random.random_range(0..self.works.len());
                    let work = self.works.swap_remove(index);
                    self.work(work);
                }
            }
        }
        true
    }

    fn collect(&mut self) {
        self.source.flush_entries();
        while let Some(message) = self.source.poll_message() {
            self.to_target.push_back(message);
        }
        while let Some(message) = self.target.poll_message() {
            if message != Message::Ready {
                self.to_source.push_back(message);
            }
        }
        while let Some(job) = self.source.poll_job(true) {
            self.works.push(match job {
                Job::Load { block, pieces } => Work::Read(block, pieces),
                job => Work::Plain(job),
            });
        }
        while let Some(task) = self.target.poll_task() {
            match task {
                Task::Shortcut(_) | Task::Check { .. } | Task::Finish { .. } => {
                    self.works.push(Work::Task(task));
                }
                task => self.task(task),
            }
        }
        while let Some(event) = self.source.poll_event() {
            match event {
                SourceEvent::Over(summary) => self.summary = Some(summary),
                event => panic!("nothing goes wrong here: {event:?}"),
            }
        }
        while self.target.poll_event().is_some() {}
    }

    fn walk_on(&mut self) {
        if self.source.room() == 0 || self.walked {
            return;
        }
        let Some(path) = self.walk.pop_front() else {
            self.walked = true;
            self.source.walk_end();
            return;
        };
        let bytes = &self.source_files[&path];
        let is_sparse = bytes.len() > 9_000 && bytes.len().is_multiple_of(2);
        let kind = Kind::File(id(&path, bytes));
        self.source.entry(path, Metadata::default(), kind, is_sparse);
    }

    fn work(&mut self, work: Work) {
        match work {
            Work::Read(block, pieces) => self.read(block, &pieces),
            Work::Plain(Job::Map { number, path, .. }) => {
                let ranges = extents(&self.source_files[&path]);
                self.source.mapped(number, Ok((ranges, None)));
            }
            Work::Plain(Job::Close { number, .. }) => {
                self.source.closed(number, Steadiness::Same);
            }
            Work::Plain(Job::Load { .. }) => unreachable!("it is another work"),
            Work::Store(stores, bytes) => self.store(&stores, &bytes),
            Work::Task(task) => self.task(task),
        }
    }

    fn read(&mut self, block: BlockNumber, pieces: &[Piece]) {
        let (mut bytes, mut all): (Vec<u8>, Vec<Loaded>) = Default::default();
        for piece in pieces {
            let leaf = Leaf { offset: piece.offset, length: piece.length, hash: 0 };
            let read = &self.source_files[&piece.path][place(&leaf)];
            bytes.extend_from_slice(read);
            all.push(Ok((Leaf { hash: hash(read), ..leaf }, Steadiness::Same)));
        }
        self.sent += bytes.len() as u64;
        if !bytes.is_empty() && self.random.random_bool(0.1) {
            let index = self.random.random_range(0..bytes.len());
            let mut end = 0;
            let piece = pieces.iter().find(|piece| {
                end += usize::try_from(piece.length).expect("small");
                index < end
            });
            let left = piece.and_then(|piece| self.flips.get_mut(&piece.path));
            if let Some(left @ 1..) = left {
                *left -= 1;
                bytes[index] ^= 4;
            }
        }
        let block = self.source.loaded(block, all).expect("all was read");
        self.blocks.push((block, bytes));
    }

    fn store(&mut self, stores: &[Store], bytes: &[u8]) {
        let mut at = 0;
        for store in stores {
            let length = usize::try_from(store.leaf.length).expect("small");
            let piece = &bytes[at..at + length];
            at += length;
            let Some(entry) = &store.entry else {
                self.target.stored(store.number, store.leaf, Stored::Passed);
                continue;
            };
            let (path, Kind::File(id)) = (PathId::of(&entry.path), &entry.kind) else { panic!() };
            let stored = if store.whole.is_some() {
                if hash(piece) == store.leaf.hash {
                    self.disk.files.insert(entry.path.clone(), piece.to_vec());
                    self.disk.record(&Record::Whole { path, id: *id, target: *id });
                    Stored::Installed(None)
                } else {
                    Stored::Damaged
                }
            } else {
                let size = usize::try_from(id.size).expect("small");
                let is_new = !self.disk.temporary.contains_key(&path);
                if is_new {
                    self.disk.record(&Record::File { path, id: *id });
                }
                let temporary = self.disk.temporary.entry(path).or_insert_with(|| vec![0; size]);
                temporary[place(&store.leaf)].copy_from_slice(piece);
                self.disk.record(&Record::Piece { path, leaf: store.leaf });
                Stored::Written
            };
            self.target.stored(store.number, store.leaf, stored);
        }
        self.target.freed();
    }

    fn task(&mut self, task: Task) {
        match task {
            Task::Shortcut(entry) => self.target.made(&entry, Made::NoShortWay),
            Task::Check { entry, kept } => {
                let path = PathId::of(&entry.path);
                let checked = match kept {
                    Kept::Whole { .. } if self.disk.files.contains_key(&entry.path) => {
                        Checked::Whole
                    }
                    Kept::Whole { .. } => Checked::Nothing,
                    Kept::Pieces { leaves, .. } => Checked::Pieces(
                        leaves.into_iter().filter(|leaf| self.disk.is_sound(path, leaf)).collect(),
                    ),
                };
                self.target.checked(entry.number, checked);
            }
            Task::Finish { entry, leaves } => {
                let path = PathId::of(&entry.path);
                let Kind::File(id) = entry.kind else { panic!() };
                self.disk
                    .temporary
                    .entry(path)
                    .or_insert_with(|| vec![0; usize::try_from(id.size).expect("small")]);
                let damaged: Vec<Leaf> =
                    leaves.iter().filter(|leaf| !self.disk.is_sound(path, leaf)).copied().collect();
                let finished = if damaged.is_empty() {
                    let mut bytes = self.disk.temporary.remove(&path).expect("it is there");
                    // Bytes in no piece are a hole.
                    let mut at = 0;
                    for leaf in leaves.iter().map(place) {
                        bytes[at..leaf.start.max(at)].fill(0);
                        at = at.max(leaf.end);
                    }
                    bytes[at..].fill(0);
                    self.disk.files.insert(entry.path.clone(), bytes);
                    self.disk.record(&Record::Whole { path, id, target: id });
                    Finished::Installed(None)
                } else {
                    Finished::Damaged(damaged)
                };
                self.target.finished(entry.number, finished);
            }
            Task::Sync => self.target.synced(Ok(())),
            task => panic!("there are files alone: {task:?}"),
        }
    }
}

/// A message as it is after its way.
fn carried(message: Message) -> Message {
    let bytes = Frame::Message(message).bytes();
    match Frame::parse(&bytes) {
        Ok(Some((Frame::Message(message), length))) if length == bytes.len() => message,
        other => panic!("{other:?}"),
    }
}

/// Ranges of blocks that are not zeros.
fn extents(bytes: &[u8]) -> Vec<Range> {
    let blocks = bytes.chunks(512).enumerate();
    let data = blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
    data.map(|(index, block)| {
        let start = index as u64 * 512;
        Range { start, end: start + block.len() as u64 }
    })
    .collect()
}

fn files(random: &mut ChaCha8Rng) -> Files {
    let count = random.random_range(1..30);
    let one = |index| {
        let size = match random.random_range(0..4) {
            0 => 0,
            1 => random.random_range(1..1_500),
            2 => random.random_range(1_000..9_000),
            _ => random.random_range(9_000..60_000),
        };
        let mut bytes = vec![0; size];
        random.fill(&mut bytes[..]);
        // Holes.
        for hole in bytes.chunks_mut(3_000).skip(1).step_by(2) {
            hole.fill(0);
        }
        (TreePath::new(format!("top/{index}")).expect("a path"), bytes)
    };
    (0..count).map(one).collect()
}

/// Runs with cuts until a transfer ends. Returns the bytes that were sent beyond what was needed.
fn run(seed: u64, cuts: u32, flips: bool) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let source = files(&mut random);
    let mut disk = Disk::default();
    let mut sent = 0;
    for round in 0..=u64::from(cuts) {
        let steps = if round == u64::from(cuts) { 200_000 } else { random.random_range(0..2_000) };
        let mut world = World::new(seed * 1_000 + round, &source, &mut disk, flips);
        let mut is_over = false;
        for _ in 0..steps {
            if !world.step() {
                is_over = true;
                break;
            }
        }
        sent += world.sent;
        if is_over {
            let summary = world.summary.expect("it is over");
            assert_eq!((summary.troubled, summary.files), (0, source.len() as u64), "seed {seed}");
            assert!(world.target.is_over() && disk.files == source, "seed {seed}");
            let all: usize = source.values().map(Vec::len).sum();
            return sent.saturating_sub(all as u64);
        }
        // Whatever was under its name was whole.
        for (path, bytes) in &disk.files {
            assert!(*bytes == source[path], "seed {seed}: {path} is not whole");
        }
        // The journal ends anywhere, and what lies on the disk may be damaged.
        if flips && random.random_bool(0.5) {
            let keep = random.random_range(0..=disk.journal.len());
            disk.journal.truncate(keep);
        }
        if flips && !disk.journal.is_empty() && random.random_bool(0.3) {
            let index = random.random_range(0..disk.journal.len());
            disk.journal[index] ^= 1 << random.random_range(0..8);
        }
        for bytes in disk.temporary.values_mut() {
            if flips && random.random_bool(0.3) {
                let index = random.random_range(0..bytes.len());
                bytes[index] ^= 32;
            }
        }
    }
    panic!("seed {seed}: the transfer does not end");
}

/// How many runs each test makes: 150, or `WEFT_SEEDS`.
fn seeds() -> u64 {
    std::env::var("WEFT_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(150)
}

#[test]
fn trees_arrive_in_whatever_order_things_end() {
    for seed in 0..seeds() {
        assert!(run(seed, 0, false) == 0, "nothing is sent twice");
    }
}

#[test]
fn a_transfer_that_is_cut_at_any_step_goes_on() {
    for seed in 0..seeds() {
        run(seed, 3, false);
    }
}

#[test]
fn damage_of_blocks_files_and_journals_is_found_and_repaired() {
    for seed in 1_000..1_000 + seeds() {
        run(seed, 2, true);
    }
}

#[test]
fn damage_that_does_not_end_is_told() {
    let entry = |number| weft_transfer::Entry {
        number,
        path: TreePath::new("top").expect("a path"),
        metadata: Metadata::default(),
        kind: Kind::File(FileId { size: 10, ..FileId::default() }),
    };
    let mut target = Target::new(
        TargetOptions::default(),
        Limits::default(),
        Window::new(64, 64),
        HashMap::new(),
    );
    target.begin();
    target.message(Message::Entries(vec![entry(0)])).expect("no offence");
    let leaf = Leaf { offset: 0, length: 10, hash: 5 };
    let segment = weft_transfer::Segment { number: 0, leaf, whole: Some(Steadiness::Same) };
    let block = Block { is_last_credit: false, segments: vec![segment] };
    let mut rounds = 0;
    let trouble = loop {
        let stores = target.block(&block).expect("no offence");
        let stored = if stores[0].entry.is_some() { Stored::Damaged } else { Stored::Passed };
        target.stored(0, leaf, stored);
        target.freed();
        rounds += 1;
        let messages = std::iter::from_fn(|| target.poll_message());
        let trouble = messages.filter_map(|message| match message {
            Message::Trouble(trouble) => Some(trouble),
            _ => None,
        });
        if let Some(trouble) = trouble.last() {
            break trouble;
        }
        assert!(rounds < 10, "it does not end");
    };
    assert_eq!(trouble.code, Code::Verification);
}
