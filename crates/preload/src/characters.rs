//! Programs whose standard streams cannot be replaced, by what they do with characters.
//!
//! A stream made of callbacks has no wide characters, and the streams of C++ keep those of the C
//! library that they were made over.

use std::ffi::c_void;

use libc::{Elf64_Phdr, c_int, dl_phdr_info, size_t};

/// Parts of the names of all functions for streams of wide characters.
const WIDE: [&str; 8] =
    ["getwc", "getws", "putwc", "putws", "fwide", "wprintf", "wscanf", "ungetwc"];

/// The program's streams are to stay as they are.
pub fn keep_the_streams() -> bool {
    has_streams_of_cxx() || uses_wide_characters()
}

/// The streams of C++ were made already: its library makes them by itself since GCC 13, before that
/// the program does, after this library is set up.
fn has_streams_of_cxx() -> bool {
    // SAFETY: the name is a C string.
    let cout = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZSt4cout".as_ptr()) };
    // SAFETY: std::cout, which is larger than a pointer, zeroed until it is made.
    !cout.is_null() && unsafe { cout.cast::<usize>().read_volatile() } != 0
}

/// The program itself, not a library, asks for a function for wide characters.
fn uses_wide_characters() -> bool {
    let mut found = false;
    // SAFETY: the callback gets the address of `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_first), (&raw mut found).cast()) };
    found
}

/// Called for the program, which is the first; ends the walk there.
unsafe extern "C" fn look_at_first(
    info: *mut dl_phdr_info,
    _size: size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader describes an object that is loaded, and `found` is the caller's.
    unsafe { *found.cast::<bool>() = names(&*info).is_some_and(has_wide) };
    1
}

fn has_wide(names: &[u8]) -> bool {
    names.split(|byte| *byte == 0).any(|name| {
        let name = std::str::from_utf8(name).unwrap_or_default();
        WIDE.iter().any(|wide| name.contains(wide))
    })
}

/// The names that the loader looks up for an object.
///
/// # Safety
/// The object is loaded and stays so.
unsafe fn names(info: &dl_phdr_info) -> Option<&[u8]> {
    const STRINGS: i64 = 5;
    const STRINGS_BYTES: i64 = 10;
    let base = usize::try_from(info.dlpi_addr).ok()?;
    // SAFETY: the loader's table of the object's segments.
    let segments: &[Elf64_Phdr] =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
    let mut entry = base.checked_add(usize::try_from(dynamic.p_vaddr).ok()?)? as *const [i64; 2];
    let (mut strings, mut bytes) = (None, None);
    // SAFETY: pairs of a tag and a value, up to one with tag 0.
    while let [tag, value] = unsafe { *entry }
        && tag != 0
    {
        match tag {
            STRINGS => strings = usize::try_from(value).ok(),
            STRINGS_BYTES => bytes = usize::try_from(value).ok(),
            _ => {}
        }
        // SAFETY: the end was not reached.
        entry = unsafe { entry.add(1) };
    }
    // The loader made an address of it, where it could write to the table.
    let address = strings.map(|address| if address < base { address + base } else { address })?;
    // SAFETY: the object's table of strings, which is mapped.
    Some(unsafe { std::slice::from_raw_parts(address as *const u8, bytes?) })
}
