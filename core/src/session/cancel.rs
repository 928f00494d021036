//! CancelRequest, to the session's own address and under the same TLS rules (PostgreSQL manual, "Canceling Requests in
//! Progress"). A session by `connect_raw` has no address in tokio-postgres's own token, so that one can't be used.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::member::Member;
use crate::clock::Deadline;
use crate::decide::walk::TlsTry;
use crate::error::{Class, Code, Error, Stage};
use crate::open::{Opener, Progress};

/// Bounds the whole errand: a host that doesn't answer a cancel won't obey it either.
const LIMIT: Duration = Duration::from_secs(2);

/// Sends a cancel and waits until the server has read it (it closes without an answer).
pub(crate) async fn send(opener: &Opener, member: &Member) -> Result<(), Error> {
    let failed = |message: String, stage| {
        Error::new(Code::DialFailed, Class::Transient, format!("the cancel could not be sent: {message}"))
            .at_stage(stage)
            .on_host(member.candidate.to_string())
    };
    let Some((pid, secret)) = member.tap.key() else {
        return Err(failed("the server gave no key for it".to_owned(), Stage::Work));
    };
    let local = matches!(member.candidate.address, crate::host::Address::Unix(_));
    let tls = TlsTry::first(opener.sslmode(), local);
    let progress = Progress::new();
    let errand = async {
        let (mut secured, ..) = opener
            .secured(&member.candidate, tls, &progress)
            .await
            .map_err(|f| failed(f.failure.to_string(), f.stage))?;
        let mut request = [0_u8; 16];
        request[..4].copy_from_slice(&16_u32.to_be_bytes());
        request[4..8].copy_from_slice(&80_877_102_u32.to_be_bytes());
        request[8..12].copy_from_slice(&pid.to_be_bytes());
        request[12..].copy_from_slice(&secret.to_be_bytes());
        let io = async {
            secured.io.write_all(&request).await?;
            secured.io.flush().await?;
            // The server closes once it has acted; an error here is a close as well.
            let _ = secured.io.read(&mut [0; 1]).await;
            Ok::<_, std::io::Error>(())
        };
        io.await.map_err(|e| failed(e.to_string(), Stage::Work))
    };
    match Deadline::after(LIMIT).bound(errand).await {
        Ok(result) => result,
        Err(_) => Err(failed("no answer in time".to_owned(), progress.stage())),
    }
}
