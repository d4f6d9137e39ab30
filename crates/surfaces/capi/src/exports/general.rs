//! The version, texts of errors, and addresses.

use std::ffi::{c_char, c_int};

use weft_fabric::{EndpointAddress, NodeId, Vpid};

use crate::call::{call, last_error};
use crate::pointers::{self, Out};
use crate::status::{Failure, text_of};
use crate::types::weft_address;
use crate::types::weft_status::{WEFT_ERROR_TOO_LONG, WEFT_OK};

/// The version of the library that runs: major << 16 | minor << 8 | patch. Compare it with
/// WEFT_VERSION, that of the header. Versions with the same major number are compatible; while that
/// is 0, those with the same minor number.
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn weft_version() -> u32 {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"))
}

/// The meaning of a status, and the cure: never NULL, valid for ever.
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn weft_strerror(status: c_int) -> *const c_char {
    text_of(status).as_ptr()
}

/// The last error of the calling thread in words, with the numbers and names of the case and what
/// to do; "" before the first error. Never NULL; valid until the next call of weft that fails in
/// this thread.
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn weft_last_error() -> *const c_char {
    last_error()
}

/// Reads the text of an address, NODE:NUMBER, as weft_address_format and `weft status` write it.
///
/// Any thread. Errors: WEFT_ERROR_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn weft_address_parse(text: *const c_char, address: *mut weft_address) -> c_int {
    call(|| {
        let text = pointers::text(text, "text")?;
        let address = Out::needed(address, "address")?;
        let numbers = text.split_once(':').and_then(|(node, number)| {
            Some(weft_address { node: node.parse().ok()?, number: number.parse().ok()? })
        });
        let read = numbers.filter(|read| of_program(*read).is_ok());
        let wrong = || Failure::argument(format!("{text:?} is no address; write NODE:NUMBER"));
        address.set(read.ok_or_else(wrong)?);
        Ok(WEFT_OK)
    })
}

/// Writes the text of an address, with a zero at its end, into size bytes. 24 are always enough.
///
/// Any thread. Errors: WEFT_ERROR_ARGUMENT; WEFT_ERROR_TOO_LONG if it does not fit.
#[unsafe(no_mangle)]
pub extern "C" fn weft_address_format(
    address: weft_address,
    text: *mut c_char,
    size: usize,
) -> c_int {
    call(|| {
        if text.is_null() {
            return Err(pointers::null("text"));
        }
        let written = format!("{}:{}", address.node, address.number);
        if pointers::set_text(text, size, &written) {
            return Ok(WEFT_OK);
        }
        let text = format!("{written} does not fit in {size} bytes; have 24");
        Err(Failure::new(WEFT_ERROR_TOO_LONG, text))
    })
}

/// An address of the program as the fabric has it.
pub fn of_program(address: weft_address) -> Result<EndpointAddress, Failure> {
    let weft_address { node, number } = address;
    let exact = u16::try_from(number)
        .map(|number| EndpointAddress::new(NodeId(node), Vpid(number)))
        .ok()
        .filter(|address| address.is_exact());
    exact.ok_or_else(|| Failure::argument(format!("{node}:{number} is no endpoint's address")))
}
