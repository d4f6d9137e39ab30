//! Where collectives change their way.
//!
//! The numbers were chosen by `bench/shmem/thresholds.py`. It builds the library with others, which
//! it gives in the variables here; all PEs of a job use one build.

/// Bytes of a staging buffer. Collectives of up to as many bytes go through it, longer ones are
/// copied from their owner's memory by all readers.
pub const STAGE_BYTES: usize = chosen(option_env!("WEFT_SHMEM_STAGE_BYTES"), 4096);
/// Members that all look at all. More look along a tree.
pub const FLAT_MAX: usize = chosen(option_env!("WEFT_SHMEM_FLAT_MAX"), 8);
/// Branches of the tree.
pub const BRANCHES: usize = chosen(option_env!("WEFT_SHMEM_BRANCHES"), 8);

/// Every element of a type has room in a staging buffer, which is whole words.
const _: () = assert!(STAGE_BYTES >= 64 && STAGE_BYTES.is_multiple_of(64));
const _: () = assert!(BRANCHES > 0);

const fn chosen(given: Option<&str>, usual: usize) -> usize {
    match given {
        None => usual,
        Some(text) => match usize::from_str_radix(text, 10) {
            Ok(number) => number,
            Err(_) => panic!("a threshold is no number; see bench/shmem/thresholds.py"),
        },
    }
}
