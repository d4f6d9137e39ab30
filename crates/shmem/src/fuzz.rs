//! The fuzz target: a text in place of a card of another PE.

use crate::card::Card;

/// Reads the input as a card. One that is read is written and read again.
///
/// # Panics
/// When the card that was written is another one, or no launcher carries it.
pub fn fuzz_card(input: &[u8]) {
    let Ok(card) = String::from_utf8_lossy(input).parse::<Card>() else { return };
    let text = card.to_string();
    assert!(text.len() < 900, "every launcher carries it");
    let again: Card = text.parse().expect("a card that was written is one");
    assert_eq!(again.to_string(), text);
    let _ = card.compare(0, &again, 1);
}
