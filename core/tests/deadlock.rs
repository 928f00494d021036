//! The connector's locks, taken by many threads at once in every order that the code has.

use std::sync::mpsc;
use std::time::Duration;

use pgfollow::Connector;

/// A caller that gives up at once starts a search and ends it, beside the watcher's look at the names.
#[test]
fn searches_beside_looks_at_the_names_never_stand_still() {
    const CONNECTORS: usize = 4;
    const EACH: usize = 1_000;
    let (done, all_done) = mpsc::channel();
    // On a thread of its own: a runtime whose threads are stuck would never get to a timeout of its own.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let callers = (0..CONNECTORS).map(|_| {
                tokio::spawn(async {
                    // Nobody listens there.
                    let uri = "postgresql://u@127.0.0.1:1,127.0.0.1:2/d?target_session_attrs=read-write";
                    let connector = Connector::new(uri).expect("a connector");
                    for _ in 0..EACH {
                        assert!(connector.connect_within(Duration::ZERO).await.is_err());
                    }
                })
            });
            for caller in callers.collect::<Vec<_>>() {
                caller.await.expect("a caller");
            }
        });
        let _ = done.send(());
    });
    all_done.recv_timeout(Duration::from_secs(60)).expect("every caller to be answered");
}
