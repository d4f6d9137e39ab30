//! The terms of weft beside those of Extoll's NIC (EXTOLL-THESIS#3) and of libfabric.
//!
//! | weft | Extoll | libfabric |
//! |---|---|---|
//! | [`Endpoint`] | VPID with its units | `fid_ep` |
//! | [`EndpointAddress`] | node and VPID | `fi_addr_t` |
//! | [`PartitionId`] | protection domain | `fi_domain_attr` auth key |
//! | [`Endpoint::send_short`] | VELO send | `fi_inject` |
//! | [`Endpoint::send_multicast`] | VELO multicast | `FI_MULTICAST` |
//! | [`MessageHeader`] | user tag and MTT | tag |
//! | [`Region`] | ATU entry | `fid_mr` |
//! | [`RemoteKey`] | network logical address | `fi_mr_key` |
//! | [`Access`] | ATU permissions | `FI_REMOTE_READ`, `FI_REMOTE_WRITE` |
//! | [`Endpoint::put`] | RMA put | `fi_write` |
//! | [`Endpoint::put_immediate`] | RMA immediate put | `fi_inject_write` |
//! | [`Endpoint::put_notification`] | notification put | `fi_writedata`, no bytes |
//! | [`Endpoint::get`] | RMA get | `fi_read` |
//! | [`Endpoint::put_vectored`] | several RMA puts | `fi_writev` |
//! | [`Endpoint::put_signal`] | put, then immediate put | `fi_write`, then fenced `fi_atomic` |
//! | [`Endpoint::atomic`] | RMA lock, by compare-and-swap | `fi_fetch_atomic`, `fi_atomic` |
//! | [`Notification`] of a [`Side`] | requester, responder, completer | remote CQ data |
//! | [`Completion`] | requester notification | completion queue entry |
//! | [`Operation::quiet`] | no notification | `FI_SELECTIVE_COMPLETION` |
//! | [`Operation::more`] | none | `FI_MORE` |
//! | [`Endpoint::order`] | in-order network | `FI_FENCE`, `FI_ORDER_WAW` |
//! | [`Endpoint::fence`] | none | `FI_DELIVERY_COMPLETE` |
//! | [`Endpoint::cancel`] | none | `fi_cancel` |
//! | [`Window`] | SMFU window | none |
//! | [`Register`] | register file | none |
//! | [`Capabilities`] | build parameters | `fi_info` |
//! | [`EndpointLimits`] | build parameters | `fi_tx_attr`, `fi_domain_attr` |
//! | [`Capabilities::rails`] | several NICs | `fi_domain_attr` name |
//! | [`TrafficClass`] | traffic class | `FI_TC_LOW_LATENCY`, `FI_TC_BULK_DATA` |
//! | [`Partition::Service`] | none | authorization key |
//! | [`Endpoint::poll`] | notification and receive queues | `fi_cq_read` |
//! | [`Watchable::descriptor`] | interrupt | `FI_WAIT_FD` |
//! | [`HostMemory`] | pinned user pages | `fi_mr_regattr` |

#[cfg(doc)]
use crate::{
    Access, Capabilities, Completion, Endpoint, EndpointAddress, EndpointLimits, HostMemory,
    MessageHeader, Notification, Operation, Partition, PartitionId, Region, Register, RemoteKey,
    Side, TrafficClass, Watchable, Window,
};

/// One term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    /// The word of weft.
    pub weft: &'static str,
    /// The word of Extoll's NIC.
    pub extoll: &'static str,
    /// The word of libfabric.
    pub libfabric: &'static str,
}

/// The lines of the table in the documentation of this module.
#[must_use]
pub fn all() -> Vec<Term> {
    include_str!("terms.rs").lines().filter_map(of_line).skip(1).collect()
}

/// The term in a line of the table.
fn of_line(line: &'static str) -> Option<Term> {
    let mut cells = line.strip_prefix("//! | ")?.strip_suffix(" |")?.split(" | ");
    let (weft, extoll, libfabric) = (cells.next()?, cells.next()?, cells.next()?);
    // A link reads [`name`]; what follows the first one explains it.
    let weft = weft.split('`').nth(1).unwrap_or(weft);
    Some(Term { weft, extoll, libfabric })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_term() {
        let all = all();
        let lines = include_str!("terms.rs").lines().filter(|line| line.starts_with("//! | "));
        assert_eq!(all.len() + 1, lines.count());
        let put = all.iter().find(|term| term.weft == "Endpoint::put").expect("it is there");
        assert_eq!((put.extoll, put.libfabric), ("RMA put", "`fi_write`"));
        assert!(all.iter().all(|term| !term.weft.contains('[') && !term.weft.is_empty()));
    }
}
