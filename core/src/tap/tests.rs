//! What the tap sees of whole sessions, frame by frame.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;
use crate::config::ChannelBinding;
use crate::error::{Sent, SqlState, TxStatus};

mod bytes;
mod outcome;
mod splits;

use super::login::tests::rules;
use bytes::*;

/// Both directions of a session, without a stream.
struct Session {
    tap: Tap,
    state: Arc<TapState>,
}

impl Session {
    fn new() -> Self {
        let (tap, state) = Tap::new(Box::new(tokio::io::empty()), rules());
        Self { tap, state }
    }

    fn logged_in() -> Self {
        let mut s = Self::new();
        s.out(&startup());
        s.come(&welcome());
        s
    }

    fn out(&mut self, bytes: &[u8]) {
        self.tap.accepted(bytes);
    }

    fn come(&mut self, bytes: &[u8]) {
        self.tap.received(bytes).expect("nothing is refused");
        // All of it is handed on.
        self.state.answer_read(false);
    }

    /// A simple query and its answer.
    fn ask(&mut self, text: &str, status: u8) {
        self.out(&query(text));
        self.come(&[tag("X"), ready(status)].concat());
    }

    fn prepared(&mut self, name: &str, text: &str) {
        let status = match self.state.status() {
            TxStatus::Idle => b'I',
            TxStatus::InTransaction => b'T',
            TxStatus::Failed => b'E',
        };
        self.out(&prepare(name, text));
        self.come(&[frame(b'1', b""), ready(status)].concat());
    }

    fn harmless(&self) -> bool {
        self.state.harmless()
    }
}

#[test]
fn a_commit_in_flight_is_never_harmless_however_it_was_prepared() {
    for (name, text) in [("c", "COMMIT"), ("s7", "/* x */ commit and chain"), ("", "END"), ("p", "CALL p()")]
    {
        let mut s = Session::logged_in();
        s.ask("BEGIN", b'T');
        s.prepared(name, text);
        s.out(&run(name));
        assert!(!s.harmless(), "{text}");
        assert!(s.state.may_commit(), "{text}");
        s.come(&[tag("COMMIT"), ready(b'I')].concat());
        assert!(!s.state.busy() && s.harmless(), "answered: nothing is in flight");
    }
}

#[test]
fn a_write_in_an_open_block_is_harmless_and_the_same_write_outside_is_not() {
    let mut s = Session::logged_in();
    s.prepared("w", "INSERT INTO t VALUES ($1) ON CONFLICT DO NOTHING");
    s.out(&run("w"));
    assert!(!s.harmless(), "autocommit");
    s.come(&[tag("INSERT 0 1"), ready(b'I')].concat());
    s.ask("BEGIN", b'T');
    s.out(&run("w"));
    assert!(s.harmless());
    // A COMMIT is pipelined behind it.
    s.out(&query("COMMIT"));
    assert!(!s.harmless());
    s.come(&[tag("INSERT 0 1"), ready(b'T')].concat());
    assert!(!s.harmless());
}

#[test]
fn what_a_read_only_block_covers_ends_with_it() {
    let mut s = Session::logged_in();
    s.ask("START TRANSACTION READ ONLY", b'T');
    assert!(s.state.read_only_block());
    s.out(&query("SELECT 1; COMMIT"));
    assert!(s.harmless());
    s.come(&[tag("COMMIT"), ready(b'I')].concat());
    assert!(!s.state.read_only_block());
    s.out(&query("SELECT 1"));
    assert!(!s.harmless());
    for behind in ["ROLLBACK", "COMMIT"] {
        let mut s = Session::logged_in();
        s.ask("BEGIN READ ONLY", b'T');
        s.out(&query(behind));
        s.out(&query("INSERT INTO t VALUES (1)"));
        assert!(!s.harmless(), "work behind {behind}");
    }
}

