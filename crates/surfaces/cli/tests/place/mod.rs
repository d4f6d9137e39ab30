//! A place for tests of the command: a directory, a library that is none, a control socket.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A directory with an empty library, and a control socket of its own.
pub struct Place {
    /// Where everything of a test is.
    pub directory: TempDir,
}

impl Place {
    /// A place of its own.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("libempty.so"), "").expect("written");
        Self { directory }
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("n.sock")
    }

    /// A call of `weft` that sees nothing of the machine's own configuration.
    pub fn weft(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("XDG_CONFIG_HOME", self.directory.path())
            .env("WEFT_DAEMON_SOCKET", self.socket())
            .env("WEFT_PRELOAD", self.directory.path().join("libempty.so"))
            .stdin(Stdio::null());
        command
    }

    /// The same without a daemon.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut line = vec!["run", "--socket-enable", "off"];
        line.extend(arguments);
        self.weft(&line).output().expect("weft starts")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The daemon of a test that failed in the middle.
        let _ = self.weft(&["down"]).stderr(Stdio::null()).status();
    }
}

/// The output of a program as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
