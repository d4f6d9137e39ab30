//! The loop of the end that reads: the machine of the source, its walk and its readers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_transfer::{
    Block, BlockNumber, Code, Job, Kind, Limits, Loaded, Message, Range, Source, SourceEvent,
    Steadiness, Summary, Terms,
};

use crate::error::CopyError;
use crate::inbox::Inbox;
use crate::link::{Incoming, Outlet};
use crate::near::Machine;
use crate::reading::{Reader, Reading};
use crate::report::{Gauge, Reporter};
use crate::space::{Space, Supply};
use crate::tops::Tops;
use crate::walk::{Found, Walk, walk};
use crate::workers::Workers;

/// How long a loop waits for anything before it looks whether it shall stop.
const LOOK: Duration = Duration::from_millis(100);

/// Events of the loop.
#[derive(Debug)]
pub(crate) enum Input {
    Incoming(Incoming),
    Found(Box<Found>),
    Mapped(u64, Result<(Vec<Range>, Option<u64>), (Code, String)>),
    Loaded(BlockNumber, Vec<Loaded>, Space),
    Closed(u64, Steadiness),
}

impl From<Incoming> for Input {
    fn from(incoming: Incoming) -> Self {
        Self::Incoming(incoming)
    }
}

/// The sources of the end, and how it reads them.
pub(crate) struct SourceEnd {
    pub tops: Arc<Tops>,
    pub walk: Walk,
    pub terms: Terms,
    pub identity: u128,
    pub readers: usize,
    /// Memory of blocks that are loaded and have not left.
    pub supply: Supply,
    pub inbox: Arc<Inbox<Input>>,
    pub outlet: Arc<dyn Outlet>,
    pub reporter: Arc<dyn Reporter>,
    pub gauge: Arc<Gauge>,
    /// Whether this end counts the bytes that move; one end of a process does.
    pub counts: bool,
}

/// Tells the other end why this one gives up.
pub(crate) fn tell_why(outlet: &dyn Outlet, error: &CopyError) {
    let text = match error {
        // The other end said so, or is not there.
        CopyError::Refused(_) | CopyError::Lost(_) => return,
        error => error.to_string(),
    };
    outlet.message(Message::Refused { text });
}

/// A job with the buffer for it.
enum Work {
    Plain(Job),
    Load(BlockNumber, Vec<weft_transfer::Piece>, Space),
}

struct Running<'a> {
    end: &'a SourceEnd,
    machine: Source,
    readers: Workers<Work>,
    space: Option<Space>,
}

impl SourceEnd {
    /// Runs the transfer to its end.
    pub fn run(&self) -> Result<Summary, CopyError> {
        let result = self.run_inside();
        if let Err(error) = &result {
            tell_why(&*self.outlet, error);
        }
        self.inbox.close();
        self.gauge.done.get_or_init(Instant::now);
        self.outlet.finish();
        result
    }

    fn run_inside(&self) -> Result<Summary, CopyError> {
        self.outlet.message(Message::Begin { identity: self.identity, tops: self.tops.word() });
        let early = self.await_ready()?;
        self.gauge.ready.get_or_init(Instant::now);
        let reading = Arc::new(Reading {
            tops: Arc::clone(&self.tops),
            is_direct: self.terms.is_direct,
            pace: crate::pace::Pace::new(self.terms.bytes_per_second),
            gauge: Arc::clone(&self.gauge),
        });
        let readers = self.start_readers(&reading)?;
        let walker = self.start_walk()?;
        let machine = Source::new(self.terms.block_bytes, Limits::default());
        let running = Running { end: self, machine, readers, space: None };
        let result = running.run(&reading, early);
        self.inbox.close();
        // The walk sees the closed inbox at its next entry.
        let _ = walker.join();
        result
    }

    /// Waits until the target is ready. What came behind that is returned.
    fn await_ready(&self) -> Result<Vec<Input>, CopyError> {
        let mut inputs = Vec::new();
        loop {
            self.inbox.take(&mut inputs, 0, LOOK);
            if self.gauge.stops() {
                return Err(CopyError::Stopped);
            }
            let mut came = inputs.drain(..);
            while let Some(input) = came.next() {
                match input {
                    Input::Incoming(Incoming::Message(Message::Ready)) => return Ok(came.collect()),
                    Input::Incoming(Incoming::Message(Message::Refused { text })) => {
                        return Err(CopyError::Refused(text));
                    }
                    Input::Incoming(Incoming::Message(Message::Alive) | Incoming::Sent) => {}
                    Input::Incoming(Incoming::Lost(why)) => return Err(CopyError::Lost(why)),
                    _ => return Err(weft_transfer::Offence("something before it is ready").into()),
                }
            }
        }
    }

    fn start_readers(&self, reading: &Arc<Reading>) -> Result<Workers<Work>, CopyError> {
        let make = || {
            let (reading, inbox) = (Arc::clone(reading), Arc::clone(&self.inbox));
            let mut reader = Reader::default();
            move |work| {
                inbox.tell(match work {
                    Work::Load(block, pieces, mut space) => {
                        let load = || reader.load(&reading, &pieces, &mut space);
                        let loaded = reading.gauge.loading.time(load);
                        Input::Loaded(block, loaded, space)
                    }
                    Work::Plain(Job::Map { number, path, id, from }) => {
                        Input::Mapped(number, reader.map(&reading, &path, &id, from))
                    }
                    Work::Plain(Job::Close { number, path, id }) => {
                        Input::Closed(number, reader.close(&reading, &path, &id))
                    }
                    Work::Plain(Job::Load { .. }) => unreachable!("it comes with memory"),
                });
            }
        };
        let near = Machine::own().and_then(|machine| {
            machine.near_files(self.tops.0.iter().map(|top| &**top.root.top()))
        });
        self.gauge.loading.stays(near.as_ref());
        Workers::start("weft-read", (self.readers, near.as_ref()), make)
            .map_err(|why| CopyError::system("threads cannot be started", &why))
    }

