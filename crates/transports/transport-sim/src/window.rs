//! Windows: an access to a peer's region lets the world run until its response arrives.

use weft_fabric::{
    Command, Operation, OperationError, Peer, RemoteKey, Target, Window, WindowError, Word,
};

use crate::memory::bytes_of;
use crate::rma::{Call, PutSource, Reply, Wanted, WantedGet, WantedPut};
use crate::world::{Id, SimWorld, WorldState};

/// A window to a peer's region. An access takes virtual time. It ends with the response, or with
/// [`OperationError::PeerDown`] if no response can arrive any more.
#[derive(Debug)]
pub struct SimWindow {
    world: SimWorld,
    endpoint: Id,
    peer: Peer,
    key: RemoteKey,
    length: u64,
}

impl SimWindow {
    /// Opens a window of `endpoint` to the region of `key`.
    pub(crate) fn open(
        world: &SimWorld,
        endpoint: Id,
        peer: Peer,
        key: RemoteKey,
    ) -> Result<Self, WindowError> {
        let state = world.lock();
        let target = state.target_of(endpoint, peer)?;
        let length = state.key_length(endpoint, target, key)?;
        drop(state);
        Ok(Self { world: world.clone(), endpoint, peer, key, length })
    }

    /// A range that leaves the window, or a key that is void, is found by the access itself.
    fn check_aligned(&self, offset: u64, width: u64) -> Result<(), WindowError> {
        let state = self.world.lock();
        let target = state.target_of(self.endpoint, self.peer)?;
        let start = state.key_start(self.endpoint, target, self.key)?;
        if start.wrapping_add(offset).is_multiple_of(width) {
            return Ok(());
        }
        Err(OperationError::Misaligned { offset, alignment: width })
    }

    fn access(&self, what: Wanted) -> Result<Vec<u8>, WindowError> {
        let mut state = self.world.lock();
        let call = Call { what, operation: Operation::new(0) };
        let operation = state.issue(self.endpoint, self.peer, call, Reply::Window)?;
        loop {
            let endpoint = &mut state.endpoints[self.endpoint];
            if let Some(result) = endpoint.window_results.remove(&operation) {
                return result;
            }
            if !endpoint.alive || !WorldState::step_until(&mut state, u64::MAX) {
                state.endpoints[self.endpoint].pending.remove(&operation);
                return Err(OperationError::PeerDown);
            }
        }
    }
}

impl Window for SimWindow {
    fn length(&self) -> u64 {
        self.length
    }

    fn load(&self, offset: u64, target: &mut [u8]) -> Result<(), WindowError> {
        let source = Target::new(self.key, offset);
        let length = bytes_of(target.len());
        let get = WantedGet { source, into: None, length };
        let bytes = self.access(Wanted::Get(vec![get]))?;
        target.copy_from_slice(&bytes);
        Ok(())
    }

    fn store(&self, offset: u64, source: &[u8]) -> Result<(), WindowError> {
        let target = Target::new(self.key, offset);
        let length = bytes_of(source.len());
        let source = PutSource::Bytes(source.to_vec());
        let ranges = vec![WantedPut { source, target, length }];
        let what = Wanted::Put { command: Command::Put, ranges, signal: None };
        self.access(what).map(drop)
    }

    fn load_word<W: Word>(&self, offset: u64) -> Result<W, WindowError> {
        self.check_aligned(offset, W::BYTES.into())?;
        let mut bytes = [0; 8];
        self.load(offset, &mut bytes[..W::BYTES.into()])?;
        Ok(W::of_value(u64::from_le_bytes(bytes)))
    }

    fn store_word<W: Word>(&self, offset: u64, word: W) -> Result<(), WindowError> {
        self.check_aligned(offset, W::BYTES.into())?;
        self.store(offset, &word.value().to_le_bytes()[..W::BYTES.into()])
    }
}
