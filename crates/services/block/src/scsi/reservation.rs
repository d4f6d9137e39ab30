//! Persistent reservations, and RESERVE and RELEASE of old.
//!
//! Source: SPC-4 section 5.13 and tables 65 and 66 for what a reservation forbids; SPC-2 section
//! 7.21 for RESERVE(6). An initiator port is registered by its name, not by its session, so that a
//! registration outlasts sessions, and a restart if the initiator asked for that (APTPL).

use serde::{Deserialize, Serialize};

use super::opcodes::{Access, Name};
use super::sense::Sense;

/// Registrations that a unit has room for.
pub const REGISTRATIONS_MAX: usize = 256;
/// Bytes of the parameters of PERSISTENT RESERVE OUT, without transport IDs.
pub const PARAMETER_BYTES: usize = 24;

/// An initiator port: the name of the initiator, and the ISID of its session (RFC 7143 section
/// 4.4.3). It is the same again when the initiator logs in again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Port {
    /// The iSCSI name of the initiator.
    pub name: String,
    /// The ISID.
    pub isid: [u8; 6],
}

impl Port {
    /// The TransportID of SPC-4 section 7.6.4.6, with the ISID.
    fn transport_id(&self) -> Vec<u8> {
        let [a, b, c, d, e, f] = self.isid;
        let text = format!("{},i,0x{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}\0", self.name);
        let mut id = vec![0x45, 0];
        let length = text.len().next_multiple_of(4).max(20);
        id.extend(u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
        id.extend(text.bytes());
        id.resize(4 + length, 0);
        id
    }

    /// The port of a TransportID.
    fn of_transport_id(bytes: &[u8]) -> Option<Self> {
        if *bytes.first()? != 0x45 {
            return None;
        }
        let length = usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?));
        let text = std::str::from_utf8(bytes.get(4..4 + length)?).ok()?;
        let (name, isid) = text.trim_end_matches('\0').split_once(",i,0x")?;
        let isid = u64::from_str_radix(isid, 16).ok().filter(|_| isid.len() == 12)?;
        let [_, _, isid @ ..] = isid.to_be_bytes();
        Some(Self { name: name.to_owned(), isid })
    }
}

/// The type of a persistent reservation; SPC-4 table 66.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only registered ports write.
    WriteExclusiveRegistrants = 5,
    /// Only registered ports read and write.
    ExclusiveAccessRegistrants = 6,
    /// Only registered ports write, and all hold the reservation.
    WriteExclusiveAll = 7,
    /// Only registered ports read and write, and all hold the reservation.
    ExclusiveAccessAll = 8,
}

impl Kind {
    const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrants,
            6 => Self::ExclusiveAccessRegistrants,
            7 => Self::WriteExclusiveAll,
            8 => Self::ExclusiveAccessAll,
            _ => return None,
        })
    }

    const fn is_for_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    const fn is_held_by_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    const fn forbids_reads(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrants | Self::ExclusiveAccessAll
        )
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Registration {
    port: Port,
    key: u64,
}

/// The reservation. Of the kinds that all registered ports hold, nobody is named.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Held {
    kind: Kind,
    holder: Option<Port>,
}

/// The persistent reservations of a unit.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reservations {
    #[serde(skip)]
    generation: u32,
    registrations: Vec<Registration>,
    held: Option<Held>,
    outlasts_restart: bool,
}

/// The end of a PERSISTENT RESERVE OUT that did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

/// News for other ports after a PERSISTENT RESERVE OUT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The port.
    pub port: Port,
    /// The code of the unit attention.
    pub code: (u8, u8),
    /// Whether its tasks are aborted.
    pub aborts: bool,
}

const RESERVATIONS_PREEMPTED: (u8, u8) = (0x2a, 0x03);
const RESERVATIONS_RELEASED: (u8, u8) = (0x2a, 0x04);
const REGISTRATIONS_PREEMPTED: (u8, u8) = (0x2a, 0x05);
/// INSUFFICIENT REGISTRATION RESOURCES.
const NO_ROOM: Sense = Sense::new(super::sense::Key::IllegalRequest, 0x55, 0x04);
/// INVALID RELEASE OF PERSISTENT RESERVATION.
const INVALID_RELEASE: Sense = Sense::new(super::sense::Key::IllegalRequest, 0x26, 0x04);

/// The parameters of PERSISTENT RESERVE OUT; SPC-4 table 218.
#[derive(Clone, Copy, Debug)]
struct Parameters {
    key: u64,
    action_key: u64,
    outlasts_restart: bool,
}

