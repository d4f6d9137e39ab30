//! Which release this is.

/// The version of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit and its day; `None` in a build that was told none (`build.rs`).
pub const COMMIT: Option<&str> = option_env!("WEFT_COMMIT");

/// The text that `weft --version` prints behind the name.
pub fn shown() -> String {
    match COMMIT {
        Some(commit) => format!("{VERSION} ({commit})"),
        None => format!("{VERSION} (no commit known)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_first_and_the_commit_in_brackets() {
        let shown = shown();
        let rest = shown.strip_prefix(VERSION).expect("the version");
        assert!(rest.starts_with(" (") && rest.ends_with(')'), "{shown}");
    }
}
