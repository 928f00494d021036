//! What must hold although a server, the network or the caller's own timing works against it: no write on an older
//! primary, nothing that may have been done called transient, nothing left behind by a connector that is gone.
#![expect(clippy::disallowed_methods, reason = "tests over real sockets: real time")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use pgfollow::{Class, Code, Connector};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_postgres::SimpleQueryMessage;

/// What one server does now.
struct Play {
    timeline: AtomicU32,
    /// Logins get no answer any more, nor does anything else.
    frozen: AtomicBool,
    /// A text that begins with this is read, and nothing is answered from then on, on that session.
    deaf_from: Mutex<Option<&'static str>>,
    /// A text that begins with this is refused once, as cancelled.
    cancelled: Mutex<Option<&'static str>>,
    /// A text SLOW is answered when this is set.
    released: AtomicBool,
    texts: Mutex<Vec<String>>,
    open: AtomicUsize,
    accepted: AtomicUsize,
}

/// Rows that a text STREAM is answered with, two each second.
const STREAM: usize = 7;

struct Server {
    address: SocketAddr,
    play: Arc<Play>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(timeline: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let play = Arc::new(Play {
            timeline: timeline.into(),
            frozen: AtomicBool::new(false),
            deaf_from: Mutex::default(),
            cancelled: Mutex::default(),
            released: AtomicBool::new(false),
            texts: Mutex::default(),
            open: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
        });
        let p = Arc::clone(&play);
        let task = tokio::spawn(async move {
            let mut sessions = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let p = Arc::clone(&p);
                sessions.spawn(async move {
                    p.accepted.fetch_add(1, Ordering::SeqCst);
                    p.open.fetch_add(1, Ordering::SeqCst);
                    // A client that leaves is the end.
                    let _ = serve(stream, address.port(), &p).await;
                    p.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, play, task }
    }

    /// Ends at once, its sessions with it.
    async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    fn written(&self, text: &str) -> bool {
        self.play.texts.lock().expect("whole").iter().any(|t| t == text)
    }
}

fn message(out: &mut Vec<u8>, tag: u8, body: &[u8]) {
    out.push(tag);
    out.extend(u32::try_from(body.len() + 4).expect("short").to_be_bytes());
    out.extend(body);
}

fn row(out: &mut Vec<u8>, columns: &[Option<String>]) {
    let n = u16::try_from(columns.len()).expect("few").to_be_bytes();
    let mut names = n.to_vec();
    let mut values = n.to_vec();
    for c in columns {
        names.extend([b'c', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 25, 255, 255, 255, 255, 255, 255, 0, 0]);
        match c {
            Some(v) => {
                values.extend(u32::try_from(v.len()).expect("short").to_be_bytes());
                values.extend(v.as_bytes());
            }
            None => values.extend([255; 4]),
        }
    }
    message(out, b'T', &names);
    message(out, b'D', &values);
    message(out, b'C', b"SELECT 1\0");
}

async fn serve(mut s: TcpStream, port: u16, play: &Play) -> std::io::Result<()> {
    s.set_nodelay(true)?;
    let length = s.read_u32().await?;
    let mut startup = vec![0; usize::try_from(length).expect("small") - 4];
    s.read_exact(&mut startup).await?;
    let mut out = Vec::new();
    message(&mut out, b'R', &[0; 4]);
    for p in ["server_version\x0015.18\0", "in_hot_standby\0off\0", "default_transaction_read_only\0off\0"] {
        message(&mut out, b'S', p.as_bytes());
    }
    message(&mut out, b'K', &[0, 0, 0, 1, 0, 0, 0, 2]);
    message(&mut out, b'Z', b"I");
    let (mut status, mut deaf) = (b'I', false);
    loop {
        if !deaf && !play.frozen.load(Ordering::SeqCst) {
            s.write_all(&out).await?;
        }
        out.clear();
        let tag = s.read_u8().await?;
        let length = s.read_u32().await?;
        let mut body = vec![0; usize::try_from(length).expect("small") - 4];
        s.read_exact(&mut body).await?;
        if tag != b'Q' {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&body[..body.len() - 1]).into_owned();
        deaf |= play.deaf_from.lock().expect("whole").is_some_and(|t| text.starts_with(t));
        if play.cancelled.lock().expect("whole").take_if(|t| text.starts_with(*t)).is_some() {
            message(&mut out, b'E', b"SERROR\0VERROR\0C57014\0Mstatement timeout\0\0");
            message(&mut out, b'Z', &[status]);
            continue;
        }
        let mut tag = "INSERT 0 1";
        if text.contains("current_setting('default_transaction_read_only')") {
            let some = |v: &str| Some(v.to_owned());
            let timeline = format!("{:08X}", play.timeline.load(Ordering::SeqCst));
            let start = some(&port.to_string());
            row(&mut out, &[some("f"), some("off"), some(&timeline), some("7"), start, None, None, None]);
            tag = "SET";
        } else if text.contains("pg_is_in_recovery") {
            row(&mut out, &[Some("f".to_owned())]);
        } else if text.starts_with("START") || text.starts_with("BEGIN") {
            (status, tag) = (b'T', "BEGIN");
        } else if text.starts_with("ROLLBACK") {
            (status, tag) = (b'I', "ROLLBACK");
        } else if text.starts_with("SLOW") {
            while !play.released.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        } else if text.starts_with("STREAM") {
            for _ in 0..STREAM {
                row(&mut out, &[Some("x".to_owned())]);
                s.write_all(&out).await?;
                out.clear();
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        play.texts.lock().expect("whole").push(text);
        message(&mut out, b'C', format!("{tag}\0").as_bytes());
        message(&mut out, b'Z', &[status]);
    }
}

fn connector(servers: &[&Server], more: &str) -> Connector {
    let hosts: Vec<_> = servers.iter().map(|_| "127.0.0.1".to_owned()).collect();
    let ports: Vec<_> = servers.iter().map(|s| s.address.port().to_string()).collect();
    let text = format!(
        "host={} port={} user=u dbname=d sslmode=disable target_session_attrs=read-write max_connect_rate=10000 {more}",
        hosts.join(","),
        ports.join(",")
    );
    Connector::new(&text).expect("a connector")
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// Both answer and take writes; the process has seen the newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_newer_primary_down_the_older_one_is_not_written_to() {
    for more in ["", "monitor=off"] {
        let (older, newer) = (Server::start(1).await, Server::start(2).await);
        let connector = connector(&[&older, &newer], more);
        if more.is_empty() {
            let session = connector.connect().await.expect("a session");
            session.batch_execute("INSERT 1").await.expect("a write");
            assert!(newer.written("INSERT 1") && !older.written("INSERT 1"));
            until("both are known", || connector.topology().hosts.iter().all(|h| h.answer_age_ms.is_some()))
                .await;
        } else {
            // Nobody looks around; what sessions learned counts all the same.
            older.play.frozen.store(true, Ordering::SeqCst);
            drop(connector.connect_within(Duration::from_secs(20)).await.expect("a session"));
            older.play.frozen.store(false, Ordering::SeqCst);
        }
        newer.stop().await;
        let result = connector.connect_within(Duration::from_secs(3)).await;
        if let Ok(session) = &result {
            session.batch_execute("INSERT 2").await.expect("a write");
        }
        assert!(!older.written("INSERT 2"), "a write went to the older primary ({more})");
        let error = result.expect_err("no host may be written to");
        assert_eq!((error.code(), error.class()), (Code::DeadlinePassed, Class::Transient), "{error}");
        assert!(error.to_string().contains("older primary"), "{error}");
        older.stop().await;
    }
}

/// A dropped transaction sends ROLLBACK and waits for nothing; what is sent behind it runs by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_behind_a_dropped_transaction_is_unknown_when_the_connection_goes() {
    let server = Server::start(1).await;
    let connector = connector(&[&server], "monitor=off");
    let mut session = connector.connect().await.expect("a session");
    let why = session.why();
    drop(session.transaction().await.expect("a transaction"));
    *server.play.deaf_from.lock().expect("whole") = Some("ROLLBACK");
    let mut session2 = connector.connect().await.expect("another session");
    let tx = session2.transaction().await.expect("a transaction");
    drop(tx);
    let why2 = session2.why();
    let call = session2.batch_execute("INSERT 1");
    let result = why2.within(Duration::from_millis(500), call).await;
    assert!(server.written("INSERT 1"), "it has left");
    assert_eq!(result.expect_err("nobody answered").class(), Class::UnknownOutcome);
    drop((session, why));
    server.stop().await;
}

/// The call's deadline passes while its request waits for its turn to be written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_ran_out_of_time_and_is_called_transient_has_not_left() {
    let server = Server::start(1).await;
    let connector = connector(&[&server], "monitor=off");
    let (mut transient, mut wrong) = (0, Vec::new());
    for i in 0..400_u64 {
        let session = connector.connect().await.expect("a session");
        let text = format!("INSERT {i}");
        let result = session.within(Duration::from_micros(i % 40), session.batch_execute(&text)).await;
        match result.map_err(|e| e.class()) {
            Err(Class::Transient) => {
                transient += 1;
                wrong.push(text);
            }
            Err(Class::UnknownOutcome) | Ok(()) => {}
            other => panic!("{other:?}"),
        }
    }
    // What has left has arrived by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    wrong.retain(|t| server.written(t));
    assert!(wrong.is_empty(), "{} of {transient} transient calls were done: {wrong:?}", wrong.len());
    server.stop().await;
}

/// All processes of a host are stopped: its kernel takes what is sent, and nobody answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connector_that_is_gone_leaves_nothing_at_a_frozen_host() {
    let (frozen, other) = (Server::start(1).await, Server::start(1).await);
    let connector = connector(&[&frozen, &other], "");
    drop(connector.connect().await.expect("a session"));
    until("both are known", || connector.topology().hosts.iter().all(|h| h.answer_age_ms.is_some())).await;
    frozen.play.frozen.store(true, Ordering::SeqCst);
    // Long enough for a question that gets no answer.
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    drop(connector);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let open = || (frozen.play.open.load(Ordering::SeqCst), other.play.open.load(Ordering::SeqCst));
    let accepted =
        || frozen.play.accepted.load(Ordering::SeqCst) + other.play.accepted.load(Ordering::SeqCst);
    let before = accepted();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(accepted(), before, "somebody still dials");
    assert_eq!(open(), (0, 0), "sessions are still open");
    frozen.stop().await;
    other.stop().await;
}

/// It logs everybody in and answers no question (its disk hangs, say).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_that_ran_out_of_time_leave_no_session_behind() {
    let server = Server::start(1).await;
    *server.play.deaf_from.lock().expect("whole") = Some("SELECT");
    let connector = connector(&[&server], "monitor=off connect_timeout=2");
    for _ in 0..2 {
        let (a, b) = tokio::join!(connector.connect(), connector.connect());
        assert!(a.is_err() && b.is_err());
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(server.play.open.load(Ordering::SeqCst), 0, "of {:?}", server.play.accepted);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_dropped_during_a_call_leaves_no_socket_behind() {
    let server = Server::start(1).await;
    let connector = connector(&[&server], "monitor=off");
    let session = connector.connect().await.expect("a session");
    *server.play.deaf_from.lock().expect("whole") = Some("INSERT");
    let call = session.batch_execute("INSERT 1");
    assert!(tokio::time::timeout(Duration::from_millis(300), call).await.is_err());
    drop(session);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(server.play.open.load(Ordering::SeqCst), 0);
    server.stop().await;
}

/// A stream of rows doesn't borrow its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_still_flow_outlive_their_session() {
    let server = Server::start(1).await;
    let session = connector(&[&server], "monitor=off").connect().await.expect("a session");
    let rows = session.simple_query_raw("STREAM").await.expect("sent");
    drop(session);
    let rows = rows.filter(|m| std::future::ready(matches!(m, Ok(SimpleQueryMessage::Row(_)) | Err(_))));
    assert_eq!(rows.try_collect::<Vec<_>>().await.expect("all of them").len(), STREAM);
    server.stop().await;
}

/// What can't have committed anything may end in its own time. Nothing may follow it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_let_finish_on_an_older_primary_is_the_last_one_there() {
    let (older, newer) = (Server::start(1).await, Server::start(1).await);
    let connector = connector(&[&older, &newer], "");
    let mut session = connector.connect().await.expect("a session");
    let (older, newer) = if session.address().to_string().ends_with(&older.address.port().to_string()) {
        (older, newer)
    } else {
        (newer, older)
    };
    until("both are known", || connector.topology().hosts.iter().all(|h| h.answer_age_ms.is_some())).await;
    let call = async move {
        let tx = session.transaction().await.expect("a transaction");
        tx.batch_execute("SLOW").await.map_err(|e| tx.why().diagnose(e))?;
        tx.commit().await
    };
    let call = tokio::spawn(call);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut events = connector.events();
    newer.play.timeline.store(2, Ordering::SeqCst);
    loop {
        let event = events.recv().await.expect("an event");
        if matches!(event.kind, pgfollow::EventKind::Topology(pgfollow::TopologyEvent::NewPrimary { .. })) {
            break;
        }
    }
    // The newer one's second word.
    tokio::time::sleep(Duration::from_millis(200)).await;
    older.play.released.store(true, Ordering::SeqCst);
    let result = call.await.expect("no panic");
    assert!(older.written("SLOW"), "it was not let finish");
    assert!(!older.written("COMMIT"), "a commit went to the older primary ({result:?})");
    let error = result.expect_err("its host is superseded");
    assert_eq!((error.class(), error.code()), (Class::Transient, Code::Superseded), "{error}");
    older.stop().await;
    newer.stop().await;
}

/// A server of the old kind is asked for its role; what it answers is printed by whoever logs the error.
#[tokio::test]
async fn a_role_refused_with_control_characters_reaches_no_terminal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut s, _)) = listener.accept().await {
            let mut out = Vec::new();
            message(&mut out, b'R', &[0; 4]);
            message(&mut out, b'S', b"server_version\x0013.9\0");
            message(&mut out, b'K', &[0, 0, 0, 1, 0, 0, 0, 2]);
            message(&mut out, b'Z', b"I");
            let mut buf = [0; 4_096];
            let _ = s.read(&mut buf).await;
            let _ = s.write_all(&out).await;
            let _ = s.read(&mut buf).await;
            out.clear();
            let text = format!("SERROR\0VERROR\0C42501\0Mno\x1b]0;x\x07 {}\0\0", "long ".repeat(10_000));
            message(&mut out, b'E', text.as_bytes());
            message(&mut out, b'Z', b"I");
            let _ = s.write_all(&out).await;
            let _ = s.read(&mut buf).await;
        }
    });
    let text = format!(
        "host=127.0.0.1 port={port} user=u dbname=d sslmode=disable target_session_attrs=read-write monitor=off"
    );
    let e = Connector::new(&text).expect("a connector").connect().await.map(drop).expect_err("no role");
    let shown = e.to_string();
    assert!(shown.contains("could not be read"), "{e:?}");
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n') && shown.len() < 4_000, "{shown:?}");
}

/// A statement_timeout on a server that is at its busiest, just promoted: the next LISTEN is taken.
#[tokio::test]
async fn a_listen_that_was_cancelled_once_does_not_end_the_listener_for_good() {
    let server = Server::start(1).await;
    *server.play.cancelled.lock().expect("whole") = Some("LISTEN");
    let connector = connector(&[&server], "");
    let listener = connector.listener(["orders"]).expect("a listener");
    let listening = listener.channels();
    let listening = tokio::time::timeout(Duration::from_secs(20), listening.listening()).await;
    assert_eq!(listening, Ok(true));
    assert!(server.play.cancelled.lock().expect("whole").is_none(), "none was cancelled");
    server.stop().await;
}
