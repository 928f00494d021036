//! Nothing unwinds into C: every entry runs in [`call`] or [`read`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pgfollow::{Class, Code, Error};

use crate::error::{Failed, pgf_error};
use crate::handle;
use crate::status::pgf_status;

/// Runs an entry that can fail. `error` gets the whole error if the caller wants it.
pub(crate) fn call(error: *mut *mut pgf_error, entry: impl FnOnce() -> Result<(), Error>) -> pgf_status {
    let result = catch_unwind(AssertUnwindSafe(entry)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    let Err(e) = result else { return pgf_status::PGF_OK };
    let status = pgf_status::of(e.code());
    let told = || {
        if !error.is_null() {
            let handle = handle::give(Failed::new(&e));
            // SAFETY: not NULL, so it is a place for one pointer, as the header's conventions say.
            unsafe { error.write(handle) };
        }
    };
    match catch_unwind(AssertUnwindSafe(told)) {
        Ok(()) => status,
        Err(_) => pgf_status::PGF_INTERNAL,
    }
}

/// Runs an entry that only reads: what can't be had is `otherwise`.
pub(crate) fn read<T>(otherwise: T, entry: impl FnOnce() -> Option<T>) -> T {
    catch_unwind(AssertUnwindSafe(entry)).ok().flatten().unwrap_or(otherwise)
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let words =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = format!("an error of pgfollow itself, please report it: {}", words.unwrap_or("panicked"));
    Error::new(Code::Internal, Class::Permanent, message)
}

/// The call itself doesn't fit.
pub(crate) fn wrong_call(message: impl Into<String>) -> Error {
    Error::new(Code::WrongCall, Class::Permanent, message)
}

/// A place for something that goes out. It is written to once, at the end, so a failure leaves it as it was.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Must be there.
    pub(crate) fn needed(place: *mut T, name: &str) -> Result<Self, Error> {
        if place.is_null() { Err(wrong_call(format!("{name} is NULL"))) } else { Ok(Self(place)) }
    }

    /// NULL: the caller doesn't want it.
    pub(crate) fn wanted(place: *mut T) -> Option<Self> {
        (!place.is_null()).then_some(Self(place))
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: not NULL, so it is a place for one T, as the header's conventions say.
        unsafe { self.0.write(value) }
    }
}

/// Panics: the barrier's proof.
#[cfg(feature = "test-entry")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pgf_test_panic(error: *mut *mut pgf_error) -> pgf_status {
    call(error, || panic!("on purpose"))
}
