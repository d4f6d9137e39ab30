//! Passes connections to the new program when a process calls exec or starts a program.
//!
//! Exec keeps descriptors, but not the table that says what they are. So before exec a list of the
//! connections is written to a memfd without CLOEXEC. The list's number, and those of the arenas'
//! memory, are put into the environment. The library in the new program maps the arenas and uses
//! the same state, which it may share with the process that forked it. It maps a lane when it first
//! uses it, by way of the daemon.
//!
//! A program that cannot be preloaded (static, setuid) inherits plain TCP sockets, so its
//! connections go back to TCP before it starts.
//!
//! A child of vfork calls this code in its parent's memory, where the table is its parent's. For a
//! program that is started by `posix_spawn`, the parent prepares the list.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use libc::c_char;
use rustix::io::FdFlags;
use weft_socket::Phase;
use weft_wire::stats::TcpReason;

use crate::arena::{self, flag};
use crate::table::{self, Entry};
use crate::{backlog, characters, log, process, sys};

/// The environment variable that has the numbers.
pub const VARIABLE: &str = "WEFT_HANDOVER";
const VARIABLE_START: &[u8] = b"WEFT_HANDOVER=";

/// The bytes of one entry: the descriptor's number, the inode, the place in the arena, and 1 if the
/// process that wrote the list keeps the connection, too.
const ENTRY_BYTES: usize = 32;
/// How many descriptors are passed at most.
const ENTRIES_MAX: usize = 65_536;

/// Which process becomes the new program.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// This process.
    Exec,
    /// A child of vfork, which runs in this process's memory.
    Vfork,
    /// A child that `posix_spawn` makes. Its descriptors are copied by these pairs: from, to.
    Spawn(&'a [(RawFd, RawFd)]),
}

/// A start of a program that is prepared. Dropping it takes the preparation back.
pub struct Handover {
    /// The environment for the new program.
    environment: Vec<*const c_char>,
    _variable: CString,
    opened: Vec<OwnedFd>,
    /// Connections that exec closes. Their references were given up in advance.
    closed: Vec<u32>,
    /// Connections that this process and the new program will hold.
    shared: Vec<u32>,
    /// Connections on TCP that no process moves to a lane until the new program has taken them
    /// over.
    unseen: Vec<u32>,
}

