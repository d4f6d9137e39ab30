//! Which paths are left out.
//!
//! A pattern is a glob: `*` and `?` do not match a slash, `**` does, `[…]` is a set. A pattern
//! without a slash is matched by the name, wherever it is. One with a slash in it is matched by the
//! path below the source's name; a slash in front changes nothing. One with a slash at its end
//! matches directories alone. These are rsync's rules for patterns without further marks.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use thiserror::Error;

use crate::path::TreePath;

/// A pattern that is none.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the pattern {pattern:?} is not valid: {why}")]
pub struct InvalidPattern {
    /// The pattern.
    pub pattern: String,
    /// Why.
    pub why: String,
}

/// Patterns of what is left out.
#[derive(Clone, Debug, Default)]
pub struct Excludes {
    names: GlobSet,
    directories: GlobSet,
    paths: GlobSet,
    paths_of_directories: GlobSet,
    /// Whether paths begin below the source, because what is in it is copied and not itself.
    is_bare: bool,
}

impl Excludes {
    /// The patterns.
    ///
    /// # Errors
    /// [`InvalidPattern`].
    pub fn new(patterns: &[String]) -> Result<Self, InvalidPattern> {
        let invalid = |pattern: &str, why: globset::Error| InvalidPattern {
            pattern: pattern.to_owned(),
            why: why.kind().to_string(),
        };
        let mut sets = [(); 4].map(|()| GlobSetBuilder::new());
        for pattern in patterns {
            let for_directories = pattern.len() > 1 && pattern.ends_with('/');
            let core = pattern.trim_end_matches('/');
            let is_path = core.contains('/');
            let core = core.trim_start_matches('/');
            let mut glob = GlobBuilder::new(core);
            let glob = glob.literal_separator(true).backslash_escape(true).build();
            let glob = glob.map_err(|why| invalid(pattern, why))?;
            sets[usize::from(is_path) * 2 + usize::from(for_directories)].add(glob);
        }
        let [names, directories, paths, paths_of_directories] =
            sets.map(|set| set.build().map_err(|why| invalid("", why)));
        Ok(Self {
            names: names?,
            directories: directories?,
            paths: paths?,
            paths_of_directories: paths_of_directories?,
            is_bare: false,
        })
    }

    /// The same for paths that begin below the source.
    #[must_use]
    pub fn bare(mut self, is_bare: bool) -> Self {
        self.is_bare = is_bare;
        self
    }

    /// Whether a path is left out. Its first name is that of the source, and is not matched, unless
    /// paths begin below it ([`Excludes::bare`]).
    #[must_use]
    pub fn excludes(&self, path: &TreePath, is_directory: bool) -> bool {
        let bytes = path.bytes();
        if self.is_bare {
            return !bytes.is_empty() && self.excludes_below(bytes, is_directory);
        }
        let Some(slash) = bytes.iter().position(|byte| *byte == b'/') else { return false };
        self.excludes_below(&bytes[slash + 1..], is_directory)
    }

    fn excludes_below(&self, below: &[u8], is_directory: bool) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let name = below.rsplit(|byte| *byte == b'/').next().unwrap_or(below);
        let (name, below) = (std::ffi::OsStr::from_bytes(name), std::ffi::OsStr::from_bytes(below));
        let always = self.names.is_match(name) || self.paths.is_match(below);
        let for_directories =
            || self.directories.is_match(name) || self.paths_of_directories.is_match(below);
        always || (is_directory && for_directories())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_or_paths() {
        let patterns = ["*.o", "cache/", "/build", "a/**/z", "x/?.c"].map(str::to_owned);
        let excludes = Excludes::new(&patterns).expect("patterns");
        let out = |path: &str, is_directory| {
            excludes.excludes(&TreePath::new(path).expect("a path"), is_directory)
        };
        assert!(out("top/main.o", false) && out("top/deep/main.o", false));
        assert!(!out("main.o", false), "a source itself is never left out");
        assert!(out("top/cache", true) && !out("top/cache", false));
        assert!(out("top/build", true) && !out("top/deep/build", true));
        assert!(out("top/a/b/c/z", false) && out("top/x/y.c", false) && !out("top/x/yy.c", false));
        let bare = excludes.clone().bare(true);
        assert!(bare.excludes(&TreePath::new("main.o").expect("a path"), false));
        assert!(Excludes::new(&["[".to_owned()]).is_err());
    }
}
