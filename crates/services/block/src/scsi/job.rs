//! The work of a command on the store of its unit.
//!
//! Invariants: a job checks, when it starts, that its session's tasks were not aborted. Work that
//! nothing may come between holds the gate of the unit alone; all other work holds it shared. So a
//! job that holds it alone and does nothing, the barrier, waits for all that runs.

use std::sync::Arc;

use super::BLOCK_BYTES;
use super::reservation::Refusal;
use super::sanitize::{self, Erasure};
use super::sense::{Key, Sense};
use super::unit::{Directory, Link, Sanitizing, Status, Unit};
use super::{UNMAP_BLOCKS_MAX, UNMAP_RANGES_MAX};

/// Zeroing of more is done where others do not wait.
const QUICK_ZERO_BYTES: u64 = 8 << 20;
/// Extents that are asked for at a time.
const EXTENTS_MAX: usize = 256;
/// Bytes that are read at a time to be compared or merged.
const STEP_BYTES: usize = 256 << 10;

/// The bytes with which the medium is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// Nothing: the blocks are only to be readable.
    Nothing,
    /// With data of the same length.
    All,
    /// Each block with the same one block of data.
    OneBlock,
}

/// The work of a command. Offsets and lengths are in bytes and inside the unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    Nothing,
    Barrier,
    Flush,
    Read { at: u64, length: u64 },
    Write { at: u64, length: u64, fua: bool, then_verify: bool },
    Verify { at: u64, length: u64, compare: Compare },
    OrWrite { at: u64, length: u64, fua: bool },
    CompareAndWrite { at: u64, length: u64, fua: bool },
    WriteSame { at: u64, length: u64, unmap: bool, no_data: bool, fua: bool },
    Unmap { parameters: usize },
    Extents { at: u64, allocation: usize },
    Holes { at: u64, length: u64, count: usize },
    Select { command: [u8; 16], parameters: usize },
    Reserve { action: u8, scope_and_kind: u8, parameters: usize },
    Copy { parameters: usize },
    Sanitize { action: u8, parameters: usize, at_once: bool },
    Erase(Erasure),
}

/// For statistics: which way the bytes of a job go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the unit.
    Read,
    /// To the unit.
    Write,
    /// Neither.
    Other,
}

/// The end of a job.
#[derive(Debug)]
pub enum Outcome {
    /// It is done; the command is answered so.
    Done(Status),
    /// The command is answered with GOOD, and this job is to be run, whose end nobody is told.
    Continues(Job),
    /// The task was aborted: there is no answer.
    Aborted,
}

/// The work of a command on the store of its unit. The module lists its invariants.
#[derive(Clone, Debug)]
pub struct Job {
    pub(super) unit: Arc<Unit>,
    link: Arc<Link>,
    aborts: u64,
    pub(super) work: Work,
}

impl Job {
    pub(super) fn new(unit: &Arc<Unit>, link: &Arc<Link>, work: Work) -> Self {
        let (unit, link) = (Arc::clone(unit), Arc::clone(link));
        let aborts = link.aborts();
        Self { unit, link, aborts, work }
    }

    /// A job that ends when all that runs on the unit now has ended.
    #[must_use]
    pub fn barrier(unit: &Arc<Unit>, link: &Arc<Link>) -> Self {
        Self::new(unit, link, Work::Barrier)
    }

    /// Reads for a service that has no SCSI commands.
    #[must_use]
    pub fn read(unit: &Arc<Unit>, link: &Arc<Link>, at: u64, length: u64) -> Self {
        Self::new(unit, link, Work::Read { at, length })
    }

    /// Writes for a service that has no SCSI commands.
    #[must_use]
    pub fn write(unit: &Arc<Unit>, link: &Arc<Link>, at: u64, length: u64, fua: bool) -> Self {
        let fua = fua || unit.is_write_through();
        Self::new(unit, link, Work::Write { at, length, fua, then_verify: false })
    }

    /// Flushes for a service that has no SCSI commands.
    #[must_use]
    pub fn flush(unit: &Arc<Unit>, link: &Arc<Link>) -> Self {
        Self::new(unit, link, Work::Flush)
    }

