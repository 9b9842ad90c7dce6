//! How fast pods are asked to go, on all Nodes together: a reclaim of a whole rack must not drown an API server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The rates of all drains. Who has little time does not wait behind those that have much: a few hundred pods that budgets
/// hold, asked again and again, would take all turns.
#[derive(Debug)]
pub struct Rates {
    usual: Rate,
    urgent: Rate,
}

impl Rates {
    /// So many in a second, of each.
    pub fn new(per_second: u32) -> Self {
        Self { usual: Rate::new(per_second), urgent: Rate::new(per_second) }
    }

    /// Returns when it is our turn.
    pub async fn take(&self, is_urgent: bool) {
        let rate = if is_urgent { &self.urgent } else { &self.usual };
        rate.take().await;
    }

    /// The server is busy: nobody asks for so long.
    pub fn pause(&self, time: Duration) {
        self.usual.pause(time);
        self.urgent.pause(time);
    }
}

/// So many turns in a second.
#[derive(Debug)]
struct Rate {
    gap: Duration,
    burst: Duration,
    next: Mutex<Option<Instant>>,
}

impl Rate {
    /// So many in a second; what was not used in the second before may be used at once.
    fn new(per_second: u32) -> Self {
        let gap = Duration::from_secs(1) / per_second.max(1);
        Self { gap, burst: Duration::from_secs(1), next: Mutex::new(None) }
    }

    async fn take(&self) {
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let earliest = now.checked_sub(self.burst).unwrap_or(now);
            let turn = next.map_or(earliest, |next| next.max(earliest));
            *next = Some(turn + self.gap);
            turn
        };
        sleep_until(turn).await;
    }

    fn pause(&self, time: Duration) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + time;
        *next = Some(next.map_or(until, |next| next.max(until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_the_rest_at_the_rate_and_a_pause_holds_all() {
        let rates = Rates::new(10);
        tokio::time::advance(Duration::from_secs(5)).await;
        let began = Instant::now();
        for _ in 0..11 {
            rates.take(false).await;
        }
        assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
        for _ in 0..10 {
            rates.take(false).await;
        }
        let took = began.elapsed();
        assert!(took > Duration::from_millis(900) && took < Duration::from_millis(1100), "{took:?}");
        let urgent = Instant::now();
        rates.take(true).await;
        assert!(urgent.elapsed() < Duration::from_millis(10), "it does not wait behind the others");
        rates.pause(Duration::from_secs(3));
        let began = Instant::now();
        rates.take(true).await;
        rates.take(false).await;
        assert!(began.elapsed() >= Duration::from_secs(3));
    }
}
