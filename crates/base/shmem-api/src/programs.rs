//! C programs that call each function with each type, and check what it does.
//!
//! A program consists of [`CHECKS`], one macro for each function of the table, and of a list of
//! calls of these macros that the table gives. The same list is compiled in four ways: with the
//! typed names in C99, with their `pshmem_` twins, with the generic names in C11, and with the
//! overloads in C++. The generic ways call each function once for each basic type.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::generics::COMPLEX_OF_CXX;
use crate::headers::COMPLEX_OF_C;
use crate::{Context, Origin, Over, Row, Type, rows};

/// How the functions are named in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// `shmem_int_put`.
    Typed,
    /// `pshmem_int_put`.
    Twin,
    /// `shmem_put`, in C11 or C++.
    Generic,
}

/// The macros of the checks.
pub const CHECKS: &str = include_str!("checks.h");

/// The text of a program that calls every function.
#[must_use]
pub fn text(naming: Naming) -> String {
    let mut text = String::new();
    text.push_str(match naming {
        Naming::Typed => {
            "#define F(type, name) shmem_##type##_##name\n\
                          #define C(type, name) shmem_ctx_##type##_##name\n\
                          #define S(name) shmem_##name\n\
                          #include <shmem.h>\n"
        }
        Naming::Twin => {
            "#define F(type, name) pshmem_##type##_##name\n\
                         #define C(type, name) pshmem_ctx_##type##_##name\n\
                         #define S(name) pshmem_##name\n\
                         #include <pshmem.h>\n"
        }
        Naming::Generic => {
            "#define F(type, name) shmem_##name\n\
                            #define C(type, name) shmem_##name\n\
                            #define S(name) shmem_##name\n\
                            #include <shmem.h>\n"
        }
    });
    text.push_str(CHECKS);
    let mut calls = Vec::new();
    let mut seen = BTreeSet::new();
    for row in rows() {
        let Over::Types(set) = row.over else { continue };
        if naming == Naming::Generic && row.generic.is_none() {
            continue;
        }
        for of in set.types() {
            let is_new = naming != Naming::Generic || seen.insert((row.generic, of.basic));
            if is_new {
                calls.push(call(&row, *of));
            }
            if is_new && naming == Naming::Generic {
                calls.extend(call_of_cxx(&row, *of));
            }
        }
    }
    // A function of a reasonable size for the compiler holds some calls of macros.
    for (number, calls) in calls.chunks(24).enumerate() {
        write!(text, "static void part{number}(void) {{\n{}}}\n", calls.concat())
            .expect("a string takes all text");
    }
    text.push_str("int main(void) {\n  begin();\n");
    for number in 0..calls.len().div_ceil(24) {
        writeln!(text, "  part{number}();").expect("a string takes all text");
    }
    text.push_str("  singles();\n  return end();\n}\n");
    text
}

/// The call of a macro for a row and a type.
fn call(row: &Row, of: Type) -> String {
    let element = if of.c == "void" { of_size(of.word) } else { named(of.c, &COMPLEX_OF_C) };
    format!("  {}({}, {element})\n", macro_of(row), of.word)
}

/// The same call for complex numbers of C++.
fn call_of_cxx(row: &Row, of: Type) -> Option<String> {
    let element = named(of.c, &COMPLEX_OF_CXX);
    let call = || format!("  {}({}, {element})\n", macro_of(row), of.word);
    (element != of.c).then(|| format!("#ifdef __cplusplus\n{}#endif\n", call()))
}

/// The name of a type in a list of others, or its own.
fn named(c: &'static str, names: &[(&str, &'static str)]) -> &'static str {
    names.iter().find(|(of, _)| *of == c).map_or(c, |(_, name)| name)
}

/// The macro that checks a row: its name without type, in capitals.
fn macro_of(row: &Row) -> String {
    let by_size = !row.name.starts_with("{}_");
    let name = row.name_without_type();
    let kind = match (row.standing, row.context, by_size) {
        (Origin::Deprecated, _, true) => "SET_",
        (_, Context::None, true) => "PLAIN_SIZE_",
        (_, Context::None, false) => "PLAIN_",
        (_, Context::Optional, true) => "SIZE_",
        (_, Context::Optional, false) => "",
    };
    format!("CHECK_{kind}{}", name.to_uppercase())
}

/// An element of a number of bits.
fn of_size(word: &str) -> &'static str {
    match word {
        "16" => "int16_t",
        "32" => "int32_t",
        "64" => "int64_t",
        "128" => "struct weft_pair",
        _ => "int8_t",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_check() {
        for row in rows() {
            match row.over {
                Over::Types(_) => {
                    let define = format!("#define {}(", macro_of(&row));
                    assert!(CHECKS.contains(&define), "{define}");
                }
                Over::Nothing => {
                    let name = row.name.trim_start_matches('=');
                    let called = [format!("S({name})("), format!("OLD({name})(")];
                    let is_called = called.iter().any(|call| CHECKS.contains(call.as_str()));
                    assert!(is_called, "{name} is not called");
                }
            }
        }
    }
}
