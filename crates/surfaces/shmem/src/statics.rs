//! The global and static variables of the program, in shared memory at their own addresses.
//!
//! The writable segment of the main program, and nothing else, is copied into a memfd that is then
//! mapped in its place. The code that does it lies in this library, so nothing of it is there. It
//! runs before the program's own code. Threads that something else has started already go on
//! meanwhile ([`crate::writers`]).
//!
//! # Invariants
//! - The range is whole pages between the part that the dynamic linker made read-only and the end
//!   of the zeroed variables: no other mapping is touched.
//! - It happens at most once in a process.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use weft_memory::Memory;
use weft_pmi::Environment;

use crate::card::{self, Program};

/// Whether the variables are in shared memory.
#[derive(Debug)]
pub enum Statics {
    /// They are.
    Shared(Shared),
    /// They are not. The reason begins with a semicolon, as the end of a message.
    Private(&'static str),
}

/// Variables in shared memory.
#[derive(Debug)]
pub struct Shared {
    /// The memory, mapped at the address of the variables.
    pub memory: Memory,
    /// The first address.
    pub start: usize,
    /// Bytes: whole pages.
    pub bytes: usize,
}

static STATICS: OnceLock<Statics> = OnceLock::new();

/// Shares the variables, if a launcher started this process. Called when the library is loaded.
pub fn share_when_launched() {
    // A mistake in the launcher's variables is told when the program starts the library.
    if matches!(Environment::of_process(), Ok(Environment::Alone)) {
        return;
    }
    STATICS.get_or_init(|| match share() {
        Ok(shared) => Statics::Shared(shared),
        Err(why) => {
            crate::fork::watch_alone();
            Statics::Private(Box::leak(why.into_boxed_str()))
        }
    });
}

/// Whether the variables are shared. Without a launcher they are not, and need not be.
pub fn of_process() -> &'static Statics {
    STATICS.get_or_init(|| Statics::Private("; the program was started without a launcher"))
}

/// The main program as the dynamic linker loaded it.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The address that its own addresses count from.
    base: usize,
    /// Writable segments, whole pages.
    writable: Vec<(usize, usize)>,
    /// The part that becomes read-only after the start.
    relro: Option<(usize, usize)>,
    /// The identity that the linker gave the build.
    build: Option<String>,
}

impl Image {
    /// The main program of this process.
    pub fn of_process() -> Self {
        let mut image = Self::default();
        // SAFETY: the callback gets the address of `image`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut image).cast()) };
        image
    }

    /// The range of the variables, as start and end.
    fn variables(&self) -> Result<(usize, usize), String> {
        let page = rustix::param::page_size();
        let parts: Vec<(usize, usize)> = self
            .writable
            .iter()
            .map(|&(start, end)| match self.relro {
                Some((from, to)) if start < to && from < end => (to / page * page, end),
                _ => (start, end),
            })
            .map(|(start, end)| (start / page * page, end.next_multiple_of(page)))
            .filter(|(start, end)| start < end)
            .collect();
        match parts[..] {
            [range] => Ok(range),
            [] => Err("; the program has no writable segment".to_owned()),
            _ => Err(format!(
                "; the program has {} writable segments, and variables are symmetric in programs \
                 with one: link it without a linker script",
                parts.len()
            )),
        }
    }

    /// The range of the variables.
    ///
    /// # Errors
    /// A text that tells why there is none.
    pub fn range(&self) -> Result<std::ops::Range<usize>, String> {
        self.variables().map(|(start, end)| start..end)
    }

    /// The mark that tells the program from others.
    pub fn program(&self) -> Program {
        let offset = self.variables().map_or(0, |(start, _)| start - self.base);
        let build = self.build.as_deref().unwrap_or("none");
        Program { build: card::name(build), offset }
    }
}

/// Takes the headers of the first object, which is the main program.
extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, image: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a valid structure, and the address is that of `of_process`.
    let (info, image) = unsafe { (&*info, &mut *image.cast::<Image>()) };
    // SAFETY: the headers of a loaded object stay where they are, and there are so many.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let at = |offset: u64| usize::try_from(info.dlpi_addr.wrapping_add(offset)).unwrap_or(0);
    image.base = at(0);
    for header in headers {
        let (start, end) = (at(header.p_vaddr), at(header.p_vaddr + header.p_memsz));
        match header.p_type {
            libc::PT_LOAD if header.p_flags & libc::PF_W != 0 => image.writable.push((start, end)),
            libc::PT_GNU_RELRO => image.relro = Some((start, end)),
            libc::PT_NOTE => {
                // SAFETY: notes of a loaded object are mapped and never change.
                let notes = unsafe {
                    std::slice::from_raw_parts(
                        std::ptr::with_exposed_provenance::<u8>(start),
                        end - start,
                    )
                };
                image.build = image.build.take().or_else(|| build_of(notes));
            }
            _ => {}
        }
    }
    1
}

