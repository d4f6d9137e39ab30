//! A packet that came whole from a node: whether it is believed, and goes to the device.

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
    /// The node is within reach.
    pub is_within: bool,
    pub now: Duration,
}

impl Arrival<'_> {
    /// `looked` is the packet, or as much of it as decides where it goes.
    pub fn of<W: weft_fabric::Window>(
        self,
        looked: &[u8],
        packet: Delivery<'_, W>,
        deliver: &mut dyn FnMut(Delivery<'_, W>),
    ) {
        if !self.is_within {
            self.counters.unreachable += 1;
            return;
        }
        let length = packet.length();
        let wanted = split(looked).and_then(|(offload, frame)| {
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
            Err(wrong) => {
                self.counters.refused_from_fabric += 1;
                *self.complaint = Some(format!("node {} sent {wrong}", self.node.0));
            }
        }
    }
}

/// The header of offloads, and the frame.
pub(crate) fn split(packet: &[u8]) -> Result<(Offload, Frame<'_>), String> {
    let (offload, frame) =
        Offload::split(packet).ok_or_else(|| format!("a packet of {} bytes", packet.len()))?;
    Ok((offload, Frame::new(frame).map_err(|error| error.to_string())?))
}

/// Whether a packet is for several: then all of it is looked at.
pub(crate) fn is_for_group(packet: &[u8]) -> bool {
    split(packet).is_ok_and(|(_, frame)| frame.destination().is_group())
}
