//! Where in its file a value of a scenario is, so that errors name its line.

use std::ops::Range;

use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Why a file is no scenario.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {reason}")]
pub struct ScenarioError {
    /// The line, from 1.
    pub line: usize,
    /// The fault, and its cure.
    pub reason: String,
}

/// A value of a table that is of no use: its key, if one alone is at fault, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Flaw {
    pub key: Option<&'static str>,
    pub reason: String,
}

impl Flaw {
    /// The value of a key is of no use.
    pub fn of(key: &'static str, reason: impl ToString) -> Self {
        Self { key: Some(key), reason: reason.to_string() }
    }

    /// A key is given, and what the table is about has no use for it.
    pub fn idle(
        keys: impl IntoIterator<Item = (&'static str, bool)>,
        of: &str,
    ) -> Result<(), Self> {
        let given = keys.into_iter().find(|(_, is_given)| *is_given);
        given.map_or(Ok(()), |(key, _)| {
            Err(Self::of(key, format!("{of} has no `{key}`; leave it out")))
        })
    }

    /// A table lacks something, or its keys do not go together.
    pub fn whole(reason: impl ToString) -> Self {
        Self { key: None, reason: reason.to_string() }
    }
}

/// A table of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Section {
    /// The keys before the first table.
    Top,
    /// The table of this name.
    Named(&'static str),
    /// The table of this number among those with this name.
    Numbered(&'static str, usize),
}

/// The text of a scenario.
#[derive(Clone, Copy)]
pub(crate) struct SourceText<'a>(pub &'a str);

impl SourceText<'_> {
    /// The error at a place of the text.
    pub fn error(self, span: Range<usize>, reason: impl ToString) -> ScenarioError {
        let before = self.0.as_bytes().get(..span.start).unwrap_or(self.0.as_bytes());
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        ScenarioError { line, reason: reason.to_string() }
    }

    /// The error of a table: at the key, if it is there, and else at the table.
    pub fn flaw(self, section: Section, flaw: &Flaw) -> ScenarioError {
        let span = self.find(section, flaw.key).unwrap_or(0..0);
        self.error(span, &flaw.reason)
    }

    fn find(self, section: Section, key: Option<&str>) -> Option<Range<usize>> {
        let root = DeTable::parse(self.0).ok()?;
        let (table, span) = match section {
            Section::Top => (root.get_ref(), 0..0),
            Section::Named(name) => {
                let value = root.get_ref().get(name)?;
                (table_of(value)?, value.span())
            }
            Section::Numbered(name, number) => {
                let DeValue::Array(tables) = root.get_ref().get(name)?.get_ref() else {
                    return None;
                };
                let value = tables.get(number)?;
                (table_of(value)?, value.span())
            }
        };
        let value = key.and_then(|key| table.get(key));
        Some(value.map_or(span, Spanned::span))
    }
}

fn table_of<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Option<&'a DeTable<'i>> {
    if let DeValue::Table(table) = value.get_ref() { Some(table) } else { None }
}
