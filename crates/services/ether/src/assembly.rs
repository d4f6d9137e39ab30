//! Reassembly of the packets of the eager protocol (EXTOLL-THESIS#5.4.1.2).
//!
//! The messages of one sender arrive in order, and it sends one packet after the other. So the
//! fragments between two first fragments belong to one packet.

use crate::frame::{FRAME_BYTES_MAX, HEADER_BYTES};
use crate::message::MessageError;
use crate::offload::Offload;

/// The shortest packet: an offload header and a frame header.
pub const PACKET_BYTES_MIN: usize = Offload::BYTES + HEADER_BYTES;
/// The longest packet.
pub const PACKET_BYTES_MAX: usize = Offload::BYTES + FRAME_BYTES_MAX;

/// Checks the announced length of a packet.
///
/// # Errors
/// [`MessageError::Packet`].
pub fn check_length(length: u32) -> Result<usize, MessageError> {
    let bytes = usize::try_from(length).map_err(|_| MessageError::Packet(length))?;
    if (PACKET_BYTES_MIN..=PACKET_BYTES_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(MessageError::Packet(length))
    }
}

/// The fragments received so far of one sender's packet.
#[derive(Debug, Default)]
pub struct Assembly {
    bytes: Vec<u8>,
    due: usize,
}

impl Assembly {
    /// Starts a packet of `length` bytes. Returns the packet if `bytes` is all of it. An unfinished
    /// packet is discarded: its sender gave it up as well and sent it another way.
    ///
    /// # Errors
    /// [`MessageError`]; there is no packet in progress then.
    pub fn first(&mut self, length: u32, bytes: &[u8]) -> Result<Option<&[u8]>, MessageError> {
        self.due = 0;
        self.bytes.clear();
        self.due = check_length(length)?;
        self.more(bytes)
    }

    /// Appends a fragment. Returns the packet once it is complete.
    ///
    /// # Errors
    /// [`MessageError::Stray`]; there is no packet in progress then.
    pub fn more(&mut self, bytes: &[u8]) -> Result<Option<&[u8]>, MessageError> {
        if self.bytes.len() + bytes.len() > self.due {
            self.due = 0;
            self.bytes.clear();
            return Err(MessageError::Stray);
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() < self.due {
            return Ok(None);
        }
        self.due = 0;
        Ok(Some(&self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_complete_with_its_last_fragment() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.first(30, &[1; 20]), Ok(None));
        assert_eq!(assembly.more(&[2; 10]), Ok(Some(&[&[1; 20][..], &[2; 10]].concat()[..])));
        assert_eq!(assembly.more(&[2]), Err(MessageError::Stray), "the packet was complete");
        assert_eq!(assembly.first(26, &[7; 26]), Ok(Some(&[7; 26][..])));
    }

    #[test]
    fn an_unfinished_packet_is_discarded() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.first(60, &[1; 20]), Ok(None));
        assert_eq!(assembly.first(26, &[2; 20]), Ok(None));
        assert_eq!(assembly.more(&[2; 7]), Err(MessageError::Stray), "too much");
        assert_eq!(assembly.more(&[2; 6]), Err(MessageError::Stray), "no packet is in progress");
    }

    #[test]
    fn lengths_that_no_packet_has_are_refused() {
        let mut assembly = Assembly::default();
        for length in [0, 25, 65_570, u32::MAX] {
            assert_eq!(assembly.first(length, &[]), Err(MessageError::Packet(length)));
        }
        assert_eq!(assembly.first(65_569, &[]), Ok(None));
    }
}
