//! What every command prints with: data to standard output, talk to standard error, colour only on a terminal
//! (anstream minds NO_COLOR), and a reader that went away (`| head`) is no error.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use tracing_subscriber::EnvFilter;

use crate::exit;

/// A table's head.
pub(crate) const HEAD: Style = Style::new().bold();
/// What is less important.
pub(crate) const DIM: Style = Style::new().dimmed();
/// The word "error".
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Sends the library's log to standard error: warnings and worse, or with times what RUST_LOG asks for.
pub(crate) fn start_log() {
    let asked = EnvFilter::try_from_default_env();
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(colour).with_target(false);
    match asked {
        Ok(filter) => log.with_env_filter(filter).init(),
        Err(_) => log.with_env_filter(EnvFilter::new("warn")).without_time().init(),
    }
}

/// Writes data to standard output and ends with success.
pub(crate) fn print(text: impl Display) -> ExitCode {
    let mut out = anstream::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            complain(format_args!("can't write to standard output: {e}"));
            ExitCode::FAILURE
        }
    }
}

/// Says what went wrong on standard error.
pub(crate) fn complain(problem: impl Display) {
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(anstream::stderr(), "{ERROR}error:{ERROR:#} {problem}");
}

/// What an error of the library says, with the command line's word for what is a call there.
pub(crate) fn worded(text: impl Display) -> String {
    text.to_string().replace("(connect_within)", "(--wait)")
}

/// A connection string that can't be used: says why, and gives the exit code.
pub(crate) fn unusable(error: &pgfollow::Error) -> ExitCode {
    complain(error);
    ExitCode::from(exit::USAGE)
}

/// Rows in columns, the first row being the head. The last column isn't padded.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<_> =
        (0..columns).map(|c| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for (n, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        let line = line.trim_end();
        out.push_str(&if n == 0 { format!("{HEAD}{line}{HEAD:#}\n") } else { format!("{line}\n") });
    }
    out
}

/// What a file holds; `-` is standard input.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    if path == Path::new("-") { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(path) }
}
