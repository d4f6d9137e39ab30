//! Windows: each access is an operation that the caller waits for.

use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{
    Command, Issued, Operation, OperationError, Peer, RemoteKey, Source, Target, Window,
    WindowError, Word,
};

use crate::engine::{Into, Reply, Wanted};
use crate::nic::Nic;
use crate::packet::Request;
use crate::region::OfiRegion;
use crate::shared::Shared;

/// How long the owner of a key may take to say where it is.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);
/// The context of the question for a key. A program that uses it too sees its own call end late.
const CONTEXT: u64 = u64::MAX - 1;

/// A window to a peer's region. An access takes the time of a message there and back.
#[derive(Debug)]
pub struct OfiWindow<N: Nic + 'static> {
    shared: Arc<Shared<N>>,
    peer: Peer,
    key: RemoteKey,
    length: u64,
}

impl<N: Nic> OfiWindow<N> {
    pub(crate) fn open(
        shared: &Arc<Shared<N>>,
        peer: Peer,
        key: RemoteKey,
    ) -> Result<Self, WindowError> {
        let issued = shared.lock().engine.resolve(peer, key, CONTEXT)?;
        if issued == Issued::Pending {
            let end = shared.now() + RESOLVE_WITHIN;
            loop {
                let ended = shared.progress().engine.take_ended(CONTEXT);
                if let Some(completion) = ended {
                    completion.result?;
                    break;
                }
                let now = shared.now();
                if now >= end {
                    shared.lock().give_up(CONTEXT);
                    let reason = "the peer does not answer".to_owned();
                    return Err(OperationError::Broker { reason });
                }
                shared.sleep(end - now);
            }
        }
        let length = shared.lock().engine.known(peer, key)?.length;
        Ok(Self { shared: Arc::clone(shared), peer, key, length })
    }

    fn access(&self, wanted: Wanted<'_>) -> Result<(u64, Vec<u8>), WindowError> {
        let operation = Operation::new(0);
        let number =
            self.shared.lock().engine.issue(self.peer, wanted, operation, Reply::Window)?;
        loop {
            // A peer that does not answer is reported down some time, which ends the operation.
            let result = self.shared.progress().engine.take_window_result(number);
            if let Some(result) = result {
                return result;
            }
            self.shared.sleep(Duration::from_millis(20));
        }
    }

    fn ask(&self, command: Command, request: Request) -> Result<u64, WindowError> {
        let range = (self.key, 0, 0);
        Ok(self.access(Wanted::Ask(Some(command), request, range))?.0)
    }
}

impl<N: Nic> Window for OfiWindow<N> {
    fn length(&self) -> u64 {
        self.length
    }

    fn load(&self, offset: u64, target: &mut [u8]) -> Result<(), WindowError> {
        let into = Into::Window(target.len() as u64);
        let (_, bytes) = self.access(Wanted::Get(vec![(Target::new(self.key, offset), into)]))?;
        target.copy_from_slice(&bytes);
        Ok(())
    }

    fn store(&self, offset: u64, source: &[u8]) -> Result<(), WindowError> {
        let source: Source<'_, OfiRegion> = Source::Bytes(source);
        self.access(Wanted::Put(vec![(source, Target::new(self.key, offset))], None)).map(drop)
    }

    fn load_word<W: Word>(&self, offset: u64) -> Result<W, WindowError> {
        let target = Target::new(self.key, offset);
        self.ask(Command::Get, Request::Load { target, length: W::BYTES }).map(W::of_value)
    }

    fn store_word<W: Word>(&self, offset: u64, word: W) -> Result<(), WindowError> {
        let target = Target::new(self.key, offset);
        let (value, length) = (word.value(), W::BYTES);
        let request = Request::Store { target, value, length, is_word: true };
        self.ask(Command::Put, request).map(drop)
    }
}
