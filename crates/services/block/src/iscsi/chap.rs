//! CHAP: an initiator, and the target, show that they know a secret without telling it.
//!
//! Source: RFC 1994, RFC 7143 section 12.1.3. MD5 is the algorithm that all initiators have;
//! SHA-256 is used where the initiator offers it (RFC 7143 registers 7 for it).

use md5::{Digest, Md5};
use sha2::Sha256;

use super::text;

/// Bytes of a challenge.
const CHALLENGE_BYTES: usize = 16;

/// Names and secrets of one initiator.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The initiator's name for CHAP.
    pub user: String,
    /// Its secret.
    pub secret: String,
    /// The target's name and secret, for initiators that want to know the target as well.
    pub target: Option<(String, String)>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Credentials({})", self.user)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    Md5,
    Sha256,
}

impl Algorithm {
    /// The best one of a list such as `7,5`.
    fn of_list(list: &str) -> Option<Self> {
        let has = |number: &str| list.split(',').any(|offered| offered.trim() == number);
        if has("7") {
            Some(Self::Sha256)
        } else if has("5") {
            Some(Self::Md5)
        } else {
            None
        }
    }

    const fn number(self) -> &'static str {
        match self {
            Self::Md5 => "5",
            Self::Sha256 => "7",
        }
    }

    fn response(self, id: u8, secret: &str, challenge: &[u8]) -> Vec<u8> {
        let parts = [&[id][..], secret.as_bytes(), challenge];
        match self {
            Self::Md5 => {
                parts.into_iter().fold(Md5::new(), |hash, part| hash.chain_update(part)).finalize()
                    [..]
                    .to_vec()
            }
            Self::Sha256 => parts
                .into_iter()
                .fold(Sha256::new(), |hash, part| hash.chain_update(part))
                .finalize()[..]
                .to_vec(),
        }
    }
}

/// Why a login is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A key is missing or wrong.
    Malformed,
    /// The secret is not the right one.
    Refused,
}

/// The target's side of an exchange.
#[derive(Debug)]
pub struct Chap {
    challenge: [u8; CHALLENGE_BYTES],
    id: u8,
    algorithm: Option<Algorithm>,
}

impl Chap {
    /// An exchange with random bytes that nobody can guess.
    pub fn new(random: [u8; 17]) -> Self {
        let [id, challenge @ ..] = random;
        Self { challenge, id, algorithm: None }
    }

    /// Answers `CHAP_A` with the challenge.
    ///
    /// # Errors
    /// No known algorithm is offered.
    pub fn challenge(&mut self, list: &str, answer: &mut Vec<u8>) -> Result<(), Failure> {
        let algorithm = Algorithm::of_list(list).ok_or(Failure::Refused)?;
        self.algorithm = Some(algorithm);
        text::add(answer, "CHAP_A", algorithm.number());
        text::add(answer, "CHAP_I", &self.id.to_string());
        text::add(answer, "CHAP_C", &text::hexadecimal(&self.challenge));
        Ok(())
    }

    /// Checks the initiator's response, and answers its challenge if it has one.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn check<'a>(
        &self,
        value: impl Fn(&str) -> Option<&'a str>,
        known: &[Credentials],
        answer: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let algorithm = self.algorithm.ok_or(Failure::Malformed)?;
        let user = value("CHAP_N").ok_or(Failure::Malformed)?;
        let response = value("CHAP_R").and_then(text::binary).ok_or(Failure::Malformed)?;
        let of_user = known.iter().find(|credentials| credentials.user == user);
        // A user that does not exist costs the same time as one that does.
        let secret = of_user.map_or("", |credentials| credentials.secret.as_str());
        let expected = algorithm.response(self.id, secret, &self.challenge);
        let differs = response.len() != expected.len()
            || response.iter().zip(&expected).fold(0, |sum, (a, b)| sum | (a ^ b)) != 0;
        let Some(credentials) = of_user.filter(|_| !differs) else {
            return Err(Failure::Refused);
        };
        let Some(id) = value("CHAP_I") else { return Ok(()) };
        let id = text::number(id).and_then(|id| u8::try_from(id).ok()).ok_or(Failure::Malformed)?;
        let challenge = value("CHAP_C").and_then(text::binary).ok_or(Failure::Malformed)?;
        // A challenge sent back would let the initiator use us to answer itself.
        if challenge.is_empty() || challenge == self.challenge {
            return Err(Failure::Refused);
        }
        let (name, secret) = credentials.target.as_ref().ok_or(Failure::Refused)?;
        text::add(answer, "CHAP_N", name);
        let response = algorithm.response(id, secret, &challenge);
        text::add(answer, "CHAP_R", &text::hexadecimal(&response));
        Ok(())
    }
}

