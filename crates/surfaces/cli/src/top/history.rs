//! The last minutes, for the graph.

use std::collections::VecDeque;

use weftd::Status;

use super::Pair;

/// Values that are kept: as many as the widest graph has columns.
const VALUES_MAX: usize = 300;

/// Rates of the last minutes, in bytes a second.
#[derive(Default)]
pub struct History {
    pub fabric: VecDeque<u64>,
    pub tcp: VecDeque<u64>,
    pub ethernet: VecDeque<u64>,
    pub endpoints: VecDeque<u64>,
}

impl History {
    /// Adds the rates between two statuses.
    pub fn add(&mut self, pair: &Pair<'_>) {
        for (values, of) in [
            (&mut self.fabric, fabric as fn(&Status) -> u64),
            (&mut self.tcp, tcp),
            (&mut self.ethernet, ethernet),
            (&mut self.endpoints, endpoints),
        ] {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate is no less than 0, and a graph needs no more"
            )]
            values.push_back(pair.rate(|status| Some(of(status))) as u64);
            if values.len() > VALUES_MAX {
                values.pop_front();
            }
        }
    }
}

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

fn fabric(status: &Status) -> u64 {
    sum(status.totals.iter().map(|total| total.streams.fabric_sent))
}

fn tcp(status: &Status) -> u64 {
    sum(status.totals.iter().map(|total| total.streams.tcp_sent))
}

fn ethernet(status: &Status) -> u64 {
    sum(status.devices.iter().map(|device| device.sent_bytes))
}

fn endpoints(status: &Status) -> u64 {
    let names = ["put_bytes", "get_bytes", "message_bytes_sent"];
    let registers = status.totals.iter().map(|total| &total.registers);
    sum(registers.flat_map(|registers| names.map(|name| registers.get(name).copied().unwrap_or(0))))
}
