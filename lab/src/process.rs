//! Who runs the servers, how their programs are started, and how all processes of a node are found.
//!
//! A PostgreSQL process never leaves its data directory (its working directory for life), and each data
//! directory of the lab is a fresh folder of its own. So "working directory = that folder" names exactly the
//! processes that this lab started: it finds orphans of a killed postmaster too, which the process tree
//! doesn't, and a reused process number can't fool it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::LabError;
use crate::sys;

/// The unprivileged user that runs the servers, when we are root. PostgreSQL refuses to run as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunAs {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl RunAs {
    /// `None` as an ordinary user: the servers run as whoever we are.
    pub(crate) fn choose() -> Result<Option<Self>, LabError> {
        if !sys::is_root() {
            return Ok(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").map_err(LabError::io("reading /etc/passwd"))?;
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| Self::lookup(&passwd, name))
            .map(Some)
            .ok_or_else(|| LabError::State("root, but no user postgres or nobody to step down to".into()))
    }

    fn lookup(passwd: &str, name: &str) -> Option<Self> {
        let line = passwd.lines().find(|l| l.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        (uid != 0).then_some(Self { uid, gid })
    }
}

/// A command as the servers' user, with a clean environment: no PG* variable of ours may steer a server.
pub(crate) fn command(program: impl AsRef<Path>, run_as: Option<RunAs>) -> Command {
    let mut c = Command::new(program.as_ref());
    c.env_clear().env("LC_ALL", "C").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("TZ", "UTC");
    c.stdin(Stdio::null()).current_dir("/");
    if let Some(user) = run_as {
        // As root, std also drops the supplementary groups when a uid is set.
        c.gid(user.gid).uid(user.uid);
    }
    c
}

/// Runs a command to its end on a blocking thread; its output is in the error if it failed.
pub(crate) async fn run(what: &str, mut c: Command) -> Result<Output, LabError> {
    let what = what.to_owned();
    tokio::task::spawn_blocking(move || run_blocking(&what, &mut c))
        .await
        .map_err(|e| LabError::State(format!("a helper thread died: {e}")))?
}

/// The same, here and now.
pub(crate) fn run_blocking(what: &str, c: &mut Command) -> Result<Output, LabError> {
    let out = c.output().map_err(LabError::io(format!("starting {what}")))?;
    if out.status.success() {
        return Ok(out);
    }
    let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&out.stderr));
    let detail = format!("{}: {}", out.status, tail(&text, 600));
    Err(LabError::Command { what: what.to_owned(), detail })
}

/// The last `max` bytes of a text, at a character's edge.
pub(crate) fn tail(text: &str, max: usize) -> &str {
    let text = text.trim_end();
    let mut from = text.len().saturating_sub(max);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// All live processes whose working directory is `dir` (or lies in it, with `inside`).
pub(crate) fn processes_in(dir: &Path, inside: bool) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            // A zombie has no working directory any more, so it doesn't count.
            std::fs::read_link(format!("/proc/{pid}/cwd"))
                .is_ok_and(|cwd| if inside { strip_deleted(&cwd).starts_with(dir) } else { cwd == dir })
        })
        .collect()
}

/// The kernel appends " (deleted)" to the name of a removed working directory.
fn strip_deleted(cwd: &Path) -> PathBuf {
    let text = cwd.to_string_lossy();
    PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(&text))
}

/// Kills every process in `dir` and below, frozen ones too, until none is left (2 s at most).
pub(crate) fn kill_all_in(dir: &Path) -> bool {
    crate::wait::wait_blocking(std::time::Duration::from_secs(2), || {
        let pids = processes_in(dir, true);
        for pid in &pids {
            // The only possible refusal is EPERM, and then another round wouldn't help either.
            let _ = sys::send_signal(*pid, libc::SIGKILL);
        }
        pids.is_empty()
    })
}
