//! Layer 1: finds a program as a shell does, and determines whether a library can be preloaded into
//! it. Used before `weft run` starts a program, and before a program under weft calls exec.
//!
//! The file is read, never run. A file that cannot be parsed counts as ordinary: the kernel and the
//! dynamic linker decide in the end. May depend on the operating system only.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The search path of a shell without `PATH`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";
/// Levels of scripts whose interpreter is a script, as in the kernel.
const SCRIPT_DEPTH_MAX: usize = 4;
/// Bytes of ELF notes that are read.
const NOTES_BYTES_MAX: u64 = 4096;
/// Program headers that are read. Ordinary programs have about a dozen.
const HEADERS_MAX: u16 = 128;
/// Longest `#!` line of the kernel in bytes.
const SCRIPT_LINE_BYTES: usize = 256;

/// The result of searching a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The program was found at this path.
    Found(PathBuf),
    /// A file was found at this path, but it cannot be executed.
    NotExecutable(PathBuf),
    /// No file was found.
    NotFound,
}

/// Searches a program. A name with a slash is a path; others are searched in the directories of
/// `path`.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Lookup {
    if name.as_bytes().contains(&b'/') {
        return look(Path::new(name));
    }
    if name.is_empty() {
        return Lookup::NotFound;
    }
    let mut found = Lookup::NotFound;
    for directory in std::env::split_paths(path.unwrap_or(OsStr::new(PATH_DEFAULT))) {
        // An empty entry stands for the current directory.
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { &directory };
        match look(&directory.join(name)) {
            Lookup::Found(path) => return Lookup::Found(path),
            Lookup::NotExecutable(path) if found == Lookup::NotFound => {
                found = Lookup::NotExecutable(path);
            }
            Lookup::NotExecutable(_) | Lookup::NotFound => {}
        }
    }
    found
}

fn look(path: &Path) -> Lookup {
    match path.metadata() {
        Ok(metadata) => {
            let executable =
                metadata.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
            if executable {
                Lookup::Found(path.to_owned())
            } else {
                Lookup::NotExecutable(path.to_owned())
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Lookup::NotExecutable(path.to_owned())
        }
        Err(_) => Lookup::NotFound,
    }
}

/// The message for a program that was not found.
pub fn not_found(name: &OsStr) -> String {
    let shown = name.display();
    if name.as_bytes().contains(&b'/') {
        format!("{shown} does not exist; check the path")
    } else {
        format!("program {shown} is not in PATH; install it, or give its path")
    }
}

/// How a program is linked, as far as preloading is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Linkage {
    /// By the dynamic linker for which the library was built. Also for files that cannot be parsed.
    Dynamic,
    /// Statically: there is no dynamic linker that could load a library.
    Static,
    /// For another processor or word size.
    OtherMachine,
    /// By another C library's dynamic linker, which would refuse to start the program with the
    /// library.
    OtherLibc {
        /// The path of that linker.
        linker: String,
    },
    /// The file is setuid, setgid or has capabilities: the dynamic linker ignores preloaded
    /// libraries.
    Privileged,
    /// Dynamically, but by Go, whose runtime makes system calls without the C library.
    Go,
}

impl Linkage {
    /// Why the library cannot be preloaded, or `None` if it can.
    pub fn obstacle(&self) -> Option<String> {
        Some(match self {
            Self::Dynamic => return None,
            Self::Static => "is statically linked".to_owned(),
            Self::OtherMachine => "is built for another kind of machine than weft".to_owned(),
            Self::OtherLibc { linker } => format!("is linked by {linker}, not by glibc"),
            Self::Privileged => {
                "runs with additional rights (setuid, setgid or capabilities)".to_owned()
            }
            Self::Go => {
                "is a Go program, which makes system calls without the C library".to_owned()
            }
        })
    }

    /// True if the program would fail to start with the library preloaded.
    pub const fn is_foreign(&self) -> bool {
        matches!(self, Self::OtherLibc { .. } | Self::OtherMachine)
    }
}

