//! The name that somebody probably meant.

/// The candidate with the least edit distance to `name`, when it is near enough to be what was
/// meant: at most two edits, or a quarter of the name's length for long names.
#[must_use]
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bound = (name.len() / 4).max(2);
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(name.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|(distance, _)| *distance <= bound)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance: insertions, deletions and replacements that make `left` `right`.
fn edit_distance(left: &[u8], right: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, left_byte) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, right_byte) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(left_byte != right_byte);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_textbook() {
        assert_eq!(edit_distance(b"kitten", b"sitting"), 3);
        assert_eq!(edit_distance(b"", b"abc"), 3);
        assert_eq!(edit_distance(b"same", b"same"), 0);
    }

    #[test]
    fn a_slip_finds_its_name_and_nonsense_finds_none() {
        let names = ["WEFT_SHM_SPIN_US", "WEFT_SHM_YIELDS"];
        assert_eq!(nearest("WEFT_SHM_SPIN_MS", names), Some("WEFT_SHM_SPIN_US"));
        assert_eq!(nearest("WEFT_SHM_YEILDS", names), Some("WEFT_SHM_YIELDS"));
        assert_eq!(nearest("WEFT_COLOUR_OF_THE_SEA", names), None);
    }
}
