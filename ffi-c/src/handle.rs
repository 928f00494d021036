//! What C holds instead of our objects: the address of a token, which nothing here ever reads through.
//!
//! The objects are in a table by that address, counted, so a call keeps what it works with though another thread frees
//! the handle. An address that isn't in the table (freed, made up, the parent's in a forked child) is an error. Freed
//! tokens rest for a while before the allocator may hand their addresses out again: a second free soon after the first
//! one is always told. The table holds the addresses inverted, so that leak checkers see a handle that C forgot.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use pgfollow::Error;
use pgfollow::runtime::PerProcess;

use crate::barrier::wrong_call;

/// Freed tokens that rest.
const RESTING: usize = 4_096;

/// An object that C holds by a handle.
pub(crate) trait Opaque: Any + Send + Sync {
    /// The handle's type in C.
    type Handle;
    /// Its name in messages.
    const NAME: &'static str;
    /// C freed it; calls of other threads may still use it.
    fn freed(&self) {}
}

#[derive(Default)]
struct Table {
    live: HashMap<usize, Arc<dyn Any + Send + Sync>>,
    resting: VecDeque<Token>,
}

/// Owns the allocation whose address is a handle.
struct Token(*mut u128);

// SAFETY: nobody reads through it; it is only an address to give back to the allocator.
unsafe impl Send for Token {}
// SAFETY: as above.
unsafe impl Sync for Token {}

impl Drop for Token {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw in `give`, and in one table entry at a time.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

static TABLE: PerProcess<RwLock<Table>> = PerProcess::new();

fn write<T>(change: impl FnOnce(&mut Table) -> T) -> T {
    change(&mut TABLE.get_or(RwLock::default).write().unwrap_or_else(PoisonError::into_inner))
}

/// A handle for C.
pub(crate) fn give<T: Opaque>(object: T) -> *mut T::Handle {
    let token = Box::into_raw(Box::new(0_u128));
    let object = Arc::new(object);
    write(|table| table.live.insert(!token.addr(), object));
    token.cast()
}

/// The object of a handle.
pub(crate) fn get<T: Opaque>(handle: *const T::Handle) -> Result<Arc<T>, Error> {
    if handle.is_null() {
        return Err(wrong_call(format!("{} is NULL", T::NAME)));
    }
    let table = TABLE.get_or(RwLock::default);
    let table = table.read().unwrap_or_else(PoisonError::into_inner);
    let object = table.live.get(&!handle.addr()).cloned();
    object.and_then(|o| o.downcast().ok()).ok_or_else(dead::<T>)
}

/// Takes a handle back.
pub(crate) fn free<T: Opaque>(handle: *mut T::Handle) -> Result<(), Error> {
    if handle.is_null() {
        return Ok(());
    }
    let object = get::<T>(handle)?;
    let (taken, rested) = write(|table| {
        let taken = table.live.remove(&!handle.addr());
        if taken.is_some() {
            table.resting.push_back(Token(handle.cast()));
        }
        let rested = if table.resting.len() > RESTING { table.resting.pop_front() } else { None };
        (taken, rested)
    });
    drop(rested);
    // Another thread was faster.
    let Some(_taken) = taken else { return Err(dead::<T>()) };
    object.freed();
    Ok(())
}

fn dead<T: Opaque>() -> Error {
    wrong_call(format!(
        "{0} is no live {0}: it was freed, is something else, or is the parent's (a forked child makes its own)",
        T::NAME
    ))
}

/// Begins a table of this process's own.
pub(crate) fn begin() {
    TABLE.get_or(RwLock::default);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing;
    impl Opaque for Thing {
        type Handle = u8;
        const NAME: &'static str = "pgf_thing";
    }

    struct Other;
    impl Opaque for Other {
        type Handle = u8;
        const NAME: &'static str = "pgf_other";
    }

    #[test]
    fn a_handle_that_is_used_after_its_end_is_told_though_a_thousand_were_made_since() {
        let old = give(Thing);
        assert!(free::<Thing>(old).is_ok());
        for _ in 0..1_000 {
            let new = give(Thing);
            assert_ne!(new, old, "the address was handed out again");
            assert!(free::<Thing>(new).is_ok());
        }
        assert!(get::<Thing>(old).is_err() && free::<Thing>(old).is_err());
    }

    #[test]
    fn a_handle_of_another_kind_is_no_crash() {
        let thing = give(Thing);
        assert!(get::<Other>(thing).is_err() && free::<Other>(thing).is_err());
        assert!(free::<Thing>(thing).is_ok());
    }
}
