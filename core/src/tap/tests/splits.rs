//! The kernel hands bytes over in any pieces.

use super::*;

impl Session {
    /// All that can be asked, but for the clock's.
    fn observed(&self) -> String {
        let s = &self.state;
        format!(
            "{:?}",
            (
                (s.busy(), s.sent(), s.status(), s.may_commit(), s.called_in_autocommit(), s.harmless()),
                (s.read_only_block(), s.tag(), s.block_error(), s.flag("in_hot_standby"), s.key()),
                (s.fatal(), s.local_commit_only(), s.refusal(), s.login_error()),
                s.waiting().map(|w| w.number),
            )
        )
    }
}

/// A step of a session: what one side sends.
#[derive(Clone, Debug)]
enum Step {
    Out(Vec<u8>),
    In(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    let text = proptest::sample::select(vec![
        "SELECT 1",
        "COMMIT",
        "BEGIN READ ONLY",
        "BEGIN",
        "INSERT INTO t VALUES ('a;COMMIT')",
        "ROLLBACK; SELECT 1",
        "CALL p()",
    ]);
    let name = proptest::sample::select(vec!["", "s1", "s2"]);
    let out = prop_oneof![
        text.clone().prop_map(query),
        (name.clone(), text).prop_map(|(n, t)| prepare(n, t)),
        name.clone().prop_map(run),
        (name.clone(), name.clone()).prop_map(|(p, s)| [bind(p, s), sync()].concat()),
        name.clone().prop_map(|p| [execute(p), sync()].concat()),
        name.prop_map(|n| [close(b'S', n), sync()].concat()),
        Just([frame(b'd', &[7; 300]), frame(b'c', b""), sync()].concat()),
    ];
    let come = prop_oneof![
        proptest::sample::select(vec![b'I', b'T', b'E']).prop_map(ready),
        Just([frame(b'D', &[0; 500]), tag("SELECT 1"), ready(b'T')].concat()),
        Just(error("ERROR", "40001", "x")),
        Just(error("ERROR", "25006", "x")),
        Just(error("FATAL", "57P01", "bye")),
        Just(notice("WARNING", "01000", "x", "SyncRepWaitForLSN")),
        Just(param("in_hot_standby", "on")),
        Just(frame(b'G', &[0, 0, 0])),
    ];
    prop_oneof![out.prop_map(Step::Out), come.prop_map(Step::In)]
}

proptest! {
    #[test]
    fn splits_at_any_byte_change_nothing_that_is_seen(
        steps in proptest::collection::vec(step(), 0..24),
        sizes in proptest::collection::vec(1_usize..40, 1..20),
    ) {
        let mut whole = Session::logged_in();
        let mut cut = Session::new();
        let mut sizes = sizes.into_iter().cycle();
        let mut pieces = |b: &[u8], f: &mut dyn FnMut(&[u8])| {
            let mut b = b;
            while !b.is_empty() {
                let (now, rest) = b.split_at(sizes.next().expect("a cycle").min(b.len()));
                f(now);
                b = rest;
            }
        };
        pieces(&startup(), &mut |b| cut.out(b));
        pieces(&welcome(), &mut |b| cut.come(b));
        prop_assert_eq!(whole.observed(), cut.observed());
        for s in steps {
            match s {
                Step::Out(b) => {
                    whole.out(&b);
                    pieces(&b, &mut |b| cut.out(b));
                }
                Step::In(b) => {
                    whole.come(&b);
                    pieces(&b, &mut |b| cut.come(b));
                }
            }
            prop_assert_eq!(whole.observed(), cut.observed());
        }
    }

    #[test]
    fn garbage_never_makes_the_tap_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), login: bool) {
        let mut s = if login { Session::new() } else { Session::logged_in() };
        // Refused or not, it is read to its end.
        let _ = s.tap.received(&bytes);
        s.out(&bytes);
        s.observed();
    }
}

/// Every byte boundary of one whole session, one cut at a time.
#[test]
fn a_session_cut_once_at_every_byte_is_the_same_session() {
    let steps: [(bool, Vec<u8>); 8] = [
        (true, startup()),
        (false, welcome()),
        (true, [query("BEGIN READ ONLY"), prepare("s1", "SELECT 1")].concat()),
        (false, [tag("BEGIN"), ready(b'T'), frame(b'1', b""), ready(b'T')].concat()),
        (true, [run("s1"), query("COMMIT")].concat()),
        (false, [frame(b'D', b"x"), tag("SELECT 1"), param("in_hot_standby", "on"), ready(b'T')].concat()),
        (true, query("INSERT")),
        (false, [error("ERROR", "25006", "x"), notice("WARNING", "57P02", "bye", "quickdie")].concat()),
    ];
    let feed = |s: &mut Session, out: bool, b: &[u8]| if out { s.out(b) } else { s.come(b) };
    let mut whole = Session::new();
    for (out, b) in &steps {
        feed(&mut whole, *out, b);
    }
    let mut cuts = 0;
    for (at, (_, bytes)) in steps.iter().enumerate() {
        for cut in 1..bytes.len() {
            let mut s = Session::new();
            for (i, (out, b)) in steps.iter().enumerate() {
                if i == at {
                    feed(&mut s, *out, &b[..cut]);
                    feed(&mut s, *out, &b[cut..]);
                } else {
                    feed(&mut s, *out, b);
                }
            }
            assert_eq!(s.observed(), whole.observed(), "step {at}, byte {cut}");
            cuts += 1;
        }
    }
    assert!(cuts > 300, "{cuts}");
}

#[test]
fn a_refusal_comes_at_any_split_before_the_request_is_whole_to_anybody() {
    let request = auth(3, b"");
    let stream = [request.clone(), welcome()].concat();
    for size in 1..60 {
        let mut s = Session::new();
        let refused = stream.chunks(size).position(|part| s.tap.received(part).is_err());
        let i = refused.expect("a clear-text request on an open stream is refused");
        assert!(i * size < request.len(), "what had passed before is less than the frame");
    }
}
