//! `weft config dump`: a `weft.toml` that says what is in force.

use std::fmt::Write as _;

use weft_options::{Entry, Options, TABLE};

use crate::terminal::wrap;

/// Columns of a comment behind its `# `.
const COMMENT_COLUMNS: usize = 78;

/// The file, with each option below its description.
pub fn file(options: &Options) -> String {
    let mut text = String::from(
        "# weft.toml: what was in force when `weft config dump` printed this.\n\
         #\n\
         # weft reads the file that WEFT_CONFIG names, else ~/.config/weft/weft.toml,\n\
         # else /etc/weft/weft.toml. A line that is left out leaves its option at\n\
         # the default.\n",
    );
    let mut area_before = "";
    for entry in TABLE {
        let (area, key) = entry.file_key();
        // Writing into a String cannot fail.
        if area != area_before {
            let _ = writeln!(text, "\n[{area}]");
            area_before = area;
        }
        for line in wrap(&comment(entry), COMMENT_COLUMNS) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "{key} = {}", options.file_value(entry.id));
    }
    text
}

fn comment(entry: &Entry) -> String {
    let unit = if entry.unit.is_empty() { String::new() } else { format!(" ({})", entry.unit) };
    let default = entry.with_unit(&entry.kind.default_text());
    format!("{} Allowed: {}{unit}. Default: {default}.", entry.text, entry.kind)
}

#[cfg(test)]
mod tests {
    use weft_options::Builder;

    use super::*;

    #[test]
    fn a_dumped_file_reads_back_as_what_was_in_force() {
        let mut builder = Builder::new();
        builder.flag("shm.copy", "plain").flag("daemon.socket", "/a/b.sock");
        builder.flag("socket.sink_bytes", "65536");
        let (options, _) = builder.finish();
        let mut reader = Builder::new();
        reader.file("dump", &file(&options));
        let (again, problems) = reader.finish();
        assert_eq!(problems, []);
        for entry in TABLE {
            assert_eq!(again.text(entry.id), options.text(entry.id), "{}", entry.name);
        }
        assert!(file(&options).lines().all(|line| line.chars().count() <= 80));
    }
}
