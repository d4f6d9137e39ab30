//! Entry functions of the fuzz targets.

use crate::{Limits, Parser, Value};

/// Bytes of a client: whole and in pieces they give the same requests and the same error, and
/// replies are read or refused.
///
/// # Panics
/// On a fault of the parser.
pub fn fuzz_request(input: &[u8]) {
    let Some((&first, bytes)) = input.split_first() else { return };
    let limits = Limits { bulk: 20_000, request: 50_000, is_trusted: first & 1 == 1 };
    let step = usize::from(first >> 1) + 1;
    let whole = requests(bytes, bytes.len().max(1), &limits);
    let pieces = requests(bytes, step, &limits);
    assert_eq!(whole, pieces, "the cut of the bytes changes the requests");
    let _ = Value::decode(bytes);
}

type Found = (Vec<Vec<Vec<u8>>>, Option<String>);

fn requests(bytes: &[u8], step: usize, limits: &Limits) -> Found {
    let mut parser = Parser::default();
    let mut spare = Vec::new();
    let mut found = Vec::new();
    for piece in bytes.chunks(step) {
        parser.lend(&mut spare);
        parser.buffer().extend_from_slice(piece);
        loop {
            match parser.next(limits) {
                Ok(Some(request)) => found.push(request.words().map(<[u8]>::to_vec).collect()),
                Ok(None) => break,
                Err(error) => return (found, Some(error.to_string())),
            }
        }
        parser.release(&mut spare);
    }
    (found, None)
}
