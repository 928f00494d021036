//! The library as a whole: its version, and forks.

use std::ffi::c_char;
use std::ptr;

use pgfollow::runtime;

use crate::barrier::call;
use crate::error::pgf_error;
use crate::handle;
use crate::status::pgf_status;

/// The first part of the header's version.
pub const PGF_VERSION_MAJOR: i32 = 0;
/// Its second part.
pub const PGF_VERSION_MINOR: i32 = 1;
/// Its third part.
pub const PGF_VERSION_PATCH: i32 = 0;
/// All of it, to be compared: major * 65536 + minor * 256 + patch.
pub const PGF_VERSION_NUMBER: i32 = 0x000100;

/// The library's version, which may be newer than the header's.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The same as a number, to be compared with PGF_VERSION_NUMBER.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_version_number() -> i32 {
    PGF_VERSION_NUMBER
}

/// Call it before a fork, while no other thread is in a call of pgfollow: it ends the library's threads and closes its
/// sockets, so that the child has no copy of them. In the parent everything starts again with the next call.
///
/// Without it a fork is safe too, but the child holds copies of the sockets until it ends or calls exec, and the server
/// sees them as open for as long.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_before_fork(error: *mut *mut pgf_error) -> pgf_status {
    call(error, runtime::before_fork)
}

/// Call it in the child after a fork, if you like: it forgets the parent's handles. The child's first call of pgfollow
/// does the same. Every handle of the parent's is an error in the child, which makes its own; what they held is not freed
/// there.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_after_fork_child() -> pgf_status {
    call(ptr::null_mut(), || {
        handle::begin();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_macros_are_the_manifest_s() {
        let part = |text: &str| text.parse::<i32>().expect("a number");
        let parts = [
            env!("CARGO_PKG_VERSION_MAJOR"),
            env!("CARGO_PKG_VERSION_MINOR"),
            env!("CARGO_PKG_VERSION_PATCH"),
        ]
        .map(part);
        assert_eq!([PGF_VERSION_MAJOR, PGF_VERSION_MINOR, PGF_VERSION_PATCH], parts);
        assert_eq!(PGF_VERSION_NUMBER, parts[0] * 65_536 + parts[1] * 256 + parts[2]);
    }
}
