//! Named network namespaces. They are kept where `ip netns` keeps them, so that weft and `ip netns
//! exec` share them.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::mount::{mount_bind, mount_bind_recursive, mount_change, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::{NetdevError, sys};

/// The directory with a file for each namespace.
const DIRECTORY: &str = "/run/netns";

/// A network namespace with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// The namespace `name`. It need not exist yet.
    ///
    /// # Errors
    /// [`NetdevError::Name`].
    pub fn named(name: &str) -> Result<Self, NetdevError> {
        let is_invalid =
            |letter: char| letter == '/' || letter.is_whitespace() || letter.is_control();
        if name.is_empty() || name.len() > 200 || name.starts_with('.') || name.contains(is_invalid)
        {
            let why =
                "it may have letters, digits and signs other than /, and must not begin with a dot";
            return Err(NetdevError::Name {
                name: name.to_owned(),
                what: "a network namespace",
                why,
            });
        }
        Ok(Self { name: name.to_owned() })
    }

    /// The namespace's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file on which the namespace is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// True if the file exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    /// True if the file exists, but no namespace is mounted on it: the process that made or removed
    /// the namespace died halfway, or the mount is gone.
    #[must_use]
    pub fn is_name_alone(&self) -> bool {
        /// From `linux/magic.h`.
        const NSFS_MAGIC: i64 = 0x6e73_6673;
        rustix::fs::statfs(self.path()).is_ok_and(|status| status.f_type != NSFS_MAGIC)
    }

    /// The inode of the namespace. It identifies the namespace during its lifetime.
    #[must_use]
    pub fn inode(&self) -> Option<u64> {
        rustix::fs::stat(self.path()).ok().map(|status| status.st_ino)
    }

    /// True if the calling thread is in the namespace.
    #[must_use]
    pub fn is_own(&self) -> bool {
        let own = rustix::fs::stat("/proc/thread-self/ns/net").ok().map(|status| status.st_ino);
        own.is_some() && own == self.inode()
    }

    /// Creates the namespace and turns its loopback interface on.
    ///
    /// # Errors
    /// [`NetdevError`]; also when the namespace exists already.
    pub fn create(&self) -> Result<(), NetdevError> {
        let failed = |what: &str, errno| {
            NetdevError::from_call(format!("{what} {}", self.name), "CAP_SYS_ADMIN", errno)
        };
        let of_file = |error: std::io::Error| {
            failed(
                "making the file of the network namespace",
                Errno::from_io_error(&error).unwrap_or(Errno::IO),
            )
        };
        match fs::create_dir(DIRECTORY) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(of_file(error)),
            _ => {}
        }
        share(Path::new(DIRECTORY))
            .map_err(|errno| failed("making a shared mount for the namespace", errno))?;
        let path = self.path();
        OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path).map_err(of_file)?;
        let made = in_thread(|| {
            sys::leave(UnshareFlags::NEWNET)?;
            mount_bind("/proc/thread-self/ns/net", &path)
        });
        if let Err(errno) = made {
            let _ = fs::remove_file(&path);
            return Err(failed("making the network namespace", errno));
        }
        self.enter(|| crate::interface::Interface::named("lo")?.set_up(true))?
    }

    /// Removes the namespace's name. The namespace itself ends with the last program in it.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn remove(&self) -> Result<(), NetdevError> {
        let path = self.path();
        let failed = |errno| {
            let what = format!("removing the network namespace {}", self.name);
            NetdevError::from_call(what, "CAP_SYS_ADMIN", errno)
        };
        match unmount(&path, UnmountFlags::DETACH) {
            // Nothing is mounted: the process that made or removed the namespace died halfway.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
            }
            _ => Ok(()),
        }
    }

    /// Runs `work` in a new thread that is in the namespace.
    ///
    /// # Errors
    /// [`NetdevError`] when there is no such namespace, or the caller may not enter it.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetdevError> {
        let moved = in_thread(|| {
            self.enter_for_good()?;
            Ok(work())
        });
        moved.map_err(|errno| {
            let what = format!("entering the network namespace {}", self.name);
            NetdevError::from_call(what, "CAP_SYS_ADMIN", errno)
        })
    }

    /// Moves the calling thread into the namespace permanently.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn enter_for_good(&self) -> Result<(), Errno> {
        let file = File::open(self.path())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
    }
}

/// Makes the directory a shared mount of its own, as `ip netns add` does if it is none yet. Done
/// later, it would cover the namespaces mounted before.
fn share(directory: &Path) -> Result<(), Errno> {
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match mount_change(directory, shared) {
        Err(Errno::INVAL) => {
            mount_bind_recursive(directory, directory)?;
            mount_change(directory, shared)
        }
        result => result,
    }
}

/// Runs `work` in a new thread that is in the network namespace `namespace`.
pub(crate) fn within<T: Send>(
    namespace: &OwnedFd,
    work: impl FnOnce() -> Result<T, Errno> + Send,
) -> Result<T, Errno> {
    in_thread(|| {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    })
}

fn in_thread<T: Send>(work: impl FnOnce() -> Result<T, Errno> + Send) -> Result<T, Errno> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .spawn_scoped(scope, work)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
