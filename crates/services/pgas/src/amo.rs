//! Atomics on words of other PEs, by the processor: on other hosts by that of the PE's own process.
//!
//! # Invariant
//! Every atomic of a word goes through the processor, so all of them exclude each other, whatever
//! their types. Floating point is kept as bits.

use std::ffi::c_int;
use std::sync::atomic::{
    AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, SeqCst},
};

use weft_fabric::AtomicOperation;

use crate::elsewhere;
use crate::fault::{Fault, raise};
use crate::space;
use crate::via::Via;

/// A type that is loaded, stored and exchanged atomically.
pub trait Atom: Copy + PartialEq {
    /// Loads it.
    ///
    /// # Safety
    /// The word must be mapped and aligned.
    unsafe fn load(word: *const Self) -> Self;
    /// Stores it.
    ///
    /// # Safety
    /// As [`Atom::load`].
    unsafe fn store(word: *mut Self, value: Self);
    /// Exchanges it.
    ///
    /// # Safety
    /// As [`Atom::load`].
    unsafe fn exchange(word: *mut Self, value: Self) -> Self;
}

/// A whole number with all atomics.
pub trait Whole: Atom {
    /// One.
    const ONE: Self;
    /// Adds, and gives the former value.
    ///
    /// # Safety
    /// As [`Atom::load`].
    unsafe fn plus(word: *mut Self, value: Self) -> Self;
    /// Ands, and gives the former value.
    ///
    /// # Safety
    /// As [`Atom::load`].
    unsafe fn masked(word: *mut Self, value: Self) -> Self;
    /// Ors, and gives the former value.
    ///
    /// # Safety
    /// As [`Atom::load`].
    unsafe fn joined(word: *mut Self, value: Self) -> Self;
    /// Exclusively ors, and gives the former value.
    ///
    /// # Safety
    /// As [`Atom::load`].
    unsafe fn flipped(word: *mut Self, value: Self) -> Self;
    /// Stores a value if the word has another one, and gives the former value.
    ///
    /// # Safety
    /// As [`Atom::load`].
    unsafe fn exchanged_if(word: *mut Self, if_it_is: Self, value: Self) -> Self;
}

macro_rules! atom {
    ($($number:ty: $atomic:ty),*) => {$(
        impl Atom for $number {
            #[inline(always)]
            unsafe fn load(word: *const Self) -> Self {
                // SAFETY: the caller promises a mapped and aligned word.
                unsafe { <$atomic>::from_ptr(word.cast_mut()) }.load(Acquire)
            }
            #[inline(always)]
            unsafe fn store(word: *mut Self, value: Self) {
                // SAFETY: the caller promises a mapped and aligned word.
                unsafe { <$atomic>::from_ptr(word) }.store(value, SeqCst);
            }
            #[inline(always)]
            unsafe fn exchange(word: *mut Self, value: Self) -> Self {
                // SAFETY: the caller promises a mapped and aligned word.
                unsafe { <$atomic>::from_ptr(word) }.swap(value, SeqCst)
            }
        }
        impl Whole for $number {
            const ONE: Self = 1;
            #[inline(always)]
            unsafe fn plus(word: *mut Self, value: Self) -> Self {
                // SAFETY: the caller promises a mapped and aligned word.
                unsafe { <$atomic>::from_ptr(word) }.fetch_add(value, SeqCst)
            }
            #[inline(always)]
            unsafe fn masked(word: *mut Self, value: Self) -> Self {
                // SAFETY: the caller promises a mapped and aligned word.
                unsafe { <$atomic>::from_ptr(word) }.fetch_and(value, SeqCst)
            }
            #[inline(always)]
            unsafe fn joined(word: *mut Self, value: Self) -> Self {
                // SAFETY: the caller promises a mapped and aligned word.
                unsafe { <$atomic>::from_ptr(word) }.fetch_or(value, SeqCst)
            }
            #[inline(always)]
            unsafe fn flipped(word: *mut Self, value: Self) -> Self {
                // SAFETY: the caller promises a mapped and aligned word.
                unsafe { <$atomic>::from_ptr(word) }.fetch_xor(value, SeqCst)
            }
            #[inline(always)]
            unsafe fn exchanged_if(word: *mut Self, if_it_is: Self, value: Self) -> Self {
                // SAFETY: the caller promises a mapped and aligned word.
                let word = unsafe { <$atomic>::from_ptr(word) };
                match word.compare_exchange(if_it_is, value, SeqCst, SeqCst) {
                    Ok(former) | Err(former) => former,
                }
            }
        }
    )*};
}

atom!(
    i16: AtomicI16,
    u16: AtomicU16,
    i32: AtomicI32,
    u32: AtomicU32,
    i64: AtomicI64,
    u64: AtomicU64,
    isize: AtomicIsize,
    usize: AtomicUsize
);

