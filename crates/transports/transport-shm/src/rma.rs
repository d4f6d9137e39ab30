//! One-sided operations: a copy by the initiator, then the notifications.
//!
//! An operation first checks that there is a slot for each of its notifications, then checks the
//! key, then copies, then notifies. A refused operation has written nothing.

use std::ops::Deref;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::time::Duration;

use weft_fabric::{
    Command, EndpointAddress, Issued, LocalRange, Notification, Notify, Operation, OperationError,
    Peer, Register, RemoteKey, Side, Signal, SignalChange, Source, Target, Timed, Value,
};
use weft_memory::{CopyMode, Part, PartMut, Watch};

use crate::address_vector::{AddressVector, Lost, PeerState};
use crate::attr::Parameters;
use crate::completion::{encode, notification_flags};
use crate::door;
use crate::endpoint::ShmEndpoint;
use crate::memory::{KeyParts, Mapped, ShmRegion};
use crate::msg::Outlet;
use crate::registers::{BegunPut, Registers, StampWord};
use crate::sys;
use crate::window::ShmWindow;

/// Of so many puts and gets that look their key up one is timed.
const TIMED_EVERY: u32 = 16;

/// The operation that a notification reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub command: Command,
    pub operation: Operation,
    pub key: RemoteKey,
    pub offset: u64,
    pub length: u64,
}

impl Account {
    #[inline]
    fn told(&self, side: Side, peer: Peer, source: EndpointAddress) -> Notification {
        Notification {
            side,
            command: self.command,
            peer,
            source,
            operation: self.operation.context,
            key: self.key,
            offset: self.offset,
            length: self.length,
            class: self.operation.notify.class,
            immediate: self.operation.notify.immediate,
        }
    }

    /// The side as which the target is notified, if it is notified.
    #[inline]
    pub(crate) fn at_target(&self) -> Option<Side> {
        if is_put(self.command) {
            self.operation.notify.completer().then_some(Side::Completer)
        } else {
            self.operation.notify.responder().then_some(Side::Responder)
        }
    }

    /// Whether the initiator is notified that the data arrived.
    #[inline]
    fn completer_at_home(&self) -> bool {
        self.operation.notify.completer() && !is_put(self.command)
    }
}

const fn is_put(command: Command) -> bool {
    matches!(command, Command::Put | Command::ImmediatePut | Command::NotificationPut)
}

/// The memory behind a key in force, and the word that says how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translated<'a> {
    pub mapped: &'a Mapped,
    pub word: &'a StampWord,
}

impl Deref for Translated<'_> {
    type Target = Mapped;

    #[inline]
    fn deref(&self) -> &Mapped {
        self.mapped
    }
}

/// The memory behind a key of the peer whose resolved keys are `keys`; `None` when the key is not
/// resolved or not in force.
#[inline]
pub(crate) fn mapped<'a>(
    keys: &'a [Option<Mapped>],
    registers: &'a Registers,
    key: RemoteKey,
) -> Option<Translated<'a>> {
    let slot = KeyParts::of(key).slot;
    let mapped = keys.get(usize::from(slot))?.as_ref()?;
    // The owner changes the stamp to revoke the key.
    let word = registers.stamp_word(slot);
    let serves = mapped.key == key && mapped.serves(word);
    serves.then_some(Translated { mapped, word })
}

impl PeerState {
    /// The memory of a key that was looked at before, whatever its stamp says now.
    #[inline]
    fn known(&self, key: RemoteKey) -> Result<Translated<'_>, Missing> {
        let slot = KeyParts::of(key).slot;
        let mapped = self.keys.get(usize::from(slot)).and_then(Option::as_ref);
        let mapped = mapped.filter(|mapped| mapped.key == key).ok_or(Missing::Key)?;
        Ok(Translated { mapped, word: self.registers.stamp_word(slot) })
    }
}

