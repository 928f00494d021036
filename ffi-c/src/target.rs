//! Where a driver is to dial, and its sockets under guard.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use pgfollow::{Code, Error, SessionAttrs, SqlState, Target};

use crate::barrier::{Out, call, read, wrong_call};
use crate::connector::{Held, pgf_connector};
use crate::error::pgf_error;
use crate::handle::{self, Opaque};
use crate::status::pgf_status;
use crate::text::{self, c_string, pgf_text, taken};

/// Where one session is to be dialled to. Any thread may read it. It holds a login's turn until pgf_guard has it, or it
/// is freed.
pub struct pgf_target;

/// A target, and its strings for C.
pub(crate) struct Located {
    pub(crate) target: Target,
    host: CString,
    hostaddr: Option<CString>,
    role: Option<CString>,
    /// The strings that the lists point to.
    _pairs: Vec<(CString, CString)>,
    keys: List,
    values: List,
}

/// Pointers to strings of the same object, and NULL.
struct List(Vec<*const c_char>);

// SAFETY: the strings live as long as the object that holds both, and nothing ever writes to them.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl List {
    fn of<'a>(strings: impl Iterator<Item = &'a CString>) -> Self {
        Self(strings.map(|s| s.as_ptr()).chain([ptr::null()]).collect())
    }
}

impl Opaque for Located {
    type Handle = pgf_target;
    const NAME: &'static str = "pgf_target";
}

impl Located {
    pub(crate) fn new(target: Target) -> Self {
        let pairs: Vec<_> = target.keywords().into_iter().map(|(k, v)| (c_string(k), c_string(v))).collect();
        Self {
            host: c_string(target.host()),
            hostaddr: target.hostaddr().map(|a| c_string(a.to_string())),
            role: target.role().map(|r| c_string(r.to_string())),
            keys: List::of(pairs.iter().map(|(k, _)| k)),
            values: List::of(pairs.iter().map(|(_, v)| v)),
            _pairs: pairs,
            target,
        }
    }
}

/// Waits until the host that connections are wanted to is known and it is this login's turn, at most that many
/// milliseconds, and says where to dial. In a failover it waits for the new primary. The role is target_session_attrs;
/// read-write if the string has several hosts and doesn't say.
///
/// PGF_DEADLINE_PASSED: nobody fits yet. PGF_OVERLOADED: its turn would come too late. Both are transient.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_locate(
    connector: *mut pgf_connector,
    timeout_ms: u32,
    target: *mut *mut pgf_target,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || locate(connector, None, timeout_ms, target))
}

/// The same for another role: any, read-write, read-only, primary, standby or prefer-standby.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_locate_as(
    connector: *mut pgf_connector,
    attrs: *const c_char,
    attrs_len: usize,
    timeout_ms: u32,
    target: *mut *mut pgf_target,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let wanted = taken(attrs, attrs_len, "attrs")?;
        let attrs = SessionAttrs::from_keyword(wanted).ok_or_else(|| {
            wrong_call(format!("attrs is {wanted:?}: use one of {}", SessionAttrs::VALUES.join(", ")))
        })?;
        locate(connector, Some(attrs), timeout_ms, target)
    })
}

/// For the role that the connection string wants, or another one.
fn locate(
    connector: *mut pgf_connector,
    attrs: Option<SessionAttrs>,
    timeout_ms: u32,
    target: *mut *mut pgf_target,
) -> Result<(), Error> {
    let out = Out::needed(target, "target")?;
    let (connector, runtime) = handle::get::<Held>(connector)?.used()?;
    let patience = Duration::from_millis(timeout_ms.into());
    let located = runtime.block_on(async {
        match attrs {
            Some(attrs) => connector.locate_as(attrs, patience).await,
            None => connector.locate(patience).await,
        }
    });
    out.set(handle::give(Located::new(located??)));
    Ok(())
}

fn located(target: *const pgf_target) -> Option<Arc<Located>> {
    handle::get::<Located>(target).ok()
}

/// The host's name as configured: what a certificate is checked against. NULL if that isn't a pgf_target.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_target_host(target: *const pgf_target) -> *const c_char {
    read(ptr::null(), || Some(located(target)?.host.as_ptr()))
}

/// The IP address to dial; NULL for a Unix socket, or if that isn't a pgf_target.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_target_hostaddr(target: *const pgf_target) -> *const c_char {
    read(ptr::null(), || Some(located(target)?.hostaddr.as_ref()?.as_ptr()))
}

