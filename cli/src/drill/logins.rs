//! Who logged in at a server, and when: as its log tells it.
//!
//! The log knows of every session, however short, and reading it asks nothing of a server that is slow.

use std::time::{SystemTime, UNIX_EPOCH};

use pgfollow_lab::monotonic_ns;

use super::client::Kind;

/// `log_line_prefix` of the drill's servers: time since 1970 in ms, process.
pub(crate) const PREFIX: &str = "%n [%p] ";

const SECOND: u64 = 1_000_000_000;

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    /// CLOCK_MONOTONIC in ns, to the millisecond.
    pub(crate) at: u64,
    pub(crate) until: Option<u64>,
    pub(crate) application: String,
}

/// What they come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peak {
    /// The most logins within any second.
    pub(crate) logins_per_second: u64,
    /// The most sessions at once.
    pub(crate) sessions: u64,
    /// Sessions one second after the server was ready.
    pub(crate) first_second: u64,
}

/// All sessions that a log tells of.
pub(crate) fn read(log: &str) -> Vec<Login> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    read_at(log, u64::try_from(now).unwrap_or(u64::MAX), monotonic_ns())
}

fn read_at(log: &str, unix_ms: u64, mono_ns: u64) -> Vec<Login> {
    let mut all: Vec<(&str, Login)> = Vec::new();
    for line in log.lines() {
        let Some((time, rest)) = line.split_once(" [") else { continue };
        let Some((process, words)) = rest.split_once("] ") else { continue };
        let Some(ms) = time.replace('.', "").parse::<u64>().ok().filter(|_| time.contains('.')) else {
            continue;
        };
        let at = mono_ns.saturating_sub(unix_ms.saturating_sub(ms).saturating_mul(1_000_000));
        if words.contains("connection authorized: ") {
            let name = words.split_once(" application_name=").map_or("", |(_, name)| name);
            all.push((process, Login { at, until: None, application: name.to_owned() }));
        } else if words.contains("disconnection: ")
            && let Some((_, login)) = all.iter_mut().rfind(|(p, _)| *p == process)
        {
            login.until = Some(at);
        }
    }
    all.into_iter().map(|(_, login)| login).collect()
}

/// Of one kind of client, its monitors included, from that moment on; `ready`: when the server took writes.
pub(crate) fn peak(logins: &[Login], kind: Kind, from: u64, ready: u64) -> Peak {
    let mine: Vec<&Login> = logins.iter().filter(|l| kind.owns(&l.application)).collect();
    let mut begins: Vec<u64> = mine.iter().map(|l| l.at).filter(|at| *at >= from).collect();
    begins.sort_unstable();
    let within = |(n, first): (usize, &u64)| begins[n..].partition_point(|at| *at < first + SECOND);
    let most = begins.iter().enumerate().map(within).max().unwrap_or(0);
    // A session's end comes before the beginning of another at the same moment.
    let mut changes: Vec<(u64, i64)> = mine.iter().map(|l| (l.at.max(from), 1)).collect();
    changes.extend(mine.iter().filter_map(|l| Some((l.until?.max(from), -1))));
    changes.sort_unstable();
    let (mut now, mut sessions) = (0_i64, 0_i64);
    for (_, change) in changes {
        now += change;
        sessions = sessions.max(now);
    }
    let then = ready + SECOND;
    let first_second = mine.iter().filter(|l| l.at <= then && l.until.is_none_or(|u| u > then)).count();
    Peak {
        logins_per_second: most as u64,
        sessions: u64::try_from(sessions).unwrap_or(0),
        first_second: first_second as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn logins_are_read_from_the_log_with_their_ends_and_on_our_own_clock() {
        let log = "1700000000.100 [7] LOG:  connection received: host=127.0.0.1 port=1\n\
                   1700000000.200 [7] LOG:  connection authorized: user=app database=app application_name=pgfollow monitor\n\
                   1700000000.250 [8] LOG:  connection authorized: user=app database=app\n\
                   \tof several lines [x] connection authorized: \n\
                   1700000000.300 [7] LOG:  disconnection: session time: 0:00:00.100 user=app database=app host=127.0.0.1 port=1\n";
        let logins = read_at(log, 1_700_000_001_000, 5_000 * MS);
        let first =
            Login { at: 4_200 * MS, until: Some(4_300 * MS), application: "pgfollow monitor".to_owned() };
        assert_eq!(logins, [first, Login { at: 4_250 * MS, until: None, application: String::new() }]);
    }

    #[test]
    fn peaks_are_of_any_second_and_of_one_kind_only() {
        let login = |at: u64, until: Option<u64>, name: &str| Login {
            at: at * MS,
            until: until.map(|u| u * MS),
            application: name.to_owned(),
        };
        let logins = [
            // Gone before it began.
            login(100, Some(200), "drill-pgfollow"),
            // There already.
            login(300, None, "pgfollow monitor"),
            login(1_900, Some(2_000), "drill-pgfollow"),
            login(2_000, None, "drill-pgfollow"),
            login(2_899, None, "drill-pgfollow"),
            login(2_900, None, "drill-pgfollow"),
            login(2_000, None, "drill-plain"),
            login(2_000, None, "drill-prober"),
        ];
        let seen = peak(&logins, Kind::Pgfollow, 1_000 * MS, 950 * MS);
        // One second after that there were the monitor's and the third; the one before the last came just then.
        assert_eq!(seen, Peak { logins_per_second: 3, sessions: 4, first_second: 2 });
        let plain = Peak { logins_per_second: 1, sessions: 1, first_second: 1 };
        assert_eq!(peak(&logins, Kind::Plain, 1_000 * MS, 1_000 * MS), plain);
        assert_eq!(peak(&[], Kind::Plain, 0, 0), Peak::default());
    }
}
