//! The translation of the last key that operations used one after another. The NIC's ATU likewise
//! caches its last translations (EXTOLL-THESIS#3.2.5).
//!
//! # Invariants
//! - The peer is alive and not cut off: the endpoint drops its translation when any peer is gone,
//!   and when one is cut off.
//! - The memory is used only between two looks at the stamp, as that of any other key.

use weft_fabric::{Access, OperationError, Peer, RemoteKey};
use weft_memory::{Part, PartMut, Span, View};
use weft_sync::fence;

use crate::endpoint::ShmEndpoint;
use crate::memory::{KeyParts, Mapped};
use crate::registers::{Stamp, StampWord};

/// A key of a peer and its memory, at hand.
#[derive(Debug)]
pub(crate) struct Recent {
    to: Peer,
    key: RemoteKey,
    word: View<StampWord>,
    span: Span,
    mapped: Mapped,
}

/// The translation at hand, and the key that will be if it is used once more.
///
/// Making a translation costs more than ten look-ups save, so a program that goes from key to key
/// makes none.
#[derive(Debug, Default)]
pub(crate) struct Recently {
    at_hand: Option<Recent>,
    used: Option<(Peer, RemoteKey)>,
}

impl Recently {
    /// Puts the translation away: the next operation looks its key up, and makes it again.
    pub fn forget(&mut self) {
        self.at_hand = None;
    }

    /// The translation of this key, whether or not the key is in force.
    #[inline(always)]
    pub fn of(&self, to: Peer, key: RemoteKey) -> Option<&Recent> {
        self.at_hand.as_ref().filter(|recent| recent.to == to && recent.key == key)
    }

    /// As [`Mapped::confirm_slowly`], for the translation that was just used.
    ///
    /// # Errors
    /// As [`Mapped::confirm_slowly`].
    #[cold]
    #[inline(never)]
    pub fn confirm_slowly(&self) -> Result<(), OperationError> {
        let recent = self.at_hand.as_ref().ok_or(OperationError::InvalidKey)?;
        recent.mapped.confirm_slowly(&recent.word)
    }
}

/// The looks at a stamp before and behind an operation. Its parts stay in registers of the
/// processor meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Look<'a> {
    word: &'a StampWord,
    looked_for: Stamp,
}

impl Look<'_> {
    /// Whether an operation by `recent` that was announced may use the memory.
    #[inline(always)]
    pub fn serves(&self, recent: &Recent) -> bool {
        self.word.stamp() == self.looked_for || recent.mapped.serves_fenced(self.word)
    }

    /// As [`Mapped::is_confirmed`].
    #[inline(always)]
    pub fn is_confirmed(&self) -> bool {
        fence::light(false);
        self.word.stamp() == self.looked_for
    }
}

impl Recent {
    /// The stamp at which an operation looks before and behind its access.
    #[inline(always)]
    pub fn look(&self) -> Look<'_> {
        Look { word: &self.word, looked_for: self.mapped.looked_for }
    }

    /// The bytes that a get may read, if the key allows it.
    #[inline(always)]
    pub fn readable(&self, offset: u64, length: u64) -> Option<Part<'_>> {
        if self.grants(Access::READ) { self.span.part(offset, length) } else { None }
    }

    /// The bytes that a put may write, if the key allows it.
    #[inline(always)]
    pub fn writable(&self, offset: u64, length: u64) -> Option<PartMut<'_>> {
        self.span.part_mut(offset, length)
    }

    /// The range of the key.
    #[inline(always)]
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Whether the key grants this access.
    #[inline(always)]
    pub fn grants(&self, access: Access) -> bool {
        self.mapped.access.contains(access)
    }
}

impl ShmEndpoint {
    /// A key was looked up: from the second time in a row on its translation is kept at hand.
    #[inline]
    pub(crate) fn looked_up(&mut self, to: Peer, key: RemoteKey) {
        if self.recently.used == Some((to, key)) {
            self.keep_at_hand(to, key);
        } else {
            self.recently.used = Some((to, key));
        }
    }

    #[cold]
    #[inline(never)]
    fn keep_at_hand(&mut self, to: Peer, key: RemoteKey) {
        let Ok(peer) = self.peers.live(to) else { return };
        let Some((translated, _)) = peer.split(key) else { return };
        let mapped = translated.mapped.clone();
        let Ok(length) = usize::try_from(mapped.length) else { return };
        let writable = mapped.access.contains(Access::WRITE);
        let span = Span::new(&mapped.segment, mapped.start, length, writable);
        let word = peer.registers.stamp_view(KeyParts::of(key).slot);
        self.recently.at_hand = Some(Recent { to, key, word, span, mapped });
    }
}
