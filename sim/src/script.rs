//! What goes wrong in a run, and what the operator does about it: stories drawn from the seed.

use std::sync::Arc;
use std::time::Duration;

use pgfollow::clock;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::node::{Mishap, Power, Trap};
use crate::world::{Inner, World};

/// One thing that goes wrong with the primary, or around it, told to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// The primary's processes are killed, a standby is promoted, the old one comes back as a standby.
    Kill,
    /// The host loses its power instead: nothing is reset.
    PowerOff,
    /// A planned switchover.
    Stop,
    /// The primary freezes, is replaced, and thaws: two primaries for a while.
    Freeze,
    /// It freezes for a moment, and nobody does anything.
    Hiccup,
    /// Everything to the primary is lost, it is replaced, the network heals: two primaries for a while.
    Blackhole,
    /// The primary is fenced (read-only), another promoted.
    Demote,
    /// The promotion takes seconds.
    SlowPromotion,
    /// The new primary dies within seconds.
    SecondFailover,
    /// A standby is promoted while the primary lives and answers.
    SplitBrain,
    /// The primary's way to the other servers is cut, not its clients': commits wait, and it is replaced meanwhile.
    Isolated,
    /// The primary crashes and recovers in place.
    Crash,
    /// The answer to a COMMIT is lost, in one of several ways.
    LostReply,
    /// Something happens at some frame.
    AnyFrame,
    /// One process sees only the old primary while another is promoted.
    Partial,
    /// The monitors' way to the primary dies, data flows on.
    MonitorsCutOff,
    /// Some of the connections to the primary die.
    SomeFlows,
    /// Everything takes longer.
    Latency,
    /// A standby is away for a while.
    StandbyDown,
    /// No standby confirms for a while: commits wait.
    NoStandby,
    /// The names don't resolve while the primary is replaced.
    NamesSilent,
    /// Nothing happens.
    Calm,
}

impl Story {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Kill,
        Self::PowerOff,
        Self::Stop,
        Self::Freeze,
        Self::Hiccup,
        Self::Blackhole,
        Self::Demote,
        Self::SlowPromotion,
        Self::SecondFailover,
        Self::SplitBrain,
        Self::Isolated,
        Self::Crash,
        Self::LostReply,
        Self::AnyFrame,
        Self::Partial,
        Self::MonitorsCutOff,
        Self::SomeFlows,
        Self::Latency,
        Self::StandbyDown,
        Self::NoStandby,
        Self::NamesSilent,
        Self::Calm,
    ];
}

/// Tells stories in a world.
pub(crate) struct Teller<'a> {
    pub(crate) world: &'a Arc<World>,
    pub(crate) rng: StdRng,
}

