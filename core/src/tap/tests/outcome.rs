//! What may have been done by a request, whatever comes between.

use super::*;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut m = vec![tag];
    m.extend(u32::try_from(body.len() + 4).expect("short").to_be_bytes());
    m.extend(body);
    m
}

/// A session that has logged in, and both directions of its bytes.
struct Wire(Tap, Arc<TapState>);

impl Wire {
    fn new() -> Self {
        let rules = Rules {
            require_auth: None,
            channel_binding: ChannelBinding::Prefer,
            encrypted: false,
            private: true,
            can_bind: false,
        };
        let (tap, state) = Tap::new(Box::new(duplex(1).0), rules);
        let mut this = Self(tap, state);
        this.0.accepted(&[0, 0, 0, 8, 0, 3, 0, 0]);
        this.server(b'R', &[0; 4]);
        this.server(b'Z', b"I");
        this
    }

    fn server(&mut self, tag: u8, body: &[u8]) {
        self.0.received(&message(tag, body)).expect("the tap refuses nothing");
    }

    fn client(&mut self, tag: u8, body: &[u8]) {
        self.0.accepted(&message(tag, body));
    }

    fn query(&mut self, text: &str) {
        self.client(b'Q', format!("{text}\0").as_bytes());
    }

    fn done(&mut self, tag: &str, status: u8) {
        self.server(b'C', format!("{tag}\0").as_bytes());
        self.server(b'Z', &[status]);
        self.0.state.answer_read(false);
    }

    /// A query and its whole answer.
    fn ran(&mut self, text: &str, status: u8) {
        self.query(text);
        self.done("X", status);
    }
}

#[test]
fn a_statement_dropped_behind_a_commit_does_not_hide_that_it_was_answered_rollback() {
    let mut w = Wire::new();
    w.ran("BEGIN", b'T');
    w.ran("INSERT", b'E');
    w.query("COMMIT");
    w.done("ROLLBACK", b'I');
    // tokio-postgres closes a statement when its last handle goes, whatever the session does.
    w.client(b'C', b"Ss1\0");
    w.client(b'S', b"");
    assert_eq!(w.1.tag(), "ROLLBACK");
    w.server(b'3', b"");
    w.server(b'Z', b"I");
    assert_eq!(w.1.tag(), "ROLLBACK");
}

#[test]
fn a_statement_dropped_behind_a_commit_does_not_hide_that_it_is_local_alone() {
    let mut w = Wire::new();
    w.ran("BEGIN", b'T');
    w.query("COMMIT");
    w.server(b'N', b"SWARNING\0VWARNING\0C01000\0Mlocally\0RSyncRepWaitForLSN\0\0");
    w.done("COMMIT", b'I');
    w.client(b'C', b"Ss1\0");
    w.client(b'S', b"");
    assert!(w.1.local_commit_only());
    w.server(b'Z', b"I");
    w.ran("BEGIN", b'T');
    w.query("COMMIT");
    assert!(!w.1.local_commit_only(), "the next commit is another one");
}

#[test]
fn what_follows_a_rollback_is_no_part_of_the_block_any_more() {
    let mut w = Wire::new();
    w.ran("BEGIN", b'T');
    w.query("ROLLBACK");
    assert!(w.1.harmless() && !w.1.may_commit(), "the rollback alone does nothing");
    w.query("INSERT INTO t VALUES (1)");
    assert!(!w.1.harmless() && w.1.may_commit(), "it runs outside the block");
    let mut w = Wire::new();
    w.ran("BEGIN", b'T');
    w.query("ABORT; INSERT INTO t VALUES (1)");
    assert!(!w.1.harmless() && w.1.may_commit());
    let mut w = Wire::new();
    w.ran("BEGIN", b'T');
    for text in [
        "INSERT INTO t VALUES (1); ROLLBACK TO SAVEPOINT s",
        "ROLLBACK WORK TO s",
        "INSERT INTO t VALUES (1)",
    ] {
        w.query(text);
    }
    assert!(w.1.harmless() && !w.1.may_commit(), "the block goes on behind a savepoint");
}