/// How the program at `path` is linked. For a script, how its interpreter is linked.
pub fn linkage(path: &Path) -> Linkage {
    let mut path = path.to_owned();
    for _ in 0..SCRIPT_DEPTH_MAX {
        // The open of a FIFO would wait for a writer. The kernel does not execute FIFOs.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        let Ok(mut file) = opened else { return Linkage::Dynamic };
        let mut start = Vec::new();
        let limit = u64::try_from(SCRIPT_LINE_BYTES).unwrap_or(u64::MAX);
        if file.by_ref().take(limit).read_to_end(&mut start).is_err() {
            return Linkage::Dynamic;
        }
        if let Some(interpreter) = interpreter(&start) {
            path = interpreter;
            continue;
        }
        if is_privileged(&path, &file) {
            return Linkage::Privileged;
        }
        return elf_linkage(&file, &start).unwrap_or(Linkage::Dynamic);
    }
    Linkage::Dynamic
}

/// Why the system says that a file is not there which is: its interpreter is not. `None` if that is
/// not the reason.
pub fn missing_interpreter(path: &Path) -> Option<String> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPT_DEPTH_MAX {
        let mut start = Vec::new();
        let limit = u64::try_from(SCRIPT_LINE_BYTES).unwrap_or(u64::MAX);
        File::open(&path).ok()?.take(limit).read_to_end(&mut start).ok()?;
        let Some(line) = start.strip_prefix(b"#!") else {
            // That of a program is its dynamic linker.
            let Linkage::OtherLibc { linker } = linkage(&path) else { return None };
            let is_there = Path::new(&linker).exists();
            return (!is_there).then(|| format!("its dynamic linker {linker} is not there"));
        };
        // The kernel takes all up to a space, a carriage return too.
        let line = line.split(|byte| *byte == b'\n').next()?;
        let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
        let interpreter = PathBuf::from(OsStr::from_bytes(words.next()?));
        if !interpreter.exists() {
            let shown = interpreter.to_string_lossy();
            return Some(match shown.strip_suffix('\r') {
                Some(name) => format!(
                    "the lines of the script end as on Windows, so that its interpreter is not \
                     {name}; convert it (dos2unix)"
                ),
                None => format!("its interpreter {shown} is not there; correct its first line"),
            });
        }
        path = interpreter;
    }
    None
}

/// The interpreter of a script. If that is `env`, the program that `env` would run.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let program = Path::new(OsStr::from_bytes(words.next()?));
    if program.file_name() == Some(OsStr::new("env"))
        && let Some(name) = words.find(|word| !word.starts_with(b"-"))
        && let Lookup::Found(path) =
            find(OsStr::from_bytes(name), std::env::var_os("PATH").as_deref())
    {
        return Some(path);
    }
    Some(program.to_owned())
}

/// True if executing the file changes the user, the group or the capabilities.
fn is_privileged(path: &Path, file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let set_user = metadata.mode() & 0o4000 != 0 && metadata.uid() != user;
    let set_group = metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != group;
    let mut value = [0_u8; 64];
    let capabilities = user != 0
        && rustix::fs::getxattr(path, "security.capability", value.as_mut_slice()).is_ok();
    set_user || set_group || capabilities
}

