//! Lines of a shell as commands: words, what joins commands, and commands in other commands.
//!
//! As much of the shell's grammar as the pages use: quotes, backslashes, comments, `;`, `|`, `&`,
//! parentheses, redirections and `$(…)`. Nothing is expanded.

/// The words of each simple command of `line`, those inside of `$(…)` behind the one they are in.
#[must_use]
pub fn commands(line: &str) -> Vec<Vec<String>> {
    let mut reader = Reader { rest: line, commands: Vec::new(), inner: Vec::new() };
    reader.read();
    let mut found: Vec<Vec<String>> =
        reader.commands.into_iter().filter(|words| !words.is_empty()).collect();
    for inner in reader.inner {
        found.extend(commands(&inner));
    }
    found
}

struct Reader<'a> {
    rest: &'a str,
    commands: Vec<Vec<String>>,
    inner: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self) {
        self.commands.push(Vec::new());
        loop {
            let after = self.rest.trim_start();
            let Some(first) = after.chars().next() else { return };
            self.rest = after;
            match first {
                '#' => return,
                ';' | '|' | '&' | '(' | ')' => {
                    self.rest = &self.rest[1..];
                    self.commands.push(Vec::new());
                }
                '<' | '>' => self.redirection(),
                _ => {
                    let word = self.word();
                    // `2>file`: the number belongs to the redirection.
                    let is_number = word.chars().all(|one| one.is_ascii_digit());
                    if is_number && self.rest.starts_with(['<', '>']) {
                        self.redirection();
                    } else if let Some(words) = self.commands.last_mut() {
                        words.push(word);
                    }
                }
            }
        }
    }

    fn redirection(&mut self) {
        let after = self.rest.trim_start_matches(['<', '>', '&']).trim_start();
        self.rest = after;
        self.word();
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        let mut quote = None;
        while let Some(one) = self.rest.chars().next() {
            if self.rest.starts_with("$(") && quote != Some('\'') {
                let end = closing(&self.rest[2..]).map_or(self.rest.len(), |at| at + 2);
                self.inner.push(self.rest[2..end].to_owned());
                word.push_str("$()");
                self.rest = self.rest.get(end + 1..).unwrap_or_default();
                continue;
            }
            match (quote, one) {
                (None, ' ' | '\t' | ';' | '|' | '&' | '(' | ')' | '<' | '>') => break,
                (None, '\'' | '"') => quote = Some(one),
                (Some(open), _) if open == one => quote = None,
                (None | Some('"'), '\\') => {
                    self.rest = &self.rest[1..];
                    word.extend(self.rest.chars().next());
                }
                _ => word.push(one),
            }
            let mut chars = self.rest.chars();
            chars.next();
            self.rest = chars.as_str();
        }
        word
    }
}

/// The place of the parenthesis that closes one which was open before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, one) in text.char_indices() {
        match one {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::commands;

    #[test]
    fn a_line_is_split_as_a_shell_splits_it() {
        for (line, expected) in [
            (
                "weft run -- redis-server --port 7000 &",
                vec![vec!["weft", "run", "--", "redis-server", "--port", "7000"]],
            ),
            ("a 'b c' \"d e\" f\\ g # h", vec![vec!["a", "b c", "d e", "f g"]]),
            (
                "(umask 077; weft fabric key > key) 2>&1 && b | c",
                vec![vec!["umask", "077"], vec!["weft", "fabric", "key"], vec!["b"], vec!["c"]],
            ),
            (
                "eval \"$(weft fi env)\"; x=$(a $(b c))",
                vec![
                    vec!["eval", "$()"],
                    vec!["x=$()"],
                    vec!["weft", "fi", "env"],
                    vec!["a", "$()"],
                    vec!["b", "c"],
                ],
            ),
            ("", vec![]),
        ] {
            assert_eq!(commands(line), expected, "{line}");
        }
    }
}
