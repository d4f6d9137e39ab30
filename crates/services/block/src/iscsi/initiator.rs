//! The part of the formats that an initiator needs: keys, and the answer to a CHAP challenge.

use super::chap;

/// Adds a key to a request.
pub use super::text::add as text;

/// The keys of an answer; `None` when it is malformed.
#[must_use]
pub fn keys(data: &[u8]) -> Option<Vec<(String, String)>> {
    let keys = super::text::parse(data).ok()?;
    Some(keys.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// The initiator's side of CHAP.
#[derive(Clone, Copy, Debug)]
pub struct Chap;

impl Chap {
    /// The keys that answer a challenge by MD5; `None` when the challenge is malformed.
    #[must_use]
    pub fn answer(user: &str, secret: &str, id: &str, challenge: &str) -> Option<Vec<u8>> {
        chap::answer(user, secret, id, challenge)
    }
}
