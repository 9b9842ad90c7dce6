//! Whether a reclaim agent looks at the Node of a machine that is lent.
//!
//! An agent that died looks like an owner who starts no program. So the readiness of the agent's pod is shown as the
//! condition ReclaimAgent, and somebody is told when the agent is gone. The phase does not depend on any of this: a machine
//! without an agent can still be reclaimed by hand.
//!
//! A pod that is replaced is back within seconds. Only what lasts for [`GRACE`] is told, counted from the moment at which
//! the condition became False: that is remembered in status, so the next process counts on.

use super::{Decision, Given, News, Note, Phase};
use crate::observed::{AgentPod, AgentPodState, AgentSight};
use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::time::Duration;

/// How long a Node may be without an agent that is ready: scheduling, pulling a small image and starting it take less,
/// and so does the replacement of a pod by a new version of its DaemonSet.
pub const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// How often it is tried whether the agent's pods can be seen again.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Whether somebody looks for the owner's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReclaimAgent {
    /// Nobody has to: the machine is not in phase Active, or its owner named no programs.
    NotWanted,
    /// An agent does.
    Ready {
        /// The agent's pod.
        pod: String,
    },
    /// No agent does yet, and it has not lasted long.
    Starting(Absence),
    /// An agent runs and says that it is not ready.
    Degraded(Absence),
    /// No agent does.
    Missing(Absence),
    /// The agent's pods cannot be seen; the text says why.
    NotVisible(String),
}

/// Why no agent is ready on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// The Node.
    pub node: String,
    /// The agent's pod, if there is one.
    pub pod: Option<AgentPod>,
}

impl ReclaimAgent {
    /// The reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotWanted => "NotWanted",
            Self::Ready { .. } => "Ready",
            Self::Starting(_) => "Starting",
            Self::Degraded(_) => "Degraded",
            Self::Missing(_) => "Missing",
            Self::NotVisible(_) => "NotVisible",
        }
    }

    /// The status of the condition; `None` is Unknown.
    pub fn status(&self) -> Option<bool> {
        match self {
            Self::NotWanted | Self::NotVisible(_) => None,
            Self::Ready { .. } => Some(true),
            Self::Starting(_) | Self::Degraded(_) | Self::Missing(_) => Some(false),
        }
    }

    /// What people are told when it becomes so.
    fn news(&self) -> Option<News> {
        match self {
            Self::Degraded(_) => Some(News::ReclaimAgentDegraded),
            Self::Missing(_) => Some(News::ReclaimAgentMissing),
            Self::NotWanted | Self::Ready { .. } | Self::Starting(_) | Self::NotVisible(_) => None,
        }
    }
}

impl fmt::Display for ReclaimAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWanted => f.write_str(
                "An agent is needed on a machine in phase Active whose spec.killIfCommands is not empty",
            ),
            Self::Ready { pod } => write!(f, "Pod {pod} looks for the programs of spec.killIfCommands"),
            Self::Starting(absence) => write!(f, "Waiting for an agent: {absence}"),
            Self::Degraded(absence) => write!(
                f,
                "The owner's programs may not be seen: {absence}. It polls where events were expected, or cannot read its \
                 configuration or its Node; its log says which"
            ),
            Self::Missing(absence) => write!(
                f,
                "Nobody looks for the owner's programs: {absence}. Check DaemonSet 5spot-reclaim-agent in namespace \
                 5spot-system of the workload cluster; until then use 5spot reclaim"
            ),
            Self::NotVisible(why) => write!(f, "The pods of the reclaim agent cannot be seen: {why}"),
        }
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, pod } = self;
        match pod {
            None => write!(f, "there is no pod of the reclaim agent on Node {node}"),
            Some(AgentPod { name, state: AgentPodState::Waiting(why) }) => {
                write!(f, "pod {name} on Node {node} does not run ({why})")
            }
            Some(AgentPod { name, state: AgentPodState::Running | AgentPodState::Ready }) => {
                write!(f, "pod {name} on Node {node} runs and is not ready")
            }
        }
    }
}

