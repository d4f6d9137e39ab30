//! Reads, writes and atomics of registered memory, on both sides.

use weft_fabric::{Endpoint, RemoteKey};

use crate::atomics::{Call, Datatype, Operator};
use crate::fetching::{Fetch, Purpose};
use crate::machine::{Core, Rdm};
use crate::memory::{Fault, Memory, Surface};
use crate::outcome::{Failure, Kind, Outcome, Refusal};
use crate::packet::{Body, Code, DATA, First, Packet, Reader};
use crate::peers::{PeerId, State};
use crate::receiving::{Inbound, Incoming};
use crate::sending::{Cargo, How, Operation, short};

/// The rights of peers to registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// They may read it.
    pub read: bool,
    /// They may write it.
    pub write: bool,
}

/// Memory that peers reach.
#[derive(Clone, Debug)]
pub struct Registration<M> {
    /// The memory.
    pub memory: M,
    /// The address by which peers name its first byte.
    pub base: u64,
    /// Their rights.
    pub rights: Rights,
}

/// A place in memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The key of the registration.
    pub key: u64,
    /// The address, from the base of the registration on.
    pub address: u64,
}

/// An atomic of a peer, whose operands are coming.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    remote: Remote,
    /// Its number at the peer.
    number: u64,
    operator: Operator,
    datatype: Datatype,
    count: usize,
    fetches: bool,
}

