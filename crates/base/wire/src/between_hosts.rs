//! Messages between the daemons of two hosts about TCP connections between their programs.
//!
//! The daemon of the connecting end offers that end to the daemon of the accepting end. When both
//! ends were offered there, that one answers with the address at which the accepting end can be
//! asked for a lane. Parsing an invalid message gives `None`; it never panics. The form belongs to
//! the versions that the daemons tell each other ([`crate::versions`]).
//!
//! ```text
//! 0  kind (u8)   1  body, little-endian
//! ```

use std::net::{IpAddr, SocketAddr};

/// Most addresses of a host.
pub const ADDRESSES_MAX: usize = 64;
/// Bytes of the address of an accepting end.
pub const ADDRESS_BYTES: usize = 32;

crate::forms! {
/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BetweenHosts: u8 {
    /// The IP addresses of the sender's host, at most [`ADDRESSES_MAX`]. Replaces those before.
    Addresses = 1 {
        /// The addresses.
        addresses: Vec<IpAddr> [ADDRESSES_MAX],
    },
    /// A program of the sender's host offers the connecting end of a connection.
    Offer = 2 {
        /// The sender's number for the offer.
        number: u64,
        /// The user of the program.
        user: u32,
        /// The address of the connecting end.
        local: SocketAddr,
        /// The address of the accepting end.
        remote: SocketAddr,
    },
    /// The accepting end was offered, too.
    Lane = 3 {
        /// The number of the offer.
        number: u64,
        /// Where the accepting end can be asked for a lane, as its program wrote it.
        address: [u8; ADDRESS_BYTES],
    },
    /// The offer is over: the connection is closed or stays on TCP.
    Withdraw = 4 {
        /// The number of the offer.
        number: u64,
    },
}
}

impl BetweenHosts {
    /// Parses a message; `None` if it is none.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (kind, fields) = message.split_first()?;
        Self::of_kind(*kind, fields)
    }

    /// Encodes the message. Leaves addresses out that are too many.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind()];
        self.put_fields(&mut bytes);
        bytes
    }
}

/// Entry for fuzzing: checks that any bytes that parse are what their message encodes to.
///
/// # Panics
/// When the check fails.
pub fn fuzz_parse(bytes: &[u8]) {
    if let Some(message) = BetweenHosts::parse(bytes) {
        assert_eq!(message.emit(), bytes, "the encoded message is the same");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::{DAEMONS_HIGHEST, fingerprint};
    use proptest::prelude::*;

    fn any_message() -> impl Strategy<Value = BetweenHosts> {
        prop_oneof![
            prop::collection::vec(any::<IpAddr>(), 0..=ADDRESSES_MAX)
                .prop_map(|addresses| BetweenHosts::Addresses { addresses }),
            any::<(u64, u32, (IpAddr, u16), (IpAddr, u16))>().prop_map(
                |(number, user, local, remote)| BetweenHosts::Offer {
                    number,
                    user,
                    local: local.into(),
                    remote: remote.into()
                }
            ),
            any::<(u64, [u8; ADDRESS_BYTES])>()
                .prop_map(|(number, address)| BetweenHosts::Lane { number, address }),
            any::<u64>().prop_map(|number| BetweenHosts::Withdraw { number }),
        ]
    }

    #[test]
    fn the_form_of_messages_is_that_of_their_version() {
        let addresses = ["10.9.0.1", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        let [local, remote] = [(addresses[0], 80).into(), (addresses[1], 81).into()];
        let all = [
            BetweenHosts::Addresses { addresses: addresses.to_vec() },
            BetweenHosts::Offer { number: 1, user: 2, local, remote },
            BetweenHosts::Lane { number: 1, address: [3; ADDRESS_BYTES] },
            BetweenHosts::Withdraw { number: 1 },
        ];
        for example in &all {
            // A new kind needs an example above.
            match example {
                BetweenHosts::Addresses { .. }
                | BetweenHosts::Offer { .. }
                | BetweenHosts::Lane { .. }
                | BetweenHosts::Withdraw { .. } => {}
            }
        }
        let formats = fingerprint(all.iter().map(BetweenHosts::emit));
        assert_eq!((DAEMONS_HIGHEST, formats), (4, 0xf6c1_1b12_9b63_cede), "raise the version");
    }

    proptest! {
        #[test]
        fn an_encoded_message_parses_to_the_same(message in any_message()) {
            let mut bytes = message.emit();
            prop_assert_eq!(BetweenHosts::parse(&bytes), Some(message));
            prop_assert_eq!(BetweenHosts::parse(&bytes[..bytes.len() - 1]), None);
            bytes.push(0);
            prop_assert_eq!(BetweenHosts::parse(&bytes), None);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            fuzz_parse(&bytes);
        }
    }

    #[test]
    fn more_addresses_than_a_host_may_have_are_refused() {
        let addresses = vec![IpAddr::from([10, 0, 0, 1]); ADDRESSES_MAX + 1];
        let mut bytes = BetweenHosts::Addresses { addresses }.emit();
        assert!(BetweenHosts::parse(&bytes).is_some(), "the encoder leaves some out");
        bytes[1] += 1;
        bytes.extend_from_slice(&[4, 10, 0, 0, 1]);
        assert_eq!(BetweenHosts::parse(&bytes), None);
    }
}
