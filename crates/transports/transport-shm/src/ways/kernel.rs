//! The kernel's copy between this process and that of a peer: `process_vm_readv(2)` and
//! `process_vm_writev(2)`.
//!
//! The kernel says which process a peer is: the one that made the socket by which the peer is
//! woken. The process shows itself by a word of its memory, its *sign*, whose address and value are
//! in its registers. The sign is read before a copy and behind it, so that a process that took the
//! number of a dead one, or a program that took the place of another by exec, is noticed.
//!
//! # Invariants
//! - Nothing is written unless the process lived and showed its sign just before.
//! - An operation ends well only if it did so behind the copy, too, and the key was in force.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use weft_fabric::{Command, Issued, LocalRange, Operation, OperationError, Peer, Source, Target};
use weft_memory::{CopyError, Process};

use super::InPlace;
use crate::address_vector::PeerState;
use crate::door;
use crate::endpoint::ShmEndpoint;
use crate::memory::{KeyParts, ShmRegion};
use crate::registers::Registers;
use crate::rma::{Account, Missing, check_notify, kept, source_start};
use crate::sys;

/// Bytes that the kernel copies between two looks at the stamp of a key: a millisecond or two, so
/// that a revocation does not wait for long.
const PIECE_BYTES: usize = 8 << 20;

/// A word of this process by which peers know it.
#[derive(Debug)]
pub struct Sign(Box<AtomicU64>);

impl Sign {
    /// A sign that peers find by these registers.
    pub fn show(registers: &Registers) -> Self {
        // A value that is not there by chance: neither zero nor one that was there before.
        let sign = Self(Box::new(AtomicU64::new(sys::random() | 1)));
        let address = std::ptr::from_ref::<AtomicU64>(&sign.0).addr() as u64;
        registers.show_sign(address, sign.0.load(Ordering::Relaxed));
        sign
    }
}

impl Sign {
    /// The endpoint ends: nothing is written to its process any more.
    pub fn take_down(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// The process of a peer, as far as the kernel copies to and from it.
#[derive(Debug)]
pub enum Owner {
    /// Nobody has asked yet.
    Unknown,
    /// The kernel lets this process.
    Open { process: Process, sign: (u64, u64) },
    /// It does not.
    Shut { errno: i32 },
}

impl Owner {
    /// The process that made `socket`, if the kernel lets this one read its sign.
    fn ask(socket: BorrowedFd<'_>, registers: &Registers) -> Self {
        let sign = registers.sign();
        let process = match Process::that_made(socket) {
            Ok(process) => process,
            Err(error) => return Self::Shut { errno: errno_of(error) },
        };
        match process.word(sign.0) {
            Ok(value) if value == sign.1 && process.lives() => Self::Open { process, sign },
            // Another process, which somebody took for the peer.
            Ok(_) => Self::Shut { errno: weft_fabric::errno::ESRCH },
            Err(error) => Self::Shut { errno: errno_of(error) },
        }
    }

    /// The descriptor by which the process is held.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Open { process, .. } => Some(process.as_fd()),
            Self::Unknown | Self::Shut { .. } => None,
        }
    }

    /// The process, if it is there and what it was.
    fn there(&self) -> Result<&Process, OperationError> {
        match self {
            Self::Open { process, sign } => {
                let shown = process.word(sign.0) == Ok(sign.1);
                if shown && process.lives() { Ok(process) } else { Err(OperationError::PeerDown) }
            }
            Self::Shut { errno } => Err(OperationError::KernelCopy { errno: *errno }),
            Self::Unknown => Err(OperationError::KernelCopy { errno: weft_fabric::errno::EINVAL }),
        }
    }
}

fn errno_of(error: CopyError) -> i32 {
    match error {
        CopyError::Ended => weft_fabric::errno::ESRCH,
        CopyError::Unmapped => weft_fabric::errno::EFAULT,
        CopyError::Refused { errno, .. } => errno,
    }
}

fn failed(error: CopyError) -> OperationError {
    match error {
        CopyError::Ended => OperationError::PeerDown,
        other => OperationError::KernelCopy { errno: errno_of(other) },
    }
}

impl PeerState {
    /// Whether a key that was looked at before is still in force.
    fn still(&self, found: &InPlace) -> Result<(), OperationError> {
        let word = self.registers.stamp_word(KeyParts::of(found.key).slot);
        if found.serves(word) { Ok(()) } else { Err(OperationError::InvalidKey) }
    }

