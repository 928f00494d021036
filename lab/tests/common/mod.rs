//! What the lab's tests share.
#![allow(dead_code, clippy::print_stderr, reason = "each test file uses a part; tests talk on stderr")]

use std::path::Path;

use pgfollow_lab::{Binaries, BinaryOptions, Cluster, ClusterOptions, LabError, skipped};

/// Binaries of that version, or `None`: the test counts as skipped then.
pub(crate) fn binaries(major: u32) -> Option<Binaries> {
    find(major).map_err(|e| skipped(format_args!("PostgreSQL {major}: {e}"))).ok()
}

/// The first of the versions that is there.
pub(crate) fn any_binaries() -> Option<Binaries> {
    find(15).or_else(|_| find(18)).map_err(skipped).ok()
}

fn find(major: u32) -> Result<Binaries, LabError> {
    let options = BinaryOptions { major: Some(major), ..BinaryOptions::default() };
    Binaries::find(&options, &mut |line| eprintln!("{line}"))
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
