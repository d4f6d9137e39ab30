//! The target's side: data on their way between blocks of an initiator and the target.
//!
//! A plain read or write of a store in memory moves between the block and the memory of the store,
//! with the gate of the unit held. All other data go through a stage or a buffer, and a job.
//! Invariant: a stage, and a range of a store, is held until nothing can be written into it any
//! more, also when its session ends before.

use std::sync::{Arc, Weak};
use std::time::Duration;

use weft_fabric::{Endpoint, Issued, LocalRange, OperationError, Peer, Region, Source};
use weft_session::{BlockError, BlockId, SessionId};

use super::target::{Surroundings, Target};
use super::{BLOCK_BYTES, Request};
use crate::scsi::{Direct, Job, Sense, Status};

/// Stages that one session may have at a time.
const STAGES_OF_ONE: usize = 16;

/// A command that waits for a block, a stage or room.
pub(super) enum Waiting {
    /// For the block with its data, and a stage if they do not go to the store at once.
    Get { number: u32, request: Request, job: Job },
    /// For a block, into which it is to be read from the memory of the store.
    Read { number: u32, tag: u32, job: Job },
    /// For a block, into which the data are put.
    Put { number: u32, tag: u32, data: Vec<u8> },
}

/// Data on their way.
pub(super) struct Moving {
    number: u32,
    pub began: Duration,
    way: Way,
}

impl Moving {
    const fn is_direct(&self) -> bool {
        matches!(self.way, Way::Store(_))
    }
}

enum Way {
    /// Got into a stage, for a job.
    Stage { request: Request, job: Job, stage: usize },
    /// Between the block and the memory of the store.
    Store(Direct),
    /// Put from a buffer.
    Buffer,
}

impl<E: Endpoint, S: Surroundings<E>> Target<E, S> {
    /// Goes on with commands that wait for a block, a stage or room, in order.
    pub(super) fn proceed(&mut self, session: SessionId) {
        loop {
            let Some(served) = self.served.get_mut(&session) else { return };
            let Some(first) = served.waiting.pop_front() else { return };
            let again = match first {
                Waiting::Get { number, request, job } => self.get(session, number, request, job),
                Waiting::Read { number, tag, job } => self.read(session, number, tag, job),
                Waiting::Put { number, tag, data } => self.put(session, number, tag, data),
            };
            if let Some(again) = again {
                if let Some(served) = self.served.get_mut(&session) {
                    served.waiting.push_front(again);
                }
                return;
            }
        }
    }

    /// The region of the store of a direct move.
    fn region_of(&mut self, session: SessionId, direct: &Direct) -> Option<E::Region> {
        let store = direct.store();
        let served = self.served.get_mut(&session)?;
        if let Some((of, region)) = &served.region
            && Weak::as_ptr(of).addr() == Arc::as_ptr(store).addr()
        {
            return Some(region.clone());
        }
        let region = self.surroundings.region(self.sessions.endpoint(), store)?;
        served.region = Some((Arc::downgrade(store), region.clone()));
        Some(region)
    }

    /// Begins a move in the memory of the store, if it can be.
    fn direct(&mut self, session: SessionId, job: &Job) -> Option<(Direct, E::Region)> {
        let direct = job.may_be_direct().then(|| job.direct()).flatten()?;
        let region = self.region_of(session, &direct)?;
        Some((direct, region))
    }

    fn begin(&mut self, session: SessionId, block: BlockId, number: u32, way: Way) {
        let began = self.surroundings.now();
        self.direct += usize::from(matches!(way, Way::Store(_)));
        if let Some(served) = self.served.get_mut(&session) {
            served.moving.insert(block, Moving { number, began, way });
        }
    }

    /// Takes a move out that has ended, or was not begun after all.
    fn end(&mut self, session: SessionId, block: BlockId) -> Option<Moving> {
        let moving = self.served.get_mut(&session)?.moving.remove(&block)?;
        self.direct -= usize::from(moving.is_direct());
        Some(moving)
    }

