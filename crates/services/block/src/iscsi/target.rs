//! Targets: named sets of units, who may use them, and the sessions that do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::chap::Credentials;
use crate::scsi::{Directory, Port, Unit};

/// Units of a target.
pub const UNITS_MAX: usize = 256;
/// Sessions of a target.
pub const SESSIONS_MAX: usize = 4096;
/// Bytes of an iSCSI name; RFC 7143 section 4.2.7.
const NAME_BYTES_MAX: usize = 223;

/// Why something cannot be added to a target.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidTarget {
    /// Not a name as iSCSI has them.
    #[error("{0:?} is no iSCSI name; use one such as iqn.2026-11.com.example:disks")]
    Name(String),
    /// There is one of that name.
    #[error("there is a target {0} already")]
    Exists(String),
    /// There is a unit of that number.
    #[error("target {0} has a LUN {1} already")]
    UnitExists(String, u64),
    /// A number that no unit can have, or one unit too many.
    #[error("a target has at most {UNITS_MAX} LUNs, with numbers from 0 to 16383")]
    TooMany,
}

/// Whether a text is an iSCSI name: `iqn.`, `eui.` or `naa.`, and a few kinds of characters.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let begins = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
    let is_allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b':')
    };
    begins && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_allowed)
}

/// A session of a target.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The initiator port.
    pub port: Port,
    ended: Arc<AtomicBool>,
}

impl SessionInfo {
    /// Whether another login of the same initiator port took its place.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// A target.
#[derive(Debug)]
pub struct Target {
    name: String,
    credentials: Vec<Credentials>,
    units: RwLock<BTreeMap<u64, Arc<Unit>>>,
    sessions: Mutex<(u16, BTreeMap<u16, SessionInfo>)>,
}

impl Target {
    /// A target without units. With credentials, initiators have to log in by CHAP.
    ///
    /// # Errors
    /// [`InvalidTarget::Name`].
    pub fn new(name: &str, credentials: Vec<Credentials>) -> Result<Self, InvalidTarget> {
        if !is_name(name) {
            return Err(InvalidTarget::Name(name.chars().take(NAME_BYTES_MAX).collect()));
        }
        let sessions = Mutex::new((0, BTreeMap::new()));
        let units = RwLock::new(BTreeMap::new());
        Ok(Self { name: name.to_owned(), credentials, units, sessions })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The initiators that may log in; all if it is empty.
    #[must_use]
    pub fn credentials(&self) -> &[Credentials] {
        &self.credentials
    }

    /// A unit by its number.
    #[must_use]
    pub fn unit(&self, number: u64) -> Option<Arc<Unit>> {
        self.units.read().get(&number).cloned()
    }

    /// All units in order of their numbers.
    #[must_use]
    pub fn units(&self) -> Vec<(u64, Arc<Unit>)> {
        self.units.read().iter().map(|(number, unit)| (*number, Arc::clone(unit))).collect()
    }

    /// Adds a unit, and tells the sessions.
    ///
    /// # Errors
    /// [`InvalidTarget::UnitExists`], [`InvalidTarget::TooMany`].
    pub fn add(&self, number: u64, unit: Arc<Unit>) -> Result<(), InvalidTarget> {
        {
            let mut units = self.units.write();
            if units.contains_key(&number) {
                return Err(InvalidTarget::UnitExists(self.name.clone(), number));
            }
            if number > 16_383 || units.len() >= UNITS_MAX {
                return Err(InvalidTarget::TooMany);
            }
            units.insert(number, unit);
        }
        self.luns_changed();
        Ok(())
    }

    /// Takes a unit away, and tells the sessions. Commands that run are finished.
    pub fn remove(&self, number: u64) -> Option<Arc<Unit>> {
        let unit = self.units.write().remove(&number)?;
        unit.reset();
        self.luns_changed();
        Some(unit)
    }

    /// Begins a session, in place of an earlier one of the same port. Returns its handle.
    ///
    /// `None` when there are too many.
    #[must_use]
    pub fn begin_session(&self, port: &Port) -> Option<(u16, SessionInfo)> {
        let (last, sessions) = &mut *self.sessions.lock();
        // RFC 7143 section 6.3.5: session reinstatement.
        sessions.retain(|_, session| {
            let is_same = session.port == *port;
            if is_same {
                session.ended.store(true, Ordering::Release);
            }
            !is_same
        });
        if sessions.len() >= SESSIONS_MAX {
            return None;
        }
        loop {
            *last = last.wrapping_add(1);
            if *last != 0 && !sessions.contains_key(last) {
                break;
            }
        }
        let session = SessionInfo { port: port.clone(), ended: Arc::default() };
        sessions.insert(*last, session.clone());
        Some((*last, session))
    }

    /// Ends a session.
    pub fn end_session(&self, handle: u16, session: &SessionInfo) {
        let sessions = &mut self.sessions.lock().1;
        if sessions.get(&handle).is_some_and(|own| Arc::ptr_eq(&own.ended, &session.ended)) {
            sessions.remove(&handle);
        }
    }

    /// The initiator ports that are logged in.
    #[must_use]
    pub fn ports(&self) -> Vec<Port> {
        self.sessions.lock().1.values().map(|session| session.port.clone()).collect()
    }

    fn luns_changed(&self) {
        for unit in self.units.read().values() {
            unit.luns_changed();
        }
    }
}

impl Directory for Target {
    fn numbers(&self) -> Vec<u64> {
        self.units.read().keys().copied().collect()
    }

    fn by_designator(&self, kind: u8, bytes: &[u8]) -> Option<Arc<Unit>> {
        let units = self.units.read();
        units.values().find(|unit| unit.identity().is_named_by(kind, bytes)).cloned()
    }
}

/// All targets of a server.
#[derive(Debug, Default)]
pub struct Targets(RwLock<BTreeMap<String, Arc<Target>>>);

impl Targets {
    /// A target by its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Target>> {
        self.0.read().get(name).cloned()
    }

    /// All targets in order of their names.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Target>> {
        self.0.read().values().cloned().collect()
    }

    /// Adds a target.
    ///
    /// # Errors
    /// [`InvalidTarget::Exists`].
    pub fn add(&self, target: Arc<Target>) -> Result<(), InvalidTarget> {
        let mut targets = self.0.write();
        if targets.contains_key(target.name()) {
            return Err(InvalidTarget::Exists(target.name().to_owned()));
        }
        targets.insert(target.name().to_owned(), target);
        Ok(())
    }

    /// The initiators that may ask for names of targets: all that one knows. Empty when no
    /// target asks for a secret.
    #[must_use]
    pub fn credentials(&self) -> Vec<Credentials> {
        self.all().iter().flat_map(|target| target.credentials().to_vec()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_of_the_same_port_takes_the_place_of_the_session() {
        let target = Target::new("iqn.2026-11.example:a", Vec::new()).expect("a name");
        let port = |isid| Port { name: "iqn.i".into(), isid };
        let (one, first) = target.begin_session(&port([1; 6])).expect("room");
        let (two, other) = target.begin_session(&port([2; 6])).expect("room");
        let (three, again) = target.begin_session(&port([1; 6])).expect("room");
        assert!(first.is_ended() && !other.is_ended() && !again.is_ended());
        target.end_session(one, &first);
        assert_eq!(target.ports().len(), 2);
        target.end_session(two, &other);
        target.end_session(three, &again);
        assert_eq!(target.ports(), []);
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for name in ["", "disk", "iqn.A", "iqn.a b", &format!("iqn.{}", "a".repeat(223))] {
            assert!(Target::new(name, Vec::new()).is_err(), "{name}");
        }
    }
}
