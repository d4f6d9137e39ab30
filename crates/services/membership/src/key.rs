//! The key of a fabric: its file, and the proof that a daemon knows it.
//!
//! A proof is an HMAC over the exporter of the TLS connection, the role and the identity of the one
//! who proves. So it is worth nothing on another connection, in the other direction, or for another
//! node.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;

use crate::identity::Identity;

/// The first word of a line with a key.
const PREFIX: &str = "weft-fabric-key-1";
/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Most keys in a file.
const KEYS_MAX: usize = 8;

/// The end of a connection that proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It dialled.
    Dialer,
    /// It listens.
    Listener,
}

impl Role {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Dialer => b"weft fabric 1 dialer",
            Self::Listener => b"weft fabric 1 listener",
        }
    }

    /// The role of the other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Listener,
            Self::Listener => Self::Dialer,
        }
    }
}

/// Why a text is no key file.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum InvalidKey {
    /// A line is no key.
    #[error("line {line} is no fabric key; `weft fabric key > FILE` makes one")]
    Line {
        /// Its number, from 1.
        line: usize,
    },
    /// There is no key at all.
    #[error("there is no fabric key in it; `weft fabric key > FILE` makes one")]
    None,
    /// There are more keys than a rotation needs.
    #[error("there are more than {KEYS_MAX} fabric keys in it; remove old ones")]
    TooMany,
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    Randomness,
}

/// The keys of a fabric that a daemon knows.
#[derive(Clone)]
pub struct FabricKeys {
    keys: Vec<hmac::Key>,
}

impl fmt::Debug for FabricKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fabric keys", self.keys.len())
    }
}

/// A line with a new key.
///
/// # Errors
/// The system gives no random bytes.
pub fn new_key_line() -> Result<String, InvalidKey> {
    let mut key = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| InvalidKey::Randomness)?;
    Ok(format!("{PREFIX} {}", STANDARD.encode(key)))
}

impl FabricKeys {
    /// The keys of a file: one a line, between comments (`#`) and empty lines.
    ///
    /// # Errors
    /// A line is neither, or there are none or too many.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = line
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.strip_prefix(' '))
                .and_then(|rest| STANDARD.decode(rest.trim()).ok())
                .filter(|key| key.len() == KEY_BYTES)
                .ok_or(InvalidKey::Line { line: number + 1 })?;
            keys.push(hmac::Key::new(hmac::HMAC_SHA256, &key));
        }
        match keys.len() {
            0 => Err(InvalidKey::None),
            1..=KEYS_MAX => Ok(Self { keys }),
            _ => Err(InvalidKey::TooMany),
        }
    }

    /// The one key of this secret.
    #[must_use]
    pub fn of_secret(secret: &[u8; KEY_BYTES]) -> Self {
        Self { keys: vec![hmac::Key::new(hmac::HMAC_SHA256, secret)] }
    }

    /// The proof by the first key that `identity` has this role on the connection with this
    /// exporter.
    #[must_use]
    pub fn prove(&self, exporter: &[u8; 32], role: Role, identity: &Identity) -> [u8; 32] {
        let tag = hmac::sign(&self.keys[0], &proved(exporter, role, identity));
        tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }

    /// Whether a proof is by one of the keys.
    #[must_use]
    pub fn accept(
        &self,
        proof: &[u8; 32],
        exporter: &[u8; 32],
        role: Role,
        identity: &Identity,
    ) -> bool {
        let proved = proved(exporter, role, identity);
        self.keys.iter().any(|key| hmac::verify(key, &proved, proof).is_ok())
    }
}

fn proved(exporter: &[u8; 32], role: Role, identity: &Identity) -> Vec<u8> {
    [role.label(), exporter, &identity.0].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_on_its_connection_for_its_role_and_identity_alone() {
        let keys = FabricKeys::parse(&new_key_line().expect("random")).expect("a key");
        let (exporter, own) = ([1; 32], Identity([2; 32]));
        let proof = keys.prove(&exporter, Role::Dialer, &own);
        assert!(keys.accept(&proof, &exporter, Role::Dialer, &own));
        assert!(!keys.accept(&proof, &exporter, Role::Listener, &own));
        assert!(!keys.accept(&proof, &[3; 32], Role::Dialer, &own));
        assert!(!keys.accept(&proof, &exporter, Role::Dialer, &Identity([4; 32])));
        let others = FabricKeys::parse(&new_key_line().expect("random")).expect("a key");
        assert!(!others.accept(&proof, &exporter, Role::Dialer, &own));
    }

    #[test]
    fn keys_are_rotated_step_by_step_without_a_moment_at_which_two_nodes_disagree() {
        let [old, new] = [(); 2].map(|()| new_key_line().expect("random"));
        let steps = [
            old.clone(),
            format!("{old}\n# the next one\n{new}\n"),
            format!("{new}\n\n{old}"),
            new.clone(),
        ];
        let steps = steps.map(|text| FabricKeys::parse(&text).expect("keys"));
        let (exporter, own) = ([1; 32], Identity([2; 32]));
        for pair in steps.windows(2) {
            for (prover, judge) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                let proof = prover.prove(&exporter, Role::Dialer, &own);
                assert!(judge.accept(&proof, &exporter, Role::Dialer, &own));
            }
        }
        let proof = steps[3].prove(&exporter, Role::Dialer, &own);
        assert!(!steps[0].accept(&proof, &exporter, Role::Dialer, &own));
    }

    #[test]
    fn a_file_that_is_no_key_file_says_which_line_is_wrong() {
        let key = new_key_line().expect("random");
        assert_eq!(FabricKeys::parse("# none\n").err(), Some(InvalidKey::None));
        for wrong in ["secret", PREFIX, "weft-fabric-key-1 AAAA", "weft-fabric-key-2 AAAA"] {
            let text = format!("{key}\n{wrong}");
            let error = FabricKeys::parse(&text).err();
            assert_eq!(error, Some(InvalidKey::Line { line: 2 }), "{wrong}");
        }
        let many = vec![key; KEYS_MAX + 1].join("\n");
        assert_eq!(FabricKeys::parse(&many).err(), Some(InvalidKey::TooMany));
    }
}
