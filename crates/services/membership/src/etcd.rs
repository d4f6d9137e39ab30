//! The directory in etcd, without I/O: which request goes to which endpoint, and what its answer
//! says. Requests are those of etcd's JSON gateway (`/v3`, etcd 3.4 and later).
//!
//! One key holds the table of nodes. It is changed by a transaction that compares its version, so
//! of two daemons that change it at a time one has to read it again. A key for each node that is
//! there holds the random number of its daemon's start; it hangs on a lease, and so goes when the
//! daemon does. The key of the manager is of the same kind: one daemon makes it, and manages the
//! fabric as long as its lease lasts. The revision at which etcd made the key is the term. Nothing
//! secret is in etcd.
//!
//! # Invariants
//! - One request is under way at a time.
//! - A fault is told when all endpoints have failed one after the other, or when the content is
//!   wrong. An endpoint that fails is left for the next one.
//! - Whatever an endpoint answers, nothing panics, and at most [`ANSWER_BYTES_MAX`] bytes are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use weft_fabric::NodeId;

use crate::machine::DirectoryNews;
use crate::message::NODES_MAX;
use crate::roster::Roster;

/// Longest answer that the driver reads, bytes.
pub const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// How long the presence of a daemon that died stays, seconds.
const LEASE_SECONDS: u64 = 8;
/// The pause between two looks at the directory, in which the lease is renewed, too.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The pause when all endpoints have failed.
const PAUSE: Duration = Duration::from_secs(1);
/// The part of a lease that its holder does not use, since clocks do not run alike.
const MARGIN: Duration = Duration::from_secs(1);
/// Terms from etcd begin above this, so that they are above those of a first daemon, which are
/// seconds of the epoch.
const TERM_BASE: u64 = 1 << 40;
/// Longest reason of an endpoint that is told, characters.
const REASON_MAX: usize = 200;

/// A user of etcd.
#[derive(Clone)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EtcdUser({:?})", self.name)
    }
}

/// The configuration of a daemon at etcd.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// URLs of its endpoints, without a slash behind them; at least one.
    pub endpoints: Vec<String>,
    /// The user, where etcd asks for one.
    pub user: Option<EtcdUser>,
    /// The name of the fabric, which is part of the keys.
    pub fabric: String,
    /// The random number of the daemon's start.
    pub incarnation: u64,
}

/// A request, to be sent by POST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The URL.
    pub url: String,
    /// The JSON in its body.
    pub body: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
}

/// The purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Authenticate,
    Grant,
    Renew,
    Read,
    Propose,
    Announce,
    Lead,
}

/// The next step of the round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    Lease,
    Read,
    Rest,
}

/// A daemon's view of etcd.
#[derive(Debug)]
pub struct Etcd {
    config: EtcdConfig,
    /// The endpoint that is asked now, by its place.
    endpoint: usize,
    /// Requests that failed one after the other.
    failures: usize,
    token: Option<String>,
    lease: Option<String>,
    proposal: Option<(Roster, u64)>,
    /// The numbers that were there at the last look.
    present: BTreeMap<u32, u64>,
    /// The step of the round, and when it begins.
    due: Due,
    next: Duration,
    /// The request that is under way.
    asked: Option<Step>,
    /// The number whose presence was told in this round.
    announced: Option<u32>,
    /// When the request was sent by which the lease was last made or renewed.
    renewed: Duration,
    sent: Duration,
    manager: Manager,
}

/// The manager's key, as it was at the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manager {
    /// It was not looked at, or it was asked for in this round.
    Unknown,
    /// There is none.
    Nobody,
    /// A daemon with this incarnation made it at this revision.
    Holder { incarnation: u64, revision: u64 },
}

/// The lease of the manager of a fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lead {
    /// Its term. A later one is higher.
    pub term: u64,
    /// When it ends, unless it is renewed, by the clock of the daemon.
    pub until: Duration,
}

/// An answer that is of no use.
enum Bad {
    /// Another endpoint may do better.
    Endpoint(String),
    /// The content is wrong wherever it is read.
    Content(String),
    /// The token is too old.
    Token,
}

#[derive(Deserialize)]
struct TxnAnswer {
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

#[derive(Deserialize)]
struct Header {
    revision: String,
}

#[derive(Deserialize)]
struct Response {
    response_range: Option<RangeAnswer>,
}

#[derive(Deserialize)]
struct RangeAnswer {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    #[serde(default)]
    value: String,
    mod_revision: String,
    #[serde(default)]
    create_revision: String,
}

impl Etcd {
    /// The state at the start of a daemon.
    #[must_use]
    pub const fn new(config: EtcdConfig) -> Self {
        Self {
            config,
            endpoint: 0,
            failures: 0,
            token: None,
            lease: None,
            proposal: None,
            present: BTreeMap::new(),
            due: Due::Lease,
            next: Duration::ZERO,
            asked: None,
            announced: None,
            renewed: Duration::ZERO,
            sent: Duration::ZERO,
            manager: Manager::Unknown,
        }
    }

