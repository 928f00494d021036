//! What a statement does and answers.

use super::{Backend, Did, LOCK_TIMEOUT};
use crate::node::{WALL, Write};
use crate::sql::{self, Asked, Expr, Sql};
use crate::wire;
use crate::world::{ConnId, Inner};

impl Inner {
    pub(super) fn execute(&mut self, id: ConnId, statement: &Sql, values: &[i64], describe: bool) -> Did {
        let Some(c) = self.conns.get(&id) else { return Did::Failed };
        let node = c.node;
        let writable = !self.nodes[node].in_recovery && !self.nodes[node].fenced;
        let Some(b) = self.backend(id) else { return Did::Failed };
        if b.failed && !matches!(statement, Sql::Commit | Sql::Rollback) {
            b.fail(
                "25P02",
                "current transaction is aborted, commands ignored until end of transaction block",
            );
            return Did::Failed;
        }
        match statement {
            Sql::Empty => Did::Nothing,
            Sql::Begin { read_only } => {
                // A block keeps what it began as: a fence raised later lets it commit.
                (b.block, b.failed, b.read_only) = (true, false, *read_only || !writable);
                Did::Tag("BEGIN")
            }
            Sql::Commit if b.failed => {
                b.end_block();
                Did::Tag("ROLLBACK")
            }
            Sql::Commit => Did::Commit("COMMIT"),
            Sql::Rollback => {
                b.end_block();
                Did::Tag("ROLLBACK")
            }
            Sql::Insert(row) => {
                if b.read_only || (!b.block && !writable) {
                    b.fail("25006", "cannot execute INSERT in a read-only transaction");
                    return Did::Failed;
                }
                let Some(row) = row.or_else(|| values.first().copied()) else {
                    b.fail("08P01", "no value for $1");
                    return Did::Failed;
                };
                b.writes.push(Write::Row(row));
                let seen = b.seen;
                self.take_number(id, node);
                self.stale_write(id, node, seen, "INSERT");
                Did::Tag("INSERT 0 1")
            }
            Sql::Emit => {
                if b.read_only || (!b.block && !writable) {
                    b.fail("25006", "cannot execute pg_logical_emit_message() in a read-only transaction");
                    return Did::Failed;
                }
                b.writes.push(Write::Touch);
                self.take_number(id, node);
                self.answer(id, describe, statement, Some(vec![Some(String::new())]));
                Did::Tag("SELECT 1")
            }
            Sql::Look(row) => {
                let found = self.nodes[node].wal.iter().any(|e| e.rows().any(|r| r == *row));
                let found = found.then(|| vec![Some(row.to_string())]);
                self.answer(id, describe, statement, found);
                Did::Tag("SELECT 1")
            }
            Sql::Fail(code) => {
                b.fail(code, "failed as it was told to");
                Did::Failed
            }
            Sql::Sleep(_) => {
                self.answer(id, describe, statement, Some(vec![Some(String::new())]));
                Did::Tag("SELECT 1")
            }
            Sql::Set => Did::Tag("SET"),
            Sql::Ask(list) => self.ask(id, node, list, describe),
            Sql::Token { token, state, check } => self.token(id, node, statement, (token, *state, *check)),
            Sql::Twin { pid, start, end } => {
                let of = |b: &Backend| b.pid == *pid && b.born == *start;
                let twin =
                    self.conns.iter().find(|(_, c)| c.node == node && c.server.as_ref().is_some_and(of));
                let twin = twin.map(|(id, c)| (*id, c.server.as_ref().is_some_and(Backend::in_sync_wait)));
                let row = twin.map(|(twin, waits)| {
                    let ends = *end && !waits;
                    if ends {
                        self.terminate(twin);
                    }
                    let waits = Some(if waits { "t" } else { "f" }.to_owned());
                    if *end { vec![waits, ends.then(|| "t".to_owned())] } else { vec![waits] }
                });
                self.answer(id, describe, statement, row);
                Did::Tag("SELECT 1")
            }
            Sql::AtWork(pids) => {
                let frozen = self.nodes[node].frozen;
                let of = |b: &&Backend| pids.contains(&b.pid) && b.at_work(frozen);
                let here = self.conns.values().filter(|c| c.node == node).filter_map(|c| c.server.as_ref());
                let waits = |b: &Backend| Some(if b.in_sync_wait() { "t" } else { "f" }.to_owned());
                let rows = here.filter(of).map(|b| vec![Some(b.pid.to_string()), waits(b)]).collect();
                self.answers(id, describe, statement, rows);
                Did::Tag("SELECT 1")
            }
            Sql::Unknown => {
                b.fail("42601", "the simulation doesn't know this statement");
                Did::Failed
            }
        }
    }

