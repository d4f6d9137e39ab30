//! The headers: `shmem.h` with what the specification names, `pshmem.h` with the twins, `shmemx.h`
//! with extensions, and the old places of them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::exports::twin;
use crate::{Origin, Row, generics, prose, rows};

/// A file that programs include: its path below the include directory, and its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Its path, such as `mpp/shmem.h`.
    pub path: &'static str,
    /// Its text.
    pub text: String,
}

/// All headers.
#[must_use]
pub fn all() -> Vec<Header> {
    let forward = |path, to: &str| Header { path, text: format!("#include <{to}>\n") };
    vec![
        Header { path: "shmem.h", text: shmem() },
        Header { path: "pshmem.h", text: pshmem() },
        Header { path: "shmemx.h", text: shmemx() },
        forward("mpp/shmem.h", "shmem.h"),
        forward("mpp/pshmem.h", "pshmem.h"),
        forward("mpp/shmemx.h", "shmemx.h"),
    ]
}

/// The constants and types of the library. The surface crate has the same values in Rust.
const DEFINITIONS: &str = r#"#define SHMEM_MAJOR_VERSION 1
#define SHMEM_MINOR_VERSION 6
#define SHMEM_MAX_NAME_LEN 256
#define SHMEM_VENDOR_STRING "weft OpenSHMEM"

#define SHMEM_THREAD_SINGLE 0
#define SHMEM_THREAD_FUNNELED 1
#define SHMEM_THREAD_SERIALIZED 2
#define SHMEM_THREAD_MULTIPLE 3

#define SHMEM_CMP_EQ 1
#define SHMEM_CMP_NE 2
#define SHMEM_CMP_GT 3
#define SHMEM_CMP_GE 4
#define SHMEM_CMP_LT 5
#define SHMEM_CMP_LE 6

#define SHMEM_SIGNAL_SET 0
#define SHMEM_SIGNAL_ADD 1

#define SHMEM_MALLOC_ATOMICS_REMOTE (1l << 0)
#define SHMEM_MALLOC_SIGNAL_REMOTE (1l << 1)

#define SHMEM_CTX_PRIVATE (1l << 0)
#define SHMEM_CTX_SERIALIZED (1l << 1)
#define SHMEM_CTX_NOSTORE (1l << 2)
#define SHMEM_CTX_SESSION_BATCH (1l << 0)
#define SHMEM_CTX_SESSION_TOTAL_OPS (1l << 0)
#define SHMEM_TEAM_NUM_CONTEXTS (1l << 0)

#define SHMEM_SYNC_VALUE 0l
#define SHMEM_SYNC_SIZE 4
#define SHMEM_BCAST_SYNC_SIZE 4
#define SHMEM_REDUCE_SYNC_SIZE 4
#define SHMEM_BARRIER_SYNC_SIZE 4
#define SHMEM_COLLECT_SYNC_SIZE 4
#define SHMEM_ALLTOALL_SYNC_SIZE 4
#define SHMEM_ALLTOALLS_SYNC_SIZE 4
#define SHMEM_REDUCE_MIN_WRKDATA_SIZE 1

#define _SHMEM_MAJOR_VERSION SHMEM_MAJOR_VERSION
#define _SHMEM_MINOR_VERSION SHMEM_MINOR_VERSION
#define _SHMEM_MAX_NAME_LEN SHMEM_MAX_NAME_LEN
#define _SHMEM_VENDOR_STRING SHMEM_VENDOR_STRING
#define _SHMEM_CMP_EQ SHMEM_CMP_EQ
#define _SHMEM_CMP_NE SHMEM_CMP_NE
#define _SHMEM_CMP_GT SHMEM_CMP_GT
#define _SHMEM_CMP_GE SHMEM_CMP_GE
#define _SHMEM_CMP_LT SHMEM_CMP_LT
#define _SHMEM_CMP_LE SHMEM_CMP_LE
#define _SHMEM_SYNC_VALUE SHMEM_SYNC_VALUE
#define _SHMEM_BCAST_SYNC_SIZE SHMEM_BCAST_SYNC_SIZE
#define _SHMEM_REDUCE_SYNC_SIZE SHMEM_REDUCE_SYNC_SIZE
#define _SHMEM_BARRIER_SYNC_SIZE SHMEM_BARRIER_SYNC_SIZE
#define _SHMEM_COLLECT_SYNC_SIZE SHMEM_COLLECT_SYNC_SIZE
#define _SHMEM_REDUCE_MIN_WRKDATA_SIZE SHMEM_REDUCE_MIN_WRKDATA_SIZE

