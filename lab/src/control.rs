//! The words by which other programs drive a cluster: one command a line, one JSON object a reply.
//!
//! `pgfollow lab` feeds it from standard input, or from a Unix socket for a program under `--exec`.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;

use crate::{Cluster, LabError, Node, StopMode, monotonic_ns};

/// The commands, for help texts and for the error of an unknown one.
const COMMANDS: &str = "stop NODE [fast|immediate|smart], kill NODE, freeze NODE, thaw NODE, demote NODE, \
    undemote NODE, promote NODE, restart NODE, start NODE, status [NODE], cut NODE, heal [NODE]";
const VERBS: [&str; 12] = [
    "stop", "kill", "freeze", "thaw", "demote", "undemote", "promote", "restart", "start", "status", "cut",
    "heal",
];
/// Programs that talk at once; a caller more waits.
const MOST_CALLERS: usize = 16;
/// A command is a few words.
const LONGEST_LINE: u64 = 1_000;

/// Carries out commands on a cluster.
#[derive(Clone, Debug)]
pub struct Control {
    cluster: Arc<Cluster>,
}

impl Control {
    /// For that cluster, which lives on as long as this does.
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster }
    }

    /// What other programs need to know of the cluster: `{conninfo, nodes: [{name, host, port}], server_version}`.
    pub fn describe(&self) -> Value {
        let c = &self.cluster;
        let node = |n: &Arc<Node>| json!({"name": n.name(), "host": n.host().to_string(), "port": n.port()});
        json!({
            // As a service should use it: it wants the primary.
            "conninfo": format!("{}?target_session_attrs=read-write", c.conninfo()),
            "user": c.user(),
            "password": c.password(),
            "database": c.database(),
            "nodes": c.nodes().iter().map(node).collect::<Vec<_>>(),
            "sync": c.is_sync(),
            "server_version": c.server_version(),
        })
    }

    /// Carries out one command. `{ok: true, at_ns, …}` or `{ok: false, error}`; `at_ns` is CLOCK_MONOTONIC when
    /// it began. Never fails itself.
    pub async fn execute(&self, line: &str) -> Value {
        let at_ns = monotonic_ns();
        match self.try_execute(line).await {
            Ok(Value::Object(mut more)) => {
                let mut reply = serde_json::Map::new();
                reply.insert("ok".into(), Value::Bool(true));
                reply.insert("at_ns".into(), at_ns.into());
                reply.append(&mut more);
                Value::Object(reply)
            }
            Ok(other) => json!({"ok": true, "at_ns": at_ns, "value": other}),
            Err(e) => json!({"ok": false, "error": e.to_string()}),
        }
    }

    async fn try_execute(&self, line: &str) -> Result<Value, LabError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let c = &self.cluster;
        match words[..] {
            ["status"] => {
                let all: Vec<Value> = (0..c.nodes().len()).map(|i| self.status(i)).collect();
                return Ok(json!({"nodes": all}));
            }
            ["heal"] => {
                for i in (0..c.nodes().len()).filter(|i| c.is_cut(*i)) {
                    c.heal(i)?;
                }
                return Ok(json!({}));
            }
            _ => {}
        }
        let (verb, name, how) = match words[..] {
            [verb, name] => (verb, name, None),
            [verb @ "stop", name, how] => (verb, name, Some(how)),
            [verb] if VERBS.contains(&verb) => {
                let names: Vec<&str> = c.nodes().iter().map(|n| n.name()).collect();
                return Err(LabError::State(format!("{verb} needs a NODE: {} or primary", names.join(", "))));
            }
            [verb, _, ..] if VERBS.contains(&verb) => {
                let form = COMMANDS.split(", ").find(|f| f.split(' ').next() == Some(verb)).unwrap_or(verb);
                return Err(LabError::State(format!("too many words for {verb}: write {form}")));
            }
            _ => return Err(unknown(line)),
        };
        if !VERBS.contains(&verb) {
            return Err(unknown(line));
        }
        let Some(i) = c.index_of(name) else {
            let names: Vec<&str> = c.nodes().iter().map(|n| n.name()).collect();
            return Err(LabError::State(format!("no node {name:?}; there are: {}", names.join(", "))));
        };
        let node = c.node(i);
        match verb {
            "stop" => node.stop(stop_mode(how)?).await?,
            "kill" => node.kill().await?,
            "freeze" => node.freeze().await?,
            "thaw" => node.thaw().await?,
            "demote" => node.demote().await?,
            "undemote" => node.undemote().await?,
            "promote" => c.promote(i).await?,
            "restart" => c.restart(i).await?,
            "start" => node.start().await?,
            "cut" => c.cut(i)?,
            "heal" => c.heal(i)?,
            // Only "status" is left.
            _ => {}
        }
        let mut reply = self.status(i);
        if let (Some(warning), Some(fields)) = (self.stale(verb), reply.as_object_mut()) {
            fields.insert("warning".into(), warning.into());
        }
        Ok(reply)
    }

    /// Whether a command that may bring up or leave a second primary did: what to know of it.
    fn stale(&self, verb: &str) -> Option<String> {
        if !["start", "thaw", "undemote", "heal", "promote"].contains(&verb) {
            return None;
        }
        let c = &self.cluster;
        let takes_writes = |i: &usize| {
            let n = c.node(*i);
            n.is_alive() && !n.is_frozen() && !n.is_standby_by_files() && !n.is_demoted() && !c.is_cut(*i)
        };
        let stale = (0..c.nodes().len()).filter(|i| *i != c.primary()).find(takes_writes)?;
        let (old, new) = (c.node(stale).name(), c.node(c.primary()).name());
        Some(format!(
            "{old} is a stale primary, for {new} was promoted since: where both take writes that is a split brain; \
             `restart {old}` makes it a standby of {new}"
        ))
    }

    /// By files and processes alone: a frozen or cut node can't be asked.
    fn status(&self, index: usize) -> Value {
        let node = self.cluster.node(index);
        let state = match (node.is_alive(), node.is_frozen()) {
            (false, _) => "down",
            (true, true) => "frozen",
            (true, false) => "running",
        };
        let standby = node.is_standby_by_files();
        let role = if standby { "standby" } else { "primary" };
        json!({
            "node": node.name(), "state": state, "role": role, "read_only": standby || node.is_demoted(),
            "cut": self.cluster.is_cut(index),
        })
    }

    /// Takes commands on a Unix socket until the future is dropped. Each caller's are carried out in order.
    pub async fn serve(&self, path: &Path) -> Result<(), LabError> {
        let listener =
            UnixListener::bind(path).map_err(LabError::io(format!("listening on {}", path.display())))?;
        let mut callers = tokio::task::JoinSet::new();
        loop {
            while callers.len() >= MOST_CALLERS {
                callers.join_next().await;
            }
            let (stream, _) = listener.accept().await.map_err(LabError::io("accepting a caller"))?;
            let control = self.clone();
            callers.spawn(async move {
                let (read, mut write) = stream.into_split();
                let mut lines = BufReader::new(read);
                while let Ok(Some(line)) = next_line(&mut lines).await {
                    let reply = format!("{}\n", control.execute(&line).await);
                    if write.write_all(reply.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    }
}

/// The next line that isn't empty; `None` at the end, or when a line is too long to be a command.
async fn next_line(from: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> std::io::Result<Option<String>> {
    loop {
        let mut line = String::new();
        let n = tokio::io::AsyncReadExt::take(&mut *from, LONGEST_LINE).read_line(&mut line).await?;
        if n == 0 || !line.ends_with('\n') && n as u64 == LONGEST_LINE {
            return Ok(None);
        }
        if !line.trim().is_empty() {
            return Ok(Some(line));
        }
    }
}

fn unknown(line: &str) -> LabError {
    LabError::State(format!("can't read the command {:?}; there are: {COMMANDS}", line.trim()))
}

fn stop_mode(word: Option<&str>) -> Result<StopMode, LabError> {
    match word {
        None | Some("fast") => Ok(StopMode::Fast),
        Some("immediate") => Ok(StopMode::Immediate),
        Some("smart") => Ok(StopMode::Smart),
        Some(other) => {
            Err(LabError::State(format!("no way to stop is called {other:?}: fast, immediate, smart")))
        }
    }
}
