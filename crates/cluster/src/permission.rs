//! The permission to write for one ScheduledMachine: this instance holds the slot of the machine.

use crate::cache::Key;
use crate::shell::Right;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// The permission to write for one ScheduledMachine.
pub(crate) struct Permission {
    pub(crate) right: Arc<dyn Right>,
    pub(crate) key: Key,
}

impl Permission {
    /// Runs `work` while this instance holds the slot of the machine; drops it unfinished, and returns `None`, as soon
    /// as it does not. The lease may be renewed meanwhile.
    ///
    /// The lease is checked before every single poll, and not by a timer alone. A timer wakes the task, and then the
    /// work would be polled first and could send a request: a process that was stopped for longer than its lease finds
    /// both the timer and a free connection ready. And timers do not count the time in which the host was suspended,
    /// while leases do.
    pub(crate) async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if !self.right.may_begin(&self.key) {
            return None;
        }
        let mut work = pin!(work);
        loop {
            let remaining = self.right.remaining(&self.key)?;
            let guarded = poll_fn(|context| {
                if self.right.remaining(&self.key).is_none() {
                    return Poll::Ready(None);
                }
                work.as_mut().poll(context).map(Some)
            });
            if let Ok(done) = tokio::time::timeout(remaining, guarded).await {
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::sync::oneshot;

    /// A slot that is held for another hour, as far as timers know, until it is lost.
    #[derive(Default)]
    struct Slot {
        is_lost: AtomicBool,
        remaining: Option<Duration>,
    }

    impl Right for Slot {
        fn slot(&self, _: &Key) -> u32 {
            0
        }

        fn remaining(&self, _: &Key) -> Option<Duration> {
            let remaining = self.remaining.unwrap_or(Duration::from_hours(1));
            (!self.is_lost.load(Ordering::SeqCst)).then_some(remaining)
        }

        fn may_begin(&self, _: &Key) -> bool {
            true
        }
    }

    fn permission(slot: &Arc<Slot>) -> Permission {
        Permission { right: Arc::clone(slot) as Arc<dyn Right>, key: Key::new("n", "m") }
    }

    #[tokio::test]
    async fn a_write_that_waits_for_a_connection_is_not_sent_after_the_lease_has_ended() {
        let slot = Arc::new(Slot::default());
        let (permission, sent) = (permission(&slot), Arc::new(AtomicUsize::new(0)));
        let (connected, connection) = oneshot::channel();
        let (waits, waiting) = oneshot::channel();
        let write = {
            let sent = Arc::clone(&sent);
            async move {
                waits.send(()).unwrap();
                connection.await.unwrap();
                sent.fetch_add(1, Ordering::SeqCst);
            }
        };
        let task = tokio::spawn(async move { permission.within(write).await });
        waiting.await.unwrap();
        // The host sleeps, and wakes: the lease is over and no timer has fired.
        slot.is_lost.store(true, Ordering::SeqCst);
        connected.send(()).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(5), task).await;
        assert_eq!(ended.expect("it ends").unwrap(), None);
        assert_eq!(sent.load(Ordering::SeqCst), 0, "it was sent by an instance without the lease");
    }

    #[tokio::test]
    async fn a_write_may_take_longer_than_the_lease_that_is_renewed_meanwhile() {
        let slot = Arc::new(Slot { remaining: Some(Duration::from_millis(20)), ..Slot::default() });
        let delay = tokio::time::sleep(Duration::from_millis(100));
        assert_eq!(permission(&slot).within(delay).await, Some(()));
        let endless = std::future::pending::<()>();
        let (permission, ends) = (permission(&slot), Duration::from_millis(100));
        let task = tokio::spawn(async move { permission.within(endless).await });
        tokio::time::sleep(ends).await;
        slot.is_lost.store(true, Ordering::SeqCst);
        let ended = tokio::time::timeout(Duration::from_secs(5), task).await;
        assert_eq!(ended.expect("it ends with the lease").unwrap(), None);
    }
}
