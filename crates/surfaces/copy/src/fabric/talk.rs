//! One session at its hub: what goes out in order, and what comes in.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};

use weft_fabric::{Access, Endpoint, HostMemory, LocalRange, OperationError, Source};
use weft_layers::LayeredWindow;
use weft_memory::{Memory, Segment};
use weft_open::AnyEndpoint;
use weft_session::{BlockError, BlockId, PoolId, RequestError, SessionId, Sessions, Shape};
use weft_transfer::{BLOCK_FRAME_BYTES_MAX, Frame, Message, Offence};

use super::LENGTH_BYTES;
use super::hub::{Came, Post};
use super::lease::{BlockMemory, FabricRegion, Idle, Lease};
use crate::error::CopyError;
use crate::link::{Heard, Incoming, Listener};
use crate::space::Space;

/// Most bytes of messages in one request, unless one message is longer.
const GATHERED_BYTES: usize = 256 << 10;
/// Messages that may come before the loop of an end begins.
const EARLY_MAX: usize = 64;

/// The rights of the reading end: it hashes what the kernel has read into a block.
const ACCESS: Access = Access::READ.union(Access::WRITE);

type FabricSessions = Sessions<AnyEndpoint>;

/// The messages that are heard before the loop of an end begins.
pub(crate) type Early = mpsc::Receiver<Result<Message, CopyError>>;

/// The hearer of all that comes.
pub(crate) enum Ear {
    /// The conversation before the transfer.
    Early(mpsc::SyncSender<Result<Message, CopyError>>),
    /// The loop of an end.
    Loop(Arc<dyn Listener>),
    /// Nobody any more.
    Deaf,
}

impl std::fmt::Debug for Ear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Early(_) => "Early",
            Self::Loop(_) => "Loop",
            Self::Deaf => "Deaf",
        })
    }
}

impl Ear {
    /// One for the conversation before the transfer, and where that hears it.
    pub fn early() -> (Self, Early) {
        let (send, heard) = mpsc::sync_channel(EARLY_MAX);
        (Self::Early(send), heard)
    }

    fn hear(&mut self, incoming: Incoming) -> Heard {
        let heard = match self {
            Self::Loop(listener) => listener.hear_at_once(incoming),
            Self::Early(to) => {
                let sent = match incoming {
                    Incoming::Message(message) => to.try_send(Ok(message)),
                    Incoming::Lost(why) => to.try_send(Err(CopyError::Lost(why))),
                    Incoming::Sent => Ok(()),
                    Incoming::Block(..) => to.try_send(Err(Offence("a block too early").into())),
                };
                // A peer that says so much before the transfer is not listened to.
                if sent.is_ok() { Heard::InTime } else { Heard::ByNobody }
            }
            Self::Deaf => Heard::ByNobody,
        };
        if heard == Heard::ByNobody {
            *self = Self::Deaf;
        }
        heard
    }

    /// Hears what came before.
    pub fn catch_up(&mut self, early: &Early) {
        for heard in early.try_iter() {
            self.hear(match heard {
                Ok(message) => Incoming::Message(message),
                Err(why) => Incoming::Lost(why.to_string()),
            });
        }
    }

    /// The session is over.
    pub fn lost(mut self, why: String) {
        self.hear(Incoming::Lost(why));
    }
}

/// Something that is to be sent.
#[derive(Debug)]
pub(crate) enum Out {
    /// Frames of messages.
    Messages(Vec<u8>),
    /// A block: its bytes, with its frame if that is behind them, and the head.
    Block(Lease, u32, Vec<u8>),
}

/// The part of this end in a transfer.
#[derive(Debug)]
pub(crate) enum Part {
    /// It fills blocks.
    Source(Wish),
    /// It grants so many blocks of this size.
    Target { stride: u32, blocks: u32 },
}

/// The blocks that a reading end wants.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Bytes from one to the next.
    pub stride: u32,
    /// How many it uses at most.
    pub blocks: u32,
    /// Where they are left when they are there.
    pub idle: Arc<Idle>,
    /// Told whether they lie in memory that both ends have mapped.
    pub way: mpsc::Sender<bool>,
}

