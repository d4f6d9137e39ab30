//! A directory of the operating system, by `pread` and `pwrite`.
//!
//! Always true: one process at a time has the directory open (a lock on the file `LOCK`), and at
//! most [`RealDisk::open`]'s number of files is open at once: older ones are closed, and opened
//! again when they are read.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use super::{Disk, DiskFile};

/// Name of the file that is locked while a store is open.
pub const LOCK: &str = "LOCK";

/// Prefix of the names of files that are being made.
const UNFINISHED: &str = "new-";

/// A directory that this process has locked.
pub struct RealDisk {
    path: PathBuf,
    open: Arc<OpenFiles>,
    _lock: File,
}

/// The files that have a descriptor, oldest first.
struct OpenFiles {
    most: usize,
    queue: Mutex<VecDeque<Weak<RealFile>>>,
}

struct RealFile {
    path: PathBuf,
    open: Arc<OpenFiles>,
    own: Weak<RealFile>,
    file: Mutex<Option<Arc<File>>>,
}

impl RealDisk {
    /// Makes the directory if it is not there, and locks it. At most `files_max` files of it are
    /// open at once.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process has it open, and those of the device.
    pub fn open(path: &Path, files_max: usize) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let name = path.join(LOCK);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&name)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!("{} is in use by another process", path.display()),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                std::fs::remove_file(entry.path())?;
            }
        }
        let open = OpenFiles { most: files_max.max(4), queue: Mutex::new(VecDeque::new()) };
        Ok(Self { path: path.to_owned(), open: Arc::new(open), _lock: lock })
    }

    fn file(&self, name: &str, file: File) -> Arc<dyn DiskFile> {
        let real = Arc::new_cyclic(|own| RealFile {
            path: self.path.join(name),
            open: Arc::clone(&self.open),
            own: own.clone(),
            file: Mutex::new(Some(Arc::new(file))),
        });
        self.open.add(&real);
        real
    }
}

impl OpenFiles {
    fn add(&self, file: &Arc<RealFile>) {
        let mut queue = self.queue.lock();
        queue.push_back(Arc::downgrade(file));
        while queue.len() > self.most {
            let oldest = queue.pop_front().and_then(|weak| weak.upgrade());
            if let Some(oldest) = oldest {
                oldest.file.lock().take();
            }
        }
    }
}

impl RealFile {
    fn descriptor(&self) -> io::Result<Arc<File>> {
        let mut slot = self.file.lock();
        if let Some(file) = slot.as_ref() {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(OpenOptions::new().read(true).write(true).open(&self.path)?);
        *slot = Some(Arc::clone(&file));
        drop(slot);
        if let Some(own) = self.own.upgrade() {
            self.open.add(&own);
        }
        Ok(file)
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        // Under another name until the space is there: a file of this name is never short.
        let path = self.path.join(format!("{UNFINISHED}{name}"));
        let file =
            OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path)?;
        let made = if bytes > 0 { reserve(&file, bytes) } else { Ok(()) };
        if let Err(error) = made.and_then(|()| std::fs::rename(&path, self.path.join(name))) {
            drop(file);
            std::fs::remove_file(&path)?;
            return Err(error);
        }
        Ok(self.file(name, file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(self.file(name, file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string()
                && name != LOCK
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Reserves space; where a file system cannot, a full device is found by the write in place.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(bytes),
        other => Ok(other?),
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.descriptor()?.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.descriptor()?.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.descriptor()?.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.descriptor()?.metadata()?.len())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.descriptor()?.set_len(bytes)
    }
}
