//! A node that may run for a part of the time only: what a cold, loaded server is to whoever asks it for anything.
//!
//! All its processes are stopped and let run again in turns (as cpulimit does it): that takes no privileges and works for
//! every version, and unlike a server setting that delays each login it is one capacity that all share. So more logins at
//! once are slower logins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use super::{Cluster, Node};
use crate::LabError;
use crate::process::processes_in;
use crate::sys::send_signal;

/// One turn: short beside everything that a client calls slow, long beside finding the processes.
const TURN: Duration = Duration::from_millis(50);

/// A slow node. Dropping it gives the node all of its time back.
#[derive(Debug)]
pub struct Slowed {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Lets all processes of a running node run for that percentage of the time only (1 to 100), together, until the
    /// guard is dropped. It can be killed, stopped and promoted meanwhile, not frozen.
    pub fn slow_down(&self, index: usize, percent: u8) -> Result<Slowed, LabError> {
        let node = Arc::clone(&self.nodes[index]);
        if !(1..=100).contains(&percent) {
            return Err(LabError::State(format!(
                "a node runs for 1 to 100 percent of the time, not {percent}"
            )));
        }
        node.begin_slow()?;
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let run = TURN * u32::from(percent) / 100;
        let turns = move || {
            while !ended.load(Ordering::Relaxed) {
                node.hold();
                sleep(TURN.saturating_sub(run));
                node.release();
                sleep(run);
            }
            node.end_slow();
        };
        let thread = std::thread::Builder::new().name("lab-slow".into()).spawn(turns);
        let thread = thread.inspect_err(|_| self.nodes[index].end_slow());
        let thread = thread.map_err(LabError::io("starting the thread that slows a node down"))?;
        Ok(Slowed { over, thread: Some(thread) })
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends in a released turn, within a few milliseconds.
            let _ = thread.join();
        }
    }
}

impl Node {
    /// The postmaster first: after it nothing new is forked.
    fn hold(&self) {
        let Some(postmaster) = self.postmaster_pid() else { return };
        let _ = send_signal(postmaster, libc::SIGSTOP);
        for pid in self.children(postmaster) {
            // One that is gone is no matter.
            let _ = send_signal(pid, libc::SIGSTOP);
        }
    }

    fn release(&self) {
        let Some(postmaster) = self.postmaster_pid() else { return };
        for pid in self.children(postmaster) {
            let _ = send_signal(pid, libc::SIGCONT);
        }
        let _ = send_signal(postmaster, libc::SIGCONT);
    }

    /// All processes of a server are children of its postmaster. The kernel's list of them takes a fraction of a
    /// millisecond, where it has one; looking for them takes several, and a login is done by then.
    fn children(&self, postmaster: i32) -> Vec<i32> {
        match std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")) {
            Ok(list) => list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
            Err(_) => processes_in(&self.data, false),
        }
    }
}
