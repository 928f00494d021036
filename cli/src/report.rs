//! `pgfollow report`: a report in words, or as one self-contained page.

mod page;

use std::path::PathBuf;
use std::process::ExitCode;

use pgfollow::Report;

use crate::{exit, output};

#[derive(clap::Args)]
#[command(about = "Show a service's report: where the time of each outage went")]
#[command(before_help = "Example:\n  pgfollow report report.json --html report.html")]
#[command(
    after_help = "The report is what Connector::report() gives, as JSON. The page is one file: no script, nothing \
loaded from elsewhere, light or dark as the reader's system is.\n\n\
Exit codes:\n  0  done\n  1  the page can't be written\n  2  the report can't be read; the reason is on standard error"
)]
pub(crate) struct Args {
    /// A file with the report as JSON, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write a page instead of printing text
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Print the report as JSON, with the keys that this version knows
    #[arg(long, conflicts_with = "html")]
    json: bool,
}

fn parse(text: &str) -> Result<Report, String> {
    serde_json::from_str(text).map_err(|e| {
        let drill =
            serde_json::from_str::<serde_json::Value>(text).is_ok_and(|v| v.get("promotions").is_some());
        let hint =
            if drill { "this is what `pgfollow drill --json` prints; a service's is wanted: " } else { "" };
        format!("no report: {hint}{e} (Connector::report(), as JSON)")
    })
}

/// A file may be anybody's: nothing in it may steer a terminal.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let report = output::read(&args.file).map_err(|e| e.to_string()).and_then(|text| parse(&text));
    let report = match report {
        Ok(report) => report,
        Err(e) => {
            output::complain(format_args!("{}: {e}", args.file.display()));
            return ExitCode::from(exit::USAGE);
        }
    };
    let Some(out) = &args.html else {
        return match serde_json::to_string(&report) {
            Ok(json) if args.json => output::print(json),
            _ => output::print(harmless(report.to_text().trim_end())),
        };
    };
    let written = page::render(&report)
        .map_err(|e| format!("the page can't be made: {e:#}"))
        .and_then(|html| std::fs::write(out, html).map_err(|e| format!("{}: {e}", out.display())));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            output::complain(e);
            ExitCode::FAILURE
        }
    }
}
