//! The hosts' ends of the network: messages become packets, and packets messages.

use rand::Rng;
use weft_routing::Heading;

use crate::arena::{Arena, NONE, index};
use crate::links::FROM_HOST;
use crate::network::{Event, Network};
use crate::packet::{Aim, Carried, Destination, LostBecause, Outcome, Packet, PacketStage};
use crate::settings::CLASSES_MAX;

/// A host: the messages of each class that it has still to send, in order.
#[derive(Debug)]
pub(crate) struct Host {
    queues: [Queue; CLASSES_MAX as usize],
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
}

impl Host {
    pub const fn new() -> Self {
        let empty = Queue { first: NONE, last: NONE };
        Self { queues: [empty; CLASSES_MAX as usize] }
    }

    /// Puts a message behind those of its class.
    pub fn append(&mut self, messages: &mut Arena<Carried>, class: u8, number: u32) {
        let queue = &mut self.queues[usize::from(class)];
        match queue.last {
            NONE => queue.first = number,
            last => messages.at_mut(last).next = number,
        }
        queue.last = number;
    }

    /// Takes the first message of a class out of its queue.
    pub fn take_first(&mut self, messages: &Arena<Carried>, class: u8) -> Option<u32> {
        let queue = &mut self.queues[usize::from(class)];
        let number = queue.first;
        let next = messages.get(number)?.next;
        queue.first = next;
        if next == NONE {
            queue.last = NONE;
        }
        Some(number)
    }
}

impl Network {
    /// Lets a host send its next packet, if its link is free and the router has room.
    pub(crate) fn inject(&mut self, host: u32) {
        let link = self.links.injection(host);
        if self.links.get(link).free_at > self.now {
            self.watch(link);
            return;
        }
        for class in 0..self.settings.classes {
            let Some(number) = self.first_to_send(host, class) else { continue };
            let vc = self.links.vc_of(class, 0);
            let carried = self.messages.at(number);
            let payload = carried.unsent.min(u64::from(self.settings.mtu_bytes));
            let payload = u32::try_from(payload).unwrap_or(self.settings.mtu_bytes);
            let bytes = payload + self.settings.header_bytes;
            if self.links.channel(self.links.channel_of(link, vc)).credits >= bytes {
                self.start_packet(host, number, (payload, bytes), vc);
                self.watch(link);
                return;
            }
        }
    }

    /// The message of a class that a host sends next. Lost ones are passed over.
    fn first_to_send(&mut self, host: u32, class: u8) -> Option<u32> {
        loop {
            let number = self.hosts[index(host)].queues[usize::from(class)].first;
            if !self.messages.get(number)?.is_lost {
                return Some(number);
            }
            self.hosts[index(host)].take_first(&self.messages, class);
            self.forget_unsent(number);
        }
    }

    /// A lost message has left the queue of its sender: no packet of it will follow.
    pub(crate) fn forget_unsent(&mut self, number: u32) {
        let carried = self.messages.at_mut(number);
        carried.is_sent = true;
        if carried.packets == 0 {
            self.messages.remove(number);
        }
    }

    fn start_packet(&mut self, host: u32, number: u32, (payload, bytes): (u32, u32), vc: u8) {
        let link = self.links.injection(host);
        let carried = self.messages.at_mut(number);
        let message = carried.message;
        let begins = carried.packets == 0 && carried.unsent == message.bytes;
        carried.unsent -= u64::from(payload);
        carried.packets += 1;
        if carried.unsent == 0 {
            carried.is_sent = true;
            self.hosts[index(host)].take_first(&self.messages, message.class);
        }
        let host_time = if begins { self.settings.host.message_time } else { 0 };
        let to = message.to.host().and_then(|to| self.links.host(to));
        let start = match &mut self.processors {
            Some(processors) if begins => processors.send(self.now, host, to),
            _ => self.now,
        };
        let start = start.saturating_add(host_time);
        let (head_at, tail_at) = self.occupy(link, vc, bytes, start, start);
        let random = self.random.next_u64();
        let aim = match message.to {
            Destination::Host(to) => {
                let via = self.route.via(message.from, to, random);
                Aim::Host(Heading { from: message.from, to, via })
            }
            Destination::Group(group) => Aim::Group(group),
        };
        let packet = self.packets.insert(Packet {
            carried: number,
            aim,
            bytes,
            link,
            model: self.links.get(link).model,
            vc,
            class: message.class,
            at: message.from,
            port: FROM_HOST,
            hops: 0,
            standing: PacketStage::Moving,
            tail_at,
        });
        self.events.push(head_at.saturating_add(self.settings.router_delay), Event::Ready(packet));
    }

    /// A packet arrived at its host.
    pub(crate) fn deliver(&mut self, number: u32) {
        if let PacketStage::Lost(because) = self.packets.at(number).standing {
            self.lose_packet(number, because);
            return;
        }
        let packet = self.packets.remove(number).expect("its event names it");
        let carried = self.messages.at_mut(packet.carried);
        carried.packets -= 1;
        carried.hops = match packet.aim {
            Aim::Host(_) => packet.hops,
            Aim::Group(_) | Aim::Branch { .. } => carried.hops.max(packet.hops),
        };
        if !carried.is_sent || carried.packets > 0 {
            return;
        }
        let receiver = carried.message.to.host().unwrap_or(packet.at);
        let from = self.links.host(carried.message.from);
        match (&mut self.processors, self.links.host(receiver)) {
            (Some(processors), Some(host)) => {
                let at = processors.take(self.now, host, from);
                self.events.push(at, Event::Taken(packet.carried));
            }
            _ => self.taken(packet.carried),
        }
    }

    /// A message has arrived, and its host has taken it.
    pub(crate) fn taken(&mut self, number: u32) {
        let carried = self.messages.remove(number).expect("it has arrived");
        if !carried.is_lost {
            let Carried { message, sent_at, hops, .. } = carried;
            self.outcomes.push_back(Outcome::Delivered { message, sent_at, at: self.now, hops });
        }
    }

    /// Ends a packet that is lost, and with it its message.
    pub(crate) fn lose_packet(&mut self, number: u32, because: LostBecause) {
        if let PacketStage::Waiting { entry, .. } = self.packets.at(number).standing {
            self.waiting.leave(&mut self.links, entry);
        }
        let packet = self.packets.remove(number).expect("the caller names a packet");
        if !self.links.is_ejection(packet.link) {
            let channel = self.links.channel_of(packet.link, packet.vc);
            let latency = self.links.model(packet.model).latency;
            let time = packet.tail_at.max(self.now).saturating_add(latency);
            self.give_back(packet.aim, channel, packet.bytes, time);
        }
        self.lose_message(packet.carried, because);
        let carried = self.messages.at_mut(packet.carried);
        carried.packets -= 1;
        if carried.is_sent && carried.packets == 0 {
            self.messages.remove(packet.carried);
        }
    }

    /// Tells that a message is lost, once.
    pub(crate) fn lose_message(&mut self, number: u32, because: LostBecause) {
        let carried = self.messages.at_mut(number);
        if carried.is_lost {
            return;
        }
        carried.is_lost = true;
        let Carried { message, sent_at, .. } = *carried;
        self.outcomes.push_back(Outcome::Lost { message, sent_at, at: self.now, because });
    }
}
