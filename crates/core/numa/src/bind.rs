//! Threads that stay on the processors of one node.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::set::ProcessorSet;

/// The processors that this thread may use, which is what a container or `taskset` left it.
///
/// # Errors
/// Those of sched_getaffinity(2).
pub fn allowed_processors() -> io::Result<ProcessorSet> {
    let set = sched_getaffinity(None)?;
    let numbers = (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor));
    Ok(numbers.filter_map(|processor| u32::try_from(processor).ok()).collect())
}

/// Lets this thread run on the given processors alone. Pages that it then touches first come from
/// their node, where no other policy was set.
///
/// # Errors
/// Those of sched_setaffinity(2): EINVAL when the process may use none of the processors.
pub fn bind_thread(processors: &ProcessorSet) -> io::Result<()> {
    let mut set = CpuSet::new();
    for processor in processors.iter() {
        let processor = processor as usize;
        if processor < CpuSet::MAX_CPU {
            set.set(processor);
        }
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_memory::{Memory, MemoryOptions, SegmentError};

    use crate::{Topology, pages_by_node};

    #[test]
    fn a_bound_thread_may_use_its_processors_alone() {
        let all = allowed_processors().expect("a thread");
        let last = all.iter().last().expect("one processor at least");
        let of_last: ProcessorSet = [last].into_iter().collect();
        bind_thread(&of_last).expect("a processor of this thread");
        assert_eq!(allowed_processors().expect("a thread"), of_last);
        bind_thread(&all).expect("as before");
        let none: ProcessorSet = [1023].into_iter().collect();
        assert!(all.contains(1023) || bind_thread(&none).is_err());
    }

    #[test]
    fn pages_come_from_the_node_that_was_asked_for() {
        let topology = Topology::of_host().expect("readable");
        for node in topology.nodes().iter().filter(|node| node.memory_bytes() > 0) {
            let number = node.number();
            let memory =
                match Memory::fresh(MemoryOptions::bytes(1 << 20).on_node(number).populate()) {
                    // A kernel or container without memory policies: nothing can be said.
                    Err(SegmentError::Os { call: "mbind", errno, .. }) if errno != 22 => return,
                    memory => memory.expect("a node of this machine"),
                };
            let pages = pages_by_node(memory.segment().base().as_ptr().addr());
            if let Ok(pages) = pages {
                assert_eq!(pages.into_keys().collect::<Vec<_>>(), [number]);
            }
        }
        assert!(Memory::fresh(MemoryOptions::bytes(1 << 20).on_node(1000)).is_err());
    }
}
