//! A script: the steps that a server takes with one accepted connection, read from the JSON of the cases.

use std::time::Duration;

use serde_json::Value;

use super::message::Message;

/// A script that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScriptError(pub String);

/// How a login goes (step `login`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The method that the server asks for.
    pub method: Method,
    /// The right password.
    pub password: String,
    /// SCRAM's iteration count. With 2^31 no client should begin to count.
    pub rounds: u32,
    /// Where the server falls silent; the script then goes on with its next step.
    pub hold: Option<Hold>,
}

/// An authentication method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Cleartext.
    Password,
    /// MD5.
    Md5,
    /// SCRAM-SHA-256 alone.
    Scram,
    /// SCRAM-SHA-256 and, over TLS, SCRAM-SHA-256-PLUS (tls-server-end-point).
    ScramPlus,
}

/// A message of the client after which the server doesn't answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The password, or the first SASL message.
    First,
    /// The last SASL message.
    Final,
}

/// What `serve` answers to texts, beside its defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Text of a query → messages.
    pub given: Vec<(String, Vec<Message>)>,
    /// The messages for the second `SELECT 1`.
    pub second: Option<Vec<Message>>,
    /// The role to report whichever way it is asked (servers before 14 don't tell it by themselves).
    pub role: Option<Role>,
}

/// A role that a server plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Not in recovery, writable.
    Primary,
    /// Not in recovery, `default_transaction_read_only=on`.
    ReadOnlyPrimary,
    /// In recovery.
    Standby,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// `["startup"]`: reads up to the StartupMessage; an SSLRequest or GSSENCRequest is answered with N.
    Startup,
    /// `["send", [message, …]]`.
    Send(Vec<Message>),
    /// `["repeat", n, [message, …]]`: the messages n times over.
    Repeat(u32, Vec<Message>),
    /// `["drip", [message, …], seconds]`: byte by byte, with that pause between two.
    Drip(Vec<Message>, Duration),
    /// `["sleep", seconds]`: answers only what is ours.
    Sleep(Duration),
    /// `["silence", seconds]`: the socket stays open, what comes is recorded, nothing is sent.
    Silence(Duration),
    /// `["read"]`: one message, unanswered.
    Read,
    /// `["serve", {text: messages, …}]`: answers until the client leaves.
    Serve(Answers),
    /// `["serve-until", text, answers]`: like `serve`, but the script goes on when a query has this text, unanswered.
    ServeUntil(String, Answers),
    /// `["record"]`: records until the client leaves, without a byte of answer.
    Record,
    /// `["fin"]`: closes the server's direction, then records what still comes.
    Fin,
    /// `["rst"]`: resets the connection.
    Rst,
    /// `["close"]`: closes the socket at once.
    Close,
    /// `["ssl-reply", "S" | "N" | …]`: reads the SSLRequest and answers with that byte.
    SslReply(u8),
    /// `["ssl-reply-error", code, text]`: answers the SSLRequest with an ErrorResponse.
    SslReplyError {
        /** SQLSTATE. */
        code: String,
        /** Text. */
        text: String,
    },
    /// `["ssl-reply-then-stray", "S", …]`: the byte, and behind it in the same packet AuthenticationOk and an error
    /// in clear text.
    SslReplyThenStray(u8),
    /// `["tls-handshake"]`: the TLS handshake, as the server.
    TlsHandshake,
    /// `["on-sync-after", [kind, …], [message, …]]`: serves; at the first Sync since whose predecessor all these
    /// kinds of messages came, sends the messages and goes on.
    OnSyncAfter {
        /** Kinds. */
        kinds: Vec<String>,
        /** Messages. */
        messages: Vec<Message>,
    },
    /// `["login", {"method", "password", "rounds", "hold"}]`: a real login up to AuthenticationOk.
    Login(Login),
}

/// The steps for one connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script(pub Vec<Step>);

impl Script {
    /// From the JSON form: an array of steps.
    pub fn from_json(v: &Value) -> Result<Self, ScriptError> {
        let steps = v.as_array().ok_or_else(|| ScriptError(format!("not a script: {v}")))?;
        steps.iter().map(Step::from_json).collect::<Result<_, _>>().map(Self)
    }

    /// From JSON text.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let v = serde_json::from_str(text).map_err(|e| ScriptError(e.to_string()))?;
        Self::from_json(&v)
    }
}