impl Parameters {
    fn of(data: &[u8]) -> Result<Self, Sense> {
        let data: &[u8; PARAMETER_BYTES] = data
            .get(..PARAMETER_BYTES)
            .and_then(|data| data.try_into().ok())
            .ok_or(Sense::PARAMETER_LENGTH)?;
        let word = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| data[at + byte]));
        // SPEC_I_PT, other initiator ports: not supported, as the capabilities say.
        if data[20] & 0x08 != 0 {
            return Err(Sense::parameter(20));
        }
        Ok(Self { key: word(0), action_key: word(8), outlasts_restart: data[20] & 1 != 0 })
    }
}

impl Reservations {
    /// Whether `port` may run a command.
    #[must_use]
    pub fn allow(&self, port: &Port, access: Access) -> bool {
        let Some(held) = &self.held else { return true };
        let forbidden = match access {
            Access::Always | Access::Harmless => false,
            Access::Reads => held.kind.forbids_reads(),
            Access::Writes => true,
        };
        if !forbidden {
            return true;
        }
        let is_registered = self.key_of(port).is_some();
        held.holder.as_ref() == Some(port) || (held.kind.is_for_registrants() && is_registered)
    }

    /// Whether old reservations (RESERVE) are forbidden, as SPC-2 has it: there is a registration.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        !self.registrations.is_empty()
    }

    /// Whether the state is to be kept over restarts.
    #[must_use]
    pub const fn outlasts_restart(&self) -> bool {
        self.outlasts_restart
    }

    /// The state to keep, or an empty one if nobody asked for more.
    #[must_use]
    pub fn kept(&self) -> Vec<u8> {
        let empty = Self::default();
        let state = if self.outlasts_restart { self } else { &empty };
        serde_json::to_vec(state).expect("names and numbers")
    }

    /// The state that was kept before a restart.
    ///
    /// # Errors
    /// The bytes are none that [`Reservations::kept`] made.
    pub fn of_kept(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// PERSISTENT RESERVE IN: the data of a service action.
    #[must_use]
    pub fn report(&self, action: u8) -> Vec<u8> {
        match action {
            0 => self.headed(self.registrations.iter().flat_map(|it| it.key.to_be_bytes())),
            1 => self.headed(self.reservation()),
            2 => capabilities(self.outlasts_restart),
            _ => self.headed(self.registrations.iter().flat_map(|it| self.full_status(it))),
        }
    }

    /// PERSISTENT RESERVE OUT. Returns the news for other ports.
    ///
    /// # Errors
    /// [`Refusal`]; then nothing was changed.
    pub fn change(
        &mut self,
        port: &Port,
        action: u8,
        scope_and_kind: u8,
        data: &[u8],
    ) -> Result<Vec<Notice>, Refusal> {
        if action == 7 {
            return self.move_to(port, scope_and_kind, data);
        }
        let parameters = Parameters::of(data)?;
        match action {
            0 | 6 => self.register(port, &parameters, action == 6),
            _ if self.key_of(port) != Some(parameters.key) => Err(Refusal::Conflict),
            1 => self.reserve(port, kind_of(scope_and_kind)?),
            2 => self.release(port, kind_of(scope_and_kind)?),
            3 => Ok(self.clear(port)),
            _ => self.preempt(port, &parameters, scope_and_kind, action == 5),
        }
    }

    fn key_of(&self, port: &Port) -> Option<u64> {
        self.registrations.iter().find(|it| it.port == *port).map(|it| it.key)
    }

    fn is_holder(&self, port: &Port) -> bool {
        self.held.as_ref().is_some_and(|held| match &held.holder {
            Some(holder) => holder == port,
            None => self.key_of(port).is_some(),
        })
    }

    fn register(
        &mut self,
        port: &Port,
        parameters: &Parameters,
        ignores_key: bool,
    ) -> Result<Vec<Notice>, Refusal> {
        let own = self.key_of(port);
        if !ignores_key && own.unwrap_or(0) != parameters.key {
            return Err(Refusal::Conflict);
        }
        let mut notices = Vec::new();
        match (own, parameters.action_key) {
            (None, 0) => {}
            (Some(_), 0) => notices = self.unregister(port),
            (Some(_), key) => {
                let own = self.registrations.iter_mut().find(|it| it.port == *port);
                own.expect("it has a key").key = key;
            }
            (None, _) if self.registrations.len() >= REGISTRATIONS_MAX => {
                return Err(NO_ROOM.into());
            }
            (None, key) => self.registrations.push(Registration { port: port.clone(), key }),
        }
        self.outlasts_restart = parameters.outlasts_restart;
        self.generation = self.generation.wrapping_add(1);
        Ok(notices)
    }

    /// Takes a registration away, and with it a reservation that it held.
    fn unregister(&mut self, port: &Port) -> Vec<Notice> {
        let Some(held) = self.held.clone().filter(|_| self.is_holder(port)) else {
            self.registrations.retain(|it| it.port != *port);
            return Vec::new();
        };
        self.registrations.retain(|it| it.port != *port);
        // A reservation of all registrants ends with the last of them.
        if held.kind.is_held_by_all() && !self.registrations.is_empty() {
            return Vec::new();
        }
        self.held = None;
        if !held.kind.is_for_registrants() {
            return Vec::new();
        }
        self.tell_others(port, RESERVATIONS_RELEASED)
    }

    fn reserve(&mut self, port: &Port, kind: Kind) -> Result<Vec<Notice>, Refusal> {
        match &self.held {
            Some(held) if self.is_holder(port) && held.kind == kind => Ok(Vec::new()),
            Some(_) => Err(Refusal::Conflict),
            None => {
                let holder = (!kind.is_held_by_all()).then(|| port.clone());
                self.held = Some(Held { kind, holder });
                Ok(Vec::new())
            }
        }
    }

    fn release(&mut self, port: &Port, kind: Kind) -> Result<Vec<Notice>, Refusal> {
        let Some(held) = self.held.clone().filter(|_| self.is_holder(port)) else {
            return Ok(Vec::new());
        };
        if held.kind != kind {
            return Err(INVALID_RELEASE.into());
        }
        self.held = None;
        if !kind.is_for_registrants() {
            return Ok(Vec::new());
        }
        Ok(self.tell_others(port, RESERVATIONS_RELEASED))
    }

    fn clear(&mut self, port: &Port) -> Vec<Notice> {
        let notices = self.tell_others(port, RESERVATIONS_PREEMPTED);
        self.registrations.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
        notices
    }

    /// PREEMPT; SPC-4 section 5.13.11.4.
    fn preempt(
        &mut self,
        port: &Port,
        parameters: &Parameters,
        scope_and_kind: u8,
        aborts: bool,
    ) -> Result<Vec<Notice>, Refusal> {
        let victim = parameters.action_key;
        let held = self.held.clone();
        let takes_over = match &held {
            Some(Held { holder: None, .. }) => victim == 0,
            Some(Held { holder: Some(holder), .. }) => self.key_of(holder) == Some(victim),
            None => false,
        };
        let is_held_by_all = matches!(&held, Some(Held { holder: None, .. }));
        if victim == 0 && !is_held_by_all {
            return Err(Sense::parameter(8).into());
        }
        let kind = takes_over.then(|| kind_of(scope_and_kind)).transpose()?;
        let is_preempted =
            |it: &Registration| it.port != *port && (victim == it.key || victim == 0);
        let (gone, stay): (Vec<_>, Vec<_>) = self.registrations.drain(..).partition(is_preempted);
        if gone.is_empty() && !takes_over && !stay.iter().any(|it| it.key == victim) {
            self.registrations = stay;
            return Err(Refusal::Conflict);
        }
        self.registrations = stay;
        let mut notices: Vec<Notice> = gone
            .into_iter()
            .map(|it| Notice { port: it.port, code: REGISTRATIONS_PREEMPTED, aborts })
            .collect();
        if let Some(kind) = kind {
            let was = held.map(|held| held.kind);
            if was.is_some_and(|was| was != kind) {
                let others = self.tell_others(port, RESERVATIONS_RELEASED);
                notices.extend(others);
            }
            let holder = (!kind.is_held_by_all()).then(|| port.clone());
            self.held = Some(Held { kind, holder });
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(notices)
    }

    /// REGISTER AND MOVE; SPC-4 section 5.13.8.
    fn move_to(
        &mut self,
        port: &Port,
        scope_and_kind: u8,
        data: &[u8],
    ) -> Result<Vec<Notice>, Refusal> {
        let head = data.get(..PARAMETER_BYTES).ok_or(Sense::PARAMETER_LENGTH)?;
        let word = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (key, new_key) = (word(0), word(8));
        if self.key_of(port) != Some(key) {
            return Err(Refusal::Conflict);
        }
        let (leaves, outlasts_restart) = (head[17] & 2 != 0, head[17] & 1 != 0);
        let held = self.held.clone().filter(|_| self.is_holder(port));
        let Some(held) = held else { return Err(Refusal::Conflict) };
        if held.kind.is_held_by_all() || new_key == 0 {
            return Err(Sense::parameter(8).into());
        }
        if kind_of(scope_and_kind)? != held.kind {
            return Err(Refusal::Conflict);
        }
        let to = Port::of_transport_id(&data[PARAMETER_BYTES..]).ok_or(Sense::parameter(24))?;
        if to == *port {
            return Err(Sense::parameter(24).into());
        }
        if leaves {
            self.registrations.retain(|it| it.port != *port);
        }
        let room = self.registrations.len() < REGISTRATIONS_MAX;
        match self.registrations.iter_mut().find(|it| it.port == to) {
            Some(registration) => registration.key = new_key,
            None if !room => return Err(NO_ROOM.into()),
            None => self.registrations.push(Registration { port: to.clone(), key: new_key }),
        }
        self.held = Some(Held { holder: Some(to), ..held });
        self.outlasts_restart = outlasts_restart;
        self.generation = self.generation.wrapping_add(1);
        Ok(Vec::new())
    }

    fn tell_others(&self, port: &Port, code: (u8, u8)) -> Vec<Notice> {
        let others = self.registrations.iter().filter(|it| it.port != *port);
        others.map(|it| Notice { port: it.port.clone(), code, aborts: false }).collect()
    }

    /// The head of a report: the generation, and the length of what follows.
    fn headed(&self, bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
        let mut report = self.generation.to_be_bytes().to_vec();
        report.extend([0; 4]);
        report.extend(bytes);
        let length = u32::try_from(report.len() - 8).expect("registrations are bounded");
        report[4..8].copy_from_slice(&length.to_be_bytes());
        report
    }

    fn reservation(&self) -> Vec<u8> {
        let Some(held) = &self.held else { return Vec::new() };
        let key = held.holder.as_ref().and_then(|holder| self.key_of(holder)).unwrap_or(0);
        let mut bytes = key.to_be_bytes().to_vec();
        bytes.extend([0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
        bytes
    }

    fn full_status(&self, of: &Registration) -> Vec<u8> {
        let mut bytes = of.key.to_be_bytes().to_vec();
        let holds = self.is_holder(&of.port);
        let kind = self.held.as_ref().filter(|_| holds).map_or(0, |held| held.kind as u8);
        bytes.extend([0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0]);
        // The one target port that there is.
        bytes.extend(1_u16.to_be_bytes());
        let id = of.port.transport_id();
        bytes.extend(u32::try_from(id.len()).expect("names are bounded").to_be_bytes());
        bytes.extend(id);
        bytes
    }
}

/// The kind of a reservation in a command; its scope has to be the unit.
fn kind_of(scope_and_kind: u8) -> Result<Kind, Sense> {
    if scope_and_kind >> 4 != 0 {
        return Err(Sense::bit(2, 7));
    }
    Kind::of(scope_and_kind & 0x0f).ok_or(Sense::bit(2, 3))
}

/// REPORT CAPABILITIES; SPC-4 table 213. All six kinds, and reservations that outlast a restart.
fn capabilities(outlasts_restart: bool) -> Vec<u8> {
    const ALL_TARGET_PORTS: u8 = 0x04;
    const CAN_OUTLAST: u8 = 0x01;
    const MASK_VALID: u8 = 0x80;
    let outlasts = u8::from(outlasts_restart);
    vec![0, 8, ALL_TARGET_PORTS | CAN_OUTLAST, MASK_VALID | outlasts, 0xea, 0x01, 0, 0]
}

/// Whether a command is refused while another session holds an old reservation; SPC-2 table 10.
#[must_use]
pub const fn old_reservation_forbids(name: Name) -> bool {
    !matches!(name, Name::Inquiry | Name::ReportLuns | Name::RequestSense | Name::Release6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str) -> Port {
        Port { name: name.to_owned(), isid: [0x80, 0, 0, 1, 2, 3] }
    }

    fn parameters(key: u64, action_key: u64, outlasts: bool) -> Vec<u8> {
        let mut bytes = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
        bytes.extend([0, 0, 0, 0, u8::from(outlasts), 0, 0, 0]);
        bytes
    }

    fn registered() -> (Reservations, Port, Port) {
        let (mut all, a, b) = (Reservations::default(), port("iqn.a"), port("iqn.b"));
        all.change(&a, 0, 0, &parameters(0, 1, false)).expect("free");
        all.change(&b, 0, 0, &parameters(0, 2, false)).expect("free");
        (all, a, b)
    }

    #[test]
    fn write_exclusive_lets_others_read_and_only_the_holder_write() {
        let (mut all, a, b) = registered();
        all.change(&a, 1, 1, &parameters(1, 0, false)).expect("free");
        assert!(all.allow(&b, Access::Reads) && !all.allow(&b, Access::Writes));
        assert!(all.allow(&a, Access::Writes));
        assert_eq!(all.change(&b, 1, 1, &parameters(2, 0, false)), Err(Refusal::Conflict));
    }

    #[test]
    fn a_wrong_key_changes_nothing() {
        let (mut all, a, _) = registered();
        let before = all.clone();
        for action in [0, 1, 2, 3, 4, 5] {
            let refused = all.change(&a, action, 1, &parameters(9, 2, false));
            assert_eq!(refused, Err(Refusal::Conflict), "{action}");
        }
        assert_eq!(all, before);
    }

    #[test]
    fn preempting_the_holder_takes_the_reservation_and_tells_it() {
        let (mut all, a, b) = registered();
        all.change(&a, 1, 3, &parameters(1, 0, false)).expect("free");
        let told = all.change(&b, 5, 3, &parameters(2, 1, false)).expect("its key is right");
        let notice = Notice { port: a.clone(), code: REGISTRATIONS_PREEMPTED, aborts: true };
        assert_eq!(told, [notice]);
        assert!(all.allow(&b, Access::Writes) && !all.allow(&a, Access::Reads));
        assert_eq!(all.report(0)[4..], [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn what_all_registered_ports_hold_ends_with_the_last() {
        let (mut all, a, b) = registered();
        all.change(&a, 1, 8, &parameters(1, 0, false)).expect("free");
        all.change(&a, 0, 0, &parameters(1, 0, false)).expect("its key");
        assert!(!all.allow(&a, Access::Reads) && all.allow(&b, Access::Writes));
        all.change(&b, 0, 0, &parameters(2, 0, false)).expect("its key");
        assert!(all.allow(&a, Access::Writes));
    }

    #[test]
    fn the_end_of_a_holder_of_registrants_only_is_told_to_the_others() {
        let (mut all, a, b) = registered();
        all.change(&a, 1, 5, &parameters(1, 0, false)).expect("free");
        assert!(all.allow(&b, Access::Writes));
        let told = all.change(&a, 0, 0, &parameters(1, 0, false)).expect("its key");
        assert_eq!(told, [Notice { port: b, code: RESERVATIONS_RELEASED, aborts: false }]);
    }

    #[test]
    fn a_reservation_moves_to_a_port_by_its_name() {
        let (mut all, a, _) = registered();
        all.change(&a, 1, 3, &parameters(1, 0, false)).expect("free");
        let to = port("iqn.c");
        let mut data = [1_u64.to_be_bytes(), 7_u64.to_be_bytes()].concat();
        let id = to.transport_id();
        data.extend([0, 2, 0, 1]);
        data.extend(u32::try_from(id.len()).expect("short").to_be_bytes());
        data.extend(&id);
        assert_eq!(all.change(&a, 7, 3, &data), Ok(Vec::new()));
        assert!(all.allow(&to, Access::Writes) && !all.allow(&a, Access::Reads));
        data.truncate(30);
        assert!(matches!(all.change(&to, 7, 3, &data), Err(Refusal::Conflict)));
    }

    #[test]
    fn only_what_was_asked_to_is_kept_over_a_restart() {
        let (mut all, a, _) = registered();
        all.change(&a, 1, 1, &parameters(1, 0, false)).expect("free");
        let again = Reservations::of_kept(&all.kept()).expect("own bytes");
        assert!(!again.is_in_use());
        all.change(&a, 6, 0, &parameters(0, 1, true)).expect("any key");
        let again = Reservations::of_kept(&all.kept()).expect("own bytes");
        assert!(again.is_in_use() && !again.allow(&port("iqn.b"), Access::Writes));
        assert!(Reservations::of_kept(b"{").is_err());
    }

    #[test]
    fn full_status_names_the_holder_by_its_transport_id() {
        let (mut all, a, _) = registered();
        all.change(&a, 1, 1, &parameters(1, 0, false)).expect("free");
        let status = all.report(3);
        assert_eq!(status[8 + 12..8 + 14], [1, 1]);
        let id = &status[8 + 24..];
        assert_eq!(Port::of_transport_id(id), Some(a));
    }
}
