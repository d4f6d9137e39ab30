//! How wide what is printed may be, and texts of several lines that keep to it.

use crate::configuration::variable;

/// The width of a terminal by tradition; a file or a pipe gets it, too.
const COLUMNS_DEFAULT: u16 = 80;
/// Less than this leaves a table no room for its cells.
const COLUMNS_MIN: u16 = 40;
/// Text in longer lines is hard to read.
const TEXT_COLUMNS_MAX: u16 = 100;

/// Columns of the terminal that standard output is; else as `COLUMNS` says, else 80.
pub fn width() -> u16 {
    let terminal = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok();
    let columns = terminal.map(|size| size.ws_col).filter(|columns| *columns > 0);
    let said = || variable("COLUMNS").and_then(|text| text.parse().ok());
    columns.or_else(said).unwrap_or(COLUMNS_DEFAULT).max(COLUMNS_MIN)
}

/// The text in lines that fit the terminal, each ended.
pub fn paragraph(text: &str) -> String {
    let width = usize::from(width().min(TEXT_COLUMNS_MAX));
    wrap(text, width).into_iter().map(|line| line + "\n").collect()
}

/// The words of a text in lines of at most `width` letters; a longer word has a line of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a unbreakable", 5), ["a", "unbreakable"]);
        assert_eq!(wrap("", 5), [""]);
    }
}
