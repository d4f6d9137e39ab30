//! Pairs whose ends are on nodes of a lab between which no way leads for a while, as the broker
//! tells.
//!
//! # Invariants
//! - Meanwhile nothing leaves: what is called for waits, and calls are refused when it is as much
//!   as may wait. The NIC goes on with pieces that it has got before.
//! - What comes meanwhile was sent before the peer heard of it. It waits, too, and is handled
//!   before anything that comes later.
//! - It ends: a way leads there again, or the peer is down, after the silence at the latest. Ends
//!   are told at once; what has not left by then never does.

use std::collections::VecDeque;

use weft_fabric::{DownReason, EndpointAddress};

use super::Engine;
use super::pair::{Apart, SPARE};
use crate::nic::Nic;

impl<N: Nic> Engine<N> {
    /// No way leads to the peer at this address for now, or one leads there again.
    pub(crate) fn set_apart(&mut self, address: EndpointAddress, is_apart: bool) {
        let now = self.now();
        let Some(handle) = self.living.get(&address).copied() else { return };
        let Some(pair) = self.pair_mut(handle) else { return };
        if is_apart {
            let packets = VecDeque::new();
            pair.apart.get_or_insert(Apart { since: now, packets });
        } else if let Some(apart) = pair.apart.take() {
            pair.hear(now);
            self.receive_all(apart.packets);
            self.move_pieces(handle);
            self.give_turn(handle);
            self.send(handle);
        }
    }

    /// No way has led to a peer for the promised silence.
    pub(crate) fn peer_unreachable(&mut self, address: EndpointAddress) {
        if let Some(handle) = self.living.get(&address).copied() {
            self.lose_apart(handle);
        }
    }

    /// Gives up a peer to which no way has led for too long: its last words are among what was
    /// kept.
    pub(super) fn lose_apart(&mut self, handle: u32) {
        self.orphan(handle, DownReason::Unreachable);
        self.report_down(handle, DownReason::Unreachable);
    }

    /// Keeps a packet of a peer to which no way leads.
    pub(super) fn keep(&mut self, handle: u32, bytes: &[u8]) {
        let Some(pair) = self.pair_mut(handle) else { return };
        // All that a peer may send while it hears nothing.
        let most = pair.receiving.packets_max + pair.receiving.responses_max + SPARE;
        let Some(apart) = &mut pair.apart else { return };
        if apart.packets.len() < most {
            apart.packets.push_back(bytes.to_vec());
        } else {
            self.expel(handle, DownReason::Misbehaved);
        }
    }

    /// A pair to whose peer no way leads is given up by its program. What has not left never does;
    /// the farewell crosses, as ends do.
    pub(super) fn part_apart(&mut self, handle: u32) {
        let Some(pair) = self.pair_mut(handle) else { return };
        if let Some(apart) = pair.apart.take() {
            pair.drop_unsent();
            self.receive_all(apart.packets);
        }
    }

    /// Handles the packets that were kept of a peer that is gone: they came before.
    pub(super) fn take_kept(&mut self, handle: u32) {
        let Some(apart) = self.pair_mut(handle).and_then(|pair| pair.apart.as_mut()) else {
            return;
        };
        let packets = std::mem::take(&mut apart.packets);
        self.receive_all(packets);
    }

    fn receive_all(&mut self, packets: VecDeque<Vec<u8>>) {
        for bytes in packets {
            self.receive(&bytes);
        }
    }
}
