//! Both queues against a search from the oldest to the newest.

use proptest::prelude::*;

use super::*;

/// A queue that is a vector.
struct Naive<K> {
    things: Vec<(K, u32)>,
}

impl<K> Naive<K> {
    fn take(&mut self, is_it: impl Fn(&K) -> bool) -> Option<u32> {
        let at = self.things.iter().position(|(key, _)| is_it(key))?;
        Some(self.things.remove(at).1)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Message(Envelope),
    Receive(Selector),
    Cancel(u32),
}

/// Few sources and tags, so that much matches; more masks than are indexed.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let envelope = (0..4_u32, 0..6_u64).prop_map(|(source, tag)| {
        Step::Message(Envelope { source: Source(source), tag: tag | tag << 60 })
    });
    let masks = prop_oneof![
        6 => Just(0_u64), 2 => Just(1), 1 => Just(7), 1 => Just(2), 1 => Just(5), 1 => Just(6),
        1 => Just(u64::MAX),
    ];
    let receive =
        (proptest::option::of(0..4_u32), 0..6_u64, masks).prop_map(|(source, tag, ignore)| {
            Step::Receive(Selector { source: source.map(Source), tag: tag | tag << 60, ignore })
        });
    let cancel = (0..300_u32).prop_map(Step::Cancel);
    // Runs of one kind, so that queues become long and short again.
    let run = prop_oneof![
        proptest::collection::vec(envelope.clone(), 1..60),
        proptest::collection::vec(receive.clone(), 1..60),
        proptest::collection::vec(prop_oneof![3 => envelope, 3 => receive, 1 => cancel], 1..30),
    ];
    proptest::collection::vec(run, 1..8).prop_map(|runs| runs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn queues_answer_as_a_search_from_the_oldest_to_the_newest(steps in steps()) {
        let (mut posted, mut unexpected) = (Posted::new(), Unexpected::new());
        let mut receives = Naive::<Selector> { things: Vec::new() };
        let mut messages = Naive::<Envelope> { things: Vec::new() };
        for (number, step) in (0_u32..).zip(steps) {
            match step {
                Step::Message(envelope) => {
                    let expected = receives.take(|selector| selector.matches(envelope));
                    prop_assert_eq!(posted.take(envelope), expected);
                    if expected.is_none() {
                        messages.things.push((envelope, number));
                        unexpected.push(envelope, number);
                    }
                }
                Step::Receive(selector) => {
                    let expected = messages.take(|envelope| selector.matches(*envelope));
                    let found = unexpected.find(&selector);
                    prop_assert_eq!(found.and_then(|spot| unexpected.remove(spot)), expected);
                    if expected.is_none() {
                        receives.things.push((selector, number));
                        posted.post(selector, number);
                    }
                }
                Step::Cancel(wanted) => {
                    let at = receives.things.iter().position(|(_, number)| *number == wanted);
                    let expected = at.map(|at| receives.things.remove(at).1);
                    prop_assert_eq!(posted.take_if(|_, number| *number == wanted), expected);
                }
            }
            prop_assert_eq!(posted.length(), receives.things.len());
            prop_assert_eq!(unexpected.length(), messages.things.len());
        }
    }
}

#[test]
fn a_long_queue_is_not_searched_in_order() {
    // 20,000 receives and messages in the opposite order: 200 million comparisons in a list.
    let mut posted = Posted::new();
    let selector = |tag| Selector { source: Some(Source(1)), tag, ignore: 1 << 63 };
    for tag in 0..20_000 {
        posted.post(selector(tag), tag);
    }
    let mut looks = 0;
    for tag in (0..20_000).rev() {
        assert_eq!(posted.take(Envelope { source: Source(1), tag }), Some(tag));
        looks += 1;
    }
    assert_eq!((looks, posted.length()), (20_000, 0));
}

#[test]
fn names_of_things_that_are_gone_do_not_pile_up() {
    let mut unexpected = Unexpected::new();
    let any = Selector { source: None, tag: 0, ignore: 0 };
    let from = |source| Selector { source: Some(Source(source)), ..any };
    for round in 0..50_000_u32 {
        unexpected.push(Envelope { source: Source(round % 7), tag: 0 }, round);
        if unexpected.length() > 40 {
            let selector = if round % 2 == 0 { from(round % 7) } else { any };
            let spot = unexpected.find(&selector).expect("40 of 7 sources wait");
            unexpected.remove(spot);
        }
    }
    assert!(unexpected.names() < 1_000, "{}", unexpected.names());
}
