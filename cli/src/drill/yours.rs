//! The drill on a cluster of the user's own: the same clients and the same counts, and a failover that the user's
//! command makes. Nothing is broken from here; what is created is one table, dropped at the end.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use pgfollow::{Connector, Error, Session};
use pgfollow_lab::{LabError, monotonic_ns};
use tokio::process::{Child, Command};
use tokio_postgres::Client as Sql;

use super::fault::{Fault, Promotion};
use super::fleet::Fleet;
use super::prober::Probers;
use super::progress::Progress;
use super::record::TABLE;
use super::scene::{self, Plan, Seen, ask_identity, sql_failed};
use super::{ours, plain};
use crate::lab::Signals;
use crate::output;

/// How long the first session and the last ones may take.
const SESSION: Duration = Duration::from_secs(30);
/// How long dropping the table may take.
const DROP: Duration = Duration::from_secs(30);

/// Where, and how its failover is started.
pub(crate) struct Yours {
    conninfo: String,
    trigger: String,
    patience: Duration,
    connector: Connector,
}

/// The cluster as it was found.
pub(crate) struct Ready {
    yours: Yours,
    session: Session,
    identity: String,
    server_version: String,
    sync: bool,
    notes: Vec<String>,
    warnings: Vec<String>,
    question: String,
}

/// How it ended.
pub(crate) enum Played {
    Seen(Seen),
    /// By a signal.
    Stopped(i32),
}

impl Yours {
    /// # Errors
    /// A string that can't be used.
    pub(crate) fn new(conninfo: &str, trigger: &str, patience: Duration) -> Result<Self, Error> {
        let connector = ours::connector(conninfo, true)?;
        Ok(Self { conninfo: conninfo.to_owned(), trigger: trigger.to_owned(), patience, connector })
    }

    /// Looks at the cluster and changes nothing. Leaves the plain pool out of the plan where it can't take part.
    pub(crate) async fn look(self, plan: &mut Plan) -> Result<Ready, LabError> {
        anstream::eprintln!("drill: waiting up to {} s for a session to your cluster", SESSION.as_secs());
        let session = self.session().await?;
        let sql = "select current_setting('server_version'), current_database()::text, current_user::text, \
                   current_setting('synchronous_standby_names') <> '' \
                     and current_setting('synchronous_commit') not in ('off', 'local'), \
                   to_regclass($1::text) is not null, (select count(*) from pg_stat_replication), \
                   current_setting('max_connections')::int8, \
                   current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8 \
                     - coalesce(current_setting('reserved_connections', true)::int8, 0) \
                     - (select sum(numbackends) from pg_stat_database where datname is not null)::int8";
        let row = session.query_one(sql, &[&TABLE]).await.map_err(sql_failed("looking at the cluster"))?;
        let (version, database, user): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        if row.get(4) {
            return Err(LabError::State(format!(
                "the table {TABLE} exists in database {database} already: another drill runs, or one was killed; \
                 drop the table if none runs"
            )));
        }
        let mut warnings = Vec::new();
        if row.get::<_, i64>(5) == 0 {
            warnings.push(
                "no standby streams from the primary: a failover may be an outage without end".to_owned(),
            );
        }
        let mut notes = vec![
            "Times count from the start of the trigger command. Ready is the first write acknowledged to a prober, \
             which asks every candidate each 5 ms; where a single name moves it may be 200 ms late."
                .to_owned(),
            "Not measured: what the failover itself consisted of, and the sessions at the new primary.".to_owned(),
        ];
        if plan.plain
            && let Err(why) = plain::try_out(&self.conninfo).await
        {
            plan.plain = false;
            notes.push(format!("No plain pool beside it, for tokio-postgres alone gets no session: {why}."));
        }
        let clients = if plan.plain { 2 } else { 1 };
        let Plan { instances, workers, .. } = *plan;
        // Our own session is among those that are there, and stays.
        Fleet { instances, workers, kinds: clients }.fits(row.get(6), row.get(7)).map_err(LabError::State)?;
        let writers = clients * u32::from(instances) * u32::from(workers);
        let rate = writers * u32::from(plan.rate);
        let question = format!(
            "This starts a real failover of the cluster behind {} (database {database}, user {user}, PostgreSQL {version}) \
             by running:\n  {}\nUntil it is over, {} sessions write {rate} rows a second into a new table, {TABLE}, \
             which is dropped at the end.",
            session.candidate(),
            self.trigger,
            writers,
        );
        let identity = ask_identity(&session).await?;
        let sync = row.get(3);
        Ok(Ready { yours: self, session, identity, server_version: version, sync, notes, warnings, question })
    }

    async fn session(&self) -> Result<Session, LabError> {
        self.connector.connect_within(SESSION).await.map_err(ours_failed("a session to your cluster"))
    }

