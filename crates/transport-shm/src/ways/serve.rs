//! The owner of memory carries out what peers ask for, when it polls or waits. Its program does not
//! notice.
//!
//! # Invariants
//! - A question is read once and checked whole: the key is in force and for this peer, and allows
//!   the access; the range lies inside that of the key, and the piece inside the range.
//! - A peer has no more questions open than are owed to it as answers at most. One that has more,
//!   or sends what is no packet, is given up.

use weft_fabric::{Access, AtomicOperation, SignalChange, Width};
use weft_memory::CopyMode;

use super::jobs::QUESTIONS_MAX;
use super::packet::{Answer, Outcome, Packet, Piece, Question, Verb, decode, is_packet};
use crate::atomic::{apply_32, apply_64};
use crate::attention;
use crate::endpoint::ShmEndpoint;
use crate::memory::{Granted, KeyParts, inside};
use crate::receive::head;

use std::sync::atomic::Ordering::{AcqRel, Release};

impl ShmEndpoint {
    /// Takes the packets at the head of a peer's ring, as many as an honest peer may send at once.
    /// False when one is not valid.
    #[cold]
    pub(crate) fn take_packets(&mut self, vpid: u16) -> bool {
        for _ in 0..2 * QUESTIONS_MAX {
            let Some(packet) = self.next_packet(vpid) else { return true };
            let is_valid = match packet {
                Some(Packet::Question(question)) => self.serve(vpid, &question),
                Some(Packet::Answer(answer)) => self.take_answer(vpid, answer),
                None => false,
            };
            if !is_valid {
                return false;
            }
        }
        true
    }

    /// The packet at the head of a peer's ring, valid or not. `None` if there is none.
    fn next_packet(&mut self, vpid: u16) -> Option<Option<Packet>> {
        let own = self.address.vpid.0;
        let peer = self.peers.by_vpid(vpid)?;
        let status = head(peer).ok().flatten().filter(|status| is_packet(*status))?;
        let ring = peer.pair.incoming();
        let packet = decode(status, &ring.slot(peer.receive.messages));
        let returned = peer.receive.messages_returned;
        ring.advance(&mut peer.receive, false);
        if peer.receive.messages_returned != returned
            && attention::claim(peer.pair.peer_room(), peer.full_fences)
        {
            peer.doorbell.ring(own);
        }
        Some(packet)
    }

    /// Carries out what a peer asks for, and answers. False when the peer breaks the rules.
    fn serve(&mut self, vpid: u16, question: &Question) -> bool {
        let outcome = self.carry_out(vpid, question);
        let Some(peer) = self.peers.by_vpid(vpid) else { return true };
        if peer.jobs.owed.len() >= QUESTIONS_MAX {
            return false;
        }
        let answer = Answer { number: question.number, outcome };
        peer.jobs.owed.push_back(answer.encode());
        self.advance(vpid);
        true
    }

    fn carry_out(&mut self, vpid: u16, question: &Question) -> Outcome {
        let own = self.address.vpid.0;
        let Question { verb, piece, .. } = *question;
        let Piece { target, length, start, bytes } = piece;
        let Some(peer) = self.peers.by_vpid(vpid) else { return Outcome::InvalidKey };
        let KeyParts { vpid: owner, slot, generation } = KeyParts::of(target.key);
        let granted = self.grants.in_force(slot, generation).filter(|granted| {
            let audience = granted.audience.is_none_or(|of| of == (vpid, peer.birth));
            owner == own && audience
        });
        let Some(Granted { region, start: first, length: all, access, .. }) = granted else {
            return Outcome::InvalidKey;
        };
        let (needed, width) = needs(&verb);
        if !access.contains(needed) {
            return Outcome::Denied;
        }
        if inside(target.offset, length, *all).is_none() {
            return Outcome::OutOfBounds(*all);
        }
        // The granted range lies inside the region, and this one inside the granted range.
        let place = region.check(first + target.offset + start, bytes);
        let (Ok(place), Ok(bytes)) = (place, usize::try_from(bytes)) else {
            return Outcome::OutOfBounds(*all);
        };
        if !region.segment().is_aligned(place, width) {
            return Outcome::Misaligned(width as u64);
        }
        let memory = region.memory();
        let mode = self.parameters.copy_mode(bytes);
        let old = match verb {
            Verb::Check { .. } => 0,
            Verb::Write(from) => {
                let (places, at) = peer.pair.peer_place(from);
                memory.writing(place, bytes, |to| places.copy(at, to, place, bytes, mode));
                0
            }
            Verb::Read(to) => {
                let (places, at) = peer.pair.peer_place(to);
                region.segment().copy(place, places, at, bytes, mode);
                0
            }
            Verb::Immediate(value) => {
                let value = &value.to_le_bytes()[..bytes];
                memory.writing(place, bytes, |to| to.write(place, value, CopyMode::Plain));
                0
            }
            Verb::Atomic(atomic) => memory.writing(place, bytes, |to| match atomic.width {
                Width::Bits32 => apply_32(to.word32(place), &atomic),
                Width::Bits64 => apply_64(to.word64(place), &atomic),
            }),
            Verb::Signal(SignalChange::Set(value)) => {
                memory.writing(place, bytes, |to| to.word64(place).store(value, Release));
                0
            }
            Verb::Signal(SignalChange::Add(value)) => {
                memory.writing(place, bytes, |to| to.word64(place).fetch_add(value, AcqRel))
            }
        };
        Outcome::Done(old)
    }
}

/// The right that the key must grant, and the alignment that is needed.
fn needs(verb: &Verb) -> (Access, usize) {
    match verb {
        Verb::Check { access, width } => (*access, usize::from(*width)),
        Verb::Write(_) | Verb::Immediate(_) => (Access::WRITE, 1),
        Verb::Read(_) => (Access::READ, 1),
        Verb::Atomic(atomic) => {
            let width = if atomic.width == Width::Bits32 { 4 } else { 8 };
            (AtomicOperation::access(atomic.operation), width)
        }
        Verb::Signal(change) => (change.access(), 8),
    }
}
