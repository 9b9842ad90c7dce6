//! Emergency reclaim: the owner wants the machine back, and it stays with him until somebody says otherwise.
//!
//! A request is an annotation, and annotations come and go with their objects. So the first thing that happens to a
//! request is that it is written down ([`Reclaim`], `status.reclaim`): from then on the eject finishes, whatever becomes
//! of the Node. What ends it is a hold that stands until a person releases it, so that neither the next window nor a
//! tool that puts `enabled: true` back takes the machine away again.

use crate::lifecycle::NodeId;
use crate::observed::{Machine, Node};
use crate::text::printable;
use jiff::{SignedDuration, Timestamp};

/// Ejects that are remembered to tell a machine that comes and goes.
pub const RAPID: usize = 3;

/// Time within which that many ejects are worth a warning.
pub const RAPID_WITHIN: SignedDuration = SignedDuration::from_mins(10);

/// Bytes of the longest reason that is kept: it is shown in status, in conditions and in events. 256 characters fit, of
/// whatever script.
const REASON_BYTES: usize = 1024;

/// Bytes of the longest time of a request that is kept; RFC 3339 with nanoseconds has 35.
const TIME_BYTES: usize = 64;

/// A request to give the machine back, as it stands on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Why.
    pub reason: String,
    /// When, as [`Request::time`] reads it: together with the Node's identity it is the identity of the request.
    pub requested_at: String,
}

impl Request {
    /// Reads the three annotations. Only the literal `true` asks.
    pub fn read(requested: Option<&str>, reason: Option<&str>, requested_at: Option<&str>) -> Option<Self> {
        (requested == Some("true")).then(|| Self {
            reason: printable(reason.unwrap_or_default(), REASON_BYTES).into_owned(),
            requested_at: Self::time(requested_at.unwrap_or_default()),
        })
    }

    /// The time of a request, from its annotation. It is kept in status and compared with the annotation later, so it is
    /// made printable before anything else.
    pub fn time(requested_at: &str) -> String {
        printable(requested_at, TIME_BYTES).into_owned()
    }
}

/// What the ScheduledMachine itself says about being taken back. It cannot fail to parse.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Calls {
    /// A request by hand.
    pub request: Option<Request>,
    /// The reclaim whose hold is to be released.
    pub resume: Option<String>,
    /// Programs whose start asks for the machine.
    pub commands: Vec<String>,
    /// The reclaim for which `spec.schedule.enabled` was set to false; written in the same request as that.
    pub disabled_for: Option<String>,
    /// What a person types to release the hold.
    pub resume_command: String,
    /// Whether a person, and not a tool that repeats itself, was the last to write `spec.schedule.enabled`.
    pub enabled_by_person: bool,
}

/// What is remembered of the last reclaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaim {
    /// Its identity, which a person names to release the hold.
    pub id: String,
    /// The Node that was taken back, if there was one.
    pub node: Option<NodeId>,
    /// When the owner asked, as the request has it.
    pub requested_at: String,
    /// Why.
    pub reason: String,
    /// When it was taken on; `None` once it is over.
    pub accepted_at: Option<Timestamp>,
    /// When the forced drain ends, done or not.
    pub drain_deadline: Option<Timestamp>,
    /// Whether the Machine was deleted.
    pub machine_deleted: bool,
    /// Whether `spec.schedule.enabled` was set to false for it.
    pub disabled: bool,
    /// Why that was refused, if it was.
    pub refused: Option<String>,
    /// Whether nothing is made until a person says so.
    pub hold: bool,
    /// When the machine was taken back lately, oldest first.
    pub recent: Vec<Timestamp>,
}

/// How far a reclaim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The machine is being taken out.
    UnderWay,
    /// It is out, or on its way with nothing left to decide, and stays out.
    Held,
    /// Somebody released it.
    Over,
}

impl Reclaim {
    /// How far it is.
    pub fn stage(&self) -> Stage {
        match (self.accepted_at, self.hold) {
            (None, _) => Stage::Over,
            (Some(_), true) => Stage::Held,
            (Some(_), false) => Stage::UnderWay,
        }
    }

