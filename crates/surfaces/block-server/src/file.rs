//! A store in a file or on a block device.
//!
//! Every access names its position: no position of a descriptor is shared. A flush is `fdatasync`.
//! An error of a flush is told to all later flushes as well, since the kernel tells it only once
//! and forgets which pages were lost.

use std::any::Any;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate};
use rustix::io::Errno;
use weft_block::store::{Extent, Store, StoreError};
use weft_file_io::{Engine, Kind, Options, Pool, Way, alignment_of};

/// Buffers for direct access are of this size, and aligned to it.
const DIRECT_BYTES: usize = 1 << 20;
/// Buffers for direct access of a file: as many as threads wait for it.
const BUFFERS: usize = 16;
/// A thread waits for a buffer no longer than for a device that hangs.
const BUFFER_WITHIN: Duration = Duration::from_secs(60);

/// A store in a file or on a block device.
#[derive(Debug)]
pub struct FileStore {
    file: File,
    /// A description of its own, whose position finds holes.
    seeker: Mutex<File>,
    bytes: u64,
    is_read_only: bool,
    is_device: bool,
    has_failed: AtomicBool,
    direct: Option<Direct>,
}

/// A file as requests of io_uring have it.
#[derive(Clone, Debug)]
pub(crate) struct RingFile {
    pub file: Arc<OwnedFd>,
    /// Places and lengths in the file are multiples of this.
    pub alignment: usize,
}

/// Access past the page cache.
#[derive(Clone, Debug)]
struct Direct {
    buffers: Pool,
    /// If the kernel lets this process use io_uring.
    ring: Option<RingFile>,
    /// Places and lengths in the file are multiples of this.
    alignment: usize,
}

