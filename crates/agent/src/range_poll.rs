//! Polling by ranges of process numbers: for hosts on which the kernel tells us nothing.
//!
//! The kernel gives numbers in a circle, and `/proc/loadavg` ends with the last one. What is new since the last look
//! are exactly the numbers in between, so a look on a quiet host is one read, however many processes it has.
//!
//! A young process is looked at again, in growing intervals, since a shell that becomes the program keeps its number.
//! What comes later than that is found by the full scan that every detector makes.

use crate::proc_fs::ProcFs;
use crate::source::{Fate, Hint, Kind, Lost, Source};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time between two looks.
const TICK: Duration = Duration::from_millis(20);

/// The first number after the circle has closed (`RESERVED_PIDS`, `kernel/pid.c`).
const FIRST: u32 = 300;

/// Looks at a young process: after 1, 2, 4 … 128 ticks.
const LOOKS: u8 = 8;

/// Numbers above which a full scan is cheaper. It is also what bounds the work if somebody sets the counter.
const MOST: u32 = 0x8000;

/// Looks at every new number.
pub struct RangePoll {
    fs: Arc<ProcFs>,
    range: Range,
    tick: Duration,
    next: Instant,
}

impl RangePoll {
    /// Begins with what comes after now. `interval` is the longest time between two looks that is asked for.
    pub(crate) fn new(fs: Arc<ProcFs>, interval: Duration) -> Result<Self, Errno> {
        let range = Range { last: fs.last_pid()?, ticks: 0, again: BTreeMap::new() };
        let tick = interval.min(TICK);
        Ok(Self { fs, range, tick, next: Instant::now() + tick })
    }
}

impl Source for RangePoll {
    fn kind(&self) -> Kind {
        Kind::Poll
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn due(&self) -> Instant {
        self.next
    }

    fn drain(&mut self, now: Instant, hints: &mut Vec<Hint>) -> Result<(), Lost> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + self.tick;
        // loadavg was read when this began; should it fail all the same, the full scan sees what we do not.
        let last = self.fs.last_pid().map_err(|_| Lost::Hints)?;
        self.range.tick(last, || self.fs.pid_max(), hints)
    }

    fn looked(&mut self, hint: Hint, fate: Fate, _now: Instant) {
        self.range.looked(hint, fate);
    }
}

/// Which numbers to look at.
struct Range {
    last: u32,
    ticks: u64,
    again: BTreeMap<u64, Vec<Hint>>,
}

impl Range {
    fn tick(&mut self, last: u32, pid_max: impl Fn() -> u32, hints: &mut Vec<Hint>) -> Result<(), Lost> {
        self.ticks += 1;
        let later = self.again.split_off(&(self.ticks + 1));
        let due = std::mem::replace(&mut self.again, later);
        hints.extend(due.into_values().flatten());
        let (before, after) = if last >= self.last {
            (self.last + 1..last + 1, 0..0)
        } else {
            (self.last + 1..pid_max(), FIRST..(last + 1).max(FIRST))
        };
        self.last = last;
        let length = |range: &std::ops::Range<u32>| range.end.saturating_sub(range.start);
        if length(&before).saturating_add(length(&after)) > MOST {
            return Err(Lost::Hints);
        }
        hints.extend(before.chain(after).map(|pid| Hint { pid, name: None, looks: 0 }));
        Ok(())
    }

    fn looked(&mut self, hint: Hint, fate: Fate) {
        let again = match fate {
            Fate::Alive | Fate::Blank => hint.looks < LOOKS,
            // A number can be given before its process can be seen.
            Fate::Absent => hint.looks == 0,
        };
        if again {
            let due = self.ticks + (1 << hint.looks);
            self.again.entry(due).or_default().push(Hint { looks: hint.looks + 1, ..hint });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(last: u32) -> Range {
        Range { last, ticks: 0, again: BTreeMap::new() }
    }

    fn tick(range: &mut Range, last: u32) -> Vec<u32> {
        let mut hints = Vec::new();
        range.tick(last, || 1000, &mut hints).unwrap();
        hints.iter().map(|hint| hint.pid).collect()
    }

    #[test]
    fn what_is_new_is_what_was_numbered_since() {
        let mut range = range(990);
        assert!(tick(&mut range, 990).is_empty());
        assert_eq!(tick(&mut range, 992), [991, 992]);
        assert_eq!(tick(&mut range, 998), [993, 994, 995, 996, 997, 998]);
        assert_eq!(tick(&mut range, 301), [999, 300, 301]);
        assert_eq!(tick(&mut range, 302), [302]);
    }

    #[test]
    fn a_survivor_is_looked_at_again_in_growing_intervals() {
        let mut range = range(500);
        let mut looks = Vec::new();
        for number in 0..400 {
            let mut hints = Vec::new();
            range.tick(501, || 1000, &mut hints).unwrap();
            for hint in hints {
                looks.push(number);
                range.looked(hint, Fate::Alive);
            }
        }
        assert_eq!(looks, [0, 1, 3, 7, 15, 31, 63, 127, 255]);
        assert!(range.again.is_empty());
    }

    #[test]
    fn a_number_without_a_process_is_looked_at_once_more() {
        let mut range = range(500);
        let absent = Hint { pid: 501, name: None, looks: 0 };
        range.looked(absent, Fate::Absent);
        assert_eq!(tick(&mut range, 500), [501]);
        range.looked(Hint { looks: 1, ..absent }, Fate::Absent);
        assert!(tick(&mut range, 500).is_empty());
    }

    #[test]
    fn a_jump_of_the_counter_asks_for_a_full_scan() {
        let mut range = range(500);
        let mut hints = Vec::new();
        assert_eq!(range.tick(400, || 4_194_304, &mut hints), Err(Lost::Hints));
        assert!(hints.is_empty());
        assert_eq!(tick(&mut range, 401), [401]);
    }
}