#[test]
fn a_block_that_could_write_before_it_was_made_read_only_may_commit_that() {
    for [begin, then] in [
        ["BEGIN", "INSERT INTO t VALUES (1); SET TRANSACTION READ ONLY"],
        ["BEGIN", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"],
        ["BEGIN", "SELECT * FROM read, ONLY t"],
        ["INSERT INTO t VALUES (1); BEGIN READ ONLY", "SELECT 1"],
        ["BEGIN; INSERT INTO t VALUES (1); SET TRANSACTION READ ONLY", "SELECT 1"],
        ["BEGIN READ ONLY", "NOTIFY c, 'x'"],
        ["BEGIN READ ONLY; NOTIFY c", "SELECT 1"],
        ["START TRANSACTION READ ONLY", "SELECT pg_catalog.pg_notify('c', 'x')"],
        ["BEGIN READ ONLY", "COMMIT; BEGIN"],
        ["BEGIN READ ONLY", "ROLLBACK; BEGIN; INSERT INTO t VALUES (1)"],
        ["BEGIN READ ONLY", "SET transaction_read_only = off; INSERT INTO t VALUES (1)"],
    ] {
        let mut w = Wire::new();
        w.ran(begin, b'T');
        w.ran(then, b'T');
        w.query("COMMIT");
        assert!(!w.1.only_reads() && !w.1.harmless(), "{begin}; {then}");
    }
    let mut w = Wire::new();
    w.ran("BEGIN READ ONLY", b'T');
    w.query("SET TRANSACTION READ WRITE; INSERT INTO t VALUES (1); COMMIT");
    assert!(!w.1.only_reads() && !w.1.harmless(), "it is made writable by what is out");
    let mut w = Wire::new();
    w.ran("START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE", b'T');
    w.query("COMMIT");
    assert!(w.1.only_reads() && w.1.harmless());
}

#[test]
fn a_copy_into_a_table_leaves_no_request_behind() {
    let mut w = Wire::new();
    for data_before_answer in [false, true] {
        // Bind, Execute, Sync; a server that copies ignores the Sync (manual, "COPY Operations").
        w.client(b'B', b"\0s1\0\0\0\0\0\0\0");
        w.client(b'E', b"\0\0\0\0\0");
        w.client(b'S', b"");
        let mut copying = || w.server(b'G', b"\0\0\0");
        if !data_before_answer {
            copying();
        }
        w.client(b'd', b"1\n");
        w.client(if data_before_answer { b'f' } else { b'c' }, b"");
        w.client(b'S', b"");
        if data_before_answer {
            w.server(b'G', b"\0\0\0");
        }
        assert!(w.1.busy() && w.1.sent() == Sent::Complete);
        w.done("COPY 1", b'I');
        assert!(!w.1.busy() && w.1.waiting().is_none(), "an idle session passes for a blocked call");
    }
}

#[test]
fn an_answer_that_the_caller_has_not_got_does_not_make_its_request_undone() {
    let mut w = Wire::new();
    w.query("INSERT INTO t VALUES (1) RETURNING *");
    w.server(b'C', b"INSERT 0 1\0");
    w.server(b'Z', b"I");
    assert!(w.1.busy() && w.1.sent() == Sent::Complete && !w.1.harmless());
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let mut room = [0; 8];
    let mut room = ReadBuf::new(&mut room);
    assert!(Pin::new(&mut w.0).poll_read(&mut cx, &mut room).is_ready(), "the peer is gone");
    assert!(!w.1.busy() && w.1.sent() == Sent::None);
}

#[test]
fn a_commit_that_was_answered_with_an_error_is_a_commit_behind_its_answer_too() {
    let mut w = Wire::new();
    w.ran("BEGIN", b'T');
    w.query("COMMIT");
    w.server(b'E', b"SERROR\0VERROR\0C08006\0Mthe server behind is gone\0\0");
    assert!(w.1.answers_commit());
    w.server(b'Z', b"I");
    assert!(w.1.answers_commit());
    w.ran("INSERT INTO t VALUES ('\\')", b'I');
    assert!(!w.1.answers_commit());
}

#[test]
fn a_text_that_commits_and_goes_on_may_have_committed_though_it_was_answered_with_an_error() {
    for (text, midway) in [
        ("INSERT INTO t VALUES (1); COMMIT; SELECT 1/0", true),
        ("COMMIT; SHOW nothing", true),
        ("COMMIT; SET nothing = 1", true),
        ("ROLLBACK; CALL p()", true),
        ("SELECT 1/0; COMMIT", false),
        ("ROLLBACK; SELECT 1/0; COMMIT", false),
        ("ROLLBACK TO s; CALL p()", false),
        ("COMMIT; ", false),
    ] {
        let mut w = Wire::new();
        w.ran("BEGIN", b'T');
        w.query(text);
        w.server(b'E', b"SERROR\0VERROR\0C22012\0Mx\0\0");
        assert_eq!(w.1.called_in_autocommit(), midway, "{text}");
        w.server(b'Z', b"I");
        assert_eq!(w.1.called_in_autocommit(), midway, "{text}");
    }
}

#[test]
fn a_notice_with_a_dying_code_is_no_last_word_once_the_session_goes_on() {
    let mut w = Wire::new();
    w.query("DO $$ BEGIN RAISE WARNING USING ERRCODE = '57P01'; END $$");
    w.server(b'N', b"SWARNING\0VWARNING\0C57P01\0Mmine\0\0");
    assert!(w.1.fatal().is_some(), "it could be an immediate shutdown");
    w.done("DO", b'I');
    assert_eq!((w.1.fatal(), w.1.status()), (None, TxStatus::Idle));
}

/// Tells what was known while the bytes went to the socket.
struct Asking(Arc<std::sync::OnceLock<Arc<TapState>>>, Arc<std::sync::Mutex<Vec<(Sent, bool)>>>);

impl AsyncRead for Asking {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Asking {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let state = self.0.get().expect("set");
        lock(&self.1).push((state.sent(), state.harmless()));
        Poll::Ready(Ok(buf.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn whoever_asks_while_bytes_leave_does_not_hear_that_nothing_has_left() {
    let (known, seen) = (Arc::default(), Arc::default());
    let (mut tap, state) = Tap::new(Box::new(Asking(Arc::clone(&known), Arc::clone(&seen))), rules());
    assert!(known.set(Arc::clone(&state)).is_ok());
    tap.accepted(&startup());
    tap.received(&welcome()).expect("fine");
    tap.write_all(&query("INSERT INTO t VALUES (1)")).await.expect("taken");
    assert_eq!(*lock(&seen), [(Sent::Partial, false)]);
    tap.received(&[tag("INSERT 0 1"), ready(b'I')].concat()).expect("fine");
    state.answer_read(false);
    assert_eq!((state.sent(), state.busy()), (Sent::None, false), "it is over");
    state.seal();
    tap.write(&query("INSERT INTO t VALUES (2)")).await.expect_err("nothing may leave any more");
    assert_eq!((state.sent(), state.busy(), lock(&seen).len()), (Sent::None, false, 1));
}
