//! The rows of the table: each function of OpenSHMEM once, with a place for its type.

use crate::row::{Context, Group, Origin, Over, Row};
use crate::types::TypeSet;

use Context::{None as Plain, Optional};
use Group::{
    Amo, Collectives, Contexts, Locks, Memory, Ordering, Rma, Setup, Signals, Teams, Threads,
    Waiting,
};
use Origin::{Current, Deprecated, Extra};
use Over::{Nothing, Types};

/// A row for one function of no type.
const fn single(
    group: Group,
    name: &'static str,
    result: &'static str,
    parameters: &'static str,
    does: &'static str,
) -> Row {
    let (standing, over, context, generic) = (Current, Nothing, Plain, None);
    Row { group, standing, name, over, context, result, parameters, does, generic }
}

/// A row over a table of types.
const fn typed(
    group: Group,
    name: &'static str,
    set: TypeSet,
    signature: (&'static str, &'static str),
    does: &'static str,
    generic: &'static str,
) -> Row {
    let (standing, over, context) = (Current, Types(set), Plain);
    let (result, parameters) = signature;
    let generic = Some(generic);
    Row { group, standing, name, over, context, result, parameters, does, generic }
}

impl Row {
    const fn optional(self) -> Self {
        Self { context: Optional, ..self }
    }

    const fn deprecated(self) -> Self {
        Self { standing: Deprecated, ..self }
    }

    const fn extra(self) -> Self {
        Self { standing: Extra, ..self }
    }

    const fn without_generic(self) -> Self {
        Self { generic: None, ..self }
    }
}

const COPY: &str = "T *dest, const T *source, size_t nelems, int pe";
const STRIDED: &str =
    "T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe";
const BLOCKS: &str = "T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, \
                      size_t nblocks, int pe";
const SIGNALLED: &str = "T *dest, const T *source, size_t nelems, uint64_t *sig_addr, \
                         uint64_t signal, int sig_op, int pe";
const MODIFY: &str = "T *dest, T value, int pe";
const MODIFY_NBI: &str = "T *fetch, T *dest, T value, int pe";
const TEAM: &str = "shmem_team_t team, T *dest, const T *source, size_t nelems";
const TEAM_STRIDED: &str = "shmem_team_t team, T *dest, const T *source, ptrdiff_t dst, \
                            ptrdiff_t sst, size_t nelems";
const TEAM_ROOT: &str = "shmem_team_t team, T *dest, const T *source, size_t nelems, int PE_root";
const REDUCE: &str = "shmem_team_t team, T *dest, const T *source, size_t nreduce";
const TO_ALL: &str = "T *dest, const T *source, int nreduce, int PE_start, int logPE_stride, \
                      int PE_size, T *pWrk, long *pSync";
const SET: &str = "T *dest, const T *source, size_t nelems, int PE_start, int logPE_stride, \
                   int PE_size, long *pSync";
const SET_ROOT: &str = "T *dest, const T *source, size_t nelems, int PE_root, int PE_start, \
                        int logPE_stride, int PE_size, long *pSync";
const SET_STRIDED: &str = "T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, \
                           int PE_start, int logPE_stride, int PE_size, long *pSync";
const SYNC_SET: &str = "int PE_start, int logPE_stride, int PE_size, long *pSync";
const ALL: &str = "T *ivars, size_t nelems, const int *status, int cmp, T cmp_value";
const ALL_VECTOR: &str = "T *ivars, size_t nelems, const int *status, int cmp, const T *cmp_values";
const SOME: &str =
    "T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, T cmp_value";
const SOME_VECTOR: &str =
    "T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, const T *cmp_values";

/// All rows, in the order of the specification.
#[must_use]
pub fn rows() -> Vec<Row> {
    [setup(), memory(), teams(), rma(), amo(), signals(), collectives(), waiting(), old()].concat()
}

