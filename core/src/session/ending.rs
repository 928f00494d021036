//! What is left of a session whose client was taken out.

use std::sync::Arc;
use std::time::Duration;

use super::driver::Messages;
use super::member::{EndCause, Leash, Member};
use super::why::Why;
use crate::clock::Deadline;
use crate::connector::Connector;
use crate::error::{Code, TxStatus};

/// Between two looks at a session while the topology has no news.
const LOOK: Duration = Duration::from_secs(1);

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
        let mut changes = monitor.changes();
        let mut over = std::pin::pin!(self.wait());
        loop {
            let m = &self.member;
            let stale = m.retired() || m.generation() < monitor.generation(m.host);
            if stale && !m.tap.busy() && m.tap.status() == TxStatus::Idle {
                let reason = format!("host {} is no longer what it was", m.candidate);
                m.end(EndCause::Verdict { code: Code::HostGone, reason });
            }
            tokio::select! {
                cause = &mut over => return cause,
                // News and the time passing both ask for another look.
                _ = Deadline::after(LOOK).bound(changes.changed()) => {}
            }
        }
    }

    /// Explains the errors of the client's calls.
    pub fn why(&self) -> Why {
        Why::new(Arc::clone(&self.member))
    }
}