impl Direct {
    fn of(file: &File, way: Way) -> io::Result<Self> {
        let alignment = alignment_of(file)
            .map(|it| it.offset)
            .filter(|it| it.is_power_of_two() && *it <= DIRECT_BYTES / 2)
            .ok_or_else(|| io::Error::other("its file system has no direct access"))?;
        let buffers = Pool::new(DIRECT_BYTES, BUFFERS).map_err(io::Error::other)?;
        // Only whether there is one: those that serve the file are the threads' own.
        let engine = Engine::new(&Options { depth: 1, way }).map_err(io::Error::other)?;
        if way == Way::Auto
            && let Some(why) = engine.why_plain()
        {
            tracing::info!("files are read and written by pread and pwrite: {why}");
        }
        let ring = (engine.kind() == Kind::Uring)
            .then(|| {
                io::Result::Ok(RingFile { file: Arc::new(file.try_clone()?.into()), alignment })
            })
            .transpose()?;
        Ok(Self { buffers, ring, alignment })
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FileOptions {
    /// Past the page cache (`O_DIRECT`), in this way. Through it, it is by pread and pwrite.
    pub direct: Option<Way>,
    /// For reading alone.
    pub is_read_only: bool,
}

impl FileStore {
    /// Opens a file or a block device, and locks it against other servers.
    ///
    /// # Errors
    /// The file cannot be opened, another process has locked it, or its size is no multiple of 512.
    pub fn open(path: &Path, options: FileOptions) -> io::Result<Self> {
        let flags = if options.direct.is_some() { direct_flag() } else { 0 };
        let open = |flags: i32| {
            OpenOptions::new()
                .read(true)
                .write(!options.is_read_only)
                .custom_flags(flags)
                .open(path)
        };
        let file = open(flags)?;
        let lock = match options.is_read_only {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        rustix::fs::flock(&file, lock).map_err(|errno| match errno {
            Errno::WOULDBLOCK => io::Error::other("another process serves it already"),
            errno => errno.into(),
        })?;
        let kind = file.metadata()?.file_type();
        let is_device = kind.is_block_device();
        if !is_device && !kind.is_file() {
            return Err(io::Error::other("it is no file and no block device"));
        }
        let seeker = Mutex::new(open(0)?);
        let bytes = rustix::fs::seek(&*seeker.lock(), SeekFrom::End(0))?;
        if bytes == 0 || bytes % 512 != 0 {
            let message = format!("its size, {bytes} bytes, is no multiple of 512; truncate it");
            return Err(io::Error::other(message));
        }
        let direct = options.direct.map(|way| Direct::of(&file, way)).transpose()?;
        let (is_read_only, has_failed) = (options.is_read_only, AtomicBool::new(false));
        Ok(Self { file, seeker, bytes, is_read_only, is_device, has_failed, direct })
    }

    /// Makes a file longer or shorter, or takes the new size of a device. The path is opened again.
    ///
    /// # Errors
    /// Those of ftruncate(2) and [`FileStore::open`].
    pub fn resized(&self, path: &PathBuf, bytes: u64, options: FileOptions) -> io::Result<Self> {
        if !self.is_device {
            self.file.set_len(bytes)?;
            self.file.sync_all()?;
        }
        // The lock belongs to the description, which the new one shares.
        let write = !options.is_read_only;
        let seeker = Mutex::new(OpenOptions::new().read(true).write(write).open(path)?);
        let bytes = rustix::fs::seek(&*seeker.lock(), SeekFrom::End(0))?;
        Ok(Self {
            file: self.file.try_clone()?,
            seeker,
            bytes,
            is_read_only: options.is_read_only,
            is_device: self.is_device,
            has_failed: AtomicBool::new(self.has_failed.load(Ordering::Acquire)),
            direct: self.direct.clone(),
        })
    }

    /// Calls `work` with the parts of a range that fit into a buffer, and with the buffer.
    fn by_buffers(
        direct: &Direct,
        at: u64,
        length: usize,
        mut work: impl FnMut(&mut [u8], &Part) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let alignment = direct.alignment;
        let mut buffer = direct.buffers.take_within(BUFFER_WITHIN).ok_or(StoreError::Offline)?;
        let mut done = 0;
        while done < length {
            let place = at + done as u64;
            let skip = usize::try_from(place % alignment as u64).expect("less than the alignment");
            let part = (length - done).min(DIRECT_BYTES - skip);
            let whole = (skip + part).next_multiple_of(alignment);
            let part = Part { from: done, length: part, skip, whole, at: place - skip as u64 };
            work(&mut buffer, &part)?;
            done += part.length;
        }
        Ok(())
    }

    fn fill(&self, buffer: &mut [u8], part: &Part) -> Result<(), StoreError> {
        let mut done = 0;
        // The last bytes of a file whose size is no multiple of the alignment are not there.
        while done < part.skip + part.length {
            let step = self.file.read_at(&mut buffer[done..part.whole], part.at + done as u64);
            match step {
                Ok(0) => return Err(StoreError::Unreadable),
                Ok(step) => done += step,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(StoreError::Unreadable),
            }
        }
        Ok(())
    }
}

/// A part of a range: its place there, its length; the aligned place and length in the file, and
/// the bytes that are skipped at their begin.
struct Part {
    from: usize,
    length: usize,
    skip: usize,
    whole: usize,
    at: u64,
}

impl Store for FileStore {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn is_thin(&self) -> bool {
        !self.is_read_only
    }

    fn file(&self) -> Option<&dyn Any> {
        self.direct.as_ref()?.ring.as_ref().map(|ring| ring as &dyn Any)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let Some(direct) = &self.direct else {
            return self.file.read_exact_at(into, at).map_err(|_| StoreError::Unreadable);
        };
        Self::by_buffers(direct, at, into.len(), |buffer, part| {
            self.fill(buffer, part)?;
            let into = &mut into[part.from..part.from + part.length];
            into.copy_from_slice(&buffer[part.skip..part.skip + part.length]);
            Ok(())
        })
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), StoreError> {
        let Some(direct) = &self.direct else {
            return self.file.write_all_at(from, at).map_err(|error| write_error(&error));
        };
        Self::by_buffers(direct, at, from.len(), |buffer, part| {
            let bytes = &from[part.from..part.from + part.length];
            let is_whole = part.skip == 0 && part.whole == part.length;
            let written = if is_whole {
                buffer[..part.whole].copy_from_slice(bytes);
                self.file.write_all_at(&buffer[..part.whole], part.at)
            } else {
                // Others may write the rest of these pages now: such writes go over the cache.
                let seeker = self.seeker.lock();
                let written = seeker.write_all_at(bytes, part.at + part.skip as u64);
                written.and_then(|()| seeker.sync_data())
            };
            written.map_err(|error| write_error(&error))
        })
    }

    fn flush(&self) -> Result<(), StoreError> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(StoreError::Unwritable);
        }
        if self.is_read_only {
            return Ok(());
        }
        self.file.sync_data().map_err(|error| {
            self.has_failed.store(true, Ordering::Release);
            write_error(&error)
        })
    }

    fn zero(&self, at: u64, length: u64, may_unmap: bool) -> Result<(), StoreError> {
        let flags = match may_unmap {
            true => FallocateFlags::PUNCH_HOLE,
            false => FallocateFlags::ZERO_RANGE,
        };
        match fallocate(&self.file, flags | FallocateFlags::KEEP_SIZE, at, length) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::NOSYS) => self.write_zeros(at, length),
            Err(errno) => Err(write_error(&errno.into())),
        }
    }

    fn extents(&self, at: u64, length: u64, count: usize) -> Result<Vec<Extent>, StoreError> {
        if self.is_device {
            return Ok(vec![Extent { length, is_hole: false }]);
        }
        extents_of(&*self.seeker.lock(), at, length, count)
    }
}

