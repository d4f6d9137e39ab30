//! A row of the table, and the functions that it stands for.
//!
//! In a row `T` stands for the type, and `{}` in a name for the word of the type.

use crate::Function;
use crate::types::{Type, TypeSet};

/// A chapter of the specification.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// Setup, exit and queries.
    Setup,
    /// Levels of thread support.
    Threads,
    /// The symmetric heap.
    Memory,
    /// Teams.
    Teams,
    /// Contexts and their sessions.
    Contexts,
    /// Remote memory access.
    Rma,
    /// Atomics.
    Amo,
    /// Data with a signal.
    Signals,
    /// Collectives of teams and of active sets.
    Collectives,
    /// Waiting for a word to change.
    Waiting,
    /// Fence and quiet.
    Ordering,
    /// Locks.
    Locks,
}

/// Where a function stands in the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// One of the functions of 1.6.
    Current,
    /// One that still has to be there.
    Deprecated,
    /// One that the specification does not count: other libraries have it.
    Extra,
}

/// Whether a row has functions with a context as first parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// One function, without a context.
    None,
    /// Two functions: without one, and `shmem_ctx_…` with one.
    Optional,
}

/// The types for which a row has functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// One function of no type.
    Nothing,
    /// One for each type of a table.
    Types(TypeSet),
}

/// A parameter in C.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its type.
    pub c: String,
    /// Its name.
    pub name: String,
}

impl Parameter {
    /// `type name` as in a declaration.
    #[must_use]
    pub fn declaration(&self) -> String {
        let space = if self.c.ends_with('*') { "" } else { " " };
        format!("{}{space}{}", self.c, self.name)
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its chapter.
    pub group: Group,
    /// Where it stands in the specification.
    pub standing: Origin,
    /// The name in C behind `shmem_`, or the whole name if it begins with `=`.
    pub name: &'static str,
    /// The types.
    pub over: Over,
    /// With and without a context, or without alone.
    pub context: Context,
    /// The result in C.
    pub result: &'static str,
    /// The parameters in C, without the context.
    pub parameters: &'static str,
    /// The Rust function of the library that does it, below its crate.
    pub does: &'static str,
    /// The name of the C11 generic behind `shmem_`, if there is one.
    pub generic: Option<&'static str>,
}

impl Row {
    /// The functions of the row, in order.
    #[must_use]
    pub fn functions(&self) -> Vec<Function> {
        let types: Vec<Option<Type>> = match self.over {
            Over::Nothing => vec![None],
            Over::Types(set) => set.types().iter().copied().map(Some).collect(),
        };
        let contexts: &[bool] = match self.context {
            Context::None => &[false],
            Context::Optional => &[false, true],
        };
        contexts
            .iter()
            .flat_map(|context| types.iter().map(|of| self.function(*of, *context)))
            .collect()
    }

    /// Its name without the place of the type.
    #[must_use]
    pub fn name_without_type(&self) -> String {
        self.name.trim_start_matches("{}_").replace("{}", "")
    }

    fn function(&self, of: Option<Type>, has_context: bool) -> Function {
        let word = of.map_or("", |of| of.word);
        let name = match self.name.strip_prefix('=') {
            Some(whole) => whole.to_owned(),
            None if has_context => format!("shmem_ctx_{}", self.name.replace("{}", word)),
            None => format!("shmem_{}", self.name.replace("{}", word)),
        };
        let typed = |text: &str| of.map_or_else(|| text.to_owned(), |of| with_type(text, of.c));
        let context =
            has_context.then(|| Parameter { c: "shmem_ctx_t".into(), name: "ctx".into() });
        let own = self.parameters.split(", ").filter(|text| !text.is_empty()).map(|text| {
            let (c, name) = split(text);
            Parameter { c: typed(c), name: name.to_owned() }
        });
        let parameters = context.into_iter().chain(own).collect();
        Function { name, of, has_context, result: typed(self.result), parameters }
    }
}

/// A parameter's type and its name.
fn split(text: &str) -> (&str, &str) {
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let start = text.trim_end_matches(is_of_a_name).len();
    (text[..start].trim_end(), &text[start..])
}

/// A type in which the word `T` is replaced.
fn with_type(text: &str, c: &str) -> String {
    text.split(' ').map(|word| if word == "T" { c } else { word }).collect::<Vec<_>>().join(" ")
}