macro_rules! atom_of_bits {
    ($($number:ty: $bits:ty),*) => {$(
        impl Atom for $number {
            #[inline(always)]
            unsafe fn load(word: *const Self) -> Self {
                // SAFETY: the caller's promise.
                Self::from_bits(unsafe { <$bits>::load(word.cast()) })
            }
            #[inline(always)]
            unsafe fn store(word: *mut Self, value: Self) {
                // SAFETY: the caller's promise.
                unsafe { <$bits>::store(word.cast(), value.to_bits()) };
            }
            #[inline(always)]
            unsafe fn exchange(word: *mut Self, value: Self) -> Self {
                // SAFETY: the caller's promise.
                Self::from_bits(unsafe { <$bits>::exchange(word.cast(), value.to_bits()) })
            }
        }
    )*};
}

atom_of_bits!(f32: u32, f64: u64);

/// The word at a PE of this host.
#[inline(always)]
pub(crate) fn word_at<T>(call: &str, symmetric: *const T, pe: usize) -> *mut T {
    let word = space::remote(call, symmetric.addr(), size_of::<T>(), pe).cast::<T>();
    if !word.is_aligned() {
        misaligned(call, symmetric);
    }
    word
}

#[cold]
#[inline(never)]
pub(crate) fn misaligned<T>(call: &str, word: *const T) -> ! {
    raise(call, &Fault::Misaligned { address: word.addr(), bytes: size_of::<T>() })
}

/// Loads a word.
///
/// # Safety
/// None beyond that of a symmetric address, which is checked.
#[inline(always)]
pub unsafe fn fetch<T: Atom>(call: &str, via: impl Via, source: *const T, pe: c_int) -> T {
    match via.near(call, pe) {
        // SAFETY: `word_at` checked the word.
        Some(pe) => unsafe { T::load(word_at(call, source, pe)) },
        None => elsewhere::load(source, pe, call, via),
    }
}

/// Stores a word.
///
/// # Safety
/// As [`fetch`].
#[inline(always)]
pub unsafe fn set<T: Atom>(call: &str, via: impl Via, dest: *mut T, value: T, pe: c_int) {
    match via.near(call, pe) {
        // SAFETY: `word_at` checked the word.
        Some(pe) => unsafe { T::store(word_at(call, dest, pe), value) },
        None => elsewhere::change(dest, value, pe, AtomicOperation::Swap, call, via),
    }
}

/// Exchanges a word.
///
/// # Safety
/// As [`fetch`].
#[inline(always)]
pub unsafe fn swap<T: Atom>(call: &str, via: impl Via, dest: *mut T, value: T, pe: c_int) -> T {
    match via.near(call, pe) {
        // SAFETY: `word_at` checked the word.
        Some(pe) => unsafe { T::exchange(word_at(call, dest, pe), value) },
        None => elsewhere::fetch(dest, value, pe, AtomicOperation::Swap, call, via),
    }
}

/// Stores a word if it has a value.
///
/// # Safety
/// As [`fetch`].
#[inline(always)]
pub unsafe fn compare_swap<T: Whole>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    cond: T,
    value: T,
    pe: c_int,
) -> T {
    match via.near(call, pe) {
        // SAFETY: `word_at` checked the word.
        Some(pe) => unsafe { T::exchanged_if(word_at(call, dest, pe), cond, value) },
        None => elsewhere::compare_swap(dest, cond, value, pe, call, via),
    }
}

/// Adds one to a word and gives the former value.
///
/// # Safety
/// As [`fetch`].
#[inline(always)]
pub unsafe fn fetch_inc<T: Whole>(call: &str, via: impl Via, dest: *mut T, pe: c_int) -> T {
    // SAFETY: as there.
    unsafe { fetch_add(call, via, dest, T::ONE, pe) }
}

/// Adds one to a word.
///
/// # Safety
/// As [`fetch`].
#[inline(always)]
pub unsafe fn inc<T: Whole>(call: &str, via: impl Via, dest: *mut T, pe: c_int) {
    // SAFETY: as there.
    unsafe { add(call, via, dest, T::ONE, pe) };
}

