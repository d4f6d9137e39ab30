//! The versions of the formats that hosts of two releases exchange.
//!
//! # Invariants
//! - A format that changes gets another version. Tests beside each format hold the bytes of
//!   examples to its version ([`fingerprint`]).

/// The lowest version of all that daemons of two hosts say to each other that this release speaks:
/// the messages of membership, of brokers, about connections, and about paths.
pub const DAEMONS_LOWEST: u16 = 4;
/// The highest.
pub const DAEMONS_HIGHEST: u16 = 4;
/// The version of the packets between the ports of two programs. The name of a port begins with it.
pub const PACKETS: u16 = 4;

/// The version of lanes between two hosts: the messages of carriers, the layout of lanes, and the
/// records with which a connection returns to TCP. The address of a carrier has it.
pub const LANES: u32 = 3;

/// A number that changes with the bytes of any message (FNV-1a over the messages and their
/// lengths). A test that compares it fails when a format changes: raise its version, and write the
/// new number into the test.
#[must_use]
pub fn fingerprint(messages: impl IntoIterator<Item = Vec<u8>>) -> u64 {
    let mixed = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    messages.into_iter().fold(0xcbf2_9ce4_8422_2325, |sum, message| {
        let length = u64::try_from(message.len()).unwrap_or(u64::MAX).to_le_bytes();
        length.into_iter().chain(message).fold(sum, mixed)
    })
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    #[test]
    fn the_fingerprint_sees_each_byte_and_where_messages_end() {
        let of = |messages: &[&[u8]]| fingerprint(messages.iter().map(|bytes| bytes.to_vec()));
        let all = [of(&[b"ab", b"c"]), of(&[b"a", b"bc"]), of(&[b"abc"]), of(&[b"ab", b"d"])];
        for (place, one) in all.iter().enumerate() {
            assert!(!all[place + 1..].contains(one), "{all:x?}");
        }
    }
}
