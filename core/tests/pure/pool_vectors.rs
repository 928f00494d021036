//! The pool's book by `tests/vectors/pool/ours.jsonl`, and the cases of storm and lifetime from public reports
//! (`hand.jsonl`) under virtual time. The other cases of that file run on real servers (`pool.rs`, `pool_silence.rs`), but
//! for the fork, which concerns the other languages.

use std::collections::HashMap;
use std::time::Duration;

use pgfollow::decide::pace::{Ended, Pace, Price, Ticket};
use pgfollow::decide::pool::{Back, Look, Next, NotOpened, Pool, PoolRules, Seen, SlotId, WaiterId};
use pgfollow::decide::shed::Shed;
use pgfollow::{HostId, Moment};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

fn ms(v: &Value, default: u64) -> Duration {
    Duration::from_millis(v.as_u64().unwrap_or(default))
}

fn rules(v: &Value) -> PoolRules {
    let count = |key: &str| usize::try_from(v[key].as_u64().expect("a count")).expect("small");
    PoolRules {
        max: count("max"),
        min: count("min"),
        validate_after: ms(&v["validate_after"], 1_000),
        lifetime: ms(&v["lifetime"], 0),
        lifetime_jitter: v["lifetime_jitter"].as_f64().unwrap_or(0.1),
        idle_max: ms(&v["idle_max"], 600_000),
        test_every: ms(&v["test_every"], 30_000),
    }
}

struct Scene {
    pool: Pool,
    rng: StdRng,
    callers: HashMap<WaiterId, String>,
}

fn slot(v: &Value) -> SlotId {
    SlotId(usize::try_from(v.as_u64().expect("a slot")).expect("small"))
}

fn slots(all: &[SlotId]) -> Vec<usize> {
    let mut all: Vec<usize> = all.iter().map(|s| s.0).collect();
    all.sort_unstable();
    all
}

fn host(name: &str) -> HostId {
    HostId(name.trim_start_matches('h').parse().expect("h1, h2, …"))
}

fn back(v: &Value, now: Moment) -> Back {
    match v.as_str().expect("how") {
        "bad" => Back::Bad,
        "good" => Back::Good(now),
        "abandoned" => Back::Abandoned(now),
        at => Back::Good(Moment::from_millis(at.trim_start_matches("good at ").parse().expect("a time"))),
    }
}

impl Scene {
    fn next(&self, next: Next) -> Value {
        match next {
            Next::To { waiter, prove: false } => json!(format!("to {}", self.callers[&waiter])),
            Next::To { waiter, prove: true } => json!(format!("to {}, prove", self.callers[&waiter])),
            Next::Keep => json!("keep"),
            Next::Close => json!("close"),
        }
    }

    fn open(&mut self, now: Moment, on: &str) -> SlotId {
        // A caller for each, so that the book wants it.
        let waiter = self.pool.wait(false, Duration::MAX, true).expect("room");
        let slot = self.pool.open(now).expect("a place");
        assert_eq!(self.pool.opened(slot, host(on), now, &mut self.rng), Next::To { waiter, prove: false });
        slot
    }

