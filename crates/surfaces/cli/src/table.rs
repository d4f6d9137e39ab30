//! Text tables for people: columns as wide as their widest cell, numbers to the right, and cells
//! that take several lines where the terminal is too narrow.
//!
//! Always true: no cell brings a control character to the terminal, since some hold what a
//! program of another user calls itself.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};

use crate::terminal;

/// Lines of cells under a heading.
#[derive(Clone, Debug)]
pub struct Table {
    heading: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<T: Into<String>>(headings: impl IntoIterator<Item = T>) -> Self {
        Self { heading: headings.into_iter().map(Into::into).collect(), lines: Vec::new() }
    }

    /// A table without headings: names and what there is to say about each.
    pub fn plain() -> Self {
        Self { heading: Vec::new(), lines: Vec::new() }
    }

    /// Adds a line; missing cells are empty.
    pub fn line(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(cells.into_iter().map(|cell| harmless(&cell)).collect());
    }

    /// How many lines there are under the heading.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// The table as text, each line ended, as wide as the terminal at most.
    pub fn render(&self) -> String {
        self.within(terminal::width())
    }

    /// The same under a title, two columns further to the right.
    pub fn section(&self, title: &str) -> String {
        let lines = self.within(terminal::width().saturating_sub(2));
        let lines = lines.lines().map(|line| format!("  {line}\n")).collect::<String>();
        format!("{title}\n{lines}")
    }

    /// The table as text that is at most so wide.
    pub fn within(&self, width: u16) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_width(width);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if !self.heading.is_empty() {
            table.set_header(&self.heading);
        }
        let columns = self.lines.iter().chain([&self.heading]).map(Vec::len).max().unwrap_or(0);
        for line in &self.lines {
            let missing = columns - line.len();
            table.add_row(line.iter().cloned().chain(vec![String::new(); missing]));
        }
        let widths = table.column_max_content_widths();
        let is_whole = |place: usize| place == 0 && columns > 1 && widths[0] <= width / 2;
        let gap = |place: usize| if place + 1 == columns { 0 } else { 2 };
        let least: Vec<u16> = (0..columns)
            .map(|place| {
                let letters = if is_whole(place) { widths[0] } else { self.longest_word(place) };
                letters.saturating_add(gap(place))
            })
            .collect();
        let most = Self::unbroken(&least, width);
        for (place, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, gap(place)));
            // The names of things stay whole; what is said about them takes several lines.
            if is_whole(place) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            } else {
                // Short words stay whole; only those that are too long for the line are broken.
                let least = Width::Fixed(least[place].min(most));
                column.set_constraint(ColumnConstraint::LowerBoundary(least));
            }
            if self.is_numbers(place) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// The longest word that may stay whole, so that all columns of these least widths fit.
    fn unbroken(least: &[u16], width: u16) -> u16 {
        let fits = |most: u16| {
            let columns = least.iter().map(|least| u32::from(*least.min(&most)));
            columns.sum::<u32>() <= width.into()
        };
        (1..=width).rev().find(|most| fits(*most)).unwrap_or(1)
    }

    fn longest_word(&self, column: usize) -> u16 {
        let cells = self.lines.iter().chain([&self.heading]).filter_map(|line| line.get(column));
        let words = cells.flat_map(|cell| cell.split(' ')).map(|word| word.chars().count());
        u16::try_from(words.max().unwrap_or(0)).unwrap_or(u16::MAX)
    }

    fn is_numbers(&self, column: usize) -> bool {
        let mut cells = self.lines.iter().map(|line| line.get(column).map_or("", String::as_str));
        !self.lines.is_empty() && cells.all(is_number)
    }
}

/// True for a number, with or without its unit; false for an address.
fn is_number(text: &str) -> bool {
    let begins = text.starts_with(|first: char| first.is_ascii_digit() || first == '-');
    text.is_empty() || (begins && !text.contains(':') && text.matches('.').count() <= 1)
}

/// A text without control characters: a terminal would obey them.
pub fn harmless(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// A number of bytes as people read it, in powers of 1000.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut scaled, mut unit) = (count, 0);
    while scaled >= 10_000 && unit + 1 < UNITS.len() {
        scaled /= 1_000;
        unit += 1;
    }
    format!("{scaled} {}", UNITS[unit])
}

