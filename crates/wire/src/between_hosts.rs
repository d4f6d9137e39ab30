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

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BetweenHosts {
    /// The IP addresses of the sender's host, at most [`ADDRESSES_MAX`]. Replaces those before.
    Addresses(Vec<IpAddr>),
    /// A program of the sender's host offers the connecting end of a connection.
    Offer {
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
    Lane {
        /// The number of the offer.
        number: u64,
        /// Where the accepting end can be asked for a lane, as its program wrote it.
        address: [u8; ADDRESS_BYTES],
    },
    /// The offer is over: the connection is closed or stays on TCP.
    Withdraw {
        /// The number of the offer.
        number: u64,
    },
}

mod kind {
    pub const ADDRESSES: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const LANE: u8 = 3;
    pub const WITHDRAW: u8 = 4;
}

impl BetweenHosts {
    /// Parses a message; `None` if it is none.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let mut reader = Reader(message);
        let [kind] = reader.take()?;
        let parsed = match kind {
            kind::ADDRESSES => {
                let [count] = reader.take()?;
                if usize::from(count) > ADDRESSES_MAX {
                    return None;
                }
                let addresses = (0..count).map(|_| reader.ip()).collect::<Option<_>>()?;
                Self::Addresses(addresses)
            }
            kind::OFFER => {
                let number = u64::from_le_bytes(reader.take()?);
                let user = u32::from_le_bytes(reader.take()?);
                Self::Offer { number, user, local: reader.address()?, remote: reader.address()? }
            }
            kind::LANE => {
                let number = u64::from_le_bytes(reader.take()?);
                Self::Lane { number, address: reader.take()? }
            }
            kind::WITHDRAW => Self::Withdraw { number: u64::from_le_bytes(reader.take()?) },
            _ => return None,
        };
        reader.0.is_empty().then_some(parsed)
    }

    /// Encodes the message. Leaves out addresses beyond [`ADDRESSES_MAX`].
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Addresses(addresses) => {
                let count = addresses.len().min(ADDRESSES_MAX);
                bytes.push(kind::ADDRESSES);
                bytes.push(u8::try_from(count).expect("the maximum fits 8 bits"));
                addresses[..count].iter().for_each(|address| put_ip(&mut bytes, *address));
            }
            Self::Offer { number, user, local, remote } => {
                bytes.push(kind::OFFER);
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(&user.to_le_bytes());
                for address in [local, remote] {
                    put_ip(&mut bytes, address.ip());
                    bytes.extend_from_slice(&address.port().to_le_bytes());
                }
            }
            Self::Lane { number, address } => {
                bytes.push(kind::LANE);
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(address);
            }
            Self::Withdraw { number } => {
                bytes.push(kind::WITHDRAW);
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        bytes
    }
}

fn put_ip(bytes: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            bytes.push(4);
            bytes.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            bytes.push(6);
            bytes.extend_from_slice(&address.octets());
        }
    }
}

/// Reads values from the front of a message.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn ip(&mut self) -> Option<IpAddr> {
        match self.take()? {
            [4] => Some(IpAddr::from(self.take::<4>()?)),
            [6] => Some(IpAddr::from(self.take::<16>()?)),
            _ => None,
        }
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let ip = self.ip()?;
        Some(SocketAddr::new(ip, u16::from_le_bytes(self.take()?)))
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
                .prop_map(BetweenHosts::Addresses),
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
            BetweenHosts::Addresses(addresses.to_vec()),
            BetweenHosts::Offer { number: 1, user: 2, local, remote },
            BetweenHosts::Lane { number: 1, address: [3; ADDRESS_BYTES] },
            BetweenHosts::Withdraw { number: 1 },
        ];
        for example in &all {
            // A new kind needs an example above.
            match example {
                BetweenHosts::Addresses(_)
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
        let many = vec![IpAddr::from([10, 0, 0, 1]); ADDRESSES_MAX + 1];
        let mut bytes = BetweenHosts::Addresses(many).emit();
        assert!(BetweenHosts::parse(&bytes).is_some(), "the encoder leaves some out");
        bytes[1] += 1;
        bytes.extend_from_slice(&[4, 10, 0, 0, 1]);
        assert_eq!(BetweenHosts::parse(&bytes), None);
    }
}