impl<E: Endpoint, S: Surface> Rdm<E, S> {
    /// Lets peers reach memory by a key. False if there is such a key already.
    pub fn register(&mut self, key: u64, registration: Registration<S::Memory>) -> bool {
        match self.core.registrations.entry(key) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(registration);
                true
            }
        }
    }

    /// Ends a registration: what peers ask for from now on is refused, and what is under way ends.
    pub fn deregister(&mut self, key: u64) -> bool {
        self.core.registrations.remove(&key).is_some()
    }

    /// Writes to memory of a peer.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was begun.
    pub fn write(
        &mut self,
        to: PeerId,
        (memory, remote): (&S::Memory, Remote),
        data: Option<u64>,
        how: How,
        token: Option<S::Token>,
    ) -> Result<(), Refusal> {
        let door = self.ready(to)?;
        let length = memory.length();
        if how == How::Injected && length > self.core.options.inline_bytes_max {
            return Err(Refusal::TooLong);
        }
        let is_inline = length <= self.core.inline_bytes_to(to);
        let flags = if data.is_some() { DATA } else { 0 };
        // The memory of an injected write is not looked at again.
        let kept = (how != How::Injected).then(|| memory.clone());
        let number = self.begin(to, (Kind::Write, remote.key), kept, token)?;
        let mut chunk = None;
        if !is_inline && self.core.fits_chunk(to, length) {
            chunk = self.core.chunk_for(to, (memory, 0, length)).and_then(Result::ok);
        }
        let (mut staged, mut lent) = (None, None);
        let first = match chunk {
            None if is_inline => First::inline(flags, short(length)),
            None => {
                staged = self.core.stage(to, memory);
                lent = self.lend(door, to, memory);
                if let Some(operation) = self.core.operations.get_mut(number) {
                    operation.lent = lent;
                }
                First::fetch(flags, staged, lent)
            }
            Some(chunk) => First { flags, body: Body::Chunk, chunk, length: short(length) },
        };
        let mut packet = Packet::new(Code::Write);
        packet.word(first.word()).word(remote.key).word(remote.address).word(number);
        if let Some(data) = data {
            packet.word(data);
        }
        let sent = if is_inline {
            self.emit_inline(door, to, &mut packet, &Cargo::Memory(memory))
        } else {
            if first.body == Body::Fetch {
                self.core.add_place(to, &mut packet, memory, lent);
            }
            self.emit(door, to, &packet)
        };
        if sent.is_err() {
            self.core.remove_operation(number);
            if let Some(chunk) = chunk {
                self.core.take_back(to, chunk);
            }
            self.core.unstage(to, staged);
        }
        sent
    }

    /// Reads memory of a peer.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was begun.
    pub fn read(
        &mut self,
        from: PeerId,
        (memory, remote): (&S::Memory, Remote),
        token: Option<S::Token>,
    ) -> Result<(), Refusal> {
        let door = self.ready(from)?;
        let number = self.begin(from, (Kind::Read, remote.key), Some(memory.clone()), token)?;
        let mut packet = Packet::new(Code::Read);
        packet.word(First::inline(0, 0).word()).word(remote.key).word(remote.address);
        packet.word(number).word(memory.length() as u64);
        let sent = self.emit(door, from, &packet);
        if sent.is_err() {
            self.core.remove_operation(number);
        }
        sent
    }

    /// Answers the long reads of peers of other nodes.
    pub(crate) fn lend_reads(&mut self) {
        for (peer, number, own) in std::mem::take(&mut self.core.to_lend) {
            let memory = self.core.operations.get(own).and_then(|it| it.memory.clone());
            let (Some(memory), State::Live(handle)) = (memory, self.core.peers.at(peer).state)
            else {
                continue;
            };
            let lent = self.lend(Some(handle), peer, &memory);
            self.core.answer_read(peer, number, own, lent);
        }
    }

    /// Changes words of a peer. The former values go to `result`, if there is one.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was begun. [`Refusal::TooLong`] if the words do not fit.
    pub fn atomic(
        &mut self,
        to: PeerId,
        (call, remote): (&Call<'_>, Remote),
        result: Option<&S::Memory>,
        token: Option<S::Token>,
    ) -> Result<(), Refusal> {
        let door = self.ready(to)?;
        let bytes = [call.operand, call.compare].concat();
        let words = call.count * call.datatype.bytes();
        let fits = call.count <= usize::from(u16::MAX) && words <= self.atomic_bytes_max();
        if !fits || bytes.len() > 2 * self.atomic_bytes_max() {
            return Err(Refusal::TooLong);
        }
        let number = self.begin(to, (Kind::Atomic, remote.key), result.cloned(), token)?;
        let mut packet = Packet::new(Code::Atomic);
        packet.word(First::inline(0, short(bytes.len())).word());
        packet.word(remote.key).word(remote.address).word(number);
        let fetches = u64::from(result.is_some());
        let kinds = u64::from(call.operator as u8) | u64::from(call.datatype as u8) << 8;
        packet.word(kinds | fetches << 16 | (call.count as u64) << 32);
        let sent = self.emit_inline(door, to, &mut packet, &Cargo::Bytes(&bytes));
        if sent.is_err() {
            self.core.remove_operation(number);
        }
        sent
    }

    /// Bytes of the words of one atomic.
    #[must_use]
    pub fn atomic_bytes_max(&self) -> usize {
        2048
    }

    /// Gives an operation a number.
    fn begin(
        &mut self,
        peer: PeerId,
        (kind, key): (Kind, u64),
        memory: Option<S::Memory>,
        token: Option<S::Token>,
    ) -> Result<u64, Refusal> {
        if self.core.under_way() >= self.core.options.operations_max {
            return Err(Refusal::Busy);
        }
        let operation = Operation {
            peer,
            token,
            kind,
            is_tagged: false,
            tag: 0,
            key,
            memory,
            lent: None,
            is_copy: false,
            push: None,
        };
        Ok(self.core.operations.insert(operation))
    }
}

impl<E: Endpoint, S: Surface> Core<E, S> {
    /// The range of registered memory that a peer may use so.
    fn reach(&self, remote: Remote, length: u64, rights: Rights) -> Result<S::Memory, Failure> {
        let found = self.registrations.get(&remote.key).ok_or(Failure::UnknownKey)?;
        let at = remote.address.checked_sub(found.base).ok_or(Failure::OutOfBounds)?;
        let end = at.checked_add(length).ok_or(Failure::OutOfBounds)?;
        if end > found.memory.length() as u64 {
            return Err(Failure::OutOfBounds);
        }
        if (rights.read && !found.rights.read) || (rights.write && !found.rights.write) {
            return Err(Failure::Denied);
        }
        let range = usize::try_from(at).ok().zip(usize::try_from(length).ok());
        let (at, length) = range.ok_or(Failure::OutOfBounds)?;
        Ok(found.memory.part(at, length))
    }

