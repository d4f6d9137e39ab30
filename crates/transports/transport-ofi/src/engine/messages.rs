//! Messages, to one peer or to all members of a group, and notifications without data.

use weft_fabric::{
    Command, EndpointAddress, Group, MessageHeader, Notification, OperationError, Peer, Register,
    RemoteKey, SendError, Side,
};

use super::pair::Out;
use super::{Engine, Queued};
use crate::nic::Nic;
use crate::packet::{Body, Told};

impl<N: Nic> Engine<N> {
    /// Sends a message to one peer.
    pub(crate) fn send_short(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        match self.pair(to) {
            Ok(_) => {}
            Err(OperationError::UnknownPeer) => return Err(SendError::UnknownPeer),
            Err(_) => return Err(SendError::PeerDown),
        }
        self.check_message(header, parts)?;
        let Some(pair) = self.pair_mut(to.0) else { return Err(SendError::PeerDown) };
        if pair.sending.messages >= pair.sending.messages_max {
            pair.sending.refused = true;
            self.count(Register::Refused, 1);
            return Err(SendError::WouldBlock);
        }
        let is_clear = pair.is_clear();
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        parts.iter().for_each(|part| payload.extend_from_slice(part));
        if !is_clear || !self.send_at_once(to.0, header, &payload) {
            self.post_message(to.0, header, None, payload.clone());
        }
        self.payload = payload;
        Ok(())
    }

    /// Sends a message past the queue, which is empty. False if it has not left.
    fn send_at_once(&mut self, handle: u32, header: MessageHeader, payload: &[u8]) -> bool {
        if !self.transmitted(handle, Body::Message { header, group: None, payload }) {
            return false;
        }
        if let Some(pair) = self.pair_mut(handle) {
            pair.sending.messages += 1;
            pair.sending.room -= 1;
            pair.order.called += 1;
            pair.order.gone += 1;
        }
        self.count_message(payload);
        true
    }

    fn count_message(&mut self, payload: &[u8]) {
        self.count(Register::MessagesSent, 1);
        self.count(Register::MessageBytesSent, payload.len() as u64);
    }

    fn post_message(
        &mut self,
        handle: u32,
        header: MessageHeader,
        group: Option<Group>,
        payload: Vec<u8>,
    ) {
        self.count_message(&payload);
        if let Some(pair) = self.pair_mut(handle) {
            pair.sending.messages += 1;
            pair.post(Out::Message { header, group, payload });
        }
        self.send(handle);
    }

    //= EXTOLL-THESIS#3.2.2
    //# With the multicast bit set, the target node is read as a group.
    /// Sends a message to each of these members that is a peer, or to none. `others` sends it to
    /// the members that this endpoint does not reach, when those that it does have room.
    pub(crate) fn send_to_members(
        &mut self,
        group: Group,
        members: &[EndpointAddress],
        (header, parts): (MessageHeader, &[&[u8]]),
        others: impl FnOnce() -> Result<usize, SendError>,
    ) -> Result<usize, SendError> {
        self.check_message(header, parts)?;
        let payload = parts.concat();
        if self.is_any_full(members) {
            self.count(Register::Refused, 1);
            self.refused_groups.insert(group, members.to_vec());
            return Err(SendError::WouldBlock);
        }
        let others = others()?;
        let handles: Vec<u32> = members.iter().filter_map(|to| self.handle_of(*to)).collect();
        for handle in &handles {
            self.post_message(*handle, header, Some(group), payload.clone());
        }
        Ok(handles.len() + others)
    }

    fn is_any_full(&mut self, members: &[EndpointAddress]) -> bool {
        members.iter().any(|member| {
            let handle = self.handle_of(*member);
            let pair = handle.and_then(|handle| self.pair_mut(handle));
            pair.is_some_and(|pair| pair.sending.messages >= pair.sending.messages_max)
        })
    }

    /// Tells the program of the groups whose members have room by now.
    pub(super) fn tell_group_room(&mut self) {
        if self.refused_groups.is_empty() {
            return;
        }
        for (group, members) in std::mem::take(&mut self.refused_groups) {
            if self.is_any_full(&members) {
                self.refused_groups.insert(group, members);
            } else {
                self.events.push_back(Queued::GroupRoom(group));
            }
        }
    }

    /// Another try of a message to a group is worth it: the directory has told more.
    pub(crate) fn group_changed(&mut self, group: Group) {
        self.refused_groups.remove(&group);
        self.events.push_back(Queued::GroupRoom(group));
    }

    /// Whether a message to a group was refused for lack of room.
    pub(crate) fn waits_for_group(&self, group: Group) -> bool {
        self.refused_groups.contains_key(&group)
    }

    /// Checks the header and the length of a message.
    pub(crate) fn check_message(
        &self,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        self.capabilities.check_message(header, parts)
    }

    /// Sends a notification without data.
    pub(crate) fn put_notification(
        &mut self,
        to: Peer,
        class: u8,
        value: u64,
    ) -> Result<(), OperationError> {
        let room = self.pair(to).map(drop).and_then(|()| self.take_notification_room(to.0));
        room.map_err(|error| self.count_refusal(error))?;
        let told = Told {
            side: Side::Completer,
            command: Command::NotificationPut,
            class,
            range: (RemoteKey(0), 0, 0),
            context: 0,
            immediate: value,
        };
        if let Some(pair) = self.pair_mut(to.0) {
            pair.post(Out::Told(told));
        }
        self.send(to.0);
        Ok(())
    }

    /// Takes room for a notification at a peer.
    pub(super) fn take_notification_room(&mut self, handle: u32) -> Result<(), OperationError> {
        let Some(pair) = self.pair_mut(handle) else { return Err(OperationError::PeerDown) };
        if pair.sending.notifications >= pair.sending.notifications_max {
            pair.sending.refused = true;
            return Err(OperationError::WouldBlock);
        }
        pair.sending.notifications += 1;
        Ok(())
    }

    /// A peer's message has come.
    pub(super) fn deliver(
        &mut self,
        handle: u32,
        header: MessageHeader,
        group: Option<Group>,
        payload: &[u8],
    ) {
        let Some(pair) = self.pair_mut(handle) else { return };
        if pair.receiving.messages == 0 {
            return self.expel(handle, weft_fabric::DownReason::Misbehaved);
        }
        pair.receiving.messages -= 1;
        let (peer, source, payload) = (Peer(handle), pair.address, payload.to_vec());
        self.events.push_back(Queued::Message { peer, source, header, group, payload });
    }

    /// A peer's notification has come.
    pub(super) fn deliver_notification(&mut self, handle: u32, told: Told) {
        let Some(pair) = self.pair_mut(handle) else { return };
        if pair.receiving.notifications == 0 {
            return self.expel(handle, weft_fabric::DownReason::Misbehaved);
        }
        pair.receiving.notifications -= 1;
        let source = pair.address;
        let (key, offset, length) = told.range;
        self.events.push_back(Queued::Told(Notification {
            side: told.side,
            command: told.command,
            peer: Peer(handle),
            source,
            operation: told.context,
            key,
            offset,
            length,
            class: told.class,
            immediate: told.immediate,
        }));
    }
}
