//! The stream between socket (or TLS) and tokio-postgres: reads along, both ways, and never alters a byte.
//!
//! Until ReadyForQuery it enforces what a server may ask for and how much it may send ([`login`]); a refusal is an
//! I/O error to tokio-postgres, and nothing that the refused bytes asked for has left. Afterwards it keeps what
//! tokio-postgres doesn't tell ([`state`]): requests out, whether their bytes left, transaction status, the time of the
//! last byte, SQLSTATEs and parameters that pass. It reads control messages only, never rows or parameter values.
//! [`crate::handshake`] puts it in; [`crate::session`] and [`crate::monitor`] read its state.

mod done;
mod frames;
pub(crate) mod login;
mod names;
pub(crate) mod report;
mod state;
#[cfg(test)]
mod tests;
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

pub(crate) use done::Done;
use frames::{Keep, Reader, Scanner};
use login::{Exchange, Rules};
use report::Report;
use state::Inner;
pub(crate) use state::{News, TapState};
use text::Effects;

/// Longest statement text that is read; of a longer one the careful answer is given.
const TEXT: usize = 64 * 1_024;
/// Of a Bind or Close: enough for two names of 63 bytes.
const NAMES: usize = 160;
/// Of an error or notice: the fields that matter come first.
const REPORT: usize = 8 * 1_024;
/// A TLS record holds at most this much (RFC 8446, section 5.1).
const RECORD: usize = 16 * 1_024;

/// The tap. See the module's head.
pub(crate) struct Tap {
    io: Box<dyn Io>,
    state: Arc<TapState>,
    /// Below is TLS.
    encrypted: bool,
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
            encrypted: rules.encrypted,
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
        let mut reader =
            Incoming { inner: &mut inner, login: &mut self.login, news: false, answered: false, now };
        let result = self.incoming.feed(bytes, &mut reader);
        if reader.news {
            self.state.has_news();
        }
        if reader.answered {
            self.state.answer_read(true);
        }
        let fresh = inner.take_fresh();
        let result = result.map_err(|failure| {
            self.refused = true;
            let text = failure.to_string();
            inner.refusal = Some(failure);
            io::Error::other(text)
        });
        drop(inner);
        if let Some(write) = fresh {
            self.state.tell(write, now);
        }
        result
    }

    fn accepted(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let now = clock::now();
        self.state.bytes_out(now);
        let mut inner = lock(&self.state.inner);
        let mut reader = Outgoing { inner: &mut inner, now };
        // tokio-postgres writes well-formed messages; of anything else the careful answer holds.
        let sound = self.outgoing.feed(bytes, &mut reader).is_ok();
        // Half of COPY's data, or of a farewell, runs nothing.
        let half = self.outgoing.open().is_some_and(|tag| !matches!(tag, b'd' | b'c' | b'f' | b'X'));
        inner.half = self.login.is_none() && (half || !sound);
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // It comes back for more when it has handed on all that it had.
        self.state.answer_read(false);
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
        if self.refused || !self.state.write_begins() {
            return Poll::Ready(Err(io::Error::other("the server was refused, or the session is over")));
        }
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        match &result {
            Poll::Ready(Ok(n)) => self.accepted(&buf[..*n]),
            // Records before the one that failed may have left, whole requests among them.
            Poll::Ready(Err(_)) if self.encrypted && buf.len() > RECORD => self.accepted(buf),
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        self.state.write_ends();
        self.state.hold_back(result.is_pending());
        result
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
    /// A ReadyForQuery came.
    answered: bool,
    now: Moment,
}

impl Reader for Incoming<'_> {
    type Stop = Failure;

    fn head(&mut self, tag: u8, body: usize) -> Result<Keep, Failure> {
        if self.login.is_some() {
            return self.login_head(tag, body);
        }
        Ok(match tag {
            b'Z' | b'C' => Keep::Prefix(64),
            b'E' | b'N' => Keep::Prefix(REPORT),
            b'S' => Keep::Prefix(2 * state::VALUE),
            b'G' => Keep::Nothing,
            _ => Keep::Skip,
        })
    }

    fn frame(&mut self, tag: u8, kept: &[u8], body: usize) -> Result<(), Failure> {
        match tag {
            b'C' => self.inner.completed(cstr(kept).0),
            b'Z' if self.login.is_none() => {
                self.answered = true;
                self.inner.ready(kept.first().copied().unwrap_or(b'I'), self.now);
            }
            _ => return self.rarer(tag, kept, body),
        }
        Ok(())
    }

    fn malformed(&mut self, tag: u8) -> Failure {
        Failure::NotPostgres(format!("a message (byte {tag}) with an impossible length"))
    }
}

