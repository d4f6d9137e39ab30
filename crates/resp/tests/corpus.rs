//! Replays the committed corpus of the fuzz target, and properties of the parser.

use std::path::Path;

use proptest::prelude::*;
use weft_resp::fuzz::fuzz_request;
use weft_resp::{Limits, Parser, Protocol, Reply, Value};

#[test]
fn clients_of_the_corpus_are_answered_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/resp_request");
    let mut count = 0;
    for file in std::fs::read_dir(&folder).expect("the corpus is committed") {
        fuzz_request(&std::fs::read(file.expect("a folder can be read").path()).expect("a file"));
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

fn likely() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\"".to_vec()),
        "[0-9-]{1,3}".prop_map(String::into_bytes),
        "[a-z ]{0,5}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_do(input in prop::collection::vec(any::<u8>(), 0..300), cut in any::<u8>()) {
        fuzz_request(&[&[cut], &input[..]].concat());
    }

    #[test]
    fn likely_bytes_do(input in likely(), cut in any::<u8>()) {
        fuzz_request(&[&[cut], &input[..]].concat());
    }

    #[test]
    fn requests_come_back(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5), 0..8),
        step in 1_usize..50,
    ) {
        let mut bytes = Vec::new();
        for request in &requests {
            let mut reply = Reply::new(&mut bytes, Protocol::Resp2, usize::MAX);
            reply.array(request.len());
            request.iter().for_each(|word| reply.bulk(word));
        }
        let limits = Limits { bulk: 100, request: 1_000, is_trusted: true };
        let (mut parser, mut found) = (Parser::default(), Vec::new());
        for piece in bytes.chunks(step) {
            parser.buffer().extend_from_slice(piece);
            while let Some(request) = parser.next(&limits).expect("they are valid") {
                found.push(request.words().map(<[u8]>::to_vec).collect::<Vec<_>>());
            }
        }
        prop_assert_eq!(&found, &requests);
        // A request is an array of bulk strings for a client, too.
        let mut at = 0;
        for request in requests {
            let (value, length) = Value::decode(&bytes[at..]).expect("valid").expect("whole");
            let words = request.into_iter().map(Value::Bulk).collect();
            prop_assert_eq!(value, Value::Array(words));
            at += length;
        }
    }
}
