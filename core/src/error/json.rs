//! An error as JSON, for scripts and for languages without our types.

use serde_json::{Value, json};

use super::Error;

impl Error {
    /// All that it says: `{ok: false, class, code, sqlstate, stage, message, attempts, host, sent, transaction,
    /// retry_after_ms, token}`, with `null` for what isn't known. Keys may be added.
    ///
    /// ```
    /// use pgfollow::{Class, Code, Error};
    /// let e = Error::new(Code::Closed, Class::Permanent, "the connector is closed").to_json();
    /// assert_eq!((&e["code"], &e["class"], &e["token"]), (&"Closed".into(), &"permanent".into(), &().into()));
    /// ```
    pub fn to_json(&self) -> Value {
        json!({
            "ok": false, "class": self.class(), "code": self.code(), "sqlstate": self.sqlstate(), "stage": self.stage(),
            "message": self.message(), "attempts": self.attempts(), "host": self.host(), "sent": self.sent(),
            "transaction": self.transaction(),
            "retry_after_ms": self.retry_after().map(|d| d.as_secs_f64() * 1e3),
            "token": self.token().map(ToString::to_string),
        })
    }
}
