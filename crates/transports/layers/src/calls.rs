//! The calls that the layer follows until they end: their ends may come from both transports, or
//! have to be translated.
//!
//! A transport gets a number of the layer in place of the program's context, so that its ends are
//! told apart from those of operations, which keep the contexts that the program gave them.
//!
//! # Invariants
//! - The numbers are those from [`FIRST`] to 2³² behind it. A program that gives one of them to an
//!   operation while the layer uses it may see its operation end with the wrong call.
//! - A call ends once: when no transport has it any more.

use std::collections::{BTreeMap, VecDeque};

use weft_fabric::{
    Access, Completion, EndpointAddress, Event, Group, Issued, OperationError, Revoked, Value,
};
use weft_memory::Memory;

/// The first number of the layer.
pub(crate) const FIRST: u64 = 0xffff_fffe_0000_0000;
/// Calls that may be open at a time.
const CALLS_MAX: usize = 16_384;

/// One of the two transports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Half {
    Near,
    Far,
}

/// The range and the rights of a key, for the port.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub memory: Memory,
    pub start: u64,
    pub length: u64,
    pub access: Access,
}

/// The work at the end of a call.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Its end is told as it is.
    Plain,
    /// It connects to an endpoint of the own node, by memory or, if that has none, by the port.
    Connect(EndpointAddress),
    /// It connects to a peer by the port: the handle gets its highest bit.
    Meet,
    /// It grants a key, which is good at the port, too.
    Grant(Granted),
    /// It revokes a key on both ways.
    Revoke,
    /// Nobody waits for it any more.
    Nobody,
}

/// A call that has not ended.
#[derive(Debug)]
pub(crate) struct Call {
    /// The context that the program gave it.
    context: u64,
    pub kind: Kind,
    /// The transports that have it.
    halves: [bool; 2],
    result: Result<Value, OperationError>,
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Over {
    pub context: u64,
    pub kind: Kind,
    pub result: Result<Value, OperationError>,
}

/// An event of the layer's own.
#[derive(Debug)]
enum Own {
    Completion(Completion),
    GroupRoom(Group),
}

/// The calls of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    open: BTreeMap<u64, Call>,
    next: u32,
    over: Vec<Over>,
    /// Groups to which a message was refused since room was told, one bit each.
    refused: u64,
    events: VecDeque<Own>,
    /// There is a port to look at.
    has_port: bool,
    /// A call is open, an event waits, or there is a port. One flag, because each poll reads it.
    is_busy: bool,
}

impl Calls {
    /// Whether a poll has to look beyond the memory: there is a call to follow, an event to tell,
    /// or a port.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Says whether there is a port to look at.
    pub fn watch_port(&mut self, has_port: bool) {
        self.has_port = has_port;
        self.settle();
    }

    fn settle(&mut self) {
        self.is_busy = self.has_port || !self.open.is_empty() || !self.events.is_empty();
    }

    /// Whether a poll has something to tell.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether no further call can be followed.
    pub fn is_full(&self) -> bool {
        self.open.len() + self.events.len() >= CALLS_MAX
    }

    /// Begins to follow a call. Returns its number, for the transports.
    pub fn begin(&mut self, context: u64, kind: Kind) -> u64 {
        loop {
            self.next = self.next.wrapping_add(1);
            let number = FIRST + u64::from(self.next);
            if let std::collections::btree_map::Entry::Vacant(place) = self.open.entry(number) {
                place.insert(Call {
                    context,
                    kind,
                    halves: [false; 2],
                    result: Ok(Value::Nothing),
                });
                self.settle();
                return number;
            }
        }
    }

    /// A transport has taken a call, or ended it at once.
    pub fn issued(&mut self, number: u64, half: Half, issued: Result<Issued, OperationError>) {
        let Some(call) = self.open.get_mut(&number) else { return };
        match issued {
            Ok(Issued::Pending) => call.halves[half as usize] = true,
            Ok(Issued::Done(value)) => call.take(Ok(value)),
            Err(error) => call.take(Err(error)),
        }
    }