    fn manager_key(&self) -> String {
        format!("/weft/{}/manager", self.config.fabric)
    }

    /// The lease by which this daemon manages the fabric, if it had that at the last look.
    #[must_use]
    pub fn lead(&self) -> Option<Lead> {
        let Manager::Holder { incarnation, revision } = self.manager else { return None };
        let is_own = incarnation == self.config.incarnation && self.lease.is_some();
        let until = self.renewed + Duration::from_secs(LEASE_SECONDS) - MARGIN;
        is_own.then(|| Lead { term: TERM_BASE.saturating_add(revision), until })
    }

    fn table_key(&self) -> String {
        format!("/weft/{}/table", self.config.fabric)
    }

    /// The beginning of the keys of nodes that are there.
    fn present_prefix(&self) -> String {
        format!("/weft/{}/present/", self.config.fabric)
    }

    /// Puts a table there next, if the one that is there has this version.
    pub fn propose(&mut self, table: Roster, version: u64) {
        self.proposal = Some((table, version));
    }

    /// The next request, if it is time; `number` is that by which the own node is there
    /// ([`Machine::present_as`](crate::Machine::present_as)). The next call is to be
    /// [`Etcd::answered`] then.
    pub fn request(&mut self, number: Option<NodeId>, now: Duration) -> Option<Request> {
        if self.asked.is_some() || self.failures > 0 && now < self.next {
            return None;
        }
        if self.due == Due::Rest && now >= self.next {
            (self.due, self.announced) = (Due::Lease, None);
        }
        let unannounced = number
            .map(|node| node.0)
            .filter(|number| self.announced != Some(*number) && !self.present.contains_key(number));
        if number.is_none() {
            // The presence of one that was expelled ends with its lease.
            self.lease = None;
        }
        let step = match (self.due, &self.lease) {
            _ if self.config.user.is_some() && self.token.is_none() => Step::Authenticate,
            (Due::Lease, None) if number.is_some() => Step::Grant,
            (Due::Lease, Some(_)) => Step::Renew,
            (Due::Lease, None) | (Due::Read, _) => Step::Read,
            (Due::Rest, _) if self.proposal.is_some() => Step::Propose,
            (Due::Rest, None) if number.is_some() => Step::Grant,
            (Due::Rest, Some(_)) if unannounced.is_some() => Step::Announce,
            (Due::Rest, Some(_)) if number.is_some() && self.manager == Manager::Nobody => {
                Step::Lead
            }
            (Due::Rest, _) => return None,
        };
        let (path, body) = self.written(step, unannounced);
        (self.asked, self.sent) = (Some(step), now);
        let place = self.endpoint % self.config.endpoints.len().max(1);
        Some(Request {
            url: format!("{}/v3/{path}", self.config.endpoints.get(place)?),
            body: body.to_string(),
            authorization: self.token.clone().filter(|_| step != Step::Authenticate),
        })
    }

    /// When [`Etcd::request`] has something to ask at the latest, if nothing is proposed.
    #[must_use]
    pub const fn wakes_at(&self) -> Duration {
        self.next
    }

    /// The path and the body of a step. The own presence is told of `unannounced`.
    fn written(&mut self, step: Step, unannounced: Option<u32>) -> (&'static str, Value) {
        let coded = |text: &[u8]| STANDARD.encode(text);
        let key = coded(self.table_key().as_bytes());
        match step {
            Step::Authenticate => {
                let user = self.config.user.as_ref();
                let name = user.map(|user| user.name.as_str());
                let password = user.map(|user| user.password.as_str());
                ("auth/authenticate", json!({ "name": name, "password": password }))
            }
            Step::Grant => ("lease/grant", json!({ "TTL": LEASE_SECONDS })),
            Step::Renew => ("lease/keepalive", json!({ "ID": self.lease })),
            Step::Read => {
                let prefix = self.present_prefix();
                // The first key behind all that begin with the prefix.
                let end = format!("{}0", prefix.trim_end_matches('/'));
                let all = json!({
                    "key": coded(prefix.as_bytes()),
                    "range_end": coded(end.as_bytes()),
                    "limit": NODES_MAX,
                });
                let manager = json!({ "key": coded(self.manager_key().as_bytes()) });
                let ranges = [json!({ "key": key }), all, manager];
                let ranges = ranges.map(|range| json!({ "request_range": range }));
                ("kv/txn", json!({ "success": ranges }))
            }
            Step::Propose => {
                let (table, version) = self.proposal.as_ref().expect("chosen for it");
                let value = serde_json::to_vec(table).expect("memory is the only thing it needs");
                let compare = json!({
                    "key": key, "target": "MOD", "result": "EQUAL",
                    "mod_revision": version.to_string(),
                });
                let put = json!({ "request_put": { "key": key, "value": coded(&value) } });
                ("kv/txn", json!({ "compare": [compare], "success": [put] }))
            }
            Step::Announce => {
                self.announced = unannounced;
                let number = unannounced.unwrap_or_default();
                self.made(&format!("{}{number}", self.present_prefix()))
            }
            Step::Lead => {
                self.manager = Manager::Unknown;
                self.made(&self.manager_key())
            }
        }
    }