/* Handles are addresses of objects in the library. */
typedef struct shmem_weft_context *shmem_ctx_t;
typedef struct shmem_weft_team *shmem_team_t;

typedef struct {
  int num_contexts;
} shmem_team_config_t;

typedef struct {
  size_t total_ops;
} shmem_ctx_session_config_t;

#define SHMEM_CTX_INVALID ((shmem_ctx_t)0)
#define SHMEM_TEAM_INVALID ((shmem_team_t)0)

extern shmem_ctx_t SHMEM_CTX_DEFAULT;
extern shmem_team_t SHMEM_TEAM_WORLD;
extern shmem_team_t SHMEM_TEAM_SHARED;

/* What C and C++ write in different ways. Complex numbers of C are an extension in C++. */
#ifdef __cplusplus
__extension__ typedef float _Complex shmem_weft_complexf;
__extension__ typedef double _Complex shmem_weft_complexd;
#if __cplusplus >= 201103L
#define SHMEM_WEFT_NORETURN [[noreturn]]
#else
#define SHMEM_WEFT_NORETURN
#endif
#else
typedef float _Complex shmem_weft_complexf;
typedef double _Complex shmem_weft_complexd;
#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define SHMEM_WEFT_NORETURN _Noreturn
#else
#define SHMEM_WEFT_NORETURN
#endif
#endif
"#;

/// The complex types of C, and how declarations name them for C++, too.
pub(crate) const COMPLEX_OF_C: [(&str, &str); 2] =
    [("float _Complex", "shmem_weft_complexf"), ("double _Complex", "shmem_weft_complexd")];

const OPENING: &str = "#include <stddef.h>\n#include <stdint.h>\n";
const OPENING_OF_CXX: &str = "#ifdef __cplusplus\n#include <complex>\nextern \"C\" {\n#endif\n\n";
const CLOSING_OF_CXX: &str = "\n#ifdef __cplusplus\n} /* extern \"C\" */\n#endif\n";

fn guarded(name: &str, title: &str, body: &str) -> String {
    format!(
        "/* {title} Generated from the table of weft's OpenSHMEM; do not edit. */\n\
         #ifndef {name}\n#define {name}\n\n{body}\n#endif /* {name} */\n"
    )
}

fn shmem() -> String {
    let mut body = format!("{OPENING}\n{OPENING_OF_CXX}{DEFINITIONS}");
    body.push_str(&declarations(str::to_owned));
    body.push_str(CLOSING_OF_CXX);
    body.push_str(&generics::c11());
    body.push_str(&generics::cxx());
    guarded("SHMEM_H", "OpenSHMEM 1.6.", &body)
}

fn pshmem() -> String {
    let cxx = OPENING_OF_CXX.replace("#include <complex>\n", "");
    let body = format!("#include <shmem.h>\n\n{cxx}{}{CLOSING_OF_CXX}", declarations(twin));
    guarded("PSHMEM_H", "The names of OpenSHMEM's functions for profilers.", &body)
}

/// Parts of the names of functions that Sandia OpenSHMEM had as extensions, before 1.6 took them.
const ONCE_EXTENSIONS: [&str; 6] =
    ["ibput", "ibget", "sum_inscan", "sum_exscan", "signal_add", "signal_set"];

