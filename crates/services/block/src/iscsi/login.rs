//! The login of a connection: security, then parameters, then full feature phase.
//!
//! Source: RFC 7143 sections 6.3, 11.12, 11.13, 12 and 13. Invariant: an initiator gets on to full
//! feature phase, or to the names of targets, only when it has shown the secret of a user, if there
//! is any.

use std::sync::Arc;

use super::chap::{Chap, Failure};
use super::pdu::Head;
use super::target::{SessionInfo, Target, Targets};
use super::text;
use super::{BURST_BYTES_MAX, FIRST_BURST_BYTES_MAX, SEGMENT_BYTES_MAX, TEXT_BYTES_MAX, WINDOW};
use crate::scsi::Port;

/// The number of the one portal group.
const PORTAL_GROUP: &str = "1";
const TRANSIT: u8 = 0x80;
const CONTINUES: u8 = 0x40;

/// The agreement of initiator and target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// Heads have a digest.
    pub head_digest: bool,
    /// Data have a digest.
    pub data_digest: bool,
    /// Data of writes come only when they are asked for.
    pub initial_r2t: bool,
    /// Data of writes may come with the command.
    pub immediate_data: bool,
    /// Bytes of data that the initiator takes in one PDU.
    pub segment_bytes: usize,
    /// Bytes that are asked for at once.
    pub burst_bytes: usize,
    /// Bytes that may come without being asked for.
    pub first_burst_bytes: usize,
}

impl Default for Negotiated {
    /// The values of RFC 7143 section 13 for keys that are not negotiated.
    fn default() -> Self {
        Self {
            head_digest: false,
            data_digest: false,
            initial_r2t: true,
            immediate_data: true,
            segment_bytes: 8192,
            burst_bytes: 256 << 10,
            first_burst_bytes: 64 << 10,
        }
    }
}

/// Why a login is refused: status class and detail; RFC 7143 section 11.13.5.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal(pub u8, pub u8);

impl Refusal {
    const INITIATOR: Self = Self(2, 0);
    const AUTHENTICATION: Self = Self(2, 1);
    const NOT_FOUND: Self = Self(2, 3);
    const VERSION: Self = Self(2, 5);
    const TOO_MANY_CONNECTIONS: Self = Self(2, 6);
    const MISSING: Self = Self(2, 7);
    const SESSION_TYPE: Self = Self(2, 9);
    const NO_SESSION: Self = Self(2, 0x0a);
    const INVALID: Self = Self(2, 0x0b);
    const NO_RESOURCES: Self = Self(3, 2);
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Malformed => Self::INITIATOR,
            Failure::Refused => Self::AUTHENTICATION,
        }
    }
}

/// A session that has begun.
#[derive(Debug)]
pub struct Established {
    /// The agreement.
    pub negotiated: Negotiated,
    /// The target; `None` for a session that only asks for names.
    pub target: Option<(Arc<Target>, u16, SessionInfo)>,
    /// The initiator port.
    pub port: Port,
    /// The number of the first command.
    pub command_number: u32,
    /// The number of the next answer.
    pub status_number: u32,
}

/// The outcome of a login request.
#[derive(Debug)]
pub enum Next {
    /// The login goes on.
    Login,
    /// Full feature phase.
    Full(Box<Established>),
    /// The login was refused; the connection ends behind the answer.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nothing was received.
    Start,
    Security,
    Operational,
}

/// The state of a login.
#[derive(Debug)]
pub struct Login {
    targets: Arc<Targets>,
    stage: Stage,
    negotiated: Negotiated,
    chap: Chap,
    is_authenticated: bool,
    text: Vec<u8>,
    initiator: Option<String>,
    target: Option<Arc<Target>>,
    is_discovery: bool,
    isid: [u8; 6],
    status_number: u32,
    has_declared: bool,
    has_said_group: bool,
}

impl Login {
    /// A login at a server with these targets, with random bytes for CHAP.
    pub fn new(targets: Arc<Targets>, random: [u8; 17]) -> Self {
        Self {
            targets,
            stage: Stage::Start,
            negotiated: Negotiated::default(),
            chap: Chap::new(random),
            is_authenticated: false,
            text: Vec::new(),
            initiator: None,
            target: None,
            is_discovery: false,
            isid: [0; 6],
            status_number: 1,
            has_declared: false,
            has_said_group: false,
        }
    }

