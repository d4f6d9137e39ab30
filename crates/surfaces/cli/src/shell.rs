//! Words for a shell.

/// A word that a shell reads as it is: in quotation marks where it would not.
pub fn as_word(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-+=./,:@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_each_word_as_it_was() {
        let words = ["-Wl,-rpath,/a", "", "a b", "it's", "$HOME", "a\nb", "~", "*", "é", "a\\b"];
        let line: Vec<String> = words.iter().map(|word| as_word(word)).collect();
        let script = format!("for word in {}; do printf '%s\\0' \"$word\"; done", line.join(" "));
        let output = std::process::Command::new("sh").args(["-c", &script]).output();
        let read = String::from_utf8(output.expect("a shell").stdout).expect("text");
        assert_eq!(read.split_terminator('\0').collect::<Vec<_>>(), words);
        assert_eq!(line[0], words[0]);
    }
}
