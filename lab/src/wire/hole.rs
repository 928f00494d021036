//! Addresses where nobody answers: a port that refuses, and one whose packets vanish.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// A port of this address where nobody listens: it was bound a moment ago and closed again.
pub fn closed_port(ip: IpAddr) -> io::Result<SocketAddr> {
    std::net::TcpListener::bind((ip, 0))?.local_addr()
}

/// A listener that lets the kernel drop every SYN: its queue of one is full and never emptied. To a client this is a
/// host behind a silent firewall.
#[derive(Debug)]
pub struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _filler: Vec<TcpStream>,
}

impl BlackHole {
    /// Opens one at this address (port 0: any free one) and makes sure that it swallows.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(0)?;
        let address = listener.local_addr()?;
        let mut filler = Vec::new();
        // Linux takes one connection more than the backlog; a few spare rounds cost 0.1 s each only where they are
        // needed. The first attempt that gets no answer shows that the queue is full.
        for _ in 0..4 {
            match tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
                Ok(Ok(stream)) => filler.push(stream),
                Ok(Err(e)) => return Err(e),
                Err(_) => return Ok(Self { address, _listener: listener, _filler: filler }),
            }
        }
        Err(io::Error::other("this kernel goes on accepting behind a full backlog"))
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
