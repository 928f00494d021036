//! The system calls that enter and furnish the namespace.
#![expect(unsafe_code, reason = "namespaces, capabilities and mounts have no safe door in std")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::sys;

/// Capabilities kept over exec by an ordinary user (include/uapi/linux/capability.h): binding port 53, packet
/// filters and interfaces, mounts.
const KEPT: [u32; 3] = [10, 12, 21];

/// Makes the command's child enter fresh namespaces between fork and exec.
pub(super) fn on_exec(command: &mut Command) {
    let root = sys::is_root();
    // SAFETY: both take nothing and can't fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // Formatted here: the child of a process with threads must not allocate.
    let uid_map = format!("{uid} {uid} 1").into_bytes();
    let gid_map = format!("{gid} {gid} 1").into_bytes();
    let hook = move || {
        let mut flags = libc::CLONE_NEWNET | libc::CLONE_NEWNS;
        if !root {
            flags |= libc::CLONE_NEWUSER;
        }
        // SAFETY: flags only; the child has one thread.
        check(unsafe { libc::unshare(flags) })?;
        if !root {
            write_file(c"/proc/self/setgroups", b"deny")?;
            write_file(c"/proc/self/uid_map", &uid_map)?;
            write_file(c"/proc/self/gid_map", &gid_map)?;
            keep_capabilities()?;
        }
        // SAFETY: two numbers. Last, for a change of credentials clears it.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
    };
    // SAFETY: the hook makes system calls only; it neither allocates nor locks.
    unsafe { command.pre_exec(hook) };
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn write_file(path: &std::ffi::CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: a terminated path; the buffer is valid for its length; the descriptor is ours and closed.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(fd)?;
        let written = libc::write(fd, bytes.as_ptr().cast(), bytes.len());
        // Before close() can change errno.
        let result = if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        libc::close(fd);
        result
    }
}

/// The kernel's header and data of capset (version 3: two words of each set).
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}
#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// exec drops the capabilities of a user other than root, unless they are ambient; for that they must be
/// inheritable first.
fn keep_capabilities() -> io::Result<()> {
    let header = CapHeader { version: 0x2008_0522, pid: 0 };
    let mut data = [CapData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: both structures have the kernel's layout and outlive the calls.
    unsafe {
        check(libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) as libc::c_int)?;
        for word in &mut data {
            word.inheritable = word.permitted;
        }
        check(libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) as libc::c_int)?;
        for cap in KEPT {
            check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, cap, 0, 0))?;
        }
    }
    Ok(())
}

pub(super) fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: an ifreq of zeros is valid; it outlives both calls, and flags is the union's field for both.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        check(libc::ioctl(fd, libc::SIOCGIFFLAGS, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request))
    }
}

/// Bind-mounts a file over another, in this mount namespace alone.
pub(super) fn mount_over(ours: &Path, target: &Path) -> io::Result<()> {
    let path = |p: &Path| CString::new(p.as_os_str().as_bytes()).map_err(io::Error::other);
    let (ours, target) = (path(ours)?, path(target)?);
    let none = std::ptr::null();
    // SAFETY: terminated paths that outlive the calls; the other pointers may be null for these flags.
    unsafe {
        // Nothing of this may travel back to the machine's mounts.
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()))?;
        check(libc::mount(ours.as_ptr(), target.as_ptr(), none, libc::MS_BIND, none.cast()))
    }
}