/// The state of the pool.
#[derive(Debug)]
enum Blocks {
    /// Nothing is known yet.
    None,
    /// The other end granted it before this one asked for it.
    Granted(PoolId, Shape),
    /// This end fills blocks, and waits for the other one to grant the pool.
    Awaited(Wish),
    /// It was granted, and is not reached yet.
    Reaching(Wish, PoolId, Shape),
    /// This end fills blocks of the pool.
    Filled(PoolId, Arc<Idle>),
    /// This end granted it.
    Own(FabricRegion, u32),
}

/// A session.
#[derive(Debug)]
pub(super) struct Talk {
    ear: Ear,
    out: VecDeque<Out>,
    /// Requests of this end without an answer.
    asked: usize,
    /// Puts of this end that have not ended.
    moving: usize,
    /// Requests of the other end that are answered when the loop has caught up.
    unanswered: Vec<u32>,
    blocks: Blocks,
    finishing: Option<mpsc::Sender<()>>,
}

impl Talk {
    pub fn new(ear: Ear) -> Self {
        Self {
            ear,
            out: VecDeque::new(),
            asked: 0,
            moving: 0,
            unanswered: Vec::new(),
            blocks: Blocks::None,
            finishing: None,
        }
    }

    /// Messages behind messages leave together.
    pub fn send(&mut self, out: Out) {
        if let (Some(Out::Messages(last)), Out::Messages(next)) = (self.out.back_mut(), &out)
            && last.len() + next.len() <= GATHERED_BYTES
        {
            last.extend_from_slice(next);
            return;
        }
        self.out.push_back(out);
    }

    pub fn finish(&mut self, done: mpsc::Sender<()>) {
        self.finishing = Some(done);
    }

    /// The loop of this end begins.
    pub fn begin(&mut self, id: SessionId, part: Part, ear: Ear, sessions: &mut FabricSessions) {
        self.ear = ear;
        match part {
            Part::Target { stride, blocks } => {
                if let Err(why) = self.grant(id, stride, blocks, sessions) {
                    self.give_up(id, &why, sessions);
                }
            }
            Part::Source(wish) => {
                let was = std::mem::replace(&mut self.blocks, Blocks::Awaited(wish));
                if let Blocks::Granted(pool, shape) = was {
                    self.granted(id, pool, shape, sessions);
                }
            }
        }
    }

    fn grant(
        &mut self,
        id: SessionId,
        stride: u32,
        blocks: u32,
        sessions: &mut FabricSessions,
    ) -> Result<(), String> {
        let length = u64::from(stride) * u64::from(blocks);
        let length = usize::try_from(length).map_err(|why| why.to_string())?;
        // Nothing but this session uses the memory, so it need not move at the end, when the other
        // end may not write to it any more. A move would copy all of it.
        let file = Segment::create_file("weft-blocks", length).map_err(|why| why.to_string())?;
        let memory = Memory::from_descriptor(file.as_fd()).map_err(|why| why.to_string())?;
        let region = sessions.endpoint().register_memory(&memory);
        let region = region.map_err(|why| why.to_string())?;
        let lent = sessions.lend(id, LocalRange::whole(&region), stride, ACCESS);
        lent.map_err(|why| why.to_string())?;
        self.blocks = Blocks::Own(region, stride);
        Ok(())
    }

    /// The other end granted its pool.
    fn granted(
        &mut self,
        id: SessionId,
        pool: PoolId,
        shape: Shape,
        sessions: &mut FabricSessions,
    ) {
        match std::mem::replace(&mut self.blocks, Blocks::None) {
            Blocks::None => self.blocks = Blocks::Granted(pool, shape),
            Blocks::Awaited(wish) if shape.block_bytes == wish.stride && shape.access == ACCESS => {
                self.blocks = Blocks::Reaching(wish, pool, shape);
                self.reach(id, sessions);
            }
            Blocks::Awaited(_) => {
                self.give_up(id, "the other end granted blocks of another form", sessions);
            }
            _ => self.give_up(id, "the other end granted a second pool", sessions),
        }
    }