    fn answer(&mut self, id: ConnId, describe: bool, of: &Sql, row: Option<Vec<Option<String>>>) {
        self.answers(id, describe, of, row.into_iter().collect());
    }

    fn answers(&mut self, id: ConnId, describe: bool, of: &Sql, rows: Vec<Vec<Option<String>>>) {
        let Some(b) = self.backend(id) else { return };
        if describe {
            wire::describe(&mut b.out, &of.columns());
        }
        for row in rows {
            wire::row(&mut b.out, &row);
        }
    }

    /// A row of the token table: taken, found taken, or waited for.
    fn token(&mut self, id: ConnId, node: usize, said: &Sql, token: (&str, char, bool)) -> Did {
        let (name, state, check) = token;
        let now = self.now;
        let writable = !self.nodes[node].in_recovery && !self.nodes[node].fenced;
        // Whoever commits and waits for a standby still holds its row: as long as that, nobody sees it.
        let holds = |b: &Backend| {
            let is = |w: &Write| matches!(w, Write::Token(t, _) if **t == *name);
            b.writes.iter().any(is) || b.holds.as_deref() == Some(name)
        };
        let held = self
            .conns
            .iter()
            .any(|(other, c)| *other != id && c.node == node && c.server.as_ref().is_some_and(holds));
        let known = self.nodes[node].token(name);
        let Some(b) = self.backend(id) else { return Did::Failed };
        if b.read_only || (!b.block && !writable) {
            b.fail("25006", "cannot execute INSERT in a read-only transaction");
            return Did::Failed;
        }
        if held {
            if check && b.blocked.is_some_and(|since| now - since >= LOCK_TIMEOUT) {
                b.blocked = None;
                b.fail("55P03", "canceling statement due to lock timeout");
                return Did::Failed;
            }
            return Did::Blocked;
        }
        b.blocked = None;
        match known {
            Some(_) if !check => {
                b.fail("23505", "duplicate key value violates unique constraint \"outcome_pkey\"");
                return Did::Failed;
            }
            Some(_) => b.writes.push(Write::Touch),
            None => b.writes.push(Write::Token(name.into(), state)),
        }
        self.take_number(id, node);
        if check {
            self.truth.asked.insert(name.to_owned());
            self.answer(id, true, said, Some(vec![Some(known.unwrap_or(state).to_string())]));
        }
        Did::Tag("INSERT 0 1")
    }

    /// `pg_terminate_backend`.
    fn terminate(&mut self, id: ConnId) {
        if let Some(b) = self.backend(id) {
            wire::error(&mut b.out, "FATAL", "57P01", "terminating connection due to administrator command");
        }
        self.say(id);
        self.cut(id, false);
    }

    pub(super) fn wall(&self) -> i64 {
        WALL + i64::try_from(self.now).unwrap_or(0)
    }

    /// One of the library's own questions.
    fn ask(&mut self, id: ConnId, node: usize, list: &[(Expr, String)], describe: bool) -> Did {
        let me = self.backend(id).map_or((0, 0, None), |b| (b.pid, b.born, b.xid));
        let (pid, backend_start, xid) = me;
        let monitors = || {
            let of = |c: &&crate::world::Conn| c.node == node && c.server.as_ref().is_some_and(|b| b.monitor);
            self.conns.values().filter(of).count()
        };
        let running = self.running(node);
        let n = &self.nodes[node];
        let max = self.model.max_connections;
        let mut asked = Asked {
            node: n,
            max_connections: max,
            monitors: 0,
            pid,
            backend_start,
            wall: self.wall(),
            sync: self.model.sync,
            marks: self.model.marks,
            xid,
            running: &running,
        };
        let value = |(e, _): &(Expr, String)| {
            if *e == Expr::Monitors {
                asked.monitors = monitors();
            }
            sql::value(*e, &asked)
        };
        let values: Result<Vec<_>, ()> = list.iter().map(value).collect();
        let tells = if n.writable() && list.len() > 1 { n.timeline } else { 0 };
        match values {
            Ok(values) => {
                self.answer(id, describe, &Sql::Ask(list.to_vec()), Some(values));
                if let Some(b) = self.backend(id) {
                    b.tells = b.tells.max(tells);
                }
                Did::Tag("SELECT 1")
            }
            Err(()) => {
                if let Some(b) = self.backend(id) {
                    b.fail("42601", "the simulation doesn't know this question");
                }
                Did::Failed
            }
        }
    }
}