#[test]
fn a_read_only_block_that_may_have_been_made_writable_does_not_count() {
    let mut s = Session::logged_in();
    s.ask("BEGIN READ ONLY", b'T');
    s.out(&query("SET TRANSACTION READ WRITE"));
    s.out(&query("SELECT f(); COMMIT"));
    assert!(!s.harmless());
    s.come(&[tag("SET"), ready(b'T')].concat());
    assert!(!s.state.read_only_block());

    // A BEGIN READ ONLY inside a block can be undone by a savepoint.
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    s.ask("BEGIN READ ONLY", b'T');
    assert!(!s.state.read_only_block());
}

#[test]
fn what_cannot_last_is_harmless_in_autocommit_too() {
    for text in ["BEGIN", "ROLLBACK", "SET x = 1", "SHOW x"] {
        let mut s = Session::logged_in();
        s.out(&prepare("a", "INSERT INTO t VALUES (1)"));
        assert!(s.harmless(), "Parse runs nothing");
        s.out(&query(text));
        assert!(s.state.busy() && s.harmless(), "{text}");
        s.out(&query("ROLLBACK PREPARED 'x'"));
        assert!(!s.harmless());
    }
}

#[test]
fn half_a_frame_is_partial_and_not_harmless() {
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    let q = query("SELECT 1");
    s.out(&q[..1]);
    assert!(s.state.sent() == Sent::Partial && s.state.busy() && !s.harmless());
    s.out(&q[1..]);
    assert!(s.state.sent() == Sent::Complete && s.harmless());

    let mut s = Session::logged_in();
    s.out(&[bind("", ""), execute("")].concat());
    assert!(s.state.busy() && s.state.sent() == Sent::Partial, "no Sync yet");
}

#[test]
fn closing_a_statement_forgets_it_and_a_name_parsed_again_keeps_its_danger() {
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    s.prepared("a", "COMMIT");
    s.prepared("a", "SELECT 1");
    s.out(&run("a"));
    assert!(!s.harmless(), "the second Parse may have failed");
    s.come(&[tag("SELECT 1"), ready(b'T')].concat());
    s.out(&[close(b'S', "a"), sync()].concat());
    s.come(&ready(b'T'));
    s.prepared("a", "SELECT 1");
    s.out(&run("a"));
    assert!(s.harmless());
}

#[test]
fn a_named_portal_keeps_the_danger_of_its_statement() {
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    s.prepared("c", "COMMIT");
    s.out(&[bind("p1", "c"), sync()].concat());
    assert!(s.harmless(), "only bound");
    s.come(&ready(b'T'));
    s.out(&[execute("p1"), sync()].concat());
    assert!(!s.harmless());
    s.come(&ready(b'T'));
    s.out(&[close(b'P', "p1"), sync()].concat());
    s.come(&ready(b'T'));
    s.prepared("r", "SELECT 1");
    s.out(&[bind("p1", "r"), execute("p1"), sync()].concat());
    assert!(s.harmless(), "the name has gone to another");
}

#[test]
fn more_names_or_longer_names_than_are_kept_are_doubt() {
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    for long in ["n".repeat(64), "n".repeat(200)] {
        s.prepared(&long, "SELECT 1");
        s.out(&run(&long));
        assert!(!s.harmless());
        s.come(&ready(b'T'));
    }
    for i in 0..4_096 {
        s.prepared(&format!("c{i}"), "SELECT 1");
    }
    s.out(&run("c4095"));
    assert!(s.harmless());
    s.come(&ready(b'T'));
    s.prepared("one more", "SELECT 1");
    s.out(&run("one more"));
    assert!(!s.harmless());
}

#[test]
fn a_text_longer_than_is_read_is_doubt() {
    for (length, harmless) in [(60_000, true), (70_000, false)] {
        let mut s = Session::logged_in();
        s.ask("BEGIN", b'T');
        let spaces = " ".repeat(length);
        s.out(&query(&format!("SELECT 1{spaces}")));
        assert_eq!(s.harmless(), harmless, "{length}");
        s.out(&query(&format!("SELECT 1{spaces};COMMIT")));
        assert!(!s.harmless(), "{length}");
    }
}