impl Handover {
    /// Prepares the start of a program with `environment`; `None` when there is nothing to pass on.
    /// `path` is the program's, if it is known.
    ///
    /// # Safety
    /// `environment` is null or a null-terminated array of C strings.
    pub unsafe fn prepare(
        start: Start<'_>,
        path: Option<&Path>,
        environment: *const *const c_char,
    ) -> Option<Self> {
        backlog::lift_all();
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
        let is_preloaded =
            preloads && path.is_none_or(|path| weft_program::linkage(path).obstacle().is_none());
        // Lanes that the daemon does not know cannot be passed on, so these connections leave
        // theirs.
        entries.retain(|entry| !has_own_lane(entry) || !return_entry_to_tcp(entry));
        if !is_preloaded {
            entries.retain(|entry| !return_entry_to_tcp(entry));
            if !entries.is_empty() {
                log::warn_user!("a program without weft inherits connections on the fabric");
            }
        }
        let stays = !matches!(start, Start::Exec);
        let mut opened = Vec::new();
        let variable = match write_list(&entries, stays, &mut opened) {
            Some(list) if is_preloaded => format!("{VARIABLE}={list}"),
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
        let is_unseen = |place: &u32| arena::at(*place).is_some_and(|c| c.phase() != Phase::Laned);
        let unseen = entries.iter().map(|entry| entry.place).filter(is_unseen).collect();
        let shared: Vec<u32> = entries.iter().filter(|_| stays).map(|entry| entry.place).collect();
        for place in &shared {
            if let Some(connection) = arena::at(*place) {
                connection.count_heir();
            }
        }
        Some(Self { environment, _variable: variable, opened, closed, shared, unseen })
    }

    /// The environment for the new program.
    pub fn environment(&self) -> *const *const c_char {
        self.environment.as_ptr()
    }

    /// The program was started and holds its references until it ends.
    pub fn started(mut self) {
        self.shared.clear();
        self.closed.clear();
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        // Exec failed, so the connections that it would have closed are still open.
        for place in &self.closed {
            if let Some(connection) = arena::at(*place) {
                connection.shared.refs.fetch_add(1, Ordering::AcqRel);
            }
        }
        for place in &self.shared {
            if let Some(connection) = arena::at(*place) {
                connection.uncount_heir();
            }
        }
        for place in &self.unseen {
            if let Some(connection) = arena::at(*place)
                && !connection.is_standard_stream()
            {
                connection.end_unseen_use();
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
    /// The descriptor in the new program.
    fd: RawFd,
    /// The descriptor in this process.
    source: RawFd,
    inode: u64,
    place: u32,
}

/// The connections that exec keeps, and those that it closes, as the kernel knows them: in a child
/// of vfork the table is its parent's.
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
        if connection.phase() != Phase::Laned {
            if !itself {
                if is_kept {
                    // The parent uses this descriptor beside its child, so the connection must not
                    // move.
                    connection.stay_unless_moved(fd, TcpReason::RawUse);
                }
                continue;
            }
            // The new program may use the connection where the library does not see that.
            let goes_on = || {
                connection.begin_unseen_use() || connection.decide_for_kernel(fd) == Phase::Laned
            };
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
            // Exec says no goodbye on a lane, and the endpoint ends with it. Another thread that
            // writes without a pause may keep the connection from leaving.
            if connection.is_on_far_lane() && !connection.return_to_tcp_for_good(fd) {
                connection.announce_end(fd);
            }
            closes.push(place);
        }
    }
    if !itself {
        // A child of vfork copies descriptors onto its standard streams, and the table does not
        // have them.
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

/// The connections of a child of `posix_spawn` that are on the fabric: those that exec keeps, and
/// copies. All others stay on TCP for good, where such a child can use them.
fn spawned(copies: &[(RawFd, RawFd)]) -> Vec<Inherited> {
    let kept = table::walk(0, u32::MAX).filter_map(|(fd, entry)| {
        let Entry::Connection(place) = entry else { return None };
        let flags = rustix::io::fcntl_getfd(sys::borrow(fd)).ok()?;
        (!flags.contains(FdFlags::CLOEXEC)).then_some(Inherited { fd, source: fd, inode: 0, place })
    });
    let mut found: Vec<Inherited> = kept.collect();
    for (source, fd) in copies {
        // The source may itself be a copy. A copy closes what had its number before.
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
        connection.decide_for_kernel(kept.source) == Phase::Laned
    });
    found
}

/// True for a lane that the daemon cannot pass on: a kept one, or one over the endpoint of this
/// process.
fn has_own_lane(entry: &Inherited) -> bool {
    arena::at(entry.place)
        .is_some_and(|connection| connection.is_on_kept_lane() || connection.is_on_far_lane())
}

/// Takes the connection back to TCP for good; false when that cannot be.
fn return_entry_to_tcp(entry: &Inherited) -> bool {
    arena::at(entry.place).is_some_and(|connection| connection.return_to_tcp_for_good(entry.source))
}

fn inode(fd: RawFd) -> Option<u64> {
    rustix::fs::fstat(sys::borrow(fd)).ok().map(|status| status.st_ino)
}

/// Writes the list and opens the memory of its arenas. Returns the text of the variable,
/// `list,arena:number,…`; the descriptors are added to `opened`.
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

/// Takes over the connections that the former program of this process passed on; called by the
/// constructor.
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
        let goes_on = matches!(connection.phase(), Phase::Laned | Phase::Fresh | Phase::Pending);
        if fd < 0 || inode(fd) != Some(word(1)) || !goes_on {
            if word(3) != 0 {
                // The former program counted a reference in advance.
                connection.shared.refs.fetch_sub(1, Ordering::AcqRel);
            }
            continue;
        }
        connection.local.fds.fetch_add(1, Ordering::Relaxed);
        arena::keep_token(connection.token());
        table::set(fd, Entry::Connection(place));
        if !connection.is_standard_stream() {
            connection.end_unseen_use();
        } else if !characters::must_keep_c_streams() {
            connection.end_unseen_use();
            if fd <= 2 {
                crate::stdio::replace(fd);
            }
        } else if connection.phase() == Phase::Laned {
            connection.return_to_tcp_for_good(fd);
        }
        log::debug!("descriptor {fd} is the former program's connection {place}");
    }
}

/// Takes a descriptor that the environment names. It must be a memfd: a descriptor that the program
/// uses for something else is hardly one.
fn open_number(text: &str) -> Option<OwnedFd> {
    let fd: RawFd = text.parse().ok()?;
    if fd < 3 || rustix::fs::fcntl_get_seals(sys::borrow(fd)).is_err() {
        return None;
    }
    // SAFETY: the former program left the descriptor for this library, and nothing else knows its
    // number.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    // A handover makes copies for the next program; this one ends at exec.
    rustix::io::fcntl_setfd(owned.as_fd(), FdFlags::CLOEXEC).ok()?;
    Some(owned)
}
