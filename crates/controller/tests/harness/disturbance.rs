//! What happens to the calls of a machine, and what was called.
//!
//! Machines of a campaign are called `run-0001` and so on: whatever has that in its path, its query or its body is about
//! that machine.

use crate::proxy::{Call, Executioner, Fate};
use axum::http::{Method, StatusCode};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Longer than any call of ours waits for its answer.
const LATE: Duration = Duration::from_secs(12);

/// A way in which a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    CutBefore,
    CutAfter,
    Conflict,
    TooManyRequests,
    InternalError,
    GatewayTimeout,
    Late,
}

impl Fault {
    pub(crate) const ALL: [Self; 7] = [
        Self::CutBefore,
        Self::CutAfter,
        Self::Conflict,
        Self::TooManyRequests,
        Self::InternalError,
        Self::GatewayTimeout,
        Self::Late,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::CutBefore => "cut before it is sent",
            Self::CutAfter => "cut after it is committed",
            Self::Conflict => "409",
            Self::TooManyRequests => "429",
            Self::InternalError => "500",
            Self::GatewayTimeout => "504",
            Self::Late => "later than the timeout",
        }
    }

    fn fate(self) -> Fate {
        match self {
            Self::CutBefore => Fate::CutBefore,
            Self::CutAfter => Fate::CutAfter,
            Self::Conflict => Fate::Refused(409),
            Self::TooManyRequests => Fate::Refused(429),
            Self::InternalError => Fate::Refused(500),
            Self::GatewayTimeout => Fate::Refused(504),
            Self::Late => Fate::Late(LATE),
        }
    }
}

/// Which calls of a machine fail, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Number of the first, from 0.
    pub(crate) at: usize,
    pub(crate) fault: Fault,
    /// How many in a row.
    pub(crate) times: usize,
}

impl Plan {
    /// Every way to disturb so many calls: each in every way, once and, as what fails may fail again, three times.
    pub(crate) fn all(calls: usize) -> Vec<Self> {
        let of_call = |at| {
            let times = |times| Fault::ALL.map(|fault| Self { at, fault, times });
            times(1).into_iter().chain(times(3))
        };
        (0..calls).flat_map(of_call).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}, {} times {}", self.at, self.times, self.fault.as_str())
    }
}

/// Of ten neighbours one, and not always of the same fault.
pub(crate) fn a_tenth<T>(all: Vec<T>) -> Vec<T> {
    all.into_iter().enumerate().filter(|(n, _)| (n + n / 10) % 10 == 0).map(|(_, it)| it).collect()
}

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: String,
    /// What happened to it, if anything did.
    pub(crate) fate: Option<Fault>,
    /// What the server answered and when, if it was asked.
    pub(crate) answer: Option<(u16, Timestamp)>,
}

impl Entry {
    /// Whether it went through.
    pub(crate) fn is_done(&self) -> bool {
        self.answer.is_some_and(|(code, _)| (200..300).contains(&code))
    }
}

