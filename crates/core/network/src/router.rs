//! Routers: virtual cut-through with credits.
//!
//! The head of a packet takes the link onward as soon as the link is free and the buffer at its end
//! has room for the whole packet, while the tail may still be on the link before. Packets in a
//! buffer do not wait for each other: each waits for its own link (virtual output queues). A packet
//! to a multicast group has a copy for each way on. Copies share the room in the buffer, and each
//! leaves it by itself.
//!
//! The zero-load latency follows: a packet of `b` bytes over `h` links between routers takes
//! `injection latency + (h + 1) * router delay + h * link latency + ejection latency`, and once the
//! time of its `b` bytes on the slowest link.

use rand::RngExt;
use weft_routing::Choice;
use weft_topology::Vertex;

use crate::arena::NONE;
use crate::links::{ChannelId, FROM_HOST, LinkId};
use crate::network::{Event, Network};
use crate::packet::{Aim, LostBecause, Packet, PacketStage, Shared};
use crate::time::Time;

impl Network {
    /// The head of a packet has passed the router's pipeline: it goes on, or waits.
    pub(crate) fn ready(&mut self, number: u32) {
        let packet = self.packets.at(number);
        if let PacketStage::Lost(because) = packet.standing {
            self.lose_packet(number, because);
            return;
        }
        if let Aim::Group(group) = packet.aim {
            self.branch(number, group);
            return;
        }
        self.go_on(number);
    }

    fn go_on(&mut self, number: u32) {
        let bytes = self.packets.at(number).bytes;
        self.find_ways(number);
        if self.ways.is_empty() {
            self.lose_packet(number, LostBecause::NoWay);
            return;
        }
        match self.open_way(bytes) {
            Some(channel) => self.depart(number, channel),
            None => self.wait(number),
        }
    }

    /// Makes a packet to a group a copy for each way on, and for the own host. Each goes as soon as
    /// its way is free.
    fn branch(&mut self, number: u32, group: u8) {
        let packet = self.packets.at(number);
        let (at, class) = (packet.at, packet.class);
        let arrived =
            (packet.port != FROM_HOST).then(|| (packet.port, self.links.within_class(packet.vc)));
        self.route.forward(group, at, arrived, &mut self.choices);
        let mut channels = Vec::with_capacity(self.choices.len() + 1);
        if arrived.is_some() && self.route.is_member(group, at) {
            let host = self.links.host(at).unwrap_or(NONE);
            let vc = self.links.vc_of(class, 0);
            channels.push(self.links.channel_of(self.links.ejection(host), vc));
        }
        channels
            .extend(self.choices.iter().filter_map(|choice| self.channel_at(at, class, choice)));
        let Some((first, others)) = channels.split_first() else {
            self.lose_packet(number, LostBecause::NoWay);
            return;
        };
        let copies = u32::try_from(channels.len()).unwrap_or(u32::MAX);
        let shared = self.shared.insert(Shared { copies, free_at: 0 });
        let aim = |channel: &ChannelId| Aim::Branch { group, channel: *channel, shared };
        let mut numbers = vec![number];
        self.packets.at_mut(number).aim = aim(first);
        for channel in others {
            let copy = Packet { aim: aim(channel), ..*self.packets.at(number) };
            self.messages.at_mut(copy.carried).packets += 1;
            numbers.push(self.packets.insert(copy));
        }
        for number in numbers {
            self.go_on(number);
        }
    }

    /// The room of a packet in a buffer is free when the packet, or the last of the copies that
    /// share the room, has left it.
    pub(crate) fn give_back(&mut self, aim: Aim, channel: ChannelId, bytes: u32, time: Time) {
        let mut time = time;
        if let Aim::Branch { shared, .. } = aim {
            let room = self.shared.at_mut(shared);
            room.copies -= 1;
            room.free_at = room.free_at.max(time);
            if room.copies > 0 {
                return;
            }
            time = room.free_at;
            self.shared.remove(shared);
        }
        self.events.push(time, Event::Credit { channel, bytes });
    }

