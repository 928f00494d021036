//! What a scripted server saw: per connection the messages of the client in their order, with times.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::{Buf, Bytes};

/// One message of the client. Rows, parameters and the like are kept as kinds alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// SSLRequest.
    SslRequest,
    /// GSSENCRequest.
    GssEncRequest,
    /// CancelRequest.
    CancelRequest {
        /// Process id.
        pid: i32,
        /// The secret.
        secret: i32,
    },
    /// StartupMessage.
    StartupMessage {
        /// Major × 65536 + minor.
        protocol: i32,
        /// Names and values.
        params: Vec<(String, String)>,
    },
    /// The text of a simple query.
    Query(String),
    /// A statement to prepare.
    Parse {
        /// Its name.
        name: String,
        /// Its text.
        text: String,
    },
    /// A password or SASL message: its bytes (test passwords only).
    Password(Bytes),
    /// Any other message, by the name of the manual ("Bind", "Sync", "Terminate", …).
    Other(&'static str),
    /// Bytes that aren't the protocol's: how many came at once.
    Bytes(usize),
}

impl Received {
    /// The message's name in the manual ("Bytes" for what is none).
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SslRequest => "SSLRequest",
            Self::GssEncRequest => "GSSENCRequest",
            Self::CancelRequest { .. } => "CancelRequest",
            Self::StartupMessage { .. } => "StartupMessage",
            Self::Query(_) => "Query",
            Self::Parse { .. } => "Parse",
            Self::Password(_) => "Password",
            Self::Other(name) => name,
            Self::Bytes(_) => "Bytes",
        }
    }

    /// The text, where it has one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Query(text) | Self::Parse { text, .. } => Some(text),
            _ => None,
        }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client closed its direction.
    ClientClosed,
    /// The client reset the connection, or it broke.
    ClientReset,
    /// The script came to its end.
    Script,
    /// The TLS handshake failed.
    TlsFailed,
    /// The server's patience ended: a wait without an end of its own.
    Patience,
}

/// What was seen of the TLS handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSeen {
    /// Server name of the client hello.
    pub sni: Option<String>,
    /// The protocol agreed on by ALPN.
    pub alpn: Option<String>,
    /// Whether the client showed a certificate.
    pub client_certificate: bool,
}

/// One accepted connection.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When it was accepted.
    pub at: Instant,
    /// The client's end.
    pub peer: SocketAddr,
    /// The client's messages and when each was read.
    pub received: Vec<(Instant, Received)>,
    /// The TLS handshake, once it succeeded.
    pub tls: Option<TlsSeen>,
    /// The server name of a client hello, also where the handshake failed afterwards.
    pub hello_sni: Option<String>,
    /// Bytes read after the last TLS handshake or since accepting.
    pub bytes_in: usize,
    /// How it ended; `None` while it lasts.
    pub end: Option<End>,
    /// When it ended.
    pub ended_at: Option<Instant>,
}

impl Seen {
    pub(super) fn new(peer: SocketAddr) -> Self {
        Self {
            at: Instant::now(),
            peer,
            received: Vec::new(),
            tls: None,
            hello_sni: None,
            bytes_in: 0,
            end: None,
            ended_at: None,
        }
    }

    /// The names of the messages, in their order.
    pub fn kinds(&self) -> Vec<&'static str> {
        self.received.iter().map(|(_, r)| r.kind()).collect()
    }

    /// Whether a message of this name came.
    pub fn has(&self, kind: &str) -> bool {
        self.received.iter().any(|(_, r)| r.kind() == kind)
    }

    /// The texts of all queries and statements, in their order.
    pub fn texts(&self) -> Vec<&str> {
        self.received.iter().filter_map(|(_, r)| r.text()).collect()
    }

    /// The parameters of the StartupMessage.
    pub fn startup(&self) -> Option<&[(String, String)]> {
        self.received.iter().find_map(|(_, r)| match r {
            Received::StartupMessage { params, .. } => Some(params.as_slice()),
            _ => None,
        })
    }
}

/// One frame, taken apart: what is recorded and the body for those who answer.
pub(super) struct Frame {
    pub(super) received: Received,
    pub(super) body: Bytes,
}

/// A packet without a type byte (before the session has started).
pub(super) fn untyped(body: Bytes) -> Option<Frame> {
    let mut b = body.clone();
    let code = b.try_get_i32().ok()?;
    let received = match code {
        80_877_103 => Received::SslRequest,
        80_877_104 => Received::GssEncRequest,
        80_877_102 => {
            let pid = b.try_get_i32().ok()?;
            // A longer secret (protocol 3.2) is recorded by its first four bytes.
            Received::CancelRequest { pid, secret: b.try_get_i32().ok()? }
        }
        _ if code >> 16 == 3 => {
            let mut params = Vec::new();
            loop {
                let name = take_text(&mut b)?;
                if name.is_empty() {
                    break;
                }
                params.push((name, take_text(&mut b)?));
            }
            Received::StartupMessage { protocol: code, params }
        }
        _ => return None,
    };
    Some(Frame { received, body })
}

/// A frame with its type byte.
pub(super) fn typed(kind: u8, body: Bytes) -> Option<Frame> {
    let mut b = body.clone();
    let received = match kind {
        b'Q' => Received::Query(take_text(&mut b)?),
        b'P' => {
            let name = take_text(&mut b)?;
            Received::Parse { name, text: take_text(&mut b)? }
        }
        b'p' => Received::Password(b),
        b'B' => Received::Other("Bind"),
        b'D' => Received::Other("Describe"),
        b'E' => Received::Other("Execute"),
        b'S' => Received::Other("Sync"),
        b'H' => Received::Other("Flush"),
        b'C' => Received::Other("Close"),
        b'X' => Received::Other("Terminate"),
        b'F' => Received::Other("FunctionCall"),
        b'd' => Received::Other("CopyData"),
        b'c' => Received::Other("CopyDone"),
        b'f' => Received::Other("CopyFail"),
        _ => return None,
    };
    Some(Frame { received, body })
}

/// Takes a zero-terminated text off the front.
pub(super) fn take_text(b: &mut Bytes) -> Option<String> {
    let end = b.iter().position(|c| *c == 0)?;
    let text = String::from_utf8_lossy(&b[..end]).into_owned();
    b.advance(end + 1);
    Some(text)
}