/// What is known of one machine.
#[derive(Default)]
struct Case {
    is_armed: bool,
    plan: Option<Plan>,
    journal: Vec<Entry>,
    last: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct Disturber {
    cases: Mutex<BTreeMap<String, Case>>,
    /// Paths of the watches that were begun.
    watches: Mutex<BTreeSet<String>>,
    /// Path of the watch that tells nothing.
    frozen: watch::Sender<Option<String>>,
    /// The program whose calls on Leases are those of [`LEASES`].
    keeper: Mutex<Option<String>>,
}

/// What stands for a machine where the calls are those on Leases.
pub(crate) const LEASES: &str = "leases";

impl Disturber {
    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<String, Case>) -> R) -> R {
        work(&mut self.cases.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The machine that a call is about, or [`LEASES`].
    fn subject(&self, call: &Call) -> Option<String> {
        if call.path.contains("/leases") {
            let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
            return keeper.as_ref().filter(|it| call.agent.contains(it.as_str())).map(|_| LEASES.to_owned());
        }
        machine(call)
    }

    /// The calls on Leases of a program that presents itself with this name are disturbed from now on.
    pub(crate) fn arm_leases(&self, keeper: &str, plan: Option<Plan>) {
        *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("({keeper})"));
        self.arm(LEASES, plan);
    }

    pub(crate) fn watched(&self) -> BTreeSet<String> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The watch of this path tells nothing from now on, and what it would have told is kept; the others do.
    pub(crate) fn freeze(&self, path: Option<&str>) {
        self.frozen.send_replace(path.map(str::to_owned));
    }

    /// From now on the calls of a machine are written down, and disturbed.
    pub(crate) fn arm(&self, machine: &str, plan: Option<Plan>) {
        self.with(|cases| {
            let last = cases.get(machine).and_then(|case| case.last);
            cases.insert(machine.to_owned(), Case { is_armed: true, plan, journal: Vec::new(), last });
        });
    }

    pub(crate) fn journal(&self, machine: &str) -> Vec<Entry> {
        self.with(|cases| cases.get(machine).map(|case| case.journal.clone()).unwrap_or_default())
    }

    /// How long ago the last call of any of these machines was.
    pub(crate) fn last_call<'a>(&self, machines: impl Iterator<Item = &'a str>) -> Duration {
        self.with(|cases| {
            let last = machines.filter_map(|machine| cases.get(machine)?.last).max();
            last.map_or(Duration::MAX, |last| last.elapsed())
        })
    }
}

/// The machine that a call is about.
fn machine(call: &Call) -> Option<String> {
    let find = |text: &str| {
        text.match_indices("run-").find_map(|(at, stem)| {
            let digits = text.get(at + stem.len()..at + stem.len() + 4)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| format!("{stem}{digits}"))
        })
    };
    find(&call.path).or_else(|| find(&call.query)).or_else(|| find(&call.body.to_string()))
}

impl Executioner for Disturber {
    const JUDGES_READS: bool = true;

    async fn judge(&self, call: &Call) -> Fate {
        let Some(machine) = self.subject(call) else { return Fate::Made };
        let fault = self.with(|cases| {
            let case = cases.entry(machine).or_default();
            case.last = Some(Instant::now());
            if !case.is_armed {
                return None;
            }
            let number = case.journal.len();
            let is_hit = |plan: &Plan| (plan.at..plan.at + plan.times).contains(&number);
            let fate = case.plan.filter(is_hit).map(|plan| plan.fault);
            let (method, path, body) = (call.method.clone(), call.path.clone(), call.body.to_string());
            case.journal.push(Entry { method, path, body, fate, answer: None });
            fate
        });
        fault.map_or(Fate::Made, Fault::fate)
    }

    fn answered(&self, call: &Call, code: StatusCode) {
        let Some(machine) = self.subject(call) else { return };
        let body = call.body.to_string();
        self.with(|cases| {
            let journal = cases.get_mut(&machine).map(|case| &mut case.journal);
            let is_it = |entry: &&mut Entry| {
                entry.answer.is_none()
                    && entry.path == call.path
                    && entry.method == call.method
                    && entry.body == body
            };
            if let Some(entry) = journal.and_then(|journal| journal.iter_mut().find(is_it)) {
                entry.answer = Some((code.as_u16(), Timestamp::now()));
            }
        });
    }

    fn watches(&self, call: &Call) {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).insert(call.path.clone());
    }

    async fn may_flow(&self, call: &Call) {
        let mut frozen = self.frozen.subscribe();
        // The other end is part of this value.
        let _ = frozen.wait_for(|path| path.as_ref() != Some(&call.path)).await;
    }
}

/// The calls of a machine, one a line.
pub(crate) fn show(journal: &[Entry]) -> String {
    let mut text = String::new();
    for (number, Entry { method, path, body, fate, answer }) in journal.iter().enumerate() {
        let fate = fate.map_or(String::new(), |fault| format!("  <- {}", fault.as_str()));
        let code = answer.map_or("-".to_owned(), |(code, _)| code.to_string());
        let body: String = body.chars().take(160).collect();
        let _ = writeln!(text, "{number:>3} {method} {path} {code}{fate}  {body}");
    }
    text
}
