//! `weft config list`: all options, by the part of weft that they belong to.

use weft_options::{Category, Options, TABLE};

use super::{HEADINGS, file_line, json, line};
use crate::configuration::Configuration;
use crate::output::{show, show_line};
use crate::table::Table;

/// `weft config list`.
pub fn list(is_json: bool, configuration: &Configuration) -> anyhow::Result<()> {
    let options = &configuration.options;
    if is_json {
        show_line!("{}", serde_json::to_string_pretty(&json(options))?);
        return Ok(());
    }
    show!("{}\n{}", table(options).render(), file_line(configuration));
    show_line!("`weft config explain OPTION` says what an option means.");
    Ok(())
}

/// One table, so that columns are aligned over all parts; each part under its name.
fn table(options: &Options) -> Table {
    let mut table = Table::new(HEADINGS);
    let mut part_before: Option<Category> = None;
    for entry in TABLE {
        if part_before != Some(entry.category) {
            table.line([]);
            table.line([entry.category.title().to_owned()]);
            part_before = Some(entry.category);
        }
        let [name, value, from, default] = line(entry, options);
        table.line([format!("  {name}"), value, from, default]);
    }
    table
}

#[cfg(test)]
mod tests {
    use weft_options::Builder;

    use super::*;

    #[test]
    fn every_option_is_listed_once_under_its_part_with_value_and_origin() {
        let mut builder = Builder::new();
        builder.file("/x/weft.toml", "[shm]\nyields = 7\n").flag("socket.idle_ms", "9");
        let text = table(&builder.finish().0).render();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        for entry in TABLE {
            let named = lines.iter().filter(|words| words.first() == Some(&entry.name)).count();
            assert_eq!(named, 1, "{}: {text}", entry.name);
        }
        assert!(lines.contains(&vec!["shared", "memory"]), "{text}");
        let changed = vec!["shm.yields", "7", "times", "file", "100", "times"];
        assert!(lines.contains(&changed), "{text}");
        assert!(lines.contains(&vec!["socket.idle_ms", "9", "ms", "flag", "250", "ms"]), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
