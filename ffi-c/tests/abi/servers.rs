//! A program in C before real servers.

use std::process::Stdio;
use std::time::Duration;

use pgfollow_lab::{Cluster, ClusterOptions, servers};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::build::{compile, has, libraries};

const ENOUGH: Duration = Duration::from_secs(90);

/// Under the address sanitizer: the threads' handles, the events and the runtime's end are all in it.
#[tokio::test]
async fn a_c_program_hears_of_the_new_primary_through_the_descriptor() {
    let Some(binaries) = servers().filter(|_| has("gcc")) else { return };
    let program = compile("watch", ("gcc", "-std=c11"), &["-fsanitize=address"]);
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.expect("a cluster");
    let mut command = Command::new(program);
    command.arg(format!("{}?target_session_attrs=read-write&monitor=on", cluster.conninfo()));
    command
        .env("LD_LIBRARY_PATH", libraries())
        .kill_on_drop(true)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = timeout(ENOUGH, lines.next_line()).await.expect("ready in time").expect("readable");
    if line.as_deref() == Some("ready") {
        cluster.node(0).kill().await.expect("the primary dies");
        cluster.promote(1).await.expect("a promotion");
    }
    let output = timeout(ENOUGH, child.wait_with_output()).await.expect("ends in time").expect("waited for");
    assert!(output.status.success(), "{line:?}, then {}", String::from_utf8_lossy(&output.stderr));
}
