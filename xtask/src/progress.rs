//! Shows how a long build goes: a line that is rewritten on a terminal, a line now and then elsewhere.

use fivespot_testenv::Progress;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Often enough to see that it lives, seldom enough to keep a CI log short.
const EVERY_ON_TERMINAL: Duration = Duration::from_millis(200);
const EVERY_IN_LOG: Duration = Duration::from_secs(15);

/// Progress on standard error.
pub(crate) struct Terminal {
    began: Instant,
    shown: Option<Instant>,
    /// Whether a line can be written over.
    rewrites: bool,
}

impl Default for Terminal {
    fn default() -> Self {
        Self { began: Instant::now(), shown: None, rewrites: stderr().is_terminal() }
    }
}

impl Progress for Terminal {
    fn step(&mut self, what: &str, done: usize, total: Option<usize>) {
        let every = if self.rewrites { EVERY_ON_TERMINAL } else { EVERY_IN_LOG };
        if self.shown.is_some_and(|shown| shown.elapsed() < every) {
            return;
        }
        self.shown = Some(Instant::now());
        let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
        self.show(&format!("{what}: {done}{of}"), false);
    }

    fn done(&mut self, what: &str) {
        self.show(&format!("{what}: done"), true);
    }
}

impl Terminal {
    fn show(&self, text: &str, is_last: bool) {
        let seconds = self.began.elapsed().as_secs();
        let mut out = stderr();
        // A progress line that cannot be written is no reason to stop the work.
        let _ = match (self.rewrites, is_last) {
            (true, false) => write!(out, "\r\x1b[K[{seconds:>4} s] {text}").and_then(|()| out.flush()),
            (true, true) => writeln!(out, "\r\x1b[K[{seconds:>4} s] {text}"),
            (false, _) => writeln!(out, "[{seconds:>4} s] {text}"),
        };
    }
}
