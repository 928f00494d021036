//! What the name server answers: rules by name and kind of record, turned into messages.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, SOA};
use hickory_proto::rr::{Name, RData, Record};

/// CNAMEs followed within one answer: a loop ends here.
const CHAIN: usize = 8;
/// The SOA minimum of answers to names that the zone never had.
const MINIMUM: u32 = 60;

/// The kind of record that a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Questions for A.
    A,
    /// Questions for AAAA.
    Aaaa,
    /// Every question that has no rule of its own.
    Any,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Addresses (those of the kind asked for) with a time to live in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// An alias; what the zone knows of its target comes along, as from a recursive server.
    Alias(String, u32),
    /// The name doesn't exist; the SOA's minimum in seconds.
    NxDomain(u32),
    /// The name exists and has no such record.
    NoData,
    /// SERVFAIL.
    ServFail,
    /// REFUSED.
    Refused,
    /// Nothing.
    Silence,
}

/// A forged packet that is sent before the answer, by somebody who has not seen the question or not quite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// Another message id.
    WrongId,
    /// The right id, another question.
    WrongQuestion,
    /// All right, but from another port of the server's address.
    OtherPort,
}

/// A reply and how it is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    reply: Reply,
    delay: Duration,
    truncate: bool,
    forged: Vec<(Forgery, IpAddr)>,
}

impl From<Reply> for Rule {
    fn from(reply: Reply) -> Self {
        Self { reply, delay: Duration::ZERO, truncate: false, forged: Vec::new() }
    }
}

impl Rule {
    /// Addresses with a time to live in seconds.
    pub fn addresses(addresses: impl IntoIterator<Item = IpAddr>, ttl: u32) -> Self {
        Reply::Addresses(addresses.into_iter().collect(), ttl).into()
    }

    /// Sent that much later.
    #[must_use]
    pub fn delayed(mut self, by: Duration) -> Self {
        self.delay = by;
        self
    }

    /// Over UDP only the truncation bit comes; the answer has to be fetched over TCP.
    #[must_use]
    pub fn truncated(mut self) -> Self {
        self.truncate = true;
        self
    }

    /// A forged packet with that address comes first.
    #[must_use]
    pub fn forged(mut self, how: Forgery, address: IpAddr) -> Self {
        self.forged.push((how, address));
        self
    }
}

/// The zone: rules by name.
#[derive(Debug, Default)]
pub(super) struct Zone {
    names: HashMap<String, HashMap<Kind, Rule>>,
    /// Answer nothing at all.
    pub(super) silent: bool,
}

