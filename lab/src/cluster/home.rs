//! The cluster's temporary folder, and the keeper that clears it away when we can't.
//!
//! `Drop` does the work in the normal case. If our process is killed, nothing of ours runs: so each cluster has
//! a keeper, a small shell with a pipe from us. When the pipe ends without the word "done", it kills every
//! process that lives in the folder (also frozen ones) and removes it. `PR_SET_PDEATHSIG` won't do: it follows
//! the thread that forked, not the process, and it doesn't reach the server's children.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::LabError;
use crate::process::{RunAs, kill_all_in};
use crate::sys;

/// `$1` is the folder. Two rounds without a find end it: a process forked during the first is seen by the second.
const KEEPER: &str = r#"
trap '' INT TERM HUP QUIT
read -r word
[ "$word" = done ] && exit 0
quiet=0
rounds=0
while [ $quiet -lt 2 ] && [ $rounds -lt 50 ]; do
    quiet=$((quiet + 1))
    rounds=$((rounds + 1))
    for p in /proc/[0-9]*; do
        case "$(readlink "$p/cwd" 2>/dev/null)" in
            "$1"/*) kill -9 "${p#/proc/}" 2>/dev/null; quiet=0 ;;
        esac
    done
done
for f in "$1"/*/postmaster.pid; do
    id=$(sed -n '7s/.* //p' "$f" 2>/dev/null)
    [ -n "$id" ] && ipcrm -m "$id" 2>/dev/null
done
rm -rf -- "$1"
"#;

#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    run_as: Option<RunAs>,
    keeper: Child,
}

impl Home {
    pub(crate) fn create(run_as: Option<RunAs>) -> Result<Self, LabError> {
        let path = fresh_folder(run_as)?;
        let keeper = Command::new("/bin/sh")
            .args(["-c", KEEPER, "pgfollow-lab-keeper"])
            .arg(&path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C in the terminal is for us; the keeper acts when we are gone.
            .process_group(0)
            .spawn();
        match keeper {
            Ok(keeper) => Ok(Self { path, run_as, keeper }),
            Err(e) => {
                let _ = std::fs::remove_dir_all(&path);
                Err(LabError::io("starting the keeper (/bin/sh)")(e))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that the servers' user owns (pg_rewind overwrites them as that user), all at once.
    pub(crate) fn write(run_as: Option<RunAs>, path: &Path, text: &str, mode: u32) -> Result<(), LabError> {
        use std::os::unix::fs::OpenOptionsExt;
        let fail = || LabError::io(format!("writing {}", path.display()));
        let fresh = path.with_extension("fresh");
        let _ = std::fs::remove_file(&fresh);
        let mut f = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&fresh)
            .map_err(fail())?;
        f.write_all(text.as_bytes()).map_err(fail())?;
        if let Some(u) = run_as {
            chown(&fresh, Some(u.uid), Some(u.gid)).map_err(fail())?;
        }
        std::fs::rename(&fresh, path).map_err(fail())
    }

    pub(crate) fn run_as(&self) -> Option<RunAs> {
        self.run_as
    }
}

/// Where data directories go: into memory if it has room, for making a thousand small files takes a second or
/// more on some disks (ext4, measured) and a tenth of that in memory. An ordinary user's TMPDIR comes first;
/// root's may be closed to the servers' user.
fn base_folder(run_as: Option<RunAs>) -> PathBuf {
    const ROOM: u64 = 1 << 30;
    let memory = Path::new("/dev/shm");
    if run_as.is_none() && std::env::var_os("TMPDIR").is_some() {
        return std::env::temp_dir();
    }
    let open = std::fs::metadata(memory).is_ok_and(|m| m.is_dir() && m.mode() & 0o1777 == 0o1777);
    if open && sys::free_space(memory).is_ok_and(|free| free >= ROOM) {
        return memory.to_owned();
    }
    if run_as.is_some() { PathBuf::from("/tmp") } else { std::env::temp_dir() }
}

/// A folder of our own, for the servers' user alone.
fn fresh_folder(run_as: Option<RunAs>) -> Result<PathBuf, LabError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let base = base_folder(run_as);
    let base = std::fs::canonicalize(&base).map_err(LabError::io(format!("resolving {}", base.display())))?;
    loop {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            base.join(format!("pgfollow-lab-{}-{n}-{:08x}", std::process::id(), sys::monotonic_ns() as u32));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(LabError::io(format!("making {}", path.display()))(e)),
            Ok(()) => {
                if let Some(u) = run_as {
                    chown(&path, Some(u.uid), Some(u.gid))
                        .map_err(LabError::io("handing over the folder"))?;
                }
                return Ok(path);
            }
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let ids = shared_memory_ids(&self.path);
        let cleared = kill_all_in(&self.path);
        for id in ids {
            sys::remove_shared_memory(id);
        }
        let removed = std::fs::remove_dir_all(&self.path).is_ok();
        if let Some(mut pipe) = self.keeper.stdin.take()
            && cleared
            && removed
        {
            let _ = pipe.write_all(b"done\n");
        }
        // The pipe is closed now: the keeper ends at once, or after it has done what we couldn't.
        let _ = self.keeper.wait();
    }
}

/// The System V segments of all data directories in the folder: line 7 of postmaster.pid is "key id"
/// (src/include/utils/pidfile.h). A killed postmaster leaves its own behind for good.
fn shared_memory_ids(home: &Path) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(home) else { return Vec::new() };
    entries.flatten().filter_map(|e| shared_memory_id(&e.path())).collect()
}

/// The segment of one data directory, if its postmaster.pid names one.
pub(crate) fn shared_memory_id(data: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    text.lines().nth(6)?.split_whitespace().nth(1)?.parse().ok()
}