fn setup() -> Vec<Row> {
    vec![
        single(Setup, "init", "void", "", "setup::init"),
        single(Setup, "my_pe", "int", "", "setup::my_pe"),
        single(Setup, "n_pes", "int", "", "setup::n_pes"),
        single(Setup, "finalize", "void", "", "setup::finalize"),
        single(Setup, "global_exit", "void", "int status", "setup::global_exit"),
        single(Setup, "pe_accessible", "int", "int pe", "setup::pe_accessible"),
        single(
            Setup,
            "addr_accessible",
            "int",
            "const void *addr, int pe",
            "setup::addr_accessible",
        ),
        single(Setup, "ptr", "void *", "const void *dest, int pe", "setup::ptr"),
        single(
            Setup,
            "team_ptr",
            "void *",
            "shmem_team_t team, const void *dest, int pe",
            "setup::team_ptr",
        ),
        single(Setup, "info_get_version", "void", "int *major, int *minor", "setup::version"),
        single(Setup, "info_get_name", "void", "char *name", "setup::vendor"),
        single(Setup, "query_initialized", "void", "int *initialized", "setup::query_initialized"),
        single(Setup, "pcontrol", "void", "int level", "setup::pcontrol").extra(),
        single(Threads, "init_thread", "int", "int requested, int *provided", "setup::init_thread"),
        single(Threads, "query_thread", "void", "int *provided", "setup::query_thread"),
        single(Ordering, "fence", "void", "", "order::fence").optional(),
        single(Ordering, "quiet", "void", "", "order::quiet").optional(),
        single(
            Ordering,
            "pe_quiet",
            "void",
            "const int *target_pes, size_t npes",
            "order::pe_quiet",
        )
        .optional(),
        single(Locks, "clear_lock", "void", "long *lock", "lock::clear"),
        single(Locks, "set_lock", "void", "long *lock", "lock::set"),
        single(Locks, "test_lock", "int", "long *lock", "lock::test"),
    ]
}

fn memory() -> Vec<Row> {
    vec![
        single(Memory, "malloc", "void *", "size_t size", "memory::malloc"),
        single(Memory, "free", "void", "void *ptr", "memory::free"),
        single(Memory, "realloc", "void *", "void *ptr, size_t size", "memory::realloc"),
        single(Memory, "align", "void *", "size_t alignment, size_t size", "memory::align"),
        single(Memory, "malloc_with_hints", "void *", "size_t size, long hints", "memory::hinted"),
        single(Memory, "calloc", "void *", "size_t count, size_t size", "memory::calloc"),
    ]
}

fn teams() -> Vec<Row> {
    vec![
        single(Teams, "team_my_pe", "int", "shmem_team_t team", "team::my_pe"),
        single(Teams, "team_n_pes", "int", "shmem_team_t team", "team::n_pes"),
        single(
            Teams,
            "team_get_config",
            "int",
            "shmem_team_t team, long config_mask, shmem_team_config_t *config",
            "team::config",
        ),
        single(
            Teams,
            "team_translate_pe",
            "int",
            "shmem_team_t src_team, int src_pe, shmem_team_t dest_team",
            "team::translate",
        ),
        single(
            Teams,
            "team_split_strided",
            "int",
            "shmem_team_t parent_team, int start, int stride, int size, \
             const shmem_team_config_t *config, long config_mask, shmem_team_t *new_team",
            "team::split_strided",
        ),
        single(
            Teams,
            "team_split_2d",
            "int",
            "shmem_team_t parent_team, int xrange, const shmem_team_config_t *xaxis_config, \
             long xaxis_mask, shmem_team_t *xaxis_team, const shmem_team_config_t *yaxis_config, \
             long yaxis_mask, shmem_team_t *yaxis_team",
            "team::split_2d",
        ),
        single(Teams, "team_destroy", "void", "shmem_team_t team", "team::destroy"),
        single(Contexts, "ctx_create", "int", "long options, shmem_ctx_t *ctx", "context::create"),
        single(
            Contexts,
            "team_create_ctx",
            "int",
            "shmem_team_t team, long options, shmem_ctx_t *ctx",
            "context::create_of_team",
        ),
        single(Contexts, "ctx_destroy", "void", "shmem_ctx_t ctx", "context::destroy"),
        single(
            Contexts,
            "ctx_get_team",
            "int",
            "shmem_ctx_t ctx, shmem_team_t *team",
            "context::team",
        ),
        single(
            Contexts,
            "ctx_session_start",
            "void",
            "shmem_ctx_t ctx, long options, const shmem_ctx_session_config_t *config, \
             long config_mask",
            "context::session_start",
        ),
        single(Contexts, "ctx_session_stop", "void", "shmem_ctx_t ctx", "context::session_stop"),
    ]
}

