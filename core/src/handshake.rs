//! Startup and login, through tokio-postgres's `connect_raw` over our own stream.
//!
//! Decides nothing: the tap enforces the rules, [`crate::decide::walk`] says what a failure means. The caller bounds the
//! time. TLS has been done before ([`crate::tls`]), so tokio-postgres is told "TLS at once" and gets a stream that only
//! hands over the channel binding value.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{
    ChannelBinding as PgBinding, SslMode as PgSslMode, SslNegotiation as PgNegotiation,
};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{Client, Connection};

use crate::config::{AuthMethod, ChannelBinding as Binding, Secret};
use crate::error::{SqlState, Stage};
use crate::failure::{Failed, Failure};
use crate::tap::login::Rules;
use crate::tap::report::clean;
use crate::tap::{Tap, TapState};
use crate::tls::Secured;

/// What a login needs.
pub(crate) struct LoginParams<'a> {
    pub(crate) user: &'a str,
    pub(crate) dbname: &'a str,
    pub(crate) password: Option<&'a Secret>,
    pub(crate) options: Option<&'a str>,
    pub(crate) application_name: &'a str,
    pub(crate) require_auth: Option<&'a [AuthMethod]>,
    pub(crate) channel_binding: Binding,
    /// The address is a Unix socket: what is said there never leaves the machine.
    pub(crate) unix: bool,
}

/// The stream as tokio-postgres sees it.
pub(crate) type LoginStream = Tap;
/// The same, after the TLS that was done before.
pub(crate) struct LoginTls {
    tap: Tap,
    binding: Option<Vec<u8>>,
}

/// A session that has logged in; its connection must be driven by the caller.
pub(crate) struct LoggedIn {
    pub(crate) client: Client,
    pub(crate) connection: Connection<LoginStream, LoginTls>,
    pub(crate) tap: Arc<TapState>,
}

/// Logs in.
pub(crate) async fn login(secured: Secured, params: &LoginParams<'_>) -> Result<LoggedIn, Failed> {
    let rules = Rules {
        require_auth: params.require_auth.map(<[_]>::to_vec),
        channel_binding: params.channel_binding,
        encrypted: secured.encrypted,
        private: secured.encrypted || params.unix,
        can_bind: secured.channel_binding.is_some(),
    };
    let (tap, state) = Tap::new(secured.io, rules);
    let mut config = tokio_postgres::Config::new();
    config
        .user(params.user)
        .dbname(params.dbname)
        .application_name(params.application_name)
        .ssl_mode(PgSslMode::Require)
        .ssl_negotiation(PgNegotiation::Direct)
        .channel_binding(match params.channel_binding {
            Binding::Disable => PgBinding::Disable,
            Binding::Prefer => PgBinding::Prefer,
            Binding::Require => PgBinding::Require,
        });
    if let Some(p) = params.password {
        config.password(p.reveal());
    }
    if let Some(o) = params.options {
        config.options(o);
    }
    match config.connect_raw(tap, Done { binding: secured.channel_binding }).await {
        Ok((client, connection)) => Ok(LoggedIn { client, connection, tap: state }),
        Err(e) => Err(Failed::new(Stage::Authenticate, failure(&e, &state, params))),
    }
}

fn failure(e: &tokio_postgres::Error, tap: &TapState, params: &LoginParams<'_>) -> Failure {
    // What the tap saw is exact; tokio-postgres's own error is the rest.
    if let Some(f) = tap.refusal().or_else(|| tap.login_error()) {
        return f;
    }
    if let Some(db) = e.as_db_error() {
        return Failure::Server {
            sqlstate: SqlState::new(db.code().code()).unwrap_or_default(),
            message: clean(db.message()),
            after_auth: false,
        };
    }
    let mut source: &dyn std::error::Error = e;
    while let Some(s) = source.source() {
        source = s;
    }
    let text = clean(&source.to_string());
    if let Some(io) = source.downcast_ref::<io::Error>() {
        return match io.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Failure::NotPostgres(text),
            _ => Failure::Lost(text),
        };
    }
    if e.is_closed() || text.contains("unexpected EOF") || text.contains("closed") {
        return Failure::Lost("the server closed the connection".to_owned());
    }
    if params.password.is_none() && text.contains("password") {
        return Failure::NoPassword;
    }
    // What is left are refusals of the exchange itself: a wrong SCRAM proof of the server's, a broken message.
    Failure::AuthMethod(format!("the login failed: {text}"))
}

/// A `TlsConnect` for TLS that has been done already.
struct Done {
    binding: Option<Vec<u8>>,
}

impl TlsConnect<Tap> for Done {
    type Stream = LoginTls;
    type Error = io::Error;
    type Future = Ready<io::Result<LoginTls>>;

    fn connect(self, tap: Tap) -> Self::Future {
        ready(Ok(LoginTls { tap, binding: self.binding }))
    }
}

impl TlsStream for LoginTls {
    fn channel_binding(&self) -> ChannelBinding {
        self.binding.clone().map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl AsyncRead for LoginTls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tap).poll_read(cx, buf)
    }
}

impl AsyncWrite for LoginTls {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tap).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tap).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tap).poll_shutdown(cx)
    }
}
