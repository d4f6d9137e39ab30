//! Names of endpoints: strings of one length, so that they lie behind each other in arrays however
//! a program counts them.

use std::ffi::CString;

use weft_fabric::{EndpointAddress, NodeId, Vpid};

/// Bytes of a name, with the zero at its end.
pub const BYTES: usize = 38;
const SCHEME: &str = "weft://";

/// The name of an endpoint in one life.
pub fn of(address: EndpointAddress, birth: u64) -> CString {
    let text = format!("{SCHEME}{:08x}:{:04x}:{birth:016x}", address.node.0, address.vpid.0);
    assert_eq!(text.len() + 1, BYTES, "all names have one length");
    CString::new(text).expect("it has no zero")
}

/// The name of an endpoint that is still to be opened: any on this host.
pub fn to_be_opened() -> CString {
    of(EndpointAddress::new(NodeId(0), Vpid::ANY), 0)
}

/// The endpoint of a name; `None` for what is no name.
pub fn parse(text: &[u8]) -> Option<(EndpointAddress, u64)> {
    let text = std::str::from_utf8(text.get(..BYTES - 1)?).ok()?;
    let mut fields = text.strip_prefix(SCHEME)?.split(':');
    let mut field = |digits: usize| {
        let field = fields.next().filter(|field| field.len() == digits)?;
        let is_hexadecimal = field.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(field, 16).ok().filter(|_| is_hexadecimal)
    };
    let node = NodeId(u32::try_from(field(8)?).ok()?);
    let vpid = Vpid(u16::try_from(field(4)?).ok()?);
    let birth = field(16)?;
    let address = EndpointAddress::new(node, vpid);
    (fields.next().is_none() && address.is_exact()).then_some((address, birth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_is_read_as_it_was_written(node in 0..0xffff_u32, vpid in 0..256_u16, birth: u64) {
            let address = EndpointAddress::new(NodeId(node), Vpid(vpid));
            let name = of(address, birth);
            prop_assert_eq!(parse(name.as_bytes_with_nul()), Some((address, birth)));
        }

        #[test]
        fn anything_else_is_no_name(text in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(parse(&text), None);
        }
    }
}
