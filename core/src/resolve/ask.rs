//! One question to the name servers: the names to try, and the servers raced for each.
//!
//! hickory-resolver asks one server here (UDP, TCP where the answer was cut, aliases followed). Racing is ours,
//! because its pool ends at the first failure of any server and waits for a silent one before it turns to TCP.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use crate::clock::{self, Deadline, Moment};
use crate::net::{Family, ResolveError};

/// How long a "no" of one server waits for an earlier one in the list: a public server that doesn't know a private
/// name must not overrule the private server, and a dead server must not hold the "no" back for long.
const PATIENCE: Duration = Duration::from_millis(250);
/// Names made of one name and the search list, at most.
const NAMES: usize = 16;

/// The name servers, in order, and how names are completed.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) search: Vec<Name>,
    pub(super) ndots: usize,
    pub(super) edns: bool,
}

/// Addresses and the shortest time to live on the way to them.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ttl: Duration,
    pub(super) server: SocketAddr,
}

/// Asks for one family of a name, through the search list.
pub(super) async fn ask(
    servers: &Servers,
    name: &str,
    family: Family,
    deadline: Deadline,
) -> Result<Found, ResolveError> {
    let names = names(servers, name)?;
    let mut no_data = false;
    let mut failed = None;
    for (i, name) in names.iter().enumerate() {
        match race(servers, name, family, deadline).await {
            Ok(found) => return Ok(found),
            Err(ResolveError::NoSuchName) => {}
            Err(ResolveError::NoData) => {
                no_data = true;
                // The name is there. If its other family has addresses it is the one that was meant, and the next
                // name of the list is another host.
                let more = i + 1 < names.len();
                if more && race(servers, name, other(family), deadline).await.is_ok() {
                    break;
                }
            }
            Err(ResolveError::TimedOut) => return Err(ResolveError::TimedOut),
            Err(e @ ResolveError::ServerFailure(_)) => failed = failed.or(Some(e)),
        }
    }
    match (no_data, failed) {
        (true, _) => Err(ResolveError::NoData),
        (false, Some(e)) => Err(e),
        (false, None) => Err(ResolveError::NoSuchName),
    }
}

fn other(family: Family) -> Family {
    match family {
        Family::V4 => Family::V6,
        Family::V6 => Family::V4,
    }
}

/// The full names to try, in order (resolv.conf(5): `search`, `ndots`).
fn names(servers: &Servers, text: &str) -> Result<Vec<Name>, ResolveError> {
    // What can't be written as a name exists nowhere.
    let name = Name::from_str_relaxed(text).map_err(|_| ResolveError::NoSuchName)?;
    let mut whole = name.clone();
    whole.set_fqdn(true);
    if name.is_fqdn() {
        return Ok(vec![whole]);
    }
    let dots = text.matches('.').count();
    let mut names: Vec<Name> = Vec::new();
    if dots >= servers.ndots {
        names.push(whole.clone());
    }
    names.extend(servers.search.iter().filter_map(|s| name.clone().append_domain(s).ok()));
    names.push(whole);
    let mut unique: Vec<Name> = Vec::new();
    for name in names {
        if unique.len() < NAMES && !unique.contains(&name) {
            unique.push(name);
        }
    }
    Ok(unique)
}

