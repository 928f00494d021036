//! One server: its start, its end, its faults, and the lab's own sessions to it.
//!
//! Knows nothing of the other nodes; who follows whom is [`super::Cluster`]'s.

use std::fs::OpenOptions;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_postgres::{Client, NoTls};

use super::conf::{Changing, Fixed, render};
use super::home::{Home, shared_memory_id};
use super::{APP_DATABASE, Secrets};
use crate::process::{RunAs, command, processes_in, tail};
use crate::wait::{wait_for, wait_for_async};
use crate::{Binaries, LabError, sys};

/// How a server is told to stop (pg_ctl's modes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Refuses new sessions, waits for the old ones to leave.
    Smart,
    /// Ends the sessions (57P01), writes a checkpoint.
    Fast,
    /// Ends the sessions (57P01, as a notice on 15), no checkpoint.
    Immediate,
}

/// The longest a start or an end of a server may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server of a [`super::Cluster`].
#[derive(Debug)]
pub struct Node {
    pub(super) fixed: Fixed,
    pub(super) address: Ipv4Addr,
    pub(super) data: PathBuf,
    pub(super) binaries: Binaries,
    pub(super) run_as: Option<RunAs>,
    pub(super) secrets: Secrets,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    postmaster: Option<Child>,
    changing: Changing,
    /// It is stopped and let run in turns ([`super::Slowed`]).
    slow: bool,
}

impl Node {
    pub(super) fn new(
        fixed: Fixed,
        address: Ipv4Addr,
        home: &Home,
        binaries: Binaries,
        secrets: Secrets,
    ) -> Self {
        let data = home.path().join(&fixed.name);
        Self { fixed, address, data, binaries, run_as: home.run_as(), secrets, state: Mutex::default() }
    }

    /// Its name in the cluster and its application name: n1, n2, …
    pub fn name(&self) -> &str {
        &self.fixed.name
    }

    /// The address that it listens on.
    pub fn host(&self) -> Ipv4Addr {
        self.address
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.fixed.port
    }