    /// The request that makes a key that is not there, which then hangs on the lease.
    fn made(&self, key: &str) -> (&'static str, Value) {
        let key = STANDARD.encode(key);
        let value = STANDARD.encode(self.config.incarnation.to_string());
        let compare = json!({
            "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0",
        });
        let put = json!({
            "request_put": { "key": key, "value": value, "lease": self.lease },
        });
        ("kv/txn", json!({ "compare": [compare], "success": [put] }))
    }

    /// Takes the answer to the request that is under way: the status and the body, or why there is
    /// none. Returns what the machine is to be told.
    pub fn answered(
        &mut self,
        answer: Result<(u16, &[u8]), String>,
        now: Duration,
    ) -> Option<DirectoryNews> {
        let step = self.asked.take()?;
        let read = match answer {
            Ok((200, body)) => self.parsed(step, body, now),
            Ok((status, body)) => Err(refused(status, body)),
            Err(reason) => Err(Bad::Endpoint(reason)),
        };
        match read {
            Ok(news) => {
                self.failures = 0;
                news
            }
            Err(Bad::Token) if self.token.take().is_some() => None,
            Err(Bad::Token) => self.failed("it refuses the user of etcd".to_owned(), now),
            Err(Bad::Endpoint(reason)) => self.failed(reason, now),
            Err(Bad::Content(reason)) => {
                (self.failures, self.proposal) = (0, None);
                self.rest(now);
                Some(DirectoryNews::Away(reason))
            }
        }
    }

    /// The endpoint failed: the next one is asked, at once if it did not fail as well.
    fn failed(&mut self, reason: String, now: Duration) -> Option<DirectoryNews> {
        let count = self.config.endpoints.len().max(1);
        let place = self.endpoint % count;
        let url = self.config.endpoints.get(place).cloned().unwrap_or_default();
        self.endpoint = (place + 1) % count;
        self.failures += 1;
        self.token = None;
        // A proposal may have been taken or not: the look at the directory says it.
        self.proposal = None;
        self.due = Due::Lease;
        let is_over = self.failures >= count;
        self.next = now + if is_over { PAUSE } else { Duration::ZERO };
        is_over.then(|| DirectoryNews::Away(format!("{url}: {}", shown(&reason))))
    }

    fn rest(&mut self, now: Duration) {
        self.due = Due::Rest;
        self.next = now + LOOK_EVERY;
    }

    fn parsed(
        &mut self,
        step: Step,
        body: &[u8],
        now: Duration,
    ) -> Result<Option<DirectoryNews>, Bad> {
        let garbled = || Bad::Endpoint("it answers, but not as etcd 3.4 or later does".to_owned());
        let text = |value: &Value, name: &str| value[name].as_str().map(str::to_owned);
        let value = || serde_json::from_slice::<Value>(body).map_err(|_| garbled());
        let txn = || serde_json::from_slice::<TxnAnswer>(body).map_err(|_| garbled());
        match step {
            Step::Authenticate => {
                self.token = Some(text(&value()?, "token").ok_or_else(garbled)?);
            }
            Step::Grant => {
                self.lease = Some(text(&value()?, "ID").ok_or_else(garbled)?);
                (self.renewed, self.manager) = (self.sent, Manager::Unknown);
                if self.due == Due::Lease {
                    self.due = Due::Read;
                }
            }
            Step::Renew => {
                let answer = value()?;
                let left = answer["result"]["TTL"].as_str().and_then(|left| left.parse().ok());
                // The lease has ended, and with it the presence, if nothing is left.
                match left.unwrap_or(0_u64) {
                    0 => (self.lease, self.manager) = (None, Manager::Unknown),
                    _ => (self.due, self.renewed) = (Due::Read, self.sent),
                }
            }
            Step::Read => {
                self.rest(now);
                return self.read(&txn()?).map(Some);
            }
            Step::Propose => {
                let answer = txn()?;
                let Some((table, _)) = self.proposal.take() else { return Ok(None) };
                if !answer.succeeded {
                    // Somebody was first.
                    self.due = Due::Read;
                    return Ok(None);
                }
                let version = number(&answer.header.revision).ok_or_else(garbled)?;
                let present = self.present.clone();
                return Ok(Some(DirectoryNews::Table { table: Some(table), version, present }));
            }
            // The next look says whose presence it is, and who manages.
            Step::Announce | Step::Lead => drop(txn()?),
        }
        Ok(None)
    }

