//! Scripts that come up again and again: the hosts of `tests/vectors/walk` among them.

use std::time::Duration;

use super::message::Message;
use super::script::{Answers, Login, Role, Script, Step};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(30);

/// What a server of this version and role sends from AuthenticationOk (or from behind it, after a real login) to
/// ReadyForQuery. Versions before 14 don't tell their role.
pub fn welcome(version: &str, role: Role, authenticated: bool) -> Vec<Message> {
    let on = |b: bool| if b { "on" } else { "off" };
    let major: u32 = version.split('.').next().and_then(|v| v.parse().ok()).unwrap_or(0);
    let mut messages = Vec::new();
    if !authenticated {
        messages.push(Message::Auth(0));
    }
    messages.push(Message::param("server_version", version));
    messages.push(Message::param("client_encoding", "UTF8"));
    if major >= 14 {
        messages.push(Message::param("in_hot_standby", on(role == Role::Standby)));
        messages.push(Message::param("default_transaction_read_only", on(role == Role::ReadOnlyPrimary)));
    }
    messages.push(Message::Key { pid: 4242, secret: 99 });
    messages.push(Message::Ready(b'I'));
    messages
}

/// A server that trusts everybody, in clear text.
pub fn server(version: &str, role: Role) -> Script {
    Script(vec![Step::Startup, Step::Send(welcome(version, role, false)), Step::Serve(Answers::role(role))])
}

/// The same behind TLS.
pub fn tls_server(version: &str, role: Role) -> Script {
    let mut script = behind_tls();
    script.0.extend(server(version, role).0);
    script
}

/// A writable primary of PostgreSQL 15 with a real login, in clear text.
pub fn login_server(login: Login) -> Script {
    Script(vec![
        Step::Startup,
        Step::Login(login),
        Step::Send(welcome("15.18", Role::Primary, true)),
        Step::Serve(Answers::role(Role::Primary)),
    ])
}

/// The steps from the SSLRequest to the end of the TLS handshake.
pub fn behind_tls() -> Script {
    Script(vec![Step::SslReply(b'S'), Step::TlsHandshake])
}

/// Accepts and stays silent.
pub fn mute() -> Script {
    Script(vec![Step::Silence(LONG)])
}

/// Refuses with this SQLSTATE, before authentication or behind it.
pub fn fatal(code: &str, after_auth: bool) -> Script {
    let mut messages = Vec::new();
    if after_auth {
        messages.push(Message::Auth(0));
    }
    messages.push(Message::fatal(code, &format!("refused with {code}")));
    Script(vec![Step::Startup, Step::Send(messages), Step::Fin])
}

/// Closes, at once or after the startup packet.
pub fn end_of_file(after_startup: bool) -> Script {
    Script(if after_startup { vec![Step::Startup, Step::Fin] } else { vec![Step::Fin] })
}

/// Answers whatever comes first as a web server would.
pub fn web_server() -> Script {
    let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    Script(vec![Step::Read, Step::Send(vec![Message::Raw(answer[..].into())]), Step::Fin])
}

/// Has no TLS, and records what comes in spite of that.
pub fn no_tls() -> Script {
    Script(vec![Step::SslReply(b'N'), Step::Record])
}

/// Answers the SSLRequest with an error.
pub fn error_to_ssl_request() -> Script {
    let (code, text) = ("57P03".to_owned(), "not yet".to_owned());
    Script(vec![Step::SslReplyError { code, text }, Step::Fin])
}