/// The identity of a build among the notes of a program.
fn build_of(mut notes: &[u8]) -> Option<String> {
    const BUILD: u32 = 3;
    loop {
        let word = |at: usize| {
            let bytes = notes.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (name, length, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let from = 12_usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let to = from.checked_add(length)?;
        if kind == BUILD && notes.get(12..16)? == b"GNU\0" {
            let bytes = notes.get(from..to)?;
            return Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(to.checked_next_multiple_of(4)?..)?;
    }
}

fn share() -> Result<Shared, String> {
    let (start, end) = Image::of_process().variables()?;
    let bytes = end - start;
    let base = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(start))
        .ok_or("; the program's variables are at address 0")?;
    let cannot = |error: &dyn std::fmt::Display| {
        format!("; the program's variables could not be moved to shared memory: {error}")
    };
    // The file may not be there where /proc is not: then there may be other threads.
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let memory = if threads == 1 {
        // SAFETY: the range is the program's own writable segment, which is mapped for reading and
        // writing as long as the process. There is one thread, which is here. The program is C,
        // which has no references.
        unsafe { Memory::adopt(base, bytes) }
    } else {
        crate::writers::hold(&(start..end)).map_err(|error| cannot(&error))?;
        // SAFETY: as before, but for other threads: the handler has their writes done again. This
        // one writes to no variable of the program meanwhile.
        let adopted = unsafe { Memory::adopt_from_writers(base, bytes) };
        crate::writers::release();
        adopted
    };
    let memory = memory.map_err(|error| cannot(&error))?;
    let file = memory.file().ok_or("; no file has the program's variables")?;
    let file = file.try_clone();
    file.and_then(|file| crate::fork::watch(start, bytes, file))
        .map_err(|error| format!("; the library cannot follow the program's children: {error}"))?;
    Ok(Shared { memory, start, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_begin_behind_what_is_read_only() {
        let page = rustix::param::page_size();
        let of = |writable: &[(usize, usize)], relro| {
            let writable =
                writable.iter().map(|(from, to)| (from * page + 8, to * page + 8)).collect();
            let image = Image { writable, relro, ..Image::default() };
            image.variables().ok().map(|(start, end)| (start / page, end / page))
        };
        assert_eq!(of(&[(3, 9)], None), Some((3, 10)));
        assert_eq!(of(&[(3, 9)], Some((3 * page, 5 * page))), Some((5, 10)));
        assert_eq!(of(&[(3, 9)], Some((3 * page, 5 * page + 16))), Some((5, 10)));
        assert_eq!(of(&[(3, 4), (7, 9)], Some((3 * page, 5 * page))), Some((7, 10)));
        assert_eq!(of(&[], None), None);
        assert_eq!(of(&[(3, 4), (7, 9)], None), None, "two of them");
    }

    #[test]
    fn this_program_has_variables_and_a_build() {
        static VARIABLE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(7);
        let image = Image::of_process();
        let (start, end) = image.variables().expect("it has");
        assert!((start..end).contains(&(&raw const VARIABLE).addr()));
        assert_eq!(image.program().offset, start - image.base);
    }

    #[test]
    fn notes_are_read_as_far_as_they_are_whole() {
        let note = |name: &[u8], kind: usize, text: &[u8]| {
            let mut note = Vec::new();
            for word in [name.len(), text.len(), kind] {
                note.extend(u32::try_from(word).expect("it is short").to_ne_bytes());
            }
            note.extend(name);
            note.resize(note.len().next_multiple_of(4), 0);
            note.extend(text);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let both = [note(b"Other\0", 3, b"no"), note(b"GNU\0", 3, &[0xab, 1, 2])].concat();
        assert_eq!(build_of(&both).as_deref(), Some("ab0102"));
        for length in 0..both.len() - 1 {
            assert_eq!(build_of(&both[..length]), None, "{length}");
        }
        assert_eq!(build_of(&[0xff; 64]), None);
    }
}