impl Teller<'_> {
    pub(crate) async fn tell(&mut self, story: Story) {
        self.world.note(format_args!("story: {story:?}"));
        let old = self.leader();
        match story {
            Story::Kill => {
                self.act(|w| w.kill(old));
                self.pause(100, 1_500).await;
                self.fail_over(40, 130).await;
                self.pause(500, 4_000).await;
                self.bring_back(old);
            }
            Story::PowerOff => {
                self.act(|w| w.power_off(old));
                self.pause(300, 3_000).await;
                self.fail_over(40, 130).await;
                self.pause(500, 12_000).await;
                self.bring_back(old);
            }
            Story::Stop => {
                self.act(|w| w.stop(old));
                self.pause(0, 300).await;
                self.fail_over(40, 130).await;
                self.pause(100, 2_000).await;
                self.bring_back(old);
            }
            Story::Freeze => {
                self.act(|w| w.freeze(old));
                self.pause(300, 3_000).await;
                self.fail_over(40, 130).await;
                self.pause(0, 12_000).await;
                self.act(|w| w.thaw(old));
                self.pause(0, 3_000).await;
                self.bring_back(old);
            }
            Story::Hiccup => {
                self.act(|w| w.freeze(old));
                self.pause(100, 2_500).await;
                self.act(|w| w.thaw(old));
                self.pause(0, 2_000).await;
            }
            Story::Blackhole => {
                self.act(|w| cut_off(w, old, true));
                self.pause(300, 3_000).await;
                self.fail_over(40, 130).await;
                self.pause(500, 12_000).await;
                self.act(|w| cut_off(w, old, false));
                self.pause(0, 3_000).await;
                self.bring_back(old);
            }
            Story::Demote => {
                self.act(|w| w.fence(old, true));
                self.pause(0, 800).await;
                self.fail_over(40, 130).await;
                self.pause(0, 3_000).await;
                self.bring_back(old);
            }
            Story::SlowPromotion => {
                self.act(|w| w.kill(old));
                self.pause(100, 1_000).await;
                self.fail_over(1_000, 6_000).await;
                self.pause(0, 2_000).await;
                self.bring_back(old);
            }
            Story::SecondFailover => {
                self.act(|w| w.kill(old));
                self.pause(100, 800).await;
                self.fail_over(40, 130).await;
                self.pause(0, 2_000).await;
                let second = self.leader();
                if second != old {
                    self.act(|w| w.kill(second));
                    self.pause(50, 800).await;
                    self.fail_over(40, 130).await;
                    self.pause(0, 2_000).await;
                    self.bring_back(second);
                }
                self.bring_back(old);
            }
            Story::SplitBrain => {
                self.fail_over(40, 130).await;
                self.pause(100, 5_000).await;
                self.bring_back(old);
            }
            Story::Isolated => {
                self.act(|w| w.isolate(old, true));
                self.pause(300, 4_000).await;
                self.fail_over(40, 130).await;
                self.pause(0, 8_000).await;
                self.act(|w| w.isolate(old, false));
                self.pause(0, 2_000).await;
                self.bring_back(old);
            }
            Story::Crash => {
                let takes = self.rng.random_range(100..3_000_u64);
                self.act(|w| w.crash(old, takes * 1_000));
                self.pause(takes, takes + 2_000).await;
            }
            Story::LostReply => {
                let what = [Mishap::Reset, Mishap::Black, Mishap::Kill, Mishap::PowerOff];
                self.trap(&what, true, true, 20).await;
            }
            Story::AnyFrame => {
                let what = [Mishap::Reset, Mishap::Black, Mishap::Freeze, Mishap::Kill, Mishap::PowerOff];
                let executed = self.rng.random();
                self.trap(&what, false, executed, 60).await;
            }
            Story::Partial => {
                let process = self.any_process();
                self.act(|w| {
                    for node in (0..w.nodes.len()).filter(|n| *n != old) {
                        w.black(process, node, true);
                    }
                });
                self.fail_over(40, 130).await;
                self.pause(500, 6_000).await;
                self.act(|w| (0..w.nodes.len()).for_each(|node| w.black(process, node, false)));
                self.pause(500, 2_500).await;
                self.bring_back(old);
            }
            Story::MonitorsCutOff => {
                self.act(|w| {
                    (0..w.processes.len()).for_each(|p| w.no_syn(p, old, true));
                    w.flows(old, true).into_iter().for_each(|id| w.lose_flow(id));
                });
                self.pause(1_000, 8_000).await;
                self.act(|w| (0..w.processes.len()).for_each(|p| w.no_syn(p, old, false)));
                self.pause(500, 2_000).await;
            }
            Story::SomeFlows => {
                let flows = self.world.with(|w| [w.flows(old, false), w.flows(old, true)].concat());
                for id in flows {
                    if self.rng.random_bool(0.5) {
                        self.act(|w| w.lose_flow(id));
                    }
                }
                self.pause(500, 10_000).await;
            }
            Story::Latency => {
                let extra = self.rng.random_range(5_000..400_000);
                self.act(|w| w.slow_down(extra));
                self.pause(500, 6_000).await;
                self.act(|w| w.slow_down(0));
            }
            Story::StandbyDown => {
                let standby = (old + self.rng.random_range(1..3_usize)) % 3;
                self.act(|w| w.kill(standby));
                self.pause(500, 6_000).await;
                self.bring_back(standby);
            }
            Story::NoStandby => {
                let standbys = [(old + 1) % 3, (old + 2) % 3];
                self.act(|w| standbys.into_iter().for_each(|n| w.kill(n)));
                self.pause(500, 6_000).await;
                standbys.into_iter().for_each(|n| self.bring_back(n));
            }
            Story::NamesSilent => {
                self.act(|w| w.dns_silent = true);
                self.pause(0, 2_000).await;
                self.act(|w| w.kill(old));
                self.pause(100, 1_000).await;
                self.fail_over(40, 130).await;
                self.pause(0, 3_000).await;
                self.act(|w| w.dns_silent = false);
                self.bring_back(old);
            }
            Story::Calm => self.pause(500, 3_000).await,
        }
    }

    fn act(&self, act: impl FnOnce(&mut Inner)) {
        self.world.with(act);
    }

    fn leader(&self) -> usize {
        self.world.with(|w| w.leader)
    }

    fn any_process(&mut self) -> usize {
        let all = self.world.with(|w| w.processes.len());
        self.rng.random_range(0..all)
    }

    pub(crate) async fn pause(&mut self, least_ms: u64, most_ms: u64) {
        let ms = self.rng.random_range(least_ms..=most_ms);
        clock::sleep_until(clock::now() + Duration::from_millis(ms)).await;
    }

    /// Promotes the standby that has everything, if there is one, and lets the others follow it.
    async fn fail_over(&mut self, least_ms: u64, most_ms: u64) {
        let takes = self.rng.random_range(least_ms..=most_ms) * 1_000;
        // A synchronous cluster's operator waits for a standby that lost nothing.
        for _ in 0..20 {
            let old = self.leader();
            let chosen = self.world.with(|w| {
                let best = w.most_advanced(old)?;
                (!w.model.sync || w.keeps_all(best)).then(|| w.promote(best, takes))
            });
            if chosen.is_some() {
                clock::sleep_until(clock::now() + Duration::from_micros(takes + 1_000)).await;
                self.pause(0, 500).await;
                self.act(|w| {
                    let leader = w.leader;
                    for n in 0..w.nodes.len() {
                        let able = w.nodes[n].power == Power::Up && w.nodes[n].in_recovery;
                        if able && !w.nodes[n].frozen && !w.nodes[n].isolated {
                            w.follow(n, leader);
                        }
                    }
                });
                return;
            }
            self.pause(100, 300).await;
        }
    }

    /// The server comes back: as a standby, or as the primary that it still is.
    fn bring_back(&mut self, node: usize) {
        let takes = self.rng.random_range(50..1_500_u64) * 1_000;
        self.act(|w| {
            if w.leader != node {
                w.rejoin(node, takes);
            } else if matches!(w.nodes[node].power, Power::Down | Power::Off) {
                w.start(node, takes);
            }
        });
    }

    /// Sets a trap, waits until it has sprung, and repairs what it did.
    async fn trap(&mut self, what: &[Mishap], commits: bool, executed: bool, within: u32) {
        let old = self.leader();
        let what = *what.choose(&mut self.rng).unwrap_or(&Mishap::Reset);
        let after = self.rng.random_range(0..within);
        self.act(|w| w.nodes[old].trap = Some(Trap { after, commits, executed, what }));
        for _ in 0..40 {
            if self.world.with(|w| w.nodes[old].trap.is_none()) {
                break;
            }
            self.pause(100, 100).await;
        }
        self.act(|w| w.nodes[old].trap = None);
        self.pause(200, 2_000).await;
        let broken = self.world.with(|w| w.nodes[old].frozen || w.nodes[old].power != Power::Up);
        if !broken {
            return;
        }
        if self.rng.random_bool(0.7) {
            self.fail_over(40, 130).await;
            self.pause(0, 3_000).await;
        }
        self.act(|w| w.thaw(old));
        self.bring_back(old);
    }

    /// All is well again: one primary, its standbys, an open network.
    pub(crate) fn heal(&mut self) {
        self.world.note(format_args!("all is healed"));
        let all = self.world.with(|w| {
            w.dns_silent = false;
            for p in 0..w.processes.len() {
                for n in 0..w.nodes.len() {
                    w.paths[p][n].extra_us = 0;
                    w.black(p, n, false);
                    w.no_syn(p, n, false);
                }
            }
            for n in 0..w.nodes.len() {
                w.thaw(n);
                w.isolate(n, false);
                w.nodes[n].trap = None;
            }
            let leader = w.leader;
            w.nodes[leader].fenced = false;
            w.nodes.len()
        });
        let leader = self.leader();
        for node in (0..all).filter(|n| *n != leader) {
            let well = self.world.with(|w| {
                let n = &w.nodes[node];
                n.in_recovery && n.upstream == Some(leader) && matches!(n.power, Power::Up | Power::Starting)
            });
            if !well {
                self.bring_back(node);
            }
        }
        self.bring_back(leader);
    }
}

fn cut_off(w: &mut Inner, node: usize, on: bool) {
    (0..w.processes.len()).for_each(|p| w.black(p, node, on));
    w.isolate(node, on);
}
