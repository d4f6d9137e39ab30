//! The types that options are read as.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::entry::{Entry, Kind};
use crate::options::Setting;
use crate::people::People;
use crate::seed::{Seed, canonical, seeds};
use crate::services::ServicePolicy;

/// Which queue of a device a packet goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueChoice {
    /// One for each flow.
    Flow,
    /// One for each processor that sends.
    Processor,
    /// One after the other.
    RoundRobin,
}

/// When connections to programs of other hosts go over the fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BetweenHosts {
    /// They stay on TCP, and libfabric is not loaded.
    Never,
    /// Where both ends say so, and the daemons have measured that libfabric is faster.
    Auto,
    /// Where both ends say so.
    Always,
}

/// How endpoints reach their peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportChoice {
    /// By memory on the own host, by libfabric between hosts.
    Auto,
    /// By memory: peers of other hosts are not reached.
    Shm,
    /// By libfabric: also peers of the own host.
    Ofi,
}

/// How long copies are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMethod {
    /// By length.
    Auto,
    /// Ordinary stores.
    Plain,
    /// Stores that go past the cache.
    NonTemporal,
}

/// A type that the setting of an option can be read as.
pub(crate) trait Value<'a> {
    /// The value; a number that does not fit, which no range of the table permits, is the largest
    /// that does.
    fn read(setting: &'a Setting, entry: &Entry) -> Self;
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Value<'_> for $type {
            fn read(setting: &Setting, _: &Entry) -> Self {
                Self::try_from(setting.number).unwrap_or(Self::MAX)
            }
        }
    )+};
}

numbers!(u8, u32, u64, usize);

impl Value<'_> for bool {
    fn read(setting: &Setting, _: &Entry) -> Self {
        setting.number != 0
    }
}

impl Value<'_> for Duration {
    fn read(setting: &Setting, entry: &Entry) -> Self {
        match entry.unit {
            "us" => Self::from_micros(setting.number),
            "ms" => Self::from_millis(setting.number),
            unit => unreachable!("{} is a duration with unit {unit:?}", entry.name),
        }
    }
}

impl Value<'_> for CopyMethod {
    fn read(setting: &Setting, entry: &Entry) -> Self {
        match word(setting, entry) {
            "plain" => Self::Plain,
            "nontemporal" => Self::NonTemporal,
            _ => Self::Auto,
        }
    }
}

impl Value<'_> for TransportChoice {
    fn read(setting: &Setting, entry: &Entry) -> Self {
        match word(setting, entry) {
            "shm" => Self::Shm,
            "ofi" => Self::Ofi,
            _ => Self::Auto,
        }
    }
}

impl Value<'_> for BetweenHosts {
    fn read(setting: &Setting, entry: &Entry) -> Self {
        match word(setting, entry) {
            "always" => Self::Always,
            "auto" => Self::Auto,
            _ => Self::Never,
        }
    }
}

impl Value<'_> for QueueChoice {
    fn read(setting: &Setting, entry: &Entry) -> Self {
        match word(setting, entry) {
            "processor" => Self::Processor,
            "round-robin" => Self::RoundRobin,
            _ => Self::Flow,
        }
    }
}

/// A path; nothing when it is empty.
impl<'a> Value<'a> for Option<&'a str> {
    fn read(setting: &'a Setting, _: &Entry) -> Self {
        (!setting.text.is_empty()).then_some(setting.text.as_str())
    }
}

/// An address; nothing when it is empty.
impl Value<'_> for Option<SocketAddr> {
    fn read(setting: &Setting, _: &Entry) -> Self {
        setting.text.parse().ok().map(canonical)
    }
}

impl Value<'_> for Vec<Seed> {
    fn read(setting: &Setting, _: &Entry) -> Self {
        seeds(&setting.text).expect("the text was checked when it was set")
    }
}

impl Value<'_> for Vec<String> {
    fn read(setting: &Setting, _: &Entry) -> Self {
        urls(&setting.text).expect("the text was checked when it was set")
    }
}

/// The URLs of a list with commas between, without a slash behind them; `None` if one of them is
/// none of a server alone.
pub(crate) fn urls(text: &str) -> Option<Vec<String>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let checked = parts.map(|part| {
        let url = part.strip_suffix('/').unwrap_or(part);
        let server = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
        let is_server = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        (!server.is_empty() && server.bytes().all(is_server)).then(|| url.to_owned())
    });
    checked.collect()
}

/// A range of ports; nothing when it is empty.
impl Value<'_> for Option<RangeInclusive<u16>> {
    fn read(setting: &Setting, _: &Entry) -> Self {
        ports(&setting.text)
    }
}

/// The ports from the lower to the higher one; `None` for anything else.
pub(crate) fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-')?;
    let (low, high) = (low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?);
    (low > 0 && low <= high).then_some(low..=high)
}

impl Value<'_> for ServicePolicy {
    fn read(setting: &Setting, _: &Entry) -> Self {
        Self::parse(&setting.text).expect("the text was checked when it was set")
    }
}

impl Value<'_> for People {
    fn read(setting: &Setting, _: &Entry) -> Self {
        Self::parse(&setting.text).expect("the text was checked when it was set")
    }
}

/// The word of a choice.
pub(crate) fn word(setting: &Setting, entry: &Entry) -> &'static str {
    let Kind::Choice { choices } = entry.kind else { return "" };
    usize::try_from(setting.number).ok().and_then(|place| choices.get(place)).copied().unwrap_or("")
}