/// Asks all servers at once. The first addresses win; a "no" of the first server in the list is final at once.
async fn race(
    servers: &Servers,
    name: &Name,
    family: Family,
    deadline: Deadline,
) -> Result<Found, ResolveError> {
    let asked = servers.addresses.iter().enumerate();
    let mut running: FuturesUnordered<_> =
        asked.map(|(i, s)| async move { (i, one(*s, servers.edns, name, family, deadline).await) }).collect();
    let mut failures: Vec<Option<ResolveError>> = vec![None; servers.addresses.len()];
    // Until here somebody may still overrule a "no", or answer at all.
    let mut patience = deadline.moment().unwrap_or(Moment::NEVER);
    loop {
        tokio::select! {
            biased;
            next = running.next() => match next {
                Some((_, Ok(found))) => return Ok(found),
                Some((i, Err(e))) => {
                    if is_no(&e) {
                        patience = patience.min(clock::now() + PATIENCE);
                    }
                    failures[i] = Some(e);
                }
                None => return Err(verdict(failures)),
            },
            () = clock::sleep_until(patience) => return Err(verdict(failures)),
        }
        // Every server before the first "no" has failed: nobody is left who could overrule it.
        let first_open = failures.iter().take_while(|f| f.as_ref().is_some_and(|e| !is_no(e))).count();
        if let Some(Some(e)) = failures.get(first_open) {
            return Err(e.clone());
        }
    }
}

fn is_no(e: &ResolveError) -> bool {
    matches!(e, ResolveError::NoSuchName | ResolveError::NoData)
}

/// The failure that says most: a "no" before a server's failure before silence; within a kind the earlier server.
fn verdict(failures: Vec<Option<ResolveError>>) -> ResolveError {
    let rank = |e: &ResolveError| match e {
        ResolveError::NoSuchName | ResolveError::NoData => 0,
        ResolveError::ServerFailure(_) => 1,
        ResolveError::TimedOut => 2,
    };
    failures.into_iter().flatten().min_by_key(rank).unwrap_or(ResolveError::TimedOut)
}

/// Asks one server. The hickory resolver lives for this question only, so nothing is remembered.
async fn one(
    server: SocketAddr,
    edns: bool,
    name: &Name,
    family: Family,
    deadline: Deadline,
) -> Result<Found, ResolveError> {
    let left = deadline.left(clock::now()).unwrap_or(Duration::MAX);
    if left.is_zero() {
        return Err(ResolveError::TimedOut);
    }
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut c| {
        c.port = server.port();
        c
    });
    let config = ResolverConfig::from_name_servers(vec![NameServerConfig::new(
        server.ip(),
        true,
        connections.into_iter().collect(),
    )]);
    let mut options = ResolverOpts::default();
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = left;
    // A lost packet is sent again within `timeout`; a refused question is asked again by the next look-up.
    options.attempts = 0;
    options.edns0 = edns;
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    let failed = |e| failure(server, e);
    let kind = match family {
        Family::V4 => RecordType::A,
        Family::V6 => RecordType::AAAA,
    };
    let lookup = builder.build().map_err(failed)?.lookup(name.clone(), kind).await.map_err(failed)?;
    found(server, name, lookup.answers())
}

/// The addresses that the records give for a name, aliases followed; records of other names are no answer.
fn found(server: SocketAddr, name: &Name, records: &[Record]) -> Result<Found, ResolveError> {
    let mut owners = vec![name];
    let mut ttl = u32::MAX;
    let mut addresses = Vec::new();
    // A server may send the chain in any order: go round until nothing new comes.
    for _ in 0..records.len() {
        let known = owners.len();
        for r in records.iter().filter(|r| owners.contains(&&r.name)).collect::<Vec<_>>() {
            if let RData::CNAME(target) = &r.data
                && !owners.contains(&&target.0)
            {
                owners.push(&target.0);
            }
        }
        if owners.len() == known {
            break;
        }
    }
    for r in records.iter().filter(|r| owners.contains(&&r.name)) {
        ttl = ttl.min(r.ttl);
        if let Some(address) = r.data.ip_addr()
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(ResolveError::NoData);
    }
    Ok(Found { addresses, ttl: Duration::from_secs(ttl.into()), server })
}

