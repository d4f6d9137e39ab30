//! One connection that carries frames: its two halves, and the threads that read and write them.
//!
//! A writer takes from a queue and never holds a loop up; the queue is bounded by the protocol. A
//! writer without work says that it lives, so a reader that hears nothing for long knows that the
//! other end, or the way, is gone.

use std::collections::VecDeque;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use weft_file_io::Pool;
use weft_transfer::{Block, Frame, HEAD_BYTES, Head, Message};

use crate::error::CopyError;
use crate::link::{Incoming, Listener, Outlet};
use crate::space::Space;

/// How often a writer without work says that it lives.
pub(crate) const ALIVE: Duration = Duration::from_secs(10);
/// After how long without a byte the other end is given up.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// Bytes that are read ahead of frames.
const AHEAD_BYTES: usize = 32 << 10;
/// Most bytes of messages that leave in one call.
const GATHERED_BYTES: usize = 256 << 10;
/// How long what comes is taken and dropped, after this end has ended.
const DRAIN: Duration = Duration::from_secs(5);
/// How long the end of a further connection waits for that of the first.
const AFTER_THE_FIRST: Duration = Duration::from_secs(1);
/// How long a reader waits for a buffer. One is free whenever the other end keeps to its credits.
const BUFFER_WITHIN: Duration = Duration::from_secs(60);

/// A half of a connection that is read.
pub(crate) type ReadHalf = BufReader<Box<dyn Read + Send>>;
/// A half of a connection that is written.
pub(crate) type WriteHalf = Box<dyn Write + Send>;

/// A connection.
pub(crate) struct Channel {
    pub reader: ReadHalf,
    pub writer: WriteHalf,
}

impl Channel {
    pub fn new(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Self {
        let reader = BufReader::with_capacity(AHEAD_BYTES, Box::new(reader) as Box<_>);
        Self { reader, writer: Box::new(writer) }
    }

    /// Sends a message, before there are threads.
    pub fn say(&mut self, message: Message) -> Result<(), CopyError> {
        say_to(&mut self.writer, message)
    }

    /// Receives a message, before there are threads.
    pub fn hear(&mut self) -> Result<Message, CopyError> {
        hear_from(&mut self.reader)
    }
}

/// Sends a message.
pub(crate) fn say_to(writer: &mut WriteHalf, message: Message) -> Result<(), CopyError> {
    let bytes = Frame::Message(message).bytes();
    let sent = writer.write_all(&bytes).and_then(|()| writer.flush());
    sent.map_err(|why| CopyError::Lost(why.to_string()))
}

/// Receives a message. Signs of life are none.
pub(crate) fn hear_from(reader: &mut ReadHalf) -> Result<Message, CopyError> {
    loop {
        match read_frame(reader)? {
            Frame::Message(Message::Alive) => {}
            Frame::Message(message) => return Ok(message),
            Frame::Block(_) => return Err(weft_transfer::Offence("a block too early").into()),
        }
    }
}

fn read_frame(reader: &mut ReadHalf) -> Result<Frame, CopyError> {
    let lost = |why: io::Error| match why.kind() {
        io::ErrorKind::UnexpectedEof => CopyError::Lost("the other end has ended".to_owned()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            CopyError::Lost(format!("nothing came for {} s", SILENCE.as_secs()))
        }
        _ => CopyError::Lost(why.to_string()),
    };
    let mut head = [0; HEAD_BYTES];
    reader.read_exact(&mut head).map_err(lost)?;
    let head = Head::parse(&head)?;
    let mut body = vec![0; head.length];
    reader.read_exact(&mut body).map_err(lost)?;
    Ok(head.frame(&body)?)
}

enum Out {
    Message(Message),
    Block(Block, Space),
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Out>,
    blocks: usize,
    is_finished: bool,
    is_broken: bool,
}

#[derive(Default)]
struct Sender {
    queue: Mutex<Queue>,
    came: Condvar,
}

impl Sender {
    fn push(&self, item: Out) {
        let mut queue = self.queue.lock();
        if queue.is_broken {
            return;
        }
        queue.blocks += usize::from(matches!(item, Out::Block(..)));
        queue.items.push_back(item);
        drop(queue);
        self.came.notify_one();
    }

    /// The next items to leave: messages together, or a block. `None` at the end.
    fn next(&self) -> Option<(Vec<u8>, Option<Space>, usize)> {
        let mut queue = self.queue.lock();
        while queue.items.is_empty() {
            if queue.is_finished {
                return None;
            }
            if self.came.wait_for(&mut queue, ALIVE).timed_out() && queue.items.is_empty() {
                return Some((Frame::Message(Message::Alive).bytes(), None, 0));
            }
        }
        let mut bytes = Vec::new();
        while bytes.len() < GATHERED_BYTES {
            match queue.items.pop_front() {
                Some(Out::Message(message)) => {
                    bytes.extend_from_slice(&Frame::Message(message).bytes());
                }
                Some(Out::Block(block, space)) => {
                    queue.blocks -= 1;
                    let payload = usize::try_from(block.payload()).expect("it fits a buffer");
                    bytes.extend_from_slice(&Frame::Block(block).bytes());
                    return Some((bytes, Some(space), payload));
                }
                None => break,
            }
        }
        Some((bytes, None, 0))
    }

