//! Orders and fences: what waits for everything before it.

use weft_fabric::{OperationError, Peer, Value};

use super::operations::Reply;
use super::pair::{Fence, Held};
use super::{Engine, Queued};
use crate::nic::Nic;
use crate::packet::Request;

impl<N: Nic> Engine<N> {
    /// Later calls take effect after all that was called for before.
    pub(crate) fn order(&mut self, to: Peer) -> Result<(), OperationError> {
        let is_idle = self.pair(to).map(|pair| pair.is_idle());
        let is_idle = is_idle.map_err(|error| self.count_refusal(error))?;
        let operation = self.next_number + 1;
        if let Some(pair) = self.pair_mut(to.0).filter(|_| !is_idle) {
            let called = pair.order.called;
            if pair.order.open.is_empty() && pair.order.held.is_empty() {
                pair.order.behind = called;
            } else {
                pair.order.held.push_back(Held::Order(Fence { operation, called }));
            }
        }
        Ok(())
    }

    /// Starts a fence that `reply` hears of. False if there is nothing to wait for.
    pub(super) fn start_fence(&mut self, handle: u32, number: u64) -> bool {
        let Some(pair) = self.pair_mut(handle).filter(|pair| !pair.is_idle()) else {
            return false;
        };
        pair.order.fences.push(Fence { operation: number, called: pair.order.called });
        self.give_turn(handle);
        true
    }

    /// Ends fences, and starts what waits behind orders, as far as what they wait for is over.
    pub(super) fn look_at_order(&mut self, handle: u32) {
        loop {
            let Some(pair) = self.pair_mut(handle).filter(|pair| pair.order.is_awaited()) else {
                return;
            };
            let confirmed = pair.order.confirmed;
            let fences = &pair.order.fences;
            let over =
                fences.iter().position(|fence| pair.is_over(*fence) && confirmed >= fence.called);
            if let Some(place) = over {
                let fence = pair.order.fences.remove(place);
                self.end(fence.operation, Ok(0));
                continue;
            }
            let order = match pair.order.held.front() {
                Some(Held::Order(point)) => Some(*point),
                _ => None,
            };
            if order.is_none_or(|point| pair.is_over(point) && confirmed >= point.called)
                && let Some(held) = pair.order.held.pop_front()
            {
                match held {
                    Held::Order(_) => {}
                    Held::Operation(number) => self.start(number),
                    Held::Out(out) => pair.sending.outbox.push_back(out),
                }
                continue;
            }
            if let Some(point) = order.filter(|point| pair.are_operations_over(*point)) {
                // Messages and their like come behind all that left before, and need no word of
                // the peer.
                match pair.order.held.get(1) {
                    Some(Held::Out(_)) => {
                        if let Some(Held::Out(out)) = pair.order.held.remove(1) {
                            pair.sending.outbox.push_back(out);
                        }
                        continue;
                    }
                    None => {
                        pair.order.behind = point.called;
                        pair.order.held.clear();
                        continue;
                    }
                    Some(Held::Order(_) | Held::Operation(_)) => {}
                }
            }
            let waits = pair.order.fences.iter().copied().chain(order);
            let asks = waits.into_iter().any(|point| pair.is_over(point));
            if asks && !pair.order.flushing {
                pair.order.flushing = true;
                self.ask(handle, Request::Flush, Reply::Flush);
            }
            return;
        }
    }

    /// Whether a packet that leaves now comes behind the operations with lower numbers: they are
    /// over, or the NIC has all bytes of them and keeps messages behind writes. Remembers up to
    /// which number that holds.
    pub(super) fn has_left_before(&mut self, handle: u32, number: u64) -> bool {
        let Ok(pair) = self.pair(Peer(handle)) else { return false };
        let from = pair.order.left;
        let keeps = self.keeps_messages_behind_writes;
        let has_left = |before: &u64| {
            keeps && self.operations.get(before).is_some_and(super::Operation::has_left)
        };
        let waits = (from < number)
            .then(|| pair.order.open.range(from..number).find(|before| !has_left(before)).copied())
            .flatten();
        if let Some(pair) = self.pair_mut(handle) {
            pair.order.left = from.max(waits.unwrap_or(number));
        }
        waits.is_none()
    }

    /// Starts a fence of all peers.
    pub(crate) fn fence_all(
        &mut self,
        context: u64,
    ) -> Result<weft_fabric::Issued, OperationError> {
        let peers: Vec<u32> = self.living.values().copied().collect();
        let busy = |handle: &u32| self.pair(Peer(*handle)).is_ok_and(|pair| !pair.is_idle());
        let peers: Vec<u32> = peers.into_iter().filter(busy).collect();
        if peers.is_empty() {
            return Ok(weft_fabric::Issued::Done(Value::Nothing));
        }
        if self.places >= self.capabilities.operations_max {
            self.starved.extend(peers);
            return Err(self.count_refusal(OperationError::WouldBlock));
        }
        self.places += 1;
        let all = self.next_number();
        self.fences.insert(all, (context, peers.len()));
        for handle in peers {
            let number = self.begin_fence(handle, context, Reply::Fence(all));
            if !self.start_fence(handle, number) {
                self.end(number, Ok(0));
            }
        }
        Ok(weft_fabric::Issued::Pending)
    }

    /// A peer has passed a fence of all peers, or is down.
    pub(super) fn fence_passed(&mut self, all: u64) {
        let Some((context, left)) = self.fences.get_mut(&all) else { return };
        *left -= 1;
        if *left == 0 {
            let completion =
                weft_fabric::Completion { context: *context, result: Ok(Value::Nothing) };
            self.fences.remove(&all);
            self.events.push_back(Queued::Completion(completion));
        }
    }
}
