//! Messages and notifications: their numbers, and their order at the receiver.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Endpoint, Group, MessageHeader, OperationError, Peer, SendError};

use super::Endpoints;
use super::program::GROUPS;
use crate::ledger::{Life, Stream};
use crate::stage::Stage;
use crate::workload::pattern;

/// The pair of a message to a group, which has none.
const NO_PAIR: u16 = u16::MAX;

/// A message to a group.
pub(super) struct Multicast {
    pub receivers: usize,
    pub arrived: usize,
    pub sent_ns: u64,
}

impl<E: Endpoint> Endpoints<E> {
    fn stream(&self, from: usize, to: usize, peer: Peer) -> Stream {
        let (from, to) = (self.programs[from].life, self.programs[to].life);
        Stream { from, to, pair: pair_of(peer) }
    }

    pub(super) fn send(&mut self, (from, to, peer): (usize, usize, Peer), random: &mut ChaCha8Rng) {
        let stream = self.stream(from, to, peer);
        let number = self.ledger.next(stream);
        let word = word(stream.from, stream.pair, number);
        let filler = pattern(word, random.random_range(0..=112));
        let program = &mut self.programs[from];
        let header = MessageHeader::tag(7);
        match program.endpoint.send_short(peer, header, &[&word.to_le_bytes(), &filler]) {
            Ok(()) => self.ledger.sent(stream),
            Err(SendError::WouldBlock) => self.wait(from, peer),
            Err(_) => {}
        }
    }

    pub(super) fn notify(&mut self, (from, to, peer): (usize, usize, Peer)) {
        let stream = self.stream(from, to, peer);
        let number = self.ledger.next(stream);
        let word = word(stream.from, stream.pair, number);
        match self.programs[from].endpoint.put_notification(peer, 9, word) {
            Ok(()) => self.ledger.sent(stream),
            Err(OperationError::WouldBlock) => self.wait(from, peer),
            Err(_) => {}
        }
    }

    pub(super) fn wait(&mut self, from: usize, peer: Peer) {
        if let Some(link) = self.programs[from].links.get_mut(&peer) {
            link.waits = true;
        }
    }

    pub(super) fn multicast(&mut self, stage: &Stage<'_, E>, from: usize, random: &mut ChaCha8Rng) {
        let group = match random.random_range(0..=GROUPS) {
            GROUPS => Group::BROADCAST,
            number => Group::new(number).expect("there are 64"),
        };
        let program = &mut self.programs[from];
        if program.waits_for_group.contains(&group) {
            return;
        }
        let number = program.sent_to_groups;
        let word = word(program.life, NO_PAIR, number);
        let (header, filler) = (MessageHeader::tag(7), pattern(word, 20));
        let parts: [&[u8]; 2] = [&word.to_le_bytes(), &filler];
        match program.endpoint.send_multicast(group, header, &parts) {
            Ok(receivers) => {
                program.sent_to_groups += 1;
                let sent_ns = stage.world.now();
                let multicast = Multicast { receivers, arrived: 0, sent_ns };
                self.multicasts.insert((program.life, number), multicast);
            }
            Err(SendError::WouldBlock) => drop(program.waits_for_group.insert(group)),
            Err(_) => {}
        }
    }

    pub(super) fn message(&mut self, own: Life, payload: &[u8]) -> Result<(), String> {
        let (word, filler) = split(payload)?;
        let (from, pair, number) = parts(word);
        if filler != pattern(word, filler.len()) {
            return Err(format!("{own:?}: message {number} of {from:?} has other bytes"));
        }
        self.ledger.arrive(Stream { from, to: own, pair }, number)
    }

    pub(super) fn group_message(&mut self, own: Life, payload: &[u8]) -> Result<(), String> {
        let (word, filler) = split(payload)?;
        let (from, _, number) = parts(word);
        let next = self.heard.entry((from, own)).or_default();
        let Some(multicast) = self.multicasts.get_mut(&(from, number)) else {
            return Err(format!("{own:?}: {from:?} never sent message {number} to a group"));
        };
        multicast.arrived += 1;
        let is_sound = filler == pattern(word, 20) && multicast.arrived <= multicast.receivers;
        if number < *next || !is_sound {
            return Err(format!(
                "{own:?}: message {number} of {from:?} to a group came twice, out of order or with \
                 other bytes"
            ));
        }
        *next = number + 1;
        self.done += 1;
        Ok(())
    }
}

fn word(from: Life, pair: u16, number: u32) -> u64 {
    u64::from(from.0) << 56 | u64::from(from.1) << 48 | u64::from(pair) << 32 | u64::from(number)
}

pub(super) fn parts(word: u64) -> (Life, u16, u32) {
    let bytes = word.to_be_bytes();
    let pair = u16::from_be_bytes([bytes[2], bytes[3]]);
    let number = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    ((bytes[0], bytes[1]), pair, number)
}

pub(super) fn pair_of(peer: Peer) -> u16 {
    u16::try_from(peer.0).expect("a run has few pairs")
}

fn split(payload: &[u8]) -> Result<(u64, &[u8]), String> {
    let (word, filler) = payload.split_first_chunk::<8>().ok_or("a message is too short")?;
    Ok((u64::from_le_bytes(*word), filler))
}