impl Outlet<'_> {
    /// Notifies the target of an operation, if a notification was asked for.
    // Inlined, so that the words go from registers to the slot. Passing them in a structure in
    // memory cost more than writing the slot.
    #[inline(always)]
    fn tell_target(&mut self, own: u16, registers: &Registers, account: &Account) {
        let Some(side) = account.at_target() else { return };
        let Account { command, operation, key, offset, length } = *account;
        let Operation { context, notify, more, .. } = operation;
        let words = encode(context, key, offset, length, notify.immediate);
        let flags = notification_flags(side, command);
        let sent = self.emit_words(own, notify.class, flags, &words, more);
        debug_assert!(sent, "check_notify found a free slot");
        registers.count(Register::NotificationsSent, 1);
    }
}

/// The start of the source in its region, if it is in one and lies inside.
#[inline]
pub(crate) fn source_start(source: &Source<'_, ShmRegion>) -> Result<usize, OperationError> {
    match source {
        Source::Bytes(_) => Ok(0),
        Source::Region(range) => Ok(range.region.check(range.offset, range.length)?),
    }
}

/// The source of a put, which lies inside its region.
#[derive(Clone, Copy)]
enum Bytes<'a> {
    Slice(&'a [u8]),
    Region(Part<'a>),
}

impl<'a> Bytes<'a> {
    /// `None` when the source is outside its region.
    #[inline(always)]
    fn of(source: &Source<'a, ShmRegion>) -> Option<Self> {
        Some(match source {
            Source::Bytes(bytes) => Self::Slice(bytes),
            Source::Region(range) => {
                Self::Region(range.region.segment().part(range.offset, range.length)?)
            }
        })
    }

    /// Copies the source to a part of the same length.
    #[inline(always)]
    fn copy_to(self, place: PartMut<'_>, mode: CopyMode) {
        match self {
            Self::Slice(bytes) => place.write(bytes, mode),
            Self::Region(part) => place.copy_from(part, mode),
        }
    }
}

/// Copies the source of a put, whose region has it at `from`, to `start` in a peer's memory. The
/// caller has checked both ranges.
#[inline(always)]
fn copy_in(
    mapped: &Mapped,
    start: usize,
    source: &Source<'_, ShmRegion>,
    from: usize,
    parameters: Parameters,
) {
    match source {
        Source::Bytes(bytes) => {
            mapped.segment.write(start, bytes, parameters.copy_mode(bytes.len()));
        }
        Source::Region(range) => {
            // The length was checked against a mapped region, so it fits a usize.
            let length = usize::try_from(range.length).unwrap_or(usize::MAX);
            let mode = parameters.copy_mode(length);
            range.region.segment().copy(from, &mapped.segment, start, length, mode);
        }
    }
}

/// Copies `length` bytes from `start` in a peer's memory to `place` of a region. The caller has
/// checked both ranges.
#[inline(always)]
fn copy_out(
    mapped: &Mapped,
    start: usize,
    region: &ShmRegion,
    place: usize,
    length: u64,
    parameters: Parameters,
) {
    // The length was checked against mapped memory, so it fits a usize.
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let mode = parameters.copy_mode(length);
    mapped.segment.copy(start, region.segment(), place, length, mode);
}

/// Whether `length` bytes that a get wrote to `place` of the watched region are there.
#[inline(always)]
pub(crate) fn kept(watch: Watch<'_>, place: u64, length: u64) -> bool {
    // Both lie inside mapped memory.
    watch.keep(usize::try_from(place).unwrap_or(0), usize::try_from(length).unwrap_or(0))
}

/// Why an operation cannot be done yet.
#[derive(Debug)]
pub(crate) enum Missing {
    /// The key is not resolved or no longer in force.
    Key,
    /// The peer's ring or the local queue is full.
    Room,
    /// The operation is not possible.
    Impossible(OperationError),
}

impl From<Lost> for Missing {
    fn from(lost: Lost) -> Self {
        Self::Impossible(lost.into())
    }
}

impl From<Missing> for OperationError {
    /// The error of the second try, after [`ShmEndpoint::make_ready`].
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Key => Self::InvalidKey,
            Missing::Room => Self::WouldBlock,
            Missing::Impossible(error) => error,
        }
    }
}

