//! Messages between the daemons of two hosts that measure which way between them is faster.
//!
//! One asks the other to serve a measurement, measures, and tells it the figures. Parsing an
//! invalid message gives `None`; it never panics.
//!
//! ```text
//! 0  kind (u8)   1  body, little-endian
//! ```

/// Longest reason of a failure, in bytes.
pub const REASON_BYTES_MAX: usize = 256;

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Measuring {
    /// The receiver shall serve a measurement.
    Ask,
    /// The sender serves it at two ports of the host whose daemon it is.
    Serves {
        /// A program without weft listens here.
        plain: u16,
        /// A program listens here whose connections go over the fabric.
        fabric: u16,
    },
    /// The figures of both ways.
    Figures {
        /// The time of a round trip over TCP and over the fabric, in nanoseconds.
        round_trip_ns: [u64; 2],
        /// The bytes of a stream per second over TCP and over the fabric.
        bytes_per_s: [u64; 2],
    },
    /// There is no measurement, and why.
    Failed {
        /// At most [`REASON_BYTES_MAX`] bytes.
        reason: String,
    },
}

mod kind {
    pub const ASK: u8 = 1;
    pub const SERVES: u8 = 2;
    pub const FIGURES: u8 = 3;
    pub const FAILED: u8 = 4;
}

impl Measuring {
    /// Parses a message; `None` if it is none.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (kind, body) = message.split_first()?;
        Some(match *kind {
            kind::ASK if body.is_empty() => Self::Ask,
            kind::SERVES => {
                let (plain, fabric) = body.split_first_chunk()?;
                let plain = u16::from_le_bytes(*plain);
                Self::Serves { plain, fabric: u16::from_le_bytes(fabric.try_into().ok()?) }
            }
            kind::FIGURES => {
                let (words, rest) = body.as_chunks::<8>();
                let words: [u64; 4] = words
                    .iter()
                    .map(|word| u64::from_le_bytes(*word))
                    .collect::<Vec<_>>()
                    .try_into()
                    .ok()?;
                let [one, two, three, four] = words;
                let figures =
                    Self::Figures { round_trip_ns: [one, two], bytes_per_s: [three, four] };
                return rest.is_empty().then_some(figures);
            }
            kind::FAILED if body.len() <= REASON_BYTES_MAX => {
                Self::Failed { reason: std::str::from_utf8(body).ok()?.to_owned() }
            }
            _ => return None,
        })
    }

    /// Encodes the message. Cuts a reason that is too long.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Ask => bytes.push(kind::ASK),
            Self::Serves { plain, fabric } => {
                bytes.push(kind::SERVES);
                bytes.extend_from_slice(&plain.to_le_bytes());
                bytes.extend_from_slice(&fabric.to_le_bytes());
            }
            Self::Figures { round_trip_ns, bytes_per_s } => {
                bytes.push(kind::FIGURES);
                for word in round_trip_ns.iter().chain(bytes_per_s) {
                    bytes.extend_from_slice(&word.to_le_bytes());
                }
            }
            Self::Failed { reason } => {
                bytes.push(kind::FAILED);
                let end = reason.floor_char_boundary(REASON_BYTES_MAX);
                bytes.extend_from_slice(&reason.as_bytes()[..end]);
            }
        }
        bytes
    }
}

/// Entry for fuzzing: checks that any bytes that parse are what their message encodes to.
///
/// # Panics
/// When the check fails.
pub fn fuzz_parse(bytes: &[u8]) {
    if let Some(message) = Measuring::parse(bytes) {
        assert_eq!(message.emit(), bytes, "the encoded message is the same");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_message() -> impl Strategy<Value = Measuring> {
        prop_oneof![
            Just(Measuring::Ask),
            any::<(u16, u16)>().prop_map(|(plain, fabric)| Measuring::Serves { plain, fabric }),
            any::<([u64; 2], [u64; 2])>().prop_map(|(round_trip_ns, bytes_per_s)| {
                Measuring::Figures { round_trip_ns, bytes_per_s }
            }),
            "[a-zé ]{0,60}".prop_map(|reason| Measuring::Failed { reason }),
        ]
    }

    proptest! {
        #[test]
        fn an_encoded_message_parses_to_the_same(message in any_message()) {
            let bytes = message.emit();
            prop_assert_eq!(Measuring::parse(&bytes), Some(message.clone()));
            if !matches!(message, Measuring::Failed { .. }) {
                let longer = [&bytes[..], &[0]].concat();
                prop_assert_eq!(Measuring::parse(&longer), None);
                let shorter = &bytes[..bytes.len() - 1];
                prop_assert_eq!(Measuring::parse(shorter), None);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_parse(&bytes);
        }
    }

    #[test]
    fn a_reason_is_cut_to_its_bound_and_a_longer_one_is_refused() {
        let reason = "é".repeat(REASON_BYTES_MAX);
        let mut bytes = Measuring::Failed { reason }.emit();
        assert_eq!(bytes.len(), 1 + REASON_BYTES_MAX);
        assert!(Measuring::parse(&bytes).is_some());
        bytes.push(b'x');
        assert_eq!(Measuring::parse(&bytes), None);
    }
}
