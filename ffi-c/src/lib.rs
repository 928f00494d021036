//! pgfollow for C. The conventions stand at the head of the header (`ffi-c/cbindgen.toml`), `include/pgfollow.h` is made
//! from the files here (`make gen`).
//!
//! An entry converts what comes in, calls the core once, and converts what goes out; it decides nothing.
//! - `barrier.rs`: every entry runs behind it · `handle.rs`: what a handle is, and how misuse is told · `text.rs`: strings
//! - `status.rs`: the numbers, generated from the core's table · `error.rs` · `connector.rs` · `event.rs` · `outcome.rs` ·
//!   `classify.rs` · `target.rs`: locate and guard · `op.rs`: locate for event loops · `process.rs`: version and fork
#![expect(unsafe_code, reason = "a C interface: pointers come in, and symbols go out")]
#![allow(non_camel_case_types, reason = "the names are C's")]

mod barrier;
mod classify;
mod connector;
mod error;
mod event;
mod handle;
mod op;
mod outcome;
mod process;
mod status;
mod target;
mod text;

pub use classify::*;
pub use connector::*;
pub use error::*;
pub use event::*;
pub use op::*;
pub use outcome::*;
pub use process::*;
pub use status::pgf_status;
pub use target::*;
pub use text::*;
