//! Metadata of entries: read at the source, given to what was made at the target.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chmodat, chownat, fchmod, fchown, flistxattr, fsetxattr, fstat, futimens, lgetxattr,
    llistxattr, lsetxattr, openat, utimensat,
};
use rustix::io::Errno;
use weft_transfer::{
    ATTRIBUTES_BYTES_MAX, ATTRIBUTES_MAX, Attribute, Code, FileId, Lost, Metadata, Moment,
};

use crate::error::code_of;
use crate::root::by_descriptor;

/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

fn moment(seconds: i64, nanoseconds: u64) -> Moment {
    Moment { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or(0).min(999_999_999) }
}

/// Which bytes a file has.
pub(crate) fn file_id(stat: &Stat) -> FileId {
    FileId {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: moment(stat.st_mtime, stat.st_mtime_nsec),
        changed: moment(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// Whether two looks at a file saw the same bytes. When it was changed in another way, by a link
/// to it for example, is not looked at.
pub(crate) fn has_same_bytes(one: &FileId, other: &FileId) -> bool {
    let key = |id: &FileId| (id.device, id.inode, id.size, id.modified);
    key(one) == key(other)
}

/// The properties of an entry, without its attributes.
pub(crate) fn metadata_of(stat: &Stat) -> Metadata {
    Metadata {
        mode: stat.st_mode & PERMISSIONS,
        uid: stat.st_uid,
        gid: stat.st_gid,
        accessed: moment(stat.st_atime, stat.st_atime_nsec),
        modified: moment(stat.st_mtime, stat.st_mtime_nsec),
        attributes: Vec::new(),
    }
}

/// Whether this process may keep attributes of a name. Those of the system are other things in
/// disguise, or not for anybody but root.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"system.posix_acl_")
        || (rustix::process::geteuid().is_root()
            && (name.starts_with(b"trusted.") || name.starts_with(b"security.")))
}

/// The extended attributes of an entry of a directory, which is not followed. Empty where there
/// are none or the file system has none.
pub(crate) fn attributes(directory: &OwnedFd, name: &[u8]) -> Result<Vec<Attribute>, Errno> {
    let path = by_descriptor(directory, name);
    let mut names = [0; 1_024];
    let count = match llistxattr(path.as_slice(), &mut names) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Ok(count) => count,
        Err(Errno::RANGE) => return long_list(&path),
        Err(error) => return Err(error),
    };
    values(&path, &names[..count])
}

fn long_list(path: &[u8]) -> Result<Vec<Attribute>, Errno> {
    let mut names = vec![0; 65_536];
    let count = llistxattr(path, &mut names)?;
    values(path, &names[..count])
}

fn values(path: &[u8], names: &[u8]) -> Result<Vec<Attribute>, Errno> {
    let (mut all, mut bytes) = (Vec::new(), 0);
    let mut value = vec![0; 65_536];
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_kept(name)) {
        match lgetxattr(path, name, &mut value) {
            Ok(length) => {
                bytes += length;
                if bytes > ATTRIBUTES_BYTES_MAX || all.len() == ATTRIBUTES_MAX {
                    return Err(Errno::TOOBIG);
                }
                all.push(Attribute { name: name.to_vec(), value: value[..length].to_vec() });
            }
            // It was removed meanwhile.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn times(metadata: &Metadata) -> Timestamps {
    let one =
        |moment: Moment| Timespec { tv_sec: moment.seconds, tv_nsec: moment.nanoseconds.into() };
    Timestamps { last_access: one(metadata.accessed), last_modification: one(metadata.modified) }
}

/// Attributes that could not be kept are told once, and first the one that weighs most.
#[derive(Default)]
struct Losses(Lost);

impl Losses {
    fn note(&mut self, what: &str, result: Result<(), Errno>) {
        if let (Err(error), None) = (result, &self.0) {
            let code = match error {
                Errno::NOTSUP | Errno::INVAL => Code::Unsupported,
                error => code_of(error, Code::Write),
            };
            self.0 = Some((code, format!("{what} could not be kept: {error}")));
        }
    }
}

/// An owner can be given away by root alone. As with cp, it is no trouble for others.
fn forgiven(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::PERM | Errno::INVAL) if !rustix::process::geteuid().is_root() => Ok(()),
        result => result,
    }
}

fn owner(metadata: &Metadata) -> (Uid, Gid) {
    (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid))
}

/// Gives an open file or directory its metadata. The owner comes first, for a change of it takes
/// capabilities and set-user-ID bits away; times come last.
pub(crate) fn give(file: &OwnedFd, metadata: &Metadata) -> Lost {
    let mut losses = Losses::default();
    let (uid, gid) = owner(metadata);
    let changed = fchown(file, Some(uid), Some(gid));
    // A user may give a file to a group of its own.
    let has_owner = changed.is_ok();
    let changed = changed.or_else(|_| fchown(file, None, Some(gid)));
    losses.note("its owner", forgiven(changed));
    remove_other_attributes(file, metadata);
    for Attribute { name, value } in &metadata.attributes {
        let what = weft_transfer::shown(name);
        let set = fsetxattr(file, name.as_slice(), value, XattrFlags::empty());
        losses.note(&format!("the attribute {what}"), set);
    }
    // A set-user-ID bit is not for another user than the one of the source.
    let mode = if has_owner { metadata.mode } else { metadata.mode & 0o1777 };
    losses.note("its mode", fchmod(file, Mode::from_raw_mode(mode)));
    losses.note("its times", futimens(file, &times(metadata)));
    losses.0
}

/// Removes attributes that a directory gave to what was made in it, as a default ACL does.
fn remove_other_attributes(file: &OwnedFd, metadata: &Metadata) {
    let mut names = [0; 1_024];
    let Ok(count) = flistxattr(file, &mut names) else { return };
    for name in names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let is_wanted = metadata.attributes.iter().any(|one| one.name == name);
        if !is_wanted && (name.starts_with(b"system.posix_acl_") || name.starts_with(b"user.")) {
            let _ = rustix::fs::fremovexattr(file, name);
        }
    }
}

/// Gives an entry that cannot be opened, a link or a special file, its metadata.
pub(crate) fn give_by_name(
    directory: &OwnedFd,
    name: &[u8],
    metadata: &Metadata,
    is_link: bool,
) -> Lost {
    let mut losses = Losses::default();
    let (uid, gid) = owner(metadata);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let changed = chownat(directory, name, Some(uid), Some(gid), flags);
    let changed = changed.or_else(|_| chownat(directory, name, None, Some(gid), flags));
    losses.note("its owner", forgiven(changed));
    let path = by_descriptor(directory, name);
    for Attribute { name, value } in &metadata.attributes {
        let what = weft_transfer::shown(name);
        let set = lsetxattr(path.as_slice(), name.as_slice(), value, XattrFlags::empty());
        losses.note(&format!("the attribute {what}"), set);
    }
    // A link has no mode.
    if !is_link {
        losses.note("its mode", change_mode(directory, name, metadata.mode));
    }
    losses.note("its times", utimensat(directory, name, &times(metadata), flags));
    losses.0
}

/// As chmod(2), of an entry that is no link: the kernel has no call that refuses to follow one.
fn change_mode(directory: &OwnedFd, name: &[u8], mode: u32) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = openat(directory, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&entry)?.st_mode) == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    let path = format!("/proc/self/fd/{}", entry.as_raw_fd());
    chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())
}
