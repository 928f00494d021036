//! What is left of a session whose client was taken out.

use std::sync::Arc;

use super::driver::Messages;
use super::member::{EndCause, Leash, Member};
use super::why::Why;
use crate::connector::Connector;

/// The rest of a session whose client was taken out ([`crate::Session::into_parts`]). Keep it as long as the client;
/// dropped before, it says that the owner has left: an abandoned call then ends the session within moments.
pub struct Ending {
    member: Arc<Member>,
    messages: Messages,
    _leash: Leash,
}

impl Ending {
    pub(super) fn new(member: Arc<Member>, messages: Messages, leash: Leash) -> Self {
        Self { member, messages, _leash: leash }
    }

    /// Waits until the session has ended, and says why. Its notices and notifications are lost meanwhile.
    pub async fn wait(&self) -> EndCause {
        while self.messages.next().await.is_some() {}
        self.member.ended().map_or(EndCause::Closed, |e| e.cause.clone())
    }

    /// As [`Self::wait`], and ends the session itself once it isn't to be used again (its host refuses writes now, or was
    /// restarted) and nothing runs on it. For pools that look only whether a client is closed.
    pub async fn tend(&self, connector: &Connector) -> EndCause {
        let monitor = connector.monitor();
        self.member.close_when_retired();
        let mut changes = monitor.changes();
        let mut over = std::pin::pin!(self.wait());
        loop {
            let m = &self.member;
            if !m.retired() && m.generation() < monitor.generation(m.host) {
                m.retire();
            }
            tokio::select! {
                biased;
                cause = &mut over => return cause,
                // The connector is held here, so its monitor lives.
                _ = changes.changed() => {}
            }
        }
    }

    /// Explains the errors of the client's calls.
    pub fn why(&self) -> Why {
        Why::new(Arc::clone(&self.member))
    }
}
