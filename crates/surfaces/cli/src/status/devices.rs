//! The Ethernet devices of a daemon, for `weft status`.

use weftd::DeviceStatus;

use crate::table::{Table, bytes};

/// A table of the devices, and one of their packets that went nowhere, where there are any.
pub fn text(devices: &[DeviceStatus]) -> String {
    if devices.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(["node", "namespace", "address", "peers", "sent", "", "received", ""]);
    for device in devices {
        table.line([
            device.node.to_string(),
            device.namespace.clone().unwrap_or_else(|| "-".to_owned()),
            device.mac.clone(),
            peers(device),
            device.sent.to_string(),
            bytes(device.sent_bytes),
            device.received.to_string(),
            bytes(device.received_bytes),
        ]);
    }
    let title = format!("Ethernet devices and their packets: {}", devices.len());
    format!("\n{}{}", table.section(&title), nowhere(devices))
}

/// How many other nodes a device sees, or that its thread is too busy to say.
fn peers(device: &DeviceStatus) -> String {
    if device.queues.is_empty() { "busy".to_owned() } else { device.peers.len().to_string() }
}

/// Packets that reached nobody, with the reason.
fn nowhere(devices: &[DeviceStatus]) -> String {
    let mut table = Table::new(["node", "packets", "reason"]);
    for device in devices {
        for (count, reason) in [
            (device.filtered, "for an address behind the device, or a group that nobody wants"),
            (
                device.unreachable,
                "for a node that is not there or to which no data go: see `weft fabric nodes`",
            ),
            (device.refused, "malformed, forged, or against the protocol"),
            (device.unwanted, "came here, but were for others"),
            (device.lost, "for a node that went, or came while the interface was off"),
        ] {
            if count > 0 {
                table.line([device.node.to_string(), count.to_string(), reason.to_owned()]);
            }
        }
    }
    if table.len() == 0 {
        return String::new();
    }
    format!("\n{}", table.section("Packets that reached nobody"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(node: u32) -> DeviceStatus {
        let queues = vec![weftd::QueueStatus { queue: 0, sent: 0, received: 0 }];
        DeviceStatus { node, mac: "02:00:00:00:00:01".to_owned(), queues, ..Default::default() }
    }

    #[test]
    fn no_device_has_no_section() {
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn packets_that_reached_nobody_are_told_with_their_reason_and_only_then() {
        let quiet = DeviceStatus { sent: 3, sent_bytes: 180, ..device(0) };
        let told = text(std::slice::from_ref(&quiet));
        assert!(told.contains("180 B") && !told.contains("reached nobody"), "{told}");
        let told = text(&[quiet, DeviceStatus { unreachable: 7, lost: 1, ..device(1) }]);
        let lines: Vec<&str> = told.lines().skip_while(|line| !line.contains("nobody")).collect();
        assert_eq!(lines.len(), 5, "{told}");
        assert!(lines[2].contains('7') && lines[2].contains("for a node that is not there"));
        assert!(lines[3].contains("fabric nodes`") && lines[4].contains('1'));
    }

    #[test]
    fn a_device_that_is_too_busy_says_so() {
        let told = text(&[DeviceStatus { queues: Vec::new(), ..device(0) }]);
        assert!(told.contains("busy"), "{told}");
    }
}
