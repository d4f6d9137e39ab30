//! Paths inside a tree: relative, of any bytes, and never out of it.

use std::fmt;

use thiserror::Error;

/// Most bytes of a path, as the kernel has it (`PATH_MAX`, with its end).
pub const PATH_BYTES_MAX: usize = 4_095;
/// Most bytes of one name.
pub const NAME_BYTES_MAX: usize = 255;

/// Why bytes are no path inside a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidPath {
    /// It has more bytes than the kernel takes.
    #[error("the path has more than {PATH_BYTES_MAX} bytes")]
    TooLong,
    /// A name is empty, `.`, `..`, too long, or has a byte that no name has.
    #[error("a name in the path is none that a directory may have")]
    Name,
}

/// A path inside a tree: names between slashes, or empty for the top itself. No name is `.` or
/// `..`, so a path alone does not lead out; links are the driver's to refuse.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreePath(Vec<u8>);

/// Whether bytes may be the name of an entry of a directory.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    let is_sound = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    is_sound && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

impl TreePath {
    /// A path of these bytes.
    ///
    /// # Errors
    /// [`InvalidPath`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, InvalidPath> {
        let bytes = bytes.into();
        if bytes.len() > PATH_BYTES_MAX {
            return Err(InvalidPath::TooLong);
        }
        if bytes.is_empty() || bytes.split(|byte| *byte == b'/').all(is_name) {
            return Ok(Self(bytes));
        }
        Err(InvalidPath::Name)
    }

    /// The path of a child.
    ///
    /// # Errors
    /// [`InvalidPath`].
    pub fn join(&self, name: &[u8]) -> Result<Self, InvalidPath> {
        if !is_name(name) {
            return Err(InvalidPath::Name);
        }
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self::new(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is the top itself.
    #[must_use]
    pub fn is_top(&self) -> bool {
        self.0.is_empty()
    }

    /// The parent's path and the name in it; `None` for the top.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => Some((Self(self.0[..at].to_vec()), &self.0[at + 1..])),
            None => Some((Self::default(), &self.0)),
        }
    }

    /// The path with its first name replaced. The top becomes the name itself.
    ///
    /// # Errors
    /// [`InvalidPath`].
    pub fn renamed(&self, first: &[u8]) -> Result<Self, InvalidPath> {
        let rest = self.0.iter().position(|byte| *byte == b'/').map_or(&[][..], |at| &self.0[at..]);
        Self::new([first, rest].concat())
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        f.write_str(&shown(&self.0))
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes of a name as a line for people: control characters and bytes that are no text are
/// escaped, so that a name cannot write to the terminal.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || character == '\\' {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_never_leads_out_of_its_tree() {
        for bad in ["/etc", "a/../b", "..", "a/.", "a//b", "a/", "a\0b"] {
            assert_eq!(TreePath::new(bad), Err(InvalidPath::Name), "{bad:?}");
        }
        assert_eq!(TreePath::new(vec![b'a'; 4_096]), Err(InvalidPath::TooLong));
        assert_eq!(TreePath::new(vec![b'a'; 256]), Err(InvalidPath::Name));
        assert!(TreePath::new(vec![b'\xff'; 255]).is_ok());
        assert!(TreePath::new("a\nb/...").is_ok());
    }

    #[test]
    fn parts_of_a_path_are_found() {
        let path = TreePath::new("a/b/c").expect("a path");
        assert_eq!(path.split(), Some((TreePath::new("a/b").expect("a path"), &b"c"[..])));
        assert_eq!(path.renamed(b"x").expect("a path").bytes(), b"x/b/c");
        assert_eq!(TreePath::default().renamed(b"x").expect("a path").bytes(), b"x");
        assert_eq!(TreePath::default().split(), None);
        assert_eq!(path.join(b"..").map(drop), Err(InvalidPath::Name));
    }

    #[test]
    fn names_are_shown_on_one_line() {
        assert_eq!(shown(b"a\nb\x1b[1m\xffe\xcc\x81"), "a\\nb\\u{1b}[1m\\xffe\u{301}");
    }
}
