//! `metrics CONNINFO [ADDRESS:PORT]`: the service of the axum example, with its figures for Prometheus.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::time::Duration;

use pgfollow::Connector;
use pgfollow_examples::{axum as service, metrics};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let conninfo = args.next().ok_or("usage: metrics CONNINFO [ADDRESS:PORT]")?;
    let at = args.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let figures = metrics::install()?;
    let connector = Connector::new(&conninfo)?;
    let session = connector.connect_within(Duration::from_secs(30)).await?;
    session.batch_execute("CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY)").await?;
    let listener = tokio::net::TcpListener::bind(&at).await?;
    println!("POST http://{at}/orders, and see http://{at}/metrics");
    axum::serve(listener, service::app(&connector).merge(metrics::app(figures))).await?;
    Ok(())
}
