//! What the names of statements and portals stand for.

use std::collections::HashMap;

use super::text::Effects;

/// Names whose effect is remembered; of later ones the careful answer is given.
const NAMES: usize = 4_096;
/// PostgreSQL's own limit of a name (NAMEDATALEN − 1): longer ones that begin alike are one name to it.
const LONGEST: usize = 63;

/// The names of one kind.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<Vec<u8>, Effects>);

impl Names {
    /// A name is given. A named one may fail and leave the old one; the unnamed one is always replaced.
    pub(super) fn set(&mut self, name: &[u8], effects: Effects) {
        let full = self.0.len() >= NAMES;
        match self.0.get_mut(name) {
            Some(old) if name.is_empty() => *old = effects,
            Some(old) => *old = old.or(effects),
            None if full || name.len() > LONGEST => {}
            None => {
                self.0.insert(name.to_vec(), effects);
            }
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Effects {
        self.0.get(name).copied().unwrap_or(Effects::DOUBT)
    }

    pub(super) fn close(&mut self, name: &[u8]) {
        self.0.remove(name);
    }
}