    /// Gets the data of a write. Returns it when it has to wait.
    fn get(
        &mut self,
        session: SessionId,
        number: u32,
        request: Request,
        job: Job,
    ) -> Option<Waiting> {
        let served = self.served.get_mut(&session)?;
        let Some(block) = served.passed.get(&request.tag).copied() else {
            // It is behind the request.
            return Some(Waiting::Get { number, request, job });
        };
        let result = if let Some((direct, region)) = self.direct(session, &job) {
            let (at, length) = direct.range();
            self.begin(session, block, number, Way::Store(direct));
            self.sessions.get(session, block, 0, LocalRange::new(&region, at, length))
        } else {
            let Some(stage) = self.take_stage(session) else {
                return Some(Waiting::Get { number, request, job });
            };
            let at = stage as u64 * u64::from(BLOCK_BYTES);
            self.begin(session, block, number, Way::Stage { request, job: job.clone(), stage });
            let into = LocalRange::new(&self.stage, at, request.data_out.into());
            self.sessions.get(session, block, 0, into)
        };
        match result {
            Ok(()) => {
                self.served.get_mut(&session)?.passed.remove(&request.tag);
                None
            }
            Err(error) => {
                let moving = self.end(session, block)?;
                self.release([moving]);
                if is_full(&error) {
                    return Some(Waiting::Get { number, request, job });
                }
                self.give_back(session, request.tag);
                self.answer(session, number, Sense::TOO_LITTLE_DATA.into(), &[]);
                None
            }
        }
    }

    fn take_stage(&mut self, session: SessionId) -> Option<usize> {
        let served = self.served.get(&session)?;
        let is_stage = |moving: &&Moving| matches!(moving.way, Way::Stage { .. });
        if served.moving.values().filter(is_stage).count() >= STAGES_OF_ONE {
            return None;
        }
        self.free_stages.pop()
    }

    /// Reads from the memory of the store into a block. Returns it when it has to wait.
    fn read(&mut self, session: SessionId, number: u32, tag: u32, job: Job) -> Option<Waiting> {
        let Some(block) = self.block(session, number)? else {
            return Some(Waiting::Read { number, tag, job });
        };
        let Some((direct, region)) = self.direct(session, &job) else {
            let _ = self.sessions.free(session, block);
            self.run(session, number, tag, job, Vec::new());
            return None;
        };
        let (at, length) = direct.range();
        self.begin(session, block, number, Way::Store(direct));
        let source = Source::Region(LocalRange::new(&region, at, length));
        match self.sessions.put(session, block, source, &tag.to_le_bytes()) {
            Ok(()) => None,
            Err(error) => self.not_put(session, block, number, &error).then_some(Waiting::Read {
                number,
                tag,
                job,
            }),
        }
    }

    /// Puts the data of a read. Returns it when it has to wait.
    fn put(&mut self, session: SessionId, number: u32, tag: u32, data: Vec<u8>) -> Option<Waiting> {
        let Some(block) = self.block(session, number)? else {
            return Some(Waiting::Put { number, tag, data });
        };
        self.begin(session, block, number, Way::Buffer);
        match self.sessions.put(session, block, Source::Bytes(&data), &tag.to_le_bytes()) {
            Ok(()) => None,
            Err(error) => self.not_put(session, block, number, &error).then_some(Waiting::Put {
                number,
                tag,
                data,
            }),
        }
    }

    /// A block to put into, if one is idle. `None` if there never is one: the command is answered.
    fn block(&mut self, session: SessionId, number: u32) -> Option<Option<BlockId>> {
        let Some(pool) = self.served.get_mut(&session)?.reads else {
            // The initiator lent nothing.
            self.answer(session, number, Sense::TOO_LITTLE_DATA.into(), &[]);
            return None;
        };
        Some(self.sessions.take(session, pool).ok().flatten())
    }

