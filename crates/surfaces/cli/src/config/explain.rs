//! `weft config explain OPTION`: what one option means, what it may be, and how it is set.

use anyhow::anyhow;
use serde_json::{Value, json};
use weft_options::{
    Effect, Entry, Found, Kind, OTHER_VARIABLES, Options, Origin, Spelling, find_any, suggest,
};

use crate::arguments::ExplainArguments;
use crate::configuration::Configuration;
use crate::output::{show, show_line};
use crate::table::Table;
use crate::terminal::paragraph;

/// `weft config explain`.
///
/// # Errors
/// When no option has this name; names the nearest.
pub fn explain(arguments: &ExplainArguments, configuration: &Configuration) -> anyhow::Result<()> {
    let name = arguments.option.as_str();
    if let Some(other) = OTHER_VARIABLES.iter().find(|other| other.name == name) {
        if arguments.json {
            let all = json!({ "variable": other.name, "text": other.text });
            show_line!("{}", serde_json::to_string_pretty(&all)?);
        } else {
            show!("{}\n\n{}", other.name, paragraph(other.text));
        }
        return Ok(());
    }
    let found = find_any(name).ok_or_else(|| unknown(name))?;
    let entry = found.entry();
    if let Found::Old(_) = found {
        eprintln!("weft: warning: {name} is an old name of {}", entry.name);
    }
    if arguments.json {
        show_line!("{}", serde_json::to_string_pretty(&as_json(entry, &configuration.options))?);
    } else {
        show!("{}", text(entry, &configuration.options));
    }
    Ok(())
}

fn unknown(name: &str) -> anyhow::Error {
    let spelling = match name {
        name if name.starts_with("WEFT_") => Spelling::Environment,
        name if !name.contains(['.', '_']) => Spelling::Flag,
        _ => Spelling::File,
    };
    let meant = suggest(spelling, name)
        .or_else(|| suggest(Spelling::File, name))
        .map(|nearest| format!("did you mean {nearest}? "))
        .unwrap_or_default();
    anyhow!("no option is called {name}; {meant}`weft config list` lists all options")
}

fn text(entry: &Entry, options: &Options) -> String {
    let mut table = Table::plain();
    let mut line = |name: &str, value: String| table.line([name.to_owned(), value]);
    let from = match options.origin(entry.id) {
        Origin::Default => "the default".to_owned(),
        Origin::File { path } => format!("from the file {path}"),
        Origin::Environment => format!("from {}", entry.variable()),
        Origin::Flag => format!("from --{}", entry.flag()),
    };
    line("in force", format!("{}, {from}", entry.with_unit(&options.text(entry.id))));
    line("default", entry.with_unit(&entry.kind.default_text()));
    line("allowed", entry.kind.to_string());
    if !entry.unit.is_empty() {
        line("unit", unit(entry.unit).to_owned());
    }
    line("read", entry.effect.to_string());
    line("flag", format!("--{} {}", entry.flag(), entry.placeholder()));
    line("environment", entry.variable());
    let (area, key) = entry.file_key();
    line("file", format!("{key} = {} under [{area}]", options.file_value(entry.id)));
    if !entry.old_names.is_empty() {
        line("old names", format!("{}; accepted with a warning", entry.old_names.join(", ")));
    }
    format!("{}\n\n{}\n{}", entry.name, paragraph(entry.text), table.render())
}

/// A unit in full.
fn unit(short: &'static str) -> &'static str {
    match short {
        "us" => "us, microseconds",
        "ms" => "ms, milliseconds",
        other => other,
    }
}

fn as_json(entry: &Entry, options: &Options) -> Value {
    let mut all = super::option_json(entry, options);
    let (area, key) = entry.file_key();
    all["text"] = json!(entry.text);
    all["allowed"] = json!(entry.kind.to_string());
    if let Kind::Integer { minimum, maximum, .. } = entry.kind {
        all["minimum"] = json!(minimum);
        all["maximum"] = json!(maximum);
    }
    if let Kind::Choice { choices } = entry.kind {
        all["choices"] = json!(choices);
    }
    all["flag"] = json!(format!("--{}", entry.flag()));
    all["variable"] = json!(entry.variable());
    all["file_table"] = json!(area);
    all["file_key"] = json!(key);
    all["old_names"] = json!(entry.old_names);
    all["read_by"] = match entry.effect {
        Effect::Programs => json!(["program"]),
        Effect::Daemon => json!(["daemon"]),
        Effect::ProgramsAndDaemon => json!(["program", "daemon"]),
    };
    all
}

#[cfg(test)]
mod tests {
    use weft_options::{Builder, Id, TABLE};

    use super::*;

    #[test]
    fn an_option_is_explained_with_all_that_there_is_to_say() {
        let mut builder = Builder::new();
        builder.environment([("WEFT_SOCKET_IDLE_MS", "9")]);
        let options = builder.finish().0;
        let told = text(Id::SocketIdleMs.entry(), &options);
        for line in [
            "in force     9 ms, from WEFT_SOCKET_IDLE_MS",
            "default      250 ms",
            "allowed      a whole number from 0 to 86400000",
            "unit         ms, milliseconds",
            "read         when a program starts",
            "flag         --socket-idle-ms MS",
            "environment  WEFT_SOCKET_IDLE_MS",
            "file         idle_ms = 9 under [socket]",
            "old names    socket.rest_ms; accepted with a warning",
        ] {
            assert!(told.lines().any(|found| found == line), "{line} is missing in\n{told}");
        }
        assert!(told.starts_with("socket.idle_ms\n\nHow long a connection moves nothing"));
    }

    #[test]
    fn no_explanation_is_wider_than_80_columns_or_leaves_its_text_out() {
        for entry in TABLE {
            let told = text(entry, &Options::default());
            let words: String = entry.text.split_whitespace().collect();
            let letters: String = told.split_whitespace().collect();
            assert!(letters.contains(&words), "{told}");
            assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
        }
    }

    #[test]
    fn scripts_get_bounds_as_numbers() {
        let all = as_json(Id::ShmRingSlots.entry(), &Options::default());
        assert_eq!((&all["minimum"], &all["maximum"]), (&json!(16), &json!(65_536)));
        assert_eq!(all["variable"], "WEFT_SHM_RING_SLOTS");
        assert_eq!(as_json(Id::ShmCopy.entry(), &Options::default())["choices"][1], "plain");
    }

    #[test]
    fn an_unknown_option_is_told_with_the_nearest_in_the_same_spelling() {
        for (given, nearest) in [
            ("socket.idel_ms", "socket.idle_ms"),
            ("idle_ms", "socket.idle_ms"),
            ("WEFT_SOCKET_IDLE", "WEFT_SOCKET_IDLE_MS"),
            ("socket-idle", "socket-idle-ms"),
            ("socket.rest_m", "socket.idle_ms"),
        ] {
            let told = unknown(given).to_string();
            assert!(told.contains(&format!("did you mean {nearest}?")), "{told}");
        }
        let told = unknown("colour_of_the_sea").to_string();
        assert!(told.contains("weft config list") && !told.contains("did you mean"), "{told}");
    }
}
