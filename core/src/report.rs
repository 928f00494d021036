//! What a connector did and met, and where the time of each outage went.
//!
//! [`Recorder`] is fed by the rest of the library, always and cheaply: a query costs neither a lock nor an allocation,
//! and whatever waits, fails or is opened pays one short lock. Everything it keeps is bounded. It decides nothing:
//! outages are [`crate::decide::attribute`]'s. [`Report`] is what it tells (text, JSON by `docs/report.schema.json`);
//! the `metrics` facade hears the same under OpenTelemetry's names ([`export`](self)).
//!
//! - `data.rs` the report · `text.rs` the same in words · `compose.rs` how it is put together
//! - `record.rs` what the library tells · `told.rs` which errors `run` kept from its callers · `held.rs` what tells it of
//!   an end · `words.rs` what things are called · `book.rs` what is kept of it · `hist.rs` distributions · `export.rs`
//!   metrics

mod book;
mod compose;
mod data;
mod export;
mod held;
mod hist;
mod record;
#[cfg(test)]
mod tests;
mod text;
mod told;
mod words;

pub(crate) use book::By;
pub use data::{
    Calls, DialLine, ErrorLine, EventLine, EvictionLine, HostReport, NameLine, OutageReport, OutcomeLine,
    Report, SegmentLine, SessionsSeen, StateLine,
};
pub(crate) use held::Ear;
pub use hist::Quantiles;
pub(crate) use record::Recorder;
pub use text::duration;
pub(crate) use told::Told;
