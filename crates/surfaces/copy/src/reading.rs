//! The jobs of the source: where a file has data, its bytes with their hashes, and whether it is
//! still as it was.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{OFlags, SeekFrom, fstat, seek};
use rustix::io::{Errno, pread};
use weft_file_io::alignment_of;
use weft_transfer::{Code, FileId, Leaf, Loaded, Piece, Range, Steadiness, TreePath};

use crate::error::code_of;
use crate::metadata::{file_id, has_same_bytes};
use crate::pace::Pace;
use crate::report::Gauge;
use crate::space::Space;
use crate::tops::Tops;

/// Shorter files are read through the page cache.
const DIRECT_BYTES_MIN: u64 = 1 << 20;
/// Most ranges of one look at a file.
const EXTENTS_MAX: usize = 1_024;

/// The state that readers share.
#[derive(Debug)]
pub(crate) struct Reading {
    pub tops: Arc<Tops>,
    pub is_direct: bool,
    pub pace: Pace,
    pub gauge: Arc<Gauge>,
}

/// The file that one reader keeps open: pieces of a file come in a row.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    last: Option<Open>,
    /// Bytes on their way to a hash.
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    path: TreePath,
    id: FileId,
    file: OwnedFd,
    /// It was opened past the page cache.
    is_direct: bool,
}

fn trouble(error: Errno) -> (Code, String) {
    (code_of(error, Code::Read), format!("cannot be read: {error}"))
}

impl Reader {
    fn open(&mut self, reading: &Reading, path: &TreePath, id: &FileId) -> Result<&OwnedFd, Errno> {
        let is_open = matches!(&self.last, Some(last) if last.path == *path && last.id == *id);
        if !is_open {
            self.last = None;
            let file = reading.tops.open(path, OFlags::NOFOLLOW)?;
            let is_direct = reading.is_direct && id.size >= DIRECT_BYTES_MIN && with_direct(&file);
            self.last = Some(Open { path: path.clone(), id: *id, file, is_direct });
        }
        Ok(&self.last.as_ref().expect("it was just opened").file)
    }

    /// The file that is open is read.
    fn over(&mut self, reading: &Reading) {
        if self.last.take().is_some_and(|last| last.is_direct) {
            Gauge::add(&reading.gauge.files_direct, 1);
        }
    }

    /// Where a file has data from a place on.
    pub fn map(
        &mut self,
        reading: &Reading,
        path: &TreePath,
        id: &FileId,
        from: u64,
    ) -> Result<(Vec<Range>, Option<u64>), (Code, String)> {
        let file = self.open(reading, path, id).map_err(trouble)?;
        let (mut ranges, mut at) = (Vec::new(), from);
        while at < id.size {
            if ranges.len() == EXTENTS_MAX {
                return Ok((ranges, Some(at)));
            }
            let start = match seek(file, SeekFrom::Data(at)) {
                Ok(start) => start,
                // There is no data behind this place.
                Err(Errno::NXIO) => break,
                Err(error) => return Err(trouble(error)),
            };
            if start >= id.size {
                break;
            }
            let end = seek(file, SeekFrom::Hole(start)).map_err(trouble)?.min(id.size);
            // The file was cut meanwhile; reading tells.
            if end <= start {
                break;
            }
            ranges.push(Range { start, end });
            at = end;
        }
        Ok((ranges, None))
    }

    /// Whether a file is still as it was.
    pub fn close(&mut self, reading: &Reading, path: &TreePath, id: &FileId) -> Steadiness {
        let steadiness = match self.open(reading, path, id).and_then(fstat) {
            Ok(stat) if has_same_bytes(&file_id(&stat), id) => Steadiness::Same,
            _ => Steadiness::Changed,
        };
        self.over(reading);
        steadiness
    }

    /// Reads pieces into a buffer, one behind the other. Pieces that fail take no place.
    pub fn load(&mut self, reading: &Reading, pieces: &[Piece], space: &mut Space) -> Vec<Loaded> {
        let mut end = 0;
        let mut all = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let length = usize::try_from(piece.length).expect("a block fits memory");
            reading.pace.take(u64::from(piece.length));
            let loaded = self.piece(reading, piece, space, (end, length)).map_err(trouble);
            if let Ok((leaf, _)) = &loaded {
                end += usize::try_from(leaf.length).expect("as long as the piece, or less");
            }
            all.push(loaded);
        }
        all
    }

    fn piece(
        &mut self,
        reading: &Reading,
        piece: &Piece,
        space: &mut Space,
        place: (usize, usize),
    ) -> Result<(Leaf, Steadiness), Errno> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let file = self.open(reading, &piece.path, &piece.id)?;
        let from = (file, piece.offset);
        let (read, hash) = space.fill(place, from, !reading.is_direct, &mut scratch)?;
        let mut steadiness = Steadiness::Same;
        if piece.is_whole {
            if !has_same_bytes(&file_id(&fstat(file)?), &piece.id) {
                steadiness = Steadiness::Changed;
            }
            self.over(reading);
        }
        self.scratch = scratch;
        let length = u32::try_from(read).expect("as long as the piece, or less");
        let leaf = Leaf { offset: piece.offset, length, hash };
        Ok((leaf, steadiness))
    }
}

/// Reads until the space is full or the file ends.
pub(crate) fn read_whole(file: &OwnedFd, space: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut read = 0;
    while read < space.len() {
        let count = match pread(file, &mut space[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            // The end of a file is not aligned, nor is a place behind a short read.
            Err(Errno::INVAL) if without_direct(file) => continue,
            Err(error) => return Err(error),
        };
        read += count;
    }
    Ok(read)
}

/// Has a file go past the page cache. False if it cannot: it is read and written as usual.
pub(crate) fn with_direct(file: &OwnedFd) -> bool {
    alignment_of(file).is_some() && rustix::fs::fcntl_setfl(file, OFlags::DIRECT).is_ok()
}

/// Takes `O_DIRECT` away. False if it was not there.
pub(crate) fn without_direct(file: &OwnedFd) -> bool {
    match rustix::fs::fcntl_getfl(file) {
        Ok(flags) if flags.contains(OFlags::DIRECT) => {
            rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT).is_ok()
        }
        _ => false,
    }
}
