//! The service file and the password file: libpq's `parseServiceFile` and `passwordFromFile`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Origin, Settings, failed, invalid, shown_keyword};
use crate::config::{find, remedy};
use crate::conninfo::Environment;
use crate::error::{Code, Error};

/// Far above any real file of this kind; a larger one is a mistake and isn't read into memory.
const LARGEST: u64 = 4 << 20;

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Asked before opening: opening a named pipe would wait for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a plain file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other("it is larger than 4 MiB"));
    }
    Ok(bytes)
}

/// Adds what the section of the configured service says, below what is there already.
pub(super) fn add_service(settings: &mut Settings, env: &Environment) -> Result<(), Error> {
    let service = match settings.get("service") {
        Some(s) => s.to_owned(),
        None => match env.variable("PGSERVICE").map_err(invalid)? {
            Some(s) => s.to_owned(),
            None => return Ok(()),
        },
    };
    let mut searched = Vec::new();
    let first = match env.variable("PGSERVICEFILE").map_err(invalid)? {
        // One that was named must be there.
        Some(path) => Some(PathBuf::from(path)),
        None => env.home().map(|h| h.join(".pg_service.conf")).filter(|p| p.exists()),
    };
    let system = env.sysconf_dirs().into_iter().map(|d| d.join("pg_service.conf")).find(|p| p.exists());
    for path in first.into_iter().chain(system) {
        let text = read(&path).map_err(|e| {
            failed(
                Code::UnusableFile,
                format!("service={service}: the service file {} can't be read: {e}", path.display()),
            )
        })?;
        if section(&String::from_utf8_lossy(&text), &service, &path, settings)? {
            return Ok(());
        }
        searched.push(path.display().to_string());
    }
    let where_ = if searched.is_empty() {
        "there is no service file: set PGSERVICEFILE or write ~/.pg_service.conf".to_owned()
    } else {
        format!("add a section [{service}] to {}", searched.join(" or "))
    };
    Err(failed(Code::InvalidOption, format!("service={service} is not defined: {where_}")))
}

/// Reads one section; false if the file doesn't have it.
fn section(text: &str, service: &str, path: &Path, settings: &mut Settings) -> Result<bool, Error> {
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(head) = line.strip_prefix('[') {
            if inside {
                return Ok(true);
            }
            inside = head.strip_prefix(service).is_some_and(|r| r.starts_with(']'));
            continue;
        }
        if !inside {
            continue;
        }
        let place = format!("service file {}, line {}", path.display(), number + 1);
        let problem = |code, message: String| Err(failed(code, format!("{place}: {message}")));
        if line.starts_with("ldap") {
            return problem(
                Code::UnsupportedOption,
                "ldap look-ups of a service are not supported: write the parameters themselves".to_owned(),
            );
        }
        let Some((name, value)) = line.split_once('=') else {
            return problem(Code::InvalidConninfo, "a line has no \"=\": write keyword=value".to_owned());
        };
        if name == "service" || name == "servicefile" {
            return problem(
                Code::InvalidConninfo,
                format!("{name} may not stand inside a service: remove it"),
            );
        }
        match find(name) {
            Some(row) => settings.add_below(row.name, value, Origin::ServiceFile),
            None => {
                let which = shown_keyword(name.trim_end(), false).unwrap_or_default();
                let remedy = remedy(name.trim_end());
                let message = format!("unknown keyword {which}: {remedy} (no blank before the \"=\")");
                return problem(Code::InvalidConninfo, message);
            }
        }
    }
    Ok(inside)
}

/// The password file, read once for all hosts.
pub(crate) struct PasswordFile {
    path: PathBuf,
    text: Vec<u8>,
}

impl PasswordFile {
    /// Reads it. As in libpq, one that can't be used is no error; why it was left aside goes into `warnings`.
    /// `named` says that it was configured, not just the default place.
    pub(crate) fn load(path: PathBuf, named: bool, warnings: &mut Vec<String>) -> Option<Self> {
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound && !named => return None,
            Err(e) => {
                warnings.push(format!("the password file {} is not used: {e}", path.display()));
                return None;
            }
        };
        if let Some(why) = unsafe_to_use(&meta) {
            warnings.push(format!("the password file {} is not used: {why}", path.display()));
            return None;
        }
        match read(&path) {
            Ok(text) => Some(Self { path, text }),
            Err(e) => {
                warnings.push(format!("the password file {} is not used: {e}", path.display()));
                None
            }
        }
    }

    /// The password of the first line that fits, if there is one.
    pub(crate) fn lookup(&self, key: [&str; 4]) -> Result<Option<String>, Error> {
        for (number, line) in self.text.split(|&b| b == b'\n').enumerate() {
            let end = line.iter().rposition(|&b| b != b'\r').map_or(0, |p| p + 1);
            let line = &line[..end];
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            let Some(rest) = key.iter().try_fold(line, |rest, token| match_field(rest, token.as_bytes()))
            else {
                continue;
            };
            let (password, _) = field(rest);
            return String::from_utf8(password).map(Some).map_err(|_| {
                let place = format!("password file {}, line {}", self.path.display(), number + 1);
                failed(Code::UnusableFile, format!("{place}: the password is not UTF-8"))
            });
        }
        Ok(None)
    }
}

#[cfg(unix)]
fn unsafe_to_use(meta: &fs::Metadata) -> Option<&'static str> {
    use std::os::unix::fs::PermissionsExt;
    if !meta.is_file() {
        Some("it is not a plain file")
    } else if meta.permissions().mode() & 0o077 != 0 {
        Some("group or others may use it (chmod 0600)")
    } else {
        None
    }
}

#[cfg(not(unix))]
fn unsafe_to_use(_: &fs::Metadata) -> Option<&'static str> {
    None
}

/// Up to the next colon without a backslash: the field, unescaped, and what follows the colon (if there is one).
fn field(line: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
    let mut out = Vec::new();
    let mut i = 0;
    while i < line.len() {
        match line[i] {
            b':' => return (out, Some(&line[i + 1..])),
            b'\\' if i + 1 < line.len() => {
                i += 1;
                out.push(line[i]);
            }
            b => out.push(b),
        }
        i += 1;
    }
    (out, None)
}

/// What follows the field if it fits; `*` alone fits everything.
fn match_field<'a>(line: &'a [u8], token: &[u8]) -> Option<&'a [u8]> {
    if let Some(rest) = line.strip_prefix(b"*:") {
        return Some(rest);
    }
    let (text, rest) = field(line);
    rest.filter(|_| text == token)
}
