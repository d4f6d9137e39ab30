//! Several users on one machine: copies of weft that all users can read, and commands that run as a
//! given user.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Node, Skip, program};

/// An ordinary user.
pub const ONE: u32 = 65_534;
/// Another ordinary user.
pub const OTHER: u32 = 54_321;

/// Copies of weft, its library and the scripts, which all users can read.
#[derive(Debug)]
pub struct Shared {
    /// `setpriv`, which changes the user.
    pub setpriv: PathBuf,
    /// The interpreter of the script.
    pub python: PathBuf,
    /// The node.
    pub node: Node,
}

impl Shared {
    /// Copies the files into the directory of `node`.
    ///
    /// # Errors
    /// [`Skip`] when this process cannot change its user.
    ///
    /// # Panics
    /// When a file cannot be copied.
    pub fn new(node: Node) -> Result<Self, Skip> {
        if !rustix::process::geteuid().is_root() {
            return Err(Skip("only root can become another user".into()));
        }
        let (setpriv, python) = (program::find("setpriv")?, program::python()?);
        let weft = program::weft();
        let library = weft.with_file_name("libweft_preload.so");
        let (script, hostile) = (program::script("exchange.py"), program::script("hostile.py"));
        let imposter = program::script("imposter.py");
        for (file, name) in [
            (weft, "weft"),
            (&library, "libweft_preload.so"),
            (&script, "x.py"),
            (&hostile, "hostile.py"),
            (&imposter, "imposter.py"),
        ] {
            let copy = node.directory().join(name);
            std::fs::copy(file, &copy).expect("room on the disk");
            open_to_all(&copy);
        }
        let shared = Self { setpriv, python, node };
        let probe = shared.become_user(ONE).arg(&shared.python).args(["-c", "0"]).output();
        if !probe.is_ok_and(|output| output.status.success()) {
            return Err(Skip("another user cannot run python here".into()));
        }
        Ok(shared)
    }

    /// The beginning of a command that runs as `user`.
    #[must_use]
    pub fn become_user(&self, user: u32) -> Command {
        let mut command = self.node.plain(&self.setpriv);
        command.args(as_user(user)).arg("--");
        command
    }

    /// The path of a copied file.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.node.directory().join(name)
    }

    /// The script `exchange.py` as `user` under weft, with the daemon at `socket`.
    #[must_use]
    pub fn script(&self, user: u32, socket: &Path, words: &[&str]) -> Command {
        let mut command = self.become_user(user);
        command.arg(self.file("weft")).args(["run", "--stats", "--"]);
        command.arg(&self.python).arg(self.file("x.py")).args(words);
        command.env("WEFT_DAEMON_SOCKET", socket).env("HOME", "/");
        command
    }

    /// Makes a directory that belongs to `user`.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn home(&self, user: u32) -> PathBuf {
        let home = self.file(&format!("home{user}"));
        std::fs::create_dir(&home).expect("the test's directory");
        chown(&home, Some(user), Some(user)).expect("root may");
        home
    }
}

/// The arguments with which setpriv becomes `user`.
#[must_use]
pub fn as_user(user: u32) -> [String; 3] {
    [format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]
}

fn open_to_all(path: &Path) {
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("our own file");
}
