//! The rules that a server must keep until ReadyForQuery: which authentication it may ask for, and how much it may
//! send (PostgreSQL manual, "Message Flow"; libpq `fe-auth.c`, `check_expected_areq`).

use crate::config::{AuthMethod, ChannelBinding};
use crate::failure::Failure;

/// Largest frame before ReadyForQuery. libpq takes longer ones for garbage (`fe-connect.c`, MAX_ERRLEN).
pub(super) const FRAME: usize = 30_000;
/// All that a server may send before ReadyForQuery.
pub(super) const TOTAL: usize = 256 * 1_024;
/// Most rounds of PBKDF2 that we compute for a server. PostgreSQL's default is 4,096; two million take about a second,
/// and nobody asks for more in earnest.
const SCRAM_ROUNDS: u32 = 2_000_000;

/// What is permitted at this login.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) require_auth: Option<Vec<AuthMethod>>,
    pub(crate) channel_binding: ChannelBinding,
    /// The stream is TLS.
    pub(crate) encrypted: bool,
    /// The stream is TLS, or never leaves the machine.
    pub(crate) private: bool,
    /// There is something to bind to.
    pub(crate) can_bind: bool,
}

/// The exchange so far.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    used: Option<AuthMethod>,
    bound: bool,
    done: bool,
}

impl Exchange {
    pub(super) fn authenticated(&self) -> bool {
        self.done
    }

    /// An Authentication message came.
    pub(super) fn request(&mut self, body: &[u8], rules: &Rules) -> Result<(), Failure> {
        let Some((kind, rest)) = body.split_first_chunk::<4>() else {
            return Err(Failure::NotPostgres("an authentication message without a kind".into()));
        };
        match u32::from_be_bytes(*kind) {
            0 => {
                let used = self.used.unwrap_or(AuthMethod::None);
                permitted(used, rules)?;
                if rules.channel_binding == ChannelBinding::Require && !self.bound {
                    return Err(binding("the server let us in without it"));
                }
                self.done = true;
                Ok(())
            }
            3 => {
                permitted(AuthMethod::Password, rules)?;
                if !rules.private {
                    return Err(Failure::AuthMethod(
                        "the server asks for the password in clear text over a connection without TLS, which is never \
                         sent: use TLS (sslmode=require), or SCRAM on the server"
                            .into(),
                    ));
                }
                self.begin(AuthMethod::Password, rules)
            }
            5 => {
                permitted(AuthMethod::Md5, rules)?;
                warn_md5();
                self.begin(AuthMethod::Md5, rules)
            }
            10 => {
                permitted(AuthMethod::ScramSha256, rules)?;
                let offers = |m: &str| rest.split(|b| *b == 0).any(|n| n == m.as_bytes());
                let plus = offers("SCRAM-SHA-256-PLUS");
                if !plus && !offers("SCRAM-SHA-256") {
                    return Err(Failure::AuthMethod(
                        "the server offers no SASL mechanism that pgfollow knows (SCRAM-SHA-256, SCRAM-SHA-256-PLUS)"
                            .into(),
                    ));
                }
                if rules.channel_binding == ChannelBinding::Require && !(plus && rules.can_bind) {
                    return Err(binding("the server doesn't offer SCRAM-SHA-256-PLUS over TLS"));
                }
                self.bound = plus && rules.can_bind && rules.channel_binding != ChannelBinding::Disable;
                self.used = Some(AuthMethod::ScramSha256);
                Ok(())
            }
            11 if self.used == Some(AuthMethod::ScramSha256) => rounds(rest),
            12 if self.used == Some(AuthMethod::ScramSha256) => Ok(()),
            n => Err(Failure::AuthMethod(format!(
                "the server asks for authentication method {n}, which pgfollow doesn't support (2 Kerberos, 6 SCM, \
                 7 GSSAPI, 9 SSPI are libpq's): configure scram-sha-256 in pg_hba.conf"
            ))),
        }
    }

    fn begin(&mut self, method: AuthMethod, rules: &Rules) -> Result<(), Failure> {
        if rules.channel_binding == ChannelBinding::Require {
            return Err(binding("the server asks for another method than SCRAM"));
        }
        self.used = Some(method);
        Ok(())
    }
}

fn binding(what: &str) -> Failure {
    Failure::AuthMethod(format!("channel_binding=require is not met: {what}"))
}

fn permitted(method: AuthMethod, rules: &Rules) -> Result<(), Failure> {
    let Some(list) = rules.require_auth.as_ref().filter(|l| !l.contains(&method)) else { return Ok(()) };
    let name = |m: &AuthMethod| match m {
        AuthMethod::Password => "password",
        AuthMethod::Md5 => "md5",
        AuthMethod::ScramSha256 => "scram-sha-256",
        AuthMethod::None => "none",
    };
    let wanted: Vec<_> = list.iter().map(name).collect();
    Err(Failure::AuthMethod(format!(
        "the server uses authentication {:?}, but require_auth permits only {}",
        name(&method),
        wanted.join(", ")
    )))
}

fn rounds(server_first: &[u8]) -> Result<(), Failure> {
    let text = String::from_utf8_lossy(server_first);
    let i = text.split(',').find_map(|f| f.strip_prefix("i="));
    match i.map(str::parse::<u32>) {
        Some(Ok(n)) if n <= SCRAM_ROUNDS => Ok(()),
        _ => Err(Failure::AuthMethod(format!(
            "the server asks for more than {SCRAM_ROUNDS} SCRAM rounds: lower scram_iterations there"
        ))),
    }
}

fn warn_md5() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::warn!(target: "pgfollow", "a server uses md5 authentication, which PostgreSQL is dropping: use scram-sha-256");
    });
}
