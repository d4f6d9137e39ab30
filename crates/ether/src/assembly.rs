//! Packets of the eager protocol put together again (003 section 5.4.1.2).
//!
//! Messages of one sender come in order, and it sends one packet after the other, so a packet is
//! what lies between one beginning and the next.

use crate::frame::{FRAME_BYTES_MAX, HEADER_BYTES};
use crate::message::MessageError;
use crate::offload::Offload;

/// The shortest packet: the header of offloads and that of a frame.
pub const PACKET_BYTES_MIN: usize = Offload::BYTES + HEADER_BYTES;
/// The longest.
pub const PACKET_BYTES_MAX: usize = Offload::BYTES + FRAME_BYTES_MAX;

/// Checks the length of a packet that is to come.
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

/// What came of one sender's packet so far.
#[derive(Debug, Default)]
pub struct Assembly {
    bytes: Vec<u8>,
    due: usize,
}

impl Assembly {
    /// A packet of `length` bytes begins. One that is not whole is given up: its sender gave it
    /// up, too, and sent it another way.
    ///
    /// # Errors
    /// [`MessageError`]; there is no packet then.
    pub fn first(&mut self, length: u32, bytes: &[u8]) -> Result<Option<&[u8]>, MessageError> {
        self.due = 0;
        self.bytes.clear();
        self.due = check_length(length)?;
        self.more(bytes)
    }

    /// It goes on; returns it when it is whole.
    ///
    /// # Errors
    /// [`MessageError::Stray`]; there is no packet then.
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
    fn a_packet_is_whole_when_all_of_it_came() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.first(30, &[1; 20]), Ok(None));
        assert_eq!(assembly.more(&[2; 10]), Ok(Some(&[&[1; 20][..], &[2; 10]].concat()[..])));
        assert_eq!(assembly.more(&[2]), Err(MessageError::Stray), "it was whole");
        assert_eq!(assembly.first(26, &[7; 26]), Ok(Some(&[7; 26][..])));
    }

    #[test]
    fn one_that_is_not_whole_is_given_up() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.first(60, &[1; 20]), Ok(None));
        assert_eq!(assembly.first(26, &[2; 20]), Ok(None));
        assert_eq!(assembly.more(&[2; 7]), Err(MessageError::Stray), "too much");
        assert_eq!(assembly.more(&[2; 6]), Err(MessageError::Stray), "there is none any more");
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