    /// The channel of a way out of a router, if there is one and its link is up.
    fn channel_at(&self, at: Vertex, class: u8, choice: &Choice) -> Option<ChannelId> {
        let is_sound =
            u32::from(choice.port) < self.links.ports(at) && choice.vc < self.links.per_class();
        let link = self.links.out_of(at, choice.port);
        (is_sound && self.links.get(link).is_up)
            .then(|| self.links.channel_of(link, self.links.vc_of(class, choice.vc)))
    }

    /// Puts the channels by which a packet may go on into `ways`, best first. The last is the
    /// escape.
    fn find_ways(&mut self, number: u32) {
        let packet = self.packets.at(number);
        let (at, class) = (packet.at, packet.class);
        self.ways.clear();
        let heading = match packet.aim {
            Aim::Host(heading) => heading,
            Aim::Branch { channel, .. } => {
                let is_up = self.links.get(self.links.link_of(channel)).is_up;
                self.ways.extend(is_up.then_some(channel));
                return;
            }
            Aim::Group(_) => return,
        };
        if at == heading.to {
            let host = self.links.host(at).unwrap_or(NONE);
            let vc = self.links.vc_of(class, 0);
            self.ways.push(self.links.channel_of(self.links.ejection(host), vc));
            return;
        }
        let arrived =
            (packet.port != FROM_HOST).then(|| (packet.port, self.links.within_class(packet.vc)));
        self.route.next(at, arrived, &heading, &mut self.choices);
        let mut ways = std::mem::take(&mut self.ways);
        ways.extend(self.choices.iter().filter_map(|choice| self.channel_at(at, class, choice)));
        self.ways = ways;
    }

    /// The way that a packet can take now: the one with the most room, and the escape only if no
    /// other has room.
    fn open_way(&self, bytes: u32) -> Option<ChannelId> {
        let room = |channel: ChannelId| {
            let (link, list) =
                (self.links.get(self.links.link_of(channel)), self.links.channel(channel));
            let is_open = link.free_at <= self.now
                && !link.is_watched
                && list.first == NONE
                && list.credits >= bytes;
            is_open.then_some(list.credits)
        };
        let (escape, adaptive) = self.ways.split_last()?;
        let mut best = None;
        for channel in adaptive {
            if let Some(credits) = room(*channel)
                && best.is_none_or(|(most, _)| credits > most)
            {
                best = Some((credits, *channel));
            }
        }
        best.map(|(_, channel)| channel).or_else(|| room(*escape).map(|_| *escape))
    }

    /// Makes a packet wait for all of its ways.
    fn wait(&mut self, number: u32) {
        let packet = self.packets.at(number);
        let input = packet.port;
        let sent_at = self.messages.at(packet.carried).sent_at;
        let ways = std::mem::take(&mut self.ways);
        let channels = ways.iter().copied();
        let entry = self.waiting.enter(&mut self.links, number, (input, sent_at), channels);
        self.packets.at_mut(number).standing = PacketStage::Waiting { since: self.now, entry };
        for channel in &ways {
            self.watch(self.links.link_of(*channel));
        }
        self.ways = ways;
        if !self.looks_for_patience {
            self.looks_for_patience = true;
            self.events.push(self.now + self.settings.patience, Event::Patience);
        }
    }

    /// Has an event tell when a link that is busy gets free.
    pub(crate) fn watch(&mut self, link: LinkId) {
        let state = self.links.get_mut(link);
        if state.free_at > self.now && !state.is_watched {
            state.is_watched = true;
            let time = state.free_at;
            self.events.push(time, Event::Free(link));
        }
    }

    /// Gives a free link the next packet that waits for it: of the lowest class, and of its virtual
    /// channels in turn.
    pub(crate) fn arbitrate(&mut self, link: LinkId) {
        let state = self.links.get(link);
        if state.free_at > self.now {
            self.watch(link);
            return;
        }
        let (last_input, per_class) = (state.last_input, self.links.per_class());
        let last = self.links.within_class(state.last_vc);
        for class in 0..self.settings.classes {
            for step in 1..=per_class {
                let vc = self.links.vc_of(class, (last + step) % per_class);
                let channel = self.links.channel_of(link, vc);
                let list = *self.links.channel(channel);
                let Some(entry) = self.waiting.next(list.first, last_input) else { continue };
                let packet = entry.packet;
                if list.credits >= self.packets.at(packet).bytes {
                    self.depart(packet, channel);
                    return;
                }
            }
        }
    }

