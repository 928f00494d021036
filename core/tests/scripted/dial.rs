//! Hazards of opening a socket: options set too late, sockets that outlive a dropped dial, ports that nobody owns.

use std::io::ErrorKind;
use std::time::Duration;

use pgfollow::clock;
use pgfollow::dial::TcpDial;
use pgfollow::host::Address;
use pgfollow::net::{Backlog, Dial, Socket, SocketOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PLAIN: SocketOptions = SocketOptions {
    keepalive: true,
    keepalive_idle: None,
    keepalive_interval: None,
    keepalive_count: None,
    user_timeout: None,
};

async fn dial(to: Address, options: SocketOptions) -> std::io::Result<Socket> {
    TcpDial.dial(&to, &options).await
}

#[tokio::test]
async fn the_kernel_has_what_was_asked_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Address::Tcp(listener.local_addr().unwrap());
    let options = SocketOptions {
        keepalive: true,
        keepalive_idle: Some(Duration::from_secs(3)),
        keepalive_interval: Some(Duration::from_secs(2)),
        keepalive_count: Some(4),
        user_timeout: Some(Duration::from_millis(11_000)),
    };
    let mut s = dial(to, options).await.unwrap();
    assert!(s.report.keepalive);
    if cfg!(target_os = "linux") {
        assert_eq!(s.report.keepalive_idle_s, Some(3));
        assert_eq!(s.report.keepalive_interval_s, Some(2));
        assert_eq!(s.report.keepalive_count, Some(4));
        assert_eq!(s.report.user_timeout_ms, Some(11_000));
        assert!(s.report.unsupported.is_empty(), "{:?}", s.report.unsupported);
    }
    let (mut peer, from) = listener.accept().await.unwrap();
    assert_eq!(s.report.local, Some(from));
    s.io.write_all(b"x").await.unwrap();
    assert_eq!(peer.read_u8().await.unwrap(), b'x');
}

#[tokio::test]
async fn keepalives_off_stay_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Address::Tcp(listener.local_addr().unwrap());
    let options = SocketOptions { keepalive: false, keepalive_idle: Some(Duration::from_secs(3)), ..PLAIN };
    let s = dial(to, options).await.unwrap();
    assert!(!s.report.keepalive, "setting the idle time must not switch keepalives on");
    assert_eq!(s.report.user_timeout_ms, None);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_option_that_the_kernel_refuses_is_named_and_no_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Address::Tcp(listener.local_addr().unwrap());
    // Linux takes 1 to 127 probes.
    let s = dial(to, SocketOptions { keepalive_count: Some(100_000), ..PLAIN }).await.unwrap();
    assert_eq!(s.report.unsupported, ["keepalives_count"]);
}

/// Only an option set before connect() can end an unanswered SYN. A listener whose queue is full drops SYNs.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn user_timeout_bounds_the_syn_itself() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let to = Address::Tcp(listener.local_addr().unwrap());
    let mut held = Vec::new();
    // Fill the queue; the first dial that gets no answer shows that it is full.
    while let Ok(s) = tokio::time::timeout(Duration::from_millis(300), dial(to.clone(), PLAIN)).await {
        held.push(s.unwrap());
        assert!(held.len() < 64, "the queue never fills");
    }
    let options = SocketOptions { user_timeout: Some(Duration::from_millis(1_200)), ..PLAIN };
    let began = clock::now();
    let e = dial(to, options).await.err().expect("nobody answers");
    assert_eq!(e.kind(), ErrorKind::TimedOut, "{e}");
    assert!(clock::now() - began < Duration::from_secs(5), "took {:?}", clock::now() - began);
}

#[tokio::test]
async fn a_refusal_keeps_its_errno() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let e = dial(Address::Tcp(free), PLAIN).await.err().expect("nobody listens");
    assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
    assert!(e.raw_os_error().is_some());
}

/// TCP's simultaneous open: of many dials to a free port of the ephemeral range, one gets that very port as its own.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_socket_that_meets_itself_is_a_refusal() {
    // On Linux connect() takes even ports first and bind() odd ones, so nobody else is likely to be on this one.
    let free = "127.0.0.1:41000".parse().unwrap();
    for _ in 0..200_000 {
        match dial(Address::Tcp(free), PLAIN).await {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && e.raw_os_error().is_none() => return,
            Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{e}"),
            Ok(s) => panic!("connected to nobody, from {:?}", s.report.local),
        }
    }
    panic!("no socket met itself: is 41000 outside the ephemeral range?");
}