    /// Whether this is the request it was made for.
    fn answers(&self, node: &Node, request: &Request) -> bool {
        self.node.as_ref().is_some_and(|it| it.uid == node.uid) && self.requested_at == request.requested_at
    }

    /// Whether it was the last of many in a short time.
    pub fn is_rapid(&self) -> bool {
        self.recent.len() >= RAPID
    }
}

/// What a request on a Node is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// It is to be acted on.
    Counts,
    /// It was acted on, or it is of a time before this Machine: it is taken off and not acted on.
    Stale,
    /// The ScheduledMachine names no programs: whoever wrote it, it was not our agent.
    Unwanted,
}

/// What a request on the Node of a Machine is worth. A Node that comes back may bear the request of another day, so it
/// counts only while the agent is armed for this very Machine: no clock is compared.
pub fn worth(
    request: &Request,
    node: &Node,
    machine: &Machine,
    calls: &Calls,
    last: Option<&Reclaim>,
) -> Worth {
    if last.is_some_and(|last| last.answers(node, request)) {
        return Worth::Stale;
    }
    if calls.commands.is_empty() {
        return Worth::Unwanted;
    }
    if node.armed_for.as_deref() == Some(machine.object.uid.as_str()) { Worth::Counts } else { Worth::Stale }
}

/// A reclaim that begins now.
pub fn accept(now: Timestamp, request: &Request, node: Option<&Node>, last: Option<&Reclaim>) -> Reclaim {
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut recent: Vec<Timestamp> = last.map(|last| last.recent.clone()).unwrap_or_default();
    recent.retain(|at| second.duration_since(*at) < RAPID_WITHIN && *at <= second);
    recent.push(second);
    let excess = recent.len().saturating_sub(RAPID);
    recent.drain(..excess);
    let node = node.map(|node| NodeId { name: node.name.clone(), uid: node.uid.clone() });
    let short = |uid: &str| uid.chars().take(8).collect::<String>();
    let tail = node.as_ref().map_or("by-hand".to_owned(), |node| short(&node.uid));
    Reclaim {
        // Unique, short enough to be typed, and it tells when.
        id: format!("{}-{tail}", second.strftime("%Y%m%dT%H%M%SZ")),
        node,
        requested_at: request.requested_at.clone(),
        reason: request.reason.clone(),
        accepted_at: Some(second),
        drain_deadline: None,
        machine_deleted: false,
        disabled: false,
        refused: None,
        hold: false,
        recent,
    }
}

/// Whether a person has released the hold. A tool that puts `true` back every minute has not.
pub fn is_released(reclaim: &Reclaim, calls: &Calls, enabled: bool) -> bool {
    let by_name = calls.resume.as_deref() == Some(reclaim.id.as_str());
    let by_hand = enabled && reclaim.disabled && calls.enabled_by_person;
    reclaim.stage() == Stage::Held && (by_name || by_hand)
}

/// The same reclaim, over.
#[must_use]
pub fn over(reclaim: &Reclaim) -> Reclaim {
    Reclaim { accepted_at: None, drain_deadline: None, hold: false, ..reclaim.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_safe_to_show_and_known_again_by_what_is_kept_of_it() {
        let read = |reason: &str, at: &str| Request::read(Some("true"), Some(reason), Some(at)).unwrap();
        let request = read("by-hand:\n\u{202e}x\u{1b}[2J", "2026-11-16T03:00:00Z\r\u{200b}");
        assert_eq!(request.reason, r"by-hand:\n\u{202e}x\u{1b}[2J");
        assert_eq!(request.requested_at, r"2026-11-16T03:00:00Z\r\u{200b}");
        assert_eq!(Request::time(&request.requested_at), request.requested_at);
        // The longest program that may be named, and a reason of as many characters of any script.
        for reason in [format!("process-match: {}", "x".repeat(256)), "\u{1f3ae}".repeat(256)] {
            assert_eq!(read(&reason, "").reason, reason);
        }
        assert!(read(&"x".repeat(5000), &"9".repeat(5000)).reason.ends_with('…'));
    }
}
