//! PgBouncer in front of one node, with its own default settings but for the pool mode.
//!
//! Lives in the cluster's folder, so whatever clears that away ends it too.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::home::Home;
use super::{APP_USER, Cluster};
use crate::LabError;
use crate::process::{command, tail};
use crate::wait::wait_for;

/// Where Debian puts it, then everybody else.
const PLACES: [&str; 3] = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];

/// Which of a client's acts keep their server connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// All, until it leaves.
    Session,
    /// Those of one transaction.
    Transaction,
}

/// A running PgBouncer. Dropping it ends it.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    log: PathBuf,
    child: Child,
}

impl Pooler {
    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // It may have ended by itself; the zombie is cleared away either way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Cluster {
    /// Starts the installed PgBouncer in front of a node and waits until it listens.
    ///
    /// # Errors
    /// [`LabError::Binaries`] where it isn't installed.
    pub async fn pooler(&self, node: usize, mode: PoolMode) -> Result<Pooler, LabError> {
        let program = PLACES.iter().map(Path::new).find(|p| p.is_file());
        let program = program.ok_or_else(|| LabError::Binaries("PgBouncer is not installed".into()))?;
        let (port, folder) = self.pooler_folder(node, mode)?;
        let log = folder.join("pgbouncer.log");
        let write = |f: File| f.try_clone().map(|copy| (Stdio::from(f), Stdio::from(copy)));
        let (out, err) = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .and_then(write)
            .map_err(LabError::io("opening PgBouncer's log"))?;
        let mut c = command(program, self.home.run_as());
        // The working directory is what the cluster's keeper finds processes by; the group keeps Ctrl-C for us.
        c.arg("pgbouncer.ini").current_dir(&folder).stdout(out).stderr(err).process_group(0);
        let child = c.spawn().map_err(LabError::io("starting PgBouncer"))?;
        let mut pooler = Pooler { port, log, child };
        let mut died = false;
        let waited = wait_for("PgBouncer to listen", Duration::from_secs(10), || {
            died = !pooler.lives();
            died || pooler.log().contains("process up")
        })
        .await;
        if waited.is_err() || died {
            let detail = tail(&pooler.log(), 600).to_owned();
            return Err(LabError::Command { what: "starting PgBouncer".into(), detail });
        }
        Ok(pooler)
    }

    /// A folder with its configuration, and the port in it.
    fn pooler_folder(&self, node: usize, mode: PoolMode) -> Result<(u16, PathBuf), LabError> {
        let fail = || LabError::io("preparing PgBouncer");
        let run_as = self.home.run_as();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(fail())?;
        let port = listener.local_addr().map_err(fail())?.port();
        let folder = self.home.path().join(format!("pgbouncer-{port}"));
        std::fs::create_dir(&folder).map_err(fail())?;
        if let Some(u) = run_as {
            chown(&folder, Some(u.uid), Some(u.gid)).map_err(fail())?;
        }
        let node = &self.nodes[node];
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let settings = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_file = users.txt\npool_mode = {mode}\n",
            node.host(),
            node.port()
        );
        Home::write(run_as, &folder.join("pgbouncer.ini"), &settings, 0o600)?;
        // The password is hex digits: nothing to quote.
        let users = format!("\"{APP_USER}\" \"{}\"\n", self.secrets.app);
        Home::write(run_as, &folder.join("users.txt"), &users, 0o600)?;
        Ok((port, folder))
    }
}
