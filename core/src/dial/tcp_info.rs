//! What the kernel tells of a TCP socket: the start of `struct tcp_info` (`linux/tcp.h`), up to tcpi_notsent_bytes (since
//! Linux 4.6), which the C library's headers lack.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// A socket at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// The state's number (`include/net/tcp_states.h`).
    pub(crate) state: u8,
    /// Retransmissions or window probes in a row that the peer's kernel hasn't answered.
    pub(crate) unanswered: u8,
    /// Segments sent that aren't acknowledged yet.
    pub(crate) unacked: u32,
    /// How long ago data left last, counted from the socket's start if none has. In the kernel's ticks: 1 to 10 ms.
    pub(crate) sent: Duration,
    /// How long ago data came last.
    pub(crate) received: Duration,
    /// How long ago an acknowledgement came last.
    pub(crate) acked: Duration,
    /// Bytes that came in all.
    pub(crate) bytes_received: u64,
    /// Bytes that the peer's window, or the network, hasn't let out yet.
    pub(crate) unsent: u32,
}

const STATE: usize = 0;
const RETRANSMITS: usize = 2;
const PROBES: usize = 3;
const UNACKED: usize = 24;
const LAST_DATA_SENT: usize = 44;
const LAST_DATA_RECV: usize = 52;
const LAST_ACK_RECV: usize = 56;
const BYTES_RECEIVED: usize = 128;
const NOTSENT: usize = 144;
const LENGTH: usize = NOTSENT + 4;

impl TcpInfo {
    /// Reads it.
    #[expect(unsafe_code, reason = "TCP_INFO has no safe interface")]
    pub(crate) fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut info = [0_u8; LENGTH];
        let mut len = libc::socklen_t::try_from(info.len()).unwrap_or(0);
        // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes, which `info` has.
        let rc = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        if usize::try_from(len) != Ok(info.len()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self::read(&info))
    }

    fn read(info: &[u8; LENGTH]) -> Self {
        let word = |at: usize| info[at..].first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
        let ago = |at: usize| Duration::from_millis(word(at).into());
        Self {
            state: info[STATE],
            unanswered: info[RETRANSMITS].max(info[PROBES]),
            unacked: word(UNACKED),
            sent: ago(LAST_DATA_SENT),
            received: ago(LAST_DATA_RECV),
            acked: ago(LAST_ACK_RECV),
            bytes_received: info[BYTES_RECEIVED..].first_chunk().map_or(0, |b| u64::from_ne_bytes(*b)),
            unsent: word(NOTSENT),
        }
    }
}
