//! The few system calls that std has no safe door to, each wrapped once.
#![expect(unsafe_code, reason = "raw system calls; every block says why it is sound")]

use std::io;

/// CLOCK_MONOTONIC in nanoseconds: one clock for all processes of the machine, so times of the drill's
/// processes can be compared.
pub fn monotonic_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place to write to; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    u64::try_from(ts.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(ts.tv_nsec).unwrap_or(0)
}

/// Sends a signal to one process. A process that is gone is no error.
///
/// # Panics
/// For a number that means a group, everybody or init.
pub fn send_signal(pid: i32, signal: i32) -> io::Result<()> {
    assert!(pid > 1, "never signal a group, everybody or init");
    // SAFETY: kill takes two numbers and touches no memory of ours.
    if unsafe { libc::kill(pid, signal) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        e => Err(e),
    }
}

/// Whether this process runs as root (by effective user id).
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// Marks a System V shared memory segment for removal. One that is gone is no error worth telling.
pub(crate) fn remove_shared_memory(id: i32) {
    // SAFETY: IPC_RMID ignores the buffer; we pass none.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

/// Bytes free for ordinary users on the file system of that path.
pub(crate) fn free_space(path: &std::path::Path) -> io::Result<u64> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).map_err(io::Error::other)?;
    // SAFETY: a terminated path and a place to write to, both alive during the call; zeros are a valid start.
    unsafe {
        let mut stat: libc::statvfs64 = std::mem::zeroed();
        if libc::statvfs64(path.as_ptr(), &mut stat) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// 16 random bytes from the system.
pub(crate) fn random_bytes() -> io::Result<[u8; 16]> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
