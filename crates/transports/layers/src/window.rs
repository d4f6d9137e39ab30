//! Windows: memory on the own node, calls to other nodes.

use weft_fabric::{Window, WindowError, Word};
use weft_transport_ofi::OfiWindow;
use weft_transport_ofi::nic::Nic;
use weft_transport_shm::ShmWindow;

/// A window to a region of a peer, on either way.
#[derive(Debug)]
pub enum LayeredWindow<N: Nic + 'static> {
    /// The peer is on the own node: the window is memory, and may be mapped elsewhere
    /// ([`weft_fabric::HostWindow`]).
    Near(ShmWindow),
    /// The peer is on another node: each access is a call.
    Far(OfiWindow<N>),
}

impl<N: Nic> Window for LayeredWindow<N> {
    fn length(&self) -> u64 {
        match self {
            Self::Near(window) => window.length(),
            Self::Far(window) => window.length(),
        }
    }

    fn load(&self, offset: u64, target: &mut [u8]) -> Result<(), WindowError> {
        match self {
            Self::Near(window) => window.load(offset, target),
            Self::Far(window) => window.load(offset, target),
        }
    }

    fn store(&self, offset: u64, source: &[u8]) -> Result<(), WindowError> {
        match self {
            Self::Near(window) => window.store(offset, source),
            Self::Far(window) => window.store(offset, source),
        }
    }

    fn load_word<W: Word>(&self, offset: u64) -> Result<W, WindowError> {
        match self {
            Self::Near(window) => window.load_word(offset),
            Self::Far(window) => window.load_word(offset),
        }
    }

    fn store_word<W: Word>(&self, offset: u64, word: W) -> Result<(), WindowError> {
        match self {
            Self::Near(window) => window.store_word(offset, word),
            Self::Far(window) => window.store_word(offset, word),
        }
    }
}
