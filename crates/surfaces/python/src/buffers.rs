//! The buffer protocol: bytes of other objects, and views of the own memory.
//!
//! All `unsafe` of this crate is here. Bytes behind a buffer may be written by other threads and,
//! in registered memory, by peers, while they are copied. Nothing here decides by their values:
//! they are copied once, and a copy beside a write has some bytes of before and some of after it.

use std::ffi::{c_int, c_void};
use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Bytes of an object with the buffer protocol, in one piece.
pub(crate) enum Bytes<'py> {
    /// An object of the type `bytes`, which never changes.
    Constant(Bound<'py, PyBytes>),
    /// Any other one.
    Shared(PyUntypedBuffer),
}

impl<'py> Bytes<'py> {
    /// The bytes of `object`, which may be of any type, as long as they lie in one piece.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Constant(bytes.clone()));
        }
        in_one_piece(PyUntypedBuffer::get(object)?).map(Self::Shared)
    }

    /// Their address and number.
    pub(crate) fn place(&self) -> (usize, usize) {
        match self {
            Self::Constant(bytes) => (bytes.as_bytes().as_ptr().addr(), bytes.as_bytes().len()),
            Self::Shared(buffer) => (buffer.buf_ptr().addr(), buffer.len_bytes()),
        }
    }

    /// The bytes, to be copied from.
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Constant(bytes) => bytes.as_bytes(),
            Self::Shared(buffer) if buffer.len_bytes() == 0 => &[],
            Self::Shared(buffer) => {
                // SAFETY: the buffer is in one piece of this length, and its exporter keeps it
                // where it is until the buffer is released, which the borrow comes before. Others
                // may write to it: see the head of this module.
                unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) }
            }
        }
    }
}

/// Bytes of an object that may be written, in one piece.
pub(crate) struct BytesMut(PyUntypedBuffer);

impl BytesMut {
    /// The bytes of `object`, if they may be written.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = in_one_piece(PyUntypedBuffer::get(object)?)?;
        if buffer.readonly() {
            return Err(PyBufferError::new_err("the bytes may not be written"));
        }
        Ok(Self(buffer))
    }

    /// Their address and number.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.0.buf_ptr().addr(), self.0.len_bytes())
    }

    /// The bytes, to be copied to.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as in `Bytes::as_slice`; the exporter says that it may be written. Nothing is
        // read from the slice.
        unsafe { slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

fn in_one_piece(buffer: PyUntypedBuffer) -> PyResult<PyUntypedBuffer> {
    if buffer.is_c_contiguous() {
        Ok(buffer)
    } else {
        let text = "the bytes must lie in one piece, in C order; make a copy that does";
        Err(PyBufferError::new_err(text))
    }
}

/// Fills `view` with bytes at `base` that `owner` keeps, which may be written.
///
/// # Safety
/// `view` is null, or may be written to. The `length` bytes at `base` stay mapped and may be
/// written until `view` is released.
pub(crate) unsafe fn fill(
    view: *mut ffi::Py_buffer,
    owner: Bound<'_, PyAny>,
    (base, length): (*mut u8, usize),
    flags: c_int,
) -> PyResult<()> {
    let Ok(length) = isize::try_from(length) else {
        return Err(PyBufferError::new_err("more bytes than a buffer may have"));
    };
    // SAFETY: `PyBuffer_FillInfo` takes a null `view` for an error of the caller and raises it,
    // else fills it; by the caller's promise it may, and the bytes stay as long as it needs. It
    // takes a reference of its own to `owner`.
    let filled = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), base.cast::<c_void>(), length, 0, flags)
    };
    if filled < 0 { Err(PyErr::fetch(owner.py())) } else { Ok(()) }
}
