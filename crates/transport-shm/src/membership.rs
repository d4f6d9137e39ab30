//! The endpoint and the broker: peers that come and go, groups, keys, restarts of the broker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_fabric::{
    Access, ConnectError, DownReason, EndpointAddress, GrantError, Group, GroupError, NodeId,
    OperationError, Peer, ReceiveCursor, RemoteKey, SendCursor, Vpid,
};
use weft_memory::Segment;
use weft_wire::endpoint_control::{
    AskMembers, Connect, EndpointControl, Join, Leave, Open, Paired, Publish, Remember, Reply,
    Resolve, Retract, flags, status,
};

use crate::address_vector::PeerState;
use crate::attention;
use crate::broker::{BrokerError, Received};
use crate::doorbell::Doorbell;
use crate::endpoint::{Leaving, ShmEndpoint};
use crate::memory::{KeyParts, Mapped, Revoked, ShmRegion};
use crate::pair::Pair;
use crate::registers::{KEYS_MAX, Registers, Stamp};
use crate::sys;

/// A reply and its descriptors.
struct Answer {
    reply: Reply,
    files: Vec<OwnedFd>,
}

/// The broker's report about a peer.
struct Introduction {
    address: EndpointAddress,
    flags: u64,
    birth: u64,
    /// The peer's doorbell segment, register segment and wakeup socket.
    files: Vec<OwnedFd>,
}

impl ShmEndpoint {
    fn next_ticket(&mut self) -> u32 {
        self.ticket = self.ticket.wrapping_add(1);
        self.ticket
    }

