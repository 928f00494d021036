//! The prepared statements of one session, the ones used last.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio_postgres::Statement;

use super::why::Why;
use crate::error::{Class, Error};
use crate::lock;

/// Statements kept for a session. Each costs the server memory too.
const KEPT: usize = 256;

/// The cache: statements by their text.
#[derive(Default)]
pub(crate) struct Statements(Mutex<Kept<Statement>>);

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
            let all = std::mem::take(&mut *lock(&self.0));
            drop(all);
        }
        if let Some(known) = lock(&self.0).get(sql) {
            return Ok(known);
        }
        let statement = prepare().await.map_err(|e| {
            let e = why.diagnose(e);
            if e.class() == Class::UnknownOutcome { e.with_class(Class::Transient) } else { e }
        })?;
        // The last handle of a statement closes it on the server: not under the lock.
        let evicted = lock(&self.0).put(sql, statement.clone());
        drop(evicted);
        Ok(statement)
    }

    /// Forgets the statement of that text.
    pub(super) fn forget(&self, sql: &str) {
        let forgotten = lock(&self.0).by_text.remove(sql);
        drop(forgotten);
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