    /// Ends a call if no transport has it. `None` if it goes on.
    pub fn take_over(&mut self, number: u64) -> Option<Over> {
        let call = self.open.get(&number)?;
        if call.halves != [false; 2] {
            return None;
        }
        let Call { context, kind, result, .. } = self.open.remove(&number)?;
        self.settle();
        Some(Over { context, kind, result })
    }

    /// A message to a group was refused.
    pub fn refused_in(&mut self, group: Group) {
        self.refused |= 1 << group.number();
    }

    /// A message went to a group: nobody waits for room.
    pub fn sent_to(&mut self, group: Group) {
        self.has_room(group);
    }

    /// Whether an event of a transport is not for the program: the end of a call of the layer, or
    /// room in a group of which the other transport has told already.
    pub fn keeps(&mut self, half: Half, event: &Event<'_>) -> bool {
        match event {
            Event::Completion(end) => self.ended(half, end),
            Event::GroupRoom { group } => !self.has_room(*group),
            _ => false,
        }
    }

    /// There is room in a group. False if nobody waits for it.
    fn has_room(&mut self, group: Group) -> bool {
        let bit = 1 << group.number();
        let waits = self.refused & bit != 0;
        self.refused &= !bit;
        waits
    }

    /// A transport tells of an end. False if that is none of the layer's calls.
    #[inline]
    pub fn ended(&mut self, half: Half, completion: &Completion) -> bool {
        if completion.context < FIRST {
            return false;
        }
        self.ended_slowly(half, completion)
    }

    #[cold]
    fn ended_slowly(&mut self, half: Half, completion: &Completion) -> bool {
        let number = completion.context;
        let Some(call) = self.open.get_mut(&number).filter(|call| call.halves[half as usize])
        else {
            return false;
        };
        call.halves[half as usize] = false;
        call.take(completion.result.clone());
        let over = self.take_over(number);
        self.over.extend(over);
        true
    }

    /// The calls that have ended since this was asked last.
    pub fn take_all_over(&mut self) -> Vec<Over> {
        std::mem::take(&mut self.over)
    }

    /// Tells the program of an end.
    pub fn tell(&mut self, context: u64, result: Result<Value, OperationError>) {
        self.events.push_back(Own::Completion(Completion { context, result }));
        self.settle();
    }

    /// Tells the program that another message to a group is worth a try.
    pub fn tell_group_room(&mut self, group: Group) {
        if self.has_room(group) {
            self.events.push_back(Own::GroupRoom(group));
            self.settle();
        }
    }

    /// Nobody waits for a call any more, which a transport still ends.
    pub fn abandon(&mut self, number: u64) {
        if let Some(call) = self.open.get_mut(&number) {
            call.kind = Kind::Nobody;
        }
    }

    /// No transport has a call any more.
    pub fn forget(&mut self, number: u64) {
        self.open.remove(&number);
        self.settle();
    }

    /// The transports that have the first call with a context, and its number.
    pub fn find(&self, context: u64) -> Option<(u64, [bool; 2])> {
        let is_it = |call: &Call| call.context == context && !matches!(call.kind, Kind::Nobody);
        let (number, call) = self.open.iter().find(|(_, call)| is_it(call))?;
        Some((*number, call.halves))
    }

    /// Takes the end of a call with this context.
    pub fn take_end(&mut self, context: u64) -> Option<Result<Value, OperationError>> {
        let is_it = |own: &Own| matches!(own, Own::Completion(end) if end.context == context);
        let place = self.events.iter().position(is_it)?;
        let event = self.events.remove(place);
        self.settle();
        match event {
            Some(Own::Completion(end)) => Some(end.result),
            _ => None,
        }
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event<'static>> {
        let event = self.events.pop_front()?;
        self.settle();
        Some(match event {
            Own::Completion(completion) => Event::Completion(completion),
            Own::GroupRoom(group) => Event::GroupRoom { group },
        })
    }
}