/// The initiator's keys that answer a challenge by MD5.
pub fn answer(user: &str, secret: &str, id: &str, challenge: &str) -> Option<Vec<u8>> {
    let id = u8::try_from(text::number(id)?).ok()?;
    let response = Algorithm::Md5.response(id, secret, &text::binary(challenge)?);
    let mut keys = Vec::new();
    text::add(&mut keys, "CHAP_N", user);
    text::add(&mut keys, "CHAP_R", &text::hexadecimal(&response));
    Some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<Credentials> {
        vec![Credentials {
            user: "host".into(),
            secret: "of the initiator".into(),
            target: Some(("disk".into(), "of the target".into())),
        }]
    }

    fn answers(keys: &[(&'static str, String)], chap: &Chap) -> Result<Vec<u8>, Failure> {
        let mut answer = Vec::new();
        let value =
            |key: &str| keys.iter().find(|(own, _)| *own == key).map(|(_, value)| value.as_str());
        chap.check(value, &known(), &mut answer).map(|()| answer)
    }

    #[test]
    fn only_the_right_secret_is_admitted_and_the_target_answers_in_turn() {
        for (list, algorithm) in [("5", Algorithm::Md5), ("5,7", Algorithm::Sha256)] {
            let mut chap = Chap::new([9; 17]);
            chap.challenge(list, &mut Vec::new()).expect("known");
            let right = algorithm.response(9, "of the initiator", &[9; 16]);
            let user = ("CHAP_N", "host".to_owned());
            let keys = [user.clone(), ("CHAP_R", text::hexadecimal(&right))];
            assert_eq!(answers(&keys, &chap), Ok(Vec::new()));
            let wrong = algorithm.response(9, "of somebody else", &[9; 16]);
            let keys = [user.clone(), ("CHAP_R", text::hexadecimal(&wrong))];
            assert_eq!(answers(&keys, &chap), Err(Failure::Refused));
            let both = |challenge: &[u8]| {
                let challenge = text::hexadecimal(challenge);
                let response = text::hexadecimal(&right);
                let keys = [
                    user.clone(),
                    ("CHAP_R", response),
                    ("CHAP_I", "3".to_owned()),
                    ("CHAP_C", challenge),
                ];
                answers(&keys, &chap)
            };
            let own = text::hexadecimal(&algorithm.response(3, "of the target", &[4; 16]));
            let answer = String::from_utf8(both(&[4; 16]).expect("right")).expect("text");
            assert_eq!(answer, format!("CHAP_N=disk\0CHAP_R={own}\0"));
            assert_eq!(both(&[9; 16]), Err(Failure::Refused), "its own challenge");
        }
    }

    #[test]
    fn an_unknown_algorithm_or_user_is_refused() {
        let mut chap = Chap::new([1; 17]);
        assert_eq!(chap.challenge("6,8", &mut Vec::new()), Err(Failure::Refused));
        chap.challenge("5", &mut Vec::new()).expect("known");
        let response = Algorithm::Md5.response(1, "", &[1; 16]);
        let keys = [("CHAP_N", "nobody".to_owned()), ("CHAP_R", text::hexadecimal(&response))];
        assert_eq!(answers(&keys, &chap), Err(Failure::Refused));
        assert_eq!(answers(&keys[..1], &chap), Err(Failure::Malformed));
    }
}