    /// Takes a login request. Returns the answer and what comes next.
    pub fn request(&mut self, head: &Head, data: &[u8]) -> (Head, Vec<u8>, Next) {
        let mut answer = Vec::new();
        let done = self.answer(head, data, &mut answer);
        let (flags, status, next) = match done {
            Ok((flags, next)) => (flags, 0, next),
            Err(refusal) => {
                answer.clear();
                let status = u32::from(refusal.0) << 24 | u32::from(refusal.1) << 16;
                (0, status, Next::Refused)
            }
        };
        let command_number = head.word(24);
        let mut reply = Head::new(0x23, flags, head.tag())
            .with(24, self.status_number)
            .with(28, command_number)
            .with(32, command_number.wrapping_add(WINDOW - 1))
            .with(36, status)
            .with_data_bytes(answer.len());
        reply.0[8..14].copy_from_slice(&head.0[8..14]);
        if let Next::Full(established) = &next {
            let handle = established.target.as_ref().map_or(1, |(_, handle, _)| *handle);
            reply.0[14..16].copy_from_slice(&handle.to_be_bytes());
        }
        self.status_number = self.status_number.wrapping_add(1);
        let next = match next {
            Next::Full(mut established) => {
                established.status_number = self.status_number;
                Next::Full(established)
            }
            next => next,
        };
        (reply, answer, next)
    }