/// A descriptor's number is given out again at once.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_hold_on_a_dropped_stream_reaches_no_other_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Address::Tcp(listener.local_addr().unwrap());
    let limit = Some(Duration::from_secs(7));
    let options = SocketOptions { user_timeout: limit, ..PLAIN };
    let first = dial(to.clone(), options).await.unwrap();
    let hold = first.control.unwrap();
    assert_eq!(hold.user_timeout().unwrap(), limit);
    hold.set_user_timeout(None).unwrap();
    assert_eq!(hold.user_timeout().unwrap(), None);
    assert_eq!(hold.backlog().unwrap(), Backlog::default());
    drop(first.io);
    // Enough dials that one of them has the number; nothing of the hold reaches it.
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(dial(to.clone(), options).await.unwrap());
    }
    for result in [hold.set_user_timeout(None), hold.user_timeout().map(drop), hold.backlog().map(drop)] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NotConnected);
    }
    for other in others {
        assert_eq!(other.control.unwrap().user_timeout().unwrap(), limit);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn bytes_that_a_shut_window_holds_back_are_seen_and_probes_are_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Address::Tcp(listener.local_addr().unwrap());
    let mut s = dial(to, PLAIN).await.unwrap();
    let hold = s.control.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    let some = vec![0; 1 << 20];
    let mut written = 0;
    // Long enough for several window probes (200 ms, 400 ms, …); a live kernel answers each.
    while let Ok(n) = tokio::time::timeout(Duration::from_millis(2_500), s.io.write(&some)).await {
        written += n.unwrap();
        assert!(written < 1 << 30, "the buffer never fills");
    }
    let full = hold.backlog().unwrap();
    assert!(full.unsent > 0 && full.unanswered <= 1, "{full:?}");
    let mut sink = vec![0; 1 << 20];
    while written > 0 {
        written -= peer.read(&mut sink).await.unwrap();
    }
    assert_eq!(hold.backlog().unwrap(), Backlog::default());
}

#[tokio::test]
async fn a_dropped_stream_leaves_no_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Address::Tcp(listener.local_addr().unwrap());
    let s = dial(to, PLAIN).await.unwrap();
    drop(s.io);
    let _hold = s.control;
    let (mut peer, _) = listener.accept().await.unwrap();
    assert_eq!(peer.read(&mut [0; 1]).await.unwrap(), 0, "the peer sees the end");
}

#[cfg(target_os = "linux")]
mod unix {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::path::PathBuf;

    use super::*;

    async fn speaks(listener: UnixListener, path: PathBuf) {
        let mut s = dial(Address::Unix(path), PLAIN).await.unwrap();
        s.io.write_all(b"x").await.unwrap();
        let (peer, _) = listener.accept().unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut peer = tokio::net::UnixStream::from_std(peer).unwrap();
        assert_eq!(peer.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn a_path_and_an_abstract_name_both_work() {
        let dir = std::env::temp_dir().join(format!("pgf-dial-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(".s.PGSQL.5432");
        speaks(UnixListener::bind(&path).unwrap(), path).await;
        std::fs::remove_dir_all(&dir).unwrap();

        let name = format!("pgf-dial-{}/.s.PGSQL.5432", std::process::id());
        let addr = SocketAddr::from_abstract_name(&name).unwrap();
        speaks(UnixListener::bind_addr(&addr).unwrap(), format!("@{name}").into()).await;
    }

    #[tokio::test]
    async fn no_such_directory_is_an_error_with_its_errno() {
        let e = dial(Address::Unix("/nonexistent/.s.PGSQL.5432".into()), PLAIN).await.err().unwrap();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.raw_os_error().is_some());
    }

    /// The kernel answers EAGAIN there, which is neither a connection nor a failure.
    #[tokio::test]
    async fn a_full_queue_waits_for_its_turn() {
        let name = format!("pgf-full-{}", std::process::id());
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        socket.bind(&socket2::SockAddr::unix(format!("\0{name}")).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let to = Address::Unix(format!("@{name}").into());
        let _first = dial(to.clone(), PLAIN).await.unwrap();
        let second = dial(to, PLAIN);
        tokio::pin!(second);
        assert!(tokio::time::timeout(Duration::from_millis(60), &mut second).await.is_err());
        let _taken = socket.accept().unwrap();
        tokio::time::timeout(Duration::from_secs(5), second).await.expect("there is room now").unwrap();
    }
}