    /// Runs the trigger. What it prints goes to standard error: standard output is the report's.
    fn start_trigger(&self) -> Result<Child, LabError> {
        let failed = |e: std::io::Error| LabError::State(format!("running the trigger command: {e}"));
        let talk = std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
        // Not killed with us: half a failover would be worse than a whole one.
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.trigger).stdin(Stdio::null()).stdout(talk);
        command.spawn().map_err(failed)
    }

    /// Drops the table, wherever the primary is by now.
    async fn drop_table(&self) -> Result<(), LabError> {
        let session = self.session().await?;
        let sql = format!("set lock_timeout = '20s'; drop table if exists {TABLE}");
        let dropped = session.within(DROP, session.batch_execute(&sql)).await;
        dropped.map_err(ours_failed("dropping the drill's table"))
    }
}

impl Ready {
    /// Says what will be done and asks, on a terminal. Without one nobody can say yes.
    pub(crate) fn ask(&self) -> Result<bool, LabError> {
        let mut talk = anstream::stderr();
        let mut lines = vec![self.question.clone()];
        lines.extend(self.warnings.iter().map(|w| format!("! {w}")));
        let failed = |e: std::io::Error| LabError::State(format!("asking: {e}"));
        writeln!(talk, "{}", lines.join("\n")).map_err(failed)?;
        if !std::io::stdin().is_terminal() {
            return Ok(false);
        }
        write!(talk, "Go on? [y/N] ").and_then(|()| talk.flush()).map_err(failed)?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map_err(failed)?;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    /// Runs it. The table is gone when this returns, or the error says that it isn't.
    pub(crate) async fn play(
        self,
        plan: &Plan,
        progress: &Progress,
        signals: &mut Signals,
    ) -> Result<Played, LabError> {
        scene::create_table(&self.session, None).await?;
        let played = tokio::select! {
            seen = self.watch_failover(plan, progress) => seen.map(Played::Seen),
            // The clients end with the future.
            signal = signals.next() => Ok(Played::Stopped(signal)),
        };
        progress.stage("dropping the drill's table");
        let dropped = tokio::select! {
            dropped = self.yours.drop_table() => dropped,
            _ = signals.next() => Err(LabError::State("a second signal came".to_owned())),
        };
        if let Err(e) = dropped {
            output::complain(format_args!("the table {TABLE} is still there ({e}): drop it by hand"));
        }
        played
    }

    async fn watch_failover(&self, plan: &Plan, progress: &Progress) -> Result<Seen, LabError> {
        let yours = &self.yours;
        let clients = scene::start_clients(&yours.conninfo, plan, true, progress).await?;
        let mut probers = Probers::start(&yours.connector, &self.identity);
        progress.stage("running the trigger command");
        let fault = monotonic_ns();
        let mut trigger = yours.start_trigger()?;
        let patience = tokio::time::sleep(yours.patience);
        let (ready, new) = progress
            .count_while(&clients, async {
                tokio::select! {
                    first = probers.first_write() => Ok(first),
                    failed = failure(&mut trigger) => Err(failed),
                    () = patience => Err(LabError::State(format!(
                        "no other server took a write within {} s of the trigger's start",
                        yours.patience.as_secs()
                    ))),
                }
            })
            .await?;
        drop(probers);
        let last = Promotion { node: 1, fault, asked: fault, ready };
        progress.stage("watching the clients come back");
        progress.count_while(&clients, scene::watch(&clients, plan, &new, &last)).await;
        progress.stage("counting the writes");
        let session = yours.session().await?;
        let mut clients = scene::end(clients).await?;
        scene::count_writes(&mut clients, &session).await?;
        let mut notes = self.notes.clone();
        notes.extend(self.after(&session, &new, &mut trigger).await?);
        Ok(Seen {
            fault: Fault::Trigger,
            server_version: self.server_version.clone(),
            sync: self.sync,
            nodes: vec![self.identity.clone(), new],
            promotions: vec![last],
            clients,
            notes,
        })
    }

    /// What came about since the failover that the figures don't say.
    async fn after(&self, session: &Sql, new: &str, trigger: &mut Child) -> Result<Vec<String>, LabError> {
        let mut notes: Vec<String> = self.warnings.clone();
        if ask_identity(session).await? != new {
            notes.push(
                "The primary changed again after the failover: writes were counted on the last one."
                    .to_owned(),
            );
        }
        match trigger.try_wait() {
            Ok(Some(status)) if !status.success() => {
                notes.push(format!("The trigger command ended with {status}."));
            }
            Ok(None) => notes.push("The trigger command still runs.".to_owned()),
            _ => {}
        }
        Ok(notes)
    }
}

/// Resolves if the command fails; after a success, never.
async fn failure(trigger: &mut Child) -> LabError {
    match trigger.wait().await {
        Ok(status) if status.success() => std::future::pending().await,
        Ok(status) => LabError::State(format!("the trigger command failed: {status}")),
        Err(e) => LabError::State(format!("waiting for the trigger command: {e}")),
    }
}

fn ours_failed(what: &'static str) -> impl FnOnce(Error) -> LabError {
    move |e| LabError::State(format!("{what}: {e}"))
}