/// What the pod means, if it has been so since `since`.
fn judge(node: &str, sight: &AgentSight, since: Timestamp, now: Timestamp) -> ReclaimAgent {
    let pod = match sight {
        AgentSight::NotAsked => None,
        AgentSight::NotVisible(why) => return ReclaimAgent::NotVisible(why.clone()),
        AgentSight::Seen(pod) => pod.clone(),
    };
    let absence = |pod| Absence { node: node.to_owned(), pod };
    let is_young = now < deadline(since);
    match pod {
        Some(AgentPod { name, state: AgentPodState::Ready }) => ReclaimAgent::Ready { pod: name },
        pod if is_young => ReclaimAgent::Starting(absence(pod)),
        Some(pod) if pod.state == AgentPodState::Running => ReclaimAgent::Degraded(absence(Some(pod))),
        pod => ReclaimAgent::Missing(absence(pod)),
    }
}

fn deadline(since: Timestamp) -> Timestamp {
    since.saturating_add(GRACE).unwrap_or(Timestamp::MAX)
}

impl Given<'_> {
    /// Says whether an agent looks at the Node, and tells people once when none does.
    pub(super) fn check_agent(&self, decision: &mut Decision) {
        let is_wanted = decision.phase == Phase::Active && !self.orders.reclaim.commands.is_empty();
        let Some(node) = self.observed.workload.node().filter(|_| is_wanted) else { return };
        let memory = &self.observed.memory;
        // Status keeps whole seconds.
        let now = Timestamp::from_second(self.now.as_second()).unwrap_or(self.now);
        let since = memory.without_agent_since.unwrap_or(now);
        let agent = judge(&node.name, &self.observed.agent, since, self.now);
        match &agent {
            ReclaimAgent::Starting(_) => {
                let at = deadline(since);
                decision.wake.at = Some(decision.wake.at.map_or(at, |other| other.min(at)));
            }
            ReclaimAgent::NotVisible(_) => {
                let poll = decision.wake.poll;
                decision.wake.poll = Some(poll.map_or(LOOK_AGAIN, |other| other.min(LOOK_AGAIN)));
            }
            ReclaimAgent::NotWanted
            | ReclaimAgent::Ready { .. }
            | ReclaimAgent::Degraded(_)
            | ReclaimAgent::Missing(_) => {}
        }
        if let Some(news) = agent.news().filter(|_| memory.agent.as_deref() != Some(agent.reason())) {
            decision.notes.push(Note { news, text: agent.to_string() });
        }
        decision.agent = agent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(state: AgentPodState) -> AgentSight {
        AgentSight::Seen(Some(AgentPod { name: "agent-x".to_owned(), state }))
    }

    #[test]
    fn what_a_pod_means_depends_on_how_long_it_has_been_so() {
        let since = Timestamp::UNIX_EPOCH;
        let (early, late) = (deadline(since) - SignedDuration::from_nanos(1), deadline(since));
        let image = || AgentPodState::Waiting("ImagePullBackOff".to_owned());
        let cases = [
            (AgentSight::Seen(None), "Starting", "Missing"),
            (AgentSight::NotAsked, "Starting", "Missing"),
            (pod(image()), "Starting", "Missing"),
            (pod(AgentPodState::Running), "Starting", "Degraded"),
            (pod(AgentPodState::Ready), "Ready", "Ready"),
            (AgentSight::NotVisible("forbidden".to_owned()), "NotVisible", "NotVisible"),
        ];
        for (sight, at_first, later) in cases {
            assert_eq!(judge("node-1", &sight, since, early).reason(), at_first, "{sight:?}");
            assert_eq!(judge("node-1", &sight, since, late).reason(), later, "{sight:?}");
        }
        let text = judge("node-1", &pod(image()), since, late).to_string();
        assert!(text.contains("agent-x on Node node-1 does not run (ImagePullBackOff)"), "{text}");
    }
}