/// Its other names: a team of 1.5, and a hint, which may be ignored.
const OTHER_EXTENSIONS: &str = "#define SHMEMX_TEAM_NODE SHMEM_TEAM_SHARED\n\
                                #define SHMEMX_MALLOC_NO_BARRIER 0l\n\n";

fn shmemx() -> String {
    let mut body = format!("#include <shmem.h>\n\n{OTHER_EXTENSIONS}");
    for name in once_extensions() {
        let short = name.trim_start_matches("shmem_");
        writeln!(body, "#define shmemx_{short} {name}").expect("it is a string");
    }
    let title = "Extensions of Sandia OpenSHMEM for which the standard has other names.";
    guarded("SHMEMX_H", title, &body)
}

/// The names of functions, and of their generics, that were extensions.
fn once_extensions() -> BTreeSet<String> {
    let rows = rows();
    let functions = rows.iter().flat_map(Row::functions).map(|function| function.name);
    let generics = rows.iter().filter_map(|row| row.generic).map(|name| format!("shmem_{name}"));
    let was_one = |name: &String| ONCE_EXTENSIONS.iter().any(|part| name.contains(part));
    functions.chain(generics).filter(was_one).collect()
}

fn declarations(named: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    let mut group = None;
    for row in rows() {
        if group != Some((row.group, row.standing == Origin::Deprecated)) {
            group = Some((row.group, row.standing == Origin::Deprecated));
            let old = if row.standing == Origin::Deprecated { " (deprecated)" } else { "" };
            writeln!(text, "\n/* {}{old} */", prose::title(row.group)).expect("it is a string");
        }
        text.push_str(&row_of_declarations(&row, &named));
    }
    text
}

fn row_of_declarations(row: &Row, named: &impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    for function in row.functions() {
        let mut prototype = function.prototype(&named(&function.name));
        for (c, portable) in COMPLEX_OF_C {
            prototype = prototype.replace(c, portable);
        }
        match function.name.as_str() {
            "shmem_pcontrol" => prototype = prototype.replace("int level", "int level, ..."),
            "shmem_global_exit" => prototype = format!("SHMEM_WEFT_NORETURN {prototype}"),
            _ => {}
        }
        writeln!(text, "{prototype};").expect("it is a string");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of functions that a header declares.
    fn declared(text: &str) -> BTreeSet<&str> {
        let declarations = text.lines().filter(|line| line.ends_with(");"));
        let heads = declarations.filter_map(|line| line.split_once('(').map(|(head, _)| head));
        heads.filter_map(|head| head.rsplit([' ', '*']).next()).collect()
    }

    #[test]
    fn names_that_were_extensions_lead_to_functions_of_the_standard() {
        let names = once_extensions();
        for name in ["shmem_ibput", "shmem_ctx_double_ibget", "shmem_long_sum_exscan"] {
            assert!(names.contains(name), "{name}");
        }
        // Blocks of 24 types and 5 sizes with and without contexts, scans of 26 types, 2 signals
        // with and without; and the generics: 2 of blocks and 2 of scans.
        assert_eq!(names.len(), 2 * 2 * (24 + 5) + 2 * 26 + 4 + 4);
        let text = shmemx();
        for name in names {
            let line = format!("#define shmemx_{} {name}\n", &name["shmem_".len()..]);
            assert!(text.contains(&line), "{line}");
        }
    }

    #[test]
    fn every_function_is_declared_under_both_names() {
        let (shmem, pshmem) = (shmem(), pshmem());
        let (shmem, pshmem) = (declared(&shmem), declared(&pshmem));
        for function in rows().iter().flat_map(Row::functions) {
            let name = function.name;
            assert!(shmem.contains(name.as_str()), "{name}");
            assert!(pshmem.contains(twin(&name).as_str()), "{name}");
        }
    }
}
