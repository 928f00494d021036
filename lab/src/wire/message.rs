//! What a scripted server sends, and how it looks on the wire (PostgreSQL manual, "Message Formats").
//!
//! Read from the JSON form of the cases: an array whose first element names the message.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value;

use super::script::ScriptError;

/// One message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant's doc gives its JSON form, which names the fields")]
pub enum Message {
    /// `["auth", n]`: an authentication request of that number (0: AuthenticationOk, 3: cleartext, 5: MD5).
    Auth(i32),
    /// `["sasl", [mechanism, …]]`: AuthenticationSASL.
    Sasl(Vec<String>),
    /// `["param", name, value]`: ParameterStatus.
    Param { name: String, value: String },
    /// `["key", pid, secret]`: BackendKeyData.
    Key { pid: i32, secret: i32 },
    /// `["ready", "I" | "T" | "E"]`: ReadyForQuery.
    Ready(u8),
    /// `["error", severity, code, text]`: ErrorResponse.
    Error { severity: String, code: String, text: String },
    /// `["notice", severity, code, text]`, with a fifth element the routine field: NoticeResponse.
    Notice { severity: String, code: String, text: String, routine: Option<String> },
    /// `["cmd", tag]`: CommandComplete.
    Command(String),
    /// `["rows", column, [value, …]]`: RowDescription and one DataRow for each value.
    Rows { column: String, values: Vec<String> },
    /// `["negotiate", minor, [option, …]]`: NegotiateProtocolVersion.
    Negotiate { minor: i32, options: Vec<String> },
    /// `["raw", hex]`: these bytes.
    Raw(Bytes),
    /// `["error_big", bytes]`: an ErrorResponse whose text has that many bytes.
    ErrorBig(usize),
}

/// The salt of every MD5 request.
pub(super) const MD5_SALT: [u8; 4] = *b"salt";

impl Message {
    /// From its JSON form.
    pub fn from_json(v: &Value) -> Result<Self, ScriptError> {
        let bad = || ScriptError(format!("not a message: {v}"));
        let items = v.as_array().ok_or_else(bad)?;
        let name = items.first().and_then(Value::as_str).ok_or_else(bad)?;
        let text = |i: usize| items.get(i).and_then(Value::as_str).map(str::to_owned).ok_or_else(bad);
        let number = |i: usize| items.get(i).and_then(Value::as_i64).ok_or_else(bad);
        let small = |i: usize| i32::try_from(number(i)?).map_err(|_| bad());
        let list = |i: usize| -> Result<Vec<String>, ScriptError> {
            let items = items.get(i).and_then(Value::as_array).ok_or_else(bad)?;
            items.iter().map(|s| s.as_str().map(str::to_owned).ok_or_else(bad)).collect()
        };
        Ok(match name {
            "auth" => Self::Auth(small(1)?),
            "sasl" => Self::Sasl(list(1)?),
            "param" => Self::Param { name: text(1)?, value: text(2)? },
            "key" => Self::Key { pid: small(1)?, secret: small(2)? },
            "ready" => match text(1)?.as_bytes() {
                [status] => Self::Ready(*status),
                _ => return Err(bad()),
            },
            "error" => Self::Error { severity: text(1)?, code: text(2)?, text: text(3)? },
            "notice" => {
                Self::Notice { severity: text(1)?, code: text(2)?, text: text(3)?, routine: text(4).ok() }
            }
            "cmd" => Self::Command(text(1)?),
            "rows" => Self::Rows { column: text(1)?, values: list(2)? },
            "negotiate" => Self::Negotiate { minor: small(1)?, options: list(2)? },
            "raw" => Self::Raw(unhex(&text(1)?).ok_or_else(bad)?),
            "error_big" => Self::ErrorBig(usize::try_from(number(1)?).map_err(|_| bad())?),
            _ => return Err(bad()),
        })
    }

    /// From a JSON array of messages.
    pub fn list_from_json(v: &Value) -> Result<Vec<Self>, ScriptError> {
        let items = v.as_array().ok_or_else(|| ScriptError(format!("not a list of messages: {v}")))?;
        items.iter().map(Self::from_json).collect()
    }

    /// A FATAL error.
    pub fn fatal(code: &str, text: &str) -> Self {
        Self::Error { severity: "FATAL".to_owned(), code: code.to_owned(), text: text.to_owned() }
    }

    /// A ParameterStatus.
    pub fn param(name: &str, value: &str) -> Self {
        Self::Param { name: name.to_owned(), value: value.to_owned() }
    }

