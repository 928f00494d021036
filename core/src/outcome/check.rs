//! The check itself: asks the primary until there is an answer or the time is over.
//!
//! Decides nothing ([`crate::decide::outcome`] does). The session is kept between two tries while it lives: a check that
//! waits for a standby must not fill the server with commits that it gave up.

use std::convert::Infallible;
use std::time::Duration;

use tokio_postgres::SimpleQueryMessage;

use super::ability::{Ability, MARKS, Marks, row_with, text, yes};
use super::token::{Token, Twin, WARNINGS};
use crate::clock::{self, Deadline};
use crate::config::SessionAttrs;
use crate::connector::Connector;
use crate::decide::outcome::{self, Ended, Mark, NumberSeen, Outcome, Status, Step, Unsettled};
use crate::error::{Class, Error, SqlState};
use crate::session::Session;

/// The first pause between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A try that takes longer than this is looked at from outside: does it wait for a standby?
const LOOK_AFTER: Duration = Duration::from_millis(1_500);
/// Bounds a look, and the end of a twin.
const ERRAND: Duration = Duration::from_secs(2);

/// Asks what became of the transaction until the deadline.
pub(crate) async fn settle(
    connector: &Connector,
    token: &Token,
    deadline: Deadline,
) -> Result<Outcome, Error> {
    let mut check = Check { connector, token, deadline, session: None, reason: Unsettled::NoPrimary };
    let answer = deadline.bound(async {
        let turn = connector.settling().turn().await;
        check.session = turn.session();
        let answer = check.run().await;
        if let Some(session) = check.session.take() {
            turn.leave(session);
        }
        answer
    });
    let outcome = match answer.await {
        Ok(answer) => answer,
        // Dropped where it stood: nothing is cancelled, for a cancel would break off a wait for a standby.
        Err(_) => Ok(Outcome::Unknown(check.reason)),
    };
    let way = match token.given.mark {
        Mark::Row { .. } => "table",
        Mark::Number { .. } => "number",
    };
    connector.monitor().recorder.asked_outcome(way, outcome.as_ref().ok().copied());
    let outcome = outcome?;
    tracing::info!(target: "pgfollow", ?outcome, "outcome check");
    Ok(outcome)
}

struct Check<'a> {
    connector: &'a Connector,
    token: &'a Token,
    deadline: Deadline,
    session: Option<(Session, Ability)>,
    /// What stands in the way at present.
    reason: Unsettled,
}

