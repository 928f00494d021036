//! The builder: the same path as a string, with values set by code above it.

use super::build::build;
use super::{Config, Tuning, find, remedy};
use crate::conninfo::{self, Environment, Origin, Settings, failed};
use crate::error::{Code, Error};

/// Collects a configuration; nothing is checked before [`ConfigBuilder::build`].
///
/// ```
/// use pgfollow::Config;
/// let config = Config::builder()
/// #   .environment(pgfollow::Environment::empty())
///     .conninfo("postgresql://app@db-a,db-b/orders")
///     .set("pool_max_conns", "20")
///     .tuning(|t| t.probe_misses = 2)
///     .build()?;
/// assert_eq!((config.hosts.len(), config.pool_max_conns), (2, 20));
/// # Ok::<(), pgfollow::Error>(())
/// ```
#[derive(Default)]
pub struct ConfigBuilder {
    conninfo: Option<String>,
    set: Vec<(String, String)>,
    tuning: Tuning,
    environment: Option<Environment>,
    for_work: bool,
}

impl ConfigBuilder {
    /// The connection string, in either form.
    #[must_use]
    pub fn conninfo(mut self, text: impl Into<String>) -> Self {
        self.conninfo = Some(text.into());
        self
    }

    /// Sets one option, above the string. The last one of a keyword wins.
    #[must_use]
    pub fn set(mut self, keyword: impl Into<String>, value: impl Into<String>) -> Self {
        self.set.push((keyword.into(), value.into()));
        self
    }

    /// Changes the named constants, which no string can.
    #[must_use]
    pub fn tuning(mut self, change: impl FnOnce(&mut Tuning)) -> Self {
        change(&mut self.tuning);
        self
    }

    /// Other surroundings than the process's own.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// It is a pool's alone: what hosts a plain connect would take is no hazard then.
    #[must_use]
    pub(crate) fn for_work(mut self) -> Self {
        self.for_work = true;
        self
    }

    /// Reads all layers and checks everything.
    ///
    /// # Errors
    /// [`Code::InvalidConninfo`], [`Code::InvalidOption`], [`Code::UnsupportedOption`] or [`Code::UnusableFile`];
    /// each message names the option and the remedy, and never a secret.
    pub fn build(self) -> Result<Config, Error> {
        let env = self.environment.unwrap_or_else(Environment::system);
        let mut settings = Settings::default();
        for (keyword, value) in conninfo::parse(self.conninfo.as_deref().unwrap_or_default())? {
            settings.put(keyword, value, Origin::Conninfo);
        }
        for (keyword, value) in self.set {
            let row = find(&keyword).ok_or_else(|| {
                failed(Code::InvalidConninfo, format!("unknown keyword {keyword:?}: {}", remedy(&keyword)))
            })?;
            if value.contains('\0') {
                return Err(failed(
                    Code::InvalidOption,
                    format!("{}: the value contains a zero byte", row.name),
                ));
            }
            settings.put(row.name, value, Origin::Code);
        }
        let mut warnings = Vec::new();
        settings.add_layers(&env, &mut warnings)?;
        let config = build(settings, &env, self.tuning, warnings, self.for_work)?;
        for warning in &config.warnings {
            tracing::warn!(target: "pgfollow::config", "{warning}");
        }
        Ok(config)
    }
}
