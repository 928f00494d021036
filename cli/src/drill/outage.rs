//! How long the callers of one process were held up, by their calls alone: the measure of what a library says of it.

use super::record::{Call, CallResult};

/// A caller who waits this long for a session, while nobody takes writes, is held up.
const HELD_UP: u64 = 500_000_000;
/// Trouble that comes within this of a return belongs to the same outage.
const QUIET: u64 = 3_000_000_000;

/// The outages of failovers, each of which lasted from a fault until the new primary was ready, in ns and in order: each
/// outage's beginning and end. It begins with the first call that failed (or the last success before its error, while no
/// other server took writes), or that waited for its session because of the failover. It ends with the first success after
/// the last of those, and after whoever had begun to wait by then had a session, at the latest with the last call. A slow
/// write that is answered in the end is none.
pub(crate) fn outages(calls: &[&Call], failovers: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let from = failovers.first().map_or(u64::MAX, |(fault, _)| *fault);
    let is_done = |c: &Call| matches!(c.result, CallResult::Ok { .. });
    let mut done: Vec<u64> = calls.iter().filter(|c| is_done(c)).map(|c| c.end).collect();
    done.sort_unstable();
    let last = calls.iter().map(|c| c.end).max().unwrap_or(from);
    // What a dying server still did for others before the new one was ready was no return.
    let returned = |after: u64| {
        let ready = failovers.iter().filter(|(fault, ready)| *fault <= after && after < *ready);
        ready.map(|(_, ready)| *ready).max().unwrap_or(after)
    };
    let success =
        |after: u64| done.get(done.partition_point(|end| *end < returned(after))).copied().unwrap_or(last);
    let had = |c: &Call| c.had.unwrap_or(c.end);
    let held_up = |c: &Call| {
        had(c) - c.start >= HELD_UP
            // Until it succeeds itself, a process may not know that the new primary is ready.
            && failovers.iter().any(|(fault, ready)| c.start <= success(*ready) && had(c) >= *fault)
    };
    // A server dies by and by: who is lost there was held up since the last that it did for others.
    let began = |c: &Call| {
        let ready = failovers.iter().map(|(_, ready)| *ready).find(|ready| *ready >= c.start);
        let lived = ready.map_or(0, |ready| {
            done[..done.partition_point(|end| *end <= c.end.min(ready))].last().copied().unwrap_or(0)
        });
        if is_done(c) { c.start } else { c.start.max(lived) }
    };
    let mut trouble: Vec<(u64, &Call)> = calls
        .iter()
        .filter(|c| c.end >= from && (!is_done(c) || held_up(c)))
        .map(|c| (began(c), *c))
        .collect();
    trouble.sort_unstable_by_key(|(began, _)| *began);
    // Beginning, end so far, end of the last failed call.
    let mut all: Vec<(u64, u64, u64)> = Vec::new();
    for (began, c) in trouble {
        let (back, failed) = if is_done(c) { (success(had(c)), c.start) } else { (success(c.end), c.end) };
        match all.last_mut() {
            Some((_, until, error)) if began <= *until + QUIET => {
                *until = back.max(*until);
                if !is_done(c) {
                    *error = failed.max(*error);
                }
            }
            _ => all.push((began, back, failed)),
        }
    }
    let held_up = |(began, _, error): (u64, u64, u64)| {
        let first = success(error);
        // Whoever began to wait later stood behind nothing but others who came back.
        let held = calls.iter().filter(|c| c.start < first && had(c) > began).map(|c| had(c));
        (began, success(held.max().map_or(first, |had| had.max(first))))
    };
    all.into_iter().map(held_up).collect()
}

#[cfg(test)]
mod tests {
    use pgfollow::Class;

    use super::super::record::CallError;
    use super::*;

    const MS: u64 = 1_000_000;

    fn call(start: u64, had: u64, end: u64, ok: bool) -> Call {
        let error = CallError { class: Class::Transient, code: "x".to_owned(), message: "x".to_owned() };
        let result = if ok { CallResult::Ok { node: "a".to_owned() } } else { CallResult::Failed(error) };
        let had = Some(had * MS);
        Call { worker: 0, seq: 0, start: start * MS, had, end: end * MS, result }
    }

    fn of(calls: &[Call]) -> Vec<(u64, u64)> {
        let all = outages(&calls.iter().collect::<Vec<_>>(), &[(1_000 * MS, 1_200 * MS)]);
        all.into_iter().map(|(began, end)| (began / MS, end / MS)).collect()
    }

    #[test]
    fn an_outage_lasts_from_the_first_lost_call_until_the_last_one_held_up_got_through() {
        let calls = [
            call(100, 100, 700, true),
            call(990, 990, 1_000, false),
            call(1_010, 1_010, 1_015, false),
            call(1_020, 1_290, 1_300, true),
            // It began to wait before anybody was back; whose success comes after that is no matter.
            call(1_100, 1_340, 1_600, true),
            call(1_310, 1_310, 1_350, true),
            call(1_360, 1_360, 1_400, true),
        ];
        assert_eq!(of(&calls), [(990, 1_350)]);
    }

    #[test]
    fn a_server_that_dies_by_and_by_holds_nobody_up_while_it_still_writes_for_others() {
        let calls = [
            call(1_010, 1_010, 1_200, false),
            call(1_020, 1_020, 1_150, true),
            // By the new primary, before the other's error came.
            call(1_030, 1_030, 1_260, false),
            call(1_040, 1_240, 1_250, true),
            call(1_300, 1_300, 1_310, true),
        ];
        assert_eq!(of(&calls), [(1_150, 1_310)]);
    }

    #[test]
    fn what_the_dying_server_does_after_the_first_error_is_no_return() {
        let calls = [
            call(1_000, 1_000, 1_010, false),
            call(1_000, 1_000, 1_011, true),
            call(1_020, 1_290, 1_300, true),
            call(1_020, 1_320, 1_340, true),
        ];
        assert_eq!(of(&calls), [(1_000, 1_340)]);
    }

    #[test]
    fn a_wait_during_the_failover_counts_and_one_after_it_or_a_slow_write_does_not() {
        assert_eq!(of(&[call(1_000, 1_499, 1_500, true)]), []);
        assert_eq!(of(&[call(1_000, 1_010, 1_900, true)]), []);
        assert_eq!(of(&[call(1_190, 1_190, 1_210, true), call(1_211, 1_900, 1_901, true)]), []);
        assert_eq!(of(&[call(1_201, 1_900, 1_901, true)]), [(1_201, 1_901)]);
        assert_eq!(of(&[call(1_200, 1_900, 1_901, true)]), [(1_200, 1_901)]);
    }

    #[test]
    fn trouble_after_three_quiet_seconds_is_another_outage_and_one_without_an_end_lasts() {
        let calls = [
            call(1_000, 1_000, 1_010, false),
            call(1_020, 1_020, 1_100, true),
            call(4_100, 4_100, 4_200, false),
            call(4_300, 4_300, 4_400, true),
        ];
        assert_eq!(of(&calls), [(1_000, 4_400)]);
        let calls = [
            call(1_000, 1_000, 1_010, false),
            call(1_020, 1_020, 1_210, true),
            call(4_211, 4_211, 4_300, false),
        ];
        assert_eq!(of(&calls), [(1_000, 1_210), (4_211, 4_300)]);
    }
}