    /// Zeroes a range for a service that has no SCSI commands.
    #[must_use]
    pub fn zero(
        unit: &Arc<Unit>,
        link: &Arc<Link>,
        (at, length): (u64, u64),
        unmap: bool,
        fua: bool,
    ) -> Self {
        let fua = fua || unit.is_write_through();
        Self::new(unit, link, Work::WriteSame { at, length, unmap, no_data: true, fua })
    }

    /// Asks for extents, for a service that has no SCSI commands. Each of them is a length and a 1
    /// for a hole, in 32 bits each with the high byte first; `length` fits in 32 bits.
    #[must_use]
    pub fn holes(
        unit: &Arc<Unit>,
        link: &Arc<Link>,
        (at, length): (u64, u32),
        count: usize,
    ) -> Self {
        Self::new(unit, link, Work::Holes { at, length: length.into(), count })
    }

    /// Whether nothing runs on the unit, so that a barrier need not be waited for.
    #[must_use]
    pub fn is_unit_idle(unit: &Unit) -> bool {
        unit.gate.is_free()
    }

    /// Whether the initiator has to send exactly [`Job::data_out`] bytes: with others, the command
    /// is a mistake.
    #[must_use]
    pub const fn needs_exact_data(&self) -> bool {
        matches!(self.work, Work::CompareAndWrite { .. } | Work::WriteSame { .. })
    }

    /// The unit that it works on.
    #[must_use]
    pub const fn unit(&self) -> &Arc<Unit> {
        &self.unit
    }

    /// Bytes that the initiator has to send.
    #[must_use]
    pub fn data_out(&self) -> u64 {
        let block = u64::from(BLOCK_BYTES);
        match &self.work {
            Work::Write { length, .. }
            | Work::OrWrite { length, .. }
            | Work::Verify { length, compare: Compare::All, .. } => *length,
            Work::CompareAndWrite { length, .. } => length * 2,
            Work::Verify { compare: Compare::OneBlock, .. }
            | Work::WriteSame { no_data: false, .. } => block,
            Work::Unmap { parameters }
            | Work::Select { parameters, .. }
            | Work::Reserve { parameters, .. }
            | Work::Copy { parameters }
            | Work::Sanitize { parameters, .. } => *parameters as u64,
            _ => 0,
        }
    }

    /// Bytes that the initiator gets at most.
    #[must_use]
    pub const fn data_in(&self) -> u64 {
        match &self.work {
            Work::Read { length, .. } => *length,
            Work::Extents { allocation, .. } => *allocation as u64,
            _ => 0,
        }
    }

