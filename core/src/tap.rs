//! The stream between socket (or TLS) and tokio-postgres: reads along, both ways, and never alters a byte.
//!
//! Until ReadyForQuery it enforces what a server may ask for and how much it may send ([`login`]); a refusal is an
//! I/O error to tokio-postgres, and nothing that the refused bytes asked for has left. Afterwards it keeps what
//! tokio-postgres doesn't tell ([`state`]): requests out, whether their bytes left, transaction status, the time of the
//! last byte, SQLSTATEs and parameters that pass. It reads control messages only, never rows or parameter values.
//! [`crate::handshake`] puts it in; [`crate::session`] and [`crate::monitor`] read its state.

mod frames;
pub(crate) mod login;
pub(crate) mod report;
mod state;
mod text;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::{self, Moment};
use crate::failure::Failure;
use crate::lock;
use crate::net::Io;

use frames::{Keep, Reader, Scanner};
use login::{Exchange, Rules};
use report::Report;
use state::Inner;
pub(crate) use state::{News, TapState};
use text::Effect;

/// Longest statement text that is read; of a longer one the careful answer is given.
const TEXT: usize = 64 * 1_024;
/// Of a Bind or Close: enough for two names of 63 bytes.
const NAMES: usize = 160;
/// Of an error or notice: the fields that matter come first.
const REPORT: usize = 8 * 1_024;

/// The tap. See the module's head.
pub(crate) struct Tap {
    io: Box<dyn Io>,
    state: Arc<TapState>,
    incoming: Scanner,
    outgoing: Scanner,
    /// The login's rules, until ReadyForQuery.
    login: Option<Login>,
    /// What the server sent was refused: nothing more is written to it.
    refused: bool,
}

struct Login {
    rules: Rules,
    exchange: Exchange,
    total: usize,
}

impl Tap {
    pub(crate) fn new(io: Box<dyn Io>, rules: Rules) -> (Self, Arc<TapState>) {
        let state = Arc::new(TapState::default());
        let tap = Self {
            io,
            state: Arc::clone(&state),
            incoming: Scanner::new(false),
            outgoing: Scanner::new(true),
            login: Some(Login { rules, exchange: Exchange::default(), total: 0 }),
            refused: false,
        };
        (tap, state)
    }

    fn received(&mut self, bytes: &[u8]) -> io::Result<()> {
        // One look at the clock for all that came together.
        let now = clock::now();
        self.state.bytes_in(now);
        let mut inner = lock(&self.state.inner);
        let mut reader = Incoming { inner: &mut inner, login: &mut self.login, news: false, now };
        let result = self.incoming.feed(bytes, &mut reader);
        if reader.news {
            self.state.has_news();
        }
        result.map_err(|failure| {
            self.refused = true;
            let text = failure.to_string();
            inner.refusal = Some(failure);
            io::Error::other(text)
        })
    }

