//! Hands the connections that survive exec to the new program.
//!
//! The descriptors live on, the table of what they are does not. Before exec a list of them is
//! written to a memfd without CLOEXEC, with the arenas' own descriptors beside it, and its number
//! is put into the environment; the library in the new program maps the arenas and goes on with
//! the same state, which it may share with a parent that forked it. Lanes are mapped again when
//! they are first used, by way of the daemon.
//!
//! A program that cannot be preloaded (static, setuid) inherits bare TCP sockets, so its
//! connections go back to TCP before.
//!
//! The child of vfork calls this too, in its parent's memory, where the table of descriptors is its
//! parent's. A program that is started by `posix_spawn` is prepared for by its parent.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use libc::c_char;
use rustix::io::FdFlags;
use weft_wire::stats::TcpReason;

use crate::arena::{self, flag, phase};
use crate::table::{self, Entry};
use crate::{characters, log, process, sys};

/// The variable that names the list's descriptor.
pub const VARIABLE: &str = "WEFT_HANDOVER";
const VARIABLE_START: &[u8] = b"WEFT_HANDOVER=";

/// One inherited descriptor: its number and inode, its place in the arenas, and whether the new
/// program holds it besides another.
const ENTRY_BYTES: usize = 32;
/// Descriptors handed over at most.
const ENTRIES_MAX: usize = 65_536;

/// The process that becomes the new program.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// This process.
    Exec,
    /// The child of vfork that is running in this process's memory.
    Vfork,
    /// A child that `posix_spawn` makes, in which descriptors are copied as in these pairs.
    Spawn(&'a [(RawFd, RawFd)]),
}

/// The start of a program in preparation; dropped when that failed.
pub struct Handover {
    /// The environment for the new program.
    environment: Vec<*const c_char>,
    _variable: CString,
    opened: Vec<OwnedFd>,
    /// Connections that exec closes, whose counts went down.
    closed: Vec<u32>,
    /// Connections that the new program holds besides this one.
    shared: Vec<u32>,
    /// Connections on TCP, which nobody brings to a lane until the new program has taken them over.
    unseen: Vec<u32>,
}

