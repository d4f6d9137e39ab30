//! PEs of other hosts, whose memory is not mapped here: what is done to it goes over the fabric.
//!
//! An operation on such a PE is a question or a change in a message to it, of which its own process
//! changes the memory; large puts and gets are those of the fabric. A job on one host has none of
//! this: nothing is [installed](install), and no operation comes here.
//!
//! | module | what it is |
//! |---|---|
//! | `entry` | the bytes of messages |
//! | `eager` | data that wait for a collective call |
//! | `pes` | sets of PEs |
//! | `link`, `machine` | what goes to and comes from PEs, without input and output |
//! | `driver` | the same over an endpoint of the fabric |
//! | `own` | the memory of this PE, as messages change it |
//! | `fuzz` | peers that send any bytes |
//! | `calls` | the operations of the program on such PEs |
//!
//! # Invariants
//! - The memory of a PE is changed by its own process and those of its host, by the processor. So
//!   there is one owner of the atomicity of each word.
//! - `remote` is called only for a PE of another host, and `install` came before.

pub(crate) mod calls;
pub mod driver;
pub mod eager;
pub mod entry;
pub mod fuzz;
pub mod link;
pub mod machine;
pub mod own;
mod pes;

use std::sync::OnceLock;
use std::time::Duration;

use weft_fabric::Atomic;

pub use driver::{
    Driver, Far, INLINE_BYTES, LANDING_BYTES, Lands, News, PIECE_BYTES, Regions, WORKSPACE,
    WORKSPACE_BYTES,
};
pub use entry::{Place, Segment};

/// The way to PEs of other hosts. Its calls wait where they have to, and end the job when a PE that
/// they wait for is gone.
pub trait Remote: Send + Sync {
    /// Puts bytes to a place. They may be reused when it returns. Unless it is `urgent`, a short
    /// put may wait for others.
    ///
    /// # Safety
    /// `from` must have the bytes.
    unsafe fn put(
        &self,
        call: &str,
        to: (usize, Place),
        from: *const u8,
        bytes: usize,
        urgent: bool,
    );

    /// Gets bytes of a place. Without `waits` they may come later, up to the next quiet or
    /// [`Remote::landed`].
    ///
    /// # Safety
    /// `into` must have room for the bytes, until the quiet if it does not wait.
    unsafe fn get(
        &self,
        call: &str,
        from: (usize, Place),
        into: *mut u8,
        bytes: usize,
        waits: bool,
    );

    /// Waits until all bytes have come that were asked for before.
    fn landed(&self, call: &str);

    /// Memory of [`WORKSPACE_BYTES`] for collectives. Many gets into it can be under way at a time.
    fn workspace(&self) -> *mut u8;

    /// Changes a word whose former value nobody wants.
    fn change(&self, call: &str, at: (usize, Place), atomic: Atomic);

    /// Changes a word, and gives its former value.
    fn fetch(&self, call: &str, at: (usize, Place), atomic: Atomic) -> u64;

    /// As [`Remote::fetch`]; the value comes to `into` later, up to the next quiet.
    ///
    /// # Safety
    /// `into` must have room for the word until the quiet.
    unsafe fn fetch_later(&self, call: &str, at: (usize, Place), atomic: Atomic, into: *mut u8);

    /// Sends data ahead for a collective call of a PE with its flags at a place.
    fn send_eager(&self, call: &str, to: (usize, Place), bytes: &[u8]);

    /// Takes the data that a PE sent for a call with its flags at a place, as many as there is
    /// room for. Ends the job if it sent more or fewer.
    fn take_eager(&self, call: &str, from: (usize, Place), into: &mut [u8]);

    /// Shows PEs of other hosts a part of the own control area.
    fn show(&self, to: &mut dyn Iterator<Item = usize>, offset: usize, bytes: &[u8]);

    /// Orders what came before to each PE before what comes later.
    fn fence(&self);

    /// Waits until all that came before is visible at all PEs, or at some.
    fn quiet(&self, call: &str, only: Option<&[usize]>);

    /// Handles what came. Whether anything did.
    fn poll(&self) -> bool;

    /// Sleeps until something came, at most for a time.
    fn sleep(&self, at_most: Duration);
}

static REMOTE: OnceLock<&'static dyn Remote> = OnceLock::new();

/// Says how PEs of other hosts are reached. The first call counts.
pub fn install(remote: &'static dyn Remote) {
    let _ = REMOTE.set(remote);
}

/// The way to PEs of other hosts, if there are any.
#[inline]
pub fn installed() -> Option<&'static dyn Remote> {
    REMOTE.get().copied()
}

/// The way to a PE of another host.
///
/// # Panics
/// When [`install`] was not called: no PE is of another host then.
pub(crate) fn remote() -> &'static dyn Remote {
    installed().expect("a PE of another host is known when there is a way to it")
}
