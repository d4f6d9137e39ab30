//! Plain reads and writes of files by io_uring, begun and ended on the thread of their connection.
//!
//! Invariants: while one is on its way it holds the gate of its unit, and the thread runs nothing
//! that could wait for that gate. What cannot be begun here goes to the threads of the unit: bytes
//! that are not aligned, large ones, FUA, and those for which there is no room.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::io::Errno;
use weft_block::scsi::{Direct, Job, Sense, Status};
use weft_block::store::StoreError;
use weft_file_io::{Action, Done, Engine, Options, Pool, Request, Space, Way};

use crate::file::{RingFile, write_error};

/// Requests of a thread that are on their way, at most.
const DEPTH: u32 = 64;
/// Bytes of a request, at most. A buffer takes memory only where it was used.
const BYTES_MAX: usize = 1 << 20;

/// A command with what its answer needs, which the driver of its protocol knows.
pub(crate) struct Carried<T> {
    /// Names the command.
    pub ticket: T,
    /// Bytes that the initiator sent.
    pub data: Vec<u8>,
    /// Gets those that it is sent.
    pub into: Vec<u8>,
}

struct Open<T> {
    carried: Carried<T>,
    direct: Direct,
    /// Bytes before those that were asked for, as far as the alignment asks for them.
    skip: usize,
    began: Instant,
}

struct Works {
    engine: Engine,
    buffers: Pool,
}

/// The requests of one thread. It has a ring as soon as it needs one.
pub(crate) struct Ring<T> {
    works: Option<Works>,
    is_refused: bool,
    open: HashMap<u64, Open<T>>,
    next: u64,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { works: None, is_refused: false, open: HashMap::new(), next: 0 }
    }
}

impl<T> Ring<T> {
    /// Whether a job may run on this thread now: it is quick, and waits for nothing that this
    /// thread has on its way. Memory is never reached by a ring.
    pub fn may_run_in_place(&self, job: &Job) -> bool {
        job.is_quick() && (self.open.is_empty() || job.unit().store().is_quick())
    }

    /// Begins a job, or gives back what was carried: it goes to the threads of its unit.
    pub fn begin(&mut self, job: &Job, carried: Carried<T>) -> Result<(), Carried<T>> {
        match self.prepare(job, &carried) {
            Some((direct, request, skip)) => self.submit(direct, request, skip, carried),
            None => Err(carried),
        }
    }

    fn prepare(&mut self, job: &Job, carried: &Carried<T>) -> Option<(Direct, Request, usize)> {
        let store = job.unit().store();
        store.file()?;
        let direct = job.direct_in_file()?;
        let RingFile { file, alignment } = direct.store().file()?.downcast_ref::<RingFile>()?;
        let (at, length) = direct.range();
        let length = usize::try_from(length).ok()?;
        let skip = usize::try_from(at % *alignment as u64).ok()?;
        let whole = (skip + length).next_multiple_of(*alignment);
        let is_aligned = skip == 0 && whole == length;
        if whole > BYTES_MAX || (direct.writes() && !is_aligned) {
            return None;
        }
        let mut buffer = self.works()?.buffers.take()?;
        let at = at - skip as u64;
        let action = match direct.writes() {
            true => {
                buffer[..length].copy_from_slice(carried.data.get(..length)?);
                Action::Write { at }
            }
            false => Action::Read { at },
        };
        let space = Some(Space::buffer(buffer, 0, whole));
        let file = std::sync::Arc::clone(file);
        Some((direct, Request { token: self.next, file, action, space }, skip))
    }

    fn works(&mut self) -> Option<&mut Works> {
        if self.works.is_none() && !self.is_refused {
            let engine = Engine::new(&Options { depth: DEPTH, way: Way::Uring });
            let buffers = Pool::new(BYTES_MAX, DEPTH as usize);
            self.works = match (engine, buffers) {
                (Ok(engine), Ok(buffers)) => Some(Works { engine, buffers }),
                (engine, _) => {
                    tracing::warn!("a thread has no ring: {:?}", engine.err());
                    self.is_refused = true;
                    None
                }
            };
        }
        self.works.as_mut()
    }

    fn submit(
        &mut self,
        direct: Direct,
        request: Request,
        skip: usize,
        carried: Carried<T>,
    ) -> Result<(), Carried<T>> {
        let Some(works) = &mut self.works else { return Err(carried) };
        if works.engine.submit(request).is_err() {
            return Err(carried);
        }
        let began = Instant::now();
        self.open.insert(self.next, Open { carried, direct, skip, began });
        self.next += 1;
        Ok(())
    }

