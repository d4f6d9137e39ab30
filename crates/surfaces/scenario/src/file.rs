//! The form of a scenario file, before its values are checked.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::scenario::{Level, Operation};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    pub seed: u64,
    pub topology: String,
    #[serde(default)]
    pub routing: Option<String>,
    #[serde(default)]
    pub level: Level,
    #[serde(default)]
    pub network: Option<NetworkEntry>,
    pub manager: Option<ManagerEntry>,
    pub traffic: TrafficEntries,
    #[serde(default)]
    pub run: RunEntry,
    #[serde(default, rename = "fault")]
    pub faults: Vec<FaultEntry>,
}

/// Parameters of the network. One that is left out is that of Extoll.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkEntry {
    pub mtu_bytes: Option<u32>,
    pub header_bytes: Option<u32>,
    pub classes: Option<u8>,
    pub link_mbit: Option<u64>,
    pub link_latency_ns: Option<u64>,
    pub damaged_per_million: Option<u32>,
    pub buffer_bytes: Option<u32>,
    pub router_delay_ns: Option<u64>,
    pub host_mbit: Option<u64>,
    pub host_latency_ns: Option<u64>,
    pub host_message_ns: Option<u64>,
    pub processors: Option<u32>,
    pub processor_send_ns: Option<u64>,
    pub processor_receive_ns: Option<u64>,
    pub processor_send_across_ns: Option<u64>,
    pub processor_receive_across_ns: Option<u64>,
    pub arbitration: Option<ArbitrationEntry>,
    pub patience_ns: Option<u64>,
}

/// A manager that gives routes, in place of routes that follow a fault by themselves.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ManagerEntry {
    pub tick_ns: u64,
    pub expected: bool,
    pub lost_per_mille: u32,
    pub followed: bool,
}

impl Default for ManagerEntry {
    fn default() -> Self {
        Self { tick_ns: 1_000, expected: true, lost_per_mille: 0, followed: true }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ArbitrationEntry {
    RoundRobin,
    Age,
}

/// The traffic of all hosts, or that of each of some groups.
pub(crate) enum TrafficEntries {
    /// A table `[traffic]`.
    One(Box<TrafficEntry>),
    /// Tables `[[traffic]]`.
    Groups(Vec<TrafficEntry>),
}

impl<'de> Deserialize<'de> for TrafficEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Errors of a derived untagged enum do not say what is wrong.
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = TrafficEntries;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a table [traffic], or tables [[traffic]]")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let entry = TrafficEntry::deserialize(MapAccessDeserializer::new(map))?;
                Ok(TrafficEntries::One(Box::new(entry)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, tables: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(tables)).map(TrafficEntries::Groups)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrafficEntry {
    pub name: Option<String>,
    pub hosts: Option<Vec<String>>,
    pub to: Option<Vec<String>>,
    pub pattern: String,
    pub operation: Option<Operation>,
    pub message_bytes: Option<u64>,
    pub class: Option<u8>,
    pub loads: Option<Vec<u32>>,
    pub messages: Option<u32>,
    pub window: Option<u32>,
    #[serde(default)]
    pub barrier: bool,
    pub host: Option<String>,
    pub percent: Option<u8>,
    pub file: Option<String>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunEntry {
    pub warmup_ns: u64,
    pub measure_ns: u64,
    pub deadline_ns: u64,
    pub resend_after_ns: u64,
    pub resends_max: u32,
    pub reroute_after_ns: u64,
}

impl Default for RunEntry {
    fn default() -> Self {
        Self {
            warmup_ns: 20_000,
            measure_ns: 50_000,
            deadline_ns: 10_000_000,
            resend_after_ns: 20_000,
            resends_max: 10,
            reroute_after_ns: 10_000,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultEntry {
    pub kind: FaultKind,
    pub at_ns: u64,
    /// It is mended so long after.
    pub for_ns: Option<u64>,
    /// It comes again so long after, `times` times in all.
    pub every_ns: Option<u64>,
    pub times: Option<u32>,
    pub link: Option<[String; 2]>,
    pub node: Option<String>,
    pub mbit: Option<u64>,
    pub damaged_per_million: Option<u32>,
    pub rate_per_mille: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    Cut,
    Slow,
    Lossy,
    Crash,
    Pressure,
    Manager,
    Skew,
}
