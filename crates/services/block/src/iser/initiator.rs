//! The initiator's side: commands to one unit, with memory that is granted once.

use std::collections::HashMap;
use std::time::Duration;

use weft_fabric::{
    Access, Endpoint, EndpointAddress, LocalRange, NodeId, Peer, Region, ServiceName, Vpid,
};
use weft_session::{
    BlockError, BlockId, End, Event, PoolId, RequestError, SessionError, SessionId, Sessions,
    bytes_of,
};

use super::{BLOCK_BYTES, BLOCKS, MOVED, PROTOCOL, Request, VERSIONS};
use crate::iscsi::initiator::text;
use crate::scsi::Port;

/// Events that are taken in one poll.
const EVENTS_MAX: usize = 64;

/// The end of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// The SCSI status.
    pub status: u8,
    /// Sense data of CHECK CONDITION.
    pub sense: Vec<u8>,
    /// The data of a read.
    pub data: Vec<u8>,
}

/// The outcome of a command; an error when its session ended before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// The tag that [`Initiator::submit`] gave it.
    pub tag: u32,
    /// How it ended.
    pub result: Result<Answered, RequestError>,
}

struct Open {
    tag: u32,
    data: Vec<u8>,
}

/// A session with one unit of a target.
pub struct Initiator<E: Endpoint> {
    sessions: Sessions<E>,
    session: SessionId,
    reads: E::Region,
    writes: E::Region,
    /// The own pool that writes are filled into, when the session is open.
    pool: Option<PoolId>,
    open: HashMap<u32, Open>,
    tag: u32,
    end: Option<End>,
    hello: Vec<u8>,
}

/// The options of a hello: keys as a login has them.
fn hello((target, lun): (&str, u64), port: &Port) -> Vec<u8> {
    let isid = port.isid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut options = Vec::new();
    text(&mut options, "InitiatorName", &port.name);
    text(&mut options, "ISID", &isid);
    text(&mut options, "TargetName", target);
    text(&mut options, "LUN", &lun.to_string());
    options
}

impl<E: Endpoint> std::fmt::Debug for Initiator<E> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Initiator({} commands)", self.open.len())
    }
}

impl<E: Endpoint> Initiator<E> {
    /// Bytes of each of the two regions of an initiator.
    pub const REGION_BYTES: u64 = BLOCKS as u64 * BLOCK_BYTES as u64;

    /// Asks a target's endpoint for a session with a unit. It is open when
    /// [`Initiator::is_open`] says so. If the endpoint names another one, [`Initiator::ask_again`]
    /// asks that.
    ///
    /// # Errors
    /// [`SessionError`].
    ///
    /// # Panics
    /// When a region is shorter than [`Initiator::REGION_BYTES`].
    pub fn connect(
        mut sessions: Sessions<E>,
        peer: Peer,
        unit: (&str, u64),
        port: &Port,
        (reads, writes): (E::Region, E::Region),
        now: Duration,
    ) -> Result<Self, SessionError> {
        assert!(reads.length() >= Self::REGION_BYTES, "a region has room for all blocks");
        assert!(writes.length() >= Self::REGION_BYTES, "a region has room for all blocks");
        let hello = hello(unit, port);
        let protocol = ServiceName::new(PROTOCOL).expect("a short name");
        let session = sessions.open(peer, protocol, &VERSIONS, &hello, now)?;
        let (pool, open, tag, end) = (None, HashMap::new(), 0, None);
        Ok(Self { sessions, session, reads, writes, pool, open, tag, end, hello })
    }

    /// The endpoint that serves the unit, when the one that was asked has named it.
    #[must_use]
    pub fn moved_to(&self) -> Option<EndpointAddress> {
        match &self.end {
            Some(End::Refused { code, text }) if *code == u32::from(MOVED) => {
                let (node, vpid) = text.split_once(':')?;
                Some(EndpointAddress::new(NodeId(node.parse().ok()?), Vpid(vpid.parse().ok()?)))
            }
            _ => None,
        }
    }