    /// A read, a write or an atomic of a peer.
    pub(crate) fn remote_parcel(
        &mut self,
        from: PeerId,
        code: Code,
        mut reader: Reader<'_>,
    ) -> Option<()> {
        let first = First::of(reader.word()?)?;
        let remote = Remote { key: reader.word()?, address: reader.word()? };
        let number = reader.word()?;
        match code {
            Code::Read => {
                let length = reader.word()?;
                self.serve_read(from, number, remote, length);
                Some(())
            }
            Code::Atomic => self.atomic_parcel(from, (first, remote, number), reader),
            _ => self.write_parcel(from, (first, remote, number), reader),
        }
    }

    fn serve_read(&mut self, from: PeerId, number: u64, remote: Remote, length: u64) {
        let rights = Rights { read: true, write: false };
        let memory = match self.reach(remote, length, rights) {
            Ok(memory) => memory,
            Err(failure) => return self.queue_answer(from, number, Err(failure)),
        };
        let bytes = memory.length();
        if bytes <= self.inline_bytes_to(from) {
            let packet = answer(First::inline(0, short(bytes)), number, Ok(()));
            // The packets of one answer are all good, so all bytes are read before the first.
            let mut body = vec![0; if bytes > packet.room() { bytes } else { 0 }];
            let read = memory.read(0, &mut body).map_err(|Fault| Failure::Fault);
            let cargo = if body.is_empty() { Cargo::Memory(&memory) } else { Cargo::Bytes(&body) };
            if let Err(failure) = read.and_then(|()| self.queue_inline(from, packet, &cargo)) {
                return self.queue_answer(from, number, Err(failure));
            }
            return self.report(Kind::ReadBy, from, remote.key, bytes, None);
        }
        if self.fits_chunk(from, bytes)
            && let Some(chunk) = self.chunk_for(from, (&memory, 0, bytes))
        {
            match chunk {
                Ok(chunk) => {
                    let (body, length) = (Body::Chunk, short(bytes));
                    let first = First { flags: 0, body, chunk, length };
                    self.queue(from, answer(first, number, Ok(())));
                    self.report(Kind::ReadBy, from, remote.key, bytes, None);
                }
                Err(failure) => self.queue_answer(from, number, Err(failure)),
            }
            return;
        }
        // As many as the peer may have under way.
        if self.under_way() >= 2 * self.options.operations_max {
            return self.queue_answer(from, number, Err(Failure::Unsupported));
        }
        let operation = Operation {
            peer: from,
            token: None,
            kind: Kind::ReadBy,
            is_tagged: false,
            tag: 0,
            key: remote.key,
            memory: Some(memory.clone()),
            lent: None,
            is_copy: false,
            push: None,
        };
        let own = self.operations.insert(operation);
        if self.lends && !self.is_near(from) && bytes >= self.options.lent_bytes_min {
            // The endpoint is polled just now, and cannot be asked.
            self.to_lend.push((from, number, own));
        } else {
            self.answer_read(from, number, own, None);
        }
    }

    /// Answers a read of a body that the peer has to fetch.
    fn answer_read(&mut self, from: PeerId, number: u64, own: u64, lent: Option<RemoteKey>) {
        let Some(operation) = self.operations.get_mut(own) else { return };
        operation.lent = lent;
        let Some(memory) = operation.memory.clone() else { return };
        let first = First::fetch(0, self.stage(from, &memory), lent);
        let mut packet = answer(first, number, Ok(()));
        packet.word(own);
        self.add_place(from, &mut packet, &memory, lent);
        self.queue(from, packet);
    }

