//! The driver: it does what the table and the lanes want, and takes the events of the endpoint.
//!
//! Invariants: all calls of the endpoint are here and in [`crate::hand`]. The endpoint carries
//! lanes alone, so a message that is none of a carrier breaks the protocol.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_fabric::{
    Access, Armed, Audience, Endpoint, Event, Issued, LocalRange, MessageHeader, Notification,
    OperationError, Peer, RemoteKey, SendError, Side, Standing, Value, WaitFor,
};

use crate::attention::{Ending, Word};
use crate::carrier::Settings;
use crate::cells::{Cell, Cells};
use crate::hand::{Handed, Sent, call, class, context, hand_message, hand_step};
use crate::layout::Layout;
use crate::message::{Message, Refusal, TAG, Violation};
use crate::outgoing::Outgoing;
use crate::table::{Action, LaneNumber, Offer, Remote, Table};
use crate::watch::{Driving, Watch};

/// The part of an end that it shares with its carrier without a lock.
#[derive(Debug)]
pub(crate) struct Shared<R> {
    pub cell: Cell<R>,
    pub layout: Layout,
    pub data: Word,
    pub room: Word,
    pub ending: Ending,
    /// The endpoint refused something of the lane. It says when there is room again.
    pub is_refused: AtomicBool,
    /// Bytes of which the peer was told that they were taken.
    pub bytes_returned: AtomicU64,
    /// Messages of which the peer was told with a ring that they were taken.
    pub messages_rung: AtomicU64,
}

impl<R> Shared<R> {
    pub const fn word(&self, what: WaitFor) -> &Word {
        match what {
            WaitFor::Data => &self.data,
            WaitFor::Room => &self.room,
        }
    }
}

#[derive(Debug)]
pub(crate) struct End<R> {
    pub number: LaneNumber,
    pub shared: Arc<Shared<R>>,
    pub out: Outgoing,
    pub use_of: Use,
    /// The program dropped the end.
    pub is_dropped: bool,
    /// The program was told that something has not landed.
    pub awaits_landing: bool,
}

/// The program's further use of an end. All that it sent is handed over before the peer is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    All,
    /// It sends no more.
    Finishing,
    /// It sends no more, and the peer was told.
    Finished,
}

/// A place of the table, as the carrier fills it.
#[derive(Debug)]
pub(crate) enum Held<R> {
    Nothing,
    Memory(Cell<R>),
    End(Box<End<R>>),
    /// The end was closed. Its memory waits for the end of the revocation.
    Closed(Cell<R>),
}

impl<R> Held<R> {
    /// True if the endpoint had no room for something of the lane.
    pub fn is_keeping(&self) -> bool {
        matches!(self, Self::End(end) if end.out.next_step().is_some())
    }
}

/// Something that waits to be told.
#[derive(Debug)]
pub(crate) enum News {
    Offered(Offer),
    Opened(LaneNumber, u64),
    Refused(u64, Refusal),
    Misbehaved(Peer, Violation),
}

/// A carrier's state.
pub(crate) struct Hub<E: Endpoint> {
    pub endpoint: E,
    pub settings: Settings,
    pub is_ordered: bool,
    pub table: Table,
    pub held: Vec<Held<E::Region>>,
    pub cells: Cells<E::Region>,
    /// Messages that the endpoint had no room for.
    pub unsent: VecDeque<(Peer, Message)>,
    pub news: VecDeque<News>,
    pub rung: BTreeSet<(LaneNumber, bool)>,
    /// Lanes on which messages were taken, of which the peer is told later.
    pub untold: BTreeSet<LaneNumber>,
    /// Lanes of which the endpoint refused something for good.
    pub failed: Vec<LaneNumber>,
    /// Keys of closed lanes that wait until the peer has heard of the end.
    pub closing: BTreeMap<LaneNumber, RemoteKey>,
    /// Lanes that ended here, whose fence has not begun, with their keys and peers.
    pub unfenced: Vec<(LaneNumber, RemoteKey, Peer)>,
    pub fence: Fence,
    pub watch: Watch,
    /// The endpoint is armed: its descriptor becomes readable with the next event.
    pub is_armed: bool,
    /// How often the endpoint was polled.
    pub polls: u64,
}

