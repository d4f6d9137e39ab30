//! Text files of bounded length: nothing that a user names by mistake takes all memory.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Bytes of a topology file at most: those of 65,536 nodes with six links, and some more.
pub const TOPOLOGY_BYTES_MAX: u64 = 64 << 20;

/// The text of a file.
///
/// # Errors
/// Those of the system; the file is no text, or has more than `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> Result<String> {
    let mut text = String::new();
    let length = File::open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    if u64::try_from(length).is_ok_and(|length| length <= bytes_max) {
        // Some editors mark their texts as Unicode.
        return Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text));
    }
    Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes")))
}

/// Tells which data of a topology file mean nothing to weft.
pub fn tell_left_out(path: &Path, names: &[String]) {
    if !names.is_empty() {
        let shown = path.display();
        eprintln!("weft: warning: {shown}: data without a meaning here: {}", names.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_is_too_long_or_has_no_end_is_refused() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"abc").expect("it is written");
        assert_eq!(read(file.path(), 3).expect("it fits"), "abc");
        let mut marked = tempfile::NamedTempFile::new().expect("a file");
        marked.write_all("\u{feff}abc".as_bytes()).expect("it is written");
        assert_eq!(read(marked.path(), 9).expect("it fits"), "abc");
        let refused = |path: &Path, most| read(path, most).expect_err("too long").to_string();
        assert_eq!(refused(file.path(), 2), "it has more than 2 bytes");
        assert_eq!(refused(Path::new("/dev/zero"), 9), "it has more than 9 bytes");
    }
}
