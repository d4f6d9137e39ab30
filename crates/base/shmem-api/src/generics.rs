//! Functions without a type in their names: generic selections in C11, overloads in C++.
//!
//! A selection may name each type of C once, and the types of fixed width are other names of basic
//! ones. So a function is chosen for each *basic* type, by the first word of the table that is of
//! it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::headers::COMPLEX_OF_C;
use crate::types::Type;
use crate::{Context, Function, Over, Parameter, Row, rows};

/// One generic name: its rows, of which extra ones add types.
struct Generic {
    name: &'static str,
    rows: Vec<Row>,
}

/// The generics, in the order of the table.
fn all() -> Vec<Generic> {
    let mut all: Vec<Generic> = Vec::new();
    for row in rows() {
        let Some(name) = row.generic else { continue };
        match all.iter_mut().find(|generic| generic.name == name) {
            Some(generic) => generic.rows.push(row),
            None => all.push(Generic { name, rows: vec![row] }),
        }
    }
    all
}

impl Generic {
    /// Each basic type once, with the row and the type of the table that stand for it.
    fn choices(&self) -> Vec<(Row, Type)> {
        let mut seen = BTreeMap::new();
        let mut choices = Vec::new();
        for row in &self.rows {
            let Over::Types(set) = row.over else { continue };
            for of in set.types() {
                if seen.insert(of.basic, ()).is_none() {
                    choices.push((*row, *of));
                }
            }
        }
        choices
    }

    fn function(choice: &(Row, Type), has_context: bool) -> Function {
        let is_it = |function: &Function| {
            function.of == Some(choice.1) && function.has_context == has_context
        };
        let mut functions = choice.0.functions().into_iter();
        functions.find(is_it).expect("the row has a function for each of its types")
    }

    /// The place of the parameter that has the type.
    fn deciding(&self) -> usize {
        usize::from(self.rows[0].parameters.starts_with("shmem_team_t"))
    }
}

/// A line of a selection, for pointers to the type with any qualifier.
fn associations(c: &str, function: &str) -> String {
    let pointers = ["", "const ", "volatile ", "const volatile "];
    pointers.iter().fold(String::new(), |mut text, qualifier| {
        writeln!(text, "    {qualifier}{c} *: {function}, \\").expect("it is a string");
        text
    })
}

const SELECTING: &str = "
#define SHMEM_WEFT_FIRST(first, ...) first
#define SHMEM_WEFT_SECOND(first, second, ...) second
";

/// The selections of C11.
pub(crate) fn c11() -> String {
    let mut text = String::from(
        "\n#if !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L\n",
    );
    text.push_str(SELECTING);
    for generic in all() {
        let list = |has_context: bool| {
            generic.choices().iter().fold(String::new(), |mut list, choice| {
                let name = Generic::function(choice, has_context).name;
                list.push_str(&associations(choice.1.basic, &name));
                list
            })
        };
        let name = generic.name;
        let deciding = ["SHMEM_WEFT_FIRST", "SHMEM_WEFT_SECOND"][generic.deciding()];
        let with_context = if generic.rows[0].context == Context::Optional {
            // Without a context the second argument is of any type: the inner selection then
            // yields what cannot be called, and is not chosen.
            format!(
                "    shmem_ctx_t: _Generic((SHMEM_WEFT_SECOND(__VA_ARGS__, 0, 0)), \\\n{}    \
                 default: (void)0), \\\n",
                list(true)
            )
        } else {
            String::new()
        };
        let plain = list(false);
        let plain = plain.trim_end_matches(", \\\n");
        write!(
            text,
            "\n#define shmem_{name}(...) _Generic(({deciding}(__VA_ARGS__, 0, 0)), \\\n\
             {with_context}{plain})(__VA_ARGS__)\n"
        )
        .expect("it is a string");
    }
    text.push_str(ONE_MORE_C11);
    text.push_str("#endif\n");
    text
}

/// Names that stand for a function of a team or of a context as well as for one without.
const ONE_MORE_C11: &str = "
#define shmem_sync(...) _Generic((SHMEM_WEFT_FIRST(__VA_ARGS__, 0)), \\
    shmem_team_t: shmem_team_sync, \\
    default: shmem_sync)(__VA_ARGS__)
#define shmem_signal_add(...) _Generic((SHMEM_WEFT_FIRST(__VA_ARGS__, 0)), \\
    shmem_ctx_t: shmem_ctx_signal_add, \\
    default: shmem_signal_add)(__VA_ARGS__)
