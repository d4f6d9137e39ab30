//! The initiator's side of iSCSI, as far as `weft block ls` and tests need it: log in, ask, read
//! and write a few bytes. It waits, one command at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use weft_block::iscsi::Credentials;
use weft_block::iscsi::initiator::{Chap, keys, text};
use weft_block::iscsi::pdu::{Head, NO_TAG, padding};
use weft_block::scsi::{decode_number, encode_number};

/// A server that says nothing is not waited for longer.
const WITHIN: Duration = Duration::from_secs(10);
/// Bytes of data in one PDU that a server may send.
const SEGMENT_BYTES_MAX: usize = 256 << 10;
const UNIT_ATTENTION: u8 = 6;
const NAME: &str = "iqn.2026-11.org.weft:initiator";

/// A unit that was found.
#[derive(Clone, Debug, Serialize)]
pub struct FoundLun {
    /// Its number.
    pub number: u64,
    /// Its size.
    pub bytes: u64,
    /// Its serial number.
    pub serial: String,
}

/// A target that was found.
#[derive(Clone, Debug, Serialize)]
pub struct FoundTarget {
    /// Its name.
    pub name: String,
    /// Its units.
    pub luns: Vec<FoundLun>,
}

/// A session with a target, or one for names alone.
#[derive(Debug)]
pub struct Initiator {
    socket: TcpStream,
    name: String,
    isid: [u8; 6],
    command_number: u32,
    tag: u32,
}

impl Initiator {
    /// Connects, and logs in at a target; without one, to ask for names.
    ///
    /// # Errors
    /// Nobody answers, or the login is refused.
    pub fn login(
        at: &[SocketAddr],
        target: Option<&str>,
        known: Option<&Credentials>,
    ) -> anyhow::Result<Self> {
        // Sessions of one host do not end each other.
        let [a, b, c, d] = std::process::id().to_be_bytes();
        Self::login_as(at, target, known, NAME, [0x80, a, b, c, d, 0])
    }

