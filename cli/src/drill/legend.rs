//! What a reader of a drill's report must know: how the plain pool is set up, what the rows mean, what to try next.

use super::fault::Fault;

/// How the plain pool is configured ([`super::plain`]).
pub(super) const PLAIN_POOL: &str = "The plain pool is tokio-postgres and deadpool: all hosts in the string, \
     target_session_attrs=read-write, default settings otherwise.";

/// What the rows mean.
pub(super) fn rows(plain: bool) -> Vec<String> {
    let mut lines = vec![
        "What the rows mean:".to_owned(),
        "  ready: the first write that the new primary acknowledged, to a prober of the drill's own".to_owned(),
        "  first success after ready: from there to the first write that it acknowledged to this client".to_owned(),
        "  unknown outcomes (of them done): writes that may have been done, by their error; in brackets those in the \
         table. Each write is one INSERT outside `run`, so nobody asks what became of it, as `run` would"
            .to_owned(),
        "  called not done, but done: writes in the table whose error was taken for \"certainly not done\"".to_owned(),
        "  causes: the outage as its calls had it; of the way back to the new primary, up to 250 ms count as what came \
         before"
            .to_owned(),
    ];
    if plain {
        lines.push(
            "  a plain pool that hangs has few errors or none: a call that waits for a silent host hasn't failed yet \
             (see longest call)"
                .to_owned(),
        );
    }
    lines
}

/// What else to try, where the fault was one that a plain pool notices at once.
pub(super) fn hint(fault: Fault) -> Option<&'static str> {
    match fault {
        Fault::Stop | Fault::Kill | Fault::SlowPromotion | Fault::SecondFailover => Some(
            "This fault resets the sockets, so a plain pool notices it at once. Where nothing is sent, it waits: try \
             --fault freeze, blackhole or demote.",
        ),
        Fault::Freeze | Fault::Blackhole | Fault::Demote | Fault::SplitBrain | Fault::Trigger => None,
    }
}
