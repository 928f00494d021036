//! The server's side of a login: cleartext, MD5 and SCRAM-SHA-256 (RFC 5802, RFC 7677; PostgreSQL manual, "SASL
//! Authentication"), the latter with channel binding by tls-server-end-point (RFC 5929).
//!
//! A state machine over the client's password messages; the connection carries out what it says.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use ring::{digest, hmac, pbkdf2};

use super::message::{MD5_SALT, Message, frame};
use super::record::take_text;
use super::script::{Hold, Login, Method};

const SALT: &[u8; 16] = b"pgfollow-lab-slt";
const PLAIN: &str = "SCRAM-SHA-256";
const PLUS: &str = "SCRAM-SHA-256-PLUS";

/// Above this count the proof is not computed: such a login is there to be refused by the client.
const ROUNDS_COMPUTED: u32 = 10_000_000;

/// What to do after a message of the client.
pub(super) enum Next {
    /// Send this and read the next password message.
    Continue(BytesMut),
    /// Send this: the login succeeded.
    Done(BytesMut),
    /// Say nothing; the script goes on.
    Held,
    /// Wrong password (or a broken exchange).
    Refused,
}

/// A login under way.
pub(super) struct Exchange<'a> {
    login: &'a Login,
    user: &'a str,
    /// The hash that tls-server-end-point binds to, where the connection has TLS.
    end_point: Option<&'a [u8]>,
    scram: Option<Scram>,
}

/// Between the server's first message and the client's last.
struct Scram {
    gs2_header: String,
    bound: bool,
    client_first_bare: String,
    server_first: String,
    nonce: String,
}

impl<'a> Exchange<'a> {
    /// A login of this user; returns the request to send.
    pub(super) fn begin(login: &'a Login, user: &'a str, end_point: Option<&'a [u8]>) -> (Self, Message) {
        let request = match login.method {
            Method::Password => Message::Auth(3),
            Method::Md5 => Message::Auth(5),
            Method::ScramPlus if end_point.is_some() => Message::Sasl(vec![PLUS.into(), PLAIN.into()]),
            Method::Scram | Method::ScramPlus => Message::Sasl(vec![PLAIN.into()]),
        };
        (Self { login, user, end_point, scram: None }, request)
    }

    /// A password message came.
    pub(super) fn step(&mut self, mut body: Bytes) -> Next {
        match (self.login.method, self.scram.take()) {
            (Method::Password | Method::Md5, _) => {
                if self.login.hold == Some(Hold::First) {
                    return Next::Held;
                }
                let right = match self.login.method {
                    Method::Md5 => {
                        let (user, password) = (self.user.as_bytes(), self.login.password.as_bytes());
                        postgres_protocol::authentication::md5_hash(user, password, MD5_SALT)
                    }
                    _ => self.login.password.clone(),
                };
                if take_text(&mut body).is_some_and(|given| given == right) {
                    done(BytesMut::new())
                } else {
                    Next::Refused
                }
            }
            (_, None) => self.first(body).unwrap_or(Next::Refused),
            (_, Some(scram)) => self.last(&scram, &body).unwrap_or(Next::Refused),
        }
    }

    fn first(&mut self, mut body: Bytes) -> Option<Next> {
        let mechanism = take_text(&mut body)?;
        let length = usize::try_from(body.try_get_i32().ok()?).ok()?;
        let message = std::str::from_utf8(body.get(..length)?).ok()?.to_owned();
        if self.login.hold == Some(Hold::First) {
            return Some(Next::Held);
        }
        let mut parts = message.splitn(3, ',');
        let (flag, authzid, bare) = (parts.next()?, parts.next()?, parts.next()?);
        let offered_plus = self.login.method == Method::ScramPlus && self.end_point.is_some();
        let bound = match (mechanism.as_str(), flag) {
            (PLUS, "p=tls-server-end-point") if offered_plus => true,
            // "y": the client could bind but saw no -PLUS. If we offered it, somebody took it out on the way.
            (PLAIN, "y") if !offered_plus => false,
            (PLAIN, "n") => false,
            _ => return None,
        };
        let client_nonce = bare.split(',').find_map(|a| a.strip_prefix("r="))?;
        let nonce = format!("{client_nonce}lab");
        let server_first = format!("r={nonce},s={},i={}", BASE64.encode(SALT), self.login.rounds);
        let mut out = BytesMut::new();
        frame(&mut out, b'R', |b| {
            b.put_i32(11);
            b.put_slice(server_first.as_bytes());
        });
        self.scram = Some(Scram {
            gs2_header: format!("{flag},{authzid},"),
            bound,
            client_first_bare: bare.to_owned(),
            server_first,
            nonce,
        });
        Some(Next::Continue(out))
    }

    fn last(&self, scram: &Scram, body: &[u8]) -> Option<Next> {
        if self.login.hold == Some(Hold::Final) {
            return Some(Next::Held);
        }
        let message = std::str::from_utf8(body).ok()?;
        let (without_proof, proof) = message.rsplit_once(",p=")?;
        let mut binding = scram.gs2_header.clone().into_bytes();
        if scram.bound {
            binding.extend_from_slice(self.end_point?);
        }
        let expected = format!("c={},r={}", BASE64.encode(binding), scram.nonce);
        if without_proof != expected || self.login.rounds > ROUNDS_COMPUTED {
            return None;
        }
        let mut salted = [0; digest::SHA256_OUTPUT_LEN];
        let rounds = NonZeroU32::new(self.login.rounds)?;
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, SALT, self.login.password.as_bytes(), &mut salted);
        let client_key = sign(&salted, b"Client Key");
        let stored_key = digest::digest(&digest::SHA256, client_key.as_ref());
        let Scram { client_first_bare, server_first, .. } = scram;
        let auth_message = format!("{client_first_bare},{server_first},{without_proof}");
        let signature = sign(stored_key.as_ref(), auth_message.as_bytes());
        let proof = BASE64.decode(proof).ok().filter(|p| p.len() == signature.as_ref().len())?;
        let claimed: Vec<u8> = proof.iter().zip(signature.as_ref()).map(|(p, s)| p ^ s).collect();
        if digest::digest(&digest::SHA256, &claimed).as_ref() != stored_key.as_ref() {
            return None;
        }
        let server_key = sign(&salted, b"Server Key");
        let verifier = BASE64.encode(sign(server_key.as_ref(), auth_message.as_bytes()));
        let mut out = BytesMut::new();
        frame(&mut out, b'R', |b| {
            b.put_i32(12);
            b.put_slice(format!("v={verifier}").as_bytes());
        });
        Some(done(out))
    }
}

fn done(mut out: BytesMut) -> Next {
    Message::Auth(0).encode(&mut out);
    Next::Done(out)
}

fn sign(key: &[u8], text: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text)
}