    /// The same under a name and with an ISID.
    ///
    /// # Errors
    /// Nobody answers, or the login is refused.
    pub fn login_as(
        at: &[SocketAddr],
        target: Option<&str>,
        known: Option<&Credentials>,
        name: &str,
        isid: [u8; 6],
    ) -> anyhow::Result<Self> {
        let connected = at.iter().map(|address| TcpStream::connect_timeout(address, WITHIN));
        let socket = connected
            .reduce(|first, second| first.or(second))
            .context("the name has no address")?
            .context("nobody listens there")?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(WITHIN))?;
        socket.set_write_timeout(Some(WITHIN))?;
        let name = name.to_owned();
        let mut own = Self { socket, name, isid, command_number: 1, tag: 1 };
        own.negotiate(target, known)?;
        Ok(own)
    }

    /// Runs a command that reads at most `length` bytes.
    ///
    /// # Errors
    /// The command failed, or the connection did.
    pub fn read(&mut self, lun: u64, command: &[u8], length: u32) -> anyhow::Result<Vec<u8>> {
        // The first command of a session hears that the unit is new to it.
        for _ in 0..3 {
            match self.command(lun, command, length)? {
                Ok(data) => return Ok(data),
                Err(sense) if sense.get(2).is_some_and(|byte| byte & 15 == UNIT_ATTENTION) => {}
                Err(sense) => {
                    let key = sense.get(2).map_or(0, |byte| byte & 15);
                    bail!("command {:02x} failed with sense key {key}", command[0]);
                }
            }
        }
        bail!("command {:02x}: the unit does not come to rest", command[0])
    }

    /// Sends a command that reads, and does not wait for its end.
    ///
    /// # Errors
    /// The connection failed.
    pub fn start(&mut self, lun: u64, command: &[u8], length: u32) -> anyhow::Result<u32> {
        self.send_command(0xc1, lun, command, length)
    }

    /// Runs a command that writes. The inner error is the sense data, which are empty for a status
    /// that has none.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write(
        &mut self,
        lun: u64,
        command: &[u8],
        data: &[u8],
    ) -> anyhow::Result<Result<(), Vec<u8>>> {
        let length = u32::try_from(data.len()).context("too long a write")?;
        let tag = self.send_command(0xa1, lun, command, length)?;
        loop {
            let (head, sense) = self.receive()?;
            match head.0[0] & 0x3f {
                _ if head.tag() != tag => {}
                0x31 => {
                    let (from, length) = (head.word(40) as usize, head.word(44) as usize);
                    let part = data.get(from..from + length).context("too much is asked for")?;
                    let answer =
                        Head::new(0x05, 0x80, tag).with(20, head.word(20)).with(40, head.word(40));
                    self.send(&answer, part)?;
                }
                0x21 if head.0[3] == 0 => return Ok(Ok(())),
                0x21 => return Ok(Err(sense.get(2..).unwrap_or_default().to_vec())),
                kind => bail!("the server sent a PDU {kind:02x} in place of an answer"),
            }
        }
    }

    /// Asks for the names of all targets.
    ///
    /// # Errors
    /// The connection failed.
    pub fn names(&mut self) -> anyhow::Result<Vec<String>> {
        let mut asked = Vec::new();
        text(&mut asked, "SendTargets", "All");
        let head = Head::new(0x04, 0x80, self.tag).with(20, NO_TAG).with(24, self.next_number());
        self.tag += 1;
        self.send(&head, &asked)?;
        let (head, data) = self.receive()?;
        ensure!(head.0[0] & 0x3f == 0x24, "the server did not answer a question");
        let all = keys(&data).context("the server sent no list of names")?;
        Ok(all.into_iter().filter(|(key, _)| key == "TargetName").map(|(_, name)| name).collect())
    }

    fn next_number(&mut self) -> u32 {
        let number = self.command_number;
        self.command_number = number.wrapping_add(1);
        number
    }

    fn negotiate(
        &mut self,
        target: Option<&str>,
        known: Option<&Credentials>,
    ) -> anyhow::Result<()> {
        let mut first = Vec::new();
        text(&mut first, "InitiatorName", &self.name);
        match target {
            Some(name) => {
                text(&mut first, "SessionType", "Normal");
                text(&mut first, "TargetName", name);
            }
            None => text(&mut first, "SessionType", "Discovery"),
        }
        text(&mut first, "AuthMethod", if known.is_some() { "CHAP,None" } else { "None" });
        let mut answer = self.login_request(0x81, &first)?;
        let value = |answer: &[(String, String)], name: &str| {
            answer.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        };
        if value(&answer, "AuthMethod").as_deref() == Some("CHAP") {
            let known = known.context("the server asks for a secret; use --chap USER:FILE")?;
            let mut list = Vec::new();
            text(&mut list, "CHAP_A", "5");
            answer = self.login_request(0x00, &list)?;
            let id = value(&answer, "CHAP_I").context("the server sent no challenge")?;
            let challenge = value(&answer, "CHAP_C").context("the server sent no challenge")?;
            let own = Chap::answer(&known.user, &known.secret, &id, &challenge)
                .context("the challenge of the server is malformed")?;
            self.login_request(0x81, &own)?;
        }
        let mut last = Vec::new();
        for (key, value) in [
            ("HeaderDigest", "None"),
            ("DataDigest", "None"),
            ("MaxRecvDataSegmentLength", "262144"),
            ("InitialR2T", "Yes"),
            ("ImmediateData", "No"),
        ] {
            text(&mut last, key, value);
        }
        self.login_request(0x87, &last)?;
        Ok(())
    }

    fn login_request(&mut self, flags: u8, data: &[u8]) -> anyhow::Result<Vec<(String, String)>> {
        let mut head = Head::new(0x43, flags, 0).with(24, self.command_number);
        head.0[8..14].copy_from_slice(&self.isid);
        self.send(&head, data)?;
        let (head, data) = self.receive()?;
        ensure!(head.0[0] & 0x3f == 0x23, "the server did not answer a login");
        match (head.0[36], head.0[37]) {
            (0, _) => {}
            (2, 1) => bail!("the server refused the user or the secret"),
            (2, 3) => bail!("the server has no such target"),
            (class, detail) => bail!("the login was refused with status {class:02x}{detail:02x}"),
        }
        keys(&data).context("the server sent a malformed answer")
    }

    fn send_command(
        &mut self,
        flags: u8,
        lun: u64,
        command: &[u8],
        length: u32,
    ) -> anyhow::Result<u32> {
        let tag = self.tag;
        self.tag += 1;
        let mut head = Head::new(0x01, flags, tag).with(20, length).with(24, self.next_number());
        head.0[8..16].copy_from_slice(&encode_number(lun));
        head.0[32..32 + command.len()].copy_from_slice(command);
        self.send(&head, &[])?;
        Ok(tag)
    }

    fn command(
        &mut self,
        lun: u64,
        command: &[u8],
        length: u32,
    ) -> anyhow::Result<Result<Vec<u8>, Vec<u8>>> {
        let tag = self.send_command(0xc1, lun, command, length)?;
        let mut all = Vec::new();
        loop {
            let (head, data) = self.receive()?;
            match head.0[0] & 0x3f {
                // The end of a command that nobody waits for, or a ping.
                0x20 => {}
                _ if head.tag() != tag => {}
                0x25 => {
                    ensure!(all.len() + data.len() <= length as usize, "too many data came");
                    all.extend(data);
                    if head.0[1] & 1 != 0 {
                        return Ok(Ok(all));
                    }
                }
                0x21 if head.0[3] == 0 => return Ok(Ok(all)),
                0x21 => return Ok(Err(data.get(2..).unwrap_or_default().to_vec())),
                kind => bail!("the server sent a PDU {kind:02x} in place of an answer"),
            }
        }
    }

    fn send(&mut self, head: &Head, data: &[u8]) -> anyhow::Result<()> {
        let mut bytes = head.with_data_bytes(data.len()).0.to_vec();
        bytes.extend(data);
        bytes.resize(bytes.len() + padding(data.len()), 0);
        Ok(self.socket.write_all(&bytes)?)
    }

    fn receive(&mut self) -> anyhow::Result<(Head, Vec<u8>)> {
        let mut head = Head([0; 48]);
        self.socket.read_exact(&mut head.0).context("the server ended the connection")?;
        let length = head.data_bytes();
        ensure!(length <= SEGMENT_BYTES_MAX && head.0[4] == 0, "the server sent too much");
        let mut data = vec![0; length + padding(length)];
        self.socket.read_exact(&mut data).context("the server ended the connection")?;
        data.truncate(length);
        Ok((head, data))
    }
}

