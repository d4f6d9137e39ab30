//! Calls of the program: each checks, changes the state and leaves what is to be sent.

use std::ops::RangeInclusive;
use std::time::Duration;

use weft_fabric::{Access, Peer, RemoteKey, ServiceName};

use crate::blocks::{Memory, Pool};
use crate::error::{AnswerError, BlockError, RequestError, SessionError};
use crate::event::{BlockId, End, PoolId, SessionId, Shape};
use crate::frame::{FORM, HEAD_BYTES_MAX, Kind};
use crate::machine::{Due, Machine, Matter, Protocol};
use crate::session::{Fate, Session, State};

impl<R> Machine<R> {
    pub fn serve(&mut self, name: ServiceName, versions: &RangeInclusive<u16>) {
        let (low, high) = (*versions.start(), *versions.end());
        assert!(low <= high, "a protocol has a version");
        self.protocols.retain(|protocol| protocol.name != name);
        self.protocols.push(Protocol { name, low, high });
    }

    /// Says hello to a service.
    pub fn open(
        &mut self,
        peer: Peer,
        (name, versions): (ServiceName, &RangeInclusive<u16>),
        options: &[u8],
        now: Duration,
    ) -> Result<SessionId, SessionError> {
        self.check_options(options)?;
        let maximum = self.options.sessions_max;
        // With all numbers in use there is no more room either.
        let free = (0..=u16::MAX)
            .map(|ahead| SessionId {
                peer,
                opened_here: true,
                number: self.next_number.wrapping_add(ahead),
            })
            .find(|id| !self.sessions.contains_key(id));
        let id = match free {
            Some(id) if self.sessions.len() < maximum => id,
            _ => return Err(SessionError::Exhausted { maximum }),
        };
        self.next_number = id.number.wrapping_add(1);
        let (low, high) = (*versions.start(), *versions.end());
        assert!(low <= high, "a protocol has a version");
        self.sessions.insert(id, Session::new(State::Greeting { low, high }, now));
        let both = u32::from(low) | u32::from(high) << 16;
        let numbers = [FORM, both, self.options.requests_max];
        let what = (name.as_str().as_bytes(), options.to_vec());
        self.letter(id, Kind::Hello, numbers, what, Matter::Nothing);
        self.at(now + self.options.open_within, id, Due::Hello);
        Ok(id)
    }

    fn check_options(&self, options: &[u8]) -> Result<(), SessionError> {
        let (length, maximum) = (options.len() as u64, self.options.hello_bytes_max);
        if length > maximum { Err(SessionError::TooLong { length, maximum }) } else { Ok(()) }
    }

    /// Accepts a hello.
    pub fn accept(
        &mut self,
        id: SessionId,
        version: u16,
        options: &[u8],
    ) -> Result<(), SessionError> {
        self.check_options(options)?;
        let session = self.sessions.get_mut(&id).ok_or(SessionError::Unknown)?;
        match session.state {
            State::Greeted { low, high } if (low..=high).contains(&version) => {}
            State::Greeted { .. } => return Err(SessionError::Version { version }),
            State::Ending { .. } => return Err(SessionError::Unknown),
            State::Greeting { .. } | State::Open => return Err(SessionError::NotAsked),
        }
        session.state = State::Open;
        let numbers = [FORM, u32::from(version), self.options.requests_max];
        self.letter(id, Kind::Welcome, numbers, (&[], options.to_vec()), Matter::Nothing);
        Ok(())
    }

    /// Refuses a hello.
    pub fn refuse(&mut self, id: SessionId, code: u16, text: &str) -> Result<(), SessionError> {
        let session = self.sessions.get(&id).ok_or(SessionError::Unknown)?;
        if !matches!(session.state, State::Greeted { .. }) {
            return Err(SessionError::NotAsked);
        }
        self.end(id, End::Refused { code: u32::from(code), text: text.to_owned() }, true);
        Ok(())
    }

    /// The number and the head of the next request. [`Machine::asks`] follows if it was sent.
    pub fn request(&mut self, id: SessionId, head: &[u8]) -> Result<(u32, Vec<u8>), RequestError> {
        if head.len() > HEAD_BYTES_MAX {
            let (length, maximum) = (head.len(), HEAD_BYTES_MAX);
            return Err(RequestError::HeadTooLong { length, maximum });
        }
        let session = self.open_session(id)?;
        if !session.may_ask() {
            session.wants_room = true;
            return Err(RequestError::WouldBlock);
        }
        let number = session.next_request();
        Ok((number, Self::head(id, Kind::Request, [number, 0, 0], head)))
    }

    /// The next request was sent.
    pub fn asks(&mut self, id: SessionId, until: Option<Duration>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let number = session.next_request();
        session.asks(until);
        if let Some(until) = until {
            self.at(until, id, Due::Request(number));
        }
    }