    /// Opens the pool of the other end. It may take some time to be reached.
    fn reach(&mut self, id: SessionId, sessions: &mut FabricSessions) {
        let Blocks::Reaching(wish, pool, shape) = &self.blocks else { return };
        let (pool, count) = (*pool, shape.blocks.min(wish.blocks));
        let memory = match sessions.window(id, pool) {
            Err(BlockError::Operation(OperationError::WouldBlock)) => return,
            Ok(LayeredWindow::Near(window)) => Ok(BlockMemory::Window(Arc::new(window))),
            // Libfabric puts from memory of this end.
            _ => {
                let length = u64::from(wish.stride) * u64::from(count);
                sessions.endpoint().register(length).map(BlockMemory::Region)
            }
        };
        match memory {
            Ok(memory) => {
                // Nobody may want to know.
                let _ = wish.way.send(matches!(memory, BlockMemory::Window(_)));
                wish.idle.set(memory, wish.stride);
                self.blocks = Blocks::Filled(pool, Arc::clone(&wish.idle));
                self.take_blocks(id, count, sessions);
            }
            Err(why) => self.give_up(id, &why.to_string(), sessions),
        }
    }

    /// Takes the blocks that are free. Those with higher numbers than this end uses are taken once,
    /// and left.
    fn take_blocks(&mut self, id: SessionId, count: u32, sessions: &mut FabricSessions) {
        let Blocks::Filled(pool, idle) = &self.blocks else { return };
        let mut has_some = false;
        while let Ok(Some(block)) = sessions.take(id, *pool) {
            if block.place < count {
                idle.add(block.place);
                has_some = true;
            }
        }
        if has_some {
            self.ear.hear(Incoming::Sent);
        }
    }

    fn give_up(&mut self, id: SessionId, why: &str, sessions: &mut FabricSessions) {
        self.ear.hear(Incoming::Lost(why.to_owned()));
        sessions.end(id, 1, why);
    }

    /// A block cannot be moved. Where the other end took its memory back, or is gone, the end of
    /// the session says why.
    fn failed(&mut self, id: SessionId, error: &OperationError, sessions: &mut FabricSessions) {
        if !matches!(error, OperationError::InvalidKey | OperationError::PeerDown) {
            self.give_up(id, &error.to_string(), sessions);
        }
    }

    /// Does what can be done. True if the loop is behind.
    pub fn go_on(&mut self, id: SessionId, sessions: &mut FabricSessions) -> bool {
        self.reach(id, sessions);
        while let Some(out) = self.out.pop_front() {
            match out {
                Out::Messages(bytes) => match sessions.request(id, &[], &[&bytes], None) {
                    Ok(_) => self.asked += 1,
                    Err(RequestError::WouldBlock) => {
                        self.out.push_front(Out::Messages(bytes));
                        break;
                    }
                    // The end of the session says why.
                    Err(_) => {}
                },
                Out::Block(lease, length, head) => {
                    if let Some(lease) = self.pass(id, lease, (length, &head), sessions) {
                        self.out.push_front(Out::Block(lease, length, head));
                        break;
                    }
                }
            }
        }
        if self.finishing.is_some() && self.out.is_empty() && self.asked == 0 && self.moving == 0 {
            sessions.end(id, 0, "");
        }
        let is_behind = match &self.ear {
            Ear::Loop(listener) => listener.is_behind(),
            _ => false,
        };
        if !is_behind {
            for number in self.unanswered.drain(..) {
                let _ = sessions.answer(id, number, 0, &[], &[]);
            }
        }
        !self.unanswered.is_empty()
    }

    /// Passes a block. It comes back if there is no room now.
    fn pass(
        &mut self,
        id: SessionId,
        lease: Lease,
        (length, head): (u32, &[u8]),
        sessions: &mut FabricSessions,
    ) -> Option<Lease> {
        let (Blocks::Filled(pool, _), Some(place)) = (&self.blocks, lease.place()) else {
            return None;
        };
        let block = BlockId { pool: *pool, place };
        let passed = match lease.region() {
            None => sessions.pass(id, block, length, head),
            Some((region, begin)) => {
                let source = Source::Region(LocalRange::new(region, begin, u64::from(length)));
                let put = sessions.put(id, block, source, head);
                self.moving += usize::from(put.is_ok());
                put
            }
        };
        match passed {
            Ok(()) => lease.passed(),
            Err(BlockError::Operation(OperationError::WouldBlock)) => return Some(lease),
            Err(BlockError::Operation(error)) => self.failed(id, &error, sessions),
            // The end of the session says why.
            Err(_) => {}
        }
        None
    }