    fn run(&self, mut writer: WriteHalf, listener: &dyn Listener) {
        while let Some((head, mut space, payload)) = self.next() {
            let payload = match &space {
                Some(Space::Own(buffer)) => &buffer[..payload],
                Some(Space::Lent(_)) => unreachable!("its supply has memory of this process"),
                None => &[],
            };
            if write_both(&mut writer, &head, payload).is_err() {
                // The reader of the connection tells why.
                let mut queue = self.queue.lock();
                queue.is_broken = true;
                queue.items.clear();
                return;
            }
            if space.take().is_some() {
                // The loop may wait for a buffer.
                listener.hear(Incoming::Sent);
            }
        }
    }
}

fn write_both(writer: &mut WriteHalf, head: &[u8], payload: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(head), IoSlice::new(payload)];
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match writer.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut left, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    writer.flush()
}

/// The connections of a transfer: the first carries messages, all carry blocks.
pub(crate) struct Connections {
    senders: Vec<Arc<Sender>>,
    writers: Mutex<Vec<JoinHandle<()>>>,
}

impl Connections {
    /// Starts the threads. What comes is told to `listener`; blocks are read into buffers of `pool`
    /// if this end takes blocks.
    pub fn start(
        channels: Vec<Channel>,
        listener: &Arc<dyn Listener>,
        pool: Option<&Pool>,
    ) -> Result<Self, CopyError> {
        let started = |why| CopyError::system("threads cannot be started", &why);
        let (mut senders, mut writers) = (Vec::new(), Vec::new());
        for (number, channel) in channels.into_iter().enumerate() {
            let Channel { mut reader, writer } = channel;
            let sender = Arc::new(Sender::default());
            senders.push(Arc::clone(&sender));
            let thread = std::thread::Builder::new().name("weft-send".to_owned());
            let hears = Arc::clone(listener);
            let writer = thread.spawn(move || sender.run(writer, &*hears)).map_err(started)?;
            writers.push(writer);
            let (listener, pool) = (Arc::clone(listener), pool.cloned());
            let thread = std::thread::Builder::new().name("weft-receive".to_owned());
            let receiver = thread.spawn(move || {
                let why = match receive(&mut reader, &*listener, pool.as_ref()) {
                    Ok(()) => return,
                    Err(CopyError::Lost(why)) => why,
                    Err(error) => error.to_string(),
                };
                if number > 0 {
                    // At the end all are closed, and what the first carried last comes first.
                    std::thread::sleep(AFTER_THE_FIRST);
                }
                listener.hear(Incoming::Lost(why));
            });
            // It ends with the connection, or with its loop, and holds nothing.
            drop(receiver.map_err(started)?);
        }
        Ok(Self { senders, writers: Mutex::new(writers) })
    }
}

/// Reads frames until the loop has ended.
fn receive(
    reader: &mut ReadHalf,
    listener: &dyn Listener,
    pool: Option<&Pool>,
) -> Result<(), CopyError> {
    loop {
        let incoming = match read_frame(reader)? {
            Frame::Message(Message::Alive) => continue,
            Frame::Message(message) => Incoming::Message(message),
            Frame::Block(block) => {
                let Some(pool) = pool else {
                    return Err(weft_transfer::Offence("a block to the source").into());
                };
                let payload = usize::try_from(block.payload()).unwrap_or(usize::MAX);
                if payload > pool.buffer_bytes() {
                    return Err(weft_transfer::Offence("a block that is too long").into());
                }
                let since = Instant::now();
                let mut buffer = loop {
                    if let Some(buffer) = pool.take_within(BUFFER_WITHIN) {
                        break buffer;
                    }
                    if since.elapsed() >= BUFFER_WITHIN {
                        return Err(weft_transfer::Offence("a block that was not granted").into());
                    }
                };
                let read = reader.read_exact(&mut buffer[..payload]);
                read.map_err(|why| CopyError::Lost(why.to_string()))?;
                Incoming::Block(block, Space::Own(buffer))
            }
        };
        if !listener.hear(incoming) {
            drain(reader);
            return Ok(());
        }
    }
}

/// Takes what the other end still sends for a while. A connection that is closed with bytes
/// unread is reset, and what was said last, such as why it ends, would be lost.
fn drain(reader: &mut ReadHalf) {
    let until = Instant::now() + DRAIN;
    let mut space = vec![0; AHEAD_BYTES];
    while Instant::now() < until && reader.read(&mut space).is_ok_and(|count| count > 0) {}
}

impl Outlet for Connections {
    fn message(&self, message: Message) {
        self.senders[0].push(Out::Message(message));
    }

    fn block(&self, block: Block, space: Space) {
        let least = self.senders.iter().min_by_key(|sender| sender.queue.lock().blocks);
        least.expect("there is a connection").push(Out::Block(block, space));
    }

    fn finish(&self) {
        for sender in &self.senders {
            sender.queue.lock().is_finished = true;
            sender.came.notify_all();
        }
        for writer in self.writers.lock().drain(..) {
            // A writer that panicked has told so by itself.
            let _ = writer.join();
        }
    }
}
