//! Which way between two hosts is faster, by measurement: TCP, or a lane over libfabric.
//!
//! The same program runs both ways, in turns, so the figures are those that programs meet. A host
//! is measured when a program wants to know, and the other one is told. This machine says when it
//! is time to measure, and what follows from the figures.
//!
//! # Invariants
//! - Without a measurement that is fresh enough the way is TCP.
//! - The way is the fabric only where both figures are as good as those of TCP, and one is better
//!   by a fifth. It stays so until one is worse by more than 3 %, or none is better by a twentieth.
//! - Figures come from another process or host. One that cannot be is no measurement.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long a measurement counts. A host that does not repeat it by then has TCP.
pub const FRESH_FOR: Duration = Duration::from_secs(24 * 3600);
/// After this time it is repeated, when somebody wants to know.
const REPEATED_AFTER: Duration = Duration::from_secs(6 * 3600);
/// How soon one that failed is repeated. The time doubles with each failure.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Bounds of a round trip, in nanoseconds, and of a stream, in bytes per second.
const ROUND_TRIP_NS: std::ops::RangeInclusive<u64> = 50..=60_000_000_000;
const BYTES_PER_S: std::ops::RangeInclusive<u64> = 1..=100_000_000_000_000;

/// A fifth better than TCP, in thousandths of TCP's time.
const BETTER: u64 = 800;
/// As good as TCP.
const AS_GOOD: u64 = 1000;
/// The same for a way that is taken already.
const STILL_BETTER: u64 = 950;
const STILL_AS_GOOD: u64 = 1030;

/// The figures of one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// A round trip of a short message, in nanoseconds.
    pub round_trip_ns: u64,
    /// A stream, in bytes per second.
    pub bytes_per_s: u64,
}

/// The figures of both ways between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Plain TCP.
    pub tcp: Figures,
    /// A lane over libfabric.
    pub fabric: Figures,
}

/// A way between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Plain TCP.
    Tcp,
    /// A lane over libfabric.
    Fabric,
}

/// The cause of a way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// It was not measured yet.
    NotMeasured,
    /// It was measured, so long ago.
    Measured(Measured, Duration),
    /// It could not be measured: why, and how long ago.
    Failed(String, Duration),
}

/// Figures that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a measurement says {value} {unit}, which cannot be")]
pub struct Absurd {
    value: u64,
    unit: &'static str,
}

impl Measured {
    /// Checks the figures of another process or host.
    ///
    /// # Errors
    /// [`Absurd`].
    pub fn check(self) -> Result<Self, Absurd> {
        for figures in [self.tcp, self.fabric] {
            let Figures { round_trip_ns, bytes_per_s } = figures;
            if !ROUND_TRIP_NS.contains(&round_trip_ns) {
                return Err(Absurd { value: round_trip_ns, unit: "ns for a round trip" });
            }
            if !BYTES_PER_S.contains(&bytes_per_s) {
                return Err(Absurd { value: bytes_per_s, unit: "bytes per second" });
            }
        }
        Ok(self)
    }

