//! The arguments of the commands that start servers of their own.

use std::path::PathBuf;

use pgfollow_lab::{Binaries, BinaryOptions, ClusterOptions, LabError};

#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// How many nodes: one primary, the others standbys
    #[arg(long, default_value_t = 3, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub(crate) nodes: u8,
    /// Asynchronous replication (default: a commit waits for the first standby)
    #[arg(long = "async")]
    asynchronous: bool,
    /// Major version of the servers, 15 or newer (18 is fetched if missing) [default: the newest installed, else 18]
    #[arg(long, value_name = "MAJOR")]
    pg_version: Option<u32>,
    /// Folder of the server binaries: postgres, initdb, pg_rewind, pg_basebackup
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
}

impl ServerArgs {
    /// The cluster to start. Finds the binaries, or fetches them: to be called before a network namespace is entered,
    /// for inside there is no network.
    pub(crate) fn cluster(&self) -> Result<ClusterOptions, LabError> {
        let wanted = BinaryOptions { pg_bin: self.pg_bin.clone(), major: self.pg_version };
        let found = Binaries::find(&wanted, &mut |line| anstream::eprintln!("{line}"));
        let binaries = found.map_err(|e| self.to_blame(e))?;
        let mut options = ClusterOptions::new(binaries);
        options.nodes = usize::from(self.nodes);
        options.sync = !self.asynchronous;
        Ok(options)
    }

    /// The same error with the argument that led to it, and the remedy.
    fn to_blame(&self, e: LabError) -> LabError {
        let LabError::Binaries(why) = e else { return e };
        LabError::Binaries(match (&self.pg_bin, self.pg_version) {
            (Some(dir), _) => format!(
                "--pg-bin {}: {why}; give the folder that holds postgres, initdb, pg_rewind and pg_basebackup, such as \
                 /usr/lib/postgresql/15/bin, or leave --pg-bin out",
                dir.display()
            ),
            (None, Some(major)) => format!("--pg-version {major}: {why}"),
            (None, None) => why,
        })
    }
}
