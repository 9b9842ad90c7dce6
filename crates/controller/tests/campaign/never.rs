//! What no run may have done, whatever happened to it.

use crate::disturbance::Entry;
use crate::scenario::Scenario;
use axum::http::Method;

/// A rule that the calls of a run have broken.
pub(crate) fn check(scenario: Scenario, journal: &[Entry]) -> Option<String> {
    let broken = [
        second_machine(journal),
        removal(scenario, journal),
        force(scenario, journal),
        disabled_twice(scenario, journal),
        cleared_early(journal),
        exit_not_remembered(scenario, journal),
    ];
    broken.into_iter().flatten().next().map(str::to_owned)
}

fn on_machines(entry: &Entry) -> bool {
    entry.path.contains("/cluster.x-k8s.io/") && entry.path.contains("/machines")
}

/// Two Machines for one ScheduledMachine.
fn second_machine(journal: &[Entry]) -> Option<&'static str> {
    let mut exists = false;
    for entry in journal.iter().filter(|entry| entry.is_done() && on_machines(entry)) {
        match entry.method {
            Method::POST if exists => return Some("a second Machine was created while the first existed"),
            Method::POST => exists = true,
            Method::DELETE => exists = false,
            _ => {}
        }
    }
    None
}

/// A node removed without window end, order or request.
fn removal(scenario: Scenario, journal: &[Entry]) -> Option<&'static str> {
    let removes = |entry: &Entry| {
        let evicts = entry.path.ends_with("/eviction");
        let ends = entry.method == Method::DELETE && (on_machines(entry) || entry.path.contains("/pods/"));
        evicts || ends || (entry.path.contains("/nodes/") && entry.body.contains("\"value\":true"))
    };
    (scenario.ends_lent() && journal.iter().any(removes))
        .then_some("a machine that stays was drained or removed")
}

/// Pods ended without grace on a graceful exit.
fn force(scenario: Scenario, journal: &[Entry]) -> Option<&'static str> {
    let forces = |entry: &Entry| entry.method == Method::DELETE && entry.path.contains("/pods/");
    (!scenario.is_emergency() && journal.iter().any(forces)).then_some("a pod was deleted on a graceful exit")
}

/// `spec.schedule.enabled` is written once for a reclaim, and never otherwise.
fn disabled_twice(scenario: Scenario, journal: &[Entry]) -> Option<&'static str> {
    let disables = |entry: &&Entry| entry.is_done() && entry.body.contains("\"enabled\":false");
    let most = usize::from(scenario == Scenario::Reclaim);
    (journal.iter().filter(disables).count() > most)
        .then_some("the schedule was disabled more often than it may be")
}

/// No request is taken off a Node before the schedule is disabled.
fn cleared_early(journal: &[Entry]) -> Option<&'static str> {
    let clears = |entry: &Entry| {
        entry.path.contains("/nodes/")
            && entry.body.contains("\"remove\"")
            && entry.body.contains("reclaim-requested")
    };
    let is_disabling = |entry: &Entry| entry.is_done() && entry.body.contains("\"enabled\":false");
    let cleared = journal.iter().position(|entry| entry.is_done() && clears(entry))?;
    let disabled = journal.iter().position(is_disabling);
    disabled
        .is_none_or(|disabled| disabled > cleared)
        .then_some("a request was taken off before the schedule was disabled")
}

/// Nothing leaves before status says that it will.
fn exit_not_remembered(scenario: Scenario, journal: &[Entry]) -> Option<&'static str> {
    if scenario.ends_lent() {
        return None;
    }
    let remembers = |entry: &Entry| {
        entry.is_done() && entry.path.ends_with("/status") && entry.body.contains("\"shutdown\":{")
    };
    let leaves = |entry: &Entry| entry.path.ends_with("/eviction") || entry.method == Method::DELETE;
    let left = journal.iter().position(leaves)?;
    let remembered = journal.iter().position(remembers);
    remembered
        .is_none_or(|remembered| remembered > left)
        .then_some("an exit began before status remembered it")
}
