//! Where collectives change their way.
//!
//! The numbers were chosen by `bench/shmem/thresholds.py`. It builds the library with others, which
//! it gives in the variables here; all PEs of a job use one build.

/// Collectives of up to as many bytes of a member go through its staging buffer: one meeting, and
/// one copy more. Longer data are copied from their owner's memory by all readers.
pub const STAGE_BYTES: usize = chosen(option_env!("WEFT_SHMEM_STAGE_BYTES"), 512);
/// The same for broadcasts, whose root alone waits for the readers otherwise.
pub const BROADCAST_BYTES: usize = chosen(option_env!("WEFT_SHMEM_BROADCAST_BYTES"), 64);
/// Bytes of a staging buffer. Scans of any length go through it in parts.
pub const BUFFER_BYTES: usize = if STAGE_BYTES > 4096 { STAGE_BYTES } else { 4096 };
/// Members that all look at all. More look along a tree.
pub const FLAT_MAX: usize = chosen(option_env!("WEFT_SHMEM_FLAT_MAX"), 8);
/// Branches of the tree.
pub const BRANCHES: usize = chosen(option_env!("WEFT_SHMEM_BRANCHES"), 8);

const _: () = assert!(BUFFER_BYTES.is_multiple_of(64), "a buffer is whole lines of the cache");
const _: () = assert!(BROADCAST_BYTES <= BUFFER_BYTES, "short data have room in a buffer");
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