    fn write_parcel(
        &mut self,
        from: PeerId,
        (first, remote, number): (First, Remote, u64),
        mut reader: Reader<'_>,
    ) -> Option<()> {
        let data = if first.flags & DATA != 0 { Some(reader.word()?) } else { None };
        let (key, rights) = (remote.key, Rights { read: false, write: true });
        if first.body == Body::Fetch {
            let total = reader.word()?;
            let place = self.place_of(from, first, &mut reader, total)?;
            match self.reach(remote, total, rights) {
                Ok(memory) => {
                    let purpose = Purpose::Write { answer: None, key, data };
                    let fetch = Fetch::new(from, Some(number), total, memory, purpose);
                    self.start_fetch(fetch, place);
                }
                Err(failure) => {
                    self.leave(from, &place);
                    self.queue_answer(from, number, Err(failure));
                }
            }
            return Some(());
        }
        let reached = self.reach(remote, u64::from(first.length), rights);
        if first.body == Body::Chunk {
            return match reached {
                Ok(memory) => {
                    let purpose = Purpose::Write { answer: Some(number), key, data };
                    self.take_chunk(from, first, memory, purpose)
                }
                Err(failure) => {
                    self.release(from, first.chunk);
                    self.queue_answer(from, number, Err(failure));
                    Some(())
                }
            };
        }
        let (bytes, length) = (reader.rest(), first.length as usize);
        if bytes.len() > length || length > 4096 || self.peers.at(from).incoming.is_some() {
            return None;
        }
        if bytes.len() == length {
            let put = |memory: S::Memory| match length {
                0 => Ok(()),
                _ => memory.write(0, bytes).map_err(|Fault| Failure::Fault),
            };
            let result = reached.and_then(put);
            self.written(from, (number, key, data), length, result);
            return Some(());
        }
        let mut written = Ok(());
        let into = match reached {
            Ok(memory) => {
                written = memory.write(0, bytes);
                Inbound::Memory(memory, Purpose::Write { answer: Some(number), key, data })
            }
            Err(failure) => {
                self.queue_answer(from, number, Err(failure));
                Inbound::Nowhere
            }
        };
        self.peers.at(from).incoming = Some(Incoming { into, at: bytes.len(), length, written });
        Some(())
    }

    fn atomic_parcel(
        &mut self,
        from: PeerId,
        (first, remote, number): (First, Remote, u64),
        mut reader: Reader<'_>,
    ) -> Option<()> {
        let kinds = reader.word()?;
        let [operator, datatype, fetches, ..] = kinds.to_le_bytes();
        let count = usize::try_from(kinds >> 32).ok()?;
        let length = first.length as usize;
        let (operator, datatype) = (Operator::of(operator)?, Datatype::of(datatype)?);
        let bytes = count.checked_mul(datatype.bytes())?;
        let operands = usize::from(operator != Operator::Read) + usize::from(operator.compares());
        let is_sound = first.body == Body::Inline && bytes <= 2048 && length == operands * bytes;
        if !is_sound || reader.rest().len() > length || self.peers.at(from).incoming.is_some() {
            return None;
        }
        let order = Order { remote, number, operator, datatype, count, fetches: fetches != 0 };
        let operands = reader.rest();
        if operands.len() == length {
            self.change(from, &order, operands);
            return Some(());
        }
        let (at, into) = (operands.len(), Inbound::Operands(operands.to_vec(), order));
        let written = Ok(());
        self.peers.at(from).incoming = Some(Incoming { into, at, length, written });
        Some(())
    }

    /// Does an atomic of a peer, and answers it.
    pub(crate) fn change(&mut self, from: PeerId, order: &Order, operands: &[u8]) {
        let Order { remote, number, operator, datatype, count, fetches } = *order;
        let bytes = count * datatype.bytes();
        let rights = Rights { read: fetches, write: operator != Operator::Read };
        let (operand, compare) = operands.split_at(bytes.min(operands.len()));
        let call = Call { operator, datatype, count, operand, compare };
        let changed = match self.reach(remote, bytes as u64, rights) {
            Ok(_) if !operator.takes(datatype) => Err(Failure::Unsupported),
            Ok(memory) => memory.change(0, &call).map_err(|Fault| Failure::Fault),
            Err(failure) => Err(failure),
        };
        match changed {
            Ok(old) if fetches => {
                let packet = answer(First::inline(0, short(old.len())), number, Ok(()));
                // Bytes can always be read.
                let _ = self.queue_inline(from, packet, &Cargo::Bytes(&old));
            }
            Ok(_) => self.queue_answer(from, number, Ok(())),
            Err(failure) => return self.queue_answer(from, number, Err(failure)),
        }
        self.report(Kind::ChangedBy, from, remote.key, bytes, None);
    }

