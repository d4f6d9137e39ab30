//! Frames that come. What a peer sends is checked before anything changes.

use std::time::Duration;

use weft_fabric::Peer;
use weft_message::Body;

use crate::blocks::{Memory, Pool};
use crate::error::{Offence, RequestError};
use crate::event::{Answer, BlockId, End, Event, PoolId, SessionId, Shape};
use crate::frame::{FORM, Frame, Kind, Lent, of_session, protocol, text};
use crate::machine::{Due, Machine, Matter, Notice};
use crate::options::Admission;
use crate::refusals;
use crate::session::{Fate, Session, State};

const fn out_of_turn(what: &'static str) -> Offence {
    Offence::OutOfTurn { what }
}

/// The sink of events.
type Sink<'s, R> = &'s mut dyn FnMut(Event<'_, R>);

impl<R> Machine<R> {
    /// Takes a message of a peer.
    pub fn message(
        &mut self,
        peer: Peer,
        head: &[u8],
        body: Body<'_, R>,
        now: Duration,
        sink: Sink<'_, R>,
    ) where
        R: weft_fabric::Region,
    {
        if let Err(offence) = self.try_message(peer, head, body, now, sink) {
            self.offend(peer, offence);
        }
    }

    fn try_message(
        &mut self,
        peer: Peer,
        head: &[u8],
        body: Body<'_, R>,
        now: Duration,
        sink: Sink<'_, R>,
    ) -> Result<(), Offence>
    where
        R: weft_fabric::Region,
    {
        let (frame, behind) = Frame::parse(head)?;
        let id = SessionId { peer, opened_here: !frame.from_opener, number: frame.session };
        if frame.kind == Kind::Hello {
            return self.hello(id, frame.numbers, behind, body, now, sink);
        }
        // Frames of a session that this end has ended may have been under way.
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        session.heard = now;
        let [first, second, third] = frame.numbers;
        match (&session.state, frame.kind) {
            (State::Ending { .. }, _) => Ok(()),
            (State::Greeting { low, high }, Kind::Welcome) => {
                let versions = (*low, *high);
                self.welcome(id, versions, [first, second, third], body, sink)
            }
            (State::Greeting { .. }, Kind::Refusal) => {
                let text = text(&bytes_of(&body, 256)?);
                self.end(id, End::Refused { code: second, text }, false);
                Ok(())
            }
            (State::Greeting { .. } | State::Greeted { .. } | State::Open, Kind::End) => {
                let code = u16::try_from(second)
                    .map_err(|_| Offence::Malformed { what: "an end with no code" })?;
                let text = text(&bytes_of(&body, 256)?);
                self.end(id, End::Ended { by_peer: true, code, text }, false);
                Ok(())
            }
            (State::Open, kind) => self.open_frame(id, kind, frame.numbers, (behind, body), sink),
            (State::Greeting { .. } | State::Greeted { .. }, _) => {
                Err(out_of_turn("a frame of a session that is not open"))
            }
        }
    }

    /// A frame of an open session.
    fn open_frame(
        &mut self,
        id: SessionId,
        kind: Kind,
        [first, second, third]: [u32; 3],
        (behind, body): (&[u8], Body<'_, R>),
        sink: Sink<'_, R>,
    ) -> Result<(), Offence> {
        let requests_max = self.options.requests_max;
        let session = self.sessions.get_mut(&id).expect("the caller looked it up");
        match kind {
            Kind::Request => {
                session.is_asked(first, requests_max)?;
                sink(Event::Request { session: id, number: first, head: behind, body });
            }
            Kind::Answer => return self.answered(id, first, second, (behind, body), sink),
            Kind::Cancel => {
                // It may have crossed the answer.
                if session.to_answer.remove(&first) {
                    self.frame(id, Kind::Answer, [first, of_session::CANCELLED, 0]);
                    sink(Event::Cancelled { session: id, number: first });
                }
            }
            Kind::Pool => return self.lent(id, first, (second, third), behind, sink),
            Kind::Pass => {
                let (id_of_pool, pool) = pool_of(session, first)?;
                pool.passed(id_of_pool.number, second, third)?;
                let block = BlockId { pool: id_of_pool, place: second };
                sink(Event::Block { session: id, block, length: third, head: behind });
            }
            Kind::Free => {
                let (id_of_pool, pool) = pool_of(session, first)?;
                pool.freed(id_of_pool.number, second)?;
                session.wants_room = false;
                self.notices.push_back(Notice::Room { session: id });
            }
            Kind::Alive if first == 1 => self.frame(id, Kind::Alive, [0; 3]),
            Kind::Alive => {}
            Kind::Hello | Kind::Welcome | Kind::Refusal | Kind::End => {
                return Err(out_of_turn("a second answer to a hello"));
            }
        }
        Ok(())
    }

    fn hello(
        &mut self,
        id: SessionId,
        [form, versions, requests]: [u32; 3],
        behind: &[u8],
        body: Body<'_, R>,
        now: Duration,
        sink: Sink<'_, R>,
    ) -> Result<(), Offence>
    where
        R: weft_fabric::Region,
    {
        if id.opened_here {
            return Err(out_of_turn("a hello in a session that this end opened"));
        }
        // The program has not heard of the end of the first one.
        let is_end_of_it =
            |notice: &Notice| matches!(notice, Notice::Ended { session, .. } if *session == id);
        if self.sessions.contains_key(&id) || self.notices.iter().any(is_end_of_it) {
            return Err(out_of_turn("a second hello"));
        }
        let name = protocol(behind)?;
        let [low, high] = [versions & 0xffff, versions >> 16]
            .map(|version| u16::try_from(version).expect("it has 16 bits"));
        if low > high || requests == 0 {
            return Err(Offence::Malformed { what: "a hello without a version or a request" });
        }
        let refused = if form != FORM {
            Some((refusals::FORM, format!("its sessions have form {FORM}, and not {form}")))
        } else if self.sessions.len() >= self.options.sessions_max {
            Some((refusals::BUSY, format!("it has {} sessions", self.options.sessions_max)))
        } else if body.length() > self.options.hello_bytes_max {
            let maximum = self.options.hello_bytes_max;
            Some((refusals::TOO_LONG, format!("options have {maximum} bytes at most")))
        } else {
            None
        };
        let served = self.protocols.iter().find(|protocol| protocol.name == name).copied();
        let common = match (refused, served) {
            (Some(refused), _) => Err(refused),
            (None, None) => Err((refusals::PROTOCOL, format!("it does not serve {name}"))),
            (None, Some(served)) => {
                let (low, high) = (low.max(served.low), high.min(served.high));
                let (from, to) = (served.low, served.high);
                let speaks = || format!("it speaks versions {from} to {to} of {name}");
                if low <= high { Ok((low, high)) } else { Err((refusals::VERSION, speaks())) }
            }
        };
        let (low, high) = match common {
            Ok(common) => common,
            Err((code, text)) => {
                let body = text.into_bytes();
                self.letter(id, Kind::Refusal, [0, code, 0], (&[], body), Matter::Nothing);
                return Ok(());
            }
        };
        let options = bytes_of(&body, self.options.hello_bytes_max)?;
        let mut session = Session::new(State::Greeted { low, high }, now);
        session.asked_max = crate::blocks::index(requests.min(65_536));
        self.sessions.insert(id, session);
        match self.options.admission {
            Admission::Ask => self.at(now + self.options.open_within, id, Due::Hello),
            Admission::All => self.accept(id, high, &[]).expect("it was just asked for"),
        }
        sink(Event::Hello { session: id, protocol: name, version: high, options: &options });
        Ok(())
    }

    fn welcome(
        &mut self,
        id: SessionId,
        (low, high): (u16, u16),
        [form, version, requests]: [u32; 3],
        body: Body<'_, R>,
        sink: Sink<'_, R>,
    ) -> Result<(), Offence>
    where
        R: weft_fabric::Region,
    {
        let malformed = Offence::Malformed { what: "a welcome that does not fit the hello" };
        let version = u16::try_from(version).map_err(|_| malformed.clone())?;
        let fits = form == FORM && (low..=high).contains(&version) && requests > 0;
        if !fits {
            return Err(malformed);
        }
        let options = bytes_of(&body, self.options.hello_bytes_max)?;
        let session = self.sessions.get_mut(&id).expect("the caller looked it up");
        session.state = State::Open;
        session.asked_max = crate::blocks::index(requests.min(65_536));
        sink(Event::Opened { session: id, version, options: &options });
        Ok(())
    }

    fn answered(
        &mut self,
        id: SessionId,
        number: u32,
        code: u32,
        (head, body): (&[u8], Body<'_, R>),
        sink: Sink<'_, R>,
    ) -> Result<(), Offence> {
        let answer = match (u16::try_from(code), code) {
            (Ok(code), _) => Ok(Answer { code, head, body }),
            (_, of_session::CANCELLED) => Err(RequestError::Cancelled),
            (_, of_session::NOT_TAKEN) => Err(RequestError::AnswerTooLong),
            _ => return Err(Offence::Malformed { what: "an answer with no code" }),
        };
        match self.settle(id, number).ok_or(Offence::NotAsked { number })? {
            Fate::Awaited => sink(Event::Answer { session: id, number, answer }),
            Fate::Forgotten => {}
        }
        Ok(())
    }

    fn lent(
        &mut self,
        id: SessionId,
        number: u32,
        (block_bytes, blocks): (u32, u32),
        behind: &[u8],
        sink: Sink<'_, R>,
    ) -> Result<(), Offence> {
        let Lent { key, access } = Lent::parse(behind)?;
        let (blocks_max, pools_max) = (self.options.blocks_max, self.options.pools_max);
        if blocks > blocks_max {
            let maximum = u64::from(blocks_max);
            return Err(Offence::TooMany { what: "blocks in a pool", maximum });
        }
        if blocks == 0 || block_bytes == 0 {
            return Err(Offence::Malformed { what: "a pool without blocks" });
        }
        let shape = Shape { block_bytes, blocks, access };
        let session = self.sessions.get_mut(&id).expect("the caller looked it up");
        let pool = session.lent(number, Pool::new(shape, Memory::Lent { key }), pools_max)?;
        sink(Event::Pool { session: id, pool, shape });
        Ok(())
    }
}

/// The pool that a frame names.
fn pool_of<R>(session: &mut Session<R>, number: u32) -> Result<(PoolId, &mut Pool<R>), Offence> {
    let id = PoolId::of_wire(number);
    let pool = session.pools.get_mut(&id).ok_or(out_of_turn("a block of no pool"))?;
    Ok((id, pool))
}

/// The bytes of a body of up to `maximum` bytes.
fn bytes_of<R: weft_fabric::Region>(body: &Body<'_, R>, maximum: u64) -> Result<Vec<u8>, Offence> {
    if body.length() > maximum {
        return Err(Offence::TooMany { what: "bytes in a hello or an end", maximum });
    }
    Ok(crate::driver::bytes_of(body))
}
