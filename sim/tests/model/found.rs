//! What the simulation has found in the library: each was a bug once.

use pgfollow_sim::{Broken, Options, Story, run};

fn never(stories: &[Story], seeds: u64, is: fn(&Broken) -> bool) {
    let options = Options { stories: stories.to_vec(), ..Options::default() };
    for seed in 0..seeds {
        let report = run(seed, &options);
        let bad: Vec<_> = report.broken.iter().filter(|b| is(b)).map(ToString::to_string).collect();
        assert!(bad.is_empty(), "SEED={seed} of {stories:?}: {bad:?}");
    }
}

/// A harmless statement on a superseded host was given a second to finish, and its caller could send a COMMIT behind it:
/// acknowledged there, and lost.
#[test]
fn no_commit_follows_a_slow_statement_to_an_older_primary() {
    never(&[Story::SplitBrain], 80, |b| matches!(b, Broken::Stale(_)));
}

/// A connect that waited for a silent host (`connect_timeout`, 5 s) didn't hear that another one was primary by now.
#[test]
fn a_caller_who_dials_a_silent_host_is_not_kept_from_the_new_primary() {
    never(&[Story::Blackhole, Story::PowerOff, Story::Freeze], 80, |b| matches!(b, Broken::TooLong(_)));
}
