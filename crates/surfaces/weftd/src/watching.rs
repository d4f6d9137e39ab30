//! The counters that a program shares with the daemon.
//!
//! A program sends a page of sealed memory with its greeting ([`weft_wire::stats`]). The daemon
//! copies it once for each reading and trusts nothing of it: counters are numbers, and all names
//! are of tables that the daemon has itself.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use rustix::io::{Errno, pread};
use weft_metrics::Snapshot;
use weft_wire::stats::{self, OnTcp, Stats, TcpReason, Work};

use crate::evidence::{LeasedFile, Shown};
use crate::status::{OnTcpStatus, StreamCounts};

/// Connections on TCP that the status shows of one program: the last ones.
const ON_TCP_MAX: usize = 16;

/// The page of a program.
#[derive(Debug)]
pub struct Page(LeasedFile);

impl Page {
    /// The page among the descriptors of a greeting; `None` for a program that shows no counters.
    pub fn among(shown: Vec<Shown>) -> Option<Self> {
        shown.into_iter().find_map(|shown| match shown {
            Shown::Memory { file, length } if length == stats::BYTES as u64 => Some(Self(file)),
            _ => None,
        })
    }

    /// The counters as they are now; `None` if the page is not one of counters.
    pub fn read(&self) -> Option<Stats> {
        let mut block = vec![0; stats::BYTES];
        let mut done = 0;
        while done < block.len() {
            match pread(self.0.as_fd(), &mut block[done..], done as u64) {
                Ok(0) => return None,
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Stats::parse(&block).ok()
    }
}

/// The counters, as the status has them.
pub fn streams(stats: &Stats) -> StreamCounts {
    let counted = TcpReason::ALL.iter().map(|reason| (*reason, stats.reason(*reason)));
    let reasons: BTreeMap<_, _> = counted
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.name().to_owned(), count))
        .collect();
    StreamCounts {
        fabric: stats.counter(stats::CONNECTIONS_FABRIC),
        tcp: stats.counter(stats::CONNECTIONS_TCP),
        fabric_sent: stats.counter(stats::BYTES_FABRIC_SENT),
        fabric_received: stats.counter(stats::BYTES_FABRIC_RECEIVED),
        tcp_sent: stats.counter(stats::BYTES_TCP_SENT),
        tcp_received: stats.counter(stats::BYTES_TCP_RECEIVED),
        reasons,
    }
}

/// The work that was counted, by service and count; those of services that did none are absent.
pub fn work(stats: &Stats) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all = BTreeMap::<String, BTreeMap<String, u64>>::new();
    for one in Work::ALL {
        let (service, count) = one.names();
        let of = all.entry(service.to_owned()).or_default();
        of.insert(count.to_owned(), stats.counter(one.index()));
    }
    all.retain(|_, counts| counts.values().any(|value| *value > 0));
    all
}

/// The turns of the connections on the fabric.
pub fn turns(stats: &Stats) -> Snapshot {
    Snapshot::of_words(stats.turns())
}

/// The last connections that stayed on TCP, the newest first.
pub fn on_tcp(stats: &Stats) -> Vec<OnTcpStatus> {
    let of = |record: &OnTcp| OnTcpStatus {
        reason: record.reason.name().to_owned(),
        why: record.reason.text().to_owned(),
        at_ms: record.at_ms,
        addresses: record.addresses.map(|(own, other)| (own.to_string(), other.to_string())),
    };
    stats.on_tcp().iter().rev().take(ON_TCP_MAX).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::examine;
    use crate::quota::{Pool, Quota};
    use std::os::fd::OwnedFd;
    use weft_memory::{CopyMode, Segment};

    fn shown(file: OwnedFd) -> Option<Page> {
        let pool = Pool::new(4, Quota { user_share: 50, own_user: 1 });
        Page::among(examine(vec![file], 7, &pool, |_, tuple| tuple))
    }

    #[test]
    fn a_page_is_read_while_its_program_counts_and_another_file_is_none() {
        let (segment, file) = Segment::create("weft-test", stats::BYTES).expect("memory");
        let page = shown(file).expect("sealed memory of the right size");
        assert_eq!(page.read(), None, "it has no magic yet");
        segment.write(0, &Stats::header(), CopyMode::Plain);
        let word = |counter| segment.word64(stats::place(3, counter));
        word(stats::BYTES_FABRIC_SENT).store(70, std::sync::atomic::Ordering::Relaxed);
        word(TcpReason::PeerNotWeft.index()).store(2, std::sync::atomic::Ordering::Relaxed);
        word(Work::KvHits.index()).store(3, std::sync::atomic::Ordering::Relaxed);
        let done = work(&page.read().expect("a page"));
        assert_eq!((done["kv"]["hits"], done["kv"]["misses"], done.len()), (3, 0, 1));
        let counts = streams(&page.read().expect("a page"));
        assert_eq!((counts.fabric_sent, counts.tcp), (70, 0));
        assert_eq!(counts.reasons.into_iter().collect::<Vec<_>>(), [("peer_not_weft".into(), 2)]);
        assert!(shown(Segment::create_file("weft-test", 4096).expect("memory")).is_none());
        assert!(shown(std::fs::File::open("/dev/null").expect("there").into()).is_none());
    }
}