    /// The descriptor that can be read when some have ended, as soon as there is a ring.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.works.as_ref().and_then(|works| works.engine.descriptor())
    }

    /// Lets the kernel begin what was begun here, and takes what has ended. It does not wait.
    pub fn take(&mut self) -> Vec<(Carried<T>, Status)> {
        let mut done = Vec::new();
        if let Some(works) = self.works.as_mut().filter(|_| !self.open.is_empty())
            && let Err(error) = works.engine.wait(0, &mut done)
        {
            // Operations on their way are taken the next time.
            tracing::error!("a ring cannot be entered: {error}");
        }
        done.into_iter().filter_map(|done| self.end(done)).collect()
    }

    fn end(&mut self, Done { token, result, space }: Done) -> Option<(Carried<T>, Status)> {
        let Open { mut carried, direct, skip, began } = self.open.remove(&token)?;
        let length = usize::try_from(direct.range().1).expect("it fits a buffer");
        let moved = match (result, space.and_then(Space::into_buffer)) {
            (Ok(_), _) if direct.writes() => Ok(()),
            (Ok(bytes), Some(buffer)) if bytes >= skip + length => {
                carried.into.clear();
                carried.into.extend_from_slice(&buffer[skip..skip + length]);
                Ok(())
            }
            (Err(errno), _) if direct.writes() => Err(error_of_write(errno)),
            _ => Err(StoreError::Unreadable),
        };
        let status = direct.end(moved.map_err(Sense::of_store), began.elapsed());
        Some((carried, status))
    }
}

fn error_of_write(errno: Errno) -> StoreError {
    write_error(&errno.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::time::Duration;

    use weft_block::scsi::{Begun, Identity, Link, NoUnits, Port, Unit, UnitOptions};
    use weft_block::store::Store;

    use super::*;
    use crate::file::{FileOptions, FileStore};
    use crate::memory::MemoryStore;

    fn unit(store: Arc<dyn Store>) -> (Arc<Unit>, Arc<Link>) {
        let identity = Identity::new("iqn.2026-11.example:ring", 0);
        let unit = Unit::new(identity, UnitOptions::default(), store, None, None).expect("fresh");
        let port = Port { name: "iqn.2026-11.example:host".to_owned(), isid: [0; 6] };
        let link = unit.attach(&port).expect("room");
        (Arc::new(unit), link)
    }

    fn carried() -> Carried<u32> {
        Carried { ticket: 7, data: vec![1; 2 << 20], into: Vec::new() }
    }

    #[test]
    fn while_a_request_is_on_its_way_nothing_runs_that_could_wait_for_its_end() {
        // Not below /tmp, which may be a file system without direct access.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
        let (path, bytes) = (directory.path().join("disk"), 4 << 20);
        let content: Vec<u8> = (0..=250).cycle().take(bytes).collect();
        fs::write(&path, &content).expect("room");
        let options = FileOptions { direct: Some(Way::Auto), is_read_only: false };
        let Ok(store) = FileStore::open(&path, options) else { return };
        if store.file().is_none() {
            println!("the kernel has no io_uring: not tried");
            return;
        }
        let (unit, link) = unit(Arc::new(store));
        let memory = Arc::new(MemoryStore::new(1 << 20, None).expect("memory"));
        let (other, other_link) = self::unit(memory);
        // A new session is told so by the first command.
        let _ = unit.begin(&link, &[0; 16], &NoUnits);
        let mut select = [0; 16];
        (select[0], select[1], select[4]) = (0x15, 0x10, 16);
        let Begun::Job(select) = unit.begin(&link, &select, &NoUnits) else {
            unreachable!("MODE SELECT has parameters")
        };
        let mut ring = Ring::default();
        assert!(ring.may_run_in_place(&select));
        let read = Job::read(&unit, &link, 1_000, 5_000);
        assert!(ring.begin(&read, carried()).is_ok());
        assert!(!ring.may_run_in_place(&select));
        assert!(ring.may_run_in_place(&Job::read(&other, &other_link, 0, 512)));
        let began = Instant::now();
        let (carried_back, status) = loop {
            if let Some(ended) = ring.take().pop() {
                break ended;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "it does not end");
        };
        assert_eq!((carried_back.ticket, status), (7, Status::Good));
        assert!(carried_back.into == content[1_000..6_000]);
        assert!(ring.may_run_in_place(&select));
        let writes = |at, length, fua| Job::write(&unit, &link, at, length, fua);
        for job in [writes(0, 4_096, true), writes(1_000, 500, false), writes(0, 2 << 20, false)] {
            assert!(ring.begin(&job, carried()).is_err(), "it is for the threads");
        }
        assert!(Job::is_unit_idle(&unit));
    }
}
