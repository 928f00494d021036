//! The rules that a server must keep until ReadyForQuery: which authentication it may ask for, and how much it may
//! send (PostgreSQL manual, "Message Flow"; libpq `fe-auth.c`, `check_expected_areq`).

use crate::config::{AuthMethod, ChannelBinding};
use crate::failure::Failure;

/// Largest frame before ReadyForQuery. libpq takes longer ones for garbage (`fe-connect.c`, MAX_ERRLEN).
pub(super) const FRAME: usize = 30_000;
/// All that a server may send before ReadyForQuery.
pub(super) const TOTAL: usize = 256 * 1_024;
/// Most SCRAM rounds that we compute for a server; each costs us time before we know it. PostgreSQL's default is 4,096;
/// postgres-protocol takes no more than this, and wouldn't say why.
const SCRAM_ROUNDS: u32 = 100_000;

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
    /// Of SCRAM's server messages the last one that came: 11 the challenge, 12 the proof.
    scram: u32,
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
        let kind = u32::from_be_bytes(*kind);
        let scram = self.used == Some(AuthMethod::ScramSha256);
        match kind {
            3 | 5 | 10 if self.used.is_some() => Err(out_of_order()),
            11 if !scram || self.scram != 0 => Err(out_of_order()),
            12 if self.scram != 11 => Err(out_of_order()),
            0 if scram && self.scram != 12 => Err(Failure::AuthMethod(
                "the server let us in without proving that it knows the password".into(),
            )),
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
                if !self.bound && !offers("SCRAM-SHA-256") {
                    return Err(Failure::AuthMethod(
                        "the server offers SCRAM with channel binding alone, which isn't possible here"
                            .into(),
                    ));
                }
                self.used = Some(AuthMethod::ScramSha256);
                Ok(())
            }
            11 => {
                self.scram = kind;
                rounds(rest)
            }
            12 => {
                self.scram = kind;
                Ok(())
            }
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

fn out_of_order() -> Failure {
    Failure::AuthMethod("the server's login messages come out of order".into())
}