    /// The content of the directory.
    fn read(&mut self, answer: &TxnAnswer) -> Result<DirectoryNews, Bad> {
        let ranges = answer.responses.iter().filter_map(|one| one.response_range.as_ref());
        let [tables, present, ref rest @ ..] = ranges.collect::<Vec<_>>()[..] else {
            return Err(Bad::Endpoint("its answer has no content".to_owned()));
        };
        if let Some(manager) = rest.first() {
            self.manager = read_manager(&manager.kvs);
        }
        self.present = self.read_present(&present.kvs);
        let present = self.present.clone();
        let Some(found) = tables.kvs.first() else {
            return Ok(DirectoryNews::Table { table: None, version: 0, present });
        };
        let table = decoded(&found.value).and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let table: Option<Roster> = table.filter(Roster::is_valid);
        let version = number(&found.mod_revision);
        let (Some(table), Some(version)) = (table, version) else {
            return Err(Bad::Content(format!(
                "the key {} holds no table of nodes of this release; if it is not of weft, give \
                 the fabric another fabric.name or another etcd",
                self.table_key()
            )));
        };
        Ok(DirectoryNews::Table { table: Some(table), version, present })
    }

    /// The nodes that are there. Keys of others are passed over.
    fn read_present(&self, found: &[KeyValue]) -> BTreeMap<u32, u64> {
        let prefix = self.present_prefix();
        let read = |one: &KeyValue| {
            let key = String::from_utf8(decoded(&one.key)?).ok()?;
            let value = String::from_utf8(decoded(&one.value)?).ok()?;
            Some((key.strip_prefix(&prefix)?.parse().ok()?, value.parse().ok()?))
        };
        found.iter().take(NODES_MAX).filter_map(read).collect()
    }
}

/// The holder of the manager's key. A key of others is held by nobody who would manage.
fn read_manager(found: &[KeyValue]) -> Manager {
    let Some(one) = found.first() else { return Manager::Nobody };
    let value = decoded(&one.value).and_then(|bytes| String::from_utf8(bytes).ok());
    let held = value.and_then(|value| value.parse().ok()).zip(number(&one.create_revision));
    held.map_or(Manager::Unknown, |(incarnation, revision)| Manager::Holder {
        incarnation,
        revision,
    })
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// An answer that is no success.
fn refused(status: u16, body: &[u8]) -> Bad {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let reason = answer["error"].as_str().or(answer["message"].as_str()).unwrap_or_default();
    match reason {
        "" => Bad::Endpoint(format!("it answers with HTTP status {status}")),
        reason if reason.contains("invalid auth token") => Bad::Token,
        reason => Bad::Endpoint(reason.to_owned()),
    }
}

/// A text of an endpoint, fit for a terminal.
fn shown(reason: &str) -> String {
    reason.chars().filter(|one| !one.is_control()).take(REASON_MAX).collect()
}

/// Entry for fuzzing: each line is an answer. Its first byte says whether it comes with success,
/// with another status, or not at all. Asking goes on, and reasons are fit for a terminal. Returns
/// how many tables were read.
///
/// # Panics
/// When the check fails.
#[must_use]
pub fn fuzz_answers(bytes: &[u8]) -> usize {
    let user = EtcdUser { name: "u".to_owned(), password: "p".to_owned() };
    let endpoints = vec!["http://a".to_owned(), "http://b".to_owned()];
    let (fabric, user) = ("f".to_owned(), Some(user));
    let mut etcd = Etcd::new(EtcdConfig { endpoints, user, fabric, incarnation: 77 });
    let (mut now, mut tables) = (Duration::ZERO, 0);
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let Some((kind, body)) = line.split_first() else { continue };
        now += LOOK_EVERY + PAUSE;
        assert!(etcd.request(Some(NodeId(3)), now).is_some(), "it asks no more");
        let answer = match kind {
            b'!' => Err(String::from_utf8_lossy(body).into_owned()),
            b'?' => Ok((401, body)),
            _ => Ok((200, body)),
        };
        match etcd.answered(answer, now) {
            Some(DirectoryNews::Away(reason)) => {
                assert!(!reason.is_empty() && !reason.chars().any(char::is_control), "{reason:?}");
            }
            Some(DirectoryNews::Table { table, present, .. }) => {
                assert!(table.is_none_or(|table| table.is_valid()) && present.len() <= NODES_MAX);
                tables += 1;
            }
            None => {}
        }
    }
    tables
}

#[cfg(test)]
mod tests;