/// `1 program`, `2 programs`.
pub fn counted(count: usize, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_words_to_the_left() {
        let mut table = Table::new(["name", "count"]);
        table.line(["a".into(), "5".into()]);
        table.line(["long".into(), "12345".into()]);
        assert_eq!(table.within(80), "name  count\na         5\nlong  12345\n");
    }

    #[test]
    fn addresses_are_no_numbers() {
        let mut table = Table::new(["address", "bytes", "ratio"]);
        table.line(["10.77.0.1:80".into(), "5 B".into(), "1.5 x".into()]);
        table.line(["1.1.1.1".into(), "12 B".into(), "-".into()]);
        let wanted = "address       bytes  ratio\n\
                      10.77.0.1:80    5 B  1.5 x\n\
                      1.1.1.1        12 B      -\n";
        assert_eq!(table.within(80), wanted);
    }

    #[test]
    fn a_table_that_is_too_wide_takes_more_lines_and_loses_nothing() {
        let mut table = Table::new(["option", "value", "from"]);
        let path = "/a/very/long/path/that/no/terminal/has/room/for/in/a/single/line/n.sock";
        table.line(["  daemon.socket".into(), path.into(), "environment".into()]);
        let text = table.within(50);
        assert!(text.lines().all(|line| line.chars().count() <= 50), "{text}");
        assert!(text.contains("environment"), "{text}");
        assert!(text.contains("\n  daemon.socket  /a/"), "{text}");
        let shown = text.matches('/').count();
        assert_eq!(shown, path.matches('/').count(), "{text}");
    }

    #[test]
    fn words_stay_whole_where_there_is_room_for_each() {
        let mut table =
            Table::new(["program", "measured", "kernel tcp", "weft", "ratio", "over the fabric"]);
        for line in [
            ["python http.server, curl", "download", "3423 MB/s", "11047 MB/s", "3.2 x", "536 MB"],
            ["redis", "SET", "19417 /s", "769231 /s", "39.6 x", "2849 kB, 2 connections"],
            ["echo", "64 bytes, there and back", "50.5 us", "1.25 us", "40.5 x", "1 connection"],
        ] {
            table.line(line.map(str::to_owned));
        }
        let text = table.within(80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let shown: Vec<&str> = text.split_whitespace().collect();
        assert!(shown.contains(&"connections") && shown.contains(&"connection"), "{text}");
    }

    #[test]
    fn short_words_stay_whole_beside_one_that_has_no_room() {
        let mut table = Table::new(["lun", "store", "sessions", "queue", "reads", "errors"]);
        let path = "file:/a/very/long/path/that/has/no/room/in/a/line/of/the/table,direct";
        let lun = "iqn.2026-11.com.example:a-target-with-a-long-name/0";
        table.line([lun, path, "1", "0", "1234567", "0"].map(str::to_owned));
        let text = table.within(80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let heading = text.lines().next().unwrap_or_default();
        let words: Vec<&str> = heading.split_whitespace().collect();
        assert_eq!(words, ["lun", "store", "sessions", "queue", "reads", "errors"], "{text}");
        assert!(text.contains(" 1234567 "), "{text}");
    }

    #[test]
    fn what_a_program_calls_itself_does_not_command_the_terminal() {
        let mut table = Table::new(["name"]);
        table.line(["\u{1b}[2Jx\n\u{9b}31m".into()]);
        assert_eq!(table.within(80), "name\n?[2Jx??31m\n");
    }

    #[test]
    fn wide_letters_keep_the_columns_aligned() {
        let mut table = Table::new(["name", "state"]);
        table.line(["\u{7e54}\u{6a5f}".into(), "works".into()]);
        assert_eq!(table.within(80), "name  state\n\u{7e54}\u{6a5f}  works\n");
    }

    #[test]
    fn bytes_keep_two_to_four_digits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(9_999), "9999 B");
        assert_eq!(bytes(10_000), "10 kB");
        assert_eq!(bytes(1_234_567_890), "1234 MB");
        assert_eq!(bytes(u64::MAX), "18446 PB");
    }
}
