//! `pgfollow config`: what a connection string means, all layers taken together. Connects to nothing.

use std::process::ExitCode;

use pgfollow::{Config, Origin};

use crate::output::{self, DIM};

#[derive(clap::Args)]
#[command(about = "Print the effective value of every option and where it came from")]
#[command(
    before_help = "Example:\n  pgfollow config 'postgresql://app@db-a,db-b,db-c/orders?target_session_attrs=read-write'\n  \
                         psql \"$(pgfollow config --libpq 'service=orders')\""
)]
#[command(after_help = "Nothing is connected to, and no password is printed, only where it comes from. \
                        What a connect would refuse (a file that is missing, a port that is none) is warned of.\n\n\
                        Exit codes:\n  0  printed\n  1  the output can't be written\n  2  wrong usage, or a string that can't be used; the reason is on standard error")]
pub(crate) struct Args {
    /// A connection string: a URI, or keyword=value pairs
    #[arg(value_name = "CONNINFO")]
    conninfo: String,
    /// Print JSON: {candidates, options: {NAME: {value, origin}}, warnings}
    #[arg(long, conflicts_with = "libpq")]
    json: bool,
    /// Print a plain libpq string for other tools, without the password and without pgfollow's own options
    #[arg(long)]
    libpq: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut config = match Config::parse(&args.conninfo) {
        Ok(config) => config,
        Err(e) => return output::unusable(&e),
    };
    for doubt in config.doubts() {
        tracing::warn!("{doubt}");
        config.warnings.push(doubt);
    }
    if args.libpq {
        return output::print(config.libpq_string());
    }
    if args.json {
        return output::print(format_args!("{:#}", config.to_json()));
    }
    output::print(text(&config))
}

fn text(config: &Config) -> String {
    let row = |cells: &[&str]| cells.iter().map(|&c| c.to_owned()).collect::<Vec<_>>();
    let mut hosts = vec![row(&["candidate", "address", "port", "password from"])];
    for h in config.configured_hosts() {
        let name = h.host.or(h.dir).unwrap_or_else(|| h.kind.to_owned());
        let port = h.port.as_str().map_or_else(|| h.port.to_string(), |bad| format!("{bad} (not a port)"));
        let source = h.password_source.map_or("–".to_owned(), |o| o.to_string());
        hosts.push(vec![name, h.hostaddr.unwrap_or_else(|| "–".to_owned()), port, source]);
    }
    let has_password = config.passwords.iter().flatten().next().is_some();
    let mut options = vec![row(&["option", "value", "from"])];
    let (mut given, mut rest) = (Vec::new(), Vec::new());
    for o in config.effective() {
        let value = match o.value {
            Some(v) if !v.is_empty() => v,
            // Set, and not shown: a secret. An empty password is none.
            None if o.origin != Origin::Default && (o.name != "password" || has_password) => "***".to_owned(),
            _ => "–".to_owned(),
        };
        let cells = vec![o.name.to_owned(), value, o.origin.to_string()];
        match o.origin {
            Origin::Default => rest.push(cells),
            _ => given.push(cells),
        }
    }
    options.extend(given.into_iter().chain(rest));
    let note =
        "Given values first, defaults after them. A host list in PGFOLLOW_HOSTS replaces the candidates.";
    format!("{}\n{}\n{DIM}{note}{DIM:#}", output::table(&hosts), output::table(&options))
}
