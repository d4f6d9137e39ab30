//! `weft config`: the options in force, what each means, and a file that says them.
//!
//! Always true: `list` and `dump` refuse a configuration with a mistake, as every other
//! command does; `explain` reports the mistake and goes on, because it helps to mend it.

mod dump;
mod explain;
mod list;

use std::process::ExitCode;

use serde_json::{Value, json};
use weft_options::{Entry, Options, Origin, TABLE};

use crate::arguments::ConfigCommand;
use crate::configuration::{Configuration, Flags};
use crate::output::show;

/// `weft config`.
pub fn config(command: &ConfigCommand, flags: Flags) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::List(arguments) => list::list(arguments.json, &Configuration::load(flags)?)?,
        ConfigCommand::Explain(arguments) => {
            explain::explain(arguments, &Configuration::load_with_mistakes(flags)?)?;
        }
        // Scripts ask for the list in this way from the time before `weft config list`.
        ConfigCommand::Dump(arguments) if arguments.json => {
            list::list(true, &Configuration::load(flags)?)?;
        }
        ConfigCommand::Dump(_) => {
            show!("{}", dump::file(&Configuration::load(flags)?.options));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All options for scripts.
pub fn json(options: &Options) -> Value {
    let list: Vec<Value> = TABLE.iter().map(|entry| option_json(entry, options)).collect();
    json!(list)
}

fn option_json(entry: &Entry, options: &Options) -> Value {
    json!({
        "name": entry.name,
        "value": options.text(entry.id),
        "default": entry.kind.default_text(),
        "unit": entry.unit,
        "category": entry.category.title(),
        "origin": options.origin(entry.id).to_string(),
    })
}

/// The headings of tables of options.
pub const HEADINGS: [&str; 4] = ["option", "value", "from", "default"];

/// The line of an option in a table.
pub fn line(entry: &Entry, options: &Options) -> [String; 4] {
    [
        entry.name.to_owned(),
        entry.with_unit(&options.text(entry.id)),
        origin(options.origin(entry.id)).to_owned(),
        entry.with_unit(&entry.kind.default_text()),
    ]
}

/// The origin of a value in one word. The path of the file is printed once, by [`file_line`].
fn origin(origin: &Origin) -> &'static str {
    match origin {
        Origin::Default => "default",
        Origin::File { .. } => "file",
        Origin::Environment => "environment",
        Origin::Flag => "flag",
    }
}

/// The configuration file that was read, or that there is none.
pub fn file_line(configuration: &Configuration) -> String {
    match &configuration.file {
        Some(path) => format!("configuration file: {}\n", path.display()),
        None => "configuration file: none; `weft config dump` prints one to begin with\n".into(),
    }
}
