//! The users of a server: who has which key, which directory is theirs, and whether they may write.
//!
//! A client shows no name. The key that it proves says which user it is, so no two users have the
//! same one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::error::CopyError;
use crate::root::Root;
use crate::secure::Key;

/// A user.
#[derive(Clone, Debug)]
pub(crate) struct User {
    /// The name, for people.
    pub name: String,
    pub key: Key,
    /// The directory that this user does not leave.
    pub root: Arc<Root>,
    pub is_read_only: bool,
}

/// A user as the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    /// Lines of `weft fabric key`; more than one while a key is replaced.
    key: String,
    /// The directory, below that of the server; without it that of the server.
    #[serde(default)]
    root: String,
    #[serde(default)]
    read_only: bool,
}

/// Reads the text of a file of users. Each one's directory has to be there.
pub(crate) fn parse(text: &str, top: &Root) -> Result<Vec<User>, CopyError> {
    let failed = |why: String| CopyError::place("the file of users", why);
    let written: BTreeMap<String, Written> =
        toml::from_str(text).map_err(|why| failed(why.to_string()))?;
    if written.is_empty() {
        return Err(failed("there is no user in it".to_owned()));
    }
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    let users = written.into_iter().map(|(name, written)| {
        let failed = |why: String| failed(format!("user {name}: {why}"));
        let key = Key::of_text(&written.key).map_err(|why| failed(why.to_string()))?;
        for line in written.key.lines().filter(|line| !line.trim_start().starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let owner = owners.entry(words.concat()).or_insert_with(|| name.clone());
            if !words.is_empty() && *owner != name {
                return Err(failed(format!("{owner} has the same key")));
            }
        }
        let root = top.below(written.root.trim_end_matches('/').as_bytes());
        let root = root.map_err(|why| failed(format!("the directory {}: {why}", written.root)))?;
        Ok(User { name, key, root: Arc::new(root), is_read_only: written.read_only })
    });
    users.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "weft-fabric-key-1 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    const TWO: &str = "weft-fabric-key-1 AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

    fn parsed(text: &str) -> Result<Vec<User>, String> {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(place.path().join("in")).expect("a directory");
        std::os::unix::fs::symlink("/", place.path().join("out")).expect("a link");
        let top = Root::open(place.path()).expect("it is there");
        parse(text, &top).map_err(|why| why.to_string())
    }

    #[test]
    fn each_user_has_a_key_a_directory_and_rights() {
        let text = format!(
            "[ann]\nkey = \"{ONE}\"\n[bob]\nkey = \"{TWO}\"\nroot = \"in/\"\nread-only = true\n"
        );
        let users = parsed(&text).expect("it is sound");
        let told: Vec<(&str, bool)> =
            users.iter().map(|user| (user.name.as_str(), user.is_read_only)).collect();
        assert_eq!(told, [("ann", false), ("bob", true)]);
    }

    #[test]
    fn a_file_that_is_not_sound_names_the_user_and_the_reason() {
        let cases = [
            (String::new(), "no user"),
            ("[ann]\nkey = \"secret\"\n".to_owned(), "user ann"),
            (format!("[ann]\nkey = \"{ONE}\"\nright = 1\n"), "right"),
            (format!("[ann]\nkey = \"{ONE}\"\n[bob]\nkey = \" {ONE}\"\n"), "user bob: ann has"),
            (format!("[ann]\nkey = \"{ONE}\"\nroot = \"none\"\n"), "user ann: the directory none"),
            (format!("[ann]\nkey = \"{ONE}\"\nroot = \"../up\"\n"), "the directory ../up"),
            (format!("[ann]\nkey = \"{ONE}\"\nroot = \"/etc\"\n"), "the directory /etc"),
            (format!("[ann]\nkey = \"{ONE}\"\nroot = \"out/etc\"\n"), "the directory out/etc"),
        ];
        for (text, why) in cases {
            let told = parsed(&text).expect_err(&text);
            assert!(told.contains(why), "{told}");
        }
    }
}
