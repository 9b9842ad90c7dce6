//! What happens to the calls of a machine, and what was called.

use crate::proxy::{Call, Executioner, Fate};
use axum::http::{Method, StatusCode};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longer than any call of the controller waits for its answer.
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

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: String,
    /// What happened to it, if anything did.
    pub(crate) fate: Option<Fault>,
    /// What the server answered, if it was asked.
    pub(crate) code: Option<u16>,
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
}

impl Disturber {
    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<String, Case>) -> R) -> R {
        work(&mut self.cases.lock().unwrap_or_else(PoisonError::into_inner))
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

/// The machine that a call is about: its name is in the path, or in what is written.
fn machine(call: &Call) -> Option<String> {
    let find = |text: &str| {
        let (_, rest) = text.split_once("run-")?;
        let digits = rest.get(..4).filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()))?;
        Some(format!("run-{digits}"))
    };
    find(&call.path).or_else(|| find(&call.body.to_string()))
}

impl Executioner for Disturber {
    const JUDGES_READS: bool = true;

    async fn judge(&self, call: &Call) -> Fate {
        let Some(machine) = machine(call) else { return Fate::Made };
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
            case.journal.push(Entry { method, path, body, fate, code: None });
            fate
        });
        fault.map_or(Fate::Made, Fault::fate)
    }

    fn answered(&self, call: &Call, code: StatusCode) {
        let Some(machine) = machine(call) else { return };
        let body = call.body.to_string();
        self.with(|cases| {
            let journal = cases.get_mut(&machine).map(|case| &mut case.journal);
            let is_it = |entry: &&mut Entry| {
                entry.code.is_none()
                    && entry.path == call.path
                    && entry.method == call.method
                    && entry.body == body
            };
            if let Some(entry) = journal.and_then(|journal| journal.iter_mut().find(is_it)) {
                entry.code = Some(code.as_u16());
            }
        });
    }
}

/// The calls of a machine, one a line.
pub(crate) fn show(journal: &[Entry]) -> String {
    let mut text = String::new();
    for (number, Entry { method, path, body, fate, code }) in journal.iter().enumerate() {
        let fate = fate.map_or(String::new(), |fault| format!("  <- {}", fault.as_str()));
        let code = code.map_or("-".to_owned(), |code| code.to_string());
        let body: String = body.chars().take(160).collect();
        let _ = writeln!(text, "{number:>3} {method} {path} {code}{fate}  {body}");
    }
    text
}
