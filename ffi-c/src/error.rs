//! `pgf_error`: what went wrong, read by parts.

use std::ffi::{CString, c_char};
use std::ptr;

use pgfollow::{Class, Error};

use crate::barrier::{call, read};
use crate::handle::{self, Opaque};
use crate::status::pgf_status;
use crate::text::c_string;

/// An error. What its functions return belongs to it. Any thread may read it.
pub struct pgf_error;

/// What an error says about the work that was asked for.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum pgf_class {
    /// No error.
    PGF_CLASS_NONE = 0,
    /// Certainly not done: try again after a pause.
    PGF_CLASS_TRANSIENT = 1,
    /// Repeating is wrong or useless.
    PGF_CLASS_PERMANENT = 2,
    /// May have been done: check, don't repeat.
    PGF_CLASS_UNKNOWN_OUTCOME = 3,
}

impl From<Class> for pgf_class {
    fn from(class: Class) -> Self {
        match class {
            Class::Transient => Self::PGF_CLASS_TRANSIENT,
            Class::Permanent => Self::PGF_CLASS_PERMANENT,
            Class::UnknownOutcome => Self::PGF_CLASS_UNKNOWN_OUTCOME,
        }
    }
}

pub(crate) struct Failed {
    code: pgf_status,
    class: pgf_class,
    message: CString,
    sqlstate: Option<CString>,
    json: CString,
}

impl Failed {
    pub(crate) fn new(e: &Error) -> Self {
        Self {
            code: pgf_status::of(e.code()),
            class: e.class().into(),
            message: c_string(e.to_string()),
            sqlstate: e.sqlstate().map(|s| c_string(s.as_str())),
            json: c_string(e.to_json().to_string()),
        }
    }
}

impl Opaque for Failed {
    type Handle = pgf_error;
    const NAME: &'static str = "pgf_error";
}

/// The whole in words, with every attempt of a connect on a line of its own. It holds no password and no query, and may
/// be logged. NULL if that isn't a pgf_error.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_error_message(error: *const pgf_error) -> *const c_char {
    read(ptr::null(), || Some(handle::get::<Failed>(error).ok()?.message.as_ptr()))
}

/// What the call returned. PGF_OK for NULL, PGF_WRONG_CALL if that isn't a pgf_error.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_error_code(error: *const pgf_error) -> pgf_status {
    if error.is_null() {
        return pgf_status::PGF_OK;
    }
    read(pgf_status::PGF_WRONG_CALL, || Some(handle::get::<Failed>(error).ok()?.code))
}

/// What it says about the work. PGF_CLASS_NONE if that isn't a pgf_error.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_error_class(error: *const pgf_error) -> pgf_class {
    read(pgf_class::PGF_CLASS_NONE, || Some(handle::get::<Failed>(error).ok()?.class))
}

/// The server's SQLSTATE, five characters; NULL where the server gave none.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_error_sqlstate(error: *const pgf_error) -> *const c_char {
    read(ptr::null(), || Some(handle::get::<Failed>(error).ok()?.sqlstate.as_ref()?.as_ptr()))
}

/// All that it says as a JSON object: ok (false), class, code, sqlstate, stage, message, attempts, host, sent,
/// transaction, retry_after_ms, token; null for what isn't known. Keys may be added. NULL if that isn't a pgf_error.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_error_json(error: *const pgf_error) -> *const c_char {
    read(ptr::null(), || Some(handle::get::<Failed>(error).ok()?.json.as_ptr()))
}

/// Frees it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_error_free(error: *mut pgf_error) -> pgf_status {
    call(ptr::null_mut(), || handle::free::<Failed>(error))
}