/// The port. 0 if that isn't a pgf_target.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_target_port(target: *const pgf_target) -> u16 {
    read(0, || Some(located(target)?.target.port()))
}

/// What the host last said of itself: primary, primary_read_only or standby. NULL if that isn't known, or if that isn't a
/// pgf_target.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_target_role(target: *const pgf_target) -> *const c_char {
    read(ptr::null(), || Some(located(target)?.role.as_ref()?.as_ptr()))
}

/// The host's timeline; 0 for a standby, where it may not be read, or if that isn't a pgf_target.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_target_timeline(target: *const pgf_target) -> u32 {
    read(0, || located(target)?.target.timeline())
}

/// The keywords and values that lead libpq there (PQconnectdbParams), each list ended by NULL; whatever else the
/// connection string has that libpq knows is among them, the password included. They belong to the target.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_target_keywords(
    target: *const pgf_target,
    keywords: *mut *const *const c_char,
    values: *mut *const *const c_char,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let (keys, vals) = (Out::needed(keywords, "keywords")?, Out::needed(values, "values")?);
        let located = handle::get::<Located>(target)?;
        keys.set(located.keys.0.as_ptr());
        vals.set(located.values.0.as_ptr());
        Ok(())
    })
}

/// Frees it. The guards of its sockets stay. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_target_free(target: *mut pgf_target) -> pgf_status {
    call(ptr::null_mut(), || handle::free::<Located>(target))
}

/// Puts the socket of a session that was dialled to that target under guard, after its login: its options are set, its
/// silence makes the host suspect, and it is shut down the moment its host is no longer the right one, so that a blocked
/// read returns. The descriptor stays yours and is never closed here. There is nothing to free: the guard ends by itself
/// when you close the descriptor.
///
/// PGF_WRONG_CALL: it is no socket, or leads elsewhere.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_guard(
    connector: *mut pgf_connector,
    fd: c_int,
    target: *const pgf_target,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let held = handle::get::<Held>(connector)?;
        let located = handle::get::<Located>(target)?;
        let (connector, runtime) = held.used()?;
        let _entered = runtime.enter();
        connector.guard(fd, &located.target).map(drop)
    })
}

/// Why pgfollow shut the socket down that was last guarded with this target; `reason` gets NULL if it didn't. `usable`,
/// which may be NULL, gets 0 once the session isn't to be used any more (its host was restarted, say, and what runs may
/// end by itself; or the socket was closed), else 1.
///
/// PGF_WRONG_CALL: none was guarded with it.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_guard_reason(
    target: *const pgf_target,
    usable: *mut i32,
    reason: *mut *mut pgf_text,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let (out, can) = (Out::needed(reason, "reason")?, Out::wanted(usable));
        let guard = handle::get::<Located>(target)?.target.guard();
        let guard =
            guard.ok_or_else(|| wrong_call("no socket is guarded with it: pgf_guard it after each login"))?;
        if let Some(can) = can {
            can.set(guard.is_usable().into());
        }
        out.set(guard.reason().map_or(ptr::null_mut(), |why| text::give(why.to_string())));
        Ok(())
    })
}

/// Guards this process's TCP sockets to known hosts that aren't guarded yet, for drivers that tell no descriptor; `found`,
/// which may be NULL, gets how many are new.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_guard_peers(
    connector: *mut pgf_connector,
    found: *mut usize,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let (connector, runtime) = handle::get::<Held>(connector)?.used()?;
        let _entered = runtime.enter();
        let new = connector.guard_peers()?;
        if let Some(out) = Out::wanted(found) {
            out.set(new);
        }
        Ok(())
    })
}

/// Tells of an SQLSTATE that the driver met on a session to that target, or while it logged in there.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_feed(
    connector: *mut pgf_connector,
    target: *const pgf_target,
    sqlstate: *const c_char,
    sqlstate_len: usize,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let held = handle::get::<Held>(connector)?;
        let located = handle::get::<Located>(target)?;
        let state = taken(sqlstate, sqlstate_len, "sqlstate")?;
        let state = SqlState::new(state).ok_or_else(|| {
            wrong_call(format!("{state:?} is no SQLSTATE: five letters or digits, such as 57P01"))
        })?;
        let (connector, runtime) = held.used()?;
        let _entered = runtime.enter();
        connector.feed(&located.target, state);
        Ok(())
    })
}

/// What ended with the runtime that it ran in.
pub(crate) fn gone() -> Error {
    Error::new(Code::Closed, pgfollow::Class::Transient, "it ended with pgf_before_fork: start it again")
}