    fn step(&mut self, step: &[Value], now: Moment) -> Value {
        let (a, b) = (step.get(1).unwrap_or(&Value::Null), step.get(2).unwrap_or(&Value::Null));
        match step[0].as_str().expect("a step") {
            "fill" => {
                for n in 0..a.as_u64().expect("how many") {
                    let on = b[usize::try_from(n).expect("small")].as_str().unwrap_or("h1").to_owned();
                    self.open(now, &on);
                }
                Value::Null
            }
            "acquire" => match self.pool.acquire(now) {
                None => Value::Null,
                Some(lend) if lend.prove => json!(format!("lend {}, prove", lend.slot.0)),
                Some(lend) => json!(format!("lend {}", lend.slot.0)),
            },
            how @ ("wait" | "wait again" | "wait while sought") => {
                let waits = self.pool.wait(how == "wait again", ms(b, 0), how == "wait while sought");
                match waits {
                    Ok(id) => {
                        self.callers.insert(id, a.as_str().expect("a name").to_owned());
                        json!("waits")
                    }
                    Err(Shed::Full(_)) => json!("full"),
                    Err(Shed::Standby(_)) => json!("standby"),
                    Err(Shed::TooSlow { predicted, retry_after }) => {
                        assert_eq!(retry_after, predicted - ms(b, 0));
                        json!("too slow")
                    }
                }
            }
            "leave" => {
                let id = self
                    .callers
                    .iter()
                    .find(|(_, name)| Some(name.as_str()) == a.as_str())
                    .map(|(id, _)| *id);
                self.pool.leave(id.expect("a caller"));
                Value::Null
            }
            "open" => self.pool.open(now).map_or(Value::Null, |s| json!(s.0)),
            "opened" => {
                let next = self.pool.opened(slot(a), host(b.as_str().expect("a host")), now, &mut self.rng);
                self.next(next)
            }
            "not opened" => {
                let why = match b {
                    Value::String(_) => NotOpened::ForGood,
                    after => NotOpened::ForNow(after.as_u64().map(Duration::from_millis)),
                };
                self.pool.not_opened(slot(a), why, now, &mut self.rng);
                Value::Null
            }
            "turn away" => json!(self.pool.turn_away().iter().map(|w| &self.callers[w]).collect::<Vec<_>>()),
            "back" => {
                let next = self.pool.back(slot(a), back(b, now), now);
                self.next(next)
            }
            "held" => {
                // Lent and given back that often, for that long each time, one after the other.
                for n in 0..a.as_u64().expect("how often") {
                    let begin = now + ms(b, 0) * u32::try_from(n).expect("small");
                    let lend = self.pool.acquire(begin).expect("an idle one");
                    let end = begin + ms(b, 0);
                    assert_eq!(self.pool.back(lend.slot, Back::Good(end), end), Next::Keep);
                }
                Value::Null
            }
            "settle" => {
                self.pool.settle();
                Value::Null
            }
            "settled" => {
                let next = self.pool.settled(slot(a), back(b, now), now);
                self.next(next)
            }
            "detach" => {
                self.pool.detach(slot(a));
                Value::Null
            }
            "silent" => json!(slots(&self.pool.silent(slot(a)))),
            "drain" => json!(slots(&self.pool.drain())),
            "sweep" => {
                let sweep = self.pool.sweep(now, |s| match &a[s.0.to_string()] {
                    Value::String(look) if look == "bad" => Look::Bad,
                    Value::String(_) => Look::Doubted,
                    // Its last byte came then; without a word it has been silent since it came back.
                    at => Look::Good(Moment::from_millis(at.as_u64().unwrap_or(0))),
                });
                json!({"close": slots(&sweep.close), "test": slots(&sweep.test)})
            }
            "look" => json!(slots(&self.pool.look(now))),
            "looked" => {
                let looked = self.pool.looked(
                    |s| match a[s.0.to_string()].as_str()? {
                        "waits" => Some(Seen::Waits),
                        "runs" => Some(Seen::Runs),
                        _ => Some(Seen::Gone),
                    },
                    now,
                );
                let refused: Vec<_> = looked.refused.iter().map(|w| &self.callers[w]).collect();
                json!({"free": slots(&looked.free), "refused": refused})
            }
            "forget" => {
                let gone: Vec<SlotId> = a.as_array().expect("slots").iter().map(slot).collect();
                self.pool.forget(&gone, now);
                Value::Null
            }
            "counts" => json!(self.pool.counts()),
            "next" => match self.pool.next() {
                Moment::NEVER => Value::Null,
                at => json!(at.as_micros() / 1_000),
            },
            other => panic!("an unknown step: {other}"),
        }
    }
}