impl FileStore {
    fn write_zeros(&self, at: u64, length: u64) -> Result<(), StoreError> {
        let zeros = vec![0; usize::try_from(length.min(1 << 20)).expect("a MiB")];
        let mut done = 0;
        while done < length {
            let step = usize::try_from((length - done).min(1 << 20)).expect("a MiB");
            self.write(at + done, &zeros[..step])?;
            done += step as u64;
        }
        Ok(())
    }
}

/// The extents of a file, by its holes.
///
/// The position of the descriptor is moved, so it has to be one that nobody reads at its position.
fn extents_of(
    file: impl std::os::fd::AsFd,
    at: u64,
    length: u64,
    count: usize,
) -> Result<Vec<Extent>, StoreError> {
    let end = at + length;
    let (mut at, mut all) = (at, Vec::new());
    while at < end && all.len() < count {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(Errno::NXIO) => end,
            // A file system without holes.
            Err(Errno::INVAL) => at,
            Err(_) => return Err(StoreError::Unreadable),
        };
        if data > at {
            all.push(Extent { length: data - at, is_hole: true });
            at = data;
            continue;
        }
        let hole = match rustix::fs::seek(&file, SeekFrom::Hole(at)) {
            Ok(hole) => hole.clamp(at + 1, end),
            Err(Errno::INVAL | Errno::NXIO) => end,
            Err(_) => return Err(StoreError::Unreadable),
        };
        all.push(Extent { length: hole - at, is_hole: false });
        at = hole;
    }
    Ok(all)
}

/// `O_DIRECT` as the standard library takes it.
fn direct_flag() -> i32 {
    i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("a flag of open(2) is small")
}

pub(crate) fn write_error(error: &io::Error) -> StoreError {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => StoreError::NoSpace,
        Some(Errno::ROFS | Errno::BADF | Errno::PERM) => StoreError::ReadOnly,
        Some(Errno::NXIO | Errno::NODEV) => StoreError::Offline,
        _ => StoreError::Unwritable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64) -> (tempfile::TempDir, PathBuf) {
        // Not below /tmp, which may be a file system without direct access.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
        let path = directory.path().join("disk");
        File::create(&path).and_then(|file| file.set_len(bytes)).expect("fresh");
        (directory, path)
    }

    #[test]
    fn bytes_are_read_as_they_were_written_directly_or_not() {
        for direct in [None, Some(Way::Auto)] {
            let (_directory, path) = file(4 << 20);
            let options = FileOptions { direct, is_read_only: false };
            let store = FileStore::open(&path, options).expect("a file");
            let bytes: Vec<u8> = (0..=255).cycle().take(1_500_160).collect();
            for at in [0, 512, 4096, (4 << 20) - 1_500_160] {
                store.write(at, &bytes).expect("room");
                let mut seen = vec![0; bytes.len()];
                store.read(at, &mut seen).expect("written");
                assert!(seen == bytes, "{at} {direct:?}");
            }
            store.flush().expect("a file");
            store.zero(4096, 8192, true).expect("a file");
            let mut seen = [1; 12_288];
            store.read(0, &mut seen).expect("written");
            assert!(seen[4096..] == [0; 8192] && seen[4095] != 0);
        }
    }

    #[test]
    fn a_file_is_served_once_and_has_whole_blocks() {
        let (_directory, path) = file(1 << 20);
        let _first = FileStore::open(&path, FileOptions::default()).expect("a file");
        let error = FileStore::open(&path, FileOptions::default()).expect_err("locked");
        assert!(error.to_string().contains("already"), "{error}");
        let (_directory, path) = file(1000);
        let error = FileStore::open(&path, FileOptions::default()).expect_err("no blocks");
        assert!(error.to_string().contains("512"), "{error}");
    }
}
