//! Layer 0: the table of OpenSHMEM's functions (1.6), and all that is generated from it.
//!
//! One row of [`rows`] stands for a function with every type and with and without a context. From
//! the rows follow the exports of the library ([`exports`]), the headers ([`headers`]), the manual
//! pages ([`manual`]) and C programs that call each function with each type ([`programs`]). Pure:
//! text comes out, and whoever asks writes it to a file.
//!
//! # Invariants
//! - A function exists in one row alone, so that header, library, manual and test agree.
//! - Nothing here depends on the machine: the output is the same for the same sources.
#![forbid(unsafe_code)]

pub mod exports;
mod generics;
pub mod headers;
pub mod manual;
pub mod programs;
mod prose;
mod row;
mod rows;
mod types;

pub use row::{Context, Group, Origin, Over, Parameter, Row};
pub use rows::rows;
pub use types::{Type, TypeSet};

/// One function in C, after its row was expanded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its name in C.
    pub name: String,
    /// The type that it is of, if it is of one.
    pub of: Option<Type>,
    /// Whether its first parameter is a context.
    pub has_context: bool,
    /// The type of its result in C.
    pub result: String,
    /// Its parameters in C.
    pub parameters: Vec<Parameter>,
}

impl Function {
    /// Its declaration in C, without the semicolon, under another name.
    #[must_use]
    pub fn prototype(&self, name: &str) -> String {
        let list: Vec<String> = self.parameters.iter().map(Parameter::declaration).collect();
        let list = if list.is_empty() { "void".to_owned() } else { list.join(", ") };
        let space = if self.result.ends_with('*') { "" } else { " " };
        format!("{}{space}{name}({list})", self.result)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn count(standing: Origin) -> usize {
        rows().iter().filter(|row| row.standing == standing).map(|row| row.functions().len()).sum()
    }

    #[test]
    fn the_functions_are_as_many_as_the_specification_has() {
        assert_eq!(count(Origin::Current), 1_712);
        assert_eq!(count(Origin::Deprecated), 171);
    }

    #[test]
    fn each_group_has_the_functions_of_the_specification() {
        let of = |group: Group| -> usize {
            rows()
                .iter()
                .filter(|row| row.group == group && row.standing == Origin::Current)
                .map(|row| row.functions().len())
                .sum()
        };
        let all = [
            (Group::Setup, 12),
            (Group::Threads, 2),
            (Group::Memory, 6),
            (Group::Teams, 7),
            (Group::Contexts, 6),
            (Group::Rma, 568),
            (Group::Amo, 458),
            (Group::Signals, 125),
            (Group::Collectives, 322),
            (Group::Waiting, 197),
            (Group::Ordering, 6),
            (Group::Locks, 3),
        ];
        for (group, functions) in all {
            assert_eq!(of(group), functions, "{group:?}");
        }
    }

    #[test]
    fn no_name_is_there_twice() {
        let mut names = BTreeSet::new();
        for function in rows().iter().flat_map(Row::functions) {
            assert!(names.insert(function.name.clone()), "{} is there twice", function.name);
        }
    }
}
