//! The exported functions of the library, in Rust.

use std::fmt::Write as _;

use crate::{Context, Function, Group, Row, rows};

/// The text of a module that defines every function of the table and its `pshmem_` twin. It names
/// modules, types and operators that the surface crate brings into scope.
#[must_use]
pub fn text() -> String {
    let mut text = String::new();
    for row in rows() {
        for function in row.functions() {
            if !is_by_hand(&function) {
                define(&mut text, &row, &function);
            }
        }
    }
    text
}

/// The name of the twin of a function.
#[must_use]
pub fn twin(name: &str) -> String {
    format!("p{name}")
}

/// Functions that pass a `long double` by value, for which Rust has no type: the surface crate
/// writes them in assembler.
fn is_by_hand(function: &Function) -> bool {
    let is_long_double = |c: &str| c == "long double";
    is_long_double(&function.result)
        || function.parameters.iter().any(|parameter| is_long_double(&parameter.c))
}

fn define(text: &mut String, row: &Row, function: &Function) {
    let name = &function.name;
    let parameters: Vec<String> = function
        .parameters
        .iter()
        .map(|parameter| format!("{}: {}", parameter.name, rust(&parameter.c, function)))
        .collect();
    let names: Vec<&str> = function.parameters.iter().map(|p| p.name.as_str()).collect();
    let result = match function.result.as_str() {
        "void" => String::new(),
        c => format!(" -> {}", rust(c, function)),
    };
    let does = match (function.of, row.does.strip_suffix('>')) {
        (None, _) => row.does.to_owned(),
        (Some(of), Some(open)) => format!("{open}, {}>", of.rust),
        (Some(of), None) => format!("{}::<{}>", row.does, of.rust),
    };
    let mut arguments = vec![format!("\"{name}\"")];
    // Deprecated atomics have no functions with a context, and are done by the same code.
    let goes_through_context = row.context == Context::Optional || row.group == Group::Amo;
    if goes_through_context && !function.has_context {
        arguments.push("World".to_owned());
    }
    let is_sized = function.of.is_some_and(|of| of.c == "void");
    arguments.extend(function.parameters.iter().map(|parameter| {
        let is_untyped = is_sized && parameter.c.contains("void");
        if is_untyped { format!("{}.cast()", parameter.name) } else { parameter.name.clone() }
    }));
    let (parameters, arguments) = (parameters.join(", "), arguments.join(", "));
    for (name, body) in [
        (name.clone(), format!("{does}({arguments})")),
        (twin(name), format!("{name}({})", names.join(", "))),
    ] {
        writeln!(
            text,
            "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {name}({parameters}){result} {{\n    \
             // SAFETY: the caller keeps the rules of the specification for this call.\n    \
             unsafe {{ {body} }}\n}}"
        )
        .expect("a string takes all text");
    }
}

/// A type of C in Rust.
fn rust(c: &str, function: &Function) -> String {
    if let Some(pointee) = c.strip_suffix(" *") {
        return match pointee.strip_prefix("const ") {
            Some(pointee) => format!("*const {}", rust(pointee, function)),
            None => format!("*mut {}", rust(pointee, function)),
        };
    }
    let word = match c {
        "void" => "c_void",
        "char" if function.of.is_none() => "c_char",
        "int" => "c_int",
        "long" => "c_long",
        "uint64_t" => "u64",
        "size_t" => "usize",
        "ptrdiff_t" => "isize",
        "shmem_ctx_t" => "ContextHandle",
        "shmem_team_t" => "TeamHandle",
        "shmem_team_config_t" => "TeamConfig",
        "shmem_ctx_session_config_t" => "SessionConfig",
        c => function.of.filter(|of| of.c == c).expect("the table names no other type").rust,
    };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_function_and_its_twin_are_defined_once_or_by_hand() {
        let text = text();
        let mut times_of = BTreeMap::new();
        for line in text.lines() {
            let name = line.split_once(" fn ").and_then(|(_, rest)| rest.split_once('('));
            if let Some((name, _)) = name {
                *times_of.entry(name).or_insert(0) += 1;
            }
        }
        for function in rows().iter().flat_map(Row::functions) {
            let is_defined = |name: &str| times_of.get(name).copied().unwrap_or(0);
            let times = usize::from(!is_by_hand(&function));
            assert_eq!(is_defined(&function.name), times, "{}", function.name);
            assert_eq!(is_defined(&twin(&function.name)), times, "{}", function.name);
        }
        let by_hand = rows().iter().flat_map(Row::functions).filter(is_by_hand).count();
        assert_eq!(by_hand, 4);
    }

    #[test]
    fn contexts_and_sizes_are_passed_as_the_library_takes_them() {
        let text = text();
        for line in [
            "rma::put::<i32>(\"shmem_int_put\", World, dest, source, nelems, pe)",
            "rma::put::<i32>(\"shmem_ctx_int_put\", ctx, dest, source, nelems, pe)",
            "rma::put::<u128>(\"shmem_put128\", World, dest.cast(), source.cast(), nelems, pe)",
            "collective::reduce::<Sum, Complex<f64>>(\"shmem_complexd_sum_reduce\", team, dest, \
             source, nreduce)",
            "shmem_int_put(dest, source, nelems, pe)",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }
}
