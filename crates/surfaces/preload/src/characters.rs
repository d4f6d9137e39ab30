//! Detects programs whose standard streams cannot be replaced by those of `stdio`.
//!
//! A stream made of callbacks has no wide characters. The streams of C++ keep using the C library's
//! streams that they were constructed with.

use std::ffi::c_void;

use libc::{Elf64_Phdr, c_int, dl_phdr_info, size_t};

/// Parts of the names of the C library's functions for streams of wide characters.
const WIDE: [&str; 8] =
    ["getwc", "getws", "putwc", "putws", "fwide", "wprintf", "wscanf", "ungetwc"];

/// True when the program's standard streams must stay the C library's own.
pub fn must_keep_c_streams() -> bool {
    has_streams_of_cxx() || uses_wide_characters()
}

/// True when the streams of C++ have been constructed. Since GCC 13 the library of C++ constructs
/// them when it is loaded; before, the program does, after this library was initialized.
fn has_streams_of_cxx() -> bool {
    // SAFETY: the name is a C string.
    let cout = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZSt4cout".as_ptr()) };
    // SAFETY: `std::cout` is larger than a pointer, and zeroed until it is constructed.
    !cout.is_null() && unsafe { cout.cast::<usize>().read_volatile() } != 0
}

/// True when the program itself, not one of its libraries, uses a function for wide characters.
fn uses_wide_characters() -> bool {
    let mut found = false;
    // SAFETY: the callback gets the address of `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(inspect_program), (&raw mut found).cast()) };
    found
}

/// Inspects the first object, which is the program, and ends the walk there.
unsafe extern "C" fn inspect_program(
    info: *mut dl_phdr_info,
    _size: size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader describes an object that is loaded, and `found` is the caller's variable.
    unsafe { *found.cast::<bool>() = string_table(&*info).is_some_and(names_wide_characters) };
    1
}

fn names_wide_characters(names: &[u8]) -> bool {
    names.split(|byte| *byte == 0).any(|name| {
        let name = std::str::from_utf8(name).unwrap_or_default();
        WIDE.iter().any(|wide| name.contains(wide))
    })
}

/// Tags of the dynamic section (`elf.h`): the address of the table of strings, and its bytes.
const DT_STRTAB: i64 = 5;
const DT_STRSZ: i64 = 10;

/// The table of strings of an object: the names of the symbols that the object uses.
///
/// # Safety
/// The object is loaded and stays loaded.
unsafe fn string_table(info: &dl_phdr_info) -> Option<&[u8]> {
    let base = usize::try_from(info.dlpi_addr).ok()?;
    // SAFETY: the loader's table of the object's segments.
    let segments: &[Elf64_Phdr] =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
    let mut entry = base.checked_add(usize::try_from(dynamic.p_vaddr).ok()?)? as *const [i64; 2];
    let (mut strings, mut bytes) = (None, None);
    // SAFETY: `Elf64_Dyn`, pairs of a tag and a value, up to one with tag 0 (DT_NULL).
    while let [tag, value] = unsafe { *entry }
        && tag != 0
    {
        match tag {
            DT_STRTAB => strings = usize::try_from(value).ok(),
            DT_STRSZ => bytes = usize::try_from(value).ok(),
            _ => {}
        }
        // SAFETY: this entry was not the last.
        entry = unsafe { entry.add(1) };
    }
    // Where the loader can write to the dynamic section, it replaced the offset by an address.
    let address = strings.map(|address| if address < base { address + base } else { address })?;
    // SAFETY: the object's table of strings, which is mapped.
    Some(unsafe { std::slice::from_raw_parts(address as *const u8, bytes?) })
}