    /// The time of the fabric in thousandths of that of TCP: for a round trip, and for a stream.
    #[must_use]
    pub fn parts(self) -> [u64; 2] {
        let part = |time: u64, of: u64| {
            let part = u128::from(time) * 1000 / u128::from(of.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let Self { tcp, fabric } = self;
        [part(fabric.round_trip_ns, tcp.round_trip_ns), part(tcp.bytes_per_s, fabric.bytes_per_s)]
    }

    /// The way that follows from the figures, where `former` was taken before.
    fn way(self, former: Way) -> Way {
        let [one, other] = self.parts();
        let (as_good, better) = match former {
            Way::Tcp => (AS_GOOD, BETTER),
            Way::Fabric => (STILL_AS_GOOD, STILL_BETTER),
        };
        if one.max(other) <= as_good && one.min(other) <= better { Way::Fabric } else { Way::Tcp }
    }
}

/// The state of a host that is up.
#[derive(Debug)]
struct Host {
    way: Way,
    why: Result<Measured, String>,
    /// When it was measured, or tried. `None` before.
    tried: Option<Duration>,
    failures: u32,
    is_up: bool,
    is_wanted: bool,
}

impl Host {
    /// When it may be measured again.
    fn due(&self) -> Duration {
        let Some(tried) = self.tried else { return Duration::ZERO };
        let after = match self.why {
            Ok(_) => REPEATED_AFTER,
            Err(_) => (AGAIN_AFTER * (1 << self.failures.min(10)) / 2).min(REPEATED_AFTER),
        };
        tried + after
    }
}

/// The known facts of the other hosts.
#[derive(Debug, Default)]
pub struct Ways {
    hosts: BTreeMap<u32, Host>,
    /// The host that is being measured.
    measuring: Option<u32>,
}

impl Ways {
    /// A host is there. What was measured before counts.
    pub fn up(&mut self, node: u32) {
        let unknown = || Host {
            way: Way::Tcp,
            why: Err(String::new()),
            tried: None,
            failures: 0,
            is_up: false,
            is_wanted: false,
        };
        self.hosts.entry(node).or_insert_with(unknown).is_up = true;
    }

    /// A host is away.
    pub fn down(&mut self, node: u32) {
        if let Some(host) = self.hosts.get_mut(&node) {
            host.is_up = false;
        }
        self.measuring = self.measuring.filter(|measured| *measured != node);
    }

    /// A program wants to know the ways to all hosts: those are measured that are due.
    pub fn want(&mut self, now: Duration) {
        for host in self.hosts.values_mut() {
            host.is_wanted |= host.due() <= now;
        }
    }

    /// The next host to be measured. [`Ways::told`] must follow, or [`Ways::down`].
    pub fn begin(&mut self) -> Option<u32> {
        if self.measuring.is_some() {
            return None;
        }
        let (node, host) = self.hosts.iter_mut().find(|(_, host)| host.is_up && host.is_wanted)?;
        host.is_wanted = false;
        self.measuring = Some(*node);
        self.measuring
    }

    /// A host was measured, by this one or by itself, or could not be. Returns the way from now on.
    pub fn told(&mut self, node: u32, told: Result<Measured, String>, now: Duration) -> Way {
        self.measuring = self.measuring.filter(|measured| *measured != node);
        let Some(host) = self.hosts.get_mut(&node) else { return Way::Tcp };
        let told = told.and_then(|told| told.check().map_err(|absurd| absurd.to_string()));
        (host.tried, host.is_wanted) = (Some(now), false);
        match &told {
            Ok(measured) => (host.way, host.failures) = (measured.way(host.way), 0),
            Err(_) => (host.way, host.failures) = (Way::Tcp, host.failures.saturating_add(1)),
        }
        host.why = told;
        host.way
    }

    /// Whether the fabric is the way to any host that is up.
    #[must_use]
    pub fn any_over_fabric(&self, now: Duration) -> bool {
        self.hosts.iter().any(|(node, host)| host.is_up && self.way(*node, now) == Way::Fabric)
    }

    /// The way to a host.
    #[must_use]
    pub fn way(&self, node: u32, now: Duration) -> Way {
        match self.hosts.get(&node) {
            Some(Host { way, tried: Some(at), .. }) if now.saturating_sub(*at) < FRESH_FOR => *way,
            _ => Way::Tcp,
        }
    }

    /// The way to a host, and its cause. `None` for one that was never there.
    #[must_use]
    pub fn report(&self, node: u32, now: Duration) -> Option<(Way, Why)> {
        let host = self.hosts.get(&node)?;
        let why = match (&host.why, host.tried) {
            (_, None) => Why::NotMeasured,
            (Ok(measured), Some(at)) => Why::Measured(*measured, now.saturating_sub(at)),
            (Err(reason), Some(at)) => Why::Failed(reason.clone(), now.saturating_sub(at)),
        };
        Some((self.way(node, now), why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const TCP: Figures = Figures { round_trip_ns: 20_000, bytes_per_s: 1_000_000_000 };

    /// Figures of the fabric in thousandths of TCP's time.
    fn measured(round_trip: u64, stream: u64) -> Measured {
        let round_trip_ns = TCP.round_trip_ns * round_trip / 1000;
        let bytes_per_s = TCP.bytes_per_s * 1000 / stream;
        Measured { tcp: TCP, fabric: Figures { round_trip_ns, bytes_per_s } }
    }

    fn one() -> Ways {
        let mut ways = Ways::default();
        ways.up(1);
        ways
    }

    #[test]
    fn nothing_is_known_at_first_and_the_way_is_tcp() {
        let ways = one();
        assert_eq!(ways.way(1, HOUR), Way::Tcp);
        assert_eq!(ways.report(1, HOUR), Some((Way::Tcp, Why::NotMeasured)));
        assert_eq!((ways.way(2, HOUR), ways.report(2, HOUR)), (Way::Tcp, None));
    }

    #[test]
    fn the_fabric_is_taken_where_it_is_better_in_one_and_worse_in_none() {
        let cases = [
            ((800, 1000), Way::Fabric),
            ((1000, 500), Way::Fabric),
            ((500, 1001), Way::Tcp),
            ((1001, 100), Way::Tcp),
            ((801, 801), Way::Tcp),
            ((1000, 1000), Way::Tcp),
        ];
        for ((round_trip, stream), way) in cases {
            let told = one().told(1, Ok(measured(round_trip, stream)), HOUR);
            assert_eq!(told, way, "{round_trip} {stream}");
        }
    }

    #[test]
    fn a_way_that_is_taken_is_left_only_when_it_is_worse() {
        for ((round_trip, stream), way) in [
            ((950, 1030), Way::Fabric),
            ((1030, 900), Way::Fabric),
            ((951, 951), Way::Tcp),
            ((1031, 10), Way::Tcp),
            ((10, 1032), Way::Tcp),
        ] {
            let mut ways = one();
            assert_eq!(ways.told(1, Ok(measured(500, 500)), HOUR), Way::Fabric);
            let told = ways.told(1, Ok(measured(round_trip, stream)), 2 * HOUR);
            assert_eq!(told, way, "{round_trip} {stream}");
        }
    }

    #[test]
    fn a_host_is_measured_when_somebody_wants_to_know_and_not_again_too_soon() {
        let mut ways = one();
        assert_eq!(ways.begin(), None, "nobody wants to know");
        ways.want(HOUR);
        assert_eq!((ways.begin(), ways.begin()), (Some(1), None), "it is under way");
        ways.told(1, Ok(measured(500, 500)), HOUR);
        ways.want(HOUR + REPEATED_AFTER - Duration::from_nanos(1));
        assert_eq!(ways.begin(), None);
        ways.want(HOUR + REPEATED_AFTER);
        assert_eq!(ways.begin(), Some(1));
    }

    #[test]
    fn a_measurement_that_is_old_counts_no_more() {
        let mut ways = one();
        ways.told(1, Ok(measured(500, 500)), HOUR);
        let old = HOUR + FRESH_FOR;
        let before = old - Duration::from_nanos(1);
        assert!(ways.way(1, before) == Way::Fabric && ways.any_over_fabric(before));
        assert!(ways.way(1, old) == Way::Tcp && !ways.any_over_fabric(old));
        let why = Why::Measured(measured(500, 500), FRESH_FOR);
        assert_eq!(ways.report(1, old), Some((Way::Tcp, why)));
    }

    #[test]
    fn one_that_failed_is_repeated_ever_later_and_the_way_is_tcp() {
        let mut ways = one();
        let mut now = HOUR;
        ways.told(1, Ok(measured(500, 500)), now);
        let mut gaps = Vec::new();
        for _ in 0..12 {
            assert_eq!(ways.told(1, Err("no libfabric".to_owned()), now), Way::Tcp);
            let due = ways.hosts[&1].due();
            gaps.push(due - now);
            ways.want(due - Duration::from_nanos(1));
            assert_eq!(ways.begin(), None);
            ways.want(due);
            assert_eq!(ways.begin(), Some(1));
            now = due;
        }
        assert_eq!(gaps[0], AGAIN_AFTER);
        assert!(gaps.is_sorted());
        assert_eq!(gaps.last(), Some(&REPEATED_AFTER));
        let (way, why) = ways.report(1, now).expect("it is up");
        assert!(
            way == Way::Tcp && matches!(why, Why::Failed(reason, _) if reason == "no libfabric")
        );
    }

    #[test]
    fn figures_that_cannot_be_are_no_measurement() {
        let good = measured(100, 100);
        for (round_trip_ns, bytes_per_s) in [
            (0, 1_000_000),
            (49, 1_000_000),
            (u64::MAX, 1_000_000),
            (20_000, 0),
            (20_000, u64::MAX),
        ] {
            let wrong = Figures { round_trip_ns, bytes_per_s };
            for absurd in [Measured { fabric: wrong, ..good }, Measured { tcp: wrong, ..good }] {
                let mut ways = one();
                assert_eq!(ways.told(1, Ok(absurd), HOUR), Way::Tcp);
                let (_, why) = ways.report(1, HOUR).expect("it is up");
                assert!(matches!(&why, Why::Failed(reason, _) if reason.contains("cannot be")));
            }
        }
        let bounds = [*ROUND_TRIP_NS.start(), *ROUND_TRIP_NS.end()];
        for round_trip_ns in bounds {
            for bytes_per_s in [*BYTES_PER_S.start(), *BYTES_PER_S.end()] {
                let edge = Figures { round_trip_ns, bytes_per_s };
                let all = Measured { tcp: TCP, fabric: edge };
                // No arithmetic overflows.
                let _ = one().told(1, Ok(all), HOUR);
                let _ = one().told(1, Ok(Measured { tcp: edge, fabric: TCP }), HOUR);
            }
        }
    }

    #[test]
    fn hosts_are_measured_one_at_a_time_while_they_are_up() {
        let mut ways = one();
        (2..4).for_each(|node| ways.up(node));
        ways.want(HOUR);
        assert_eq!((ways.begin(), ways.begin()), (Some(1), None));
        ways.down(2);
        ways.down(1);
        assert_eq!(ways.begin(), Some(3), "those that are away are not waited for");
        ways.told(3, Ok(measured(500, 500)), HOUR);
        assert_eq!(ways.begin(), None);
        ways.up(2);
        assert_eq!(ways.begin(), Some(2), "it is still wanted");
    }

    #[test]
    fn a_host_that_was_away_or_measured_by_itself_keeps_its_figures() {
        let mut ways = one();
        assert_eq!(ways.told(1, Ok(measured(500, 500)), HOUR), Way::Fabric, "the other one told");
        ways.down(1);
        assert!(!ways.any_over_fabric(HOUR));
        ways.up(1);
        assert!(ways.any_over_fabric(HOUR));
        ways.want(2 * HOUR);
        assert_eq!(ways.begin(), None);
        assert_eq!(ways.told(7, Ok(measured(500, 500)), HOUR), Way::Tcp, "never heard of");
    }
}
