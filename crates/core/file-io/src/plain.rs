//! Requests by pread(2), pwrite(2), fsync(2) and fdatasync(2).

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::engine::Action;
use crate::space::Space;

/// Does one request whole. The number is that of the bytes that were moved.
pub(crate) fn run(
    file: &OwnedFd,
    action: Action,
    space: Option<&mut Space>,
) -> Result<usize, Errno> {
    let at = match action {
        Action::Sync => return rustix::fs::fsync(file).map(|()| 0),
        Action::DataSync => return rustix::fs::fdatasync(file).map(|()| 0),
        Action::Read { at } | Action::Write { at } => at,
    };
    let Some(space) = space else { return Err(Errno::INVAL) };
    let mut moved = 0;
    while moved < space.length() {
        let place = at.checked_add(moved as u64).and_then(|at| i64::try_from(at).ok());
        let place = place.ok_or(Errno::INVAL)?;
        let (start, left) = (space.start(moved).as_ptr(), space.length() - moved);
        let file = file.as_raw_fd();
        let count = if let Action::Read { .. } = action {
            // SAFETY: the range is inside the space, which is borrowed exclusively. The kernel
            // writes to it, and memory that others can reach tolerates that.
            unsafe { libc::pread(file, start.cast(), left, place) }
        } else {
            // SAFETY: the range is inside the space. The kernel reads from it.
            unsafe { libc::pwrite(file, start.cast_const().cast(), left, place) }
        };
        match usize::try_from(count) {
            Ok(0) if matches!(action, Action::Read { .. }) => return Ok(moved),
            // No file takes nothing without an error, but a loop over it would have no end.
            Ok(0) => return Err(Errno::IO),
            Ok(count) => moved += count,
            Err(_) => {
                let error = std::io::Error::last_os_error();
                let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                if error != Errno::INTR {
                    return Err(error);
                }
            }
        }
    }
    Ok(moved)
}
