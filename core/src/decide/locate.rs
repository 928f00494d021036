//! Which host a driver that dials by itself is sent to, by what is known, without a session of our own.
//!
//! Decides for the roles that several hosts may have; the primary is [`crate::decide::topology`]'s to name. Where too little
//! is known it names none, and [`crate::connector`] opens a session to find out.

use std::time::Duration;

use crate::config::SessionAttrs;
use crate::decide::topology::{HostSnapshot, Role, State};
use crate::host::HostId;

/// A host whose role was read longer ago than this is not named: the monitor reads it at least every 5 s.
const KNOWN: Duration = Duration::from_secs(6);

/// The host that fits, of those whose role is known, in their order; `first` moves the beginning (load balancing).
pub fn pick(hosts: &[HostSnapshot], attrs: SessionAttrs, first: usize) -> Option<HostId> {
    let from = first.checked_rem(hosts.len()).unwrap_or(0);
    let turned = || hosts[from..].iter().chain(&hosts[..from]).filter(|h| is_known(h));
    let of = |fits: &dyn Fn(Role) -> bool| turned().find(|h| h.role.is_some_and(fits)).map(|h| h.id);
    match attrs {
        SessionAttrs::Any => of(&|_| true),
        SessionAttrs::ReadWrite | SessionAttrs::Primary => None,
        SessionAttrs::ReadOnly => of(&|r| r != Role::Primary),
        SessionAttrs::Standby => of(&|r| r == Role::Standby),
        SessionAttrs::PreferStandby => of(&|r| r == Role::Standby).or_else(|| {
            // Only once every other one is known to be none.
            let settled =
                hosts.iter().all(|h| is_known(h) || h.gone || h.same_as.is_some() || is_out(h.state));
            settled.then(|| of(&|_| true)).flatten()
        }),
    }
}

fn is_known(h: &HostSnapshot) -> bool {
    let role = matches!(h.state, State::Primary | State::PrimaryReadOnly | State::Standby);
    let lately = h.answer_age_ms.is_some_and(|ms| Duration::from_millis(ms) <= KNOWN);
    role && lately && !h.gone && h.same_as.is_none()
}

/// Nobody gets in there now.
fn is_out(state: State) -> bool {
    matches!(state, State::NotReady | State::Full | State::Denied | State::Foreign | State::Down)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::Moment;
    use crate::decide::topology::{Cause, ProbeState};
    use crate::host::Address;

    fn host(id: u32, state: State, role: Option<Role>, age: u64) -> HostSnapshot {
        HostSnapshot {
            id: HostId(id),
            spec: 0,
            name: Arc::from("db"),
            address: Address::Tcp(([127, 0, 0, 1], 5432).into()),
            state,
            role,
            timeline: None,
            generation: 0,
            cause: Cause::Start,
            changed: Moment::ZERO,
            system_identifier: None,
            answer_age_ms: Some(age),
            rtt_us: None,
            probe: ProbeState::Open,
            same_as: None,
            indirect: false,
            gone: false,
        }
    }

    fn primary() -> HostSnapshot {
        host(0, State::Primary, Some(Role::Primary), 100)
    }

    fn standby(id: u32) -> HostSnapshot {
        host(id, State::Standby, Some(Role::Standby), 100)
    }

    #[test]
    fn a_reader_is_never_sent_to_a_host_of_which_nothing_is_known_any_more() {
        let stale = host(1, State::Standby, Some(Role::Standby), 6_001);
        let down = host(2, State::Down, Some(Role::Standby), 100);
        let wanted = SessionAttrs::Standby;
        assert_eq!(pick(&[primary(), stale.clone(), down.clone()], wanted, 0), None);
        assert_eq!(pick(&[primary(), stale, down, standby(3)], wanted, 0), Some(HostId(3)));
        assert_eq!(pick(&[], SessionAttrs::Any, 3), None);
    }

    #[test]
    fn readers_are_spread_over_the_standbys_where_that_is_wanted() {
        let hosts = [primary(), standby(1), standby(2)];
        let picked: Vec<_> = (0..3).filter_map(|n| pick(&hosts, SessionAttrs::Standby, n)).collect();
        assert_eq!(picked, [HostId(1), HostId(1), HostId(2)]);
    }

    #[test]
    fn the_primary_is_second_choice_only_when_no_standby_may_still_turn_up() {
        let wanted = SessionAttrs::PreferStandby;
        let unknown = host(1, State::Unknown, None, 0);
        assert_eq!(pick(&[primary(), unknown], wanted, 0), None);
        let down = host(1, State::Down, Some(Role::Standby), 100);
        assert_eq!(pick(&[primary(), down], wanted, 0), Some(HostId(0)));
        assert_eq!(pick(&[primary(), standby(1)], wanted, 0), Some(HostId(1)));
    }
}