impl Check<'_> {
    async fn run(&mut self) -> Result<Outcome, Error> {
        let mut pause = PAUSE;
        loop {
            match self.once().await? {
                Step::Done(outcome) => return Ok(outcome),
                Step::Again(why) => self.reason = why,
                // Carried out within the try.
                Step::EndTwin | Step::Fence | Step::AskNumber => {}
            }
            clock::sleep_until(clock::now() + self.connector.jittered(pause)).await;
            pause = pause.mul_f64(1.6).min(PAUSE_MAX);
        }
    }

    /// One try.
    async fn once(&mut self) -> Result<Step, Error> {
        let (session, ability) = match self.session.take() {
            Some((s, a)) if s.is_usable() => (s, a),
            _ => match self.open().await? {
                Some(opened) => opened,
                None => return Ok(Step::Again(Unsettled::NoPrimary)),
            },
        };
        let step = match outcome::first(&self.token.given, &ability.here()) {
            Step::Fence => self.fence(&session, &ability).await,
            Step::AskNumber => self.ask_number(&session, &ability).await,
            step => step,
        };
        let step = match step {
            Step::EndTwin => Step::Again(self.end_twin(&session).await),
            // It was right when it was asked; a newer primary seen meanwhile may know it better.
            Step::Done(_) if self.connector.is_superseded(&session) => Step::Again(Unsettled::NoPrimary),
            Step::Done(Outcome::NotCommitted) => {
                // It can't commit any more, but what it has locked would stand in the way of a repeat.
                self.end_twin(&session).await;
                step
            }
            step => step,
        };
        // One of an older term, or no more a primary, is left.
        if step != Step::Again(Unsettled::NoPrimary) {
            self.session = Some((session, ability));
        }
        Ok(step)
    }

    async fn open(&self) -> Result<Option<(Session, Ability)>, Error> {
        let patience = self.deadline.left(clock::now()).unwrap_or(Duration::MAX);
        let session = match self.connector.connect_as(SessionAttrs::ReadWrite, patience).await {
            Ok(s) => s,
            Err(e) if e.class() == Class::Permanent => return Err(e),
            Err(_) => return Ok(None),
        };
        Ok(Ability::read(&session).await.ok().flatten().map(|ability| (session, ability)))
    }

    /// Tries to take the token. It must write, so that its own commit waits behind the original's: an answer that is
    /// only read may be lost by a failover, and a second check would then read the first one's fence as a commit.
    async fn fence(&mut self, session: &Session, ability: &Ability) -> Step {
        let durable = durable(ability);
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {WARNINGS}; SET LOCAL lock_timeout = '1s'; {durable}\
             INSERT INTO pgfollow.outcome AS o (token, state) VALUES ('{}', 'v') \
             ON CONFLICT (token) DO UPDATE SET token = excluded.token RETURNING o.state; COMMIT",
            self.token.uuid()
        );
        let (answer, ended) = self.ask(session, ability, &sql).await;
        let state = row_with(&answer, "state").and_then(|r| text(r, "state")?.chars().next());
        outcome::fence(state, ended)
    }

    /// Asks for the number, and writes a word to the log so that the commit of this waits for standbys as well.
    async fn ask_number(&mut self, session: &Session, ability: &Ability) -> Step {
        let Mark::Number { xid, .. } = self.token.given.mark else {
            return Step::Done(Outcome::Unknown(Unsettled::NoToken));
        };
        let waits = if ability.emits {
            "SELECT pg_catalog.pg_logical_emit_message(true, 'pgfollow', 'outcome'); "
        } else {
            ""
        };
        let durable = durable(ability);
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {WARNINGS}; {durable}\
             SELECT pg_catalog.txid_status({xid}) AS status, {MARKS}; {waits}COMMIT"
        );
        let (answer, ended) = self.ask(session, ability, &sql).await;
        let seen = row_with(&answer, "status").map(|row| {
            let marks = Marks::of(row);
            NumberSeen {
                status: match text(row, "status") {
                    Some("committed") => Some(Status::Committed),
                    Some("aborted") => Some(Status::Aborted),
                    Some("in progress") => Some(Status::InProgress),
                    _ => None,
                },
                timeline: marks.timeline,
                start: marks.start,
                replay: marks.replay,
                waited: ability.emits || !ability.has_standbys,
            }
        });
        let promotions = self.connector.promotions();
        outcome::by_number(&self.token.given, seen.as_ref(), ended, &promotions)
    }

    /// Sends a statement that ends in COMMIT, and looks at it from outside while it takes long.
    async fn ask(
        &mut self,
        session: &Session,
        ability: &Ability,
        sql: &str,
    ) -> (Vec<SimpleQueryMessage>, Ended) {
        let connector = self.connector;
        let reason = &mut self.reason;
        let answer = tokio::select! {
            biased;
            answer = session.simple_query(sql) => answer,
            never = look(connector, ability.twin, reason) => match never {},
        };
        let tap = &session.member().tap;
        match answer {
            Ok(answer) => {
                let ended = Ended {
                    committed: tap.tag() == "COMMIT",
                    local_only: tap.local_commit_only(),
                    error: None,
                };
                (answer, ended)
            }
            Err(e) => {
                let error = e.as_db_error().and_then(|db| SqlState::new(db.code().code()));
                if error.is_some() {
                    // The block that the statement began is still open.
                    let _ = session.simple_query("ROLLBACK").await;
                }
                (Vec::new(), Ended { error, ..Ended::default() })
            }
        }
    }

    /// Ends the backend that ran the transaction, unless it waits for a standby: ending that wait would show a commit
    /// that a failover may still lose. Says what stands in the way.
    async fn end_twin(&self, session: &Session) -> Unsettled {
        let Some(Twin { pid, start }) = self.token.twin else { return Unsettled::StillRunning };
        let sql = format!(
            "SELECT wait_event IS NOT DISTINCT FROM 'SyncRep' AS waits, \
             CASE WHEN wait_event IS DISTINCT FROM 'SyncRep' THEN pg_catalog.pg_terminate_backend(pid) END AS ended \
             FROM pg_catalog.pg_stat_activity WHERE pid = {pid} AND usename = session_user \
             AND (extract(epoch FROM backend_start) * 1000000)::pg_catalog.int8 = {start}"
        );
        let answer = Deadline::after(ERRAND).bound(session.simple_query(&sql)).await;
        let answer = answer.ok().and_then(Result::ok).unwrap_or_default();
        match row_with(&answer, "waits") {
            Some(row) if yes(row, "waits") => Unsettled::WaitingForStandby,
            Some(row) => {
                let ended = yes(row, "ended");
                tracing::info!(target: "pgfollow", pid, ended, "ended the backend of a transaction that was given up");
                Unsettled::StillRunning
            }
            None => Unsettled::StillRunning,
        }
    }
}

/// The check's commit waits for whatever the original may have waited for: its own setting may have been another than the
/// role's.
fn durable(ability: &Ability) -> &'static str {
    match (ability.waits_less, ability.has_standbys) {
        (true, true) => "SET LOCAL synchronous_commit = 'on'; ",
        (true, false) => "SET LOCAL synchronous_commit = 'local'; ",
        (false, _) => "",
    }
}

/// While a try takes long: finds out whether it waits for a standby. Nothing else would tell, for its answer comes only
/// behind that wait.
async fn look(connector: &Connector, asking: Option<Twin>, reason: &mut Unsettled) -> Infallible {
    let mut pause = LOOK_AFTER;
    while let Some(asking) = asking {
        clock::sleep_until(clock::now() + pause).await;
        pause = pause.saturating_mul(2);
        if Deadline::after(ERRAND).bound(waits_for_standby(connector, asking)).await == Ok(Some(true)) {
            *reason = Unsettled::WaitingForStandby;
            break;
        }
    }
    std::future::pending().await
}

async fn waits_for_standby(connector: &Connector, asking: Twin) -> Option<bool> {
    let session = connector.connect_as(SessionAttrs::ReadWrite, ERRAND).await.ok()?;
    let Twin { pid, start } = asking;
    let sql = format!(
        "SELECT wait_event IS NOT DISTINCT FROM 'SyncRep' AS waits FROM pg_catalog.pg_stat_activity WHERE pid = {pid} \
         AND (extract(epoch FROM backend_start) * 1000000)::pg_catalog.int8 = {start}"
    );
    let answer = session.simple_query(&sql).await.ok()?;
    Some(yes(row_with(&answer, "waits")?, "waits"))
}
