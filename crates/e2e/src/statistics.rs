//! The table that `weft run --stats` prints, read back.

/// What may go over TCP before a connection has moved: the kernel's buffers of both ends.
const EARLY_BYTES: u64 = 6_000_000;

/// What went over the fabric and what over TCP.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// What went over the fabric.
    pub fabric: Traffic,
    /// What went over TCP.
    pub tcp: Traffic,
    /// Connections on TCP, with the reason.
    pub reasons: Vec<(u64, String)>,
}

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Connections.
    pub connections: u64,
    /// Bytes sent, to two digits at least.
    pub sent: u64,
    /// Bytes received, to two digits at least.
    pub received: u64,
}

impl Statistics {
    /// Finds and reads the table in what a command wrote to standard error.
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

    /// Checks that at least so many connections moved to the fabric, that none stayed on TCP, and
    /// that at least so many bytes were sent and received, less what the table's rounding hides.
    /// What was said before the other end had come, which is less than the kernel's buffers hold,
    /// may have gone over TCP; of anything longer, most went over the fabric.
    ///
    /// # Panics
    /// When it is not so.
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

    /// Checks that no byte went over the fabric, and that the connections are counted.
    ///
    /// # Panics
    /// When one did.
    pub fn assert_all_tcp(&self, connections: u64) {
        assert!(
            self.fabric == Traffic::default() && self.tcp.connections >= connections,
            "not all of it went over tcp, at least {connections} connections: {self:?}"
        );
    }
}

/// How much the table may hide of a number that it shows as `bytes`.
fn rounding(bytes: u64) -> u64 {
    let mut unit = 1;
    while bytes / unit >= 10_000 {
        unit *= 1000;
    }
    // 10 kB is shown from 10,000 to 10,999 bytes.
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
    fn the_table_is_found_behind_other_words() {
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
