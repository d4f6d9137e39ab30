//! One-sided operations: a copy by the initiator, then the notifications.
//!
//! An operation first checks that there is a slot for each of its notifications, then checks the
//! key, then copies, then notifies. A refused operation has written nothing.

use std::ops::Deref;

use weft_fabric::{
    Command, EndpointAddress, Issued, Notification, Notify, OperationError, Peer, Register,
    RemoteKey, Side, Source, Target,
};
use weft_memory::CopyMode;

use crate::address_vector::{AddressVector, Lost, PeerState};
use crate::completion::{encode, notification_flags};
use crate::endpoint::ShmEndpoint;
use crate::memory::{KeyParts, Mapped, ShmRegion};
use crate::msg::Outlet;
use crate::registers::{Registers, StampWord};
use crate::window::ShmWindow;

/// The operation that a notification reports.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    pub command: Command,
    pub notify: Notify,
    pub context: u64,
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
            operation: self.context,
            key: self.key,
            offset: self.offset,
            length: self.length,
            class: self.notify.class,
            immediate: self.notify.immediate,
        }
    }

    /// The side as which the target is notified, if it is notified.
    #[inline]
    fn at_target(&self) -> Option<Side> {
        if is_put(self.command) {
            self.notify.completer().then_some(Side::Completer)
        } else {
            self.notify.responder().then_some(Side::Responder)
        }
    }

    /// Whether the initiator is notified that the data arrived.
    #[inline]
    fn completer_at_home(&self) -> bool {
        self.notify.completer() && !is_put(self.command)
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
    let in_force = mapped.key == key && word.stamp() == mapped.stamp;
    in_force.then_some(Translated { mapped, word })
}

impl Outlet<'_> {
    /// Notifies the target of an operation, if a notification was asked for.
    // Inlined, so that the words go from registers to the slot. Passing them in a structure in
    // memory cost more than writing the slot.
    #[inline(always)]
    fn tell_target(&mut self, own: u16, registers: &Registers, account: &Account) {
        let Some(side) = account.at_target() else { return };
        let Account { command, notify, context, key, offset, length } = *account;
        let words = encode(context, key, offset, length, notify.immediate);
        let sent = self.emit_words(own, notify.class, notification_flags(side, command), &words);
        debug_assert!(sent, "check_notify found a free slot");
        registers.count(Register::NotificationsSent, 1);
    }
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
fn check_notify(
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
                $crate::rma::ready(&mut $self.peers, free, $to, $command, $notify, $key)?
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
            Missing::Key => self.resolve(to, key),
            Missing::Room => {
                self.want_room(to);
                Err(OperationError::WouldBlock)
            }
            Missing::Impossible(error) => Err(error),
        }
    }

    /// Sends the notifications of a completed operation.
    #[inline(always)]
    pub(crate) fn tell(&mut self, to: Peer, account: Account) {
        if account.notify.is_none() {
            return;
        }
        if let Ok(peer) = self.peers.live(to) {
            peer.outlet().tell_target(self.address.vpid.0, &self.registers, &account);
        }
        if account.notify.requester() || account.completer_at_home() {
            self.tell_own(to, account);
        }
    }

    #[inline(never)]
    fn tell_own(&mut self, to: Peer, account: Account) {
        let Some(address) = self.peers.address(to) else { return };
        if account.notify.requester() {
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
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError> {
        let parameters = self.parameters;
        let command = Command::Put;
        let (length, from) = match source {
            Source::Bytes(bytes) => (bytes.len() as u64, 0),
            Source::Region { region, offset, length } => (*length, region.check(*offset, *length)?),
        };
        let (mapped, mut outlet) = mapped_for!(self, to, command, notify, target.key);
        let start = mapped.check(command, target.offset, length)?;
        match source {
            Source::Bytes(bytes) => {
                mapped.segment.write(start, bytes, parameters.copy_mode(bytes.len()));
            }
            Source::Region { region, .. } => {
                // The length was checked against a mapped region, so it fits a usize.
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let mode = parameters.copy_mode(length);
                region.segment().copy(from, &mapped.segment, start, length, mode);
            }
        }
        let (key, offset) = (target.key, target.offset);
        outlet.confirm(mapped)?;
        let account = Account { command, notify, context, key, offset, length };
        outlet.tell_target(self.address.vpid.0, &self.registers, &account);
        if account.notify.requester() {
            self.tell_own(to, account);
        }
        self.registers.count(Register::Puts, 1);
        self.registers.count(Register::PutBytes, length);
        Ok(Issued::Done(0))
    }

    pub(crate) fn do_put_immediate(
        &mut self,
        to: Peer,
        value: u64,
        length: u8,
        target: Target,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError> {
        let command = Command::ImmediatePut;
        let length = u64::from(length);
        if !(1..=8).contains(&length) {
            self.peers.live(to)?;
            return Err(OperationError::InvalidLength { length });
        }
        let bytes = value.to_le_bytes();
        let bytes = &bytes[..usize::try_from(length).unwrap_or(8)];
        let (mapped, outlet) = mapped_for!(self, to, command, notify, target.key);
        let start = mapped.check(command, target.offset, length)?;
        mapped.segment.write(start, bytes, CopyMode::Plain);
        outlet.confirm(mapped)?;
        self.registers.count(Register::Puts, 1);
        self.registers.count(Register::PutBytes, length);
        let (key, offset) = (target.key, target.offset);
        self.tell(to, Account { command, notify, context, key, offset, length });
        Ok(Issued::Done(0))
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
        let key = RemoteKey(0);
        self.tell(to, Account { command, notify, context: 0, key, offset: 0, length: 0 });
        Ok(())
    }

    pub(crate) fn do_get(
        &mut self,
        from: Peer,
        source: Target,
        region: &ShmRegion,
        (at, length): (u64, u64),
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError> {
        let command = Command::Get;
        let parameters = self.parameters;
        let into = region.check(at, length)?;
        let (mapped, _) = mapped_for!(self, from, command, notify, source.key);
        let start = mapped.check(command, source.offset, length)?;
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let mode = parameters.copy_mode(bytes);
        mapped.segment.copy(start, region.segment(), into, bytes, mode);
        self.registers.count(Register::Gets, 1);
        self.registers.count(Register::GetBytes, length);
        let (key, offset) = (source.key, source.offset);
        self.tell(from, Account { command, notify, context, key, offset, length });
        Ok(Issued::Done(0))
    }

    pub(crate) fn do_window(
        &mut self,
        to: Peer,
        key: RemoteKey,
    ) -> Result<ShmWindow, OperationError> {
        let mapped = mapped_for!(self, to, Command::Get, Notify::NONE, key).0.mapped.clone();
        let peer = self.peers.live(to)?;
        let slot = KeyParts::of(key).slot;
        let (registers, down) = (peer.registers.clone(), peer.down.clone());
        Ok(ShmWindow::new(mapped, registers, slot, down, peer.full_fences))
    }
}
