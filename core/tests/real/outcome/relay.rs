//! A relay in front of one server that harms connections in the moment of their COMMIT. Plain text only.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{PATIENCE, wait_for};

/// What happens to the connection that sends the next COMMIT.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It never arrives: both sides see the end of the connection.
    CutBefore,
    /// Half of it arrives before both sides see the end.
    CutAmid,
    /// It arrives, and that long later both sides see the end.
    CutAfter(Duration),
    /// It never arrives, and neither side sees anything.
    Swallow,
    /// It arrives; what the server answers vanishes, and neither side sees anything.
    SwallowAnswer,
}

#[derive(Default)]
struct Plan {
    faults: Mutex<VecDeque<Fault>>,
    struck: AtomicUsize,
}

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    plan: Arc<Plan>,
    _listening: JoinSet<()>,
}

impl Relay {
    pub(crate) async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let plan = Arc::new(Plan::default());
        let shared = Arc::clone(&plan);
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let plan = Arc::clone(&shared);
                // Either side hung up, or the server is down: the other one sees it.
                clients.spawn(async move { drop(serve(client, target, &plan).await) });
            }
        });
        Ok(Self { address, plan, _listening: listening })
    }

    /// For the next COMMIT that passes, after those planned before.
    pub(crate) fn plan(&self, fault: Fault) {
        self.plan.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    /// Waits until so many planned faults have happened.
    pub(crate) async fn struck(&self, count: usize) {
        wait_for("a COMMIT to pass the relay", PATIENCE, || self.plan.struck.load(Ordering::SeqCst) >= count)
            .await
            .expect("somebody commits");
    }
}

async fn serve(mut client: TcpStream, target: SocketAddr, plan: &Plan) -> io::Result<()> {
    let mut server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut from_server) = (vec![0; 16_384], vec![0; 16_384]);
    loop {
        tokio::select! {
            n = client.read(&mut from_client) => {
                let bytes = &from_client[..n?];
                if bytes.is_empty() {
                    return Ok(());
                }
                let commits = bytes.windows(6).any(|w| w == b"COMMIT");
                let fault = commits.then(|| plan.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front());
                let Some(fault) = fault.flatten() else {
                    server.write_all(bytes).await?;
                    continue;
                };
                let arrives = match fault {
                    Fault::CutBefore | Fault::Swallow => 0,
                    Fault::CutAmid => bytes.len() / 2,
                    Fault::CutAfter(_) | Fault::SwallowAnswer => bytes.len(),
                };
                server.write_all(&bytes[..arrives]).await?;
                plan.struck.fetch_add(1, Ordering::SeqCst);
                match fault {
                    Fault::CutBefore | Fault::CutAmid => {}
                    Fault::CutAfter(d) => tokio::time::sleep(d).await,
                    Fault::Swallow | Fault::SwallowAnswer => std::future::pending().await,
                }
                return Ok(());
            }
            n = server.read(&mut from_server) => {
                let bytes = &from_server[..n?];
                if bytes.is_empty() {
                    return Ok(());
                }
                client.write_all(bytes).await?;
            }
        }
    }
}
