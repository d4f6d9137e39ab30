//! The identity of a node: an Ed25519 key pair, of which the others know the public half.

use std::fmt;

use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The public key of a node. Its TLS connections prove that it has the private one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity(pub [u8; 32]);

/// The first 8 bytes, which tell nodes apart for people.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A private key that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("no private key of a node; remove the file, and the host joins anew")]
pub struct InvalidIdentity;

/// The key pair of the own node.
pub struct OwnIdentity {
    document: Vec<u8>,
    identity: Identity,
}

impl fmt::Debug for OwnIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnIdentity({})", self.identity)
    }
}

impl OwnIdentity {
    /// A new key pair, by the system's source of randomness.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn generate() -> Result<Self, InvalidIdentity> {
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| InvalidIdentity)?;
        Self::of_document(document.as_ref())
    }

    /// The key pair in a PKCS#8 document.
    ///
    /// # Errors
    /// There is none in it.
    pub fn of_document(document: &[u8]) -> Result<Self, InvalidIdentity> {
        let pair = Ed25519KeyPair::from_pkcs8(document).map_err(|_| InvalidIdentity)?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| InvalidIdentity)?;
        Ok(Self { document: document.to_vec(), identity: Identity(public) })
    }

    /// The PKCS#8 document, which only the own user may read.
    #[must_use]
    pub fn document(&self) -> &[u8] {
        &self.document
    }

    /// The public half.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_the_same_after_it_was_kept() {
        let own = OwnIdentity::generate().expect("random bytes");
        let kept = OwnIdentity::of_document(own.document()).expect("a key pair");
        assert_eq!(kept.identity(), own.identity());
        assert_ne!(OwnIdentity::generate().expect("random bytes").identity(), own.identity());
        assert!(OwnIdentity::of_document(&own.document()[1..]).is_err());
        assert_eq!(own.identity().to_string().len(), 16);
        assert!(!format!("{own:?}").contains(&format!("{:?}", own.document())));
    }
}