#define shmem_signal_set(...) _Generic((SHMEM_WEFT_FIRST(__VA_ARGS__, 0)), \\
    shmem_ctx_t: shmem_ctx_signal_set, \\
    default: shmem_signal_set)(__VA_ARGS__)
";

const ONE_MORE_CXX: &str = "
static inline int shmem_sync(shmem_team_t team) { return shmem_team_sync(team); }
static inline void shmem_signal_add(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe) {
  shmem_ctx_signal_add(ctx, sig_addr, signal, pe);
}
static inline void shmem_signal_set(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe) {
  shmem_ctx_signal_set(ctx, sig_addr, signal, pe);
}
";

/// The complex types of C, and those of C++, which lie in memory in the same way.
pub(crate) const COMPLEX_OF_CXX: [(&str, &str); 2] =
    [("float _Complex", "::std::complex<float>"), ("double _Complex", "::std::complex<double>")];

/// The overloads of C++.
pub(crate) fn cxx() -> String {
    let mut text = String::from("\n#ifdef __cplusplus\n");
    let functions: Vec<Function> = rows().iter().flat_map(Row::functions).collect();
    for function in functions.iter().filter(|function| is_complex(function)) {
        text.push_str(&of_complex_numbers(function));
    }
    for generic in all() {
        for choice in generic.choices() {
            for has_context in [false, true] {
                if has_context && choice.0.context == Context::None {
                    continue;
                }
                let function = Generic::function(&choice, has_context);
                let name = format!("shmem_{}", generic.name);
                // A C function of this name and these parameters is there already.
                if matches!(generic.name, "wait" | "wait_until") && choice.1.word == "long" {
                    continue;
                }
                text.push_str(&overload(&name, &function, &COMPLEX_OF_C, ""));
                if is_complex(&function) {
                    text.push_str(&overload(&name, &function, &COMPLEX_OF_CXX, ""));
                }
            }
        }
    }
    text.push_str(ONE_MORE_CXX);
    text.push_str("#endif\n");
    text
}

fn is_complex(function: &Function) -> bool {
    function.of.is_some_and(|of| of.c.ends_with("_Complex"))
}

/// A function of complex numbers of C++, under the name of that for those of C.
fn of_complex_numbers(function: &Function) -> String {
    let c = function.of.map_or("", |of| of.c);
    let portable = COMPLEX_OF_C.iter().find(|(name, _)| *name == c).map_or(c, |(_, name)| *name);
    overload(&function.name, function, &COMPLEX_OF_CXX, portable)
}

/// An inline function that calls a function of the table. Pointers to complex numbers become those
/// to the type `cast`, if there is one.
fn overload(name: &str, function: &Function, complex: &[(&str, &str)], cast: &str) -> String {
    let Some(of) = function.of else { return String::new() };
    let basic = |c: &str| {
        complex.iter().fold(c.replace(of.c, of.basic), |text, (from, to)| text.replace(from, to))
    };
    let parameters = function
        .parameters
        .iter()
        .map(|p| Parameter { c: basic(&p.c), name: p.name.clone() })
        .collect();
    let shown = Function { result: basic(&function.result), parameters, ..function.clone() };
    let arguments: Vec<String> = function
        .parameters
        .iter()
        .map(|p| {
            if cast.is_empty() || !p.c.contains(of.c) {
                p.name.clone()
            } else {
                format!("reinterpret_cast<{}>({})", p.c.replace(of.c, cast), p.name)
            }
        })
        .collect();
    let returns = if function.result == "void" { "" } else { "return " };
    format!(
        "static inline {} {{\n  {returns}{}({});\n}}\n",
        shown.prototype(name),
        function.name,
        arguments.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;

    #[test]
    fn there_are_as_many_generics_as_the_specification_has() {
        let current = all().iter().filter(|g| g.rows[0].standing == Origin::Current).count();
        // With three names that stand for a team or a context as well, and `shmem_global_exit`,
        // which does not return in C11.
        assert_eq!(current + 3 + 1, 66);
    }

    #[test]
    fn a_basic_type_is_chosen_once() {
        for generic in all() {
            let mut basic: Vec<_> = generic.choices().iter().map(|(_, of)| of.basic).collect();
            let all = basic.len();
            basic.sort_unstable();
            basic.dedup();
            assert_eq!(basic.len(), all, "{}", generic.name);
        }
    }
}
