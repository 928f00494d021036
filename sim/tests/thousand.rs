//! A thousand failovers in one process: nothing grows. `FAILOVERS=n` makes n (`make proof`); a few dozen otherwise.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use pgfollow_sim::endless;

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: usize, sign: isize) {
    LIVE.fetch_add(sign * isize::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
}

// SAFETY: everything is the system allocator's; only sums are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Failovers before the first look: queues, histograms and lists of fixed length have filled by then.
const SETTLED: usize = 20;
/// What may come and go: buffers, a session more or less.
const SWAY: isize = 400_000;

#[test]
#[expect(clippy::print_stdout, reason = "the figures of a run")]
fn a_thousand_failovers_leave_memory_tasks_and_connections_as_they_were() {
    let wanted = std::env::var("FAILOVERS").ok().map(|n| n.parse().expect("FAILOVERS is a number"));
    let last = SETTLED + wanted.unwrap_or(60);
    let mut looks = Vec::new();
    endless::fail_over_and_over(last, |seen| looks.push((LIVE.load(Ordering::Relaxed), seen)));
    let first = looks[SETTLED];
    for look in [first, looks[last - 1]] {
        println!("{} bytes live, {:?}", look.0, look.1);
    }
    for (number, (bytes, seen)) in looks.iter().enumerate().skip(SETTLED) {
        assert!(
            bytes - first.0 < SWAY,
            "{bytes} bytes after {number} failovers, {} after {SETTLED}",
            first.0
        );
        assert!(
            seen.tasks <= first.1.tasks + 4,
            "{seen:?} after {number} failovers, {first:?} after {SETTLED}"
        );
        assert!(
            seen.pipes <= first.1.pipes + 4,
            "{seen:?} after {number} failovers, {first:?} after {SETTLED}"
        );
        assert!(seen.writes > 0, "no write between failovers {} and {number}", number - 1);
    }
}