impl Step {
    /// From its JSON form: an array whose first element names the step.
    pub fn from_json(v: &Value) -> Result<Self, ScriptError> {
        let bad = || ScriptError(format!("not a step: {v}"));
        let items = v.as_array().ok_or_else(bad)?;
        let name = items.first().and_then(Value::as_str).ok_or_else(bad)?;
        let text = |i: usize| items.get(i).and_then(Value::as_str).ok_or_else(bad);
        let byte = |i: usize| text(i).and_then(|t| t.bytes().next().ok_or_else(bad));
        let seconds = |i: usize| {
            let s = items.get(i).and_then(Value::as_f64).ok_or_else(bad)?;
            Duration::try_from_secs_f64(s).map_err(|_| bad())
        };
        let messages = |i: usize| Message::list_from_json(items.get(i).ok_or_else(bad)?);
        Ok(match name {
            "startup" => Self::Startup,
            "send" => Self::Send(messages(1)?),
            "repeat" => {
                let n = items.get(1).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
                Self::Repeat(n.ok_or_else(bad)?, messages(2)?)
            }
            "drip" => Self::Drip(messages(1)?, seconds(2)?),
            "sleep" => Self::Sleep(seconds(1)?),
            "silence" => Self::Silence(seconds(1)?),
            "read" => Self::Read,
            "serve" => Self::Serve(Answers::from_json(items.get(1))?),
            "serve-until" => Self::ServeUntil(text(1)?.to_owned(), Answers::from_json(items.get(2))?),
            "record" => Self::Record,
            "fin" => Self::Fin,
            "rst" => Self::Rst,
            "close" => Self::Close,
            "ssl-reply" => Self::SslReply(byte(1)?),
            "ssl-reply-error" => Self::SslReplyError { code: text(1)?.to_owned(), text: text(2)?.to_owned() },
            "ssl-reply-then-stray" => Self::SslReplyThenStray(byte(1)?),
            "tls-handshake" => Self::TlsHandshake,
            "on-sync-after" => {
                let kinds = items.get(1).and_then(Value::as_array).ok_or_else(bad)?;
                let kinds = kinds.iter().map(|k| k.as_str().map(str::to_owned).ok_or_else(bad));
                Self::OnSyncAfter { kinds: kinds.collect::<Result<_, _>>()?, messages: messages(2)? }
            }
            "login" => Self::Login(Login::from_json(items.get(1).ok_or_else(bad)?)?),
            _ => return Err(bad()),
        })
    }
}

impl Login {
    /// A login by this method with this password.
    pub fn new(method: Method, password: &str) -> Self {
        Self { method, password: password.to_owned(), rounds: 4096, hold: None }
    }

    fn from_json(v: &Value) -> Result<Self, ScriptError> {
        let bad = || ScriptError(format!("not a login: {v}"));
        let method = match v["method"].as_str() {
            Some("password") => Method::Password,
            Some("md5") => Method::Md5,
            Some("scram-sha-256") => Method::Scram,
            Some("scram-sha-256-plus") => Method::ScramPlus,
            _ => return Err(bad()),
        };
        let mut login = Self::new(method, v["password"].as_str().ok_or_else(bad)?);
        if let Some(n) = v["rounds"].as_u64() {
            login.rounds = u32::try_from(n).map_err(|_| bad())?;
        }
        login.hold = match v["hold"].as_str() {
            None => None,
            Some("first") => Some(Hold::First),
            Some("final") => Some(Hold::Final),
            Some(_) => return Err(bad()),
        };
        Ok(login)
    }
}

impl Answers {
    /// Reports this role when asked.
    pub fn role(role: Role) -> Self {
        Self { role: Some(role), ..Self::default() }
    }

    fn from_json(v: Option<&Value>) -> Result<Self, ScriptError> {
        let mut answers = Self::default();
        let Some(v) = v else { return Ok(answers) };
        let map = v.as_object().ok_or_else(|| ScriptError(format!("not a map of answers: {v}")))?;
        for (text, answer) in map {
            match text.as_str() {
                "*role-query*" => {
                    answers.role = Some(match answer.as_str() {
                        Some("primary") => Role::Primary,
                        Some("read-only-primary") => Role::ReadOnlyPrimary,
                        Some("standby") => Role::Standby,
                        _ => return Err(ScriptError(format!("not a role: {answer}"))),
                    });
                }
                "*second*" => answers.second = Some(Message::list_from_json(answer)?),
                _ => answers.given.push((text.clone(), Message::list_from_json(answer)?)),
            }
        }
        Ok(answers)
    }
}