#[test]
fn a_backslash_is_doubt_until_the_server_said_what_it_means() {
    // With standard_conforming_strings=off this text commits.
    let text = "SELECT '\\'';COMMIT;--'";
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    s.out(&query(text));
    assert!(s.harmless());
    s.come(&[param("standard_conforming_strings", "off"), tag("SET"), ready(b'T')].concat());
    s.out(&query(text));
    assert!(!s.harmless());
}

#[test]
fn a_pipeline_longer_than_the_queue_is_counted_to_its_end() {
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    for _ in 0..1_500 {
        s.out(&query("SELECT 1"));
    }
    s.out(&query("COMMIT"));
    for left in (0..=1_500).rev() {
        assert!(s.state.busy() && !s.harmless(), "{left}");
        s.come(&ready(b'T'));
    }
    assert!(!s.state.busy());
}

#[test]
fn a_copy_owes_one_answer_though_two_syncs_leave() {
    let mut s = Session::logged_in();
    s.prepared("c", "COPY t FROM STDIN");
    // As tokio-postgres does: a Sync behind Execute, and another behind CopyDone.
    s.out(&run("c"));
    let number = s.state.waiting().expect("it waits").number;
    s.come(&[frame(b'2', b""), frame(b'G', &[0, 0, 0])].concat());
    assert_eq!(s.state.sent(), Sent::Partial, "without its end nothing is committed");
    let data = frame(b'd', b"1\n");
    s.out(&data[..3]);
    assert!(s.state.busy() && !s.harmless());
    assert_eq!(s.state.waiting().map(|w| w.number), Some(number));
    s.out(&data[3..]);
    s.out(&[frame(b'c', b""), sync()].concat());
    assert_eq!(s.state.sent(), Sent::Complete);
    assert_eq!(s.state.waiting().map(|w| w.number), Some(number), "the COPY is still what is in flight");
    assert!(!s.harmless());
    s.come(&[tag("COPY 1"), ready(b'I')].concat());
    assert!(!s.state.busy(), "no answer is owed any more");

    // With a simple query there is no Sync at all.
    s.out(&query("COPY t FROM STDIN"));
    s.come(&frame(b'G', &[0, 0, 0]));
    s.out(&[frame(b'd', b"1\n"), frame(b'c', b"")].concat());
    assert!(s.state.busy());
    s.come(&[tag("COPY 1"), ready(b'I')].concat());
    assert!(!s.state.busy());
}

#[test]
fn half_of_a_copys_data_in_an_open_block_is_harmless() {
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    s.prepared("c", "COPY t FROM STDIN");
    s.out(&run("c"));
    s.come(&[frame(b'2', b""), frame(b'G', &[0, 0, 0])].concat());
    for cut in 1..7 {
        let mut s = Session::logged_in();
        s.ask("BEGIN", b'T');
        s.prepared("c", "COPY t FROM STDIN");
        s.out(&run("c"));
        s.come(&frame(b'G', &[0, 0, 0]));
        s.out(&frame(b'd', b"1\n")[..cut]);
        assert!(s.state.busy() && s.harmless(), "{cut}");
    }
}

#[test]
fn a_copy_whose_data_flows_is_not_taken_for_a_blocked_call() {
    let mut s = Session::logged_in();
    s.prepared("c", "COPY t FROM STDIN");
    s.out(&run("c"));
    s.come(&frame(b'G', &[0, 0, 0]));
    let before = s.state.waiting().expect("it waits").since;
    let busy_for_a_while = std::sync::mpsc::channel::<()>().1;
    let _ = busy_for_a_while.recv_timeout(std::time::Duration::from_millis(5));
    s.out(&frame(b'd', b"1\n"));
    let after = s.state.waiting().expect("it waits");
    assert!(after.since > before && after.since == s.state.last_out());
}