    fn answer(
        &mut self,
        head: &Head,
        data: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<(u8, Next), Refusal> {
        let flags = head.flags();
        let (current, next) = ((flags >> 2) & 3, flags & 3);
        self.check_stage(head, current)?;
        if self.text.len() + data.len() > TEXT_BYTES_MAX {
            return Err(Refusal::INITIATOR);
        }
        self.text.extend(data);
        if flags & CONTINUES != 0 {
            if flags & TRANSIT != 0 {
                return Err(Refusal::INITIATOR);
            }
            return Ok((current << 2, Next::Login));
        }
        let text = std::mem::take(&mut self.text);
        let keys = text::parse(&text).map_err(|_| Refusal::INITIATOR)?;
        self.identify(&keys)?;
        match self.stage {
            Stage::Security => self.security(&keys, answer)?,
            _ => self.parameters(&keys, answer)?,
        }
        if !self.is_discovery && !self.has_said_group {
            self.has_said_group = true;
            text::add(answer, "TargetPortalGroupTag", PORTAL_GROUP);
        }
        let goes_on = flags & TRANSIT != 0 && (self.stage != Stage::Security || self.may_go_on());
        if !goes_on {
            return Ok((current << 2, Next::Login));
        }
        if next <= current || next == 2 {
            return Err(Refusal::INITIATOR);
        }
        let flags = TRANSIT | current << 2 | next;
        if next == 1 {
            self.stage = Stage::Operational;
            return Ok((flags, Next::Login));
        }
        Ok((flags, Next::Full(Box::new(self.establish(head)?))))
    }

    /// Checks that a request belongs to this login, and to its stage.
    fn check_stage(&mut self, head: &Head, current: u8) -> Result<(), Refusal> {
        let isid = std::array::from_fn(|byte| head.0[8 + byte]);
        let stage = match current {
            0 => Stage::Security,
            1 => Stage::Operational,
            _ => return Err(Refusal::INITIATOR),
        };
        if self.stage == Stage::Start {
            if head.0[3] > 0 {
                return Err(Refusal::VERSION);
            }
            if head.0[14..16] != [0, 0] {
                // A second connection for a session. Every session has one.
                return Err(Refusal::TOO_MANY_CONNECTIONS);
            }
            self.isid = isid;
            self.stage = stage;
        }
        if isid != self.isid {
            return Err(Refusal::NO_SESSION);
        }
        if stage != self.stage { Err(Refusal::INVALID) } else { Ok(()) }
    }

    /// Takes the names, which have to be in the first request.
    fn identify(&mut self, keys: &[(&str, &str)]) -> Result<(), Refusal> {
        if self.initiator.is_some() {
            return Ok(());
        }
        let value = |key: &str| keys.iter().find(|(own, _)| *own == key).map(|(_, value)| *value);
        let initiator = value("InitiatorName").ok_or(Refusal::MISSING)?;
        if initiator.is_empty() || initiator.len() > 223 {
            return Err(Refusal::INITIATOR);
        }
        match value("SessionType") {
            Some("Discovery") => self.is_discovery = true,
            None | Some("Normal") => {
                let name = value("TargetName").ok_or(Refusal::MISSING)?;
                let target = self.targets.get(name).ok_or(Refusal::NOT_FOUND)?;
                self.target = Some(target);
            }
            Some(_) => return Err(Refusal::SESSION_TYPE),
        }
        self.initiator = Some(initiator.to_owned());
        if self.stage == Stage::Operational && !self.may_go_on() {
            return Err(Refusal::AUTHENTICATION);
        }
        Ok(())
    }

    fn credentials(&self) -> Vec<super::Credentials> {
        match &self.target {
            Some(target) => target.credentials().to_vec(),
            None => self.targets.credentials(),
        }
    }

    fn may_go_on(&self) -> bool {
        self.is_authenticated || self.credentials().is_empty()
    }

    fn security(&mut self, keys: &[(&str, &str)], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let known = self.credentials();
        let value = |key: &str| keys.iter().find(|(own, _)| *own == key).map(|(_, value)| *value);
        if let Some(methods) = value("AuthMethod") {
            let method = if known.is_empty() { "None" } else { "CHAP" };
            if !methods.split(',').any(|offered| offered == method) {
                return Err(Refusal::AUTHENTICATION);
            }
            text::add(answer, "AuthMethod", method);
        }
        if let Some(algorithms) = value("CHAP_A") {
            self.chap.challenge(algorithms, answer)?;
        }
        if value("CHAP_N").is_some() {
            self.chap.check(value, &known, answer)?;
            self.is_authenticated = true;
        }
        Ok(())
    }

    fn parameters(&mut self, keys: &[(&str, &str)], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        for (key, value) in keys {
            if let Some(own) = self.parameter(key, value)? {
                text::add(answer, key, &own);
            }
        }
        if !self.has_declared {
            self.has_declared = true;
            text::add(answer, "MaxRecvDataSegmentLength", &SEGMENT_BYTES_MAX.to_string());
        }
        Ok(())
    }

    /// The answer to one key, if it has one.
    fn parameter(&mut self, key: &str, value: &str) -> Result<Option<String>, Refusal> {
        let own = &mut self.negotiated;
        let digest = |value: &str| {
            let first = value.split(',').find(|offered| matches!(*offered, "None" | "CRC32C"));
            first.map(|chosen| chosen == "CRC32C").ok_or(Refusal::INITIATOR)
        };
        let is_yes = match value {
            "Yes" => Some(true),
            "No" => Some(false),
            _ => None,
        };
        let flag = || is_yes.ok_or(Refusal::INITIATOR);
        let length = |maximum: usize| -> Result<usize, Refusal> {
            let number = text::number(value).filter(|number| (512..1 << 24).contains(number));
            let number = number.ok_or(Refusal::INITIATOR)?;
            Ok(usize::try_from(number).expect("24 bits").min(maximum))
        };
        let number = || text::number(value).ok_or(Refusal::INITIATOR);
        let word = |is_set: bool| if is_set { "Yes" } else { "No" }.to_owned();
        let digest_word = |is_set: bool| if is_set { "CRC32C" } else { "None" }.to_owned();
        Ok(Some(match key {
            "HeaderDigest" => {
                own.head_digest = digest(value)?;
                digest_word(own.head_digest)
            }
            "DataDigest" => {
                own.data_digest = digest(value)?;
                digest_word(own.data_digest)
            }
            "MaxRecvDataSegmentLength" => {
                own.segment_bytes = length((1 << 24) - 1)?;
                return Ok(None);
            }
            "MaxBurstLength" => {
                own.burst_bytes = length(BURST_BYTES_MAX)?;
                own.burst_bytes.to_string()
            }
            "FirstBurstLength" => {
                own.first_burst_bytes = length(FIRST_BURST_BYTES_MAX)?;
                own.first_burst_bytes.to_string()
            }
            "InitialR2T" => {
                own.initial_r2t = flag()?;
                word(own.initial_r2t)
            }
            "ImmediateData" => {
                own.immediate_data = flag()?;
                word(own.immediate_data)
            }
            "DataPDUInOrder" | "DataSequenceInOrder" => {
                flag()?;
                word(true)
            }
            "IFMarker" | "OFMarker" => word(false),
            "MaxConnections" | "MaxOutstandingR2T" => {
                number()?;
                "1".to_owned()
            }
            "ErrorRecoveryLevel" => {
                number()?;
                "0".to_owned()
            }
            "DefaultTime2Wait" => number()?.clamp(2, 3600).to_string(),
            "DefaultTime2Retain" => {
                number()?;
                "0".to_owned()
            }
            "iSCSIProtocolLevel" => number()?.min(1).to_string(),
            "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" => return Ok(None),
            // An offer to go back to security, or an answer of ours that came back.
            "AuthMethod" | "TargetPortalGroupTag" => return Err(Refusal::INVALID),
            _ => "NotUnderstood".to_owned(),
        }))
    }

    fn establish(&mut self, head: &Head) -> Result<Established, Refusal> {
        let name = self.initiator.clone().ok_or(Refusal::MISSING)?;
        let port = Port { name, isid: self.isid };
        let mut negotiated = self.negotiated;
        negotiated.first_burst_bytes = negotiated.first_burst_bytes.min(negotiated.burst_bytes);
        let target = match &self.target {
            None => None,
            Some(target) => {
                let session = target.begin_session(&port).ok_or(Refusal::NO_RESOURCES)?;
                Some((Arc::clone(target), session.0, session.1))
            }
        };
        let command_number = head.word(24);
        Ok(Established { negotiated, target, port, command_number, status_number: 0 })
    }
}