    /// Sends a packet on by a channel that has room, over a link that is free.
    fn depart(&mut self, number: u32, channel: ChannelId) {
        let link = self.links.link_of(channel);
        let vc = u8::try_from(channel - self.links.channel_of(link, 0)).unwrap_or(0);
        let packet = self.packets.at(number);
        if let PacketStage::Waiting { entry, .. } = packet.standing {
            self.waiting.leave(&mut self.links, entry);
        }
        let (bytes, input, aim) = (packet.bytes, packet.port, packet.aim);
        let came = self.links.channel_of(packet.link, packet.vc);
        let back = self.links.model(packet.model).latency;
        let tail_ready = packet.tail_at.saturating_add(self.settings.router_delay);
        let (head_at, tail_at) = self.occupy(link, vc, bytes, self.now, tail_ready);
        let state = self.links.get_mut(link);
        (state.last_input, state.last_vc) = (input, vc);
        // The room in the buffer before is known at its link's start when the tail has left.
        let (free_at, waiting) = (state.free_at, state.waiting);
        self.give_back(aim, came, bytes, free_at + back);
        let is_ejection = self.links.is_ejection(link);
        let packet = self.packets.at_mut(number);
        (packet.link, packet.vc, packet.tail_at) = (link, vc, tail_at);
        let state = self.links.get(link);
        (packet.at, packet.port, packet.model) = (state.to, state.to_port, state.model);
        packet.standing = PacketStage::Moving;
        if let Aim::Branch { group, .. } = aim {
            packet.aim = Aim::Group(group);
        }
        if is_ejection {
            self.events.push(tail_at, Event::Deliver(number));
        } else {
            packet.hops = packet.hops.saturating_add(1);
            self.events.push(head_at + self.settings.router_delay, Event::Ready(number));
        }
        if waiting > 0 {
            self.watch(link);
        }
    }

    /// Takes a link for a packet from `start` on, whose tail can leave from `tail_ready` on.
    /// Returns when its head and its tail arrive at the other end.
    pub(crate) fn occupy(
        &mut self,
        link: LinkId,
        vc: u8,
        bytes: u32,
        start: Time,
        tail_ready: Time,
    ) -> (Time, Time) {
        let model = self.links.model(self.links.get(link).model);
        let (time, latency) = (model.pace.time(bytes), model.latency);
        let mut start = start;
        // Go-back-N: the end of the link drops a damaged packet and all behind it, until the start
        // hears of it and sends them again in the same order. So the link does nothing of use from
        // the damaged packet on until then.
        while model.damaged_per_million > 0
            && self.random.random_range(0..1_000_000) < model.damaged_per_million
        {
            self.links.harm_mut(link).resent += 1;
            start += time + 2 * latency;
        }
        let tail = (start + time).max(tail_ready);
        let state = self.links.get_mut(link);
        state.free_at = tail;
        state.packets = state.packets.wrapping_add(1);
        state.bytes += u64::from(bytes);
        if !self.links.is_ejection(link) {
            let channel = self.links.channel_of(link, vc);
            self.links.channel_mut(channel).credits -= bytes;
        }
        (start + latency, tail + latency)
    }

    /// Ends the packets that have waited for too long.
    pub(crate) fn look_for_patience(&mut self) {
        let (now, patience) = (self.now, self.settings.patience);
        let mut waits = false;
        let mut late = Vec::new();
        for (number, packet) in self.packets.iter() {
            if let PacketStage::Waiting { since, .. } = packet.standing {
                waits = true;
                if now - since >= patience {
                    late.push(number);
                }
            }
        }
        for number in late {
            self.lose_packet(number, LostBecause::Patience);
        }
        self.looks_for_patience = waits;
        if waits {
            self.events.push(now + patience, Event::Patience);
        }
    }
}