    /// A put was not begun. True if it is to be tried again when there is room; else the command is
    /// answered.
    fn not_put(
        &mut self,
        session: SessionId,
        block: BlockId,
        number: u32,
        error: &BlockError,
    ) -> bool {
        let moving = self.end(session, block);
        self.release(moving);
        let _ = self.sessions.free(session, block);
        if !is_full(error) {
            self.answer(session, number, Sense::TOO_LITTLE_DATA.into(), &[]);
        }
        is_full(error)
    }

    pub(super) fn moved(&mut self, session: SessionId, block: BlockId, is_good: bool) {
        let Some(moving) = self.end(session, block) else { return };
        let Moving { number, began, way } = moving;
        match way {
            Way::Store(direct) => {
                let was_got = direct.writes();
                let took = self.surroundings.now().saturating_sub(began);
                let moved = if is_good { Ok(()) } else { Err(Sense::TOO_LITTLE_DATA) };
                let status = direct.end(moved, took);
                if was_got || !is_good {
                    let _ = self.sessions.free(session, block);
                }
                self.answer(session, number, status, &[]);
            }
            Way::Buffer => {
                if !is_good {
                    let _ = self.sessions.free(session, block);
                }
                let bad = Status::Check(Sense::TOO_LITTLE_DATA);
                self.answer(session, number, if is_good { Status::Good } else { bad }, &[]);
            }
            Way::Stage { request, job, stage } => {
                let mut data = vec![0; request.data_out as usize];
                let at = stage as u64 * u64::from(BLOCK_BYTES);
                let is_read = self.stage.read(at, &mut data).is_ok();
                let _ = self.sessions.free(session, block);
                if is_good && is_read {
                    self.run(session, number, request.tag, job, data);
                } else {
                    self.answer(session, number, Sense::TOO_LITTLE_DATA.into(), &[]);
                }
                self.free_stages.push(stage);
                self.serve_others();
            }
        }
    }

    /// A stage came free: the sessions that wait for one go on.
    fn serve_others(&mut self) {
        let waiting: Vec<SessionId> = self
            .served
            .iter()
            .filter(|(_, served)| matches!(served.waiting.front(), Some(Waiting::Get { .. })))
            .map(|(session, _)| *session)
            .collect();
        for session in waiting {
            self.proceed(session);
        }
    }

    /// Moves of a session that has ended. Those that write here are held until they cannot any
    /// more.
    pub(super) fn abandon(&mut self, peer: Peer, moving: Vec<Moving>) {
        self.direct -= moving.iter().filter(|it| it.is_direct()).count();
        let (writes, others) =
            moving.into_iter().partition::<Vec<_>, _>(|moving| match &moving.way {
                Way::Stage { .. } => true,
                Way::Store(direct) => direct.writes(),
                Way::Buffer => false,
            });
        self.release(others);
        if writes.is_empty() {
            return;
        }
        self.fences += 1;
        let context = self.fences;
        match self.sessions.endpoint().fence(peer, context) {
            Ok(Issued::Pending) => {
                self.direct += writes.iter().filter(|it| it.is_direct()).count();
                self.leaving.insert(context, writes);
            }
            // Nothing of the peer comes any more.
            Ok(Issued::Done(_)) | Err(OperationError::PeerDown | OperationError::UnknownPeer) => {
                self.release(writes);
            }
            Err(_) => {
                // After that neither.
                let _ = self.sessions.endpoint().disconnect(peer);
                self.release(writes);
            }
        }
        self.serve_others();
    }

    /// A fence is over.
    pub(super) fn fenced(&mut self, context: u64) {
        if let Some(moving) = self.leaving.remove(&context) {
            self.direct -= moving.iter().filter(|it| it.is_direct()).count();
            self.release(moving);
            self.serve_others();
        }
    }

    /// Gives back what moves held that nobody does any more.
    fn release(&mut self, moving: impl IntoIterator<Item = Moving>) {
        for moving in moving {
            if let Way::Stage { stage, .. } = moving.way {
                self.free_stages.push(stage);
            }
        }
    }
}

fn is_full(error: &BlockError) -> bool {
    matches!(error, BlockError::Operation(OperationError::WouldBlock))
}
