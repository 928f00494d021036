//! What outcome checks said, against what the servers did.

use pgfollow::outcome::Unsettled;
use pgfollow::{Class, Outcome};

use super::{Broken, Counts, describe, error};
use crate::node::Entry;
use crate::workload::{Kind, Try};
use crate::world::{Inner, Marks};

pub(super) fn check(w: &Inner, ledger: &[Try], broken: &mut Vec<Broken>, counts: &mut Counts) {
    let history = &w.nodes[w.leader].wal;
    for t in ledger {
        let marked = |e: &&pgfollow::Error| e.class() == Class::UnknownOutcome && e.token().is_some();
        if error(t).filter(marked).is_none() {
            continue;
        }
        if t.job.kind == Kind::Bounded {
            counts.unsettled_bounded += 1;
        } else {
            counts.unsettled += 1;
        }
        let done = history.iter().flat_map(Entry::rows).any(|r| t.job.rows.contains(&r));
        let ever = t.job.rows.iter().any(|r| w.truth.committed.contains_key(r));
        let mut settled = !t.asked.is_empty();
        for said in &t.asked {
            let right = match said {
                // What an asynchronous primary loses was committed all the same.
                Outcome::Committed => done || (ever && !w.model.sync),
                Outcome::NotCommitted => !done,
                Outcome::Unknown(why) => {
                    settled = false;
                    // Only the table settles what lies before a recovery.
                    w.model.marks == Marks::Numbers && *why == Unsettled::Recovered
                }
            };
            if !right {
                let text =
                    format!("{said:?}, and it {} done: {}", if done { "was" } else { "wasn't" }, describe(t));
                broken.push(Broken::WrongAnswer(text));
            }
        }
        counts.never_settled += usize::from(!settled);
        if t.asked.windows(2).any(|two| two[0] != two[1]) {
            broken.push(Broken::WrongAnswer(format!("two answers, {:?}: {}", t.asked, describe(t))));
        }
    }
}
