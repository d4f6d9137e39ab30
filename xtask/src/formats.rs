//! `cargo xtask formats`: the formats in docs/book/formats.md, made from the code that has them.
//!
//! Two sources. The comment at the head of a file that reads and writes a format has its table or
//! its drawing of bytes, which are copied. An enum of `weft_wire::forms!` is a protocol: each
//! variant with its number and its fields, of which the bytes are known by their types.

use std::fmt::Write;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};

use crate::cargo::root;
use crate::page::{self, Want};

/// The parts of the page: a marker, and the files whose formats stand there.
const PARTS: [(&str, &[&str]); 5] = [
    ("control", &["base/wire/src/control.rs", "base/wire/src/between_hosts.rs"]),
    (
        "memory",
        &[
            "transports/transport-shm/src/ring.rs",
            "transports/transport-shm/src/completion.rs",
            "transports/transport-shm/src/pair.rs",
            "transports/transport-shm/src/lane.rs",
            "transports/transport-shm/src/registers.rs",
        ],
    ),
    ("network", &["transports/transport-ofi/src/packet.rs"]),
    ("messages", &["core/message/src/packet.rs", "core/session/src/frame.rs"]),
    (
        "store",
        &[
            "services/kv/src/record.rs",
            "services/kv/src/table/mod.rs",
            "services/kv/src/table/block.rs",
            "services/kv/src/manifest/mod.rs",
        ],
    ),
];

/// The task.
pub fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let want = Want::of(arguments)?;
    for (marker, files) in PARTS {
        let mut text = String::new();
        for file in files {
            let path = root().join("crates").join(file);
            let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            text.push_str(&section(file, &source).with_context(|| (*file).to_owned())?);
        }
        page::part(&root().join("docs/book/formats.md"), marker, &text, want, "formats")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The format of a file, with a heading.
fn section(file: &str, source: &str) -> anyhow::Result<String> {
    let head: Vec<&str> =
        source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim_end).collect();
    let title = head.first().context("the file has no comment at its head")?.trim();
    let mut text = format!("**{title}** [`{file}`](../../crates/{file})\n\n");
    let (mut is_fenced, mut tables, mut last) = (false, 0, "");
    for line in head {
        let line = line.strip_prefix(' ').unwrap_or(line);
        let is_fence = line.starts_with("```");
        // A row of a table may go on in the next line.
        let is_row = line.starts_with('|') || (last.starts_with('|') && !last.ends_with('|'));
        if is_fence || is_fenced || is_row {
            if is_row && !line.starts_with('|') {
                text.pop();
                let _ = write!(text, " {}", line.trim());
                text.push('\n');
            } else {
                // Links of the code's documentation lead nowhere in a page.
                let _ = writeln!(text, "{}", line.replace("[`", "`").replace("`]", "`"));
            }
            tables += usize::from(is_fence || is_row);
        } else if last.starts_with('|') || last.starts_with("```") {
            text.push('\n');
        }
        is_fenced ^= is_fence;
        last = if is_row && !line.starts_with('|') && line.ends_with('|') { "|" } else { line };
    }
    text.push('\n');
    if let Some((_, rest)) = source.split_once("forms! {") {
        text.push_str(&messages(rest)?);
        tables += 1;
    }
    ensure!(tables > 0, "no table and no drawing of bytes was found");
    Ok(text)
}

/// The table of an enum of `forms!`.
fn messages(source: &str) -> anyhow::Result<String> {
    let mut text = "| kind | message | meaning | body: bytes |\n|---|---|---|---|\n".to_owned();
    let (mut meaning, mut field_is_open) = (Vec::new(), false);
    let (mut row, mut fields) = (String::new(), Vec::new());
    for line in source.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            if !field_is_open {
                meaning.push(comment.trim());
            }
        } else if let Some((name, rest)) = line.split_once(" = ") {
            let number = rest.trim_end_matches([' ', '{', ',']);
            let sentence = meaning.join(" ");
            let sentence = sentence.split(". ").next().unwrap_or_default().trim_end_matches('.');
            let sentence = sentence.replace("[`", "`").replace("`]", "`");
            row = format!("| {number} | {name} | {sentence} |");
            field_is_open = rest.ends_with('{');
            if !field_is_open {
                let _ = writeln!(text, "{row} none |");
            }
            meaning.clear();
        } else if field_is_open && line == "}," {
            let _ = writeln!(text, "{row} {} |", fields.join(", "));
            fields.clear();
            field_is_open = false;
        } else if let (true, Some((name, kind))) = (field_is_open, line.split_once(": ")) {
            fields.push(format!("{name} {}", bytes(kind.trim_end_matches(','))?));
        } else if line == "}" {
            break;
        } else {
            // The name of the enum and its attributes.
            meaning.clear();
        }
    }
    Ok(text + "\n")
}

/// The bytes of a field, by its type.
fn bytes(kind: &str) -> anyhow::Result<String> {
    let (name, maximum) = match kind.split_once(" [") {
        Some((name, maximum)) => (name, Some(maximum.trim_end_matches(']'))),
        None => (kind, None),
    };
    Ok(match (name, maximum) {
        ("u8" | "bool" | "End" | "OfferBetweenHosts" | "PutWay" | "PutFate", _) => "1".to_owned(),
        ("u16" | "Advice", _) => "2".to_owned(),
        ("u32", _) => "4".to_owned(),
        ("u64" | "Option<Partner>", _) => "8".to_owned(),
        ("IpAddr", _) => "5 or 17".to_owned(),
        ("SocketAddr", _) => "7 or 19".to_owned(),
        ("String", Some(maximum)) => format!("2 and a text of up to `{maximum}`"),
        (list, Some(maximum)) if list.starts_with("Vec<") => {
            let item = bytes(list.trim_start_matches("Vec<").trim_end_matches('>'))?;
            format!("1 and up to `{maximum}` of {item}")
        }
        (array, _) if array.starts_with("[u8;") => {
            format!("`{}`", array.trim_start_matches("[u8;").trim_end_matches(']').trim())
        }
        _ => bail!("the bytes of {kind} are not known: name them in xtask/src/formats.rs"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_enum_becomes_a_table() {
        let source = "\n/// All.\npub enum It: u16 {\n/// Says [`Self`]\n\
                      /// so. And more.\nHello = 1 {\n/// The number.\npid: u32,\n\
                      /// Its name.\nname: String [MAX],\n},\n\
                      /// Ends.\nStop = 11,\n}\n}\n";
        let table = messages(source).expect("known types");
        assert!(
            table.contains(
                "| 1 | Hello | Says `Self` so | pid 4, name 2 and a text of up to `MAX` |"
            ),
            "{table}"
        );
        assert!(table.contains("| 11 | Stop | Ends | none |"), "{table}");
        assert!(messages("A = 1 {\nx: Unknown,\n},\n}").is_err());
    }

    #[test]
    fn the_drawing_of_a_file_is_copied() {
        let source = "//! Title.\n//!\n//! ```text\n//! 0 x\n//! ```\n//! | a |\n//! | b\n\
                      //!   c |\n//! words\nfn x";
        let section = section("a.rs", source).expect("a drawing");
        assert!(section.contains("```text\n0 x\n```\n| a |\n| b c |\n"), "{section}");
        assert!(!section.contains("words"));
        assert!(super::section("a.rs", "//! Title.\n").is_err());
    }
}
