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

use crate::clock;
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
        };
        (tap, state)
    }

    fn received(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.state.bytes_in();
        let mut inner = lock(&self.state.inner);
        let mut reader = Incoming { inner: &mut inner, login: &mut self.login, news: false, answered: false };
        let result = self.incoming.feed(bytes, &mut reader);
        if reader.news {
            self.state.has_news();
        }
        if reader.answered {
            self.state.answer_read(true);
        }
        result.map_err(|failure| {
            let text = failure.to_string();
            inner.refusal = Some(failure);
            io::Error::other(text)
        })
    }

    fn accepted(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.state.bytes_out();
        let mut inner = lock(&self.state.inner);
        let mut reader = Outgoing { inner: &mut inner };
        // tokio-postgres writes well-formed messages; of anything else the careful answer holds.
        let sound = self.outgoing.feed(bytes, &mut reader).is_ok();
        inner.writes += 1;
        inner.half = self.login.is_none() && !(sound && self.outgoing.between());
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
        {
            let mut inner = lock(&self.state.inner);
            if inner.refusal.is_some() || inner.sealed {
                return Poll::Ready(Err(io::Error::other("the server was refused, or the session is over")));
            }
            // Whoever asks before the socket has answered must not hear that nothing has left.
            inner.writing = self.login.is_none();
        }
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        if let Poll::Ready(Ok(n)) = &written {
            self.accepted(&buf[..*n]);
        }
        lock(&self.state.inner).writing = false;
        written
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
                    self.answered = true;
                    self.inner.ready(kept.first().copied().unwrap_or(b'I'), clock::now());
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
            b'G' => self.inner.copy_begins(),
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
                self.inner.sent(clock::now());
            }
            b'P' => {
                let (name, rest) = cstr(kept);
                let effect = read(cstr(rest).0);
                self.inner.remember(name, effect);
                self.inner.sending(Effect::PREPARED);
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
            b'S' => self.inner.sent(clock::now()),
            b'F' => {
                self.inner.sending(Effect::UNKNOWN);
                self.inner.sent(clock::now());
            }
            b'E' | b'D' | b'H' => self.inner.sending(Effect::default()),
            b'c' | b'f' => self.inner.copy_ends(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ChannelBinding;
    use crate::error::{Sent, TxStatus};

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut m = vec![tag];
        m.extend(u32::try_from(body.len() + 4).expect("short").to_be_bytes());
        m.extend(body);
        m
    }

    /// A session that has logged in, and both directions of its bytes.
    struct Wire(Tap, Arc<TapState>);

    impl Wire {
        fn new() -> Self {
            let rules = Rules {
                require_auth: None,
                channel_binding: ChannelBinding::Prefer,
                private: true,
                can_bind: false,
            };
            let (tap, state) = Tap::new(Box::new(tokio::io::duplex(1).0), rules);
            let mut this = Self(tap, state);
            this.0.accepted(&[0, 0, 0, 8, 0, 3, 0, 0]);
            this.server(b'R', &[0; 4]);
            this.server(b'Z', b"I");
            this
        }

        fn server(&mut self, tag: u8, body: &[u8]) {
            self.0.received(&message(tag, body)).expect("the tap refuses nothing");
        }

        fn client(&mut self, tag: u8, body: &[u8]) {
            self.0.accepted(&message(tag, body));
        }

        fn query(&mut self, text: &str) {
            self.client(b'Q', format!("{text}\0").as_bytes());
        }

        fn done(&mut self, tag: &str, status: u8) {
            self.server(b'C', format!("{tag}\0").as_bytes());
            self.server(b'Z', &[status]);
            self.0.state.answer_read(false);
        }

        /// A query and its whole answer.
        fn ran(&mut self, text: &str, status: u8) {
            self.query(text);
            self.done("X", status);
        }
    }

    #[test]
    fn a_statement_dropped_behind_a_commit_does_not_hide_that_it_was_answered_rollback() {
        let mut w = Wire::new();
        w.ran("BEGIN", b'T');
        w.ran("INSERT", b'E');
        w.query("COMMIT");
        w.done("ROLLBACK", b'I');
        // tokio-postgres closes a statement when its last handle goes, whatever the session does.
        w.client(b'C', b"Ss1\0");
        w.client(b'S', b"");
        assert_eq!(w.1.tag(), "ROLLBACK");
        w.server(b'3', b"");
        w.server(b'Z', b"I");
        assert_eq!(w.1.tag(), "ROLLBACK");
    }

    #[test]
    fn a_statement_dropped_behind_a_commit_does_not_hide_that_it_is_local_alone() {
        let mut w = Wire::new();
        w.ran("BEGIN", b'T');
        w.query("COMMIT");
        w.server(b'N', b"SWARNING\0VWARNING\0C01000\0Mlocally\0RSyncRepWaitForLSN\0\0");
        w.done("COMMIT", b'I');
        w.client(b'C', b"Ss1\0");
        w.client(b'S', b"");
        assert!(w.1.local_commit_only());
        w.server(b'Z', b"I");
        w.ran("BEGIN", b'T');
        w.query("COMMIT");
        assert!(!w.1.local_commit_only(), "the next commit is another one");
    }

    #[test]
    fn what_follows_a_rollback_is_no_part_of_the_block_any_more() {
        let mut w = Wire::new();
        w.ran("BEGIN", b'T');
        w.query("ROLLBACK");
        assert!(w.1.harmless() && !w.1.may_commit(), "the rollback alone does nothing");
        w.query("INSERT INTO t VALUES (1)");
        assert!(!w.1.harmless() && w.1.may_commit(), "it runs outside the block");
        let mut w = Wire::new();
        w.ran("BEGIN", b'T');
        w.query("ABORT; INSERT INTO t VALUES (1)");
        assert!(!w.1.harmless() && w.1.may_commit());
        let mut w = Wire::new();
        w.ran("BEGIN", b'T');
        w.query("ROLLBACK TO SAVEPOINT s; INSERT INTO t VALUES (1)");
        w.query("ROLLBACK WORK TO s");
        w.query("INSERT INTO t VALUES (1)");
        assert!(w.1.harmless() && !w.1.may_commit(), "the block goes on behind a savepoint");
    }

    #[test]
    fn a_block_that_could_write_before_it_was_made_read_only_may_commit_that() {
        for [begin, then] in [
            ["BEGIN", "INSERT INTO t VALUES (1); SET TRANSACTION READ ONLY"],
            ["BEGIN", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"],
            ["BEGIN", "SELECT * FROM read, ONLY t"],
            ["INSERT INTO t VALUES (1); BEGIN READ ONLY", "SELECT 1"],
            ["BEGIN; INSERT INTO t VALUES (1); SET TRANSACTION READ ONLY", "SELECT 1"],
            ["BEGIN READ ONLY", "COMMIT; BEGIN"],
            ["BEGIN READ ONLY", "ROLLBACK; BEGIN; INSERT INTO t VALUES (1)"],
            ["BEGIN READ ONLY", "SET transaction_read_only = off; INSERT INTO t VALUES (1)"],
        ] {
            let mut w = Wire::new();
            w.ran(begin, b'T');
            w.ran(then, b'T');
            w.query("COMMIT");
            assert!(!w.1.only_reads() && !w.1.harmless(), "{begin}; {then}");
        }
        let mut w = Wire::new();
        w.ran("BEGIN READ ONLY", b'T');
        w.query("SET TRANSACTION READ WRITE; INSERT INTO t VALUES (1); COMMIT");
        assert!(!w.1.only_reads() && !w.1.harmless(), "it is made writable by what is out");
        let mut w = Wire::new();
        w.ran("START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE", b'T');
        w.query("COMMIT");
        assert!(w.1.only_reads() && w.1.harmless());
    }

    #[test]
    fn a_copy_into_a_table_leaves_no_request_behind() {
        let mut w = Wire::new();
        for data_before_answer in [false, true] {
            // Bind, Execute, Sync; a server that copies ignores the Sync (manual, "COPY Operations").
            w.client(b'B', b"\0s1\0\0\0\0\0\0\0");
            w.client(b'E', b"\0\0\0\0\0");
            w.client(b'S', b"");
            let mut copying = || w.server(b'G', b"\0\0\0");
            if !data_before_answer {
                copying();
            }
            w.client(b'd', b"1\n");
            w.client(if data_before_answer { b'f' } else { b'c' }, b"");
            w.client(b'S', b"");
            if data_before_answer {
                w.server(b'G', b"\0\0\0");
            }
            assert!(w.1.busy() && w.1.sent() == Sent::Complete);
            w.done("COPY 1", b'I');
            assert!(!w.1.busy() && w.1.waiting().is_none(), "an idle session passes for a blocked call");
        }
    }

    #[test]
    fn an_answer_that_the_caller_has_not_got_does_not_make_its_request_undone() {
        let mut w = Wire::new();
        w.query("INSERT INTO t VALUES (1) RETURNING *");
        w.server(b'C', b"INSERT 0 1\0");
        w.server(b'Z', b"I");
        assert!(w.1.busy() && w.1.sent() == Sent::Complete && !w.1.harmless());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut room = [0; 8];
        let mut room = ReadBuf::new(&mut room);
        assert!(Pin::new(&mut w.0).poll_read(&mut cx, &mut room).is_ready(), "the peer is gone");
        assert!(!w.1.busy() && w.1.sent() == Sent::None);
    }

    #[test]
    fn a_commit_that_was_answered_with_an_error_is_a_commit_behind_its_answer_too() {
        let mut w = Wire::new();
        w.ran("BEGIN", b'T');
        w.query("COMMIT");
        w.server(b'E', b"SERROR\0VERROR\0C08006\0Mthe server behind is gone\0\0");
        assert!(w.1.answers_commit());
        w.server(b'Z', b"I");
        assert!(w.1.answers_commit());
        w.ran("INSERT INTO t VALUES ('\\')", b'I');
        assert!(!w.1.answers_commit());
    }

    #[test]
    fn a_notice_with_a_dying_code_is_no_last_word_once_the_session_goes_on() {
        let mut w = Wire::new();
        w.query("DO $$ BEGIN RAISE WARNING USING ERRCODE = '57P01'; END $$");
        w.server(b'N', b"SWARNING\0VWARNING\0C57P01\0Mmine\0\0");
        assert!(w.1.fatal().is_some(), "it could be an immediate shutdown");
        w.done("DO", b'I');
        assert_eq!((w.1.fatal(), w.1.status()), (None, TxStatus::Idle));
    }
}
