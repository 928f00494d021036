//! A table of drop rules, spoken to nf_tables by hand: `nft` is missing on many machines, and an ordinary user
//! in a user namespace can't install it.
//!
//! The wire format is include/uapi/linux/netfilter/nf_tables.h: a batch of netlink messages, applied as a whole
//! or not at all. Every call replaces the table.
#![expect(unsafe_code, reason = "netlink sockets have no safe door in std")]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const TABLE: &[u8] = b"pgfollow_lab\0";
const CHAIN: &[u8] = b"input\0";

// Message types: subsystem 10 (nf_tables) in the high byte.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = 10 << 8;
const DELETE_TABLE: u16 = (10 << 8) | 2;
const NEW_CHAIN: u16 = (10 << 8) | 3;
const NEW_RULE: u16 = (10 << 8) | 6;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;

/// Byte offsets of the addresses in the IPv4 header.
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;

/// Drops what comes in from or to these addresses; nothing else is dropped any more.
pub(super) fn drop_packets_of(addresses: &[Ipv4Addr]) -> io::Result<()> {
    let mut batch = Batch::default();
    batch.message(BATCH_BEGIN, 0, 0, &[]);
    // Deleting what isn't there would fail the batch: so it is made first (no error if it exists).
    let name = attribute(1, TABLE);
    batch.message(NEW_TABLE, CREATE | ACK, 2, &name);
    batch.message(DELETE_TABLE, ACK, 2, &name);
    if !addresses.is_empty() {
        batch.message(NEW_TABLE, CREATE | ACK, 2, &name);
        batch.message(NEW_CHAIN, CREATE | ACK, 2, &chain());
        for address in addresses {
            for offset in [SOURCE, DESTINATION] {
                batch.message(NEW_RULE, CREATE | APPEND | ACK, 2, &drop_rule(offset, *address));
            }
        }
    }
    batch.message(BATCH_END, 0, 0, &[]);
    batch.send()
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    messages: u32,
    acks: u32,
}

impl Batch {
    /// A netlink header, the nfgenmsg (family, version 0, resource), the attributes.
    fn message(&mut self, kind: u16, flags: u16, family: u8, attributes: &[u8]) {
        let length = 16 + 4 + u32::try_from(attributes.len()).unwrap_or(0);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.messages.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        // A batch's own messages name the subsystem as their resource.
        let resource: u16 = if kind == BATCH_BEGIN || kind == BATCH_END { 10 } else { 0 };
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.bytes.extend(attributes);
        self.messages += 1;
        self.acks += u32::from(flags & ACK != 0);
    }

    /// Sends it and reads one answer for each message; the first refusal is the error.
    fn send(&self) -> io::Result<()> {
        // SAFETY: plain numbers; a descriptor that isn't negative is ours alone.
        let socket = unsafe {
            let fd =
                libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let fd = socket.as_raw_fd();
        let patience = libc::timeval { tv_sec: 2, tv_usec: 0 };
        let mut answer = vec![0_u8; 64 * 1024];
        // SAFETY: buffers are valid for the lengths given; an unbound socket talks to the kernel.
        unsafe {
            let size = size_of::<libc::timeval>() as libc::socklen_t;
            let option = (&raw const patience).cast();
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, option, size);
            if libc::send(fd, self.bytes.as_ptr().cast(), self.bytes.len(), 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut seen = 0;
            while seen < self.acks {
                let n = libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0);
                let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
                seen += refusals(&answer[..n])?;
            }
        }
        Ok(())
    }
}

/// Counts the acknowledgements in a datagram; a refusal among them is the error.
fn refusals(mut datagram: &[u8]) -> io::Result<u32> {
    const ERROR: u16 = 2;
    let mut acks = 0;
    while let Some(head) = datagram.first_chunk::<20>() {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if u16::from_ne_bytes([head[4], head[5]]) == ERROR {
            let code = i32::from_ne_bytes([head[16], head[17], head[18], head[19]]);
            if code != 0 {
                return Err(io::Error::from_raw_os_error(-code));
            }
            acks += 1;
        }
        let next = length.max(20).next_multiple_of(4).min(datagram.len());
        datagram = &datagram[next..];
    }
    Ok(acks)
}

/// Length, type, value, padding to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 8);
    bytes.extend(u16::try_from(value.len() + 4).unwrap_or(u16::MAX).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &parts.concat())
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

/// Hook LOCAL_IN (1) before everything else, policy accept (1).
fn chain() -> Vec<u8> {
    let priority = (-300_i32).cast_unsigned();
    [
        attribute(1, TABLE),
        attribute(3, CHAIN),
        nested(4, &[number(1, 1), number(2, priority)]),
        number(5, 1),
        attribute(7, b"filter\0"),
    ]
    .concat()
}

/// "If the address at this offset is this one, drop": payload into register 1, compare, verdict.
fn drop_rule(offset: u32, address: Ipv4Addr) -> Vec<u8> {
    let expression = |name: &[u8], parts: &[Vec<u8>]| nested(1, &[attribute(1, name), nested(2, parts)]);
    let network_header = 1;
    let load = [number(1, 1), number(2, network_header), number(3, offset), number(4, 4)];
    let equal = 0;
    let compare = [number(1, 1), number(2, equal), nested(3, &[attribute(1, &address.octets())])];
    let (verdict_register, drop) = (0, 0);
    let verdict = [number(1, verdict_register), nested(2, &[nested(2, &[number(1, drop)])])];
    let rule = [
        expression(b"payload\0", &load),
        expression(b"cmp\0", &compare),
        expression(b"immediate\0", &verdict),
    ];
    [attribute(1, TABLE), attribute(2, CHAIN), nested(4, &rule)].concat()
}