fn rma() -> Vec<Row> {
    let all = TypeSet::Rma;
    let (sizes, bits) = (TypeSet::BitsAndBytes, TypeSet::Bits);
    let copies = [
        ("put", "rma::put", COPY, sizes),
        ("get", "rma::get", COPY, sizes),
        ("iput", "rma::iput", STRIDED, bits),
        ("iget", "rma::iget", STRIDED, bits),
        ("ibput", "rma::ibput", BLOCKS, bits),
        ("ibget", "rma::ibget", BLOCKS, bits),
    ];
    let mut rows = vec![
        typed(Rma, "{}_p", all, ("void", "T *dest, T value, int pe"), "rma::p", "p").optional(),
        typed(Rma, "{}_g", all, ("T", "const T *source, int pe"), "rma::g", "g").optional(),
    ];
    for (name, does, parameters, sizes) in copies {
        let (by_type, by_size) = names(name);
        rows.push(typed(Rma, by_type, all, ("void", parameters), does, name).optional());
        rows.push(
            typed(Rma, by_size, sizes, ("void", parameters), does, name)
                .optional()
                .without_generic(),
        );
    }
    for (name, does) in [("put_nbi", "rma::put_nbi"), ("get_nbi", "rma::get_nbi")] {
        let (by_type, by_size) = names(name);
        rows.push(typed(Rma, by_type, all, ("void", COPY), does, name).optional());
        rows.push(
            typed(Rma, by_size, sizes, ("void", COPY), does, name).optional().without_generic(),
        );
    }
    rows
}

/// The pattern of a name with a type, and the one with a size.
fn names(name: &str) -> (&'static str, &'static str) {
    match name {
        "put" => ("{}_put", "put{}"),
        "get" => ("{}_get", "get{}"),
        "iput" => ("{}_iput", "iput{}"),
        "iget" => ("{}_iget", "iget{}"),
        "ibput" => ("{}_ibput", "ibput{}"),
        "ibget" => ("{}_ibget", "ibget{}"),
        "put_nbi" => ("{}_put_nbi", "put{}_nbi"),
        "get_nbi" => ("{}_get_nbi", "get{}_nbi"),
        "put_signal" => ("{}_put_signal", "put{}_signal"),
        _ => ("{}_put_signal_nbi", "put{}_signal_nbi"),
    }
}

