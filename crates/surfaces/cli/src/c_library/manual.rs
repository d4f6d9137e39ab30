//! The manual page of the header, weft(3), and a page for each function that leads to it.

use std::fmt::Write as _;

use super::HEADER;

/// A function of the header.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Function {
    name: &'static str,
    prototype: String,
    text: String,
}

/// The pages: file names and texts.
pub fn pages() -> Vec<(String, String)> {
    let functions = functions();
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(".TH WEFT 3 \"\" \"weft {version}\" \"The fabric for C\"\n");
    page += ".SH NAME\nweft \\- messages, remote memory and events over the fabric of weft\n";
    page += ".SH SYNOPSIS\n.nf\n#include <weft.h>\n\n";
    page += "cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs weft)\n.fi\n.SH DESCRIPTION\n";
    let introduction = HEADER.split("*/").next().unwrap_or_default();
    page += &paragraphs(introduction.trim_start_matches("/**").trim_start());
    page += ".SH FUNCTIONS\n";
    for function in &functions {
        let Function { name, prototype, text } = function;
        let _ = write!(page, ".SS {}\n.nf\n{}\n.fi\n.PP\n", roff(name), roff(prototype));
        page += &paragraphs(text);
    }
    page += ".SH STRUCTURES AND NUMBERS\nThe header describes each.\n.SH SEE ALSO\n.BR weft (1)\n";
    let links = functions
        .iter()
        .map(|function| (format!("{}.3", function.name), ".so man3/weft.3\n".to_owned()));
    std::iter::once(("weft.3".to_owned(), page)).chain(links).collect()
}

fn functions() -> Vec<Function> {
    let mut functions = Vec::new();
    for block in HEADER.split("/**").skip(1) {
        let Some((text, code)) = block.split_once("*/") else { continue };
        let Some((prototype, _)) = code.trim_start().split_once(';') else { continue };
        let Some((before, _)) = prototype.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        if name.starts_with("weft_") && !before.contains(['{', '#', '}']) {
            functions.push(Function {
                name,
                prototype: format!("{prototype};"),
                text: text.to_owned(),
            });
        }
    }
    functions
}

/// The text of a comment in paragraphs.
fn paragraphs(comment: &str) -> String {
    let mut text = String::new();
    for line in comment.lines() {
        let line = line.trim_start().trim_start_matches('*').trim_end();
        let words = line.trim_start();
        if words.is_empty() {
            if !text.is_empty() && !text.ends_with(".PP\n") {
                text += ".PP\n";
            }
        } else if !words.starts_with("@file") {
            text += &roff(words);
            text.push('\n');
        }
    }
    text.trim_end_matches(".PP\n").to_owned()
}

/// Words as roff takes them.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = escaped.lines().map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_the_header_is_described() {
        let pages = pages();
        let symbols = include_str!("../../../capi/abi/symbols.txt");
        assert_eq!(pages.len(), symbols.lines().count() + 1);
        for name in symbols.lines() {
            assert!(pages.iter().any(|(file, _)| *file == format!("{name}.3")), "{name}");
            assert!(pages[0].1.contains(&format!(".SS {name}\n")), "{name}");
        }
        let put = pages[0].1.split(".SS weft_put\n").nth(1).expect("it is there");
        assert!(put.starts_with(".nf\nint weft_put(struct weft_endpoint *endpoint,\n"), "{put}");
        assert!(put.contains("\n.PP\nOne thread at a time. Errors: WEFT_ERROR_AGAIN"), "{put}");
    }
}