#[test]
fn a_commit_answered_rollback_shows_its_tag_and_what_first_failed_the_block() {
    let mut s = Session::logged_in();
    s.ask("BEGIN", b'T');
    s.out(&query("INSERT"));
    s.come(&[error("ERROR", "40001", "could not serialize"), ready(b'E')].concat());
    s.out(&query("SELECT 1"));
    s.come(&[error("ERROR", "25P02", "aborted"), ready(b'E')].concat());
    s.out(&query("COMMIT"));
    s.come(&[tag("ROLLBACK"), ready(b'I')].concat());
    assert_eq!(s.state.tag(), "ROLLBACK");
    assert_eq!(s.state.block_error(), SqlState::new("40001"));
    s.ask("BEGIN", b'T');
    assert_eq!(s.state.block_error(), None);
}

#[test]
fn a_procedure_in_autocommit_is_remembered_past_its_answer_and_no_longer() {
    let mut s = Session::logged_in();
    s.out(&query("CALL p()"));
    s.come(&error("ERROR", "22012", "x"));
    assert!(s.state.called_in_autocommit());
    s.come(&ready(b'I'));
    assert!(s.state.called_in_autocommit());
    s.ask("SELECT 1", b'I');
    assert!(!s.state.called_in_autocommit());
    s.ask("BEGIN", b'T');
    s.out(&query("CALL p()"));
    assert!(!s.state.called_in_autocommit(), "in a block it can't commit");
}

#[test]
fn a_crash_that_comes_as_a_notice_is_the_sessions_end_and_an_error_is_not() {
    let mut s = Session::logged_in();
    s.come(&error("ERROR", "22P02", "invalid input"));
    assert_eq!(s.state.fatal(), None);
    s.come(&notice("WARNING", "57P02", "terminating\n\x1b[31mconnection", "quickdie"));
    let fatal = s.state.fatal().expect("seen");
    assert_eq!((fatal.sqlstate.as_str(), fatal.message.as_str()), ("57P02", "terminating  [31mconnection"));
    s.come(&notice("NOTICE", "00000", "later", "f"));
    assert!(s.state.fatal().is_some(), "not forgotten");
}

#[test]
fn a_local_only_commit_is_known_by_its_routine_in_any_language() {
    let mut s = Session::logged_in();
    s.out(&query("COMMIT"));
    s.come(&notice("WARNING", "01000", "canceling wait for synchronous replication", "other"));
    assert!(!s.state.local_commit_only());
    s.come(&notice("WARNING", "01000", "abbruch des Wartens", "SyncRepWaitForLSN"));
    assert!(s.state.local_commit_only());
    s.come(&[tag("COMMIT"), ready(b'I')].concat());
    s.out(&query("COMMIT"));
    assert!(!s.state.local_commit_only(), "the next one starts afresh");
}

#[test]
fn a_refused_write_is_news_with_the_block_it_came_in() {
    let mut s = Session::logged_in();
    assert_eq!(s.state.take_news(), None, "the login's own parameters are none");
    s.out(&query("INSERT"));
    s.come(&[error("ERROR", "25006", "x"), ready(b'I')].concat());
    let news = s.state.take_news().expect("some");
    assert_eq!((news.read_only_refusals, news.in_read_only_block), (1, false));
    s.ask("BEGIN READ ONLY", b'T');
    s.out(&query("INSERT"));
    s.come(&[error("ERROR", "25006", "x"), ready(b'E')].concat());
    assert!(s.state.take_news().expect("some").in_read_only_block);
    assert_eq!(s.state.take_news(), None, "told once");
    s.come(&error("ERROR", "25001", "x"));
    assert_eq!(s.state.take_news(), None);
}

