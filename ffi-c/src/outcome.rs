//! What became of a COMMIT that was never answered.

use std::ffi::c_char;
use std::ptr;
use std::time::Duration;

use pgfollow::outcome::{Outcome, Token};

use crate::barrier::{Out, call};
use crate::connector::{Held, pgf_connector};
use crate::error::pgf_error;
use crate::handle;
use crate::status::pgf_status;
use crate::text::{self, pgf_text, taken};

/// What became of a transaction.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum pgf_outcome {
    /// It committed.
    PGF_OUTCOME_COMMITTED = 1,
    /// It didn't, and it never can any more: do it again.
    PGF_OUTCOME_NOT_COMMITTED = 2,
    /// Nobody can tell, or not yet.
    PGF_OUTCOME_UNKNOWN = 3,
}

/// Asks the primary what became of the transaction that left this token (key token of an error's JSON), until there is
/// an answer or that many milliseconds. Any number of checks, side by side and in different processes, get the same answer.
/// `reason`, which may be NULL, gets why nobody can tell, and NULL where the outcome is known.
///
/// Fails only where no other try can help, such as a wrong password.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_check_outcome(
    connector: *mut pgf_connector,
    token: *const c_char,
    token_len: usize,
    timeout_ms: u32,
    outcome: *mut pgf_outcome,
    reason: *mut *mut pgf_text,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let (out, why) = (Out::needed(outcome, "outcome")?, Out::wanted(reason));
        let held = handle::get::<Held>(connector)?;
        let token: Token = taken(token, token_len, "token")?.parse()?;
        let (connector, runtime) = held.used()?;
        let patience = Duration::from_millis(timeout_ms.into());
        let (outcome, reason) = match runtime.block_on(connector.check_outcome(&token, patience))?? {
            Outcome::Committed => (pgf_outcome::PGF_OUTCOME_COMMITTED, None),
            Outcome::NotCommitted => (pgf_outcome::PGF_OUTCOME_NOT_COMMITTED, None),
            Outcome::Unknown(why) => (pgf_outcome::PGF_OUTCOME_UNKNOWN, Some(why.to_string())),
        };
        if let Some(why) = why {
            why.set(reason.map_or(ptr::null_mut(), text::give));
        }
        out.set(outcome);
        Ok(())
    })
}
