//! A whole packet that arrived from another node: decides whether it is valid and whether the
//! device gets it.

use std::time::Duration;

use weft_fabric::NodeId;

use crate::counters::Counters;
use crate::frame::Frame;
use crate::offload::Offload;
use crate::packet::Delivery;
use crate::switch::SharedSwitch;

pub(crate) struct Arrival<'a> {
    pub switch: &'a SharedSwitch,
    pub counters: &'a mut Counters,
    pub complaint: &'a mut Option<String>,
    pub node: NodeId,
    /// `node` is within reach of this port.
    pub is_within: bool,
    pub now: Duration,
}

impl Arrival<'_> {
    /// Hands `packet` to `deliver` if it is valid and the switch wants it here. `head` is the whole
    /// packet, or as many of its first bytes as decide that.
    pub fn admit<W: weft_fabric::Window>(
        self,
        head: &[u8],
        packet: Delivery<'_, W>,
        deliver: &mut dyn FnMut(Delivery<'_, W>),
    ) {
        if !self.is_within {
            self.counters.unreachable += 1;
            return;
        }
        let length = packet.length();
        let wanted = split(head).and_then(|(offload, frame)| {
            offload.check(length.saturating_sub(Offload::BYTES)).map_err(|e| e.to_string())?;
            let arrives = self.switch.lock().arrives(self.node, &frame, self.now);
            arrives.map_err(|error| error.to_string())
        });
        match wanted {
            Ok(true) => {
                self.counters.delivered(length);
                deliver(packet);
            }
            Ok(false) => self.counters.unwanted += 1,
            Err(error) => {
                self.counters.refused_from_fabric += 1;
                *self.complaint = Some(format!("node {} sent {error}", self.node.0));
            }
        }
    }
}

/// Splits a packet into its offload header and its frame.
pub(crate) fn split(packet: &[u8]) -> Result<(Offload, Frame<'_>), String> {
    let (offload, frame) = Offload::split(packet)
        .ok_or_else(|| format!("a packet of {} bytes, too short for its headers", packet.len()))?;
    Ok((offload, Frame::new(frame).map_err(|error| error.to_string())?))
}

/// Whether the packet is for a group. The switch then inspects the whole packet, not only its head.
pub(crate) fn is_for_group(packet: &[u8]) -> bool {
    split(packet).is_ok_and(|(_, frame)| frame.destination().is_group())
}
