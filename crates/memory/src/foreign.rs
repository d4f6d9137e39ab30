//! Memory of another process, read by the kernel on our behalf.

use rustix::io::Errno;

/// Most parts of a target that the kernel takes in one call.
const PARTS_MAX: usize = 1024;

/// Copies what is at `address` in the memory of `process` into `targets`, one after the other.
/// Returns how many bytes that were: fewer than fit where not all of it can be read.
///
/// # Errors
/// As process_vm_readv(2): `PERM` where this process may not trace the other, `SRCH` when that is
/// gone, `FAULT` when nothing is there.
pub fn read_process(process: u32, address: u64, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
    let process = i32::try_from(process).map_err(|_| Errno::SRCH)?;
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    let parts: Vec<libc::iovec> = targets
        .iter_mut()
        .take(PARTS_MAX)
        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
        .collect();
    let length = parts.iter().map(|part| part.iov_len).sum();
    let there =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: length };
    // SAFETY: the parts are memory that the caller lent for writing; the other process's memory is
    // touched by the kernel alone, which checks that it is there and that this process may read it.
    let copied = unsafe {
        libc::process_vm_readv(process, parts.as_ptr(), parts.len() as libc::c_ulong, &there, 1, 0)
    };
    usize::try_from(copied)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn own() -> u32 {
        std::process::id()
    }

    #[test]
    fn what_is_there_comes_in_parts() {
        let source: Vec<u8> = (0..=255).collect();
        let (mut one, mut two) = ([0; 100], [0; 156]);
        let address = source.as_ptr() as u64;
        assert_eq!(read_process(own(), address, &mut [&mut one, &mut [], &mut two]), Ok(256));
        assert_eq!([&one[..], &two[..]].concat(), source);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let mut target = [0; 8];
        assert_eq!(read_process(own(), 8, &mut [&mut target]), Err(Errno::FAULT));
        assert_eq!(read_process(u32::MAX, 8, &mut [&mut target]), Err(Errno::SRCH));
        assert_eq!(read_process(own(), 8, &mut []), Ok(0));
    }
}