/// The targets of a server, and their units.
///
/// # Errors
/// Nobody answers, or the user is not admitted.
pub fn discover(
    at: &[SocketAddr],
    known: Option<&Credentials>,
) -> anyhow::Result<Vec<FoundTarget>> {
    let names = Initiator::login(at, None, known)?.names()?;
    names.into_iter().map(|name| target(at, name, known)).collect()
}

fn target(
    at: &[SocketAddr],
    name: String,
    known: Option<&Credentials>,
) -> anyhow::Result<FoundTarget> {
    const LIST_BYTES: u32 = 8 + 8 * 256;
    let mut session = Initiator::login(at, Some(&name), known).with_context(|| name.clone())?;
    let mut report = [0; 12];
    report[0] = 0xa0;
    report[6..10].copy_from_slice(&LIST_BYTES.to_be_bytes());
    let list = session.read(0, &report, LIST_BYTES)?;
    let numbers = list.get(8..).unwrap_or_default().chunks_exact(8);
    let mut luns = Vec::new();
    for number in numbers.filter_map(|bytes| decode_number(bytes.try_into().ok()?)) {
        let mut capacity = [0; 16];
        (capacity[0], capacity[1], capacity[13]) = (0x9e, 0x10, 32);
        let sizes = session.read(number, &capacity, 32)?;
        let blocks = sizes.first_chunk::<8>().map_or(0, |last| u64::from_be_bytes(*last) + 1);
        let block = sizes.get(8..12).and_then(|bytes| bytes.try_into().ok());
        let block = block.map_or(512, u32::from_be_bytes);
        let page = session.read(number, &[0x12, 1, 0x80, 0, 255, 0], 255)?;
        let serial = String::from_utf8_lossy(page.get(4..).unwrap_or_default()).into_owned();
        let bytes = blocks.saturating_mul(block.into());
        luns.push(FoundLun { number, bytes, serial });
    }
    Ok(FoundTarget { name, luns })
}