fn amo() -> Vec<Row> {
    let (all, extended, bitwise) = (TypeSet::Amo, TypeSet::AmoExtended, TypeSet::AmoBitwise);
    let compare = "T *dest, T cond, T value, int pe";
    let row = |name, set, result, parameters, does, generic| {
        typed(Amo, name, set, (result, parameters), does, generic).optional()
    };
    let (fetch, inc) = ("const T *source, int pe", "T *dest, int pe");
    let fetch_nbi = "T *fetch, const T *source, int pe";
    let inc_nbi = "T *fetch, T *dest, int pe";
    let compare_nbi = "T *fetch, T *dest, T cond, T value, int pe";
    vec![
        row("{}_atomic_fetch", extended, "T", fetch, "amo::fetch", "atomic_fetch"),
        row("{}_atomic_set", extended, "void", MODIFY, "amo::set", "atomic_set"),
        row(
            "{}_atomic_compare_swap",
            all,
            "T",
            compare,
            "amo::compare_swap",
            "atomic_compare_swap",
        ),
        row("{}_atomic_swap", extended, "T", MODIFY, "amo::swap", "atomic_swap"),
        row("{}_atomic_fetch_inc", all, "T", inc, "amo::fetch_inc", "atomic_fetch_inc"),
        row("{}_atomic_inc", all, "void", inc, "amo::inc", "atomic_inc"),
        row("{}_atomic_fetch_add", all, "T", MODIFY, "amo::fetch_add", "atomic_fetch_add"),
        row("{}_atomic_add", all, "void", MODIFY, "amo::add", "atomic_add"),
        row("{}_atomic_fetch_and", bitwise, "T", MODIFY, "amo::fetch_and", "atomic_fetch_and"),
        row("{}_atomic_and", bitwise, "void", MODIFY, "amo::and", "atomic_and"),
        row("{}_atomic_fetch_or", bitwise, "T", MODIFY, "amo::fetch_or", "atomic_fetch_or"),
        row("{}_atomic_or", bitwise, "void", MODIFY, "amo::or", "atomic_or"),
        row("{}_atomic_fetch_xor", bitwise, "T", MODIFY, "amo::fetch_xor", "atomic_fetch_xor"),
        row("{}_atomic_xor", bitwise, "void", MODIFY, "amo::xor", "atomic_xor"),
        row(
            "{}_atomic_fetch_nbi",
            extended,
            "void",
            fetch_nbi,
            "amo::fetch_nbi",
            "atomic_fetch_nbi",
        ),
        row(
            "{}_atomic_compare_swap_nbi",
            all,
            "void",
            compare_nbi,
            "amo::compare_swap_nbi",
            "atomic_compare_swap_nbi",
        ),
        row("{}_atomic_swap_nbi", extended, "void", MODIFY_NBI, "amo::swap_nbi", "atomic_swap_nbi"),
        row(
            "{}_atomic_fetch_inc_nbi",
            all,
            "void",
            inc_nbi,
            "amo::fetch_inc_nbi",
            "atomic_fetch_inc_nbi",
        ),
        row(
            "{}_atomic_fetch_add_nbi",
            all,
            "void",
            MODIFY_NBI,
            "amo::fetch_add_nbi",
            "atomic_fetch_add_nbi",
        ),
        row(
            "{}_atomic_fetch_and_nbi",
            bitwise,
            "void",
            MODIFY_NBI,
            "amo::fetch_and_nbi",
            "atomic_fetch_and_nbi",
        ),
        row(
            "{}_atomic_fetch_or_nbi",
            bitwise,
            "void",
            MODIFY_NBI,
            "amo::fetch_or_nbi",
            "atomic_fetch_or_nbi",
        ),
        row(
            "{}_atomic_fetch_xor_nbi",
            bitwise,
            "void",
            MODIFY_NBI,
            "amo::fetch_xor_nbi",
            "atomic_fetch_xor_nbi",
        ),
    ]
}

fn signals() -> Vec<Row> {
    let signal = "uint64_t *sig_addr, uint64_t signal, int pe";
    let mut rows = Vec::new();
    for name in ["put_signal", "put_signal_nbi"] {
        let ((by_type, by_size), does) = (names(name), "rma::put_signal");
        let (types, sizes) = (TypeSet::Rma, TypeSet::BitsAndBytes);
        rows.push(typed(Signals, by_type, types, ("void", SIGNALLED), does, name).optional());
        rows.push(
            typed(Signals, by_size, sizes, ("void", SIGNALLED), does, name)
                .optional()
                .without_generic(),
        );
    }
    rows.push(single(Signals, "signal_add", "void", signal, "amo::signal_add").optional());
    rows.push(single(Signals, "signal_set", "void", signal, "amo::signal_set").optional());
    rows.push(single(
        Signals,
        "signal_fetch",
        "uint64_t",
        "const uint64_t *sig_addr",
        "wait::signal_fetch",
    ));
    rows
}