/// How a name is written in the zone: lower case, no final dot.
pub(super) fn key(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

impl Zone {
    pub(super) fn set(&mut self, name: &str, kind: Kind, rule: Rule) {
        self.names.entry(key(name)).or_default().insert(kind, rule);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.names.remove(&key(name));
    }

    /// What to do about a question.
    pub(super) fn plan(&self, name: &str, record: &str) -> Plan {
        if self.silent {
            return Plan::plain(Outcome::Silence);
        }
        let Some(rule) = self.rule(name, record) else {
            return Plan::plain(match self.names.contains_key(name) {
                true => Outcome::Negative(ResponseCode::NoError, MINIMUM),
                false => Outcome::Negative(ResponseCode::NXDomain, MINIMUM),
            });
        };
        let outcome = match &rule.reply {
            Reply::Silence => Outcome::Silence,
            Reply::ServFail => Outcome::Failure(ResponseCode::ServFail),
            Reply::Refused => Outcome::Failure(ResponseCode::Refused),
            Reply::NoData => Outcome::Negative(ResponseCode::NoError, MINIMUM),
            Reply::NxDomain(minimum) => Outcome::Negative(ResponseCode::NXDomain, *minimum),
            Reply::Addresses(..) | Reply::Alias(..) => match self.records(name, record) {
                r if r.is_empty() => Outcome::Negative(ResponseCode::NoError, MINIMUM),
                r => Outcome::Records(r),
            },
        };
        Plan { outcome, delay: rule.delay, truncate: rule.truncate, forged: rule.forged.clone() }
    }

    fn rule(&self, name: &str, record: &str) -> Option<&Rule> {
        let rules = self.names.get(name)?;
        let own = match record {
            "A" => rules.get(&Kind::A),
            "AAAA" => rules.get(&Kind::Aaaa),
            _ => None,
        };
        own.or_else(|| rules.get(&Kind::Any))
    }

    /// The records for a name, aliases followed as far as the zone knows them.
    fn records(&self, name: &str, record: &str) -> Vec<Record> {
        let mut found = Vec::new();
        let mut name = name.to_owned();
        for _ in 0..CHAIN {
            let (Some(rule), Ok(owner)) = (self.rule(&name, record), fqdn(&name)) else { break };
            match &rule.reply {
                Reply::Addresses(addresses, ttl) => {
                    let wanted = addresses.iter().filter(|a| a.is_ipv4() == (record == "A"));
                    found.extend(wanted.map(|a| Record::from_rdata(owner.clone(), *ttl, RData::from(*a))));
                    break;
                }
                Reply::Alias(target, ttl) => {
                    let Ok(to) = fqdn(target) else { break };
                    found.push(Record::from_rdata(owner, *ttl, RData::CNAME(CNAME(to))));
                    name = key(target);
                }
                _ => break,
            }
        }
        found
    }
}

fn fqdn(name: &str) -> Result<Name, hickory_proto::ProtoError> {
    let mut name = Name::from_ascii(name)?;
    name.set_fqdn(true);
    Ok(name)
}

/// What is done about one question.
#[derive(Debug)]
pub(super) struct Plan {
    outcome: Outcome,
    delay: Duration,
    pub(super) truncate: bool,
    forged: Vec<(Forgery, IpAddr)>,
}

#[derive(Debug)]
enum Outcome {
    Records(Vec<Record>),
    Negative(ResponseCode, u32),
    Failure(ResponseCode),
    Silence,
}

/// A forged message, and whether it leaves from another port.
pub(super) struct Lie {
    pub(super) message: Message,
    pub(super) other_port: bool,
}

impl Plan {
    fn plain(outcome: Outcome) -> Self {
        Self { outcome, delay: Duration::ZERO, truncate: false, forged: Vec::new() }
    }

    /// Waits as long as the rule says. Even a timer of zero takes a millisecond, so none is set for none.
    pub(super) async fn wait(&self) {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
    }

    /// The true answer, unless there is none.
    pub(super) fn answer(&self, question: &Message) -> Option<Message> {
        let mut m = reply_to(question);
        match &self.outcome {
            Outcome::Silence => return None,
            Outcome::Failure(code) => m.metadata.response_code = *code,
            Outcome::Records(records) => {
                m.add_answers(records.iter().cloned());
            }
            Outcome::Negative(code, minimum) => {
                m.metadata.response_code = *code;
                let zone = Name::root();
                let soa = SOA::new(zone.clone(), zone.clone(), 1, 3600, 600, 86_400, *minimum);
                m.add_authority(Record::from_rdata(zone, *minimum, RData::SOA(soa)));
            }
        }
        Some(m)
    }

    /// The forged messages that come first.
    pub(super) fn lies(&self, question: &Message) -> Vec<Lie> {
        let lie = |(how, address): &(Forgery, IpAddr)| {
            let mut m = reply_to(question);
            let mut owner = question.queries.first().map_or_else(Name::root, |q| q.name().clone());
            match how {
                Forgery::WrongId => m.metadata.id = m.metadata.id.wrapping_add(1),
                Forgery::WrongQuestion => {
                    owner = fqdn("elsewhere.test").unwrap_or_default();
                    let kind = RData::from(*address).record_type();
                    m.queries = vec![Query::query(owner.clone(), kind)];
                }
                Forgery::OtherPort => {}
            }
            m.add_answer(Record::from_rdata(owner, 3600, RData::from(*address)));
            Lie { message: m, other_port: *how == Forgery::OtherPort }
        };
        self.forged.iter().map(lie).collect()
    }
}

fn reply_to(question: &Message) -> Message {
    let mut m = Message::response(question.metadata.id, question.metadata.op_code);
    m.metadata.recursion_desired = question.metadata.recursion_desired;
    m.metadata.recursion_available = true;
    m.add_queries(question.queries.iter().cloned());
    m
}