fn failure(server: SocketAddr, e: NetError) -> ResolveError {
    match e {
        NetError::Timeout => ResolveError::TimedOut,
        NetError::Dns(DnsError::NoRecordsFound(no)) => match no.response_code {
            ResponseCode::NXDomain => ResolveError::NoSuchName,
            ResponseCode::NoError => ResolveError::NoData,
            code => ResolveError::ServerFailure(format!("{server}: {code}")),
        },
        NetError::Dns(DnsError::ResponseCode(code)) => {
            ResolveError::ServerFailure(format!("{server}: {code}"))
        }
        e => ResolveError::ServerFailure(format!("{server}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 53);

    fn servers(search: &[&str], ndots: usize) -> Servers {
        let search = search.iter().map(|s| Name::from_ascii(s).unwrap()).collect();
        Servers { addresses: vec![], search, ndots, edns: false }
    }

    fn tried(s: &Servers, name: &str) -> Vec<String> {
        names(s, name).unwrap().iter().map(Name::to_ascii).collect()
    }

    #[test]
    fn ndots_decides_whether_the_search_list_comes_first() {
        let s = servers(&["a.test", "b.test"], 2);
        assert_eq!(tried(&s, "db"), ["db.a.test.", "db.b.test.", "db."]);
        assert_eq!(tried(&s, "db.x"), ["db.x.a.test.", "db.x.b.test.", "db.x."]);
        assert_eq!(tried(&s, "db.x.y"), ["db.x.y.", "db.x.y.a.test.", "db.x.y.b.test."]);
        assert_eq!(tried(&s, "db."), ["db."], "a final dot ends the search");
        assert_eq!(tried(&servers(&[], 1), "db"), ["db."]);
        assert_eq!(tried(&servers(&["."], 1), "db"), ["db."], "never the same name twice");
    }

    #[test]
    fn names_of_containers_and_other_scripts_are_names_and_nonsense_is_not() {
        let s = servers(&[], 1);
        assert_eq!(tried(&s, "my_db"), ["my_db."]);
        assert_eq!(tried(&s, "Bücher.test"), ["xn--bcher-kva.test."]);
        let long = "x".repeat(64);
        for bad in ["a..b", "a b", long.as_str()] {
            assert_eq!(names(&s, bad).unwrap_err(), ResolveError::NoSuchName, "{bad:?}");
        }
    }

    fn record(name: &str, ttl: u32, data: RData) -> Record {
        Record::from_rdata(Name::from_ascii(name).unwrap(), ttl, data)
    }

    #[test]
    fn records_of_another_name_are_not_taken_for_ours() {
        use hickory_resolver::proto::rr::rdata::CNAME;
        let ip = |s: &str| RData::from(s.parse::<IpAddr>().unwrap());
        let alias = |s: &str| RData::CNAME(CNAME(Name::from_ascii(s).unwrap()));
        let db = Name::from_ascii("db.test.").unwrap();
        let records = [
            record("stranger.test.", 1, ip("10.6.6.6")),
            record("c.test.", 30, ip("10.0.0.1")),
            record("b.test.", 7, alias("c.test.")),
            record("db.test.", 60, alias("b.test.")),
        ];
        let f = found(SERVER, &db, &records).unwrap();
        assert_eq!(f.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(f.ttl, Duration::from_secs(7), "the shortest on the way");
        assert_eq!(found(SERVER, &db, &records[..1]).unwrap_err(), ResolveError::NoData);
        let circle = [record("db.test.", 1, alias("b.test.")), record("b.test.", 1, alias("db.test."))];
        assert_eq!(found(SERVER, &db, &circle).unwrap_err(), ResolveError::NoData);
    }

    #[test]
    fn the_failure_that_says_most_is_reported() {
        use ResolveError::{NoSuchName, ServerFailure, TimedOut};
        let bad = || ServerFailure("x".into());
        assert_eq!(verdict(vec![Some(TimedOut), Some(bad()), Some(NoSuchName)]), NoSuchName);
        assert_eq!(verdict(vec![None, Some(TimedOut), Some(bad())]), bad());
        assert_eq!(verdict(vec![None, None]), TimedOut);
    }
}