fn collectives() -> Vec<Row> {
    let (types, bytes) = (TypeSet::Rma, TypeSet::Bytes);
    let (bitwise, more) = (TypeSet::ReduceBitwise, TypeSet::ReduceBitwiseMore);
    let (order, arithmetic) = (TypeSet::ReduceOrder, TypeSet::ReduceArithmetic);
    let group = Collectives;
    let mut rows = vec![
        single(group, "barrier_all", "void", "", "collective::barrier_all"),
        single(group, "sync_all", "void", "", "collective::sync_all"),
        single(group, "team_sync", "int", "shmem_team_t team", "collective::team_sync"),
    ];
    for (by_type, by_size, parameters, does, generic) in [
        ("{}_alltoall", "alltoall{}", TEAM, "collective::alltoall", "alltoall"),
        ("{}_alltoalls", "alltoalls{}", TEAM_STRIDED, "collective::alltoalls", "alltoalls"),
        ("{}_broadcast", "broadcast{}", TEAM_ROOT, "collective::broadcast", "broadcast"),
        ("{}_collect", "collect{}", TEAM, "collective::collect", "collect"),
        ("{}_fcollect", "fcollect{}", TEAM, "collective::fcollect", "fcollect"),
    ] {
        rows.push(typed(group, by_type, types, ("int", parameters), does, generic));
        rows.push(
            typed(group, by_size, bytes, ("int", parameters), does, generic).without_generic(),
        );
    }
    for (name, does, generic) in [
        ("{}_and_reduce", "collective::reduce::<And>", "and_reduce"),
        ("{}_or_reduce", "collective::reduce::<Or>", "or_reduce"),
        ("{}_xor_reduce", "collective::reduce::<Xor>", "xor_reduce"),
    ] {
        rows.push(typed(group, name, bitwise, ("int", REDUCE), does, generic));
        rows.push(typed(group, name, more, ("int", REDUCE), does, generic).extra());
    }
    for (name, set, does, generic) in [
        ("{}_max_reduce", order, "collective::reduce::<Max>", "max_reduce"),
        ("{}_min_reduce", order, "collective::reduce::<Min>", "min_reduce"),
        ("{}_sum_reduce", arithmetic, "collective::reduce::<Sum>", "sum_reduce"),
        ("{}_prod_reduce", arithmetic, "collective::reduce::<Product>", "prod_reduce"),
    ] {
        rows.push(typed(group, name, set, ("int", REDUCE), does, generic));
    }
    for (name, does, generic) in [
        ("{}_sum_inscan", "collective::inscan", "sum_inscan"),
        ("{}_sum_exscan", "collective::exscan", "sum_exscan"),
    ] {
        rows.push(typed(group, name, arithmetic, ("int", TEAM), does, generic));
    }
    rows
}

fn waiting() -> Vec<Row> {
    let one = "T *ivar, int cmp, T cmp_value";
    let row = |name, result, parameters, does, generic| {
        typed(Waiting, name, TypeSet::Waiting, (result, parameters), does, generic)
    };
    let mut rows = vec![
        row("{}_wait_until", "void", one, "wait::until", "wait_until"),
        row("{}_wait_until_all", "void", ALL, "wait::until_all", "wait_until_all"),
        row("{}_wait_until_any", "size_t", ALL, "wait::until_any", "wait_until_any"),
        row("{}_wait_until_some", "size_t", SOME, "wait::until_some", "wait_until_some"),
        row("{}_test", "int", one, "wait::test", "test"),
        row("{}_test_all", "int", ALL, "wait::test_all", "test_all"),
        row("{}_test_any", "size_t", ALL, "wait::test_any", "test_any"),
        row("{}_test_some", "size_t", SOME, "wait::test_some", "test_some"),
    ];
    rows.extend([
        row(
            "{}_wait_until_all_vector",
            "void",
            ALL_VECTOR,
            "wait::until_all_vector",
            "wait_until_all_vector",
        ),
        row(
            "{}_wait_until_any_vector",
            "size_t",
            ALL_VECTOR,
            "wait::until_any_vector",
            "wait_until_any_vector",
        ),
        row(
            "{}_wait_until_some_vector",
            "size_t",
            SOME_VECTOR,
            "wait::until_some_vector",
            "wait_until_some_vector",
        ),
        row("{}_test_all_vector", "int", ALL_VECTOR, "wait::test_all_vector", "test_all_vector"),
        row("{}_test_any_vector", "size_t", ALL_VECTOR, "wait::test_any_vector", "test_any_vector"),
        row(
            "{}_test_some_vector",
            "size_t",
            SOME_VECTOR,
            "wait::test_some_vector",
            "test_some_vector",
        ),
        single(
            Waiting,
            "signal_wait_until",
            "uint64_t",
            "uint64_t *sig_addr, int cmp, uint64_t cmp_value",
            "wait::signal_until",
        ),
    ]);
    rows
}

