//! What the lab's tests share.
#![allow(dead_code, clippy::print_stderr, reason = "each test file uses a part; tests talk on stderr")]

use std::path::Path;

use pgfollow_lab::{Binaries, BinaryOptions, Cluster, ClusterOptions, LabError};

/// Binaries of that version, or `None` after a loud word: the test counts as skipped then.
pub(crate) fn binaries(major: u32) -> Option<Binaries> {
    let options = BinaryOptions { major: Some(major), ..BinaryOptions::default() };
    match Binaries::find(&options, &mut |line| eprintln!("{line}")) {
        Ok(b) => Some(b),
        Err(e) => {
            eprintln!("SKIPPED (PostgreSQL {major}): {e}");
            None
        }
    }
}

/// The first of the versions that is there.
pub(crate) fn any_binaries() -> Option<Binaries> {
    binaries(15).or_else(|| binaries(18))
}

pub(crate) async fn cluster(binaries: Binaries, nodes: usize) -> Result<Cluster, LabError> {
    let mut options = ClusterOptions::new(binaries);
    options.nodes = nodes;
    Cluster::start(options).await
}

/// A session of the service's user on one node.
pub(crate) async fn app_session(
    cluster: &Cluster,
    node: usize,
) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let node = cluster.node(node);
    let conninfo = cluster.conninfo_to(&format!("{}:{}", node.host(), node.port()));
    let (client, connection) = tokio_postgres::connect(&conninfo, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// How many processes live in that folder.
pub(crate) fn processes_below(folder: &Path) -> usize {
    let entries = std::fs::read_dir("/proc").expect("proc");
    entries
        .flatten()
        .filter_map(|e| std::fs::read_link(e.path().join("cwd")).ok())
        .filter(|cwd| cwd.to_string_lossy().starts_with(&*folder.to_string_lossy()))
        .count()
}