impl Incoming<'_> {
    /// A frame begins before the login's end.
    #[cold]
    fn login_head(&mut self, tag: u8, body: usize) -> Result<Keep, Failure> {
        let Some(login) = self.login else { return Ok(Keep::Skip) };
        // Before AuthenticationOk a server has nothing else to say (libpq `fe-connect.c`, CONNECTION_AWAITING_RESPONSE).
        let expected = if login.exchange.authenticated() {
            matches!(tag, b'N' | b'S' | b'K' | b'Z' | b'E')
        } else {
            matches!(tag, b'R' | b'E' | b'v')
        };
        if !expected {
            return Err(Failure::NotPostgres(format!("its message begins with byte {tag}")));
        }
        login.total = login.total.saturating_add(body);
        if body > login::FRAME || login.total > login::TOTAL {
            return Err(Failure::TooLarge(format!("a message of {body} bytes")));
        }
        Ok(Keep::Prefix(login::FRAME))
    }

    /// What doesn't come with every answer.
    #[cold]
    fn rarer(&mut self, tag: u8, kept: &[u8], body: usize) -> Result<(), Failure> {
        match tag {
            b'R' => {
                if let Some(login) = self.login {
                    login.exchange.request(kept, &login.rules)?;
                }
            }
            b'Z' => {
                // The login's end.
                *self.login = None;
                self.inner.partial = None;
            }
            b'G' if self.login.is_none() => self.inner.copy_begins(),
            b'S' => {
                let (name, value) = cstr(kept);
                let value = String::from_utf8_lossy(cstr(value).0);
                let whole = kept.len() == body;
                let news =
                    self.inner.parameter(&String::from_utf8_lossy(name), whole.then_some(value.as_ref()));
                // What came during the login is where the session starts from, not news.
                self.news |= news && self.login.is_none();
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
                            format!("{} (without TLS, unverified)", report.message)
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
            b'B' | b'C' | b'E' => Keep::Prefix(NAMES),
            _ => Keep::Nothing,
        })
    }

    fn frame(&mut self, tag: u8, kept: &[u8], body: usize) -> Result<(), Self::Stop> {
        let inner = &mut *self.inner;
        match tag {
            b'B' => {
                let (portal, rest) = cstr(kept);
                // Names longer than what is kept are unknown ones as well.
                let effects = inner.statements.get(cstr(rest).0);
                inner.portals.set(portal, effects);
                inner.named += u64::from(!portal.is_empty());
                inner.asking(Effects::default());
            }
            b'E' => {
                let effects = inner.portals.get(cstr(kept).0);
                inner.asking(effects);
            }
            b'S' => inner.sent(true, self.now),
            b'Q' | b'P' => self.text(tag, kept, kept.len() == body),
            _ => self.rarer(tag, kept),
        }
        Ok(())
    }

    fn malformed(&mut self, _: u8) {}
}

impl Outgoing<'_> {
    /// A Query or Parse. Of a longer text than is kept (`whole` is false) the end was not seen.
    fn text(&mut self, tag: u8, kept: &[u8], whole: bool) {
        let inner = &mut *self.inner;
        let read = |inner: &Inner, text: &[u8]| {
            if whole { text::effects(text, inner.conforming()) } else { Effects::DOUBT }
        };
        if tag == b'Q' {
            inner.asking(read(inner, cstr(kept).0));
            inner.sent(false, self.now);
        } else {
            let (name, rest) = cstr(kept);
            let effects = read(inner, cstr(rest).0);
            inner.statements.set(name, effects);
            inner.named += u64::from(!name.is_empty());
            inner.asking(Effects::default());
        }
    }

    /// What doesn't belong to every request.
    #[cold]
    fn rarer(&mut self, tag: u8, kept: &[u8]) {
        let inner = &mut *self.inner;
        match tag {
            b'C' => {
                match kept {
                    [b'S', rest @ ..] => inner.statements.close(cstr(rest).0),
                    [b'P', rest @ ..] => inner.portals.close(cstr(rest).0),
                    _ => {}
                }
                inner.sending(Effects::default());
            }
            b'F' => {
                inner.asking(Effects::DOUBT);
                inner.sent(false, self.now);
            }
            b'D' => inner.asking(Effects::default()),
            b'H' => inner.sending(Effects::default()),
            // Startup packet, password, COPY data, Terminate: no request of their own.
            _ => {}
        }
    }
}

/// Splits at the first NUL.
fn cstr(b: &[u8]) -> (&[u8], &[u8]) {
    b.iter().position(|c| *c == 0).map_or((b, &[]), |n| (&b[..n], &b[n + 1..]))
}