    fn start_walk(&self) -> Result<std::thread::JoinHandle<()>, CopyError> {
        let (tops, how) = (Arc::clone(&self.tops), self.walk.clone());
        let (inbox, gauge) = (Arc::clone(&self.inbox), Arc::clone(&self.gauge));
        let thread = std::thread::Builder::new().name("weft-walk".to_owned());
        let walker = thread.spawn(move || {
            walk(&tops, &how, &mut |found| {
                match &found {
                    Found::Entry { kind: Kind::File(id), .. } => {
                        Gauge::add(&gauge.files_found, 1);
                        Gauge::add(&gauge.bytes_found, id.size);
                    }
                    Found::End => gauge.is_walked.store(true, Ordering::Relaxed),
                    _ => {}
                }
                inbox.find(Input::Found(Box::new(found)))
            });
        });
        walker.map_err(|why| CopyError::system("threads cannot be started", &why))
    }
}

impl Running<'_> {
    fn run(mut self, reading: &Reading, early: Vec<Input>) -> Result<Summary, CopyError> {
        let result = self.turn_until_over(early);
        reading.pace.stop();
        result
    }

    fn turn_until_over(&mut self, early: Vec<Input>) -> Result<Summary, CopyError> {
        for input in early {
            self.take_in(input)?;
        }
        let mut inputs = Vec::new();
        loop {
            if let Some(summary) = self.put_out() {
                return Ok(summary);
            }
            let takes_walk = self.machine.room().min(256);
            self.end.inbox.take(&mut inputs, takes_walk, LOOK);
            if self.end.gauge.stops() {
                return Err(CopyError::Stopped);
            }
            for input in inputs.drain(..) {
                self.take_in(input)?;
            }
            self.machine.flush_entries();
        }
    }

    fn take_in(&mut self, input: Input) -> Result<(), CopyError> {
        match input {
            Input::Incoming(Incoming::Message(Message::Refused { text })) => {
                return Err(CopyError::Refused(text));
            }
            Input::Incoming(Incoming::Message(message)) => {
                if let Message::Ended(ended) = &message {
                    let count = ended.iter().map(|(_, count)| u64::from(*count)).sum();
                    Gauge::add(&self.end.gauge.files_over, count);
                }
                self.machine.message(message)?;
            }
            Input::Incoming(Incoming::Block(..)) => {
                return Err(weft_transfer::Offence("a block to the source").into());
            }
            Input::Incoming(Incoming::Sent) => {}
            // A target that has said that all is done hangs up.
            Input::Incoming(Incoming::Lost(_)) if self.machine.is_over() => {}
            Input::Incoming(Incoming::Lost(why)) => return Err(CopyError::Lost(why)),
            Input::Found(found) => self.found(*found),
            Input::Mapped(number, found) => self.machine.mapped(number, found),
            Input::Loaded(block, loaded, space) => {
                if let Some(block) = self.machine.loaded(block, loaded) {
                    self.send(block, space);
                }
            }
            Input::Closed(number, steadiness) => self.machine.closed(number, steadiness),
        }
        Ok(())
    }

    fn send(&mut self, block: Block, space: Space) {
        if self.end.counts {
            Gauge::add(&self.end.gauge.bytes_moved, block.payload());
        }
        // A message that was made before must not come behind it.
        while let Some(message) = self.machine.poll_message() {
            self.end.outlet.message(message);
        }
        self.end.outlet.block(block, space);
    }

    fn found(&mut self, found: Found) {
        match found {
            Found::Entry { path, metadata, kind, is_sparse } => {
                self.machine.entry(path, metadata, kind, is_sparse);
            }
            Found::DirectoryEnd { path, is_complete } => {
                if self.end.terms.deletes {
                    self.machine.directory_end(path, is_complete);
                }
            }
            Found::Trouble { path, code, text } => self.machine.walk_trouble(path, code, text),
            Found::End => self.machine.walk_end(),
        }
    }

    /// Passes on what the machine has. The summary, when the transfer is over.
    fn put_out(&mut self) -> Option<Summary> {
        while let Some(message) = self.machine.poll_message() {
            self.end.outlet.message(message);
        }
        loop {
            if self.space.is_none() {
                self.space = self.end.supply.take();
            }
            match self.machine.poll_job(self.space.is_some()) {
                Some(Job::Load { block, pieces }) => {
                    let space = self.space.take().expect("the machine was told of it");
                    self.readers.give(Work::Load(block, pieces, space));
                }
                Some(job) => self.readers.give(Work::Plain(job)),
                None => break,
            }
        }
        let mut over = None;
        while let Some(event) = self.machine.poll_event() {
            match event {
                SourceEvent::Trouble(trouble) => self.end.reporter.trouble(&trouble),
                SourceEvent::Would(text) => self.end.reporter.would(&text),
                SourceEvent::Over(summary) => over = Some(summary),
            }
        }
        over
    }
}
