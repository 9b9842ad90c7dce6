//! Whether a machine could be lent, found out before its window opens.
//!
//! What is missing at the moment a window opens is found at night, by nobody. So a machine that rests is checked once for
//! each version of its embedded specs: the server is asked, by a dry run, whether it would create both provider objects
//! and know every field of them. The answer is remembered; what the watches show (Cluster, kinds) is looked at in every
//! pass and costs nothing. The phase of a machine that is out does not change by any of this.

use super::{Action, Decision, Given, News, Note, Part, Phase};
use crate::observed::{Cluster, Observed, Presence, Served};
use jiff::{SignedDuration, Timestamp};

/// How long a refusal is believed: whoever mends a policy or a role tells nobody.
const RECHECK: SignedDuration = SignedDuration::from_mins(10);

/// What the dry run of the provider objects came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Identity of the embedded specs that were tried.
    pub spec: String,
    /// When.
    pub at: Timestamp,
    /// Why the server would not create them, if so.
    pub problem: Option<String>,
}

/// Whether a machine could be lent, as far as can be known beforehand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prepared {
    /// Nobody has asked the server yet.
    NotChecked,
    /// It could.
    Yes,
    /// It could not.
    No {
        /// One word.
        reason: &'static str,
        /// A sentence that names what is missing.
        message: String,
    },
}

impl Prepared {
    /// The reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotChecked => "NotChecked",
            Self::Yes => "Checked",
            Self::No { reason, .. } => reason,
        }
    }
}

/// What stands in the way of lending a machine, by what the watches show.
fn obstacle(observed: &Observed) -> Option<Prepared> {
    let no = |reason, message: String| Some(Prepared::No { reason, message });
    let not_served = |what: &str| {
        let message =
            format!("The API server does not serve {what}: install its provider, or mend the apiVersion");
        no("KindNotServed", message)
    };
    if let Served::No(what) = &observed.cluster_api {
        return not_served(what);
    }
    for part in [&observed.bootstrap, &observed.infrastructure] {
        if let Presence::NotServed(what) = part {
            return not_served(what);
        }
    }
    match observed.cluster {
        Cluster::Absent(_) => no(
            "ClusterNotFound",
            "The Cluster that spec.clusterName names is not in this namespace".to_owned(),
        ),
        Cluster::Present { .. } => None,
    }
}

fn of_checked(checked: Option<&Checked>) -> Prepared {
    match checked {
        None => Prepared::NotChecked,
        Some(Checked { problem: None, .. }) => Prepared::Yes,
        Some(Checked { problem: Some(problem), .. }) => {
            Prepared::No { reason: "SpecRefused", message: problem.clone() }
        }
    }
}

impl Given<'_> {
    /// What is known of the embedded specs as they are now.
    pub(super) fn checked(&self) -> Option<&Checked> {
        self.observed.memory.checked.as_ref().filter(|checked| checked.spec == self.observed.spec_id)
    }

    /// Whether the server has said that it would create both provider objects as they are written now.
    pub(super) fn is_accepted(&self) -> bool {
        self.checked().is_some_and(|checked| checked.problem.is_none())
    }

    /// Says whether the machine could be lent, and has it tried if nobody knows.
    pub(super) fn prepare(&self, decision: &mut Decision) {
        let checked = self.checked();
        decision.checked = checked.cloned();
        if self.orders.deletion.is_some() || self.wish.is_err() {
            return;
        }
        let obstacle = obstacle(self.observed);
        let is_clear = obstacle.is_none();
        decision.prepared = obstacle.unwrap_or_else(|| of_checked(checked));
        let known = self.observed.memory.prepared.as_deref();
        if let Prepared::No { reason, message } = &decision.prepared
            && known != Some(reason)
        {
            decision.notes.push(Note { news: News::NotPrepared, text: message.clone() });
        }
        let rests =
            matches!(decision.phase, Phase::Active | Phase::Inactive | Phase::Disabled | Phase::Terminated);
        if !rests || !is_clear || !decision.actions.is_empty() || self.paused().is_some() {
            return;
        }
        let retry = checked.filter(|it| it.problem.is_some());
        let retry = retry.map(|checked| checked.at.saturating_add(RECHECK).unwrap_or(Timestamp::MAX));
        match retry {
            Some(at) if at > self.now => {
                decision.wake.at = Some(decision.wake.at.map_or(at, |other| other.min(at)));
            }
            None if checked.is_some() => {}
            Some(_) | None => {
                decision.actions = vec![Action::Try(Part::Bootstrap), Action::Try(Part::Infrastructure)];
            }
        }
    }
}

impl Decision {
    /// The decision after the provider objects were tried.
    #[must_use]
    pub fn tried(mut self, spec: &str, outcome: Result<(), String>, now: Timestamp) -> Self {
        let before = self.checked.take().and_then(|checked| checked.problem);
        let problem = outcome.err();
        if let Some(text) = problem.clone().filter(|text| before.as_ref() != Some(text)) {
            self.notes.push(Note { news: News::NotPrepared, text });
        }
        let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
        self.checked = Some(Checked { spec: spec.to_owned(), at, problem });
        self.prepared = of_checked(self.checked.as_ref());
        self
    }
}