/// A fence of everything that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fence {
    Idle,
    UnderWay,
    Passed,
}

/// Events that one poll of the endpoint takes at most.
const EVENTS: usize = 64;
/// After so many polls peers are told of messages that were taken, at the latest.
const POLLS_UNTOLD: u64 = 64;
/// Offers that may wait for their answer at most. More of them are refused.
const OFFERS_MAX: usize = 64;

impl<E: Endpoint> Hub<E> {
    /// Takes events of the endpoint, and does what follows from them.
    pub fn poll(&mut self) {
        /// An event, copied out of the endpoint.
        enum Seen {
            Message(Peer, u8, Vec<u8>),
            Notification(Notification),
            Completion(u64, Result<Value, OperationError>),
            Down(Peer),
            Room(Peer),
        }
        self.is_armed &= self.settings.arming_lasts;
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_UNTOLD) && !self.untold.is_empty() {
            self.tell_taken();
        }
        loop {
            // All that these peers told before lies in the endpoint by now, and is taken first.
            let failed = std::mem::take(&mut self.failed);
            let mut seen = Vec::new();
            let count = self.endpoint.poll(EVENTS, &mut |event| {
                seen.push(match event {
                    Event::Message(message) => {
                        let payload = message.payload.to_vec();
                        Seen::Message(message.peer, message.header.tag, payload)
                    }
                    Event::Notification(notification) => Seen::Notification(notification),
                    Event::Completion(ended) => Seen::Completion(ended.context, ended.result),
                    Event::PeerDown { peer, .. } => Seen::Down(peer),
                    Event::Room { peer } => Seen::Room(peer),
                    // The hub sends nothing to groups.
                    Event::GroupRoom { .. } => return,
                });
            });
            for seen in seen {
                match seen {
                    Seen::Message(peer, TAG, payload) => self.table.message(peer, &payload),
                    Seen::Message(peer, tag, _) => {
                        self.disconnect(peer, Violation::ForeignTag(tag))
                    }
                    Seen::Notification(notification) => self.notified(&notification),
                    Seen::Completion(context, result) => self.completed(context, result),
                    Seen::Down(peer) => self.down(peer),
                    Seen::Room(peer) => self.room(peer),
                }
                self.act();
            }
            if count < EVENTS {
                failed.into_iter().for_each(|number| self.end_lane(number, false));
                if self.failed.is_empty() {
                    return;
                }
            } else {
                self.failed.extend(failed);
            }
        }
    }

    /// Notes that the endpoint refused something of a lane for good, so that nothing more leaves.
    ///
    /// The peer may have closed the lane: it tells that first, and then takes its key back. So the
    /// lane is lost only if nothing that has arrived by now says otherwise.
    fn fail(&mut self, number: LaneNumber) {
        if let Some(end) = self.end(number) {
            end.out.give_up();
            self.failed.push(number);
        }
    }

    /// Arms the endpoint for a thread that is about to sleep.
    pub fn arm(&mut self) -> Armed {
        let armed = self.endpoint.arm();
        self.is_armed = armed == Armed::Sleep;
        armed
    }

    /// True if the program should be told something.
    pub fn has_news(&self) -> bool {
        !self.rung.is_empty() || !self.news.is_empty() || !self.failed.is_empty()
    }

    /// Wakes the driving thread if it sleeps and would miss something.
    pub fn alarm(&mut self) {
        if self.watch.is_alarm_due(self.has_news(), self.is_armed) {
            self.watch.driving = Driving::Awake;
            if let Some(alarm) = &self.watch.alarm {
                alarm();
            }
        }
    }

    /// Does what the table wants.
    pub fn act(&mut self) {
        while let Some(action) = self.table.next_action() {
            match action {
                Action::Grant { number, peer } => self.grant(number, peer),
                Action::Revoke { number, key } => self.revoke(number, key),
                Action::Free { number } => match self.hold(number, Held::Nothing) {
                    Held::Memory(cell) | Held::Closed(cell) => self.cells.give_back(cell),
                    Held::End(_) | Held::Nothing => {}
                },
                Action::Send { to, message } => {
                    self.unsent.push_back((to, message));
                    self.send_unsent();
                }
                Action::Join { number, token, remote } => {
                    self.join(number, remote);
                    self.news.push_back(News::Opened(number, token));
                }
                Action::End { number, is_complete } => self.end_lane(number, is_complete),
                Action::Offered(offer) => {
                    let offers = self.news.iter().filter(|n| matches!(n, News::Offered(_)));
                    if offers.count() < OFFERS_MAX {
                        self.news.push_back(News::Offered(offer));
                    } else {
                        self.table.refuse(offer, Refusal::NoRoom);
                    }
                }
                Action::Refused { token, why } => self.news.push_back(News::Refused(token, why)),
                Action::Disconnect { peer, violation } => self.disconnect(peer, violation),
            }
        }
    }

    fn grant(&mut self, number: LaneNumber, peer: Peer) {
        let Ok(cell) = self.cells.take(&mut self.endpoint) else {
            return self.table.granted(number, None);
        };
        let range = LocalRange::new(&cell.region, cell.start, self.settings.layout.bytes());
        let (audience, call) = (Audience::Peer(peer), context(call::GRANT, number));
        let issued = self.endpoint.grant(range, audience, Access::WRITE, call);
        self.hold(number, Held::Memory(cell));
        match issued {
            Ok(Issued::Done(value)) => self.table.granted(number, value.key()),
            Ok(Issued::Pending) => {}
            Err(_) => self.table.granted(number, None),
        }
    }

    /// Takes the key of a lane back, once the peer has heard that the lane ended. A peer whose put
    /// is refused before it heard that takes the lane for lost.
    fn revoke(&mut self, number: LaneNumber, key: RemoteKey) {
        let mut peer = None;
        let closed = match self.hold(number, Held::Nothing) {
            Held::End(end) => {
                peer = Some(end.out.remote.peer);
                Held::Closed(end.shared.cell.clone())
            }
            Held::Memory(cell) | Held::Closed(cell) => Held::Closed(cell),
            Held::Nothing => Held::Nothing,
        };
        self.hold(number, closed);
        match peer {
            Some(peer) => {
                self.unfenced.push((number, key, peer));
                self.fence_closed();
            }
            None => self.take_key_back(number, key),
        }
    }

    /// Begins the fences behind which keys are taken back, as far as there is room: behind the
    /// message that tells the end, which may wait itself.
    fn fence_closed(&mut self) {
        for (number, key, peer) in std::mem::take(&mut self.unfenced) {
            if self.unsent.iter().any(|(to, _)| *to == peer) {
                self.unfenced.push((number, key, peer));
                continue;
            }
            match self.endpoint.fence(peer, context(call::CLOSE, number)) {
                Ok(Issued::Pending) => drop(self.closing.insert(number, key)),
                Err(OperationError::WouldBlock) => self.unfenced.push((number, key, peer)),
                Ok(Issued::Done(_)) | Err(_) => self.take_key_back(number, key),
            }
        }
    }

    fn take_key_back(&mut self, number: LaneNumber, key: RemoteKey) {
        // A key that is unknown is not in force either.
        if !matches!(self.endpoint.revoke(key, context(call::REVOKE, number)), Ok(Issued::Pending))
        {
            self.table.revoked(number);
        }
    }

    /// True while something waits for room in the endpoint.
    pub fn has_backlog(&self) -> bool {
        !self.unsent.is_empty()
            || !self.unfenced.is_empty()
            || self.held.iter().any(Held::is_keeping)
    }

    /// True when all that was sent has arrived at the peers. Else a fence is under way.
    pub fn is_out(&mut self) -> bool {
        self.poll();
        if self.has_backlog() {
            return false;
        }
        if self.fence == Fence::Idle {
            let fence = self.endpoint.fence_all(context(call::FENCE_ALL, LaneNumber(0)));
            // One that cannot begin is not waited for.
            let is_under_way = matches!(fence, Ok(Issued::Pending));
            self.fence = if is_under_way { Fence::UnderWay } else { Fence::Passed };
        }
        let is_out = self.fence == Fence::Passed;
        if is_out {
            self.fence = Fence::Idle;
        }
        is_out
    }

    fn join(&mut self, number: LaneNumber, remote: Remote) {
        let Held::Memory(cell) = self.hold(number, Held::Nothing) else { return };
        let shared = Arc::new(Shared {
            cell,
            layout: remote.layout,
            data: Word::default(),
            room: Word::default(),
            ending: Ending::default(),
            is_refused: AtomicBool::new(false),
            bytes_returned: AtomicU64::new(0),
            messages_rung: AtomicU64::new(0),
        });
        let out = Outgoing::new(remote);
        let (use_of, is_dropped, awaits_landing) = (Use::All, false, false);
        let end = End { number, shared, out, use_of, is_dropped, awaits_landing };
        self.hold(number, Held::End(Box::new(end)));
    }

    /// Puts `held` in the place of a lane, and returns what was there.
    fn hold(&mut self, number: LaneNumber, held: Held<E::Region>) -> Held<E::Region> {
        while self.held.len() <= number.place() {
            self.held.push(Held::Nothing);
        }
        std::mem::replace(&mut self.held[number.place()], held)
    }

    pub fn end(&mut self, number: LaneNumber) -> Option<&mut End<E::Region>> {
        match self.held.get_mut(number.place())? {
            Held::End(end) if end.number == number => Some(&mut **end),
            _ => None,
        }
    }

    fn ends_of(&self, peer: Peer) -> Vec<LaneNumber> {
        let with = |held: &Held<E::Region>| match held {
            Held::End(end) if end.out.remote.peer == peer => Some(end.number),
            _ => None,
        };
        self.held.iter().filter_map(with).collect()
    }

    /// Rings an armed word. The program is told.
    fn ring(&mut self, number: LaneNumber, what: WaitFor) {
        if self.end(number).is_some_and(|end| end.shared.word(what).ring()) {
            self.rung.insert((number, what == WaitFor::Data));
        }
    }

    fn ring_both(&mut self, number: LaneNumber) {
        self.ring(number, WaitFor::Data);
        self.ring(number, WaitFor::Room);
    }

    /// Nothing more arrives on a lane. `is_complete` if all that the peer sent has.
    fn end_lane(&mut self, number: LaneNumber, is_complete: bool) {
        if let Some(end) = self.end(number) {
            end.out.give_up();
            end.shared.ending.end(is_complete);
        }
        self.ring_both(number);
        self.conclude(number);
    }

    fn notified(&mut self, notification: &Notification) {
        let Ok(number) = u32::try_from(notification.immediate) else { return };
        let number = LaneNumber(number);
        let is_arrival = notification.side == Side::Completer;
        // A lane of another peer is not the sender's to ring, and a former lane has no sleepers.
        if is_arrival && self.table.joined_with(number) == Some(notification.peer) {
            if notification.class & class::DATA != 0 {
                self.ring(number, WaitFor::Data);
            }
            if notification.class & class::ROOM != 0 {
                self.ring(number, WaitFor::Room);
            }
        }
    }

    fn completed(&mut self, context: u64, result: Result<Value, OperationError>) {
        let number = LaneNumber(u32::try_from(context & u64::from(u32::MAX)).expect("32 bits"));
        match context >> 32 {
            call::GRANT => self.table.granted(number, result.ok().and_then(Value::key)),
            call::REVOKE => self.table.revoked(number),
            call::CLOSE => {
                if let Some(key) = self.closing.remove(&number) {
                    self.take_key_back(number, key);
                }
            }
            call::FENCE_ALL => self.fence = Fence::Passed,
            call::FENCE => {
                if let Some(end) = self.end(number) {
                    end.out.end_fence(result.is_ok());
                    self.ring_both(number);
                }
            }
            // A put that failed was lost, so the lane is of no more use.
            call::TRANSFER if result.is_err() => self.fail(number),
            _ => {}
        }
    }

    fn down(&mut self, peer: Peer) {
        self.unsent.retain(|(to, _)| *to != peer);
        self.table.down(peer);
        self.fence_closed();
    }

    /// The endpoint has room again for a peer.
    fn room(&mut self, peer: Peer) {
        self.send_unsent();
        self.fence_closed();
        for number in self.ends_of(peer) {
            let Some(end) = self.end(number) else { continue };
            if end.shared.is_refused.swap(false, Ordering::AcqRel) {
                let awaits_landing = std::mem::take(&mut end.awaits_landing);
                self.flush(number);
                self.ring(number, WaitFor::Room);
                if awaits_landing {
                    self.ring(number, WaitFor::Data);
                }
                self.conclude(number);
            }
        }
    }

    fn disconnect(&mut self, peer: Peer, violation: Violation) {
        // The event that follows ends the lanes. A peer that is gone already had its own.
        if self.endpoint.disconnect(peer).is_ok() {
            self.news.push_back(News::Misbehaved(peer, violation));
        }
    }

    /// Sends the messages that are kept, each ordered behind all before it.
    fn send_unsent(&mut self) {
        let mut full = BTreeSet::new();
        let mut kept = VecDeque::new();
        while let Some((peer, message)) = self.unsent.pop_front() {
            let header = MessageHeader::tag(TAG);
            let is_sent = !full.contains(&peer) && {
                let ordered = self.endpoint.order(peer);
                let bytes = message.encode();
                let sent =
                    ordered.is_ok().then(|| self.endpoint.send_short(peer, header, &[&bytes]));
                // With any other error the peer is gone, and its event ends the lanes.
                !matches!(sent, Some(Err(SendError::WouldBlock)))
            };
            if !is_sent {
                full.insert(peer);
                kept.push_back((peer, message));
            }
        }
        self.unsent = kept;
        let bound = 4 * self.settings.lanes_max as usize + OFFERS_MAX;
        if self.unsent.len() > bound
            && let Some((peer, _)) = self.unsent.back().copied()
        {
            // A peer that makes offers and takes no answers.
            self.unsent.retain(|(to, _)| *to != peer);
            self.disconnect(peer, Violation::TakesNoAnswers);
        }
    }

    /// Hands over what a lane has kept. True if nothing stays.
    fn flush(&mut self, number: LaneNumber) -> bool {
        loop {
            let Some(Held::End(end)) = self.held.get_mut(number.place()) else { return false };
            let Some(step) = end.out.next_step() else { return true };
            match hand_step(&mut self.endpoint, self.is_ordered, &mut end.out, number, step) {
                Handed::Taken => end.out.done(step),
                Handed::NoRoom => {
                    end.shared.is_refused.store(true, Ordering::Release);
                    return false;
                }
                Handed::Failed => {
                    self.fail(number);
                    return false;
                }
            }
        }
    }

    /// Sends a message. False if there is no room.
    pub fn send(&mut self, number: LaneNumber, message: u64, tag: u8, parts: &[&[u8]]) -> bool {
        if self.end(number).is_none_or(|end| end.shared.ending.is_over()) {
            return false;
        }
        self.flush(number);
        let is_ordered = self.is_ordered;
        let Some(Held::End(end)) = self.held.get_mut(number.place()) else { return false };
        if !end.out.is_through() {
            return false;
        }
        let sent = Sent { number, message, tag, parts };
        match hand_message(&mut self.endpoint, is_ordered, &mut end.out, sent) {
            Handed::Taken => true,
            Handed::NoRoom => {
                end.shared.is_refused.store(true, Ordering::Release);
                false
            }
            Handed::Failed => {
                self.fail(number);
                false
            }
        }
    }

    /// Changes what a lane sends, and hands over as much as there is room for.
    pub fn change(&mut self, number: LaneNumber, change: impl FnOnce(&mut Outgoing) -> bool) {
        let Some(end) = self.end(number) else { return };
        if end.shared.ending.is_over() {
            return;
        }
        if change(&mut end.out) {
            self.flush(number);
        } else {
            self.end_lane(number, false);
        }
    }

    /// True if everything that a lane sent has landed. Else a fence is under way, whose end rings.
    pub fn has_landed(&mut self, number: LaneNumber) -> bool {
        self.poll();
        self.flush(number);
        let Some(Held::End(end)) = self.held.get_mut(number.place()) else { return false };
        end.awaits_landing = true;
        if end.shared.ending.is_over() || !end.out.is_through() {
            return false;
        }
        if end.out.has_landed() {
            return true;
        }
        if end.out.is_fencing() {
            return false;
        }
        let fence = self.endpoint.fence(end.out.remote.peer, context(call::FENCE, number));
        match fence {
            Ok(issued) => {
                end.out.begin_fence();
                if issued != Issued::Pending {
                    end.out.end_fence(true);
                }
                end.out.has_landed()
            }
            Err(OperationError::WouldBlock) => {
                end.shared.is_refused.store(true, Ordering::Release);
                false
            }
            Err(_) => {
                self.fail(number);
                false
            }
        }
    }

    /// Reads something that an end has kept of what it sent.
    pub fn kept<T>(&mut self, number: LaneNumber, read: impl FnOnce(&Outgoing) -> T) -> Option<T> {
        self.end(number).map(|end| read(&end.out))
    }

    /// The program took all messages that are there, up to `count`. The peer is told when more were
    /// taken, or after some polls. A peer that sends nothing more is told nothing: a count that
    /// finds no room would be kept for as long as the program keeps its end.
    pub fn took_quietly(&mut self, number: LaneNumber, count: u64) {
        if let Some(end) = self.end(number)
            && !end.shared.ending.is_over()
        {
            end.out.took_quietly(count);
            self.untold.insert(number);
        }
    }

    /// Tells peers of the messages that were taken.
    pub fn tell_taken(&mut self) {
        for number in std::mem::take(&mut self.untold) {
            if let Some(end) = self.end(number) {
                end.out.tell_taken();
            }
            self.flush(number);
        }
    }

    /// The program sends no more.
    pub fn finish(&mut self, number: LaneNumber) {
        self.tell_taken();
        self.flush(number);
        if let Some(end) = self.end(number)
            && end.use_of == Use::All
        {
            end.use_of = Use::Finishing;
        }
        self.conclude(number);
        self.act();
    }

    /// The program dropped its end.
    pub fn close(&mut self, number: LaneNumber) {
        self.finish(number);
        if let Some(end) = self.end(number) {
            if end.use_of == Use::Finishing && !end.out.is_through() {
                // The lane goes when all of it is out, or when the peer does.
                return end.is_dropped = true;
            }
            self.table.close(number);
        }
        self.act();
    }

    /// Tells the peer that a program has finished, when all that it sent is out. Ends a lane whose
    /// program has dropped it.
    fn conclude(&mut self, number: LaneNumber) {
        let Some(end) = self.end(number) else { return };
        let is_lost = end.shared.ending.standing() == Standing::Lost;
        if end.use_of == Use::Finishing && (is_lost || end.out.is_through()) {
            end.use_of = Use::Finished;
            let is_dropped = end.is_dropped;
            self.table.finish(number, !is_lost);
            if is_dropped {
                self.table.close(number);
            }
        }
    }
}
