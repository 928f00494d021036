//! Strings: in as pointer and length, out owned by an object.

use std::ffi::{CString, c_char};
use std::ptr;
use std::slice;

use pgfollow::Error;

use crate::barrier::{read, wrong_call};
use crate::handle::{self, Opaque};
use crate::status::pgf_status;

/// A text that a call gave, such as JSON. Any thread may read it.
pub struct pgf_text;

pub(crate) struct Text(CString);

impl Opaque for Text {
    type Handle = pgf_text;
    const NAME: &'static str = "pgf_text";
}

/// For C: without the zero bytes that would end it early.
pub(crate) fn c_string(text: impl Into<String>) -> CString {
    let mut text: String = text.into();
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    CString::new(text).unwrap_or_default()
}

pub(crate) fn give(text: impl Into<String>) -> *mut pgf_text {
    handle::give(Text(c_string(text)))
}

/// A string that comes in; NULL is allowed for an empty one.
pub(crate) fn taken<'a>(text: *const c_char, len: usize, name: &str) -> Result<&'a str, Error> {
    if len == 0 {
        return Ok("");
    }
    if text.is_null() {
        return Err(wrong_call(format!("{name} is NULL, and its length is {len}")));
    }
    if isize::try_from(len).is_err() {
        return Err(wrong_call(format!("the length of {name} is {len}: was it negative?")));
    }
    // SAFETY: not NULL, so that many bytes can be read until the call returns, as the header's conventions say.
    let bytes = unsafe { slice::from_raw_parts(text.cast::<u8>(), len) };
    std::str::from_utf8(bytes)
        .map_err(|e| wrong_call(format!("{name} is not UTF-8 at byte {}", e.valid_up_to())))
}

/// The text, with a zero byte behind it; NULL if that isn't a pgf_text. It lives as long as the pgf_text.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_text_data(text: *const pgf_text) -> *const c_char {
    read(ptr::null(), || Some(handle::get::<Text>(text).ok()?.0.as_ptr()))
}

/// Its length in bytes, without the zero byte.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_text_len(text: *const pgf_text) -> usize {
    read(0, || Some(handle::get::<Text>(text).ok()?.0.as_bytes().len()))
}

/// Frees it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_text_free(text: *mut pgf_text) -> pgf_status {
    crate::barrier::call(ptr::null_mut(), || handle::free::<Text>(text))
}
