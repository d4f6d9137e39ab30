//! A disk in memory for tests: it forgets or tears what was not synced, fails when it is told to,
//! and can be full.
//!
//! Always true: after [`SimulatedDisk::crash`], a file has what its last sync saw, with any subset
//! of the 512-byte sectors written since; names made or removed since the last sync of names are
//! there or not. After [`SimulatedDisk::kill`] (the process ends, the machine goes on) everything
//! that was written is there.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile};

/// Bytes that a device writes whole.
pub const SECTOR: usize = 512;

/// A change of a disk, counted by [`SimulatedDisk::fail_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process ends in this step: half of the bytes of a write are there, and every later
    /// step fails.
    Kill,
    /// This write or sync fails, and later ones succeed.
    Error,
}

/// A disk of its own state; clones share it.
#[derive(Clone)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Default)]
struct State {
    names: BTreeMap<String, u64>,
    lasting_names: BTreeMap<String, u64>,
    files: BTreeMap<u64, Bytes>,
    next: u64,
    steps: u64,
    fault: Option<(u64, Fault)>,
    dead: bool,
    capacity: Option<u64>,
    generation: u64,
}

#[derive(Default, Clone)]
struct Bytes {
    now: Vec<u8>,
    lasting: Vec<u8>,
}

struct SimulatedFile {
    state: Arc<Mutex<State>>,
    number: u64,
    generation: u64,
}

impl Default for SimulatedDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimulatedDisk {
    /// An empty disk without limit.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::default() }
    }

    /// A disk of its own with the same files.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.state.lock().clone())) }
    }

    /// Lets step number `step` (counted from now, the first is 0) fail.
    pub fn fail_at(&self, step: u64, fault: Fault) {
        let mut state = self.state.lock();
        let at = state.steps + step;
        state.fault = Some((at, fault));
    }

    /// Most bytes of all files together; `None` is no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Writes, syncs and changes of names until now.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Whether a [`Fault::Kill`] happened.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// Bytes of all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// The process ended; files that were open are of no use any more.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.dead = false;
        state.fault = None;
    }

    /// The power went: `choose(n)` returns a number below n for each decision of what was kept.
    pub fn crash(&self, mut choose: impl FnMut(u64) -> u64) {
        self.kill();
        let mut state = self.state.lock();
        let mut names = state.lasting_names.clone();
        for (name, number) in &state.names {
            if !names.contains_key(name) && choose(2) == 0 {
                names.insert(name.clone(), *number);
            }
        }
        for (name, number) in &state.lasting_names {
            if state.names.get(name) != Some(number) && choose(2) == 0 {
                names.remove(name);
            }
        }
        let kept: Vec<u64> = names.values().copied().collect();
        state.files.retain(|number, _| kept.contains(number));
        for file in state.files.values_mut() {
            file.tear(&mut choose);
        }
        state.lasting_names.clone_from(&names);
        state.names = names;
    }

    /// Changes bytes of a file behind the back of its store.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state.lock();
        let number = state.names[name];
        let file = state.files.get_mut(&number).expect("a file of each name");
        change(&mut file.now);
        file.lasting.clone_from(&file.now);
    }

    /// Names and sizes.
    #[must_use]
    pub fn sizes(&self) -> Vec<(String, u64)> {
        let state = self.state.lock();
        let size = |number: &u64| state.files.get(number).map_or(0, |file| file.now.len() as u64);
        state.names.iter().map(|(name, number)| (name.clone(), size(number))).collect()
    }

    fn file(&self, state: &State, number: u64) -> Arc<dyn DiskFile> {
        let generation = state.generation;
        Arc::new(SimulatedFile { state: Arc::clone(&self.state), number, generation })
    }
}

impl Bytes {
    /// Keeps of each sector what was synced or what was written since.
    fn tear(&mut self, choose: &mut impl FnMut(u64) -> u64) {
        if self.now == self.lasting {
            return;
        }
        if self.now.len() != self.lasting.len() && choose(2) == 0 {
            self.lasting.resize(self.now.len(), 0);
        }
        let keeps_all = choose(4) == 0;
        for (index, old) in self.lasting.chunks_mut(SECTOR).enumerate() {
            let new = self.now.get(index * SECTOR..).unwrap_or_default();
            let bytes = old.len().min(new.len());
            if old[..bytes] != new[..bytes] && (keeps_all || choose(2) == 0) {
                old[..bytes].copy_from_slice(&new[..bytes]);
            }
        }
        self.now.clone_from(&self.lasting);
    }
}