impl Call {
    /// Takes the end of one half into account. The first error counts.
    fn take(&mut self, result: Result<Value, OperationError>) {
        self.result = match (std::mem::replace(&mut self.result, Ok(Value::Nothing)), result) {
            (Err(first), _) => Err(first),
            (Ok(_), Err(error)) => Err(error),
            (Ok(one), Ok(other)) => Ok(match self.kind {
                // A revocation is known to the broker if it is on both ways.
                Kind::Revoke if one == Value::Revoked(Revoked::Local) => one,
                _ => other,
            }),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(context: u64, result: Result<Value, OperationError>) -> Completion {
        Completion { context, result }
    }

    #[test]
    fn a_call_on_both_ways_ends_when_both_have_ended() {
        let mut calls = Calls::default();
        let number = calls.begin(7, Kind::Revoke);
        calls.issued(number, Half::Near, Ok(Issued::Pending));
        calls.issued(number, Half::Far, Ok(Issued::Pending));
        assert!(calls.take_over(number).is_none());
        let local = Value::Revoked(Revoked::Local);
        assert!(calls.ended(Half::Near, &end(number, Ok(local))));
        assert!(!calls.ended(Half::Near, &end(number, Ok(Value::Nothing))), "that half has ended");
        assert!(calls.take_all_over().is_empty());
        assert!(calls.ended(Half::Far, &end(number, Ok(Value::Revoked(Revoked::Published)))));
        let over = calls.take_all_over();
        assert_eq!((over.len(), over[0].context), (1, 7));
        assert_eq!(over[0].result, Ok(local), "one of the two is not known to the broker");
        assert!(!calls.is_busy());
    }

    #[test]
    fn polls_look_beyond_the_memory_while_there_is_a_call_an_event_or_a_port() {
        let mut calls = Calls::default();
        assert!(!calls.is_busy());
        let number = calls.begin(7, Kind::Plain);
        assert!(calls.is_busy());
        calls.forget(number);
        assert!(!calls.is_busy());
        for _ in 0..2 {
            calls.tell(7, Ok(Value::Nothing));
        }
        assert!(calls.next_event().is_some() && calls.is_busy());
        assert!(calls.take_end(7).is_some() && !calls.is_busy());
        let group = Group::BROADCAST;
        calls.refused_in(group);
        calls.tell_group_room(group);
        assert!(calls.is_busy() && calls.next_event().is_some() && !calls.is_busy());
        calls.watch_port(true);
        let number = calls.begin(7, Kind::Plain);
        assert!(calls.take_over(number).is_some() && calls.is_busy());
        calls.watch_port(false);
        assert!(!calls.is_busy());
    }

    #[test]
    fn the_first_error_of_a_call_is_its_end() {
        let mut calls = Calls::default();
        let number = calls.begin(7, Kind::Plain);
        calls.issued(number, Half::Far, Err(OperationError::WouldBlock));
        calls.issued(number, Half::Near, Ok(Issued::Pending));
        assert!(calls.ended(Half::Near, &end(number, Ok(Value::Word(5)))));
        assert_eq!(calls.take_all_over()[0].result, Err(OperationError::WouldBlock));
    }

    #[test]
    fn contexts_of_the_program_are_none_of_the_layer_s() {
        let mut calls = Calls::default();
        let number = calls.begin(u64::MAX, Kind::Plain);
        calls.issued(number, Half::Near, Ok(Issued::Pending));
        for context in [0, 7, FIRST - 1, FIRST, u64::MAX, u64::MAX - 1] {
            assert!(!calls.ended(Half::Near, &end(context, Ok(Value::Nothing))), "{context:#x}");
        }
        assert_eq!(calls.find(u64::MAX), Some((number, [true, false])));
        calls.abandon(number);
        assert_eq!(calls.find(u64::MAX), None);
        assert!(
            calls.ended(Half::Near, &end(number, Ok(Value::Nothing))),
            "its end is taken all the same"
        );
        assert!(matches!(calls.take_all_over()[0].kind, Kind::Nobody));
    }
}