macro_rules! modifying {
    ($($fetching:ident, $plain:ident, $of_whole:ident, $far:ident, $says:literal;)*) => {$(
        #[doc = concat!($says, " a word and gives the former value.")]
        ///
        /// # Safety
        /// As [`fetch`].
        #[inline(always)]
        pub unsafe fn $fetching<T: Whole>(
            call: &str,
            via: impl Via,
            dest: *mut T,
            value: T,
            pe: c_int,
        ) -> T {
            match via.near(call, pe) {
                // SAFETY: `word_at` checked the word.
                Some(pe) => unsafe { T::$of_whole(word_at(call, dest, pe), value) },
                None => elsewhere::fetch(dest, value, pe, AtomicOperation::$far, call, via),
            }
        }

        #[doc = concat!($says, " a word.")]
        ///
        /// # Safety
        /// As [`fetch`].
        #[inline(always)]
        pub unsafe fn $plain<T: Whole>(
            call: &str,
            via: impl Via,
            dest: *mut T,
            value: T,
            pe: c_int,
        ) {
            match via.near(call, pe) {
                Some(pe) => {
                    // SAFETY: `word_at` checked the word.
                    unsafe { T::$of_whole(word_at(call, dest, pe), value) };
                }
                None => elsewhere::change(dest, value, pe, AtomicOperation::$far, call, via),
            }
        }
    )*};
}

modifying! {
    fetch_add, add, plus, FetchAdd, "Adds to";
    fetch_and, and, masked, And, "Ands";
    fetch_or, or, joined, Or, "Ors";
    fetch_xor, xor, flipped, Xor, "Exclusively ors";
}

macro_rules! storing_its_result {
    ($($name:ident, $does:ident, $of:ident: $bound:ident, ($($value:ident),*),
       $far:ident ($($operand:expr),*) ($both:expr);)*) => {$(
        #[doc = concat!("As [`", stringify!($does), "`]; the former value is stored at `fetch`.")]
        ///
        /// # Safety
        /// As [`fetch()`]; `fetch` must be a variable of the caller, until the next quiet.
        #[inline(always)]
        pub unsafe fn $name<T: $bound>(
            call: &str,
            via: impl Via,
            fetch: *mut T,
            dest: *mut T,
            $($value: T,)*
            pe: c_int,
        ) {
            // SAFETY: `word_at` checked the word; the caller promises the variable.
            unsafe {
                match via.near(call, pe) {
                    Some(pe) => {
                        let former = T::$of(word_at(call, dest, pe), $($operand),*);
                        fetch.write_unaligned(former);
                    }
                    None => {
                        let places = (fetch, dest.cast_const());
                        let operation = AtomicOperation::$far;
                        elsewhere::fetch_later(places, Some($both), pe, operation, call, via);
                    }
                }
            }
        }
    )*};
}

storing_its_result! {
    compare_swap_nbi, compare_swap, exchanged_if: Whole, (cond, value),
        CompareSwap (cond, value) ((value, cond));
    swap_nbi, swap, exchange: Atom, (value), Swap (value) ((value, value));
    fetch_inc_nbi, fetch_inc, plus: Whole, (), FetchAdd (T::ONE) ((T::ONE, T::ONE));
    fetch_add_nbi, fetch_add, plus: Whole, (value), FetchAdd (value) ((value, value));
    fetch_and_nbi, fetch_and, masked: Whole, (value), And (value) ((value, value));
    fetch_or_nbi, fetch_or, joined: Whole, (value), Or (value) ((value, value));
    fetch_xor_nbi, fetch_xor, flipped: Whole, (value), Xor (value) ((value, value));
}

/// As [`fetch()`]; the value is stored at `to`.
///
/// # Safety
/// As [`fetch()`]; `to` must be a variable of the caller, until the next quiet.
#[inline(always)]
pub unsafe fn fetch_nbi<T: Atom>(
    call: &str,
    via: impl Via,
    to: *mut T,
    source: *const T,
    pe: c_int,
) {
    // SAFETY: `word_at` checked the word; the caller promises the variable.
    unsafe {
        match via.near(call, pe) {
            Some(pe) => to.write_unaligned(T::load(word_at(call, source, pe))),
            None => {
                let (places, operation) = ((to, source), AtomicOperation::Read);
                elsewhere::fetch_later(places, None, pe, operation, call, via);
            }
        }
    }
}

/// Adds to a signal.
///
/// # Safety
/// As [`fetch()`].
#[inline(always)]
pub unsafe fn signal_add(call: &str, via: impl Via, sig_addr: *mut u64, signal: u64, pe: c_int) {
    // SAFETY: as `add`.
    unsafe { add(call, via, sig_addr, signal, pe) };
}

/// Sets a signal.
///
/// # Safety
/// As [`fetch()`].
#[inline(always)]
pub unsafe fn signal_set(call: &str, via: impl Via, sig_addr: *mut u64, signal: u64, pe: c_int) {
    match via.near(call, pe) {
        Some(pe) => {
            let word = word_at(call, sig_addr.cast_const(), pe);
            // SAFETY: `word_at` checked the word. A release store suffices: what came before it in
            // this PE is seen by whoever sees the signal.
            unsafe { AtomicU64::from_ptr(word) }
                .store(signal, std::sync::atomic::Ordering::Release);
        }
        None => elsewhere::change(sig_addr, signal, pe, AtomicOperation::Swap, call, via),
    }
}
