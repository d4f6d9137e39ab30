//! Copies into memory that another processor reads next.
//!
//! Plain stores leave the cache lines dirty in the writer's cache, from where the reader fetches
//! them one by one. Non-temporal stores send them to memory (or the shared cache) at once. Size and
//! machine decide which is faster: on the first machine measured, rings of 256 KiB moved 2.2 GB/s
//! with plain stores and 18 GB/s with non-temporal ones.

/// The kind of stores of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CopyMode {
    /// Plain stores, through the cache.
    #[default]
    Plain,
    /// Non-temporal stores, past the cache, for copies from [`CopyMode::NONTEMPORAL_BYTES_MIN`] on.
    NonTemporal,
}

impl CopyMode {
    /// Shorter copies always use plain stores: the fence would cost more than non-temporal stores
    /// gain.
    pub const NONTEMPORAL_BYTES_MIN: usize = 2048;
    /// Copies up to this length are inlined: they make no call.
    pub const INLINE_BYTES_MAX: usize = 32;
}

/// Copies `length` bytes. They are visible before any later store of this thread.
///
/// 1, 2, 4 or 8 bytes at a target address that is a multiple of them are written by one store: a
/// reader sees the former word or the new one, and sees the new one once. So a put of a word is
/// safe beside a peer that takes words out and clears them.
///
/// # Safety
/// `source` must be readable and `target` writable for `length` bytes, and they must not overlap.
/// Other threads and processes may write to the target meanwhile; its bytes are then unspecified,
/// and nothing else happens.
#[inline(always)]
pub unsafe fn copy(source: *const u8, target: *mut u8, length: usize, mode: CopyMode) {
    if length <= CopyMode::INLINE_BYTES_MAX {
        // SAFETY: the caller's promise.
        unsafe { copy_short(source, target, length) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { copy_long(source, target, length, mode) };
    }
}

/// # Safety
/// As [`copy`].
#[inline(never)]
unsafe fn copy_long(source: *const u8, target: *mut u8, length: usize, mode: CopyMode) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if mode == CopyMode::NonTemporal && length >= CopyMode::NONTEMPORAL_BYTES_MIN {
        // SAFETY: the caller's promise.
        unsafe { stream::copy(source, target, length) };
        return;
    }
    let _ = mode;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if length >= aliased::BYTES_MIN && aliased::is_aliased(source, target) {
        // SAFETY: the caller's promise.
        unsafe { aliased::copy(source, target, length) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(source, target, length) };
}

/// Prefetches the cache line at an address for writing. A hint that does not wait; any address is
/// valid.
///
/// JUSTIFICATION: when the sender reuses a slot, its lines are in the receiver's cache. Prefetching
/// some slots ahead raises the rate of 8-byte messages by a quarter.
#[inline]
pub fn prefetch_for_writing(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // The intrinsic compiles to a prefetch for reading unless the target features include this
    // instruction, which every 64-bit processor executes or ignores.
    // SAFETY: a prefetch has no visible effect and never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Copies a word with one load and one store, and other lengths as the first and the last bytes,
/// which overlap in the middle.
///
/// JUSTIFICATION: a call of memcpy costs 2 to 4 ns, of the 8 that a short message may take.
///
/// # Safety
/// As [`copy`], and `length` is at most [`CopyMode::INLINE_BYTES_MAX`].
#[inline(always)]
unsafe fn copy_short(source: *const u8, target: *mut u8, length: usize) {
    /// # Safety
    /// `length` is between the size of `T` and twice that size; the rest as for [`copy`].
    #[inline]
    unsafe fn ends<T: Copy>(source: *const u8, target: *mut u8, length: usize) {
        let last = length - size_of::<T>();
        // SAFETY: these are the first bytes of the source.
        let head = unsafe { source.cast::<T>().read_unaligned() };
        // SAFETY: these are the last bytes of the source.
        let tail = unsafe { source.add(last).cast::<T>().read_unaligned() };
        // SAFETY: these are the first bytes of the target.
        unsafe { target.cast::<T>().write_unaligned(head) };
        // SAFETY: these are the last bytes of the target.
        unsafe { target.add(last).cast::<T>().write_unaligned(tail) };
    }
    // Comparisons, the most common word first: a `match` becomes a jump through a table.
    // SAFETY: in each branch the length is that of the word, or between the size of the type and
    // twice that size.
    unsafe {
        if length >= 8 {
            match length {
                8 => word::store(target, source.cast::<u64>().read_unaligned()),
                9..16 => ends::<u64>(source, target, length),
                _ => ends::<u128>(source, target, length),
            }
        } else if length >= 4 {
            match length {
                4 => word::store(target, source.cast::<u32>().read_unaligned()),
                _ => ends::<u32>(source, target, length),
            }
        } else {
            match length {
                0 => {}
                1 => word::store(target, source.read()),
                2 => word::store(target, source.cast::<u16>().read_unaligned()),
                _ => ends::<u16>(source, target, length),
            }
        }
    }
}

mod word {
    //! Stores of one word that the compiler neither splits nor repeats.
    //!
    //! An ordinary store may be split: where the source is two values of 4 bytes on the caller's
    //! stack, the optimizer may write the word in two stores.

    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

    pub trait Word: Copy {
        /// # Safety
        /// The target is valid for a write of this type and aligned for it. Others may access it.
        unsafe fn store(self, target: *mut Self);
    }

    macro_rules! word {
        ($($word:ty: $atomic:ty),*) => { $(
            impl Word for $word {
                #[inline]
                unsafe fn store(self, target: *mut Self) {
                    // SAFETY: the caller's promise.
                    unsafe { <$atomic>::from_ptr(target) }.store(self, Relaxed);
                }
            }
        )* };
    }
    word!(u8: AtomicU8, u16: AtomicU16, u32: AtomicU32, u64: AtomicU64);

    /// Writes a word. If the target is aligned for it, by one store.
    ///
    /// # Safety
    /// The target is valid for a write of this type. Others may access it meanwhile.
    #[inline]
    pub unsafe fn store<T: Word>(target: *mut u8, value: T) {
        let target = target.cast::<T>();
        if target.is_aligned() {
            // SAFETY: the caller's promise, and the look at the alignment.
            unsafe { value.store(target) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { target.write_unaligned(value) };
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod aliased {
    //! Copies to a target whose page offset is slightly above that of its source.
    //!
    //! JUSTIFICATION: the C library and the kernel copy with `rep movsb` from 2 KiB on. It moves
    //! 2.7 GB/s if the target's page offset is 1 to 31 bytes above the source's, and 38 GB/s
    //! otherwise (AMD EPYC takes its stores for ones that its loads depend on). Such offsets are
    //! common: a ring's blocks begin at a page, and a large block of the C library's heap begins 16
    //! bytes behind one. Loads and stores of 16 bytes move 25 to 36 GB/s there.

    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};

    /// Shorter copies do not use `rep movsb`.
    pub const BYTES_MIN: usize = 1024;
    const PAGE_BYTES: usize = 4096;
    const BEHIND_MAX: usize = 31;
    const WIDTH: usize = 16;
    /// Loads and stores of one step: all of its bytes are loaded before any is stored.
    const STEP: usize = 8;

    pub fn is_aliased(source: *const u8, target: *mut u8) -> bool {
        let behind = (target as usize).wrapping_sub(source as usize) % PAGE_BYTES;
        (1..=BEHIND_MAX).contains(&behind)
    }

    /// # Safety
    /// As for [`super::copy`].
    pub unsafe fn copy(source: *const u8, target: *mut u8, length: usize) {
        let steps = length / (STEP * WIDTH);
        for step in 0..steps {
            let at = step * STEP * WIDTH;
            let values: [__m128i; STEP] = std::array::from_fn(|index| {
                // SAFETY: step < steps and index < STEP, so the load stays inside the source.
                unsafe { _mm_loadu_si128(source.add(at + index * WIDTH).cast()) }
            });
            for (index, value) in values.into_iter().enumerate() {
                // SAFETY: the same holds for the target.
                unsafe { _mm_storeu_si128(target.add(at + index * WIDTH).cast(), value) };
            }
        }
        let done = steps * STEP * WIDTH;
        // SAFETY: these are the last bytes of both ranges.
        unsafe {
            std::ptr::copy_nonoverlapping(source.add(done), target.add(done), length - done);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod stream {
    //! Copies with non-temporal stores.
    //!
    //! JUSTIFICATION: 6 to 8 times the bandwidth of plain stores for a ring that fits the cache
    //! (`weft perf`, and the streaming table in docs/design/003-shared-memory.md).

    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128,
        _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    const LINE: usize = 64;

    /// # Safety
    /// As for [`super::copy`].
    pub unsafe fn copy(source: *const u8, target: *mut u8, length: usize) {
        let head = target.align_offset(LINE).min(length);
        let lines = (length - head) / LINE;
        let tail = length - head - lines * LINE;
        // SAFETY: the first `head` bytes lie inside both ranges.
        unsafe { std::ptr::copy_nonoverlapping(source, target, head) };
        // SAFETY: head + lines * LINE <= length, so both ranges are valid. The target is aligned to
        // a line, since `head` ends there.
        unsafe { copy_lines(source.add(head), target.add(head), lines) };
        let done = length - tail;
        // SAFETY: these are the last `tail` bytes of both ranges.
        unsafe { std::ptr::copy_nonoverlapping(source.add(done), target.add(done), tail) };
        // Non-temporal stores are weakly ordered: without a fence a later flag could become visible
        // first.
        // SAFETY: every x86-64 processor has SSE.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    /// `lines` lines must be readable at `source` and writable at `target`, and `target` must be
    /// aligned to a line.
    unsafe fn copy_lines(source: *const u8, target: *mut u8, lines: usize) {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature is there; the rest is the caller's promise.
            unsafe { copy_512(source, target, lines) }
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature is there; the rest is the caller's promise.
            unsafe { copy_256(source, target, lines) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { copy_128(source, target, lines) }
        }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn copy_512(source: *const u8, target: *mut u8, lines: usize) {
        for line in 0..lines {
            // SAFETY: line < lines, so the load stays inside the source.
            let value = unsafe { _mm512_loadu_si512(source.add(line * LINE).cast::<__m512i>()) };
            // SAFETY: the same for the target, which is aligned to 64 bytes.
            unsafe { _mm512_stream_si512(target.add(line * LINE).cast::<__m512i>(), value) };
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn copy_256(source: *const u8, target: *mut u8, lines: usize) {
        for half in 0..lines * 2 {
            // SAFETY: half < 2 * lines, so the load stays inside the source.
            let value = unsafe { _mm256_loadu_si256(source.add(half * 32).cast::<__m256i>()) };
            // SAFETY: the same for the target, which is aligned to 32 bytes.
            unsafe { _mm256_stream_si256(target.add(half * 32).cast::<__m256i>(), value) };
        }
    }

    unsafe fn copy_128(source: *const u8, target: *mut u8, lines: usize) {
        for quarter in 0..lines * 4 {
            // SAFETY: quarter < 4 * lines, so the load stays inside the source.
            let value = unsafe { _mm_loadu_si128(source.add(quarter * 16).cast::<__m128i>()) };
            // SAFETY: the same for the target, which is aligned to 16 bytes.
            unsafe { _mm_stream_si128(target.add(quarter * 16).cast::<__m128i>(), value) };
        }
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn every_width_copies_every_byte() {
            #[repr(align(64))]
            struct Lines([u8; 256]);
            let source: Vec<u8> = (0..=255).collect();
            for copy in [super::copy_128, |s, t, n| {
                // SAFETY: the call below passes valid ranges.
                unsafe { super::copy_lines(s, t, n) }
            }] {
                let mut target = Lines([0; 256]);
                // SAFETY: four lines are valid on both sides, and the target is aligned.
                unsafe { copy(source.as_ptr(), target.0.as_mut_ptr(), 4) };
                assert_eq!(target.0[..], source[..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_target_with_an_aliased_page_offset_gets_every_byte() {
        let source: Vec<u8> =
            (0..9000u32).map(|index| u8::try_from(index % 251).unwrap()).collect();
        let mut target = vec![0; 3 * 4096];
        for behind in 0..=32 {
            for length in [1023, 1024, 1025, 1151, 1152, 4096, 8999] {
                target.fill(0xee);
                let apart = (source.as_ptr() as usize).wrapping_sub(target.as_ptr() as usize);
                let at = (apart + behind) % 4096;
                let length = length.min(target.len() - at);
                // SAFETY: at + length is inside the target, and length inside the source.
                unsafe {
                    copy(source.as_ptr(), target.as_mut_ptr().add(at), length, CopyMode::Plain);
                }
                assert_eq!(target[at..at + length], source[..length]);
                assert!(target[..at].iter().chain(&target[at + length..]).all(|b| *b == 0xee));
            }
        }
    }

    #[test]
    fn all_sizes_and_alignments_are_copied() {
        let source: Vec<u8> =
            (0..9000u32).map(|index| u8::try_from(index % 251).unwrap()).collect();
        for mode in [CopyMode::Plain, CopyMode::NonTemporal] {
            for length in
                [0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 2047, 2048, 2049, 4096, 8191]
            {
                for offset in [0, 1, 31, 64] {
                    let mut target = vec![0xee; 9000];
                    // SAFETY: offset + length < 9000 on both sides.
                    unsafe {
                        copy(source.as_ptr().add(7), target.as_mut_ptr().add(offset), length, mode);
                    }
                    assert_eq!(target[offset..offset + length], source[7..7 + length]);
                    assert!(target[offset + length..].iter().all(|byte| *byte == 0xee));
                }
            }
        }
    }

    /// Writes numbers to a word by [`copy`], each when a reader has taken the one before out of it.
    /// Returns how many the reader took.
    macro_rules! taken {
        ($word:ty, $atomic:ty) => {{
            let word = <$atomic>::new(0);
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..WRITES {
                        let value = <$word>::try_from(number % 251 + 1).expect("small");
                        let bytes = std::hint::black_box(value.to_ne_bytes());
                        let target = word.as_ptr().cast();
                        // SAFETY: the word is valid, and the bytes are elsewhere.
                        unsafe { copy(bytes.as_ptr(), target, bytes.len(), CopyMode::Plain) };
                        spin_until(|| word.load(Ordering::Acquire) == 0);
                    }
                    is_over.store(true, Ordering::Release);
                });
                let mut taken = 0;
                while !is_over.load(Ordering::Acquire) {
                    spin_until(|| {
                        let is_taken = word.swap(0, Ordering::AcqRel) != 0;
                        taken += u32::from(is_taken);
                        is_taken || is_over.load(Ordering::Acquire)
                    });
                }
                taken
            })
        }};
    }

    /// Spins, because a reader that gives way does not come between two stores.
    #[cfg(not(miri))]
    fn spin_until(mut holds: impl FnMut() -> bool) {
        for turn in 1_u32.. {
            if holds() {
                return;
            }
            if turn % 1_000 == 0 {
                std::thread::yield_now();
            }
        }
    }

    #[cfg(not(miri))]
    const WRITES: u32 = 5_000;

    #[test]
    #[cfg(not(miri))]
    #[allow(clippy::disallowed_methods, reason = "tests own their threads")]
    fn a_word_is_written_once() {
        assert_eq!(taken!(u8, AtomicU8), WRITES);
        assert_eq!(taken!(u16, AtomicU16), WRITES);
        assert_eq!(taken!(u32, AtomicU32), WRITES);
        assert_eq!(taken!(u64, AtomicU64), WRITES);
    }
}
