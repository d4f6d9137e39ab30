//! What a program in a network namespace sees of the machine beside its network: its own host name,
//! names of other hosts, and the devices of its namespace under `/sys`.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::mount::{mount, mount_bind, mount_change, unmount};
use rustix::thread::UnshareFlags;

use crate::namespace::Namespace;
use crate::{NetdevError, sys};

/// Moves the calling thread into `namespace`, calls the machine `host`, and puts `hosts` in the
/// place of `/etc/hosts`: for good, and for programs that it becomes or starts. To be called while
/// the process has one thread.
///
/// # Errors
/// [`NetdevError`].
pub fn enter(namespace: &Namespace, host: &str, hosts: &Path) -> Result<(), NetdevError> {
    let failed = |what: &str, errno| {
        let what = format!("{what} for {}", namespace.name());
        NetdevError::from_call(what, "CAP_SYS_ADMIN", errno)
    };
    namespace.enter_for_good().map_err(|errno| failed("entering the network namespace", errno))?;
    sys::leave(UnshareFlags::NEWNS | UnshareFlags::NEWUTS)
        .map_err(|errno| failed("a view of its own of the machine", errno))?;
    rustix::system::sethostname(host.as_bytes()).map_err(|errno| failed("the host name", errno))?;
    // What is mounted here is nobody else's business.
    let below = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", below).map_err(|errno| failed("mounts of its own", errno))?;
    mount_bind(hosts, "/etc/hosts").map_err(|errno| failed("/etc/hosts", errno))?;
    // Without it programs that look there see the devices of the machine; few do.
    let _ = unmount("/sys", UnmountFlags::DETACH);
    match mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None) {
        Ok(()) | Err(Errno::PERM | Errno::BUSY) => Ok(()),
        Err(errno) => Err(failed("/sys", errno)),
    }
}