impl State {
    fn used(&self) -> u64 {
        self.files.values().map(|file| file.now.len() as u64).sum()
    }

    /// Counts a step. `Ok(true)`: do half of it, then the process is dead.
    fn step(&mut self) -> io::Result<bool> {
        if self.dead {
            return Err(io::Error::other("the simulated process has ended"));
        }
        let step = self.steps;
        self.steps += 1;
        match self.fault {
            Some((at, Fault::Kill)) if at == step => {
                self.dead = true;
                Ok(true)
            }
            Some((at, Fault::Error)) if at == step => Err(io::Error::other("simulated EIO")),
            _ => Ok(false),
        }
    }

    fn check_room(&self, more: u64) -> io::Result<()> {
        if self.capacity.is_some_and(|capacity| self.used() + more > capacity) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "simulated full disk"));
        }
        Ok(())
    }
}

const ENDED: &str = "the simulated process has ended";

impl Disk for SimulatedDisk {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        if state.step()? {
            return Err(io::Error::other(ENDED));
        }
        state.check_room(bytes)?;
        let number = state.next;
        state.next += 1;
        let now = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        state.files.insert(number, Bytes { now, lasting: Vec::new() });
        state.names.insert(name.to_owned(), number);
        Ok(self.file(&state, number))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.state.lock();
        let number = state.names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(&state, number))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.step()? {
            return Err(io::Error::other(ENDED));
        }
        let number = state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        if !state.lasting_names.values().any(|lasting| *lasting == number) {
            state.files.remove(&number);
        }
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().names.keys().cloned().collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.step()? {
            return Err(io::Error::other(ENDED));
        }
        state.lasting_names = state.names.clone();
        let kept: Vec<u64> = state.names.values().copied().collect();
        state.files.retain(|number, _| kept.contains(number));
        Ok(())
    }
}

impl SimulatedFile {
    fn change<R>(
        &self,
        half: impl FnOnce(&mut Bytes),
        whole: impl FnOnce(&mut State, u64) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut state = self.state.lock();
        if self.generation != state.generation {
            return Err(io::Error::other(ENDED));
        }
        if state.step()? {
            if let Some(file) = state.files.get_mut(&self.number) {
                half(file);
            }
            return Err(io::Error::other(ENDED));
        }
        whole(&mut state, self.number)
    }
}

fn put(file: &mut Bytes, offset: u64, bytes: &[u8]) {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    if file.now.len() < start + bytes.len() {
        file.now.resize(start + bytes.len(), 0);
    }
    file.now[start..start + bytes.len()].copy_from_slice(bytes);
}

impl DiskFile for SimulatedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        let file = state.files.get(&self.number).ok_or(io::ErrorKind::NotFound)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(file.now.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let half = |file: &mut Bytes| put(file, offset, &bytes[..bytes.len() / 2]);
        self.change(half, |state, number| {
            let size = state.files.get(&number).map_or(0, |file| file.now.len() as u64);
            state.check_room((offset + bytes.len() as u64).saturating_sub(size))?;
            if let Some(file) = state.files.get_mut(&number) {
                put(file, offset, bytes);
            }
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.change(
            |_| {},
            |state, number| {
                if let Some(file) = state.files.get_mut(&number) {
                    file.lasting.clone_from(&file.now);
                }
                Ok(())
            },
        )
    }

    fn size(&self) -> io::Result<u64> {
        let state = self.state.lock();
        let file = state.files.get(&self.number).ok_or(io::ErrorKind::NotFound)?;
        Ok(file.now.len() as u64)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.change(
            |_| {},
            |state, number| {
                if let Some(file) = state.files.get_mut(&number) {
                    file.now.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
                }
                Ok(())
            },
        )
    }
}
