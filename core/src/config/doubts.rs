//! What a string may say and no connect can do.

use super::{ChannelBinding, Config, SslMode};
use crate::connector::Connector;
use crate::decide::place::{self, Place};
use crate::host::HostSpec;

impl Config {
    /// What the string may say and no connect can do: a port that is none, a file that is missing. libpq looks at each of
    /// these when a host's turn comes, so the string itself is in order. Reads the files, and connects to nothing.
    pub fn doubts(&self) -> Vec<String> {
        let mut all = Vec::new();
        for spec in &self.hosts {
            match place::of(spec, &self.local_socket_dir) {
                Place::Bad(why) => all.push(format!("{}: a connect fails: {why}", spec.label())),
                Place::Name(name, _) if name.contains('=') => all.push(format!(
                    "the host {name:?}: is the value of host empty? What follows was taken for it: write the name, or host='' \
                     where none is meant"
                )),
                Place::Known(_) | Place::Name(..) => {}
            }
        }
        let tcp = self.hosts.iter().any(|h| matches!(h, HostSpec::Tcp { .. }));
        if tcp && self.channel_binding == ChannelBinding::Require && self.tls.sslmode == SslMode::Disable {
            all.push(
                "channel_binding=require: a connect fails with sslmode=disable, for there is nothing to bind to without TLS: \
                 use sslmode=require or stronger"
                    .to_owned(),
            );
        }
        // It reads the files, and starts nothing before it is asked.
        if let Err(e) = Connector::from_config(self.clone()) {
            all.push(format!("a connect fails: {}", e.message()));
        }
        all
    }
}
