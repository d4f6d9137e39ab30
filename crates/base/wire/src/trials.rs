//! Messages between the daemons of two hosts that try the path of data between them.
//!
//! Each asks the other for an endpoint, sends something there, and tells what came of it. Parsing
//! an invalid message gives `None`; it never panics.
//!
//! ```text
//! 0  kind (u8)   1  body
//! ```

/// Longest reason, in bytes.
pub const REASON_BYTES_MAX: usize = 512;
/// Longest name of an endpoint, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest name of a provider, in bytes.
pub const PROVIDER_BYTES_MAX: usize = 64;

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trial {
    /// The receiver shall open an endpoint.
    Ask,
    /// The endpoint of the sender: what comes there is sent back.
    At {
        /// Its provider: up to [`PROVIDER_BYTES_MAX`] bytes.
        provider: String,
        /// Its name, which means something to the provider alone.
        name: Vec<u8>,
    },
    /// The sender has no endpoints for other hosts, and why.
    Without {
        /// At most [`REASON_BYTES_MAX`] bytes.
        reason: String,
    },
    /// The sender has tried the path to the receiver. The reason is empty if data came back.
    Tried {
        /// At most [`REASON_BYTES_MAX`] bytes.
        reason: String,
    },
}

mod kind {
    pub const ASK: u8 = 1;
    pub const AT: u8 = 2;
    pub const WITHOUT: u8 = 3;
    pub const TRIED: u8 = 4;
}

impl Trial {
    /// Parses a message; `None` if it is none.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (kind, body) = message.split_first()?;
        let reason = || {
            let text = std::str::from_utf8(body).ok().filter(|_| body.len() <= REASON_BYTES_MAX)?;
            (!text.chars().any(char::is_control)).then(|| text.to_owned())
        };
        Some(match *kind {
            kind::ASK if body.is_empty() => Self::Ask,
            kind::AT => {
                let (length, rest) = body.split_first()?;
                let (provider, name) = rest.split_at_checked(usize::from(*length))?;
                let provider = std::str::from_utf8(provider).ok()?;
                let is_word = provider.len() <= PROVIDER_BYTES_MAX
                    && provider.chars().all(|sign| sign.is_ascii_graphic());
                if !is_word || name.is_empty() || name.len() > NAME_BYTES_MAX {
                    return None;
                }
                Self::At { provider: provider.to_owned(), name: name.to_vec() }
            }
            kind::WITHOUT => Self::Without { reason: reason()? },
            kind::TRIED => Self::Tried { reason: reason()? },
            _ => return None,
        })
    }

    /// Encodes the message. Cuts what is too long.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let cut = |text: &str, most| text.as_bytes()[..text.floor_char_boundary(most)].to_vec();
        match self {
            Self::Ask => vec![kind::ASK],
            Self::At { provider, name } => {
                let provider = cut(provider, PROVIDER_BYTES_MAX);
                let length = u8::try_from(provider.len()).unwrap_or(0);
                let name = &name[..name.len().min(NAME_BYTES_MAX)];
                [&[kind::AT, length], &provider[..], name].concat()
            }
            Self::Without { reason } => {
                [vec![kind::WITHOUT], cut(reason, REASON_BYTES_MAX)].concat()
            }
            Self::Tried { reason } => [vec![kind::TRIED], cut(reason, REASON_BYTES_MAX)].concat(),
        }
    }
}

/// Entry for fuzzing: checks that any bytes that parse are what their message encodes to.
///
/// # Panics
/// When the check fails.
pub fn fuzz_parse(bytes: &[u8]) {
    if let Some(message) = Trial::parse(bytes) {
        assert_eq!(message.emit(), bytes, "the encoded message is the same");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_message() -> impl Strategy<Value = Trial> {
        prop_oneof![
            Just(Trial::Ask),
            ("[a-z;_]{0,60}", prop::collection::vec(any::<u8>(), 1..=NAME_BYTES_MAX))
                .prop_map(|(provider, name)| Trial::At { provider, name }),
            "[a-zé ]{0,60}".prop_map(|reason| Trial::Without { reason }),
            "[a-zé ]{0,60}".prop_map(|reason| Trial::Tried { reason }),
        ]
    }

    proptest! {
        #[test]
        fn an_encoded_message_parses_to_the_same(message in any_message()) {
            prop_assert_eq!(Trial::parse(&message.emit()), Some(message));
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            fuzz_parse(&bytes);
        }
    }

    #[test]
    fn what_is_too_long_or_could_disturb_a_terminal_is_refused() {
        let tried = |reason: &str| [&[4], reason.as_bytes()].concat();
        assert!(Trial::parse(&tried(&"x".repeat(REASON_BYTES_MAX))).is_some());
        assert_eq!(Trial::parse(&tried(&"x".repeat(REASON_BYTES_MAX + 1))), None);
        assert_eq!(Trial::parse(&tried("\x1b[2J")), None);
        let cut = Trial::Tried { reason: "é".repeat(REASON_BYTES_MAX) }.emit();
        assert_eq!(cut.len(), 1 + REASON_BYTES_MAX);
        for wrong in [&[2][..], &[2, 3, b'n'], &[2, 1, b'n'], &[2, 1, b'\n', 7]] {
            assert_eq!(Trial::parse(wrong), None, "{wrong:?}");
        }
    }
}
