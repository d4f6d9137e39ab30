//! The meaning of a lane's messages to those who look at it from beside.

use crate::stream::tag;

/// How many bytes of the sink a message announces; `None` if it carries bytes of the stream itself,
/// or is none that an end would send.
#[must_use]
pub fn announced(message_tag: u8, payload: &[u8]) -> Option<u64> {
    let length = <[u8; 4]>::try_from(payload).ok()?;
    (message_tag == tag::RMA_INFO).then(|| u64::from(u32::from_le_bytes(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_told_from_bytes() {
        assert_eq!(announced(tag::RMA_INFO, &[0, 1, 0, 0]), Some(256));
        assert_eq!(announced(tag::RMA_INFO, &[0, 1, 0]), None);
        assert_eq!(announced(tag::VELO_LAST, &[0, 1, 0, 0]), None);
    }
}