/// Reads the ELF header and the program headers. `None` if this is not an ELF file.
fn elf_linkage(file: &File, start: &[u8]) -> Option<Linkage> {
    const PROGRAM_INTERPRETER: u64 = 3;
    const PROGRAM_NOTE: u64 = 4;
    const ELF_64_LITTLE: [u8; 2] = [2, 1];
    if !start.starts_with(b"\x7fELF") {
        return None;
    }
    let here = File::open("/proc/self/exe").ok()?;
    let mut own = [0_u8; 20];
    here.read_exact_at(&mut own, 0).ok()?;
    if start.get(4..6)? != ELF_64_LITTLE || start.get(18..20)? != own.get(18..20)? {
        return Some(Linkage::OtherMachine);
    }
    let table = number(start, 32, 8)?;
    let size = number(start, 54, 2)?;
    let count = number(start, 56, 2)?.min(u64::from(HEADERS_MAX));
    let mut found = Linkage::Static;
    let mut is_go = false;
    for place in 0..count {
        let mut header = [0_u8; 56];
        file.read_exact_at(&mut header, table.checked_add(place.checked_mul(size)?)?).ok()?;
        let (kind, offset, length) =
            (number(&header, 0, 4)?, number(&header, 8, 8)?, number(&header, 32, 8)?);
        if kind == PROGRAM_INTERPRETER {
            let mut linker = vec![0_u8; usize::try_from(length.min(256)).ok()?];
            file.read_exact_at(&mut linker, offset).ok()?;
            let linker = String::from_utf8_lossy(&linker).trim_end_matches('\0').to_owned();
            found = if linker.contains("ld-linux") {
                Linkage::Dynamic
            } else {
                Linkage::OtherLibc { linker }
            };
        }
        if kind == PROGRAM_NOTE {
            let mut notes = vec![0_u8; usize::try_from(length.min(NOTES_BYTES_MAX)).ok()?];
            is_go |= file.read_exact_at(&mut notes, offset).is_ok() && names_go(&notes);
        }
    }
    Some(if is_go && found == Linkage::Dynamic { Linkage::Go } else { found })
}

