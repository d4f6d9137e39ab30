//! Parses the table that `weft run --stats` prints.

/// Most bytes that go over TCP before a connection has moved: the kernel's buffers of both ends.
const EARLY_BYTES: u64 = 6_000_000;

/// The traffic over the fabric and over TCP.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Traffic over the fabric.
    pub fabric: Traffic,
    /// Traffic over TCP.
    pub tcp: Traffic,
    /// Numbers of connections on TCP, each with the reason.
    pub reasons: Vec<(u64, String)>,
}

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Connections.
    pub connections: u64,
    /// Bytes sent, to at least two digits.
    pub sent: u64,
    /// Bytes received, to at least two digits.
    pub received: u64,
}

impl Statistics {
    /// Finds and parses the table in the standard error of a command.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let begin = text.rfind("weft    connections")?;
        let mut found = Self::default();
        let mut lines = 0;
        for line in text[begin..].lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [name @ ("fabric" | "tcp"), connections, sent, sent_unit, got, got_unit] => {
                    let traffic = Traffic {
                        connections: connections.parse().ok()?,
                        sent: bytes(sent, sent_unit)?,
                        received: bytes(got, got_unit)?,
                    };
                    lines += 1;
                    if *name == "fabric" {
                        found.fabric = traffic;
                    } else {
                        found.tcp = traffic;
                    }
                }
                ["on", "tcp:", count, "because", reason @ ..] => {
                    found.reasons.push((count.parse().ok()?, reason.join(" ")));
                }
                _ => {}
            }
        }
        (lines == 2).then_some(found)
    }

    /// Checks that at least `connections` connections moved to the fabric, that none stayed on TCP,
    /// and that at least `sent` and `received` bytes were moved, less the rounding of the table.
    /// Bytes sent before the other end was there may have gone over TCP; they are fewer than the
    /// kernel's buffers hold. Most bytes of anything longer must have gone over the fabric.
    ///
    /// # Panics
    /// When the check fails.
    pub fn assert_all_fabric(&self, connections: u64, sent: u64, received: u64) {
        let (fabric, tcp) = (self.fabric, self.tcp);
        let enough = |fabric: u64, tcp: u64, wanted: u64| {
            let early = EARLY_BYTES.max(wanted / 100);
            fabric + tcp + rounding(fabric) + rounding(tcp) >= wanted
                && tcp <= early
                && fabric + rounding(fabric) + early >= wanted
        };
        assert!(
            fabric.connections >= connections
                && tcp.connections == 0
                && fabric.sent + fabric.received > 0
                && enough(fabric.sent, tcp.sent, sent)
                && enough(fabric.received, tcp.received, received),
            "not all of it went over the fabric (at least {connections} connections, {sent} sent, \
             {received} received): {self:?}"
        );
    }

    /// Checks that no byte went over the fabric, and that at least `connections` connections are
    /// counted.
    ///
    /// # Panics
    /// When the check fails.
    pub fn assert_all_tcp(&self, connections: u64) {
        assert!(
            self.fabric == Traffic::default() && self.tcp.connections >= connections,
            "not all of it went over tcp, at least {connections} connections: {self:?}"
        );
    }
}

/// The rounding error of a number that the table shows as `bytes`.
fn rounding(bytes: u64) -> u64 {
    let mut unit = 1;
    while bytes / unit >= 10_000 {
        unit *= 1000;
    }
    // The table shows 10,000 to 10,999 bytes as 10 kB.
    if unit == 1 { 0 } else { unit }
}

fn bytes(number: &str, unit: &str) -> Option<u64> {
    let power = ["B", "kB", "MB", "GB", "TB", "PB"].iter().position(|name| *name == unit)?;
    Some(number.parse::<u64>().ok()? * 1000_u64.pow(u32::try_from(power).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_found_after_other_output() {
        let text = "warning: x\nweft    connections     sent  received\n\
                    fabric            2  1500 kB       0 B\n\
                    tcp               1      0 B       7 B\n\
                    on tcp: 1 because the other end does not run under weft\n";
        let found = Statistics::parse(text).expect("a table");
        assert_eq!(found.fabric, Traffic { connections: 2, sent: 1_500_000, received: 0 });
        assert_eq!(found.tcp, Traffic { connections: 1, sent: 0, received: 7 });
        assert_eq!(found.reasons, [(1, "the other end does not run under weft".to_owned())]);
        assert_eq!((rounding(12_000), rounding(9_999), rounding(17_000_000)), (1000, 0, 1_000_000));
        assert_eq!(Statistics::parse("fabric 1 1 B 1 B"), None);
    }
}
