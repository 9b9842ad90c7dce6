//! Background tasks that go on for as long as the process does.
//!
//! A task that panics takes nobody else with it, and nobody hears of its end: the watch it kept would be dead until the
//! process starts again. So it is started again, counted, and shown.

use futures::FutureExt;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// First and last delay before a task that panicked is started again.
const RESTART_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// A task that ran longer begins with the first delay again.
const RAN_WELL: Duration = Duration::from_mins(5);

/// Starts tasks, and starts them again when they panic.
#[derive(Debug, Default)]
pub(crate) struct Supervisor {
    restarts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Supervisor {
    /// Runs `task` until it returns; one that panics is run again. `kind` is what is counted, `object` stands in the log.
    pub(crate) fn keep<F>(
        self: &Arc<Self>,
        kind: &'static str,
        object: String,
        mut task: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send,
    {
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let mut delay = RESTART_DELAY.0;
            loop {
                let began = Instant::now();
                // What a panic leaves behind is behind locks that know it, or is made anew by the task.
                if AssertUnwindSafe(async { task().await }).catch_unwind().await.is_ok() {
                    return;
                }
                this.count(kind);
                if began.elapsed() > RAN_WELL {
                    delay = RESTART_DELAY.0;
                }
                let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                tracing::error!(task = kind, object, delay_ms, "background task panicked; restarting it");
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(RESTART_DELAY.1);
            }
        })
    }

    fn count(&self, kind: &'static str) {
        *self.restarts.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default() += 1;
    }

    /// How often tasks of each kind were started again.
    pub(crate) fn restarts(&self) -> BTreeMap<&'static str, u64> {
        self.restarts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn a_task_that_panics_is_run_again_and_counted() {
        let supervisor = Arc::new(Supervisor::default());
        let runs = Arc::new(AtomicU32::new(0));
        let of_task = Arc::clone(&runs);
        let task = supervisor.keep("test", "object".to_owned(), move || {
            let run = of_task.fetch_add(1, Ordering::Relaxed);
            async move { assert!(run > 0, "the first run panics") }
        });
        task.await.unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        assert_eq!(supervisor.restarts(), BTreeMap::from([("test", 1)]));
    }

    #[tokio::test]
    async fn a_task_that_panics_before_its_first_await_is_run_again_too() {
        let supervisor = Arc::new(Supervisor::default());
        let mut is_first = true;
        let task = supervisor.keep("test", "object".to_owned(), move || {
            assert!(!std::mem::take(&mut is_first), "the first run panics");
            std::future::ready(())
        });
        task.await.unwrap();
        assert_eq!(supervisor.restarts(), BTreeMap::from([("test", 1)]));
    }
}
