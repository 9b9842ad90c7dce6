//! How long to wait before the shard is dialled again.

use std::time::Duration;

/// The shortest wait.
const FIRST: Duration = Duration::from_millis(500);

/// The longest.
const LAST: Duration = Duration::from_secs(30);

/// A session that lived longer was a good one: the next wait is short again.
const GOOD: Duration = Duration::from_mins(1);

/// How a session ended, as far as the wait before the next one depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It came about and lived so long.
    Lived(Duration),
    /// It did not come about.
    Unreachable,
    /// The shard does not want us: to ask again soon is of no use.
    Unwanted,
}

/// The wait, which grows while nothing gets better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { most: FIRST }
    }
}

impl Backoff {
    /// The wait after a session. `chance`, from 0 to 1, spreads those that were all cut off at the same moment.
    pub fn after(&mut self, ending: Ending, chance: f64) -> Duration {
        let (least, most) = match ending {
            Ending::Lived(time) if time > GOOD => (FIRST, FIRST),
            Ending::Lived(_) | Ending::Unreachable => (FIRST, self.most),
            Ending::Unwanted => (LAST / 2, LAST),
        };
        self.most = (most * 2).min(LAST);
        least + most.saturating_sub(least).mul_f64(chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_to_its_bound_and_a_good_session_makes_it_short_again() {
        let mut backoff = Backoff::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(backoff.after(Ending::Unreachable, 1.0).as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(backoff.after(Ending::Lived(Duration::from_secs(5)), 1.0), LAST);
        assert_eq!(backoff.after(Ending::Lived(GOOD * 2), 1.0), FIRST);
        assert_eq!(backoff.after(Ending::Lived(Duration::from_secs(5)), 1.0), FIRST * 2);
        assert_eq!(backoff.after(Ending::Unwanted, 1.0), LAST, "not hammered");
    }

    #[test]
    fn chance_spreads_the_wait_and_never_makes_it_nothing() {
        let mut backoff = Backoff { most: LAST };
        assert_eq!(backoff.after(Ending::Unreachable, 0.0), FIRST);
        assert_eq!(backoff.after(Ending::Unreachable, 0.5), FIRST + LAST.checked_sub(FIRST).unwrap() / 2);
        assert_eq!(Backoff::default().after(Ending::Unwanted, 0.0), LAST / 2, "not even by chance");
    }
}
