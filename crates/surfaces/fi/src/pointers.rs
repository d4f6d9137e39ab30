//! Pointers that a program passes, by the contract of libfabric.
//!
//! Functions of the tables take these types in place of raw pointers, so that all that is believed
//! of a program is said here: an object is one that this provider made and has not closed; a
//! structure, an array or a string is what its type says, for the time of the call; a place to
//! write to is one. Null is allowed everywhere, and found.

use std::ffi::{CStr, c_char};

use weft_libfabric::abi::Fid;

/// An object that this provider made.
#[repr(transparent)]
pub struct Object<T>(*const T);

impl<T> Clone for Object<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Object<T> {}

impl<T> std::ops::Deref for Object<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the program passes an object that this provider made, and closes it behind its
        // last use. Objects are changed under locks alone.
        unsafe { &*self.0 }
    }
}

impl<T> Object<T> {
    /// Makes an object, which lives until [`Object::destroy`].
    pub fn new(value: T) -> Self {
        Self(Box::into_raw(Box::new(value)))
    }

    /// The same object as another type: that of its first field, or back.
    pub const fn cast<U>(self) -> Object<U> {
        Object(self.0.cast())
    }

    /// Ends the object. The caller makes sure that the program closes it, and that it is the type
    /// with which it was made.
    pub fn destroy(self) {
        // SAFETY: it was made by `new` with this type; the program uses it no more.
        drop(unsafe { Box::from_raw(self.0.cast_mut()) });
    }
}

/// A structure or an array that the program passes, or null.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// The structure.
    #[inline]
    pub fn get<'a>(self) -> Option<&'a T> {
        // SAFETY: what a program passes is a structure of this type, or null.
        unsafe { self.0.as_ref() }
    }

    /// The first `count` things of an array.
    #[inline]
    pub fn array<'a>(self, count: usize) -> &'a [T] {
        if self.0.is_null() || count == 0 {
            return &[];
        }
        // SAFETY: the program says that so many things are there.
        unsafe { std::slice::from_raw_parts(self.0, count) }
    }
}

/// A string that the program passes, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    pub fn get<'a>(self) -> Option<&'a CStr> {
        // SAFETY: what a program passes ends with a zero, or is null.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

/// A place that the program has for one thing or several, or null.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes to place `index`.
    #[inline]
    pub fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: the program has places for as many as it said, and the caller keeps to that.
            // The value from before is of C and has no destructor.
            unsafe { self.0.add(index).write(value) };
        }
    }

    #[inline]
    pub fn set(self, value: T) {
        self.set_at(0, value);
    }

    /// The same place for things of another type.
    pub const fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// The place, to change some of it.
    pub fn get<'a>(self) -> Option<&'a mut T> {
        // SAFETY: the program passes a place that holds such a thing, or null, and touches it not
        // during the call.
        unsafe { self.0.as_mut() }
    }
}

impl<T> From<*mut T> for Out<T> {
    /// A place in a structure that the program passed or the host made.
    fn from(place: *mut T) -> Self {
        Self(place)
    }
}

impl<T> From<*const T> for In<T> {
    /// The memory to which a structure of the program points.
    fn from(place: *const T) -> Self {
        Self(place)
    }
}

impl Out<u8> {
    /// Writes bytes from `offset` on.
    #[inline]
    pub fn put(self, offset: usize, bytes: &[u8]) {
        if !self.0.is_null() {
            // SAFETY: the program has places for as many as it said, and the caller keeps to that.
            unsafe { self.0.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
    }
}

/// The head of an object.
pub fn head<const N: usize>(class: usize, context: usize, ops: &'static Table<N>) -> Fid {
    let context = std::ptr::without_provenance_mut(context);
    Fid { class, context, ops: (&raw const *ops).cast() }
}

/// A function in a table.
#[repr(transparent)]
pub struct Entry(pub *const ());

// SAFETY: it is the address of a function.
unsafe impl Sync for Entry {}

/// A table of functions, with its size in bytes before it.
#[repr(C)]
pub struct Table<const N: usize> {
    size: usize,
    entries: [Entry; N],
}

impl<const N: usize> Table<N> {
    pub const fn new(entries: [Entry; N]) -> Self {
        Self { size: (N + 1) * size_of::<usize>(), entries }
    }
}

/// A table of functions of these names.
macro_rules! table {
    ($name:ident: $count:literal = $($function:expr),* $(,)?) => {
        pub static $name: $crate::pointers::Table<$count> =
            $crate::pointers::Table::new([$($crate::pointers::Entry($function as *const ())),*]);
    };
}
pub(crate) use table;
