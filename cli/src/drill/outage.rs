//! How long the callers of one process were held up, by their calls alone: the measure of what a library says of it.

use super::record::{Call, CallResult};

/// A call that takes this long was blocked.
const BLOCKED: u64 = 500_000_000;
/// Trouble that comes within this of a return belongs to the same outage.
const QUIET: u64 = 3_000_000_000;

/// The outages after `from`, in ns, each from the beginning of the first call that failed or was blocked until whoever
/// was held up had got through, and not beyond the last call. In order.
pub(crate) fn outages(calls: &[&Call], from: u64) -> Vec<(u64, u64)> {
    let is_done = |c: &Call| matches!(c.result, CallResult::Ok { .. });
    let mut done: Vec<(u64, u64)> = calls.iter().filter(|c| is_done(c)).map(|c| (c.end, c.start)).collect();
    done.sort_unstable();
    let last = calls.iter().map(|c| c.end).max().unwrap_or(from);
    let mut trouble: Vec<&Call> = calls.iter().copied().filter(|c| c.end >= from).collect();
    trouble.retain(|c| !is_done(c) || c.end - c.start >= BLOCKED);
    trouble.sort_unstable_by_key(|c| c.start);
    let mut all: Vec<(u64, u64)> = Vec::new();
    for c in trouble {
        // The first success after it; of a blocked call that is its own.
        let back =
            done[done.partition_point(|(end, _)| *end < c.end)..].first().map_or(last, |(end, _)| *end);
        match all.last_mut() {
            Some((_, until)) if c.start <= *until + QUIET => *until = back.max(*until),
            _ => all.push((c.start, back)),
        }
    }
    for (_, until) in &mut all {
        // Who had begun to wait by then was held up as well.
        let first = *until;
        let held = done.iter().filter(|(end, start)| *start < first && *end > first).map(|(end, _)| *end);
        *until = held.max().unwrap_or(first);
    }
    all
}

#[cfg(test)]
mod tests {
    use pgfollow::Class;

    use super::super::record::CallError;
    use super::*;

    const MS: u64 = 1_000_000;

    fn call(start: u64, end: u64, ok: bool) -> Call {
        let error = CallError { class: Class::Transient, code: "x".to_owned(), message: "x".to_owned() };
        let result = if ok { CallResult::Ok { node: "a".to_owned() } } else { CallResult::Failed(error) };
        Call { worker: 0, seq: 0, start: start * MS, end: end * MS, result }
    }
    fn of(calls: &[Call]) -> Vec<(u64, u64)> {
        let all = outages(&calls.iter().collect::<Vec<_>>(), 1_000 * MS);
        all.into_iter().map(|(a, b)| (a / MS, b / MS)).collect()
    }

    #[test]
    fn an_outage_lasts_from_the_first_lost_call_until_the_last_one_held_up_got_through() {
        let calls = [
            call(100, 700, true),
            call(990, 1_000, false),
            call(1_010, 1_015, false),
            call(1_020, 1_300, true),
            call(1_100, 1_350, true),
            call(1_310, 1_400, true),
        ];
        assert_eq!(of(&calls), [(990, 1_350)]);
    }

    #[test]
    fn a_call_that_was_blocked_and_answered_counts_and_a_quick_one_does_not() {
        assert_eq!(of(&[call(1_000, 1_499, true)]), []);
        assert_eq!(of(&[call(1_000, 1_500, true)]), [(1_000, 1_500)]);
    }

    #[test]
    fn trouble_after_three_quiet_seconds_is_another_outage_and_one_without_an_end_lasts() {
        let calls = [
            call(1_000, 1_010, false),
            call(1_020, 1_100, true),
            call(4_100, 4_200, false),
            call(4_300, 4_400, true),
        ];
        assert_eq!(of(&calls), [(1_000, 4_400)]);
        let calls = [call(1_000, 1_010, false), call(1_020, 1_100, true), call(4_101, 4_200, false)];
        assert_eq!(of(&calls), [(1_000, 1_100), (4_101, 4_200)]);
    }
}