    /// Takes what came. What the protocol does not have ends the session.
    pub fn take_in(
        &mut self,
        id: SessionId,
        came: Came,
        sessions: &mut FabricSessions,
        post: &Arc<Post>,
    ) {
        let taken = match came {
            Came::Request(number, bytes) => {
                self.unanswered.push(number);
                self.messages(&bytes)
            }
            Came::Answer(lost) => {
                self.asked -= 1;
                // The other end had no memory for the messages of the request. Without them this
                // run would wait for ever; the same command goes on.
                if let Some(why) = lost {
                    self.give_up(id, &why, sessions);
                }
                Ok(())
            }
            Came::Pool(pool, shape) => {
                self.granted(id, pool, shape, sessions);
                Ok(())
            }
            Came::Block(block, length, head) => self.block((id, block), length, &head, post),
            Came::Moved(result) => {
                self.moving -= 1;
                if let Err(error) = result {
                    self.failed(id, &error, sessions);
                }
                Ok(())
            }
            Came::Room => {
                self.take_blocks(id, u32::MAX, sessions);
                Ok(())
            }
            Came::Hello(_) | Came::Ended(_) => unreachable!("the hub takes these"),
        };
        if let Err(why) = taken {
            self.give_up(id, &why.to_string(), sessions);
        }
    }

    fn messages(&mut self, mut bytes: &[u8]) -> Result<(), CopyError> {
        while let Some((frame, length)) = Frame::parse(bytes)? {
            let Frame::Message(message) = frame else {
                return Err(Offence("a block among messages").into());
            };
            if !matches!(message, Message::Alive) {
                self.ear.hear(Incoming::Message(message));
            }
            bytes = &bytes[length..];
        }
        if bytes.is_empty() { Ok(()) } else { Err(Offence("a message that is cut").into()) }
    }

    /// A block with its frame. The other end can still write to the block, so a frame that lies
    /// there is copied out once.
    fn block(
        &mut self,
        (id, block): (SessionId, BlockId),
        length: u32,
        head: &[u8],
        post: &Arc<Post>,
    ) -> Result<(), CopyError> {
        let Blocks::Own(region, stride) = &self.blocks else {
            return Err(Offence("a block to the source").into());
        };
        let memory = BlockMemory::Region(region.clone());
        let lease = Lease::of_peer(memory, *stride, Arc::clone(post), id, block);
        let (payload, bytes) = match <[u8; LENGTH_BYTES]>::try_from(head) {
            Ok(frame) => behind(&lease, length, u32::from_le_bytes(frame))?,
            Err(_) => (length, head.to_vec()),
        };
        match Frame::parse(&bytes)? {
            Some((Frame::Block(block), end))
                if end == bytes.len() && block.payload() == u64::from(payload) =>
            {
                self.ear.hear(Incoming::Block(block, Space::Lent(lease)));
                Ok(())
            }
            _ => Err(Offence("a frame that does not fit its block").into()),
        }
    }

    /// The session is over.
    pub fn ended(&mut self, why: String) {
        self.ear.hear(Incoming::Lost(why));
    }
}

/// The frame of so many bytes at the end of a block, and the bytes before it.
fn behind(lease: &Lease, length: u32, frame: u32) -> Result<(u32, Vec<u8>), Offence> {
    let frame_bytes = usize::try_from(frame).unwrap_or(usize::MAX);
    let payload = length.checked_sub(frame).filter(|_| frame_bytes <= BLOCK_FRAME_BYTES_MAX);
    let payload = payload.ok_or(Offence("a frame that is longer than its block"))?;
    let bytes = lease.load(u64::from(payload), frame_bytes);
    Ok((payload, bytes.ok_or(Offence("a frame that leaves its block"))?))
}
