//! The record of a region as one key of etcd, by its JSON gateway (`/v3`, etcd 3.4 and later).
//!
//! A transaction compares the revision of the key. No lease of etcd is used: what a change of
//! etcd's leader does to leases does not matter here.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weft_kv::cluster::Record;

use super::coordination::{Coordination, NoRecord, Seen, parse};

/// How long an endpoint may take to accept, and to answer.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Longest answer, bytes.
const ANSWER_MAX: u64 = 1 << 20;

/// A key of etcd.
pub(super) struct Etcd {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// The endpoint that answered last.
    place: usize,
    key: String,
}

impl Etcd {
    pub(super) fn new(hosts: &str, cluster: &str, region: u32) -> Result<Self, NoRecord> {
        let endpoints: Vec<String> = hosts
            .trim_end_matches('/')
            .split(',')
            .filter(|host| !host.is_empty())
            .map(|host| format!("http://{host}"))
            .collect();
        if endpoints.is_empty() {
            return Err(NoRecord("etcd:// names no host; take etcd://HOST:PORT".to_owned()));
        }
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        // There was one region at first.
        let name = if region == 0 { "record".to_owned() } else { format!("region-{region}") };
        let key = STANDARD.encode(format!("/weft-kv/{cluster}/{name}"));
        Ok(Self { agent: config.new_agent(), endpoints, place: 0, key })
    }

    /// Asks one endpoint after the other, until one answers. A change must not be sent twice: it
    /// goes to one endpoint alone.
    fn ask(&mut self, path: &str, body: &Value, tries: usize) -> Result<Value, NoRecord> {
        let mut why = String::new();
        for _ in 0..tries {
            let endpoint = &self.endpoints[self.place % self.endpoints.len()];
            match self.send(&format!("{endpoint}/v3/kv/{path}"), body) {
                Ok(answer) => return Ok(answer),
                Err(error) => why = format!("etcd at {endpoint}: {error}"),
            }
            self.place += 1;
        }
        Err(NoRecord(why))
    }

    fn send(&self, url: &str, body: &Value) -> Result<Value, String> {
        let text = |error: ureq::Error| error.to_string();
        let post = self.agent.post(url).content_type("application/json");
        let answer = post.send(&body.to_string()).map_err(text)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().into_with_config().limit(ANSWER_MAX);
        let body = body.read_to_vec().map_err(text)?;
        let value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match (status, value) {
            (200, value @ Value::Object(_)) => Ok(value),
            (status, value) => {
                let why = value["error"].as_str().unwrap_or("it answers, but not as etcd does");
                Err(format!("{why} (status {status})"))
            }
        }
    }
}

impl Coordination for Etcd {
    fn read(&mut self) -> Result<Seen, NoRecord> {
        let tries = self.endpoints.len();
        let answer = self.ask("range", &json!({ "key": self.key }), tries)?;
        let found = &answer["kvs"][0];
        let (Some(revision), Some(value)) =
            (found["mod_revision"].as_str(), found["value"].as_str())
        else {
            return Ok(Seen { record: None, version: 0 });
        };
        let garbled = || NoRecord("etcd gave a key without a revision or a value".to_owned());
        let version = revision.parse().map_err(|_| garbled())?;
        let bytes = STANDARD.decode(value).map_err(|_| garbled())?;
        Ok(Seen { record: Some(parse(&bytes, "etcd")?), version })
    }

    fn replace(&mut self, record: &Record, was: u64) -> Result<bool, NoRecord> {
        let bytes = serde_json::to_vec(record).map_err(|error| NoRecord(error.to_string()))?;
        let compare = json!({
            "key": self.key, "target": "MOD", "result": "EQUAL", "mod_revision": was.to_string(),
        });
        let put = json!({
            "request_put": { "key": self.key, "value": STANDARD.encode(bytes) },
        });
        let body = json!({ "compare": [compare], "success": [put] });
        let answer = self.ask("txn", &body, 1)?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }
}
