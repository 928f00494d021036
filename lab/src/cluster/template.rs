//! Data directories without an initdb each: one costs more than all the rest of a cluster's start.
//!
//! A process's first cluster runs initdb where it needs it. From the second on a directory that nobody has started is
//! copied, and the copy gets a system identifier of its own: two clusters must never look like one.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::OnceCell;

use super::home::Home;
use super::start::random_hex;
use crate::process::{RunAs, command, run};
use crate::{Binaries, LabError, sys};

/// Where a segment's first page has it.
const SYSTEM_IDENTIFIER: u64 = 24;

/// By the folder of the programs: what was started from it.
static KNOWN: Mutex<Option<HashMap<PathBuf, Arc<Known>>>> = Mutex::new(None);

#[derive(Default)]
struct Known {
    first: OnceLock<()>,
    /// Never dropped: its keeper clears it away when the process has ended.
    template: OnceCell<Home>,
}

/// The superuser's password, the same for all clusters of a process: it is in the template.
pub(super) fn superuser_password() -> Result<String, LabError> {
    static PASSWORD: OnceLock<String> = OnceLock::new();
    if let Some(known) = PASSWORD.get() {
        return Ok(known.clone());
    }
    let drawn = random_hex()?;
    Ok(PASSWORD.get_or_init(|| drawn).clone())
}

/// Makes `data`, a fresh data directory, in `home`.
pub(super) async fn make_data(binaries: &Binaries, home: &Home, data: &Path) -> Result<(), LabError> {
    let known = {
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.get_or_insert_default().entry(binaries.dir().to_owned()).or_default())
    };
    if known.first.set(()).is_ok() {
        return initdb(binaries, home, data).await;
    }
    let make = || async {
        let own = Home::create(home.run_as())?;
        initdb(binaries, &own, &own.path().join("data")).await?;
        Ok(own)
    };
    let template = known.template.get_or_try_init(make).await?;
    copy(home.run_as(), &template.path().join("data"), data).await?;
    rename(data)
}

pub(super) async fn copy(run_as: Option<RunAs>, from: &Path, to: &Path) -> Result<(), LabError> {
    let mut cp = command("cp", run_as);
    cp.arg("-R").arg(from).arg(to);
    run("copying the data directory", cp).await.map(|_| ())
}

async fn initdb(binaries: &Binaries, home: &Home, data: &Path) -> Result<(), LabError> {
    let password = home.path().join("initdb.password");
    Home::write(home.run_as(), &password, &superuser_password()?, 0o600)?;
    let mut initdb = command(binaries.dir().join("initdb"), home.run_as());
    initdb.args(["--no-sync", "--no-instructions", "--username=postgres", "--encoding=UTF8"]);
    initdb.args(["--locale=C", "--auth=scram-sha-256", "--pwfile"]).arg(&password);
    // Small segments: less to copy now, and less at each promotion, which fills the new timeline's first.
    initdb.arg("--wal-segsize=1");
    initdb.arg("-D").arg(data);
    let made = run("initdb", initdb).await.map(|_| ());
    let _ = std::fs::remove_file(&password);
    made
}

/// Gives a copied cluster another system identifier: in its control file, whose CRC-32C follows the rest of what is in
/// use (`ControlFileData`, src/include/catalog/pg_control.h), and at the head of each segment of its log
/// (`XLogLongPageHeaderData`, src/include/access/xlog_internal.h).
fn rename(data: &Path) -> Result<(), LabError> {
    let fail = || LabError::io(format!("renaming the cluster of {}", data.display()));
    let control = data.join("global/pg_control");
    let mut bytes = std::fs::read(&control).map_err(fail())?;
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    // Where it is differs with the version: behind the bytes that it is the sum of.
    let sum = (8..bytes.len().saturating_sub(4))
        .step_by(4)
        .find(|&at| bytes[at..at + 4] == crc.checksum(&bytes[..at]).to_ne_bytes());
    let Some(sum) = sum else {
        return Err(LabError::State(format!("no checksum in {}", control.display())));
    };
    let (old, new) = (bytes[..8].to_owned(), identifier()?);
    bytes[..8].copy_from_slice(&new);
    let renewed = crc.checksum(&bytes[..sum]);
    bytes[sum..sum + 4].copy_from_slice(&renewed.to_ne_bytes());
    std::fs::write(&control, bytes).map_err(fail())?;
    for entry in std::fs::read_dir(data.join("pg_wal")).map_err(fail())? {
        let segment = entry.map_err(fail())?.path();
        if !segment.is_file() {
            continue;
        }
        let file = File::options().read(true).write(true).open(&segment).map_err(fail())?;
        let mut found = [0; 8];
        file.read_exact_at(&mut found, SYSTEM_IDENTIFIER).map_err(fail())?;
        if found != *old {
            return Err(LabError::State(format!("no system identifier in {}", segment.display())));
        }
        file.write_all_at(&new, SYSTEM_IDENTIFIER).map_err(fail())?;
    }
    Ok(())
}

fn identifier() -> Result<[u8; 8], LabError> {
    let drawn = sys::random_bytes().map_err(LabError::io("drawing a system identifier"))?;
    let drawn = u64::from_ne_bytes(drawn[..8].try_into().expect("eight bytes"));
    // SQL shows it as a signed number.
    Ok((drawn >> 1).to_ne_bytes())
}
