//! What a node's configuration says. Pure text; [`super::node::Node`] writes it and reloads.

use std::fmt::Write;
use std::net::Ipv4Addr;

/// The part that changes over a node's life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changing {
    /// `primary_conninfo`; used while the node has a standby.signal.
    pub(crate) follow: Option<String>,
    /// `synchronous_standby_names`; always empty on a standby, so a promoted one starts without waiting.
    pub(crate) sync_names: String,
    /// `default_transaction_read_only`: demoted in place.
    pub(crate) read_only: bool,
}

/// The part that never changes.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    pub(crate) name: String,
    /// From 1: the n of its name.
    pub(crate) number: usize,
    pub(crate) listen: Vec<Ipv4Addr>,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    pub(crate) client_ca: bool,
    pub(crate) settings: Vec<(String, String)>,
}

/// What all nodes of all clusters share, with the reason where it isn't plain.
const COMMON: &str = "\
unix_socket_directories = ''
max_connections = 100
shared_buffers = '16MB'
# Speed: nothing here must survive a power cut. A killed process loses nothing by it.
fsync = off
# pg_rewind needs full pages and hint bits in the log.
full_page_writes = on
wal_log_hints = on
wal_level = replica
hot_standby = on
max_wal_senders = 10
# Enough for a node that was away for a drill; the folder may lie in memory.
wal_keep_size = '128MB'
max_wal_size = '256MB'
checkpoint_timeout = '30min'
# A standby that lost its primary looks for the new one every 100 ms, not every 5 s.
wal_retrieve_retry_interval = '100ms'
# In the data directory: segments of a killed server would stay in /dev/shm.
dynamic_shared_memory_type = mmap
password_encryption = 'scram-sha-256'
jit = off
logging_collector = off
log_line_prefix = '%m [%p] %a '
";

/// The whole of a node's lab.conf.
pub(crate) fn render(fixed: &Fixed, changing: &Changing) -> String {
    let mut text = String::from(COMMON);
    let mut set = |name: &str, value: &str| {
        let _ = writeln!(text, "{name} = {}", quoted(value));
    };
    set("cluster_name", &fixed.name);
    let listen: Vec<String> = fixed.listen.iter().map(Ipv4Addr::to_string).collect();
    set("listen_addresses", &listen.join(","));
    set("port", &fixed.port.to_string());
    if fixed.tls {
        set("ssl", "on");
        set("ssl_cert_file", "server.crt");
        set("ssl_key_file", "server.key");
        if fixed.client_ca {
            set("ssl_ca_file", "root.crt");
        }
    }
    set("synchronous_standby_names", &changing.sync_names);
    set("primary_conninfo", changing.follow.as_deref().unwrap_or_default());
    // The caller's settings come before the demotion: that one must always win.
    for (name, value) in &fixed.settings {
        set(name, value);
    }
    if changing.read_only {
        set("default_transaction_read_only", "on");
    }
    text
}

/// Single quotes doubled, as in postgresql.conf.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_in_a_value_does_not_end_the_setting() {
        assert_eq!(quoted("it's"), "'it''s'");
    }

    #[test]
    fn a_setting_of_the_caller_does_not_undo_a_demotion() {
        let fixed = Fixed {
            name: "n1".into(),
            number: 1,
            listen: vec![Ipv4Addr::LOCALHOST],
            port: 1,
            tls: false,
            client_ca: false,
            settings: vec![("default_transaction_read_only".into(), "off".into())],
        };
        let text = render(&fixed, &Changing { read_only: true, ..Changing::default() });
        let last = text.lines().rfind(|l| l.starts_with("default_transaction_read_only"));
        assert_eq!(last, Some("default_transaction_read_only = 'on'"));
    }
}
