//! `bb8 CONNINFO`: one query through bb8's pool.
#![expect(clippy::print_stdout, reason = "a program for people")]

use pgfollow::Connector;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let conninfo = std::env::args().nth(1).ok_or("usage: bb8 CONNINFO")?;
    let pool = pgfollow_examples::bb8::pool(&Connector::new(&conninfo)?).await?;
    let session = pool.get().await?;
    let row = session.query_one("SELECT version()", &[]).await.map_err(|e| session.why().diagnose(e))?;
    println!("{}: {}", session.candidate(), row.get::<_, String>(0));
    Ok(())
}