#[test]
fn the_book_lends_opens_sheds_and_closes_as_its_vectors_say() {
    let cases = crate::support::vectors("pool/ours.jsonl");
    assert!(cases.len() >= 30);
    let mut failures = Vec::new();
    for case in &cases {
        let pool = Pool::new(rules(&case["rules"]));
        let mut scene = Scene { pool, rng: StdRng::seed_from_u64(1), callers: HashMap::new() };
        for (n, step) in case["steps"].as_array().expect("steps").iter().enumerate() {
            let now = Moment::from_millis(step["at"].as_u64().expect("a time"));
            let got = scene.step(step["do"].as_array().expect("a step"), now);
            if got != step["gives"] {
                failures.push(format!(
                    "{} step {n} {}: {got}, not {}\n    {}",
                    case["id"], step["do"], step["gives"], case["why"]
                ));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

fn hand(id: &str) -> Value {
    let cases = crate::support::vectors("pool/hand.jsonl");
    cases.into_iter().find(|c| c["id"] == id).unwrap_or_else(|| panic!("no case {id}"))
}

/// One process of the fleet: its pace, and what it has open.
struct Process {
    pace: Pace,
    rng: StdRng,
    open: u64,
    asked: u64,
    under_way: Vec<(u64, Ticket)>,
}

/// po-h06: forty pools lose all their connections at once.
#[test]
fn a_fleet_that_lost_everything_comes_back_below_its_rate_and_spread_out() {
    let case = hand("po-h06");
    let (input, expect) = (&case["input"], &case["expect"]);
    let number = |v: &Value| v.as_u64().expect("a number");
    let (pools, size, back_at) = (number(&input["pools"]), number(&input["size"]), 10_000);
    let rate = input["settings"]["max_new_per_s_per_pool"].as_f64().expect("a rate");
    let mut fleet: Vec<Process> = (0..pools)
        .map(|seed| Process {
            pace: Pace::new(rate, 0.2, Moment::ZERO),
            rng: StdRng::seed_from_u64(seed),
            open: 0,
            asked: 0,
            under_way: Vec::new(),
        })
        .collect();
    let (mut opened_at, mut full_at) = (Vec::new(), None);
    for t in 0..40_000_u64 {
        let now = Moment::from_millis(t);
        for p in &mut fleet {
            let mut ended = std::mem::take(&mut p.under_way);
            ended.retain(|(end, ticket)| {
                let over = *end <= t;
                if over {
                    let up = t >= back_at;
                    p.asked -= 1;
                    p.open += u64::from(up);
                    // A closed port is no sign of a server that suffers.
                    let how = if up { Ended::LoggedIn(Duration::from_millis(8)) } else { Ended::Otherwise };
                    p.pace.ended(*ticket, how, now);
                }
                !over
            });
            p.under_way = ended;
            while p.open + p.asked < size && p.asked < 2 {
                p.pace.ask(Some(HostId(0)), Price::Token);
                p.asked += 1;
            }
            for ticket in p.pace.poll(now, &mut p.rng) {
                if t >= back_at {
                    opened_at.push(t);
                }
                p.under_way.push((t + if t >= back_at { 8 } else { 1 }, ticket));
            }
        }
        if full_at.is_none() && fleet.iter().all(|p| p.open == size) {
            full_at = Some(t);
        }
    }
    let full = full_at.expect("all are full again") - back_at;
    assert!(full <= 1_000 * number(&expect["all_full_within_s"]), "full after {full} ms");
    let worst = (back_at..20_000)
        .map(|s| opened_at.iter().filter(|t| (s..s + 1_000).contains(*t)).count() as u64)
        .max();
    let worst = worst.expect("seconds");
    assert!(worst <= number(&expect["new_connections_per_s_at_server_max"]), "{worst} in a second");
    // "no second holds more than 3 times the mean of its 10 s window"
    let mean = pools * size / 10;
    assert!(worst <= 3 * mean, "{worst} in a second, {mean} in the mean");
}

/// po-h07: drawn anew at each look, all lifetimes would end at the earliest moment.
#[test]
fn sessions_born_together_do_not_die_together() {
    let case = hand("po-h07");
    let (input, expect) = (&case["input"], &case["expect"]);
    let seconds = |v: &Value| Duration::from_secs(v.as_u64().expect("seconds"));
    let (shortest, jitter) = (seconds(&input["max_lifetime_s"]), seconds(&input["lifetime_jitter_s"]));
    let longest = shortest + jitter;
    let size = usize::try_from(input["size"].as_u64().expect("a size")).expect("small");
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut pool = Pool::new(PoolRules {
            max: size,
            min: size,
            validate_after: Duration::from_secs(1),
            lifetime: longest,
            lifetime_jitter: jitter.as_secs_f64() / longest.as_secs_f64(),
            idle_max: Duration::MAX,
            test_every: Duration::from_secs(3600),
        });
        let mut closed = Vec::new();
        for t in 0..input["observe_s"].as_u64().expect("seconds") * 1_000 {
            let now = Moment::from_millis(t);
            // The refill takes a moment; all of the first are born in the first second.
            if t % 40 == 0
                && let Some(slot) = pool.open(now)
            {
                pool.opened(slot, HostId(0), now, &mut rng);
            }
            if t % 10 == 0
                && let Some(lend) = pool.acquire(now)
                && pool.back(lend.slot, Back::Good(now), now) == Next::Close
            {
                closed.push(t);
            }
            if t % 100 == 0 {
                closed.extend(pool.sweep(now, |_| Look::Good(now)).close.iter().map(|_| t));
            }
        }
        assert!(closed.len() >= size, "nothing grew old");
        let worst =
            closed.iter().map(|s| closed.iter().filter(|t| (*s..s + 1_000).contains(t)).count()).max();
        let most = expect["closes_in_any_1s_window_max"].as_u64().expect("a count");
        assert!(worst.unwrap_or(0) as u64 <= most, "seed {seed}: {worst:?} in one second");
    }
}
