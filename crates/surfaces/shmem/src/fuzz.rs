//! The fuzz target: a text in place of a card of another PE.

use crate::card::Card;
use crate::far::opening::FarCard;

/// Reads the input as a card, and as one for PEs of other hosts. One that is read is written and
/// read again.
///
/// # Panics
/// When the card that was written is another one, or no launcher carries it.
pub fn fuzz_card(input: &[u8]) {
    let input = String::from_utf8_lossy(input);
    if let Ok(card) = input.parse::<FarCard>() {
        let text = card.to_string();
        assert!(text.len() < 900, "every launcher carries it");
        assert_eq!(text.parse(), Ok(card));
    }
    let Ok(card) = input.parse::<Card>() else { return };
    let text = card.to_string();
    assert!(text.len() < 900, "every launcher carries it");
    let again: Card = text.parse().expect("a card that was written is one");
    assert_eq!(again.to_string(), text);
    let _ = card.compare(0, &again, 1);
}