impl Handover {
    /// Prepares the start of a program with `environment`; `None` when there is nothing to hand
    /// over.
    ///
    /// The program is the one at `path`, where that is known.
    ///
    /// # Safety
    /// `environment` is null or a null-terminated array of C strings.
    pub unsafe fn prepare(
        start: Start<'_>,
        path: Option<&Path>,
        environment: *const *const c_char,
    ) -> Option<Self> {
        let (mut entries, closed) = match start {
            Start::Spawn(copies) => (spawned(copies), Vec::new()),
            Start::Exec | Start::Vfork => inherited(matches!(start, Start::Exec)),
        };
        if entries.is_empty() && closed.is_empty() {
            return None;
        }
        // SAFETY: the caller's promise.
        let given = unsafe { list(environment) };
        let preloads = given.iter().any(|entry| {
            // SAFETY: entries are C strings: the caller's promise.
            unsafe { CStr::from_ptr(*entry) }.to_bytes().starts_with(b"LD_PRELOAD=")
        });
        let sees =
            preloads && path.is_none_or(|path| weft_program::linkage(path).obstacle().is_none());
        // No daemon could tell the new program of their lanes.
        entries.retain(|entry| !is_on_kept_lane(entry) || !goes_back(entry));
        if !sees {
            entries.retain(|entry| !goes_back(entry));
            if !entries.is_empty() {
                log::warn_user!("a program without weft inherits connections on the fabric");
            }
        }
        let stays = !matches!(start, Start::Exec);
        let mut opened = Vec::new();
        let variable = match write_list(&entries, stays, &mut opened) {
            Some(list) if sees => format!("{VARIABLE}={list}"),
            _ => format!("{VARIABLE}="),
        };
        let variable = CString::new(variable).ok()?;
        let mut environment: Vec<*const c_char> = given
            .into_iter()
            .filter(|entry| {
                // SAFETY: as above.
                !unsafe { CStr::from_ptr(*entry) }.to_bytes().starts_with(VARIABLE_START)
            })
            .collect();
        environment.push(variable.as_ptr());
        environment.push(std::ptr::null());
        for place in &closed {
            if let Some(connection) = arena::at(*place) {
                connection.shared.refs.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let is_unseen = |place: &u32| arena::at(*place).is_some_and(|c| c.phase() != phase::LANED);
        let unseen = entries.iter().map(|entry| entry.place).filter(is_unseen).collect();
        let shared: Vec<u32> = entries.iter().filter(|_| stays).map(|entry| entry.place).collect();
        for place in &shared {
            if let Some(connection) = arena::at(*place) {
                connection.shared.refs.fetch_add(1, Ordering::AcqRel);
            }
        }
        Some(Self { environment, _variable: variable, opened, closed, shared, unseen })
    }

    /// The environment for the new program.
    pub fn environment(&self) -> *const *const c_char {
        self.environment.as_ptr()
    }

    /// The program was started, and holds what it inherited until it ends.
    pub fn started(mut self) {
        self.shared.clear();
        self.closed.clear();
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        // The exec failed: what it would have closed is still open.
        for place in &self.closed {
            if let Some(connection) = arena::at(*place) {
                connection.shared.refs.fetch_add(1, Ordering::AcqRel);
            }
        }
        for place in &self.shared {
            if let Some(connection) = arena::at(*place) {
                connection.shared.refs.fetch_sub(1, Ordering::AcqRel);
            }
        }
        for place in &self.unseen {
            if let Some(connection) = arena::at(*place)
                && !connection.is_standard_stream()
            {
                connection.is_seen_again();
            }
        }
        self.opened.clear();
    }
}

/// # Safety
/// `environment` is null or a null-terminated array.
unsafe fn list(environment: *const *const c_char) -> Vec<*const c_char> {
    let mut entries = Vec::new();
    let mut index = 0;
    while !environment.is_null() {
        // SAFETY: the array goes on until its null: the caller's promise.
        let entry = unsafe { *environment.add(index) };
        if entry.is_null() {
            break;
        }
        entries.push(entry);
        index += 1;
    }
    entries
}

#[derive(Clone, Copy)]
struct Inherited {
    /// Its number in the new program.
    fd: RawFd,
    /// Its number here.
    source: RawFd,
    inode: u64,
    place: u32,
}

/// The descriptors that exec keeps and closes, as the kernel sees them: in a child of vfork
/// the table is its parent's.
fn inherited(itself: bool) -> (Vec<Inherited>, Vec<u32>) {
    let mut keeps = Vec::new();
    let mut closes = Vec::new();
    let mut known = Vec::new();
    for (fd, entry) in table::walk(0, u32::MAX) {
        let Entry::Connection(place) = entry else { continue };
        let Some(connection) = arena::at(place) else { continue };
        if itself && connection.has(flag::GIVING_BACK) {
            connection.gives_back(fd);
        }
        let flags = rustix::io::fcntl_getfd(sys::borrow(fd)).unwrap_or(FdFlags::CLOEXEC);
        let is_kept = !flags.contains(FdFlags::CLOEXEC);
        if connection.phase() != phase::LANED {
            if !itself {
                if is_kept {
                    // The parent's number: it goes on using the connection beside its child.
                    connection.stay_unless_moved(TcpReason::RawUse);
                }
                continue;
            }
            // The new program may not know of it, and use it where nobody sees.
            let goes_on =
                || connection.becomes_unseen() || connection.decide_for_kernel(fd) == phase::LANED;
            if is_kept && !goes_on() {
                continue;
            }
            let inode = self::inode(fd).unwrap_or(0);
            connection.shared.inode.store(inode, Ordering::Relaxed);
        }
        let inode = connection.shared.inode.load(Ordering::Relaxed);
        known.push((inode, place));
        if self::inode(fd) != Some(inode) {
            continue;
        }
        if is_kept {
            keeps.push(Inherited { fd, source: fd, inode, place });
        } else if itself {
            closes.push(place);
        }
    }
    if !itself {
        // Copied onto the standard streams where no table was kept.
        for fd in 0..3 {
            let found = inode(fd)
                .and_then(|inode| known.iter().find(|(other, _)| *other == inode).copied());
            if let Some((inode, place)) = found
                && keeps.iter().all(|kept| kept.fd != fd)
            {
                keeps.push(Inherited { fd, source: fd, inode, place });
            }
        }
    }
    keeps.truncate(ENTRIES_MAX);
    (keeps, closes)
}

/// The connections on the fabric of a `posix_spawn` child: those that exec keeps, and copies.
/// Connections that did not move yet stay on TCP, where such a child can use them.
fn spawned(copies: &[(RawFd, RawFd)]) -> Vec<Inherited> {
    let kept = table::walk(0, u32::MAX).filter_map(|(fd, entry)| {
        let Entry::Connection(place) = entry else { return None };
        let flags = rustix::io::fcntl_getfd(sys::borrow(fd)).ok()?;
        (!flags.contains(FdFlags::CLOEXEC)).then_some(Inherited { fd, source: fd, inode: 0, place })
    });
    let mut found: Vec<Inherited> = kept.collect();
    for (source, fd) in copies {
        // A copy of a copy is possible; what the number was before is closed.
        let copied = found.iter().find(|kept| kept.fd == *source).copied();
        let tracked = || match table::get(*source) {
            Entry::Connection(place) => {
                Some(Inherited { fd: *fd, source: *source, inode: 0, place })
            }
            _ => None,
        };
        let copied = copied.or_else(tracked);
        found.retain(|kept| kept.fd != *fd);
        found.extend(copied.map(|copied| Inherited { fd: *fd, ..copied }));
    }
    found.truncate(ENTRIES_MAX);
    found.retain_mut(|kept| {
        let Some(connection) = arena::at(kept.place) else { return false };
        kept.inode = connection.shared.inode.load(Ordering::Relaxed);
        connection.decide_for_kernel(kept.source) == phase::LANED
    });
    found
}

fn is_on_kept_lane(entry: &Inherited) -> bool {
    arena::at(entry.place).is_some_and(|connection| connection.is_on_kept_lane())
}

/// True when the connection left its lane.
fn goes_back(entry: &Inherited) -> bool {
    arena::at(entry.place).is_some_and(|connection| connection.goes_back_for_good(entry.source))
}

fn inode(fd: RawFd) -> Option<u64> {
    rustix::fs::fstat(sys::borrow(fd)).ok().map(|status| status.st_ino)
}

/// Writes the list and opens what goes with it; returns `list,arena:number,…` as text.
fn write_list(entries: &[Inherited], stays: bool, opened: &mut Vec<OwnedFd>) -> Option<String> {
    if entries.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        bytes.extend_from_slice(&u64::from(entry.fd.unsigned_abs()).to_ne_bytes());
        bytes.extend_from_slice(&entry.inode.to_ne_bytes());
        bytes.extend_from_slice(&u64::from(entry.place).to_ne_bytes());
        bytes.extend_from_slice(&u64::from(stays).to_ne_bytes());
    }
    let file = rustix::fs::memfd_create("weft-handover", rustix::fs::MemfdFlags::empty()).ok()?;
    if rustix::io::pwrite(&file, &bytes, 0) != Ok(bytes.len()) {
        return None;
    }
    let mut text = file.as_raw_fd().to_string();
    opened.push(file);
    let mut numbers: Vec<u32> = entries.iter().map(|entry| arena::number_of(entry.place)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        let copy = arena::memory_of(number)?;
        text.push_str(&format!(",{number}:{}", copy.as_raw_fd()));
        opened.push(copy);
    }
    Some(text)
}

/// Takes over what the former program of this process left; called by the constructor.
pub fn take_over(text: &str) {
    let mut parts = text.split(',');
    let Some(list) = parts.next().and_then(open_number) else { return };
    for part in parts {
        let Some((number, fd)) = part.split_once(':') else { continue };
        if let (Ok(number), Some(memory)) = (number.parse(), open_number(fd)) {
            arena::adopt(number, memory);
        }
    }
    let mut entry = [0u8; ENTRY_BYTES];
    let mut offset = 0;
    while rustix::io::pread(&list, &mut entry, offset) == Ok(ENTRY_BYTES) {
        offset += ENTRY_BYTES as u64;
        let word = |index: usize| {
            let mut bytes = [0u8; 8];
            bytes.copy_from_slice(&entry[index * 8..index * 8 + 8]);
            u64::from_ne_bytes(bytes)
        };
        let (Ok(fd), Ok(place)) = (RawFd::try_from(word(0)), u32::try_from(word(2))) else {
            continue;
        };
        let Some(connection) = arena::at(place) else { continue };
        connection.shared.receive_lock.release_of(process::pid());
        connection.shared.send_lock.release_of(process::pid());
        let goes_on = matches!(connection.phase(), phase::LANED | phase::FRESH | phase::PENDING);
        if fd < 0 || inode(fd) != Some(word(1)) || !goes_on {
            if word(3) != 0 {
                // Its share was counted in advance.
                connection.shared.refs.fetch_sub(1, Ordering::AcqRel);
            }
            continue;
        }
        connection.local.fds.fetch_add(1, Ordering::Relaxed);
        table::set(fd, Entry::Connection(place));
        if !connection.is_standard_stream() {
            connection.is_seen_again();
        } else if !characters::keep_the_streams() {
            connection.is_seen_again();
            if fd <= 2 {
                crate::stdio::replace(fd);
            }
        } else if connection.phase() == phase::LANED {
            connection.goes_back_for_good(fd);
        }
        log::debug!("descriptor {fd} is the former program's connection {place}");
    }
}

/// A descriptor that the environment names: it must be a memfd, which nothing else of the program's
/// is likely to be.
fn open_number(text: &str) -> Option<OwnedFd> {
    let fd: RawFd = text.parse().ok()?;
    if fd < 3 || rustix::fs::fcntl_get_seals(sys::borrow(fd)).is_err() {
        return None;
    }
    // SAFETY: the former program left the descriptor to us and nobody else knows its number.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    // Not for the next program but by a handover of its own.
    rustix::io::fcntl_setfd(owned.as_fd(), FdFlags::CLOEXEC).ok()?;
    Some(owned)
}

/// Moves a descriptor out of the way of the program's own.
pub fn high(fd: OwnedFd) -> OwnedFd {
    match rustix::io::fcntl_dupfd_cloexec(&fd, crate::control::high_number()) {
        Ok(moved) => moved,
        Err(_) => fd,
    }
}

/// A copy that exec keeps.
pub fn inheritable(fd: &OwnedFd) -> Option<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, crate::control::high_number()).ok()?;
    rustix::io::fcntl_setfd(&copy, FdFlags::empty()).ok()?;
    Some(copy)
}
