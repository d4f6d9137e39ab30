//! Words for people: titles of chapters, and one sentence for each function.

use crate::{Group, Row};

/// The title of a chapter.
#[must_use]
pub fn title(group: Group) -> &'static str {
    match group {
        Group::Setup => "Setup, exit and queries",
        Group::Threads => "Threads",
        Group::Memory => "The symmetric heap",
        Group::Teams => "Teams",
        Group::Contexts => "Contexts",
        Group::Rma => "Remote memory access",
        Group::Amo => "Atomics",
        Group::Signals => "Signals",
        Group::Collectives => "Collectives",
        Group::Waiting => "Waiting and testing",
        Group::Ordering => "Ordering",
        Group::Locks => "Locks",
    }
}

/// The sentence about a row: by the function of the library that does it.
#[must_use]
pub fn sentence(row: &Row) -> Option<&'static str> {
    let does = row.does.split("::<").next().unwrap_or(row.does);
    let is = |found: &&(&str, &str)| found.0 == does;
    SENTENCES.iter().find(is).map(|(_, sentence)| *sentence)
}

const SENTENCES: &[(&str, &str)] = &[
    ("setup::init", "Starts the library. All PEs call it."),
    ("setup::start_pes", "Starts the library; it ends at exit. The argument is not used."),
    ("setup::my_pe", "Gives the number of the calling PE."),
    ("setup::n_pes", "Gives the number of PEs."),
    ("setup::finalize", "Ends the library when it was called as often as the start."),
    ("setup::global_exit", "Ends all PEs with a status, from any PE."),
    ("setup::pe_accessible", "Tells whether a PE can be reached."),
    ("setup::addr_accessible", "Tells whether an address is symmetric and a PE can be reached."),
    ("setup::ptr", "Gives the address at which the memory of a PE can be loaded and stored."),
    ("setup::team_ptr", "As shmem_ptr, for a PE of a team."),
    ("setup::version", "Gives the version of the specification."),
    ("setup::vendor", "Gives the name of the library."),
    ("setup::query_initialized", "Tells whether the library is started."),
    ("setup::pcontrol", "Does nothing: a tool that replaces it can be controlled by it."),
    ("setup::init_thread", "Starts the library for a level of thread support."),
    ("setup::query_thread", "Gives the level of thread support."),
    ("order::fence", "Orders operations to each PE: none overtakes one before the call."),
    ("order::quiet", "Returns when all operations before the call are visible to all PEs."),
    ("order::pe_quiet", "As shmem_quiet, for some PEs."),
    ("lock::clear", "Releases a lock, when all operations of its holder are visible."),
    ("lock::set", "Takes a lock; waits while another PE holds it."),
    ("lock::test", "Takes a lock if it is free: 0 when it was taken, 1 when another PE holds it."),
    ("memory::malloc", "Allocates memory on all PEs. All PEs call it."),
    ("memory::free", "Frees memory on all PEs. All PEs call it."),
    ("memory::realloc", "Changes the size of memory on all PEs. All PEs call it."),
    ("memory::align", "Allocates memory at a multiple of an alignment on all PEs."),
    ("memory::hinted", "Allocates memory, with hints on its use."),
    ("memory::calloc", "Allocates zeroed memory on all PEs."),
    ("team::my_pe", "Gives the number of the calling PE in a team, or -1."),
    ("team::n_pes", "Gives the number of PEs of a team, or -1."),
    ("team::config", "Gives the configuration of a team."),
    ("team::translate", "Gives the number in a team of a PE of another team, or -1."),
    ("team::split_strided", "Makes a team of PEs of a team at a stride. All its PEs call it."),
    ("team::split_2d", "Makes teams of the rows and columns of a team. All its PEs call it."),
    ("team::destroy", "Ends a team. All its PEs call it."),
    ("context::create", "Makes a context for operations to any PE."),
    ("context::create_of_team", "Makes a context whose PE numbers are those of a team."),
    ("context::destroy", "Ends a context, when its operations are complete."),
    ("context::team", "Gives the team of a context."),
    ("context::session_start", "Gives hints on the operations of a context that follow."),
    ("context::session_stop", "Ends the hints on the operations of a context."),
    ("rma::put", "Copies elements to a PE."),
    ("rma::get", "Copies elements from a PE."),
    ("rma::put_nbi", "Copies elements to a PE; they are there after a quiet."),
    ("rma::get_nbi", "Copies elements from a PE; they are here after a quiet."),
    ("rma::p", "Stores one element at a PE."),
    ("rma::g", "Loads one element from a PE."),
    ("rma::iput", "Copies elements at a stride to a PE."),
    ("rma::iget", "Copies elements at a stride from a PE."),
    ("rma::ibput", "Copies blocks of elements at a stride to a PE."),
    ("rma::ibget", "Copies blocks of elements at a stride from a PE."),
    ("rma::put_signal", "Copies elements to a PE and then changes a signal there."),
    ("amo::fetch", "Loads a word of a PE atomically."),
    ("amo::set", "Stores a word at a PE atomically."),
    ("amo::compare_swap", "Stores a word if it has a value, and gives the former one."),
    ("amo::swap", "Stores a word and gives the former one."),
    ("amo::fetch_inc", "Adds one to a word and gives the former one."),
    ("amo::inc", "Adds one to a word."),
    ("amo::fetch_add", "Adds to a word and gives the former one."),
    ("amo::add", "Adds to a word."),
    ("amo::fetch_and", "Ands a word and gives the former one."),
    ("amo::and", "Ands a word."),
    ("amo::fetch_or", "Ors a word and gives the former one."),
    ("amo::or", "Ors a word."),
    ("amo::fetch_xor", "Exclusively ors a word and gives the former one."),
    ("amo::xor", "Exclusively ors a word."),
    ("amo::fetch_nbi", "Loads a word of a PE; it is there after a quiet."),
    ("amo::compare_swap_nbi", "As shmem_atomic_compare_swap; its result is there after a quiet."),
    ("amo::swap_nbi", "As shmem_atomic_swap; its result is there after a quiet."),
    ("amo::fetch_inc_nbi", "As shmem_atomic_fetch_inc; its result is there after a quiet."),
    ("amo::fetch_add_nbi", "As shmem_atomic_fetch_add; its result is there after a quiet."),
    ("amo::fetch_and_nbi", "As shmem_atomic_fetch_and; its result is there after a quiet."),
    ("amo::fetch_or_nbi", "As shmem_atomic_fetch_or; its result is there after a quiet."),
    ("amo::fetch_xor_nbi", "As shmem_atomic_fetch_xor; its result is there after a quiet."),
    ("amo::signal_add", "Adds to a signal of a PE."),
    ("amo::signal_set", "Sets a signal of a PE."),
    ("wait::signal_fetch", "Loads a signal of the calling PE."),
    ("wait::signal_until", "Waits until a signal of the calling PE meets a condition."),
    ("wait::until", "Waits until a word of the calling PE meets a condition."),
    ("wait::until_all", "Waits until all words of an array meet a condition."),
    ("wait::until_any", "Waits until a word of an array meets a condition, and gives its index."),
    (
        "wait::until_some",
        "Waits until words of an array meet a condition, and gives their indices.",
    ),
    ("wait::until_all_vector", "As shmem_wait_until_all, with a value for each word."),
    ("wait::until_any_vector", "As shmem_wait_until_any, with a value for each word."),
    ("wait::until_some_vector", "As shmem_wait_until_some, with a value for each word."),
    ("wait::test", "Tells whether a word of the calling PE meets a condition."),
    ("wait::test_all", "Tells whether all words of an array meet a condition."),
    ("wait::test_any", "Gives the index of a word of an array that meets a condition."),
    ("wait::test_some", "Gives the indices of the words of an array that meet a condition."),
    ("wait::test_all_vector", "As shmem_test_all, with a value for each word."),
    ("wait::test_any_vector", "As shmem_test_any, with a value for each word."),
    ("wait::test_some_vector", "As shmem_test_some, with a value for each word."),
    ("wait::changed", "Waits until a word of the calling PE has another value."),
    ("wait::changed_long", "Waits until a word of the calling PE has another value."),
    ("wait::until_long", "Waits until a word of the calling PE meets a condition."),
    ("collective::barrier_all", "Waits until all PEs called it and their operations are visible."),
    ("collective::sync_all", "Waits until all PEs called it."),
    ("collective::team_sync", "Waits until all PEs of a team called it."),
    ("collective::alltoall", "Each PE of a team sends a block to each other one."),
    ("collective::alltoalls", "As shmem_alltoall, with elements at a stride."),
    ("collective::broadcast", "Copies the elements of one PE of a team to all of them."),
    ("collective::collect", "Joins the elements of all PEs of a team, as many as each one has."),
    ("collective::fcollect", "Joins the elements of all PEs of a team, equally many of each."),
    ("collective::reduce", "Combines the elements of all PEs of a team."),
    ("collective::inscan", "Sums the elements of the PEs of a team up to the calling one."),
    ("collective::exscan", "Sums the elements of the PEs of a team before the calling one."),
    (
        "active_set::barrier",
        "Waits until all PEs of a set called it and their operations are visible.",
    ),
    ("active_set::sync", "Waits until all PEs of a set called it."),
    ("active_set::reduce", "Combines the elements of all PEs of a set."),
    ("active_set::broadcast", "Copies the elements of one PE of a set to the others."),
    ("active_set::collect", "Joins the elements of all PEs of a set, as many as each one has."),
    ("active_set::fcollect", "Joins the elements of all PEs of a set, equally many of each."),
    ("active_set::alltoall", "Each PE of a set sends a block to each other one."),
    ("active_set::alltoalls", "As shmem_alltoall of a set, with elements at a stride."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_sentence() {
        for row in crate::rows() {
            assert!(sentence(&row).is_some(), "{} has none", row.does);
        }
    }
}