    /// Sends a request. First handles earlier messages, and announces the endpoint to a new broker.
    fn call(
        &mut self,
        ticket: u32,
        request: impl Into<EndpointControl>,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError> {
        self.handle_broker_messages();
        self.client.call(request.into(), ticket, files)
    }

    fn ask(
        &mut self,
        ticket: u32,
        request: impl Into<EndpointControl>,
        files: &[BorrowedFd<'_>],
    ) -> Result<Answer, BrokerError> {
        let Received { message, files } = self.call(ticket, request, files)?;
        match message {
            EndpointControl::Reply(reply) => Ok(Answer { reply, files }),
            _ => Err(BrokerError::InvalidAnswer),
        }
    }

    /// Handles all unsolicited messages of the broker.
    pub(crate) fn handle_broker_messages(&mut self) {
        loop {
            while let Some(Received { message, files }) = self.client.next() {
                match message {
                    EndpointControl::Paired(paired) => self.handle_paired(paired, files),
                    EndpointControl::PeerGone(gone) => self.peer_gone(gone.peer, DownReason::Ended),
                    EndpointControl::GroupsChanged(changed) => {
                        for (group, known) in self.members.iter_mut().enumerate() {
                            if changed.groups & (1 << group) != 0 {
                                *known = None;
                            }
                        }
                    }
                    _ => {}
                }
            }
            if self.client.reconnected() {
                self.unannounced = true;
                if let (Some(wakeup_and_line), Some(line)) =
                    (&self.wakeup_and_line, self.client.line())
                {
                    // This fails when no descriptors are left; waits still look once per slice.
                    let _ = sys::watch_also(wakeup_and_line.as_fd(), line);
                }
            }
            if !self.unannounced || self.client.is_lost() || !self.announce() {
                return;
            }
        }
    }

    //= EXTOLL-THESIS#3.2.3
    //# An endpoint is addressed by its node and its VPID.
    pub(crate) fn do_connect(&mut self, to: EndpointAddress) -> Result<Peer, ConnectError> {
        if !to.is_exact() {
            return Err(ConnectError::NotExact(to));
        }
        self.handle_broker_messages();
        let vpid = to.vpid.0;
        if to.node != self.address.node {
            return Err(ConnectError::NotFound(to));
        }
        if let Some(peer) = self.peers.by_vpid(vpid) {
            return Ok(peer.handle);
        }
        if to == self.address {
            return self.connect_itself();
        }
        if self.peers.next_handle(vpid).is_none() {
            return Err(ConnectError::NotFound(to));
        }
        let (pair, file) = Pair::create(self.parameters.ring_slots).map_err(no_memory)?;
        let ticket = self.next_ticket();
        let connect = Connect { ticket, vpid: self.address.vpid.0, node: to.node.0, peer: vpid };
        let Answer { reply, files } =
            self.ask(ticket, connect, &[file.as_fd()]).map_err(no_answer)?;
        match reply.status {
            status::DONE => {
                let introduction =
                    Introduction { address: to, flags: reply.first, birth: reply.second, files };
                self.add_peer(introduction, pair)
                    .ok_or_else(|| no_answer(BrokerError::InvalidAnswer))
            }
            status::PAIRED => {
                // The peer connected first; its `Paired` message came before this answer.
                self.handle_broker_messages();
                let peer = self.peers.by_vpid(vpid).map(|peer| peer.handle);
                peer.ok_or(ConnectError::NotFound(to))
            }
            status::NOT_FOUND => Err(ConnectError::NotFound(to)),
            _ => Err(no_answer(BrokerError::InvalidAnswer)),
        }
    }

    fn connect_itself(&mut self) -> Result<Peer, ConnectError> {
        let pair = Pair::with_itself(self.parameters.ring_slots).map_err(no_memory)?;
        let os = |call: &'static str| {
            move |error: std::io::Error| ConnectError::Os {
                call,
                errno: error.raw_os_error().unwrap_or(0),
            }
        };
        let wakeup = self.doorbell.wakeup().try_clone_to_owned().map_err(os("dup"))?;
        let files = vec![
            self.doorbell_file.try_clone().map_err(os("dup"))?,
            self.registers_file.try_clone().map_err(os("dup"))?,
            wakeup,
        ];
        let (address, birth) = (self.address, self.birth);
        let introduction = Introduction { address, flags: 0, birth, files };
        self.add_peer(introduction, pair).ok_or_else(|| no_answer(BrokerError::InvalidAnswer))
    }

    /// A peer made a pair and sent its memory.
    fn handle_paired(&mut self, paired: Paired, mut files: Vec<OwnedFd>) {
        if paired.vpid != self.address.vpid.0 || files.len() != 4 {
            return;
        }
        let Some(pair) = Pair::open(files.remove(0).as_fd()) else { return };
        // An earlier peer with this VPID has been reported gone, or its report was withheld.
        self.peer_gone(paired.peer, DownReason::Ended);
        let address = EndpointAddress::new(NodeId(paired.node), Vpid(paired.peer));
        let (flags, birth) = (u64::from(paired.flags), paired.birth);
        self.add_peer(Introduction { address, flags, birth, files }, pair);
    }

    /// Adds a peer, if its descriptors are valid.
    fn add_peer(&mut self, introduction: Introduction, pair: Pair) -> Option<Peer> {
        let Introduction { address, flags, birth, files } = introduction;
        let handle = self.peers.next_handle(address.vpid.0)?;
        let [doorbell, registers, wakeup] = <[OwnedFd; 3]>::try_from(files).ok()?;
        let doorbell = Doorbell::open(doorbell.as_fd(), wakeup).ok()?;
        let registers = Registers::open(registers.as_fd()).ok()?;
        let full_fences = self.full_fences || flags & u64::from(flags::FULL_FENCES) != 0;
        // The ring is armed from the start, so that a silent peer costs nothing.
        attention::arm(pair.own_data());
        weft_sync::fence::heavy();
        self.peers.insert(PeerState {
            handle,
            address,
            birth,
            pair,
            send: SendCursor::default(),
            receive: ReceiveCursor::default(),
            full_fences,
            active: false,
            idle: 0,
            wants_room: false,
            doorbell,
            registers: Arc::new(registers),
            down: Arc::new(AtomicBool::new(false)),
            keys: Vec::new(),
        });
        self.activate_if_filled(address.vpid.0);
        Some(handle)
    }

    /// A peer is gone: its last messages are still handed out, and then its end.
    pub(crate) fn peer_gone(&mut self, vpid: u16, reason: DownReason) {
        let Some(peer) = self.peers.remove(vpid) else { return };
        self.forget(vpid);
        self.recent = None;
        peer.down.store(true, Ordering::Relaxed);
        let until = peer.receive.messages.wrapping_add(peer.pair.incoming().depth());
        self.leaving.push(Leaving { peer, until, reason });
    }

    /// Removes a VPID from all lists of peers.
    fn forget(&mut self, vpid: u16) {
        self.active.retain(|other| *other != vpid);
        self.waits_for_room.retain(|other| *other != vpid);
        self.turn = 0;
        for known in &mut self.members {
            if known.as_ref().is_some_and(|members| members.contains(&vpid)) {
                *known = None;
            }
        }
    }

    pub(crate) fn change_group(&mut self, group: Group, join: bool) -> Result<(), GroupError> {
        if group == Group::BROADCAST {
            return Err(GroupError::Broadcast);
        }
        let (ticket, vpid, group) = (self.next_ticket(), self.address.vpid.0, group.number());
        let request: EndpointControl = if join {
            Join { ticket, vpid, group }.into()
        } else {
            Leave { ticket, vpid, group }.into()
        };
        let refused = |reason: String| GroupError::Broker { reason };
        let answer = self.ask(ticket, request, &[]).map_err(|error| refused(error.to_string()))?;
        match answer.reply.status {
            status::DONE => {}
            status::NOT_FOUND => return Err(GroupError::UnknownEndpoint),
            // A daemon of an earlier release says the same of an endpoint that it does not know.
            status::INVALID => {
                let reason = "it found the request not valid; open a new endpoint".to_owned();
                return Err(refused(reason));
            }
            _ => return Err(refused(BrokerError::InvalidAnswer.to_string())),
        }
        let bit = 1 << group;
        self.joined = if join { self.joined | bit } else { self.joined & !bit };
        self.members[usize::from(group)] = None;
        Ok(())
    }

    /// The other members of a group. Asks the broker when they are not known.
    pub(crate) fn group_members(&mut self, group: Group) -> Result<Vec<u16>, BrokerError> {
        if self.doorbell.words().is_rung() {
            self.answer_wakeup();
        }
        let place = usize::from(group.number());
        if let Some(known) = &self.members[place] {
            return Ok(known.clone());
        }
        let (ticket, vpid) = (self.next_ticket(), self.address.vpid.0);
        let ask = AskMembers { ticket, vpid, group: group.number() };
        let EndpointControl::Members(found) = self.call(ticket, ask, &[])?.message else {
            return Err(BrokerError::InvalidAnswer);
        };
        let mut members = Vec::new();
        for other in (0..crate::wakeup::VPIDS).filter(|other| *other != vpid) {
            let bit = found.vpids[usize::from(other / 64)] & (1 << (other % 64));
            let address = EndpointAddress::new(self.address.node, Vpid(other));
            // A member that has gone since the answer is left out.
            if bit != 0 && self.do_connect(address).is_ok() {
                members.push(other);
            }
        }
        self.members[place] = Some(members.clone());
        Ok(members)
    }

    pub(crate) fn do_grant(
        &mut self,
        region: &ShmRegion,
        access: Access,
    ) -> Result<RemoteKey, GrantError> {
        if !region.belongs_to(&self.regions) {
            return Err(GrantError::ForeignRegion);
        }
        let whole = Access::READ | Access::WRITE;
        let atomic_alone = access.contains(Access::ATOMIC) && !access.contains(whole);
        if access.is_empty() || atomic_alone || Access::from_bits(access.bits()).is_none() {
            return Err(GrantError::InvalidAccess { access: access.bits() });
        }
        let maximum = usize::from(KEYS_MAX);
        let exhausted = GrantError::Exhausted { maximum };
        let (slot, generation) = self.grants.vacant().ok_or(exhausted)?;
        self.publish(slot, generation, region, access)?;
        self.registers.set_stamp(slot, Stamp::of(generation));
        self.grants.fill(slot, access, region.clone());
        Ok(KeyParts { vpid: self.address.vpid.0, slot, generation }.key())
    }

    fn publish(
        &mut self,
        slot: u16,
        generation: u32,
        region: &ShmRegion,
        access: Access,
    ) -> Result<(), GrantError> {
        let refused = |reason: String| GrantError::Broker { reason };
        let read_only = if access.contains(Access::WRITE) {
            None
        } else {
            let file = Segment::reopen_read_only(region.file().as_fd());
            Some(file.map_err(|error| refused(error.to_string()))?)
        };
        let whole = region.file();
        let file = read_only.as_ref().unwrap_or(&whole);
        let publish = Publish {
            ticket: self.next_ticket(),
            vpid: self.address.vpid.0,
            slot,
            generation,
            access: access.bits(),
            length: region.segment().length() as u64,
        };
        let answer = self
            .ask(publish.ticket, publish, &[file.as_fd()])
            .map_err(|e| refused(e.to_string()))?;
        match answer.reply.status {
            status::DONE => Ok(()),
            status::EXHAUSTED => Err(GrantError::Exhausted {
                maximum: usize::try_from(answer.reply.first).unwrap_or(usize::MAX),
            }),
            _ => Err(refused(BrokerError::InvalidAnswer.to_string())),
        }
    }

    pub(crate) fn do_revoke(&mut self, key: RemoteKey) -> Result<(), GrantError> {
        let KeyParts { vpid, slot, generation } = KeyParts::of(key);
        if vpid != self.address.vpid.0 {
            return Err(GrantError::UnknownKey);
        }
        let revoked = self.grants.empty(slot, generation).ok_or(GrantError::UnknownKey)?;
        // From here on initiators refuse the key, whether the broker answers or not.
        self.registers.set_stamp(slot, Stamp::of(revoked.next));
        weft_sync::fence::heavy();
        let ticket = self.next_ticket();
        let retract = Retract { ticket, vpid, slot, generation };
        let answer = self.ask(ticket, retract, &[]);
        // A broker that does not answer may have passed the memory to a peer.
        let handed_out = answer.as_ref().map_or(1, |answer| answer.reply.first);
        if handed_out != 0 {
            self.move_out_of_reach(&revoked)?;
        }
        answer.map(|_| ()).map_err(|error| GrantError::Broker { reason: error.to_string() })
    }

    /// Takes the memory of a revoked key out of reach of the peers that mapped it.
    ///
    /// The memory is moved only when no remaining key allows writing, so no peer with a valid key
    /// writes during the move. While such a key remains, every endpoint of the partition may do all
    /// that the revoked key allowed.
    fn move_out_of_reach(&mut self, revoked: &Revoked) -> Result<(), GrantError> {
        let remaining: Vec<(u16, u32, Access)> = self
            .grants
            .iter()
            .filter(|(_, grant)| grant.region.as_ref().is_some_and(|r| r.is(&revoked.region)))
            .map(|(slot, grant)| (slot, grant.generation, grant.access))
            .collect();
        let writable = remaining.iter().any(|(.., access)| access.contains(Access::WRITE));
        let covered = !remaining.is_empty() && !revoked.access.contains(Access::WRITE);
        if writable || covered {
            return Ok(());
        }
        let refused = |error: weft_memory::SegmentError| GrantError::Broker {
            reason: format!("the memory could not be moved out of reach: {error}"),
        };
        revoked.region.move_away().map_err(refused)?;
        for (slot, generation, access) in remaining {
            self.publish(slot, generation, &revoked.region, access)?;
            self.registers.set_stamp(slot, self.registers.stamp(slot).moved());
        }
        Ok(())
    }

    /// Maps the memory behind a peer's key.
    #[cold]
    pub(crate) fn resolve(&mut self, to: Peer, key: RemoteKey) -> Result<(), OperationError> {
        let parts = KeyParts::of(key);
        let peer = self.peers.live(to)?;
        if parts.vpid != peer.vpid() || parts.slot >= KEYS_MAX {
            return Err(OperationError::InvalidKey);
        }
        // The stamp is read before the request. If the stamp changes meanwhile, the mapping does
        // not match it and the key is resolved again.
        let stamp = peer.registers.stamp(parts.slot);
        if stamp.generation() != parts.generation {
            return Err(OperationError::InvalidKey);
        }
        let ask = Resolve {
            ticket: self.next_ticket(),
            vpid: self.address.vpid.0,
            owner: parts.vpid,
            slot: parts.slot,
            generation: parts.generation,
        };
        let broker = |reason: String| OperationError::Broker { reason };
        let Answer { reply, files } =
            self.ask(ask.ticket, ask, &[]).map_err(|e| broker(e.to_string()))?;
        if reply.status == status::NOT_FOUND {
            return Err(OperationError::InvalidKey);
        }
        let file = <[OwnedFd; 1]>::try_from(files).ok().filter(|_| reply.status == status::DONE);
        let access = u8::try_from(reply.second).ok().and_then(Access::from_bits);
        let length = usize::try_from(reply.first).ok();
        let (Some([file]), Some(access), Some(length)) = (file, access, length) else {
            return Err(broker(BrokerError::InvalidAnswer.to_string()));
        };
        let segment = Segment::open(file.as_fd(), length, access.contains(Access::WRITE))
            .map_err(|error| broker(error.to_string()))?;
        let mapped = Mapped { key, stamp, access, segment: Arc::new(segment) };
        // The answer may have come after the news that the peer is gone.
        let peer = self.peers.live(to)?;
        let place = usize::from(parts.slot);
        if peer.keys.len() <= place {
            peer.keys.resize(place + 1, None);
        }
        peer.keys[place] = Some(mapped);
        Ok(())
    }

    /// Announces the endpoint to a restarted broker. False when the broker did not answer.
    fn announce(&mut self) -> bool {
        let ticket = self.next_ticket();
        let vpid = self.address.vpid.0;
        let mut open_flags = flags::AGAIN | flags::PARTITION;
        if self.full_fences {
            open_flags |= flags::FULL_FENCES;
        }
        let (partition, birth) = (self.partition, self.birth);
        let open = Open { ticket, flags: open_flags, partition, birth, vpid };
        let files =
            [self.doorbell_file.as_fd(), self.registers_file.as_fd(), self.doorbell.wakeup()];
        let Ok(Received { message: EndpointControl::Reply(reply), .. }) =
            self.client.call(open.into(), ticket, &files)
        else {
            return false;
        };
        self.unannounced = false;
        if reply.status != status::DONE {
            // Too late: another endpoint has the VPID, and the peers were told that this endpoint
            // is gone.
            let peers: Vec<u16> = self.peers.iter().map(PeerState::vpid).collect();
            for peer in peers {
                self.peer_gone(peer, DownReason::Ended);
            }
            return true;
        }
        let itself = vpid;
        for peer in self.peers.iter().filter(|peer| peer.vpid() != itself) {
            let pair = Remember { vpid, peer: peer.vpid(), birth: peer.birth };
            let _ = self.client.tell(pair.into());
        }
        let joined = self.joined;
        for group in (0..64).filter(|group| joined & (1 << group) != 0) {
            let ticket = self.next_ticket();
            let _ = self.client.call(Join { ticket, vpid, group }.into(), ticket, &[]);
        }
        let keys: Vec<_> = self
            .grants
            .iter()
            .filter_map(|(slot, grant)| {
                Some((slot, grant.generation, grant.access, grant.region.clone()?))
            })
            .collect();
        for (slot, generation, access, region) in keys {
            let _ = self.publish(slot, generation, &region, access);
        }
        self.members.fill(None);
        true
    }
}

fn no_answer(error: BrokerError) -> ConnectError {
    ConnectError::Broker { reason: error.to_string() }
}

fn no_memory(error: weft_memory::SegmentError) -> ConnectError {
    match error {
        weft_memory::SegmentError::Os { call, errno, .. } => ConnectError::Os { call, errno },
        other => ConnectError::Broker { reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Client, Connector, Limits, local::LocalBroker};
    use crate::{Parameters, ShmTransport};
    use weft_fabric::{Endpoint, EndpointOptions, Transport};

    /// A broker that answers each request to join a group with a status.
    struct Refusing(LocalBroker, u16);

    struct RefusingClient(Box<dyn Client>, u16);

    impl Connector for Refusing {
        fn client(&self) -> Result<Box<dyn Client>, BrokerError> {
            Ok(Box::new(RefusingClient(self.0.client()?, self.1)))
        }
    }

    impl Client for RefusingClient {
        fn call(
            &mut self,
            request: EndpointControl,
            ticket: u32,
            files: &[BorrowedFd<'_>],
        ) -> Result<Received, BrokerError> {
            let EndpointControl::Join(_) = request else {
                return self.0.call(request, ticket, files);
            };
            let message = Reply { ticket, status: self.1, first: 0, second: 0 }.into();
            Ok(Received { message, files: Vec::new() })
        }

        fn tell(&mut self, message: EndpointControl) -> Result<(), BrokerError> {
            self.0.tell(message)
        }

        fn next(&mut self) -> Option<Received> {
            self.0.next()
        }
    }

    #[test]
    fn each_refusal_to_change_a_group_has_an_error_of_its_own() {
        let join = |status| {
            let broker = LocalBroker::new(NodeId::LOCAL, Limits::default());
            let broker = Arc::new(Refusing(broker, status));
            let transport = ShmTransport::new(broker, Parameters::default());
            let mut endpoint = transport.open(&EndpointOptions::default()).expect("room");
            endpoint.join(Group::new(1).expect("a group"))
        };
        assert_eq!(join(status::DONE), Ok(()));
        let refusals = [status::NOT_FOUND, status::INVALID, 99].map(|status| join(status).err());
        assert_eq!(refusals[0], Some(GroupError::UnknownEndpoint));
        let reason = |of: &Option<GroupError>| match of {
            Some(GroupError::Broker { reason }) => reason.clone(),
            other => panic!("{other:?}"),
        };
        let reasons = [reason(&refusals[1]), reason(&refusals[2])];
        assert!(reasons[0].contains("open a new endpoint"), "{reasons:?}");
        assert_eq!(reasons[1], BrokerError::InvalidAnswer.to_string());
    }
}
