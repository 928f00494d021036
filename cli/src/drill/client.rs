//! A client process of the drill: workers that write at a steady rate and tell every call.
//!
//! Hidden subcommand `drill-client`. Calls go to standard output as lines of JSON; the end of standard input ends it.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use pgfollow_lab::monotonic_ns;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::ours::{self, Ours};
use super::plain::Plain;
use super::record::{CONNINFO, Call, CallError, CallResult, Told, identity};
use crate::output;

/// The write. What it returns says which server did it, for both clients in the same way.
pub(crate) const INSERT: &str =
    concat!("insert into pgfollow_drill (client, worker, seq) values ($1, $2, $3) returning ", identity!());
/// How long a call may go on after the drill asked for the end.
const GRACE: Duration = Duration::from_millis(500);

/// Which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Through pgfollow.
    Pgfollow,
    /// Through tokio-postgres and deadpool.
    Plain,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pgfollow => "pgfollow",
            Self::Plain => "plain",
        }
    }

    /// Under this name its sessions are known to the server.
    pub(crate) fn application(self) -> String {
        format!("drill-{}", self.name())
    }

    /// Whether a session of that name is one of its own: pgfollow's monitor is.
    pub(crate) fn owns(self, application: &str) -> bool {
        application == self.application() || self == Self::Pgfollow && application == "pgfollow monitor"
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    client: Kind,
    #[arg(long)]
    workers: u16,
    /// The number of its first worker.
    #[arg(long, default_value_t = 0)]
    first_worker: i32,
    #[arg(long)]
    rate: u16,
    #[arg(long)]
    no_pace: bool,
}

/// One way to write.
pub(crate) trait Writer: Send + 'static {
    /// Writes once, and never again under the same number. Returns the server that did it; `had` is the moment at which
    /// there was a session for it.
    fn write(
        &mut self,
        client: &str,
        worker: i32,
        seq: i64,
        had: &mut Option<u64>,
    ) -> impl Future<Output = Result<String, CallError>> + Send;
}

pub(crate) async fn run(args: Args) -> ExitCode {
    let Ok(conninfo) = std::env::var(CONNINFO) else {
        output::complain(format_args!("{CONNINFO} is not set: this command is the drill's own"));
        return ExitCode::from(crate::exit::USAGE);
    };
    let made = match args.client {
        Kind::Pgfollow => through_pgfollow(&args, &conninfo).await.map_err(|e| e.to_string()),
        Kind::Plain => match Plain::new(&conninfo, usize::from(args.workers)) {
            Ok(p) => {
                work(&args, || p.clone()).await;
                Ok(())
            }
            Err(e) => Err(e),
        },
    };
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            output::complain(e);
            ExitCode::FAILURE
        }
    }
}

async fn through_pgfollow(args: &Args, conninfo: &str) -> Result<(), pgfollow::Error> {
    let connector = ours::connector(conninfo, !args.no_pace)?;
    if args.no_pace {
        work(args, || Ours::Own(connector.clone(), None)).await;
    } else {
        let pool = connector.pool_with(|o| o.max_conns(usize::from(args.workers)))?;
        work(args, || Ours::Pooled(pool.clone())).await;
    }
    print_line(&Told::Outages { outages: ours::outages(&connector).await });
    Ok(())
}

async fn work<W: Writer>(args: &Args, mut make: impl FnMut() -> W) {
    let stop = end_of_input();
    let (tell, told) = mpsc::channel(4096);
    let printer = std::thread::spawn(move || print(told));
    let period = Duration::from_secs(1) / u32::from(args.rate);
    let workers: Vec<_> = (0..args.workers)
        .map(|n| {
            // Spread over the period, as requests are.
            let first = tokio::time::Instant::now() + period * u32::from(n) / u32::from(args.workers);
            let (writer, stop, tell) = (make(), stop.clone(), tell.clone());
            let number = args.first_worker + i32::from(n);
            tokio::spawn(worker(writer, args.client.name(), number, first, period, stop, tell))
        })
        .collect();
    drop(tell);
    for w in workers {
        // A panicking worker is seen by its silence.
        let _ = w.await;
    }
    let _ = printer.join();
}

async fn worker<W: Writer>(
    mut writer: W,
    client: &'static str,
    worker: i32,
    first: tokio::time::Instant,
    period: Duration,
    mut stop: watch::Receiver<bool>,
    tell: mpsc::Sender<Call>,
) {
    let mut ticks = tokio::time::interval_at(first, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for seq in 0.. {
        tokio::select! {
            biased;
            _ = stop.wait_for(|s| *s) => return,
            _ = ticks.tick() => {}
        }
        let (start, mut had) = (monotonic_ns(), None);
        let result = tokio::select! {
            biased;
            r = writer.write(client, worker, seq, &mut had) => match r {
                Ok(node) => CallResult::Ok { node },
                Err(e) => CallResult::Failed(e),
            },
            () = out_of_grace(stop.clone()) => CallResult::Waiting,
        };
        if tell.send(Call { worker, seq, start, had, end: monotonic_ns(), result }).await.is_err() {
            return;
        }
    }
}

async fn out_of_grace(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|s| *s).await;
    tokio::time::sleep(GRACE).await;
}

/// Says true once the drill closes our standard input, or dies.
fn end_of_input() -> watch::Receiver<bool> {
    let (tell, ended) = watch::channel(false);
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        tell.send_replace(true);
    });
    ended
}

/// A thread of its own: a slow reader must not stop the runtime.
fn print(mut calls: mpsc::Receiver<Call>) {
    let mut out = std::io::stdout().lock();
    while let Some(call) = calls.blocking_recv() {
        // The drill is gone: nobody is left to tell.
        if !write_line(&mut out, &Told::Call(call)) {
            return;
        }
    }
}

fn print_line(told: &Told) {
    write_line(&mut std::io::stdout().lock(), told);
}

/// Whether somebody reads.
fn write_line(out: &mut impl Write, told: &Told) -> bool {
    let Ok(mut line) = serde_json::to_vec(told) else { return true };
    line.push(b'\n');
    out.write_all(&line).and_then(|()| out.flush()).is_ok()
}