/// True if one of the notes is the build ID of Go's linker: owner `Go`, type 4.
fn names_go(notes: &[u8]) -> bool {
    const TYPE: u64 = 4;
    let aligned = |length: u64| usize::try_from(length).ok()?.checked_next_multiple_of(4);
    let mut rest = notes;
    let mut next = || {
        let (name, description) = (number(rest, 0, 4)?, number(rest, 4, 4)?);
        let is_go = number(rest, 8, 4)? == TYPE && rest.get(12..16)? == b"Go\0\0";
        let behind = aligned(name)?.checked_add(aligned(description)?)?.checked_add(12)?;
        rest = rest.get(behind..)?;
        Some(is_go)
    };
    std::iter::from_fn(&mut next).any(|is_go| is_go)
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8], offset: usize, length: usize) -> Option<u64> {
    let mut word = [0_u8; 8];
    word.get_mut(..length)?.copy_from_slice(bytes.get(offset..offset.checked_add(length)?)?);
    Some(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(directory: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, content).expect("written");
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, permissions).expect("own file");
        path
    }

    /// The start of an ELF file for this machine with one program header of `kind`.
    fn elf(kind: u8, linker: &[u8]) -> Vec<u8> {
        let own = std::fs::read("/proc/self/exe").expect("this test");
        let mut file = own[..64].to_vec();
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&1_u16.to_le_bytes());
        let mut header = [0_u8; 56];
        header[0] = kind;
        header[8..16].copy_from_slice(&120_u64.to_le_bytes());
        header[32..40].copy_from_slice(&(linker.len() as u64).to_le_bytes());
        file.extend(header);
        file.extend(linker);
        file
    }

    #[test]
    fn a_fifo_is_not_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("fifo");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("a FIFO");
        assert_eq!(linkage(&path), Linkage::Dynamic);
        let script =
            write(directory.path(), "script", format!("#!{}\n", path.display()).as_bytes(), 0o755);
        assert_eq!(linkage(&script), Linkage::Dynamic);
    }

    #[test]
    fn notes_of_go_are_recognized() {
        let note = |owner: &[u8; 4], kind: u32, description: &[u8]| {
            let length = u32::try_from(description.len()).expect("short");
            let mut note = [4, length, kind].map(u32::to_le_bytes).concat();
            note.extend(owner);
            note.extend(description);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let (gnu, go) = (note(b"GNU\0", 3, b"name"), note(b"Go\0\0", 4, b"of a build"));
        assert!(names_go(&go) && names_go(&[gnu.clone(), go.clone()].concat()));
        assert!(!names_go(&gnu) && !names_go(&[]) && !names_go(&go[..14]));
        assert!(!names_go(&note(b"Go\0\0", 3, b"")), "another kind");
        assert!(!names_go(&[255; 64]), "lengths beyond all");
    }

    #[test]
    fn programs_are_searched_as_a_shell_does() {
        let root = tempfile::tempdir().expect("a directory");
        let (plain, executable) = (root.path().join("a"), root.path().join("b"));
        std::fs::create_dir_all(&plain).expect("the directory is created");
        std::fs::create_dir_all(&executable).expect("the directory is created");
        write(&plain, "tool", b"", 0o644);
        let tool = write(&executable, "tool", b"", 0o755);
        let path = std::env::join_paths([&plain, &executable]).expect("a path");
        assert_eq!(find(OsStr::new("tool"), Some(&path)), Lookup::Found(tool.clone()));
        assert_eq!(
            find(OsStr::new("tool"), Some(plain.as_os_str())),
            Lookup::NotExecutable(plain.join("tool"))
        );
        assert_eq!(find(OsStr::new("none"), Some(&path)), Lookup::NotFound);
        assert_eq!(find(OsStr::new(""), Some(&path)), Lookup::NotFound);
        assert_eq!(find(tool.as_os_str(), None), Lookup::Found(tool));
        assert_eq!(find(plain.as_os_str(), None), Lookup::NotExecutable(plain));
    }

    #[test]
    fn this_test_is_dynamic_and_a_file_without_interpreter_is_static() {
        assert_eq!(linkage(&std::env::current_exe().expect("this test")), Linkage::Dynamic);
        let root = tempfile::tempdir().expect("a directory");
        let path = write(root.path(), "static", &elf(1, b""), 0o755);
        assert_eq!(linkage(&path), Linkage::Static);
        assert!(!Linkage::Static.is_foreign());
    }

    #[test]
    fn programs_of_another_libc_or_machine_are_foreign() {
        let root = tempfile::tempdir().expect("a directory");
        let musl = elf(3, b"/lib/ld-musl-x86_64.so.1\0");
        let path = write(root.path(), "musl", &musl, 0o755);
        let linkage_of_musl = linkage(&path);
        assert!(linkage_of_musl.is_foreign());
        assert!(linkage_of_musl.obstacle().expect("an obstacle").contains("ld-musl-x86_64"));
        let mut other = elf(3, b"/lib64/ld-linux-x86-64.so.2\0");
        other[4] = 1;
        let path = write(root.path(), "small", &other, 0o755);
        assert_eq!(linkage(&path), Linkage::OtherMachine);
    }

    #[test]
    fn a_script_is_linked_as_its_interpreter() {
        let root = tempfile::tempdir().expect("a directory");
        let binary = write(root.path(), "static", &elf(1, b""), 0o755);
        let text = format!("#! {} -x\nrest", binary.display());
        let script = write(root.path(), "script", text.as_bytes(), 0o755);
        assert_eq!(linkage(&script), Linkage::Static);
        let text = format!("#!/usr/bin/env -S {}\n", binary.display());
        let script = write(root.path(), "by-env", text.as_bytes(), 0o755);
        assert_eq!(linkage(&script), Linkage::Static);
        let circle = root.path().join("circle");
        let text = format!("#!{}\n", circle.display());
        write(root.path(), "circle", text.as_bytes(), 0o755);
        assert_eq!(linkage(&circle), Linkage::Dynamic);
    }

    #[test]
    fn truncated_files_do_not_panic() {
        let root = tempfile::tempdir().expect("a directory");
        let whole = elf(3, b"/lib64/ld-linux-x86-64.so.2\0");
        for length in 0..whole.len() {
            let path = write(root.path(), "cut", &whole[..length], 0o755);
            let _ = linkage(&path);
        }
    }
}