    fn written(
        &mut self,
        from: PeerId,
        (number, key, data): (u64, u64, Option<u64>),
        length: usize,
        result: Result<(), Failure>,
    ) {
        self.queue_answer(from, number, result);
        if result.is_ok() {
            self.report(Kind::WrittenBy, from, key, length, data);
        }
    }

    /// Reports what a peer did.
    fn report(&mut self, kind: Kind, from: PeerId, key: u64, length: usize, data: Option<u64>) {
        if self.reports_remote || data.is_some() {
            let outcome = Outcome::of(None, kind, from);
            self.done.push(Outcome { key, length, data, ..outcome });
        }
    }

    pub(crate) fn queue_answer(&mut self, to: PeerId, number: u64, result: Result<(), Failure>) {
        self.queue(to, answer(First::inline(0, 0), number, result));
    }

    /// The peer answers an operation.
    pub(crate) fn answer(&mut self, from: PeerId, mut reader: Reader<'_>) -> Option<()> {
        let first = First::of(reader.word()?)?;
        let (number, result) = (reader.word()?, Failure::result(reader.word()?));
        let operation = self.operations.get(number)?;
        if operation.peer != from {
            return None;
        }
        let has_body = first.body != Body::Inline || first.length > 0;
        if !has_body || result.is_err() {
            self.end_operation(number, result);
            return Some(());
        }
        let memory = match operation.kind {
            Kind::Read | Kind::Atomic => operation.memory.clone()?,
            _ => return None,
        };
        let purpose = Purpose::Operation(number);
        match first.body {
            Body::Fetch => {
                let (theirs, total) = (reader.word()?, reader.word()?);
                let place = self.place_of(from, first, &mut reader, total)?;
                (total == memory.length() as u64).then_some(())?;
                let fetch = Fetch::new(from, Some(theirs), total, memory, purpose);
                self.start_fetch(fetch, place);
            }
            Body::Chunk => {
                (first.length as usize == memory.length()).then_some(())?;
                self.take_chunk(from, first, memory, purpose)?;
            }
            Body::Inline => {
                let (bytes, length) = (reader.rest(), first.length as usize);
                let busy = self.peers.at(from).incoming.is_some();
                if length != memory.length() || bytes.len() > length || busy {
                    return None;
                }
                let written = memory.write(0, bytes);
                if bytes.len() == length {
                    self.end_operation(number, written.map_err(|Fault| Failure::Fault));
                } else {
                    let into = Inbound::Memory(memory, purpose);
                    let incoming = Incoming { into, at: bytes.len(), length, written };
                    self.peers.at(from).incoming = Some(incoming);
                }
            }
        }
        Some(())
    }

    /// Does what is to be done when a body is there, or does not come.
    pub(crate) fn fulfil(
        &mut self,
        from: PeerId,
        purpose: Purpose<S>,
        memory: &S::Memory,
        result: Result<(), Failure>,
    ) {
        match purpose {
            Purpose::Receive(taken) => {
                self.end_taken(&taken, memory.length(), result);
                if let Some(number) = taken.card.answer {
                    self.queue_answer(from, number, result);
                }
            }
            Purpose::Write { answer, key, data } => {
                if let Some(number) = answer {
                    self.queue_answer(from, number, result);
                }
                if result.is_ok() {
                    self.report(Kind::WrittenBy, from, key, memory.length(), data);
                }
            }
            Purpose::Operation(number) => self.end_operation(number, result),
        }
    }
}

fn answer(first: First, number: u64, result: Result<(), Failure>) -> Packet {
    let mut packet = Packet::new(Code::Answer);
    packet.word(first.word()).word(number).word(Failure::number(result));
    packet
}
