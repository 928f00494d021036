//! A task of which there is one at a time, in whichever runtime it is asked for.

use std::sync::Mutex;

use tokio::task::JoinHandle;

use crate::lock;

/// The task, if it runs.
#[derive(Default)]
pub(crate) struct Alone(Mutex<Option<JoinHandle<()>>>);

impl Alone {
    /// Starts it unless it runs: for the first time, after it has ended, or if the runtime that it ran in is gone.
    pub(crate) fn start<F>(&self, task: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = lock(&self.0);
        if running.as_ref().is_none_or(JoinHandle::is_finished) {
            *running = Some(tokio::spawn(task()));
        }
    }
}