    /// Its data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data
    }

    /// The postmaster's process number, while it runs (frozen counts).
    pub fn postmaster_pid(&self) -> Option<i32> {
        let mut state = self.lock();
        let child = state.postmaster.as_mut()?;
        match child.try_wait() {
            Ok(None) => i32::try_from(child.id()).ok(),
            _ => {
                state.postmaster = None;
                None
            }
        }
    }

    /// Whether any process of it is left (of a killed postmaster the children may live on for a moment).
    pub fn is_alive(&self) -> bool {
        self.postmaster_pid().is_some() || !processes_in(&self.data, false).is_empty()
    }

    /// Whether its postmaster is stopped by a signal (frozen). One that is merely slowed down isn't.
    pub fn is_frozen(&self) -> bool {
        self.postmaster_pid().is_some_and(is_stopped) && !self.lock().slow
    }

    pub(super) fn begin_slow(&self) -> Result<(), LabError> {
        self.moving()?;
        match std::mem::replace(&mut self.lock().slow, true) {
            true => Err(LabError::State(format!("{} is slowed down already", self.name()))),
            false => Ok(()),
        }
    }

    pub(super) fn end_slow(&self) {
        self.lock().slow = false;
    }

    /// Whether it would come up as a standby.
    pub fn is_standby_by_files(&self) -> bool {
        self.data.join("standby.signal").exists()
    }

    /// Whether it was demoted in place ([`Node::demote`]), or would come up so.
    pub fn is_demoted(&self) -> bool {
        self.lock().changing.read_only
    }

    /// The `primary_conninfo` it was given last.
    pub(super) fn follows(&self) -> Option<String> {
        self.lock().changing.follow.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves a child handle and a few strings: both stay usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the configuration's changing part and writes it; a running server is told to read it.
    pub(super) fn configure(&self, change: impl FnOnce(&mut Changing)) -> Result<(), LabError> {
        let text = {
            let mut state = self.lock();
            change(&mut state.changing);
            render(&self.fixed, &state.changing)
        };
        Home::write(self.run_as, &self.data.join("lab.conf"), &text, 0o600)?;
        match self.postmaster_pid() {
            Some(pid) if self.is_past_start() => self.signal(pid, libc::SIGHUP),
            _ => Ok(()),
        }
    }

    /// A signal before the postmaster has its handlers would end it.
    fn is_past_start(&self) -> bool {
        self.pidfile_status().is_some()
    }

    /// Line 8 of postmaster.pid, if it is the present postmaster's (src/include/utils/pidfile.h).
    fn pidfile_status(&self) -> Option<String> {
        let pid = self.postmaster_pid()?;
        let text = std::fs::read_to_string(self.data.join("postmaster.pid")).ok()?;
        let lines: Vec<&str> = text.lines().collect();
        (lines.first()?.trim().parse() == Ok(pid)).then(|| lines.get(7).map(|s| s.trim().to_owned()))?
    }

    pub(super) fn mark_standby(&self, yes: bool) -> Result<(), LabError> {
        let file = self.data.join("standby.signal");
        if yes {
            return Home::write(self.run_as, &file, "", 0o600);
        }
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(LabError::io("removing standby.signal")(e))
            }
            _ => Ok(()),
        }
    }

    /// Launches the postmaster and returns at once.
    pub(super) fn launch(&self) -> Result<(), LabError> {
        if self.postmaster_pid().is_some() {
            return Err(LabError::State(format!("{} is running already", self.name())));
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(LabError::io("opening the server's log"))?;
        let err = log.try_clone().map_err(LabError::io("opening the server's log"))?;
        let mut c = command(self.binaries.dir().join("postgres"), self.run_as);
        // A group of its own: Ctrl-C in the terminal is for us.
        c.arg("-D").arg(&self.data).stdout(log).stderr(Stdio::from(err)).process_group(0);
        let child = c.spawn().map_err(LabError::io("starting postgres"))?;
        self.lock().postmaster = Some(child);
        Ok(())
    }

    /// Waits until sessions are accepted; an error with the log's end if the postmaster ends instead.
    pub(super) async fn wait_ready(&self) -> Result<(), LabError> {
        let what = format!("{} to accept sessions", self.name());
        let mut died = false;
        let waited = wait_for(&what, PATIENCE, || {
            died = self.postmaster_pid().is_none();
            died || self.pidfile_status().as_deref() == Some("ready")
        })
        .await;
        match waited {
            Ok(()) if !died => Ok(()),
            _ => Err(LabError::Command {
                what: format!("starting {}", self.name()),
                detail: tail(&self.log(), 800).to_owned(),
            }),
        }
    }

    fn log_path(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Starts it again as what its files say, and waits until it accepts sessions.
    pub async fn start(&self) -> Result<(), LabError> {
        // One that was told to stop ends by itself, and so does what a killed postmaster leaves.
        if self.postmaster_pid().is_some() && self.pidfile_status().as_deref() != Some("stopping") {
            let frozen = if self.is_frozen() { " (frozen)" } else { "" };
            return Err(LabError::State(format!("{} is running already{frozen}", self.name())));
        }
        wait_for(&format!("the end of {}", self.name()), PATIENCE, || !self.is_alive()).await?;
        self.launch()?;
        self.wait_ready().await
    }

    /// Tells it to stop. Waits for its end, except after [`StopMode::Smart`], whose end is the clients' choice.
    pub async fn stop(&self, mode: StopMode) -> Result<(), LabError> {
        let pid = self.moving()?;
        let signal = match mode {
            StopMode::Smart => libc::SIGTERM,
            StopMode::Fast => libc::SIGINT,
            StopMode::Immediate => libc::SIGQUIT,
        };
        self.signal(pid, signal)?;
        match mode {
            StopMode::Smart => Ok(()),
            _ => wait_for(&format!("{} to stop", self.name()), PATIENCE, || !self.is_alive()).await,
        }
    }

    /// SIGKILL to all its processes at once, the postmaster first; returns when none is left.
    pub async fn kill(&self) -> Result<(), LabError> {
        self.running()?;
        let segment = shared_memory_id(&self.data);
        self.signal_all(libc::SIGKILL)?;
        wait_for(&format!("the end of {}", self.name()), PATIENCE, || {
            // Whatever was forked between the scan and the postmaster's end.
            let _ = self.signal_all(libc::SIGKILL);
            !self.is_alive()
        })
        .await?;
        // Gone like after a power cut: nothing else would ever remove it if the node stays down.
        if let Some(id) = segment {
            sys::remove_shared_memory(id);
        }
        Ok(())
    }

    /// SIGKILL to the postmaster alone; its idle children end by themselves, busy ones after their work.
    pub async fn kill_postmaster_only(&self) -> Result<(), LabError> {
        let pid = self.running()?;
        self.signal(pid, libc::SIGKILL)?;
        wait_for("the postmaster's end", PATIENCE, || self.postmaster_pid().is_none()).await
    }

    /// SIGSTOP to all its processes: sockets stay open, nobody answers.
    pub async fn freeze(&self) -> Result<(), LabError> {
        let pid = self.moving()?;
        if self.lock().slow {
            return Err(LabError::State(format!("{} is slowed down: that would thaw it", self.name())));
        }
        // The postmaster first: after it nothing new is forked.
        self.signal(pid, libc::SIGSTOP)?;
        wait_for(&format!("{} to freeze", self.name()), PATIENCE, || {
            let moving: Vec<i32> =
                processes_in(&self.data, false).into_iter().filter(|p| !is_stopped(*p)).collect();
            for p in &moving {
                let _ = sys::send_signal(*p, libc::SIGSTOP);
            }
            moving.is_empty()
        })
        .await
    }

    /// SIGSTOP to the postmaster alone: old sessions work, new ones hang.
    pub async fn freeze_postmaster_only(&self) -> Result<(), LabError> {
        let pid = self.running()?;
        self.signal(pid, libc::SIGSTOP)?;
        wait_for("the postmaster to freeze", PATIENCE, || is_stopped(pid)).await
    }

    /// SIGCONT to all its processes.
    pub async fn thaw(&self) -> Result<(), LabError> {
        self.running()?;
        if !self.is_frozen() {
            return Err(LabError::State(format!("{} isn't frozen", self.name())));
        }
        self.signal_all(libc::SIGCONT)
    }

    fn running(&self) -> Result<i32, LabError> {
        self.postmaster_pid().ok_or_else(|| LabError::State(format!("{} isn't running", self.name())))
    }

    /// Running and not frozen: it can heed what it is told.
    fn moving(&self) -> Result<i32, LabError> {
        let pid = self.running()?;
        if self.is_frozen() {
            return Err(LabError::State(format!("{} is frozen: thaw it first", self.name())));
        }
        Ok(pid)
    }

    fn signal(&self, pid: i32, signal: i32) -> Result<(), LabError> {
        sys::send_signal(pid, signal).map_err(LabError::io(format!("signalling {}", self.name())))
    }

    fn signal_all(&self, signal: i32) -> Result<(), LabError> {
        if let Some(pid) = self.postmaster_pid() {
            self.signal(pid, signal)?;
        }
        for pid in processes_in(&self.data, false) {
            self.signal(pid, signal)?;
        }
        Ok(())
    }

    /// Demotes it in place: new transactions are read-only by default, as `ALTER SYSTEM SET
    /// default_transaction_read_only = on` and a reload do it. Returns when a new session sees it.
    pub async fn demote(&self) -> Result<(), LabError> {
        self.set_read_only(true).await
    }

    /// Takes [`Node::demote`] back.
    pub async fn undemote(&self) -> Result<(), LabError> {
        self.set_read_only(false).await
    }

    async fn set_read_only(&self, yes: bool) -> Result<(), LabError> {
        self.moving()?;
        self.configure(|c| c.read_only = yes)?;
        let want = if yes { "on" } else { "off" };
        // The database's own: new sessions have the postmaster's value, others follow within the same reload.
        let session = &self.session_with("").await?;
        wait_for_async(&format!("{} to read its configuration", self.name()), PATIENCE, || async move {
            let sql = "select reset_val from pg_settings where name = 'default_transaction_read_only'";
            let row = session.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
            if row.get::<_, String>(0) == want { Ok(()) } else { Err(format!("still not {want}")) }
        })
        .await
    }

    /// Tells a standby to promote itself, as `pg_ctl promote` does, without its process and its waiting.
    pub(super) fn trigger_promotion(&self) -> Result<(), LabError> {
        let pid = self.moving()?;
        Home::write(self.run_as, &self.data.join("promote"), "", 0o600)?;
        self.signal(pid, libc::SIGUSR1)
    }

    /// A session of the lab's own, as superuser, in the database of the service. Neither synchronous
    /// replication nor a demotion in place holds it up; three slots are reserved for superusers.
    pub async fn session(&self) -> Result<Client, LabError> {
        self.session_with("-c synchronous_commit=local -c default_transaction_read_only=off").await
    }

    pub(super) async fn session_with(&self, options: &str) -> Result<Client, LabError> {
        self.session_in(APP_DATABASE, options).await
    }

    pub(super) async fn session_in(&self, database: &str, options: &str) -> Result<Client, LabError> {
        let mut config = tokio_postgres::Config::new();
        config.host(self.address.to_string()).port(self.port()).dbname(database);
        config.user("postgres").password(&self.secrets.superuser).application_name("pgfollow-lab");
        config.options(options).connect_timeout(Duration::from_secs(2));
        let connecting = tokio::time::timeout(Duration::from_secs(5), config.connect(NoTls));
        let (client, connection) = connecting
            .await
            .map_err(|_| LabError::Timeout {
                what: format!("a session to {}", self.name()),
                after: Duration::from_secs(5),
                last: None,
            })?
            .map_err(LabError::pg(format!("a session to {}", self.name())))?;
        // Its end is told by the client's next call.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Waits until the server says it is out of recovery.
    pub(super) async fn wait_promoted(&self) -> Result<(), LabError> {
        let what = format!("{} to be promoted", self.name());
        let session = &self.session().await?;
        wait_for_async(&what, PATIENCE, || async move {
            let row =
                session.query_one("select pg_is_in_recovery()", &[]).await.map_err(|e| e.to_string())?;
            if row.get::<_, bool>(0) { Err("still in recovery".to_owned()) } else { Ok(()) }
        })
        .await
    }

    pub(super) fn reap(&self) {
        if let Some(mut child) = self.lock().postmaster.take() {
            // The folder's owner has killed it already; this only clears the zombie away.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// State T in /proc/PID/stat: stopped by a signal. The state follows the last closing parenthesis.
fn is_stopped(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|s| s.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
}
