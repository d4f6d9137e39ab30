//! Files that keep the reservations of units over a restart.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use weft_block::store::{Keeper, StoreError};

/// Bytes of what is kept at most: 256 registrations with long names fit.
const BYTES_MAX: u64 = 1 << 20;

/// A file that keeps the reservations of one unit.
#[derive(Debug)]
pub struct FileKeeper {
    directory: PathBuf,
    name: String,
}

impl FileKeeper {
    /// The keeper of a unit, and what it has kept.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(directory: &Path, serial: &str) -> io::Result<(Self, Option<Vec<u8>>)> {
        let name = format!("{serial}.reservations.json");
        let path = directory.join(&name);
        let kept = match fs::metadata(&path) {
            Ok(about) if about.len() > BYTES_MAX => {
                return Err(io::Error::other(format!("{} is too long", path.display())));
            }
            Ok(_) => Some(fs::read(&path)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok((Self { directory: directory.to_owned(), name }, kept))
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let new = self.directory.join(format!("{}.new", self.name));
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, self.directory.join(&self.name))?;
        File::open(&self.directory)?.sync_all()
    }
}

impl Keeper for FileKeeper {
    fn keep(&self, bytes: &[u8]) -> Result<(), StoreError> {
        self.write(bytes).map_err(|error| {
            tracing::error!("{}: reservations cannot be kept: {error}", self.name);
            StoreError::Unwritable
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state");
        let (keeper, kept) = FileKeeper::open(&path, "abc").expect("fresh");
        assert_eq!(kept, None);
        keeper.keep(b"one").expect("room");
        keeper.keep(b"two").expect("room");
        assert_eq!(FileKeeper::open(&path, "abc").expect("kept").1, Some(b"two".to_vec()));
        assert_eq!(FileKeeper::open(&path, "abd").expect("fresh").1, None);
    }
}
