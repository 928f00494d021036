//! The prepared statements of one session, the ones used last.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_postgres::Statement;

use super::why::Why;
use crate::error::{Class, Error};
use crate::lock;

/// Statements kept for a session. Each costs the server memory too.
const KEPT: usize = 256;

/// The cache: statements by their text.
#[derive(Default)]
pub(crate) struct Statements {
    kept: Mutex<Kept<Statement>>,
    /// How many were prepared here, as long as none has left the cache.
    prepared: AtomicU64,
}

impl Statements {
    /// The statement of that text, prepared by `prepare` where it isn't known. (What isn't needed isn't even built: such
    /// a future is large, and to move it here costs more than to find the statement.)
    pub(super) async fn get_or<F>(
        &self,
        sql: &str,
        why: &Why,
        prepare: impl FnOnce() -> F,
    ) -> Result<Statement, Error>
    where
        F: Future<Output = Result<Statement, tokio_postgres::Error>>,
    {
        if why.member().tap.take_stale() {
            // Which one isn't said; its siblings on the same tables are as stale.
            let all = std::mem::take(&mut *lock(&self.kept));
            self.stray();
            drop(all);
        }
        if let Some(known) = lock(&self.kept).get(sql) {
            return Ok(known);
        }
        let statement = prepare().await.map_err(|e| {
            let e = why.diagnose(e);
            if e.class() == Class::UnknownOutcome { e.with_class(Class::Transient) } else { e }
        })?;
        // The last handle of a statement closes it on the server: not under the lock.
        let evicted = lock(&self.kept).put(sql, statement.clone());
        self.prepared.fetch_add(1, Ordering::Relaxed);
        if evicted.is_some() {
            self.stray();
        }
        drop(evicted);
        Ok(statement)
    }

    /// Forgets the statement of that text.
    pub(super) fn forget(&self, sql: &str) {
        let forgotten = lock(&self.kept).by_text.remove(sql);
        self.stray();
        drop(forgotten);
    }

    /// A caller may have the last handle of one.
    fn stray(&self) {
        // However many are prepared from here on, it stays below the number of all.
        self.prepared.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether these are all of the statements that the session was asked to name, so many.
    pub(super) fn account_for(&self, named: u64) -> bool {
        self.prepared.load(Ordering::Relaxed) == named
    }
}

struct Kept<T> {
    by_text: HashMap<String, (T, u64)>,
    /// Counts the uses.
    uses: u64,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { by_text: HashMap::new(), uses: 0 }
    }
}

impl<T: Clone> Kept<T> {
    fn get(&mut self, text: &str) -> Option<T> {
        let (value, used) = self.by_text.get_mut(text)?;
        self.uses += 1;
        *used = self.uses;
        Some(value.clone())
    }

    /// What has to go for it: the one that it replaces, or the one unused for longest (found by a look at all: that is
    /// nothing beside the round trip that has just been made).
    fn put(&mut self, text: &str, value: T) -> Option<T> {
        self.uses += 1;
        let replaced = self.by_text.insert(text.to_owned(), (value, self.uses));
        if self.by_text.len() > KEPT {
            let oldest = self.by_text.iter().min_by_key(|(_, (_, used))| *used).map(|(text, _)| text.clone());
            return oldest.and_then(|text| self.by_text.remove(&text)).map(|(value, _)| value);
        }
        replaced.map(|(value, _)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_makes_its_statements_up_does_not_fill_the_server() {
        let mut kept = Kept::default();
        kept.put("hot", 0);
        for n in 1..=10_000 {
            assert_eq!(kept.get("hot"), Some(0), "it was in use");
            kept.put(&format!("SELECT {n}"), n);
            assert!(kept.by_text.len() <= KEPT);
        }
        assert_eq!(kept.get("SELECT 1"), None);
        assert_eq!(kept.get("SELECT 10000"), Some(10_000));
    }
}