#[inline]
pub(crate) fn check_notify(
    peer: &mut PeerState,
    free: usize,
    command: Command,
    notify: Notify,
) -> Result<(), Missing> {
    if notify.is_none() {
        return Ok(());
    }
    notify.check(command).map_err(Missing::Impossible)?;
    let at_target = if is_put(command) { notify.completer() } else { notify.responder() };
    // The initiator gets at most two notifications: as requester and as completer.
    if (at_target && !peer.has_room()) || free < 2 {
        return Err(Missing::Room);
    }
    Ok(())
}

/// The memory that an operation may use and the outlet for its notification. `free` is the room in
/// the local queue.
#[inline(always)]
pub(crate) fn ready(
    peers: &mut AddressVector,
    free: usize,
    to: Peer,
    command: Command,
    notify: Notify,
    key: RemoteKey,
) -> Result<(Translated<'_>, Outlet<'_>), Missing> {
    let peer = peers.live(to)?;
    check_notify(peer, free, command, notify)?;
    peer.split(key).ok_or(Missing::Key)
}

/// The memory that an operation of `$self` may use. Resolves the key on its first use.
macro_rules! mapped_for {
    ($self:ident, $to:expr, $command:expr, $notify:expr, $key:expr) => {{
        let free = $self.local.free();
        match $crate::rma::ready(&mut $self.peers, free, $to, $command, $notify, $key) {
            Ok(mapped) => mapped,
            Err(missing) => {
                $self.make_ready(missing, $to, $key)?;
                let free = $self.local.free();
                match $crate::rma::ready(&mut $self.peers, free, $to, $command, $notify, $key) {
                    Ok(mapped) => mapped,
                    Err(missing) => return Err($self.still_missing(missing, $to, $key)),
                }
            }
        }
    }};
}
pub(crate) use mapped_for;

impl ShmEndpoint {
    /// For operations without a region: checks that the peer is alive, that Table 3.1 allows the
    /// sides of `notify`, and that there is room for the notifications.
    pub(crate) fn prepare(
        &mut self,
        to: Peer,
        command: Command,
        notify: Notify,
    ) -> Result<(), OperationError> {
        let peer = self.peers.live(to)?;
        match check_notify(peer, self.local.free(), command, notify) {
            Ok(()) => Ok(()),
            Err(missing) => self.make_ready(missing, to, RemoteKey(0)),
        }
    }

    /// Removes the reason why an operation could not be done, so that it can be tried once more.
    #[cold]
    pub(crate) fn make_ready(
        &mut self,
        missing: Missing,
        to: Peer,
        key: RemoteKey,
    ) -> Result<(), OperationError> {
        match missing {
            Missing::Key => self.resolve_mapped(to, key),
            Missing::Room => {
                self.want_room(to);
                Err(OperationError::WouldBlock)
            }
            Missing::Impossible(error) => Err(error),
        }
    }

    /// Why the second try failed, too.
    #[cold]
    pub(crate) fn still_missing(
        &mut self,
        missing: Missing,
        to: Peer,
        key: RemoteKey,
    ) -> OperationError {
        let KeyParts { slot, generation, .. } = KeyParts::of(key);
        if let Missing::Key = missing
            && let Ok(peer) = self.peers.live(to)
            && peer.registers.stamp(slot).generation() == generation
        {
            // The memory was moved once more since the broker answered.
            self.requests.tell_room(to);
            return OperationError::WouldBlock;
        }
        missing.into()
    }

    /// Sends the notifications of a completed operation.
    #[inline(always)]
    pub(crate) fn tell(&mut self, to: Peer, account: Account) {
        if account.operation.notify.is_none() {
            return;
        }
        if let Ok(peer) = self.peers.find(to) {
            peer.outlet().tell_target(self.address.vpid.0, &self.registers, &account);
        }
        if account.operation.notify.requester() || account.completer_at_home() {
            self.tell_own(to, account);
        }
        if account.operation.more {
            self.note_batch(to);
        }
    }

    #[inline(never)]
    fn tell_own(&mut self, to: Peer, account: Account) {
        let Some(address) = self.peers.address(to) else { return };
        if account.operation.notify.requester() {
            self.local.push(account.told(Side::Requester, to, address));
        }
        if account.completer_at_home() {
            self.local.push(account.told(Side::Completer, to, address));
        }
    }

