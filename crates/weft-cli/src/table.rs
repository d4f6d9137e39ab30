//! Text tables for people: columns as wide as their widest cell, numbers to the right.

use std::fmt::Write as _;

/// Lines of cells under a heading.
#[derive(Clone, Debug)]
pub struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<T: Into<String>>(headings: impl IntoIterator<Item = T>) -> Self {
        Self { lines: vec![headings.into_iter().map(Into::into).collect()] }
    }

    /// Adds a line; missing cells are empty.
    pub fn line(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(cells.into_iter().collect());
    }

    /// The table as text, each line ended.
    pub fn render(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let cell =
            |line: &Vec<String>, column: usize| line.get(column).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.lines.iter().map(|line| cell(line, column).chars().count()).max().unwrap_or(0)
            })
            .collect();
        let is_number: Vec<bool> = (0..columns)
            .map(|column| {
                self.lines.len() > 1
                    && self.lines[1..].iter().all(|line| starts_as_number(&cell(line, column)))
            })
            .collect();
        let mut text = String::new();
        for line in &self.lines {
            let mut row = String::new();
            for column in 0..columns {
                let (content, width) = (cell(line, column), widths[column]);
                // Writing into a String cannot fail.
                let _ = if is_number[column] {
                    write!(row, "{content:>width$}  ")
                } else {
                    write!(row, "{content:<width$}  ")
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }
}

fn starts_as_number(text: &str) -> bool {
    text.is_empty() || text.starts_with(|first: char| first.is_ascii_digit() || first == '-')
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_words_to_the_left() {
        let mut table = Table::new(["name", "count"]);
        table.line(["a".into(), "5".into()]);
        table.line(["long".into(), "12345".into()]);
        assert_eq!(table.render(), "name  count\na         5\nlong  12345\n");
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
