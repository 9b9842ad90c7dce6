//! What notices processes: a source of hints, each of which is then judged by what `/proc` shows.

use crate::connector::Unusable;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Which source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The kernel tells of every start ([`Connector`](crate::connector::Connector)).
    Netlink,
    /// We ask again and again ([`RangePoll`](crate::range_poll::RangePoll)).
    Poll,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Netlink, Self::Poll];

    /// Its name in flags, logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Netlink => "netlink",
            Self::Poll => "poll",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A name of a process as the kernel keeps it: at most fifteen bytes, which need not be UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; Self::BYTES]);

impl Name {
    /// Bytes with the NUL at the end.
    pub const BYTES: usize = 16;

    /// The bytes before the first NUL, as many as there is room for.
    pub fn new(bytes: &[u8]) -> Self {
        let mut name = [0; Self::BYTES];
        let length = bytes.iter().take(Self::BYTES - 1).take_while(|byte| **byte != 0).count();
        name[..length].copy_from_slice(&bytes[..length]);
        Self(name)
    }

    /// The name.
    pub fn bytes(&self) -> &[u8] {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(Self::BYTES);
        &self.0[..length]
    }
}

/// A process to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// Its number.
    pub pid: u32,
    /// Its name, if the source knows it already.
    pub name: Option<Name>,
    /// How often this process has been looked at on behalf of the same hint.
    pub looks: u8,
}

/// What a look at a process showed that did not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is there.
    Alive,
    /// It is there and has no command line: it is ending, or in the middle of becoming another program.
    Blank,
    /// It is not there, or not yet.
    Absent,
}

/// What a source could not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Some hints: a full scan makes up for them, and the source goes on.
    Hints,
    /// Its voice: the source must be replaced.
    Source(Unusable),
}

/// A source of hints.
pub trait Source: Send {
    /// Which one.
    fn kind(&self) -> Kind;

    /// What becomes readable when there is a hint; none for a source that only goes by the clock.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// When to ask even if nothing became readable.
    fn due(&self) -> Instant;

    /// Adds every hint there is. With [`Lost::Hints`], those that were added are good all the same.
    fn drain(&mut self, now: Instant, hints: &mut Vec<Hint>) -> Result<(), Lost>;

    /// Hears of a hint that did not lead to a match.
    fn looked(&mut self, hint: Hint, fate: Fate, now: Instant);
}