    /// The key, and the address of its byte `offset`, when it allows `command` on the range.
    fn locate(
        &self,
        command: Command,
        target: Target,
        length: u64,
    ) -> Result<(InPlace, u64), OperationError> {
        let found = self.in_place(target.key).ok_or(OperationError::InvalidKey)?;
        let offset = found.check(command, target.offset, length)?;
        let refused = OperationError::KernelCopy { errno: weft_fabric::errno::EPERM };
        let address = found.address.ok_or(refused)?;
        // The range lies inside that of the key, which does not wrap.
        Ok((found, address.wrapping_add(offset)))
    }

    /// Copies in pieces, as long as the key is in force. `copy` gets the offset of a piece and its
    /// length.
    fn in_pieces(
        &self,
        found: &InPlace,
        length: usize,
        mut copy: impl FnMut(&Process, usize, usize) -> Result<(), CopyError>,
    ) -> Result<(), OperationError> {
        let mut done = 0;
        loop {
            let process = self.owner.there()?;
            self.still(found)?;
            let piece = PIECE_BYTES.min(length - done);
            door::before();
            copy(process, done, piece).map_err(failed)?;
            door::behind();
            done += piece;
            if done >= length {
                break;
            }
        }
        self.still(found)?;
        self.owner.there().map(drop)
    }
}

impl ShmEndpoint {
    /// Whether the kernel lets this process copy to and from the memory of a peer, and why not.
    pub(super) fn may_copy(
        &mut self,
        to: Peer,
    ) -> Result<Result<(), OperationError>, OperationError> {
        let peer = self.peers.find(to)?;
        if let Owner::Unknown = peer.owner {
            peer.owner = Owner::ask(peer.doorbell.wakeup(), &peer.registers);
        }
        Ok(match peer.owner {
            Owner::Shut { errno } => Err(OperationError::KernelCopy { errno }),
            Owner::Open { .. } | Owner::Unknown => Ok(()),
        })
    }

    /// Checks that a way leads to a peer and that there is room for the notifications.
    fn ready_for_kernel(
        &mut self,
        to: Peer,
        command: Command,
        operation: Operation,
    ) -> Result<(), OperationError> {
        let peer = self.peers.live(to)?;
        match check_notify(peer, self.local.free(), command, operation.notify) {
            Ok(()) => Ok(()),
            Err(Missing::Room) => {
                self.want_room(to);
                Err(OperationError::WouldBlock)
            }
            Err(missing) => Err(missing.into()),
        }
    }

    pub(super) fn put_by_kernel(
        &mut self,
        to: Peer,
        ranges: &[(Source<'_, ShmRegion>, Target)],
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let command = Command::Put;
        let begun = self.registers.begin_put();
        self.ready_for_kernel(to, command, operation)?;
        let peer = self.peers.live(to)?;
        let mut length: u64 = 0;
        // Everything is checked before anything is written.
        for (source, target) in ranges {
            source_start(source)?;
            peer.locate(command, *target, source.length())?;
            length = length.saturating_add(source.length());
        }
        for (source, target) in ranges {
            let from = source_start(source)?;
            let (found, address) = peer.locate(command, *target, source.length())?;
            // The length was checked against local memory, so it fits a usize.
            let bytes = usize::try_from(source.length()).unwrap_or(0);
            peer.in_pieces(&found, bytes, |process, at, piece| {
                let address = address.wrapping_add(at as u64);
                match source {
                    Source::Bytes(bytes) => process.write(&bytes[at..at + piece], address),
                    Source::Region(range) => {
                        process.write_from(range.region.segment(), from + at, piece, address)
                    }
                }
            })?;
        }
        let Target { key, offset } = ranges[0].1;
        self.wrote(begun, to, Account { command, operation, key, offset, length })
    }

    pub(super) fn get_by_kernel(
        &mut self,
        from: Peer,
        ranges: &[(Target, LocalRange<'_, ShmRegion>)],
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let command = Command::Get;
        self.ready_for_kernel(from, command, operation)?;
        let peer = self.peers.live(from)?;
        let mut length: u64 = 0;
        for (source, into) in ranges {
            into.region.check(into.offset, into.length)?;
            peer.locate(command, *source, into.length)?;
            length = length.saturating_add(into.length);
        }
        for (source, into) in ranges {
            let place = into.region.check(into.offset, into.length)?;
            let (found, address) = peer.locate(command, *source, into.length)?;
            let watch = into.region.memory().watch();
            let bytes = usize::try_from(into.length).unwrap_or(0);
            peer.in_pieces(&found, bytes, |process, at, piece| {
                let segment = into.region.segment();
                process.read(address.wrapping_add(at as u64), segment, place + at, piece)
            })?;
            if !kept(watch, into.offset, into.length) {
                return Err(self.read_in_vain(from, Ok(())));
            }
        }
        self.fetched(from, ranges[0].0, length, operation)
    }
}