    //= EXTOLL-THESIS#3.2.1
    //# A put writes remote memory and notifies requester and completer as it was asked.
    #[inline(always)]
    pub(crate) fn do_put(
        &mut self,
        to: Peer,
        source: &Source<'_, ShmRegion>,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        if !operation.notify.is_none() || operation.more {
            return self.put_and_tell(to, source, target, operation);
        }
        let length = source.length();
        if let Some(recent) = self.recently.of(to, target.key)
            && let Some(place) = recent.writable(target.offset, length)
            && let Some(source) = Bytes::of(source)
        {
            let begun = self.registers.begin_put();
            let look = recent.look();
            if look.serves(recent) {
                door::before();
                source.copy_to(place, self.parameters.mode_for(length));
                door::behind();
                if !look.is_confirmed() {
                    self.recently.confirm_slowly()?;
                }
                door::confirmed();
                self.registers.end_put(begun, length);
                return Ok(Issued::Done(Value::Nothing));
            }
            self.registers.give_up();
        }
        self.put_anew(to, source, target, operation)
    }

    /// A put whose key is not at hand.
    #[inline(never)]
    fn put_anew(
        &mut self,
        to: Peer,
        source: &Source<'_, ShmRegion>,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let begun = self.is_timed().then(sys::now);
        let done = self.put_and_tell(to, source, target, operation);
        if done.is_ok() {
            self.is_over(Timed::Put, begun);
            self.looked_up(to, target.key);
        }
        done
    }

    /// Whether a put or get that looks its key up is one of those that are timed. The ones that do
    /// not look it up have no instruction to spare for that.
    fn is_timed(&mut self) -> bool {
        let left = &mut self.sampling.operations;
        *left = left.checked_sub(1).unwrap_or(TIMED_EVERY);
        *left == 0
    }

    /// Notes the time of an operation that was timed.
    fn is_over(&self, what: Timed, begun: Option<Duration>) {
        if let Some(begun) = begun {
            self.registers.took(what, sys::now().saturating_sub(begun));
        }
    }

    #[inline(always)]
    fn put_and_tell(
        &mut self,
        to: Peer,
        source: &Source<'_, ShmRegion>,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let parameters = self.parameters;
        let command = Command::Put;
        let length = source.length();
        let from = source_start(source)?;
        let begun = self.registers.begin_put();
        let (mapped, mut outlet) = mapped_for!(self, to, command, operation.notify, target.key);
        let start = mapped.check(command, target.offset, length)?;
        door::before();
        copy_in(&mapped, start, source, from, parameters);
        door::behind();
        let (key, offset) = (target.key, target.offset);
        mapped.confirm(mapped.word)?;
        let account = Account { command, operation, key, offset, length };
        outlet.tell_target(self.address.vpid.0, &self.registers, &account);
        if operation.notify.requester() {
            self.tell_own(to, account);
        }
        if operation.more {
            self.note_batch(to);
        }
        door::confirmed();
        self.registers.end_put(begun, length);
        Ok(Issued::Done(Value::Nothing))
    }

    pub(crate) fn do_put_immediate(
        &mut self,
        to: Peer,
        value: u64,
        length: u8,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let command = Command::ImmediatePut;
        let length = weft_fabric::rules::check_immediate(length)
            .or_else(|error| self.peers.live(to).map_err(OperationError::from).and(Err(error)))?;
        let bytes = value.to_le_bytes();
        let bytes = &bytes[..usize::from(length)];
        let length = u64::from(length);
        let begun = self.registers.begin_put();
        let (mapped, _) = mapped_for!(self, to, command, operation.notify, target.key);
        let start = mapped.check(command, target.offset, length)?;
        door::before();
        mapped.segment.write(start, bytes, CopyMode::Plain);
        door::behind();
        mapped.confirm(mapped.word)?;
        let (key, offset) = (target.key, target.offset);
        self.wrote(begun, to, Account { command, operation, key, offset, length })
    }

    /// Counts a put that is done, and sends its notifications.
    pub(crate) fn wrote(
        &mut self,
        begun: BegunPut,
        to: Peer,
        account: Account,
    ) -> Result<Issued, OperationError> {
        door::confirmed();
        self.registers.end_put(begun, account.length);
        self.tell(to, account);
        Ok(Issued::Done(Value::Nothing))
    }

    pub(crate) fn do_put_vectored(
        &mut self,
        to: Peer,
        ranges: &[(Source<'_, ShmRegion>, Target)],
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let command = Command::Put;
        let parameters = self.parameters;
        let Some((_, Target { key, offset })) = ranges.first().copied() else {
            self.peers.live(to)?;
            return Err(OperationError::Empty);
        };
        let mut length: u64 = 0;
        let begun = self.registers.begin_put();
        // Everything is checked before anything is written.
        for (source, target) in ranges {
            source_start(source)?;
            let (mapped, _) = mapped_for!(self, to, command, operation.notify, target.key);
            mapped.check(command, target.offset, source.length())?;
            length = length.saturating_add(source.length());
        }
        for (source, target) in ranges {
            let from = source_start(source)?;
            let mapped = self.peers.live(to)?.known(target.key)?;
            let start = mapped.check(command, target.offset, source.length())?;
            door::before();
            copy_in(&mapped, start, source, from, parameters);
            door::behind();
        }
        // A key that was revoked meanwhile ends the whole operation.
        for (_, target) in ranges {
            let mapped = self.peers.live(to)?.known(target.key)?;
            mapped.confirm(mapped.word)?;
        }
        self.wrote(begun, to, Account { command, operation, key, offset, length })
    }

    pub(crate) fn do_put_signal(
        &mut self,
        to: Peer,
        source: &Source<'_, ShmRegion>,
        target: Target,
        signal: Signal,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let command = Command::Put;
        let parameters = self.parameters;
        let Target { key, offset } = target;
        let (length, from) = (source.length(), source_start(source)?);
        let word = signal.target;
        let needed = (command, signal.change.access());
        let begun = self.registers.begin_put();
        let (mapped, _) = mapped_for!(self, to, command, operation.notify, word.key);
        mapped.check_word(needed, word.offset, 8)?;
        let (mapped, _) = mapped_for!(self, to, command, operation.notify, key);
        let start = mapped.check(command, offset, length)?;
        door::before();
        copy_in(&mapped, start, source, from, parameters);
        door::behind();
        mapped.confirm(mapped.word)?;
        let mapped = self.peers.live(to)?.known(word.key)?;
        let place = mapped.check_word(needed, word.offset, 8)?;
        // A move that has begun meanwhile waits for the signal, too.
        mapped.confirm(mapped.word)?;
        door::before();
        match signal.change {
            SignalChange::Set(value) => mapped.segment.word64(place).store(value, Release),
            SignalChange::Add(value) => {
                mapped.segment.word64(place).fetch_add(value, AcqRel);
            }
        }
        door::behind();
        mapped.confirm(mapped.word)?;
        self.wrote(begun, to, Account { command, operation, key, offset, length })
    }

    pub(crate) fn do_put_notification(
        &mut self,
        to: Peer,
        class: u8,
        value: u64,
    ) -> Result<(), OperationError> {
        let command = Command::NotificationPut;
        let notify = Notify::COMPLETER.class(class).immediate(value);
        self.prepare(to, command, notify)?;
        let (key, operation) = (RemoteKey(0), Operation::new(0).notify(notify));
        self.tell(to, Account { command, operation, key, offset: 0, length: 0 });
        Ok(())
    }

    pub(crate) fn do_get(
        &mut self,
        from: Peer,
        source: Target,
        into: LocalRange<'_, ShmRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        if operation.notify.is_none()
            && let Some(recent) = self.recently.of(from, source.key)
            && let Some(bytes) = recent.readable(source.offset, into.length)
            && let Some(place) = into.region.segment().part_mut(into.offset, into.length)
        {
            let watch = into.region.memory().watch();
            let look = recent.look();
            if look.serves(recent) {
                door::before();
                place.copy_from(bytes, self.parameters.mode_for(into.length));
                door::behind();
                if look.is_confirmed() && kept(watch, into.offset, into.length) {
                    self.registers.count(Register::Gets, 1);
                    self.registers.count(Register::GetBytes, into.length);
                    return Ok(Issued::Done(Value::Nothing));
                }
                // A get has no effect, so that it is made again where it met a move.
            }
        }
        self.get_anew(from, source, into, operation)
    }

    /// A get whose key is not at hand.
    #[inline(never)]
    fn get_anew(
        &mut self,
        from: Peer,
        source: Target,
        into: LocalRange<'_, ShmRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let LocalRange { region, offset: place, length } = into;
        let begun = self.is_timed().then(sys::now);
        let place = region.check(place, length)?;
        let (mapped, _) = mapped_for!(self, from, Command::Get, operation.notify, source.key);
        let start = mapped.check(Command::Get, source.offset, length)?;
        let watch = region.memory().watch();
        door::before();
        copy_out(&mapped, start, region, place, length, self.parameters);
        door::behind();
        if !mapped.is_confirmed(mapped.word) {
            let looked = mapped.confirm_slowly(mapped.word);
            if looked.is_err() {
                return Err(self.read_in_vain(from, looked));
            }
        }
        if !kept(watch, into.offset, length) {
            return Err(self.read_in_vain(from, Ok(())));
        }
        let done = self.fetched(from, source, length, operation);
        self.is_over(Timed::Get, begun);
        self.looked_up(from, source.key);
        done
    }

    /// A get met a move, of the peer's memory or of its own, or a revocation. Gets have no effect,
    /// so that it is tried once more where the key is still valid.
    #[cold]
    pub(crate) fn read_in_vain(
        &mut self,
        from: Peer,
        looked: Result<(), OperationError>,
    ) -> OperationError {
        match looked {
            Ok(()) | Err(OperationError::Interrupted) => {
                self.requests.tell_room(from);
                OperationError::WouldBlock
            }
            Err(error) => error,
        }
    }

    /// Counts a get that is done, and sends its notifications.
    #[inline]
    pub(crate) fn fetched(
        &mut self,
        from: Peer,
        first: Target,
        length: u64,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        self.registers.count(Register::Gets, 1);
        self.registers.count(Register::GetBytes, length);
        if !operation.notify.is_none() {
            let Target { key, offset } = first;
            self.tell(from, Account { command: Command::Get, operation, key, offset, length });
        }
        Ok(Issued::Done(Value::Nothing))
    }

    pub(crate) fn do_get_vectored(
        &mut self,
        from: Peer,
        ranges: &[(Target, LocalRange<'_, ShmRegion>)],
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        if ranges.is_empty() {
            self.peers.live(from)?;
            return Err(OperationError::Empty);
        }
        // Everything is checked before anything is read.
        for (source, into) in ranges {
            into.region.check(into.offset, into.length)?;
            let (mapped, _) = mapped_for!(self, from, Command::Get, operation.notify, source.key);
            mapped.check(Command::Get, source.offset, into.length)?;
        }
        let mut length: u64 = 0;
        for (source, into) in ranges {
            let place = into.region.check(into.offset, into.length)?;
            let mapped = self.peers.live(from)?.known(source.key)?;
            let start = mapped.check(Command::Get, source.offset, into.length)?;
            let watch = into.region.memory().watch();
            door::before();
            copy_out(&mapped, start, into.region, place, into.length, self.parameters);
            door::behind();
            let looked = mapped.confirm(mapped.word);
            if looked.is_err() || !kept(watch, into.offset, into.length) {
                return Err(self.read_in_vain(from, looked));
            }
            length = length.saturating_add(into.length);
        }
        self.fetched(from, ranges[0].0, length, operation)
    }

    pub(crate) fn do_window(
        &mut self,
        to: Peer,
        key: RemoteKey,
    ) -> Result<ShmWindow, OperationError> {
        let mapped = mapped_for!(self, to, Command::Get, Notify::NONE, key).0.mapped.clone();
        let peer = self.peers.live(to)?;
        let slot = KeyParts::of(key).slot;
        let (registers, standing) = (peer.registers.clone(), peer.standing.clone());
        Ok(ShmWindow::new(mapped, registers, slot, standing))
    }
}
