//! One option at a time: its text, its type, and the message where it doesn't fit. Knows no option by name.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::find;
use super::values::{durations, integer, shown};
use crate::conninfo::{Origin, Settings, failed};
use crate::error::{Code, Error};

/// A value that its option can't have.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    failed(Code::InvalidOption, message)
}

pub(super) fn unsupported(message: impl Into<String>) -> Error {
    failed(Code::UnsupportedOption, message)
}

/// The settings with the table's defaults below them.
pub(super) struct Values<'a>(pub(super) &'a Settings);

impl Values<'_> {
    /// The value, or the table's default.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.get(name).or_else(|| find(name).and_then(|r| r.default)).unwrap_or_default()
    }

    pub(super) fn owned(&self, name: &str) -> Option<String> {
        self.0.non_empty(name).map(str::to_owned)
    }

    /// `NAME=VALUE`, with where it came from unless it was the string: how a message begins.
    pub(super) fn blame(&self, name: &str) -> String {
        let value = match find(name) {
            Some(r) if r.is_secret() => "…".to_owned(),
            _ => shown(self.text(name)),
        };
        match self.0.origin(name) {
            Origin::Conninfo | Origin::Code => format!("{name}={value}"),
            other => format!("{name}={value} ({other})"),
        }
    }

    pub(super) fn bad(&self, name: &str, remedy: impl Display) -> Error {
        invalid(format!("{}: {remedy}", self.blame(name)))
    }

    pub(super) fn keyword<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Option<T>,
        values: &[&str],
    ) -> Result<T, Error> {
        read(self.text(name)).ok_or_else(|| self.bad(name, format_args!("use one of {}", values.join(", "))))
    }

    pub(super) fn integer(&self, name: &str) -> Result<i32, Error> {
        integer(self.text(name)).ok_or_else(|| {
            let unit = find(name).map_or("", |r| r.values);
            self.bad(name, format_args!("it must be a whole number ({unit})"))
        })
    }

    /// A whole number; libpq takes 0 and less as "leave it to the system".
    pub(super) fn positive(&self, name: &str) -> Result<Option<u32>, Error> {
        Ok(u32::try_from(self.integer(name)?).ok().filter(|&n| n > 0))
    }

    pub(super) fn seconds(&self, name: &str) -> Result<Option<Duration>, Error> {
        Ok(self.positive(name)?.map(|s| Duration::from_secs(s.into())))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Error> {
        // Stricter than libpq, to which sslsni=true means off.
        match self.text(name) {
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err(self.bad(name, "use 1 (on) or 0 (off)")),
        }
    }

    pub(super) fn duration(
        &self,
        name: &str,
        permitted: RangeInclusive<Duration>,
    ) -> Result<Duration, Error> {
        let range = find(name).map_or("", |r| r.values);
        let value = durations(self.text(name)).ok_or_else(|| {
            self.bad(
                name,
                format_args!("write a whole number and its unit, such as 250ms, 5s or 2min ({range})"),
            )
        })?;
        if !permitted.contains(&value) {
            return Err(self.bad(name, format_args!("it must be {range}")));
        }
        Ok(value)
    }

    pub(super) fn count(&self, name: &str, permitted: &RangeInclusive<usize>) -> Result<usize, Error> {
        let range = find(name).map_or("", |r| r.values);
        integer(self.text(name))
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| permitted.contains(n))
            .ok_or_else(|| self.bad(name, format_args!("it must be a whole number, {range}")))
    }
}
