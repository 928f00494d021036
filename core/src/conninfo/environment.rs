//! What a connection string can draw on besides itself: variables, folders, the operating system's user. Injected,
//! so that a test never touches the process's own.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The surroundings in which a connection string is read.
#[derive(Clone)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    /// Names whose value isn't UTF-8.
    unreadable: BTreeSet<String>,
    account: Account,
    sysconf_dirs: Vec<PathBuf>,
    socket_dir: PathBuf,
}

#[derive(Clone)]
enum Account {
    /// Asked only when needed: the answer may come over the network.
    System,
    Fixed(Option<String>),
}

/// Compiled-in places of PostgreSQL's packages: Debian's and Ubuntu's, upstream's, Red Hat's.
const SYSCONF_DIRS: [&str; 3] = ["/etc/postgresql-common", "/usr/local/pgsql/etc", "/etc/sysconfig/pgsql"];
/// The packages' socket directory, else upstream's.
const SOCKET_DIRS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

impl Environment {
    /// The process's own surroundings, as they are now.
    pub fn system() -> Self {
        let mut env = Self {
            account: Account::System,
            sysconf_dirs: SYSCONF_DIRS.iter().map(PathBuf::from).collect(),
            socket_dir: SOCKET_DIRS
                .iter()
                .map(PathBuf::from)
                .find(|d| d.is_dir())
                .unwrap_or_else(|| "/tmp".into()),
            ..Self::empty()
        };
        for (name, value) in std::env::vars_os() {
            env.add(name, value);
        }
        env
    }

    /// Surroundings without anything: no variables, no home, no account, `/tmp` for sockets.
    pub fn empty() -> Self {
        Self {
            variables: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            account: Account::Fixed(None),
            sysconf_dirs: Vec::new(),
            socket_dir: "/tmp".into(),
        }
    }

    fn add(&mut self, name: OsString, value: OsString) {
        let Ok(name) = name.into_string() else { return };
        if name != "HOME" && !name.starts_with("PG") {
            return;
        }
        match value.into_string() {
            Ok(value) => drop(self.variables.insert(name, value)),
            Err(_) => drop(self.unreadable.insert(name)),
        }
    }

    /// Sets a variable (`HOME` too).
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets the operating system's user.
    #[must_use]
    pub fn with_user(mut self, name: &str) -> Self {
        self.account = Account::Fixed(Some(name.to_owned()));
        self
    }

    /// Sets the folder of the system-wide service file.
    #[must_use]
    pub fn with_sysconf_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.sysconf_dirs = vec![dir.into()];
        self
    }

    /// Sets the default directory of Unix sockets.
    #[must_use]
    pub fn with_socket_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.socket_dir = dir.into();
        self
    }

    /// A variable; an error text where it isn't UTF-8.
    pub(crate) fn variable(&self, name: &str) -> Result<Option<&str>, String> {
        if self.unreadable.contains(name) {
            return Err(format!("the environment variable {name} is not UTF-8: set it anew"));
        }
        Ok(self.variables.get(name).map(String::as_str))
    }

    /// The names of all variables that begin with `prefix`.
    pub(crate) fn names<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.variables.keys().map(String::as_str).filter(move |n| n.starts_with(prefix))
    }

    /// The home folder: `HOME`, else the account's.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        match self.variables.get("HOME").filter(|h| !h.is_empty()) {
            Some(home) => Some(home.into()),
            None if matches!(self.account, Account::System) => account().map(|a| a.home),
            None => None,
        }
    }

    /// The operating system's user.
    pub(crate) fn user(&self) -> Option<String> {
        match &self.account {
            Account::System => account().map(|a| a.name),
            Account::Fixed(name) => name.clone(),
        }
    }

    /// Folders that may hold the system-wide `pg_service.conf`.
    pub(crate) fn sysconf_dirs(&self) -> Vec<PathBuf> {
        match self.variables.get("PGSYSCONFDIR") {
            Some(dir) => vec![dir.into()],
            None => self.sysconf_dirs.clone(),
        }
    }

    /// The default directory of Unix sockets.
    pub(crate) fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }
}

struct Entry {
    name: String,
    home: PathBuf,
}

/// The entry of the effective user, as libpq asks for it (`getpwuid_r`): it covers LDAP and the like, which
/// `/etc/passwd` does not.
#[cfg(unix)]
#[expect(unsafe_code, reason = "the account's name has no safe interface in std")]
fn account() -> Option<Entry> {
    use std::ffi::{CStr, OsStr};
    use std::os::unix::ffi::OsStrExt;

    let mut buffer = vec![0; 16_384];
    // SAFETY: `passwd` is a C struct of pointers and numbers, for which all zeros is a valid value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: every pointer is valid for the call, and the length is the buffer's.
    let rc = unsafe {
        libc::getpwuid_r(libc::geteuid(), &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found)
    };
    if rc != 0 || found.is_null() || entry.pw_name.is_null() || entry.pw_dir.is_null() {
        return None;
    }
    // SAFETY: on success both point to C strings inside `buffer`, which outlives these borrows.
    let (name, home) = unsafe { (CStr::from_ptr(entry.pw_name), CStr::from_ptr(entry.pw_dir)) };
    let home = PathBuf::from(OsStr::from_bytes(home.to_bytes()));
    Some(Entry { name: name.to_str().ok()?.to_owned(), home })
}

/// Elsewhere only what variables say; unbuilt and untested here.
#[cfg(not(unix))]
fn account() -> Option<Entry> {
    let variable = |n| std::env::var(n).ok().filter(|v| !v.is_empty());
    Some(Entry {
        name: variable("USERNAME")?,
        home: variable("APPDATA").map(|d| PathBuf::from(d).join("postgresql"))?,
    })
}
