//! `axum CONNINFO [ADDRESS:PORT]`: a web service that takes orders.
#![expect(clippy::print_stdout, reason = "a program for people")]

use pgfollow::Connector;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let conninfo = args.next().ok_or("usage: axum CONNINFO [ADDRESS:PORT]")?;
    let at = args.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let connector = Connector::new(&conninfo)?;
    let session = connector.connect_within(std::time::Duration::from_secs(30)).await?;
    session.batch_execute("CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY)").await?;
    let listener = tokio::net::TcpListener::bind(&at).await?;
    println!("http://{at}/health/ready, and POST http://{at}/orders");
    axum::serve(listener, pgfollow_examples::axum::app(&connector)).await?;
    Ok(())
}
