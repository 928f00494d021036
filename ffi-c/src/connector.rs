//! `pgf_connector`: made once, and asked ever after.

use std::ffi::c_char;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pgfollow::runtime::{self, Runtime};
use pgfollow::{Config, Connector, Error, Health};
use serde::Serialize;

use crate::barrier::{Out, call, wrong_call};
use crate::error::pgf_error;
use crate::event::Events;
use crate::handle::{self, Opaque};
use crate::status::pgf_status;
use crate::text::{self, pgf_text, taken};

/// Watches the hosts of one connection string. Any number of threads may use it at once; one thread frees it.
pub struct pgf_connector;

/// A connector, and what it was made of.
pub(crate) struct Held {
    state: Mutex<State>,
    pub(crate) events: Events,
}

struct State {
    conninfo: String,
    settings: Vec<(String, String)>,
    connector: Connector,
    used: bool,
}

impl Opaque for Held {
    type Handle = pgf_connector;
    const NAME: &'static str = "pgf_connector";

    fn freed(&self) {
        self.events.close();
    }
}

impl Held {
    fn new(conninfo: &str) -> Result<Self, Error> {
        let connector = Connector::new(conninfo)?;
        let state = State { conninfo: conninfo.to_owned(), settings: Vec::new(), connector, used: false };
        Ok(Self { state: Mutex::new(state), events: Events::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, keyword: &str, value: &str) -> Result<(), Error> {
        let mut state = self.state();
        if state.used {
            let message = format!("{keyword} was set after the connector's first use: set options before it");
            return Err(wrong_call(message));
        }
        let setting = (keyword.to_owned(), value.to_owned());
        let all = state.settings.iter().chain([&setting]);
        let builder = all.fold(Connector::builder(&state.conninfo), |b, (k, v)| b.set(k, v));
        state.connector = builder.build()?;
        state.settings.push(setting);
        Ok(())
    }

    fn config(&self) -> Config {
        self.state().connector.config().clone()
    }

    /// The connector, and the runtime that it lives in.
    pub(crate) fn used(&self) -> Result<(Connector, std::sync::Arc<Runtime>), Error> {
        let runtime = runtime::shared()?;
        let mut state = self.state();
        state.used = true;
        Ok((state.connector.clone(), runtime))
    }
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|e| wrong_call(format!("it can't be written as JSON: {e}")))
}

/// Reads a connection string (a URI or keyword=value pairs, with libpq's keywords, environment, service and password
/// files) and makes a connector. It starts nothing yet. Give it to pgf_connector_free.
///
/// PGF_INVALID_CONNINFO, PGF_INVALID_OPTION, PGF_UNSUPPORTED_OPTION, PGF_UNUSABLE_FILE: the message names the option and
/// the remedy.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_connector_new(
    conninfo: *const c_char,
    conninfo_len: usize,
    connector: *mut *mut pgf_connector,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let out = Out::needed(connector, "connector")?;
        let held = Held::new(taken(conninfo, conninfo_len, "conninfo")?)?;
        out.set(handle::give(held));
        Ok(())
    })
}

/// Sets an option above the connection string, before the connector's first use. An option that can't be used, alone or
/// beside the others, is an error and changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_connector_set(
    connector: *mut pgf_connector,
    keyword: *const c_char,
    keyword_len: usize,
    value: *const c_char,
    value_len: usize,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let held = handle::get::<Held>(connector)?;
        held.set(taken(keyword, keyword_len, "keyword")?, taken(value, value_len, "value")?)
    })
}

/// Ends the watching and frees the connector. A call that another thread is in ends as it would have; one that waits for
/// an event ends at once with PGF_CLOSED. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_connector_free(connector: *mut pgf_connector) -> pgf_status {
    call(ptr::null_mut(), || handle::free::<Held>(connector))
}

/// What the connection string and the options came to, as `pgfollow config --json` prints it: candidates, options with
/// value and origin, warnings. No password is in it. This is no use of the connector: options may still be set.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_config_json(
    connector: *const pgf_connector,
    json: *mut *mut pgf_text,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let out = Out::needed(json, "json")?;
        let mut config = handle::get::<Held>(connector)?.config();
        config.warnings.extend(config.doubts());
        out.set(text::give(config.to_json().to_string()));
        Ok(())
    })
}

/// What is known of every host now, as JSON. Starts the watching.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_topology_json(
    connector: *mut pgf_connector,
    json: *mut *mut pgf_text,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let out = Out::needed(json, "json")?;
        let (connector, runtime) = handle::get::<Held>(connector)?.used()?;
        let _entered = runtime.enter();
        out.set(text::give(self::json(&*connector.topology())?));
        Ok(())
    })
}

/// What the connector did and met since it was made, and where the time of each outage went, as JSON
/// (docs/report.schema.json). `pgfollow report FILE --html OUT` makes a page of it.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_report_json(
    connector: *mut pgf_connector,
    json: *mut *mut pgf_text,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let out = Out::needed(json, "json")?;
        let (connector, runtime) = handle::get::<Held>(connector)?.used()?;
        let _entered = runtime.enter();
        out.set(text::give(self::json(&connector.report())?));
        Ok(())
    })
}

/// Whether writing works now, by what the watching knows: it asks nobody and may be called as often as you like. Starts
/// the watching. `ready` gets 1 or 0; `reason`, which may be NULL, gets the reason for 0, and NULL for 1.
///
/// Don't answer a load balancer's readiness probe by it alone: in a failover every instance of a service would call
/// itself unready at the same moment.
#[unsafe(no_mangle)]
pub extern "C" fn pgf_health(
    connector: *mut pgf_connector,
    ready: *mut i32,
    reason: *mut *mut pgf_text,
    error: *mut *mut pgf_error,
) -> pgf_status {
    call(error, || {
        let (out, why) = (Out::needed(ready, "ready")?, Out::wanted(reason));
        let (connector, runtime) = handle::get::<Held>(connector)?.used()?;
        let _entered = runtime.enter();
        let (ready, reason) = match connector.health() {
            Health::Ready => (1, None),
            Health::Degraded(reason) => (0, Some(reason)),
        };
        if let Some(why) = why {
            why.set(reason.map_or(ptr::null_mut(), text::give));
        }
        out.set(ready);
        Ok(())
    })
}