/// The deprecated functions.
fn old() -> Vec<Row> {
    let (all, extended) = (TypeSet::Amo, TypeSet::AmoExtended);
    let compare = "T *dest, T cond, T value, int pe";
    let row = |name, set, result, parameters, does, generic| {
        typed(Amo, name, set, (result, parameters), does, generic).deprecated()
    };
    let mut rows = vec![
        row("{}_swap", extended, "T", MODIFY, "amo::swap", "swap"),
        row("{}_cswap", all, "T", compare, "amo::compare_swap", "cswap"),
        row("{}_fadd", all, "T", MODIFY, "amo::fetch_add", "fadd"),
        row("{}_finc", all, "T", "T *dest, int pe", "amo::fetch_inc", "finc"),
        row("{}_add", all, "void", MODIFY, "amo::add", "add"),
        row("{}_inc", all, "void", "T *dest, int pe", "amo::inc", "inc"),
        row("{}_fetch", extended, "T", "const T *source, int pe", "amo::fetch", "fetch"),
        row("{}_set", extended, "void", MODIFY, "amo::set", "set"),
    ];
    rows.extend(active_sets());
    let changing = TypeSet::Changing;
    let one = ("void", "T *ivar, T cmp_value");
    let long = "long *ivar, long cmp_value";
    rows.push(typed(Waiting, "{}_wait", changing, one, "wait::changed", "wait").deprecated());
    rows.push(single(Waiting, "wait", "void", long, "wait::changed_long").deprecated());
    let until = "long *ivar, int cmp, long cmp_value";
    rows.push(single(Waiting, "wait_until", "void", until, "wait::until_long").deprecated());
    for (group, name, result, parameters, does) in [
        (Memory, "=shmalloc", "void *", "size_t size", "memory::malloc"),
        (Memory, "=shfree", "void", "void *ptr", "memory::free"),
        (Memory, "=shrealloc", "void *", "void *ptr, size_t size", "memory::realloc"),
        (Memory, "=shmemalign", "void *", "size_t alignment, size_t size", "memory::align"),
        (Setup, "=start_pes", "void", "int npes", "setup::start_pes"),
        (Setup, "=_my_pe", "int", "", "setup::my_pe"),
        (Setup, "=_num_pes", "int", "", "setup::n_pes"),
    ] {
        rows.push(single(group, name, result, parameters, does).deprecated());
    }
    rows
}

fn active_sets() -> Vec<Row> {
    let group = Collectives;
    let (bitwise, order) = (TypeSet::ToAllBitwise, TypeSet::ToAllOrder);
    let arithmetic = TypeSet::ToAllArithmetic;
    let mut rows = vec![
        single(group, "barrier", "void", SYNC_SET, "active_set::barrier").deprecated(),
        single(group, "sync", "void", SYNC_SET, "active_set::sync").deprecated(),
    ];
    for (name, set, does) in [
        ("{}_and_to_all", bitwise, "active_set::reduce::<And>"),
        ("{}_or_to_all", bitwise, "active_set::reduce::<Or>"),
        ("{}_xor_to_all", bitwise, "active_set::reduce::<Xor>"),
        ("{}_max_to_all", order, "active_set::reduce::<Max>"),
        ("{}_min_to_all", order, "active_set::reduce::<Min>"),
        ("{}_sum_to_all", arithmetic, "active_set::reduce::<Sum>"),
        ("{}_prod_to_all", arithmetic, "active_set::reduce::<Product>"),
    ] {
        rows.push(typed(group, name, set, ("void", TO_ALL), does, "").without_generic());
    }
    for (name, parameters, does) in [
        ("broadcast{}", SET_ROOT, "active_set::broadcast"),
        ("collect{}", SET, "active_set::collect"),
        ("fcollect{}", SET, "active_set::fcollect"),
        ("alltoall{}", SET, "active_set::alltoall"),
        ("alltoalls{}", SET_STRIDED, "active_set::alltoalls"),
    ] {
        let words = TypeSet::Words;
        rows.push(typed(group, name, words, ("void", parameters), does, "").without_generic());
    }
    rows.into_iter().map(Row::deprecated).collect()
}