    /// Writes it as it goes over the wire.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Auth(n) => frame(out, b'R', |b| {
                b.put_i32(*n);
                if *n == 5 {
                    b.put_slice(&MD5_SALT);
                }
            }),
            Self::Sasl(mechanisms) => frame(out, b'R', |b| {
                b.put_i32(10);
                mechanisms.iter().for_each(|m| text(b, m));
                b.put_u8(0);
            }),
            Self::Param { name, value } => frame(out, b'S', |b| {
                text(b, name);
                text(b, value);
            }),
            Self::Key { pid, secret } => frame(out, b'K', |b| {
                b.put_i32(*pid);
                b.put_i32(*secret);
            }),
            Self::Ready(status) => frame(out, b'Z', |b| b.put_u8(*status)),
            Self::Error { severity, code, text } => report(out, b'E', severity, code, text, None),
            Self::Notice { severity, code, text, routine } => {
                report(out, b'N', severity, code, text, routine.as_deref());
            }
            Self::Command(tag) => frame(out, b'C', |b| text(b, tag)),
            Self::Rows { column, values } => {
                let row = Row::of(column, values);
                row.describe(out);
                values.iter().for_each(|v| row.data(out, &[Some(v.clone())], false));
                // The caller's script has the CommandComplete.
            }
            Self::Negotiate { minor, options } => frame(out, b'v', |b| {
                b.put_i32(*minor);
                b.put_i32(i32::try_from(options.len()).unwrap_or(i32::MAX));
                options.iter().for_each(|o| text(b, o));
            }),
            Self::Raw(bytes) => out.put_slice(bytes),
            Self::ErrorBig(n) => {
                let (head, tail) = big_error(*n);
                out.put_slice(&head);
                out.put_bytes(b'x', *n);
                out.put_slice(&tail);
            }
        }
    }
}

/// What stands before and behind the text of an error whose text has `n` bytes.
pub(super) fn big_error(n: usize) -> (BytesMut, BytesMut) {
    let (mut head, mut tail) = (BytesMut::new(), BytesMut::new());
    report(&mut head, b'E', "FATAL", "XX000", "", None);
    tail.put_slice(&head.split_off(head.len() - 2)); // the end of the text and of the fields
    let length = i32::try_from(head.len() - 1 + n + tail.len()).unwrap_or(i32::MAX);
    head[1..5].copy_from_slice(&length.to_be_bytes());
    (head, tail)
}

/// The messages of a list, encoded one behind the other.
pub(super) fn encode_all(messages: &[Message]) -> BytesMut {
    let mut out = BytesMut::new();
    messages.iter().for_each(|m| m.encode(&mut out));
    out
}

/// One frame: its type, its length (which counts itself), its body.
pub fn frame(out: &mut BytesMut, kind: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(kind);
    let at = out.len();
    out.put_i32(0);
    body(out);
    let length = i32::try_from(out.len() - at).unwrap_or(i32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn text(out: &mut BytesMut, s: &str) {
    out.put_slice(s.as_bytes());
    out.put_u8(0);
}

fn report(out: &mut BytesMut, kind: u8, severity: &str, code: &str, message: &str, routine: Option<&str>) {
    frame(out, kind, |b| {
        for (field, value) in [(b'S', severity), (b'V', severity), (b'C', code), (b'M', message)] {
            b.put_u8(field);
            text(b, value);
        }
        if let Some(r) = routine {
            b.put_u8(b'R');
            text(b, r);
        }
        b.put_u8(0);
    });
}

/// A column's type: the three that the answers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Bool,
    Int4,
    Text,
}

impl Type {
    fn oid(self) -> i32 {
        match self {
            Self::Bool => 16,
            Self::Int4 => 23,
            Self::Text => 25,
        }
    }

    /// The narrowest type that holds every value.
    pub(super) fn of(values: &[String]) -> Self {
        if values.is_empty() {
            Self::Text
        } else if values.iter().all(|v| v == "t" || v == "f") {
            Self::Bool
        } else if values.iter().all(|v| v.parse::<i32>().is_ok()) {
            Self::Int4
        } else {
            Self::Text
        }
    }
}

/// The shape of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row(pub(super) Vec<(String, Type)>);

impl Row {
    /// One column that holds these values.
    pub(super) fn of(column: &str, values: &[String]) -> Self {
        Self(vec![(column.to_owned(), Type::of(values))])
    }

    /// RowDescription.
    pub(super) fn describe(&self, out: &mut BytesMut) {
        frame(out, b'T', |b| {
            b.put_i16(i16::try_from(self.0.len()).unwrap_or(i16::MAX));
            for (name, kind) in &self.0 {
                text(b, name);
                b.put_i32(0); // no table
                b.put_i16(0);
                b.put_i32(kind.oid());
                b.put_i16(match kind {
                    Type::Bool => 1,
                    Type::Int4 => 4,
                    Type::Text => -1,
                });
                b.put_i32(-1);
                b.put_i16(0); // text; the format asked for is known only at Bind
            }
        });
    }

    /// DataRow, in text or binary form.
    pub(super) fn data(&self, out: &mut BytesMut, values: &[Option<String>], binary: bool) {
        frame(out, b'D', |b| {
            b.put_i16(i16::try_from(values.len()).unwrap_or(i16::MAX));
            for (value, (_, kind)) in values.iter().zip(&self.0) {
                match (value, kind) {
                    (None, _) => b.put_i32(-1),
                    (Some(v), Type::Bool) if binary => {
                        b.put_i32(1);
                        b.put_u8(u8::from(v == "t"));
                    }
                    (Some(v), Type::Int4) if binary => {
                        b.put_i32(4);
                        b.put_i32(v.parse().unwrap_or(0));
                    }
                    (Some(v), _) => {
                        b.put_i32(i32::try_from(v.len()).unwrap_or(i32::MAX));
                        b.put_slice(v.as_bytes());
                    }
                }
            }
        });
    }
}

fn unhex(s: &str) -> Option<Bytes> {
    let digits: Vec<u8> = s.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits
        .chunks(2)
        .map(|two| {
            let high = char::from(two[0]).to_digit(16)?;
            let low = char::from(two[1]).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()
        })
        .collect()
}