fn binding(what: &str) -> Failure {
    Failure::AuthMethod(format!(
        "channel_binding=require is not met: {what}: use TLS (sslmode=require) and SCRAM on the server, or \
         channel_binding=prefer"
    ))
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
        "the server uses authentication {:?}, but require_auth permits only {}: permit it too, or change the server's \
         pg_hba.conf",
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::tap) fn rules() -> Rules {
        Rules {
            require_auth: None,
            channel_binding: ChannelBinding::Prefer,
            encrypted: false,
            private: false,
            can_bind: false,
        }
    }

    fn tls() -> Rules {
        Rules { encrypted: true, private: true, can_bind: true, ..rules() }
    }

    const PLAIN: &str = "SCRAM-SHA-256\0\0";
    const PLUS: &str = "SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    const FIRST: &str = "r=x,s=eA==,i=4096";

    /// The first refusal of these requests, in order, or `Ok` if the server let us in.
    fn login(rules: &Rules, requests: &[(u32, &str)]) -> Result<(), Failure> {
        let mut e = Exchange::default();
        for (kind, rest) in requests {
            assert!(!e.authenticated());
            e.request(&[&kind.to_be_bytes(), rest.as_bytes()].concat(), rules)?;
        }
        assert!(e.authenticated());
        Ok(())
    }

    fn refused(rules: &Rules, requests: &[(u32, &str)], words: &str) {
        match login(rules, requests) {
            Err(Failure::AuthMethod(text)) => assert!(text.contains(words), "{text}"),
            other => panic!("{requests:?}: {other:?}"),
        }
    }

    fn scram(offer: &str) -> [(u32, &str); 4] {
        [(10, offer), (11, FIRST), (12, "v=x"), (0, "")]
    }

    #[test]
    fn the_usual_logins_pass() {
        login(&rules(), &[(0, "")]).unwrap();
        login(&rules(), &[(5, "salt"), (0, "")]).unwrap();
        login(&rules(), &scram(PLAIN)).unwrap();
        login(&tls(), &[(3, ""), (0, "")]).unwrap();
        login(&tls(), &scram(PLUS)).unwrap();
        login(&Rules { private: true, ..rules() }, &[(3, ""), (0, "")]).unwrap();
    }

    #[test]
    fn a_password_is_never_sent_in_clear_text_over_tcp() {
        refused(&rules(), &[(3, "")], "clear text");
    }

    #[test]
    fn require_auth_means_it_for_every_method() {
        use AuthMethod::{Md5, None as Nothing, Password, ScramSha256};
        for (method, request) in
            [(Nothing, (0, "")), (Password, (3, "")), (Md5, (5, "salt")), (ScramSha256, (10, PLUS))]
        {
            let others = [Nothing, Password, Md5, ScramSha256].into_iter().filter(|m| *m != method).collect();
            refused(&Rules { require_auth: Some(others), ..tls() }, &[request], "require_auth permits only");
            let only = Rules { require_auth: Some(vec![method]), ..tls() };
            Exchange::default()
                .request(&[&request.0.to_be_bytes(), request.1.as_bytes()].concat(), &only)
                .unwrap();
        }
        let scram_only = Rules { require_auth: Some(vec![ScramSha256]), ..rules() };
        login(&scram_only, &scram(PLAIN)).unwrap();
        refused(&scram_only, &[(0, "")], "none");
    }

    #[test]
    fn channel_binding_require_is_met_by_scram_plus_alone() {
        let require = Rules { channel_binding: ChannelBinding::Require, ..tls() };
        login(&require, &scram(PLUS)).unwrap();
        for not in [&[(0, "")][..], &[(3, "")], &[(5, "salt")], &[(10, PLAIN)]] {
            refused(&require, not, "channel_binding=require is not met");
        }
        refused(&Rules { can_bind: false, ..require }, &[(10, PLUS)], "channel_binding=require is not met");
    }

    #[test]
    fn scram_with_channel_binding_alone_is_refused_where_it_cannot_be_had() {
        let alone = "SCRAM-SHA-256-PLUS\0\0";
        login(&tls(), &scram(alone)).unwrap();
        refused(&rules(), &[(10, alone)], "channel binding alone");
        let disable = Rules { channel_binding: ChannelBinding::Disable, ..tls() };
        refused(&disable, &[(10, alone)], "channel binding alone");
    }

    #[test]
    fn a_server_that_does_not_prove_itself_is_not_believed() {
        refused(&rules(), &[(10, PLAIN), (0, "")], "without proving");
        refused(&rules(), &[(10, PLAIN), (11, FIRST), (0, "")], "without proving");
    }

    #[test]
    fn requests_out_of_order_are_refused() {
        for requests in [
            &[(11, FIRST)][..],
            &[(12, "v=x")],
            &[(10, PLAIN), (12, "v=x")],
            &[(10, PLAIN), (10, PLAIN)],
            &[(10, PLAIN), (11, FIRST), (11, FIRST)],
            &[(10, PLAIN), (11, FIRST), (12, "v=x"), (12, "v=x")],
            &[(10, PLAIN), (11, FIRST), (12, "v=x"), (3, "")],
            &[(5, "salt"), (5, "salt")],
            &[(5, "salt"), (11, FIRST)],
        ] {
            refused(&tls(), requests, "out of order");
        }
    }

    #[test]
    fn methods_that_are_unknown_or_unsupported_are_refused() {
        for kind in [1, 2, 4, 6, 7, 8, 9, 13, u32::MAX] {
            refused(&tls(), &[(kind, "")], "doesn't support");
        }
        refused(&tls(), &[(10, "OAUTHBEARER\0\0")], "no SASL mechanism");
        assert!(matches!(Exchange::default().request(b"abc", &tls()), Err(Failure::NotPostgres(_))));
    }

    #[test]
    fn absurd_scram_rounds_are_refused_before_they_cost_anything() {
        for good in ["r=x,s=x,i=1", "r=x,s=x,i=100000"] {
            login(&rules(), &[(10, PLAIN), (11, good), (12, "v=x"), (0, "")]).unwrap();
        }
        for bad in ["r=x,s=x,i=100001", "r=x,s=x,i=99999999999999999999", "r=x,s=x,i=", "r=x,s=x", ""] {
            refused(&rules(), &[(10, PLAIN), (11, bad)], "rounds");
        }
    }
}
