//! What the names of statements and portals stand for.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::text::Effects;

/// Names whose effect is remembered; of later ones the careful answer is given.
const NAMES: usize = 4_096;
/// PostgreSQL's own limit of a name (NAMEDATALEN − 1): longer ones that begin alike are one name to it.
const LONGEST: usize = 63;

/// Hashes names (FNV-1a): a look-up for every Bind, of a few bytes that the caller's own driver chose.
#[derive(Clone, Copy)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    }

    // The length, which tells nothing: it would cost as much as the name.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The names of one kind.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Of the one without a name, which each use replaces.
    unnamed: Option<Effects>,
    named: HashMap<Vec<u8>, Effects, BuildHasherDefault<Fnv>>,
}

impl Names {
    /// A name is given. A named one may fail and leave the old one; the unnamed one is always replaced.
    pub(super) fn set(&mut self, name: &[u8], effects: Effects) {
        if name.is_empty() {
            self.unnamed = Some(effects);
            return;
        }
        let full = self.named.len() >= NAMES;
        match self.named.get_mut(name) {
            Some(old) => *old = old.or(effects),
            None if full || name.len() > LONGEST => {}
            None => {
                self.named.insert(name.to_vec(), effects);
            }
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Effects {
        let known = if name.is_empty() { self.unnamed } else { self.named.get(name).copied() };
        known.unwrap_or(Effects::DOUBT)
    }

    pub(super) fn close(&mut self, name: &[u8]) {
        if name.is_empty() {
            self.unnamed = None;
        } else {
            self.named.remove(name);
        }
    }
}