#[test]
fn a_huge_error_after_login_is_not_kept_whole() {
    let mut s = Session::logged_in();
    let big = error("FATAL", "57P01", &"x".repeat(1 << 20));
    for part in big.chunks(8_192) {
        s.come(part);
    }
    let fatal = s.state.fatal().expect("seen");
    assert_eq!(fatal.sqlstate.as_str(), "57P01");
    assert!(fatal.message.len() <= 1_030);
}

#[test]
fn parameters_are_bounded_and_an_outdated_value_is_never_kept() {
    let mut s = Session::logged_in();
    s.come(&param("in_hot_standby", "off"));
    assert_eq!(s.state.take_news(), None, "the same value is no change");
    s.come(&param("in_hot_standby", "on"));
    assert_eq!(s.state.take_news().and_then(|n| n.in_hot_standby), Some(true));
    for i in 0..100 {
        s.come(&param(&format!("p{i}"), "on"));
    }
    assert_eq!((s.state.flag("p0"), s.state.flag("p99")), (Some(true), None));
    s.come(&param("in_hot_standby", "off"));
    assert_eq!(s.state.flag("in_hot_standby"), Some(false), "a known one goes on being followed");
    for too_long in [1_025, 5_000] {
        s.come(&param("in_hot_standby", "on"));
        s.come(&param("in_hot_standby", &"x".repeat(too_long)));
        assert_eq!(s.state.flag("in_hot_standby"), None);
    }
}

#[test]
fn a_long_cancel_key_that_nobody_asked_for_is_not_cut_to_a_wrong_one() {
    let mut s = Session::new();
    s.come(&[auth(0, b""), frame(b'K', &[1; 36]), ready(b'I')].concat());
    assert_eq!(s.state.key(), None);
    assert_eq!(Session::logged_in().state.key(), Some((4242, 99)));
}

fn refused(bytes: &[u8]) -> Failure {
    let mut s = Session::new();
    s.out(&startup());
    s.tap.received(bytes).expect_err("refused");
    s.state.refusal().expect("and kept")
}

#[test]
fn strangers_are_known_by_their_first_byte() {
    for first in [&b"HTTP/1.1 400"[..], b"\x15\x03\x03\0\x02", b"SSH-2.0-x", &ready(b'I'), &param("a", "b")] {
        assert!(matches!(refused(first), Failure::NotPostgres(_)), "{first:?}");
    }
    // Nothing but the session's start comes behind AuthenticationOk.
    for later in [auth(3, b""), frame(b'D', b""), tag("SELECT 1"), frame(b'G', &[0, 0, 0])] {
        assert!(matches!(refused(&[auth(0, b""), later].concat()), Failure::NotPostgres(_)));
    }
}

#[test]
fn sizes_are_refused_before_they_are_read() {
    // Only the header has come.
    assert!(matches!(refused(&[b'E', 0, 0, 0x75, 0x35]), Failure::TooLarge(_)), "one byte more than 30,000");
    assert!(matches!(refused(&[b'R', 0xff, 0xff, 0xff, 0xff]), Failure::TooLarge(_)));
    assert!(matches!(refused(&[b'R', 0, 0, 0, 3]), Failure::NotPostgres(_)));
    let many = param("p", &"x".repeat(20_000)).repeat(14);
    assert!(matches!(refused(&[auth(0, b""), many].concat()), Failure::TooLarge(_)));
    // After the login a row may be as large as it likes.
    let mut s = Session::logged_in();
    s.come(&frame(b'D', &vec![0; 300_000]));
}

#[test]
fn the_servers_refusal_is_kept_clean_and_marked_where_anyone_could_have_written_it() {
    for (private, after_auth) in [(false, false), (true, true)] {
        let (mut tap, state) = Tap::new(Box::new(tokio::io::empty()), Rules { private, ..rules() });
        if after_auth {
            tap.received(&auth(0, b"")).expect("fine");
        }
        tap.received(&error("FATAL", "3D000", "no\x1b[0m such")).expect("tokio-postgres reads it");
        let text = if private { "no [0m such" } else { "no [0m such (without TLS, unverified)" };
        let expected = Failure::Server {
            sqlstate: SqlState::new("3D000").expect("one"),
            message: text.to_owned(),
            after_auth,
        };
        assert_eq!(state.login_error(), Some(expected));
    }
}

