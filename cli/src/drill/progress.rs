//! What is going on, on standard error: a line that changes on a terminal, a line for each stage elsewhere.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::client::Kind;
use super::process::Client;

const EVERY: Duration = Duration::from_millis(250);

/// Tells the stages.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>3} {prefix} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(EVERY);
        Self(bar)
    }

    pub(crate) fn stage(&self, what: impl Into<Cow<'static, str>>) {
        let what = what.into();
        if self.0.is_hidden() {
            anstream::eprintln!("drill: {what}");
        }
        self.0.set_prefix(what);
    }

    /// Shows the clients' counts while something else runs.
    pub(crate) async fn count_while<T>(&self, clients: &[Client], work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if self.0.is_hidden() {
            return work.await;
        }
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = ticks.tick() => {
                    let mut told = Vec::new();
                    for kind in [Kind::Pgfollow, Kind::Plain] {
                        let counts: Vec<_> =
                            clients.iter().filter(|c| c.kind == kind).map(Client::counts).collect();
                        if !counts.is_empty() {
                            let (ok, failed) = counts.iter().fold((0, 0), |s, c| (s.0 + c.0, s.1 + c.1));
                            told.push(format!("{}: {ok} writes, {failed} errors", kind.name()));
                        }
                    }
                    self.0.set_message(format!("({})", told.join("; ")));
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
