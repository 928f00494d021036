//! `diesel CONNINFO`: one query through diesel-async's pool.
#![expect(clippy::print_stdout, reason = "a program for people")]

use diesel::IntoSql;
use diesel::sql_types::Integer;
use diesel_async::RunQueryDsl;
use pgfollow::Connector;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let conninfo = std::env::args().nth(1).ok_or("usage: diesel CONNINFO")?;
    let pool = pgfollow_examples::diesel::pool(&Connector::new(&conninfo)?).await?;
    let mut connection = pool.get().await?;
    let answer: i32 = diesel::select(42.into_sql::<Integer>()).get_result(&mut connection).await?;
    println!("{answer}");
    Ok(())
}
