//! Doors at which tests stop a thread inside an operation, as SIGSTOP could stop its process.
//!
//! Without the feature `test-doors` nothing of this is left.

#[cfg(any(test, feature = "test-doors"))]
pub use open::{Door, on_passing};

/// The door between the look at a key and the access to the memory.
#[inline(always)]
pub(crate) fn before() {
    #[cfg(any(test, feature = "test-doors"))]
    open::pass(Door::Before);
}

/// The door between the access to the memory and the second look at the key.
#[inline(always)]
pub(crate) fn behind() {
    #[cfg(any(test, feature = "test-doors"))]
    open::pass(Door::Behind);
}

/// The door between the second look at the key and the word that the operation has ended.
#[inline(always)]
pub(crate) fn confirmed() {
    #[cfg(any(test, feature = "test-doors"))]
    open::pass(Door::Confirmed);
}

#[cfg(any(test, feature = "test-doors"))]
mod open {
    use std::cell::RefCell;

    /// A place in an operation.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Door {
        /// Between the look at the key and the access to the memory.
        Before,
        /// Between the access and the second look at the key.
        Behind,
        /// Between that look and the word that the operation has ended.
        Confirmed,
    }

    type Passing = Box<dyn FnMut(Door)>;

    thread_local! {
        static PASSING: RefCell<Option<Passing>> = const { RefCell::new(None) };
    }

    /// Has this thread call `passing` at each door, in place of what it called before.
    pub fn on_passing(passing: impl FnMut(Door) + 'static) {
        PASSING.with(|cell| *cell.borrow_mut() = Some(Box::new(passing)));
    }

    pub fn pass(door: Door) {
        PASSING.with(|cell| {
            if let Some(passing) = cell.borrow_mut().as_mut() {
                passing(door);
            }
        });
    }
}