    /// Asks the endpoint that [`Initiator::moved_to`] told, which serves the unit itself.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn ask_again(&mut self, peer: Peer, now: Duration) -> Result<(), SessionError> {
        let mut hello = self.hello.clone();
        text(&mut hello, "Placed", "Yes");
        let protocol = ServiceName::new(PROTOCOL).expect("a short name");
        self.session = self.sessions.open(peer, protocol, &VERSIONS, &hello, now)?;
        self.end = None;
        Ok(())
    }

    /// The sessions, for waiting on their endpoint.
    pub fn sessions(&mut self) -> &mut Sessions<E> {
        &mut self.sessions
    }

    /// Whether commands are taken.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.pool.is_some() && self.end.is_none()
    }

    /// Why the session has ended, if it has.
    #[must_use]
    pub const fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Ends the session. Commands that are open end with an error.
    pub fn close(&mut self) {
        self.sessions.end(self.session, 0, "the initiator leaves");
    }

    /// Sends a command with its data, or one that takes at most `data_in` bytes. Returns its tag.
    /// It ends with [`RequestError::Late`] at `until`, though the target may still work on it.
    ///
    /// # Errors
    /// [`RequestError::WouldBlock`] until a command has ended; others when the session has.
    ///
    /// # Panics
    /// When there are more data than a block has.
    pub fn submit(
        &mut self,
        command: &[u8; 16],
        data: &[u8],
        data_in: u32,
        until: Option<Duration>,
    ) -> Result<u32, RequestError> {
        assert!(data.len() <= BLOCK_BYTES as usize, "data fit into a block");
        assert!(data_in <= BLOCK_BYTES, "data fit into a block");
        let pool = self.pool.ok_or(RequestError::Session(SessionError::NotOpen))?;
        let tag = self.tag;
        let length = u32::try_from(data.len()).expect("it fits a block");
        let block = if data.is_empty() { None } else { Some(self.fill(pool, data)?) };
        let request = Request { tag, data_out: length, data_in, command: *command };
        let asked = self.sessions.request(self.session, &request.encode(), &[], until);
        let number = match (asked, block) {
            (Ok(number), _) => number,
            (Err(error), Some(block)) => {
                // Nobody knows of the block yet.
                let _ = self.sessions.free(self.session, block);
                return Err(error);
            }
            (Err(error), None) => return Err(error),
        };
        self.tag = tag.wrapping_add(1);
        if let Some(block) = block {
            // A session that has ended tells the end of the request as well.
            let _ = self.sessions.pass(self.session, block, length, &tag.to_le_bytes());
        }
        self.open.insert(number, Open { tag, data: Vec::new() });
        Ok(tag)
    }

    /// Takes what came, and tells which commands have ended.
    pub fn poll(&mut self, now: Duration, mut done: impl FnMut(Done)) {
        let (mut opened, mut blocks, mut ended) = (false, Vec::new(), Vec::new());
        let Self { sessions, end, .. } = self;
        sessions.poll(now, EVENTS_MAX, |event| match event {
            Event::Opened { .. } => opened = true,
            Event::Block { block, length, head, .. } => {
                let tag = head.try_into().ok().map(u32::from_le_bytes);
                blocks.push((block, length, tag));
            }
            Event::Answer { number, answer, .. } => {
                // Data are before the answer: they were taken out of their block by then.
                ended.push((number, answer.map(|it| (it.code, bytes_of(&it.body)))));
            }
            Event::Ended { why, .. } => *end = Some(why),
            _ => {}
        });
        if opened && self.lend().is_err() {
            self.sessions.end(self.session, 0, "the memory cannot be granted");
        }
        for (block, length, tag) in blocks {
            self.take_block(block, length, tag);
        }
        for (number, answer) in ended {
            let Some(open) = self.open.remove(&number) else { continue };
            let result = answer.map(|(code, body)| {
                let status = u8::try_from(code).unwrap_or(u8::MAX);
                match status {
                    0 if open.data.is_empty() => Answered { status, sense: Vec::new(), data: body },
                    0 => Answered { status, sense: Vec::new(), data: open.data },
                    _ => Answered { status, sense: body, data: Vec::new() },
                }
            });
            done(Done { tag: open.tag, result });
        }
    }

    fn lend(&mut self) -> Result<(), BlockError> {
        let (session, bytes) = (self.session, Self::REGION_BYTES);
        let reads = LocalRange::new(&self.reads, 0, bytes);
        self.sessions.lend(session, reads, BLOCK_BYTES, Access::WRITE)?;
        let writes = LocalRange::new(&self.writes, 0, bytes);
        self.pool = Some(self.sessions.lend(session, writes, BLOCK_BYTES, Access::READ)?);
        Ok(())
    }

    /// A free block with the data in it.
    fn fill(&mut self, pool: PoolId, data: &[u8]) -> Result<BlockId, RequestError> {
        let block = self.sessions.take(self.session, pool).map_err(|error| refusal(&error))?;
        let block = block.ok_or(RequestError::WouldBlock)?;
        let at = u64::from(block.place) * u64::from(BLOCK_BYTES);
        self.writes.write(at, data).expect("a block is inside of its region");
        Ok(block)
    }

    fn take_block(&mut self, block: BlockId, length: u32, tag: Option<u32>) {
        let at = u64::from(block.place) * u64::from(BLOCK_BYTES);
        let open = self.open.values_mut().find(|open| Some(open.tag) == tag);
        if let Some(open) = open
            && length <= BLOCK_BYTES
        {
            open.data = vec![0; length as usize];
            self.reads.read(at, &mut open.data).expect("a block is inside of its region");
        }
        // A session that has ended has no blocks.
        let _ = self.sessions.free(self.session, block);
    }
}

/// A pool of a session that has ended, or that is not granted yet.
fn refusal(error: &BlockError) -> RequestError {
    match error {
        BlockError::Session(error) => RequestError::Session(error.clone()),
        _ => RequestError::WouldBlock,
    }
}
