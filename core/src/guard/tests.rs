#![expect(
    clippy::disallowed_methods,
    reason = "sockets of a driver that blocks its threads, as in the world"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::clock;
use crate::error::Code;
use crate::host::Address;

const OPTIONS: SocketOptions = SocketOptions {
    keepalive: true,
    keepalive_idle: Some(Duration::from_secs(3)),
    keepalive_interval: Some(Duration::from_secs(2)),
    keepalive_count: Some(3),
    user_timeout: Some(Duration::from_millis(9_000)),
};

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    (near, listener.accept().expect("its peer").0)
}

fn guard(socket: &impl AsRawFd) -> Arc<Guarded> {
    let descriptor = Descriptor::open(socket.as_raw_fd()).expect("open");
    let address = descriptor.peer().map_or(Address::Unix("/tmp/.s.PGSQL.5432".into()), Address::Tcp);
    let candidate = Candidate { spec: 0, name: Arc::from("db"), address };
    Arc::new(Guarded::new(&descriptor, HostId(0), candidate, 0, &OPTIONS))
}

fn verdict() -> EndCause {
    EndCause::Verdict { code: Code::Superseded, reason: "host db was superseded".to_owned() }
}

#[test]
fn a_driver_that_blocks_in_a_read_returns_when_its_socket_is_cut() {
    let (mut near, _far) = pair();
    let guarded = guard(&near);
    let reader = std::thread::spawn(move || near.read(&mut [0; 16]).map(|n| (n, near)));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!reader.is_finished(), "it blocks");
    guarded.cut(verdict());
    let (n, _near) = reader.join().expect("no panic").expect("an end, no error");
    assert_eq!(n, 0);
    let g = Guard(guarded);
    assert!(!g.is_usable());
    assert_eq!(g.reason(), Some(&verdict()));
}

#[test]
fn the_options_are_set_and_read_back() {
    let (near, _far) = pair();
    let report = Guard(guard(&near)).socket().clone();
    assert_eq!(report.user_timeout_ms, Some(9_000));
    assert_eq!((report.keepalive, report.keepalive_idle_s, report.keepalive_count), (true, Some(3), Some(3)));
    assert!(report.unsupported.is_empty(), "{report:?}");
}

/// The kernel gives a number out again at once.
#[test]
fn a_number_that_is_another_socket_now_is_never_cut() {
    let pair = || UnixStream::pair().expect("a pair");
    let mut again = 0;
    for round in 0..20_000 {
        let (near, far) = pair();
        let (number, guarded) = (near.as_raw_fd(), guard(&near));
        drop((near, far));
        let (near, mut far) = pair();
        // In a program with other threads the number may go to them; mostly it comes back here.
        again += u32::from(near.as_raw_fd() == number);
        guarded.cut(verdict());
        assert!(guarded.look(clock::now()).ended.is_some(), "round {round}: it is over");
        far.write_all(b"x").expect("open");
        let mut byte = [0];
        (&near).read_exact(&mut byte).unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    assert!(again > 1_000, "the numbers came back {again} times only: nothing was proved");
}

#[test]
fn what_is_no_socket_and_what_is_closed_are_errors() {
    let file = std::fs::File::open("/dev/null").expect("there");
    assert!(Descriptor::open(file.as_raw_fd()).is_err());
    let (near, _far) = pair();
    let number = Descriptor::open(near.as_raw_fd()).expect("open").number();
    drop(near);
    assert!(number.open().is_err());
    assert!(Descriptor::open(-1).is_err());
}

#[test]
fn a_look_shows_a_request_that_waits_and_a_peer_that_left() {
    let (mut near, mut far) = pair();
    let guarded = guard(&near);
    std::thread::sleep(Duration::from_millis(20));
    near.write_all(b"request").expect("open");
    std::thread::sleep(Duration::from_millis(60));
    let look = guarded.look(clock::now());
    let call = look.call.expect("a request is out");
    assert!(clock::now() - call.since >= Duration::from_millis(40), "{look:?}");
    far.read_exact(&mut [0; 7]).expect("it came");
    far.write_all(b"answer").expect("open");
    std::thread::sleep(Duration::from_millis(60));
    let look = guarded.look(clock::now());
    assert!(look.heard.is_some() && look.call.is_none(), "{look:?}");
    drop(far);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(guarded.look(clock::now()).ended, Some(Ended::Fin));
}

#[test]
fn a_condemned_socket_ends_when_its_answer_has_come() {
    let (mut near, mut far) = pair();
    let guarded = guard(&near);
    std::thread::sleep(Duration::from_millis(20));
    near.write_all(b"request").expect("open");
    std::thread::sleep(Duration::from_millis(20));
    guarded.look(clock::now());
    guarded.condemn(verdict(), clock::now());
    assert_eq!(guarded.end.get(), None, "its answer may come");
    std::thread::sleep(Duration::from_millis(20));
    far.write_all(b"answer").expect("open");
    near.read_exact(&mut [0; 6]).expect("the answer came through");
    std::thread::sleep(Duration::from_millis(20));
    guarded.look(clock::now());
    assert_eq!(guarded.end.get(), Some(&verdict()));
}