    /// Answers a request.
    pub fn answer(
        &mut self,
        id: SessionId,
        number: u32,
        code: u16,
        (head, body): (&[u8], Vec<u8>),
    ) -> Result<(), AnswerError> {
        if head.len() > HEAD_BYTES_MAX {
            let (length, maximum) = (head.len(), HEAD_BYTES_MAX);
            return Err(AnswerError::HeadTooLong { length, maximum });
        }
        let session = self.open_session(id)?;
        if !session.to_answer.remove(&number) {
            return Err(AnswerError::NotAsked { number });
        }
        let numbers = [number, u32::from(code), 0];
        self.letter(id, Kind::Answer, numbers, (head, body), Matter::Answer(id, number));
        Ok(())
    }

    /// Asks the peer to give a request up. False if it has its answer.
    pub fn cancel(&mut self, id: SessionId, number: u32) -> bool {
        let Ok(session) = self.open_session(id) else { return false };
        let is_open = session.asked.get(&number).is_some_and(|asked| asked.fate == Fate::Awaited);
        if is_open {
            self.frame(id, Kind::Cancel, [number, 0, 0]);
        }
        is_open
    }

    /// Makes an own pool, whose key is being granted.
    pub fn lend(&mut self, id: SessionId, shape: Shape, region: R) -> Result<PoolId, BlockError> {
        let session = self.open_session(id)?;
        Ok(session.add_pool(Pool::new(shape, Memory::Own { region, key: None })))
    }

    fn pool(&mut self, id: SessionId, pool: PoolId) -> Result<&mut Pool<R>, BlockError> {
        let session = self.open_session(id)?;
        session.pools.get_mut(&pool).ok_or(BlockError::Unknown)
    }

    /// Takes a block to fill.
    pub fn take(&mut self, id: SessionId, pool: PoolId) -> Result<Option<BlockId>, BlockError> {
        let session = self.open_session(id)?;
        let its = session.pools.get_mut(&pool).ok_or(BlockError::Unknown)?;
        // The peer does not know an own pool before its key is granted.
        if !its.is_told() {
            session.wants_room = true;
            return Ok(None);
        }
        Ok(its.take().map(|place| BlockId { pool, place }))
    }

    /// The key and the offset for a put or get of `length` bytes from `offset` of a block on.
    pub fn target(
        &mut self,
        id: SessionId,
        block: BlockId,
        (offset, length): (u64, u64),
        access: Access,
    ) -> Result<weft_fabric::Target, BlockError> {
        let pool = self.pool(id, block.pool)?;
        let key = pool.of_peer(block.place, access)?;
        pool.check_range(offset, length)?;
        let begin = u64::from(block.place) * u64::from(pool.shape.block_bytes);
        Ok(weft_fabric::Target::new(key, begin + offset))
    }

    /// A put or get of a block has begun.
    pub fn begins(&mut self, id: SessionId, block: BlockId) {
        if let Ok(pool) = self.pool(id, block.pool) {
            pool.begin(block.place);
        }
    }

    /// There was no room for a put or get.
    pub fn wants_room(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.wants_room = true;
        }
    }

    /// The key of a pool of the peer's, for a window.
    pub fn key(&mut self, id: SessionId, pool: PoolId) -> Result<RemoteKey, BlockError> {
        match self.pool(id, pool)?.memory {
            Memory::Lent { key } => Ok(key),
            Memory::Own { .. } => Err(BlockError::Direction),
        }
    }

    /// Gives a block, which this end filled, to the peer.
    pub fn pass(
        &mut self,
        id: SessionId,
        block: BlockId,
        length: u32,
        head: &[u8],
    ) -> Result<(), BlockError> {
        check_head(head)?;
        let pool = self.pool(id, block.pool)?;
        pool.check_range(0, u64::from(length))?;
        pool.pass(block.place)?;
        let numbers = [block.pool.wire(), block.place, length];
        self.letter(id, Kind::Pass, numbers, (head, Vec::new()), Matter::Nothing);
        Ok(())
    }

    /// Gives a block back.
    pub fn free(&mut self, id: SessionId, block: BlockId) -> Result<(), BlockError> {
        if self.pool(id, block.pool)?.free(block.place)? {
            self.frame(id, Kind::Free, [block.pool.wire(), block.place, 0]);
        }
        Ok(())
    }
}

/// Checks the head of a block.
pub(crate) fn check_head(head: &[u8]) -> Result<(), BlockError> {
    let (length, maximum) = (head.len(), HEAD_BYTES_MAX);
    if length > maximum { Err(BlockError::HeadTooLong { length, maximum }) } else { Ok(()) }
}
