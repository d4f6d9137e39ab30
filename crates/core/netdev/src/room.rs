//! The view of the machine that a program in a network namespace gets beside its network: a host
//! name, a hosts file, and the devices of the namespace under `/sys`.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::mount::{mount, mount_bind, mount_change, unmount};
use rustix::thread::UnshareFlags;

use crate::namespace::Namespace;
use crate::{NetdevError, sys};

/// Whether programs in a network namespace see its hosts file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum HostsFile {
    /// It is at `/etc/hosts`.
    Mounted,
    /// The machine has no `/etc/hosts` over which it could be mounted.
    NoPlace,
}

/// Moves the calling thread into `namespace`, sets the host name to `host`, and mounts `hosts` over
/// `/etc/hosts`. This is permanent, and programs that the thread starts or becomes inherit it. Call
/// it while the process has one thread.
///
/// # Errors
/// [`NetdevError`].
pub fn enter(namespace: &Namespace, host: &str, hosts: &Path) -> Result<HostsFile, NetdevError> {
    let failed = |what: &str, errno| {
        let what = format!("{what} for {}", namespace.name());
        NetdevError::from_call(what, "CAP_SYS_ADMIN", errno)
    };
    namespace.enter_for_good().map_err(|errno| failed("entering the network namespace", errno))?;
    sys::leave(UnshareFlags::NEWNS | UnshareFlags::NEWUTS)
        .map_err(|errno| failed("making new mount and UTS namespaces", errno))?;
    rustix::system::sethostname(host.as_bytes())
        .map_err(|errno| failed("setting the host name", errno))?;
    // The mounts made here must not propagate to the rest of the machine.
    let below = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", below).map_err(|errno| failed("making the mounts private", errno))?;
    let hosts_file = match mount_bind(hosts, "/etc/hosts") {
        Ok(()) => HostsFile::Mounted,
        Err(Errno::NOENT) if !Path::new("/etc/hosts").exists() => HostsFile::NoPlace,
        Err(errno) => return Err(failed("mounting /etc/hosts", errno)),
    };
    // Not fatal: without it, programs that read `/sys` see the machine's devices, and few read it.
    let _ = unmount("/sys", UnmountFlags::DETACH);
    match mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None) {
        Ok(()) | Err(Errno::PERM | Errno::BUSY) => Ok(hosts_file),
        Err(errno) => Err(failed("mounting /sys", errno)),
    }
}