#[tokio::test]
async fn no_byte_is_changed_in_either_direction() {
    // A pipe of seven bytes cuts everything to pieces.
    let (near, mut far) = duplex(7);
    let (mut tap, state) = Tap::new(Box::new(near), rules());
    let server = [welcome(), frame(b'D', &[9; 3_000]), tag("SELECT 1"), ready(b'T')].concat();
    let client = [startup(), query("BEGIN"), prepare("s1", "SELECT 1"), run("s1"), frame(b'X', b"")].concat();
    let (expected_in, expected_out) = (server.clone(), client.clone());
    let far = tokio::spawn(async move {
        let mut got = vec![0; expected_out.len()];
        far.read_exact(&mut got).await.expect("all of it");
        assert_eq!(got, expected_out);
        far.write_all(&server).await.expect("room");
    });
    tap.write_all(&client).await.expect("sent");
    let mut got = Vec::new();
    tap.read_to_end(&mut got).await.expect("read");
    far.await.expect("the far side");
    assert_eq!(got, expected_in);
    assert_eq!(state.tag(), "SELECT 1");
}

#[tokio::test]
async fn after_a_refusal_nothing_is_written_any_more() {
    let (near, mut far) = duplex(4_096);
    let (mut tap, state) = Tap::new(Box::new(near), rules());
    tap.write_all(&startup()).await.expect("sent");
    far.write_all(&auth(3, b"")).await.expect("room");
    let mut buf = [0; 64];
    tap.read(&mut buf).await.expect_err("refused");
    assert!(matches!(state.refusal(), Some(Failure::AuthMethod(_))));
    tap.write_all(&frame(b'p', b"secret\0")).await.expect_err("refused");
    drop(tap);
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.expect("read");
    assert_eq!(got, startup());
}

/// A stream whose writes fail.
struct Dead;

impl AsyncRead for Dead {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Dead {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_failed_write_left_nothing_unless_tls_may_have_sent_its_first_record() {
    for (encrypted, size, sent) in
        [(false, 40_000, Sent::None), (true, 1_000, Sent::None), (true, 40_000, Sent::Complete)]
    {
        let (mut tap, state) = Tap::new(Box::new(Dead), Rules { encrypted, ..rules() });
        tap.accepted(&startup());
        tap.received(&welcome()).expect("fine");
        let text = format!("INSERT INTO t VALUES ('{}')", "x".repeat(size));
        tap.write(&query(&text)).await.expect_err("dead");
        assert_eq!(state.sent(), sent, "{encrypted} {size}");
        assert_eq!(state.busy(), sent != Sent::None);
    }
}

#[tokio::test]
async fn a_request_that_the_socket_does_not_take_yet_is_no_rest() {
    let (near, mut far) = duplex(startup().len());
    let (mut tap, state) = Tap::new(Box::new(near), rules());
    tap.write_all(&startup()).await.expect("room");
    tap.received(&welcome()).expect("fine");
    assert!(!state.inside());
    let begin = query("BEGIN");
    assert!(futures_util::poll!(std::pin::pin!(tap.write(&begin))).is_pending(), "no room");
    assert!(state.inside() && !state.busy(), "nothing has left, and something is about to");
    far.read_exact(&mut vec![0; startup().len()]).await.expect("it came");
    let rest = tap.write(&begin).await.expect("room again");
    tap.accepted(&begin[rest..]);
    tap.received(&[tag("BEGIN"), ready(b'I')].concat()).expect("fine");
    assert!(!state.inside());
}