    /// Which way its bytes go.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        match &self.work {
            Work::Read { .. } => Direction::Read,
            Work::Write { .. }
            | Work::OrWrite { .. }
            | Work::CompareAndWrite { .. }
            | Work::WriteSame { .. } => Direction::Write,
            _ => Direction::Other,
        }
    }

    /// Whether it is done at once, so that it can run where others wait.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        match &self.work {
            Work::Select { .. } | Work::Nothing => true,
            Work::Reserve { .. } => !self.unit.has_keeper(),
            Work::Copy { .. } | Work::Sanitize { .. } | Work::Erase(_) | Work::Barrier => false,
            Work::Unmap { .. } => false,
            Work::WriteSame { length, .. } if *length > QUICK_ZERO_BYTES => false,
            _ => self.unit.store().is_quick(),
        }
    }

    /// Whether the tasks of its session were aborted since it began.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.link.aborts() != self.aborts
    }

    /// Does the work. `data` is what the initiator sent, which may be less than
    /// [`Job::data_out`]; `into` gets what it is sent, and may have anything before. It is of no
    /// value when the work failed.
    pub fn run(&self, data: &[u8], into: &mut Vec<u8>, directory: &dyn Directory) -> Outcome {
        if self.data_in() == 0 {
            into.clear();
        }
        if self.work == Work::Barrier {
            drop(self.unit.gate.alone());
            return Outcome::Done(Status::Good);
        }
        if let Work::Erase(erasure) = &self.work {
            // Its failure is told by the state of the unit.
            let _ = sanitize::run(&self.unit, erasure);
            return Outcome::Done(Status::Good);
        }
        if self.is_aborted() {
            return Outcome::Aborted;
        }
        if let Work::Sanitize { action, at_once, parameters } = self.work {
            return match data.get(..parameters) {
                Some(data) => self.sanitize(action, at_once, data),
                None => Outcome::Done(Sense::PARAMETER_LENGTH.into()),
            };
        }
        let done = self.work_under_gate(data, into, directory);
        Outcome::Done(done.err().unwrap_or(Status::Good))
    }

    fn work_under_gate(
        &self,
        data: &[u8],
        into: &mut Vec<u8>,
        directory: &dyn Directory,
    ) -> Result<(), Status> {
        let is_alone = matches!(self.work, Work::OrWrite { .. } | Work::CompareAndWrite { .. });
        let _alone = is_alone.then(|| self.unit.gate.alone());
        let _shared = (!is_alone).then(|| self.unit.gate.shared());
        if let Sanitizing::Runs(progress) = self.unit.state.lock().sanitizing {
            let sense = Sense::new(Key::NotReady, 0x04, 0x1b);
            return Err(Sense { progress: Some(progress), ..sense }.into());
        }
        let parameters =
            |length: usize| data.get(..length).ok_or(Status::Check(Sense::PARAMETER_LENGTH));
        match &self.work {
            Work::Read { at, length } => {
                into.resize(usize::try_from(*length).expect("bounded"), 0);
                self.store(|store| store.read(*at, into))
            }
            Work::Write { at, length, fua, then_verify } => {
                let data = match usize::try_from(*length).ok().and_then(|all| data.get(..all)) {
                    Some(all) => all,
                    None => whole_blocks(data, *length),
                };
                self.store(|store| store.write(*at, data))?;
                self.flush_if(*fua)?;
                if *then_verify { self.compare(*at, data) } else { Ok(()) }
            }
            Work::Verify { at, length, compare } => self.verify(*at, *length, *compare, data),
            Work::OrWrite { at, length, fua } => {
                self.merge(*at, whole_blocks(data, *length))?;
                self.flush_if(*fua)
            }
            Work::CompareAndWrite { at, length, fua } => {
                let length = usize::try_from(*length).expect("bounded");
                if data.len() < 2 * length {
                    return Err(Sense::TOO_LITTLE_DATA.into());
                }
                let (expected, new) = data[..2 * length].split_at(length);
                self.compare(*at, expected)?;
                self.store(|store| store.write(*at, new))?;
                self.flush_if(*fua)
            }
            Work::WriteSame { at, length, unmap, no_data, fua } => {
                self.write_same(*at, *length, *unmap, *no_data, data)?;
                self.flush_if(*fua)
            }
            Work::Unmap { parameters: length } => self.unmap(parameters(*length)?),
            Work::Flush => self.store(|store| store.flush()),
            Work::Extents { at, allocation } => self.extents(*at, *allocation, into),
            Work::Holes { at, length, count } => {
                let extents = self.store(|store| store.extents(*at, *length, *count))?;
                into.clear();
                for extent in extents {
                    let length = u32::try_from(extent.length).unwrap_or(u32::MAX);
                    into.extend(length.to_be_bytes());
                    into.extend(u32::from(extent.is_hole).to_be_bytes());
                }
                Ok(())
            }
            Work::Select { command, parameters: length } => {
                Ok(self.unit.select(&self.link, command, parameters(*length)?)?)
            }
            Work::Reserve { action, scope_and_kind, parameters: length } => {
                self.reserve(*action, *scope_and_kind, parameters(*length)?)
            }
            Work::Copy { parameters: length } => {
                Ok(super::copy::run(&self.unit, &self.link, parameters(*length)?, directory)?)
            }
            Work::Nothing | Work::Barrier | Work::Sanitize { .. } | Work::Erase(_) => Ok(()),
        }
    }

    fn store<T>(
        &self,
        work: impl FnOnce(&dyn crate::store::Store) -> Result<T, crate::store::StoreError>,
    ) -> Result<T, Status> {
        work(&*self.unit.store()).map_err(|error| Sense::of_store(error).into())
    }

    fn flush_if(&self, wanted: bool) -> Result<(), Status> {
        if wanted { self.store(|store| store.flush()) } else { Ok(()) }
    }

    /// Compares data with the medium; INFORMATION names the first byte that differs.
    fn compare(&self, at: u64, data: &[u8]) -> Result<(), Status> {
        let mut buffer = vec![0; STEP_BYTES.min(data.len())];
        for (number, expected) in data.chunks(STEP_BYTES).enumerate() {
            let offset = number * STEP_BYTES;
            let is = &mut buffer[..expected.len()];
            self.store(|store| store.read(at + offset as u64, is))?;
            if is != expected {
                let first = is.iter().zip(expected).take_while(|(a, b)| a == b).count();
                let sense = Sense::new(Key::Miscompare, 0x1d, 0x00);
                return Err(sense.with_information((offset + first) as u64).into());
            }
        }
        Ok(())
    }

    fn verify(&self, at: u64, length: u64, compare: Compare, data: &[u8]) -> Result<(), Status> {
        let block = BLOCK_BYTES as usize;
        match compare {
            Compare::All => self.compare(at, whole_blocks(data, length)),
            Compare::OneBlock => {
                let expected = data.get(..block).ok_or(Sense::TOO_LITTLE_DATA)?;
                let mut is = vec![0; block];
                for number in 0..length / u64::from(BLOCK_BYTES) {
                    let offset = number * u64::from(BLOCK_BYTES);
                    self.store(|store| store.read(at + offset, &mut is))?;
                    if is != expected {
                        let first = is.iter().zip(expected).take_while(|(a, b)| a == b).count();
                        let sense = Sense::new(Key::Miscompare, 0x1d, 0x00);
                        return Err(sense.with_information(first as u64).into());
                    }
                }
                Ok(())
            }
            Compare::Nothing => {
                let mut buffer = vec![0; STEP_BYTES];
                let mut done = 0;
                while done < length {
                    let step = (length - done).min(STEP_BYTES as u64);
                    let into = &mut buffer[..usize::try_from(step).expect("one step")];
                    self.store(|store| store.read(at + done, into))?;
                    done += step;
                }
                Ok(())
            }
        }
    }

    fn merge(&self, at: u64, data: &[u8]) -> Result<(), Status> {
        let mut buffer = vec![0; STEP_BYTES.min(data.len())];
        for (number, ones) in data.chunks(STEP_BYTES).enumerate() {
            let at = at + (number * STEP_BYTES) as u64;
            let is = &mut buffer[..ones.len()];
            self.store(|store| store.read(at, is))?;
            for (is, ones) in is.iter_mut().zip(ones) {
                *is |= ones;
            }
            self.store(|store| store.write(at, is))?;
        }
        Ok(())
    }

    fn write_same(
        &self,
        at: u64,
        length: u64,
        unmap: bool,
        no_data: bool,
        data: &[u8],
    ) -> Result<(), Status> {
        let block = BLOCK_BYTES as usize;
        let pattern = if no_data {
            &[0; BLOCK_BYTES as usize][..]
        } else {
            data.get(..block).filter(|_| data.len() == block).ok_or(Sense::TOO_LITTLE_DATA)?
        };
        if pattern.iter().all(|byte| *byte == 0) {
            return self.store(|store| store.zero(at, length, unmap));
        }
        let step = STEP_BYTES.min(usize::try_from(length).unwrap_or(STEP_BYTES));
        let blocks: Vec<u8> = pattern.iter().copied().cycle().take(step).collect();
        let mut done = 0;
        while done < length {
            let step = usize::try_from((length - done).min(step as u64)).expect("one step");
            self.store(|store| store.write(at + done, &blocks[..step]))?;
            done += step as u64;
        }
        Ok(())
    }

    /// UNMAP; SBC-3 section 5.28. All ranges are checked before the first is given back.
    fn unmap(&self, data: &[u8]) -> Result<(), Status> {
        if data.is_empty() {
            return Ok(());
        }
        if data.len() < 8 {
            return Err(Sense::PARAMETER_LENGTH.into());
        }
        let length = usize::from(u16::from_be_bytes([data[2], data[3]])) / 16 * 16;
        let list = data[8..].get(..length).unwrap_or(&data[8..data.len() - (data.len() - 8) % 16]);
        if list.len() / 16 > UNMAP_RANGES_MAX as usize {
            return Err(Sense::parameter(2).into());
        }
        let ranges: Vec<(u64, u64)> = list
            .chunks_exact(16)
            .map(|range| {
                let block = u64::from_be_bytes(std::array::from_fn(|byte| range[byte]));
                let blocks = u32::from_be_bytes(std::array::from_fn(|byte| range[8 + byte]));
                (block, u64::from(blocks))
            })
            .collect();
        for (block, blocks) in &ranges {
            self.unit.check_range(*block, *blocks)?;
        }
        if ranges.iter().map(|range| range.1).sum::<u64>() > u64::from(UNMAP_BLOCKS_MAX) {
            return Err(Sense::parameter(8).into());
        }
        let size = u64::from(BLOCK_BYTES);
        for (block, blocks) in ranges.into_iter().filter(|range| range.1 > 0) {
            self.store(|store| store.zero(block * size, blocks * size, true))?;
        }
        Ok(())
    }

    /// GET LBA STATUS; SBC-3 section 5.6.
    fn extents(&self, at: u64, allocation: usize, into: &mut Vec<u8>) -> Result<(), Status> {
        let size = u64::from(BLOCK_BYTES);
        let count = (allocation.saturating_sub(8) / 16).clamp(1, EXTENTS_MAX);
        let length = self.unit.blocks() * size - at;
        let extents = self.store(|store| store.extents(at, length, count))?;
        let mut block = at / size;
        let mut data = vec![0; 8];
        for extent in extents.iter().take(count) {
            let blocks = u32::try_from(extent.length / size).unwrap_or(u32::MAX);
            data.extend(block.to_be_bytes());
            data.extend(blocks.to_be_bytes());
            data.extend([u8::from(extent.is_hole), 0, 0, 0]);
            block += u64::from(blocks);
        }
        let length = u32::try_from(data.len() - 4).expect("the count is bounded");
        data[..4].copy_from_slice(&length.to_be_bytes());
        data.truncate(allocation);
        *into = data;
        Ok(())
    }

    /// PERSISTENT RESERVE OUT. The state is kept before anybody can see it.
    fn reserve(&self, action: u8, scope_and_kind: u8, data: &[u8]) -> Result<(), Status> {
        let notices = {
            let mut state = self.unit.state.lock();
            let mut after = state.reservations.clone();
            let port = self.link.port();
            let notices =
                after.change(port, action, scope_and_kind, data).map_err(
                    |refusal| match refusal {
                        Refusal::Conflict => Status::Conflict,
                        Refusal::Check(sense) => Status::Check(sense),
                    },
                )?;
            if after.outlasts_restart() && !self.unit.has_keeper() {
                // APTPL without a place to keep it.
                return Err(Sense::parameter(20).into());
            }
            let before = state.reservations.outlasts_restart();
            if before || after.outlasts_restart() {
                // The lock is held: two changes are kept in their order.
                self.unit.keep(&after.kept()).map_err(Sense::of_store)?;
            }
            state.reservations = after;
            notices
        };
        self.unit.notify(&notices);
        Ok(())
    }

    fn sanitize(&self, action: u8, at_once: bool, data: &[u8]) -> Outcome {
        let erasure = match sanitize::erasure(action, data) {
            Ok(erasure) => erasure,
            Err(sense) => return Outcome::Done(sense.into()),
        };
        {
            // Jobs that run now end first; later ones find the mark.
            let _alone = self.unit.gate.alone();
            self.unit.state.lock().sanitizing = Sanitizing::Runs(0);
        }
        if at_once {
            return Outcome::Continues(Self::new(&self.unit, &self.link, Work::Erase(erasure)));
        }
        match sanitize::run(&self.unit, &erasure) {
            Ok(()) => Outcome::Done(Status::Good),
            // SANITIZE COMMAND FAILED.
            Err(_) => Outcome::Done(Sense::new(Key::Medium, 0x31, 0x03).into()),
        }
    }
}

/// The whole blocks of `data`, at most `length` bytes.
fn whole_blocks(data: &[u8], length: u64) -> &[u8] {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(data.len());
    &data[..length / BLOCK_BYTES as usize * BLOCK_BYTES as usize]
}