    fn accepted(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let now = clock::now();
        let mut inner = lock(&self.state.inner);
        let mut reader = Outgoing { inner: &mut inner, now };
        // tokio-postgres writes well-formed messages; of anything else the careful answer holds.
        let sound = self.outgoing.feed(bytes, &mut reader).is_ok();
        inner.half = self.login.is_none() && !(sound && self.outgoing.between());
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let filled = buf.filled().len();
        if filled > before
            && let Err(e) = self.received(&buf.filled()[before..])
        {
            // What was refused is not handed on.
            buf.set_filled(before);
            return Poll::Ready(Err(e));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.refused {
            return Poll::Ready(Err(io::Error::other("the server was refused")));
        }
        let n = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.accepted(&buf[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

struct Incoming<'a> {
    inner: &'a mut Inner,
    login: &'a mut Option<Login>,
    news: bool,
    now: Moment,
}

impl Reader for Incoming<'_> {
    type Stop = Failure;

    fn head(&mut self, tag: u8, body: usize) -> Result<Keep, Failure> {
        if let Some(login) = self.login {
            // Before AuthenticationOk a server has nothing else to say (libpq `fe-connect.c`, CONNECTION_AWAITING_RESPONSE).
            let later = login.exchange.authenticated() && matches!(tag, b'N' | b'S' | b'K' | b'Z');
            if !later && !matches!(tag, b'R' | b'E' | b'v') {
                return Err(Failure::NotPostgres(format!("its message begins with byte {tag}")));
            }
            login.total = login.total.saturating_add(body);
            if body > login::FRAME || login.total > login::TOTAL {
                return Err(Failure::TooLarge(format!("a message of {body} bytes")));
            }
            return Ok(Keep::Prefix(login::FRAME));
        }
        Ok(match tag {
            b'Z' | b'C' => Keep::Prefix(64),
            b'E' | b'N' => Keep::Prefix(REPORT),
            b'S' => Keep::Prefix(1_024),
            _ => Keep::Nothing,
        })
    }

    fn frame(&mut self, tag: u8, kept: &[u8], _: usize) -> Result<(), Failure> {
        match tag {
            b'R' => {
                if let Some(login) = self.login {
                    login.exchange.request(kept, &login.rules)?;
                }
            }
            b'Z' => {
                if self.login.take().is_none() {
                    self.inner.ready(kept.first().copied().unwrap_or(b'I'), self.now);
                } else {
                    self.inner.partial = None;
                }
            }
            b'C' => self.inner.completed(kept.split(|b| *b == 0).next().unwrap_or_default()),
            b'S' => {
                let mut parts = kept.split(|b| *b == 0).map(String::from_utf8_lossy);
                if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
                    let news = self.inner.parameter(&name, &value);
                    // What came during the login is where the session starts from, not news.
                    self.news |= news && self.login.is_none();
                }
            }
            b'K' => {
                // Protocol 3.0: four bytes each (a longer key belongs to 3.2, which nobody asked for).
                if let Some((pid, rest)) = kept.split_first_chunk::<4>()
                    && let Some((secret, [])) = rest.split_first_chunk::<4>()
                {
                    self.inner.key = Some((i32::from_be_bytes(*pid), i32::from_be_bytes(*secret)));
                }
            }
            b'E' | b'N' => {
                let report = Report::read(kept);
                match self.login {
                    Some(login) if tag == b'E' => {
                        let message = if login.rules.private {
                            report.message
                        } else {
                            // Anyone on the way could have written it.
                            format!("{} (said in clear text)", report.message)
                        };
                        self.inner.login_error = Some(Failure::Server {
                            sqlstate: report.sqlstate,
                            message,
                            after_auth: login.exchange.authenticated(),
                        });
                    }
                    Some(_) => {}
                    None => self.news |= self.inner.reported(&report, tag == b'E'),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn malformed(&mut self, tag: u8) -> Failure {
        Failure::NotPostgres(format!("a message (byte {tag}) with an impossible length"))
    }
}

struct Outgoing<'a> {
    inner: &'a mut Inner,
    now: Moment,
}

impl Reader for Outgoing<'_> {
    type Stop = ();

    fn head(&mut self, tag: u8, _: usize) -> Result<Keep, Self::Stop> {
        Ok(match tag {
            b'Q' | b'P' => Keep::Prefix(TEXT),
            b'B' | b'C' => Keep::Prefix(NAMES),
            _ => Keep::Nothing,
        })
    }

    fn frame(&mut self, tag: u8, kept: &[u8], body: usize) -> Result<(), Self::Stop> {
        let seen = kept.len() == body;
        let read = |text: &[u8]| if seen { text::effect(text) } else { Effect::UNKNOWN };
        match tag {
            b'Q' => {
                self.inner.sending(read(kept));
                self.inner.sent(self.now);
            }
            b'P' => {
                let (name, rest) = cstr(kept);
                let effect = read(cstr(rest).0);
                self.inner.remember(name, effect);
                self.inner.sending(Effect::default());
            }
            b'B' => {
                let (_, rest) = cstr(kept);
                let effect =
                    if rest.contains(&0) { self.inner.effect_of(cstr(rest).0) } else { Effect::UNKNOWN };
                self.inner.sending(effect);
            }
            b'C' => {
                if let [b'S', rest @ ..] = kept {
                    self.inner.forget(cstr(rest).0);
                }
                self.inner.sending(Effect::default());
            }
            b'S' => self.inner.sent(self.now),
            b'F' => {
                self.inner.sending(Effect::UNKNOWN);
                self.inner.sent(self.now);
            }
            b'E' | b'D' | b'H' => self.inner.sending(Effect::default()),
            // Startup packet, password, COPY data, Terminate: no request of their own.
            _ => {}
        }
        Ok(())
    }

    fn malformed(&mut self, _: u8) {}
}

/// Splits at the first NUL.
fn cstr(b: &[u8]) -> (&[u8], &[u8]) {
    b.iter().position(|c| *c == 0).map_or((b, &[]), |n| (&b[..n], &b[n + 1..]))
}
