//! A private network namespace: entered by running this program again, cut by nftables inside it.
//!
//! A namespace of its own needs root, or a user namespace, which a process with threads can't enter. So
//! [`rerun`] starts this program once more: the fresh child enters between fork and exec, keeps its own user id
//! (PostgreSQL refuses to be root, of whatever namespace) and carries the three capabilities it needs over exec
//! as ambient ones. The child then calls [`set_up`].
//!
//! How a black hole is made: drop rules at the *input* hook, for both directions. A rule at the output hook, or
//! a blackhole route, tells the sender at once (EPERM, EINVAL); a packet dropped at input was sent well, so an
//! established connection sees neither error nor byte, and a new one hangs in SYN_SENT. Packets to loopback
//! carry their route with them, so policy rules for incoming packets (`ip rule … iif lo`) never see them.

mod enter;
mod nft;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::{LabError, skipped, sys};

/// Tells the child that it is the one inside; holds the number of the namespace it came from.
const MARKER: &str = "PGFOLLOW_LAB_OUTER_NETNS";

static PRIVATE: AtomicBool = AtomicBool::new(false);

/// Whether this process was started by [`rerun`].
pub fn is_rerun() -> bool {
    std::env::var_os(MARKER).is_some()
}

/// Whether [`set_up`] has succeeded in this process, so that networks may be cut.
pub fn is_private() -> bool {
    PRIVATE.load(Ordering::Relaxed)
}

/// Runs this program again with these arguments (without the program's name) in a private network namespace and
/// waits for its end. SIGINT, SIGTERM and SIGHUP are handed on; if this process is killed, so is the child.
pub async fn rerun(args: Vec<OsString>) -> Result<ExitStatus, LabError> {
    let refused = LabError::io(
        "entering a private network namespace (needs root, or user namespaces open to ordinary users)",
    );
    let mut command = Command::new("/proc/self/exe");
    command.args(args).env(MARKER, netns_number()?.to_string());
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    enter::on_exec(&mut command);
    let hear = |kind| signal(kind).map_err(LabError::io("listening for signals"));
    let (mut int, mut term, mut hup) =
        (hear(SignalKind::interrupt())?, hear(SignalKind::terminate())?, hear(SignalKind::hangup())?);
    // Started and awaited by one thread: the kernel's "tell me when my parent dies" means that thread.
    let (tell_pid, pid) = tokio::sync::oneshot::channel();
    let mut end = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn()?;
        let _ = tell_pid.send(child.id());
        child.wait()
    });
    let pid = pid.await.ok().and_then(|p| i32::try_from(p).ok());
    loop {
        let hand_on = tokio::select! {
            ended = &mut end => {
                return ended.map_err(|e| LabError::State(format!("a helper thread died: {e}")))?.map_err(refused);
            }
            _ = int.recv() => libc::SIGINT,
            _ = term.recv() => libc::SIGTERM,
            _ = hup.recv() => libc::SIGHUP,
        };
        if let Some(pid) = pid {
            // Only an ended child refuses, and its end is awaited above.
            let _ = sys::send_signal(pid, hand_on);
        }
    }
}

/// For a test that cuts networks: whether it is inside a private namespace, set up and free of everybody else's
/// traffic. If not, runs `test` (the calling test itself) once more, alone and inside one, and passes its failure on;
/// counts it as skipped where namespaces can't be had.
///
/// # Panics
/// If the run inside fails.
pub async fn alone<T>(test: T) -> bool {
    if is_rerun() {
        set_up().unwrap_or_else(|e| panic!("{e}"));
        return true;
    }
    // A function's type is named by its path: the crate's name, then the test's as its harness knows it.
    let path = std::any::type_name_of_val(&test);
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    match rerun(["--exact", name, "--nocapture"].map(Into::into).to_vec()).await {
        Ok(status) => assert!(status.success(), "inside: {status}"),
        Err(e @ LabError::Io { .. }) => skipped(e),
        Err(e) => panic!("{e}"),
    }
    false
}

/// In the child: brings loopback up, opens the low ports, gives the namespace a resolv.conf of its own
/// (`nameserver 127.0.0.1`; write to it in place to change it). Checks first that the namespace really is
/// another one and empty.
pub fn set_up() -> Result<(), LabError> {
    let outer = std::env::var(MARKER).ok().and_then(|n| n.parse::<u64>().ok());
    let not_ours = || LabError::State("this process isn't in a private network namespace".into());
    if outer.is_none_or(|outer| netns_number().is_ok_and(|n| n == outer)) {
        return Err(not_ours());
    }
    let devices =
        std::fs::read_to_string("/proc/self/net/dev").map_err(LabError::io("listing interfaces"))?;
    if devices.lines().skip(2).any(|l| l.split(':').next().map(str::trim) != Some("lo")) {
        return Err(not_ours());
    }
    enter::loopback_up().map_err(LabError::io("bringing loopback up in the namespace"))?;
    // Both are for a DNS server on port 53; without them the rest still works.
    if let Err(error) = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0") {
        tracing::warn!(%error, "low ports stay closed in the namespace");
    }
    if let Err(error) = own_resolv_conf() {
        tracing::warn!(%error, "the namespace keeps the machine's resolv.conf");
    }
    PRIVATE.store(true, Ordering::Relaxed);
    Ok(())
}

fn own_resolv_conf() -> std::io::Result<()> {
    // Often a symbolic link: the mount goes over what it points to.
    let real = std::fs::canonicalize("/etc/resolv.conf")?;
    let ours = std::env::temp_dir().join(format!("pgfollow-resolv-{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&ours)?;
    std::io::Write::write_all(&mut file, b"nameserver 127.0.0.1\noptions timeout:1 attempts:2\n")?;
    let mounted = enter::mount_over(&ours, &real);
    // The mount keeps the file alive; its name would be litter.
    let removed = std::fs::remove_file(&ours);
    mounted.and(removed)
}

fn netns_number() -> Result<u64, LabError> {
    let meta =
        std::fs::metadata("/proc/self/ns/net").map_err(LabError::io("naming the network namespace"))?;
    Ok(meta.ino())
}

/// Drops every packet to and from these addresses, and lets all others through again: the whole set in one step.
pub(crate) fn cut_off(addresses: &[Ipv4Addr]) -> Result<(), LabError> {
    if !is_private() {
        return Err(LabError::State(
            "networks are cut only inside a private network namespace, which `pgfollow lab --exec CMD` makes"
                .into(),
        ));
    }
    nft::drop_packets_of(addresses).map_err(LabError::io("setting packet filters (nf_tables)"))
}
