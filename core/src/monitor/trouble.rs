//! Why the hosts gave no session last: for those who ask how it goes, and not for the topology.

use std::collections::BTreeMap;

use super::Monitor;
use crate::decide::topology::ConnectKind;
use crate::failure::{Failed, Failure};
use crate::host::HostId;
use crate::lock;

/// The last failure of each host that has given no session since.
#[derive(Default)]
pub(super) struct Troubles(BTreeMap<HostId, Trouble>);

struct Trouble {
    words: String,
    /// Waiting won't help.
    lasting: bool,
}

impl Troubles {
    fn begin(&mut self, host: HostId, failed: &Failed) {
        // A host that isn't of the wanted role has given a session.
        if matches!(failed.failure, Failure::WrongRole { .. }) {
            return self.over(host);
        }
        let lasting = match ConnectKind::of(failed) {
            Some(kind) => kind.is_denied() || kind == ConnectKind::Tls,
            None => matches!(failed.failure, Failure::TlsFile(_)),
        };
        self.0.insert(host, Trouble { words: failed.failure.to_string(), lasting });
    }

    pub(super) fn over(&mut self, host: HostId) {
        self.0.remove(&host);
    }

    /// The one to tell of: rather one that somebody must set right.
    fn worst(&self, counts: impl Fn(HostId) -> bool) -> Option<(HostId, &str)> {
        let all = || self.0.iter().filter(|(host, _)| counts(**host));
        let worst = all().find(|(_, t)| t.lasting).or_else(|| all().next());
        worst.map(|(host, t)| (*host, t.words.as_str()))
    }
}

impl Monitor {
    pub(super) fn troubled(&self, host: HostId, failed: &Failed) {
        lock(&self.places).troubles.begin(host, failed);
    }

    pub(super) fn untroubled(&self, host: HostId) {
        lock(&self.places).troubles.over(host);
    }

    /// Which host gave no session and why.
    pub(crate) fn trouble(&self) -> Option<String> {
        let snapshot = self.snapshot();
        let (host, words) = {
            let places = lock(&self.places);
            let (host, words) = places.troubles.worst(|h| !snapshot.host(h).is_some_and(|h| h.gone))?;
            (host, words.to_owned())
        };
        let name = self.candidate(host).map_or_else(|| "a host".to_owned(), |c| c.to_string());
        Some(format!("{name}: {words}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{SqlState, Stage};

    fn server(state: &str, message: &str) -> Failed {
        let sqlstate = SqlState::new(state).expect("a state");
        Failed::new(
            Stage::Authenticate,
            Failure::Server { sqlstate, message: message.to_owned(), after_auth: false },
        )
    }

    #[test]
    fn a_wrong_password_is_not_hidden_by_a_host_that_is_merely_down() {
        let mut t = Troubles::default();
        t.begin(HostId(0), &Failed::new(Stage::Dial, Failure::TimedOut));
        let all = |_| true;
        assert_eq!(t.worst(all).map(|w| w.0), Some(HostId(0)));
        t.begin(HostId(1), &server("28P01", "wrong password"));
        assert_eq!(t.worst(all), Some((HostId(1), "wrong password")));
        assert_eq!(
            t.worst(|h| h.0 == 0).map(|w| w.0),
            Some(HostId(0)),
            "its name gives that address no more"
        );
        t.over(HostId(1));
        t.over(HostId(0));
        assert_eq!(t.worst(all), None, "both gave a session since");
    }
}
