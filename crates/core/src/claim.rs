//! Which of several ScheduledMachines has a host that all of them name.
//!
//! Two of them would reset the host under each other, or fight over its Node. Each compares what it shows of itself
//! with what the others show; the comparison is a total order, so that two that look at each other agree.

use crate::lifecycle::Orders;
use crate::observed::{Node, Observed};
use crate::reclaim::{Reclaim, Stage};
use crate::schedule::Schedule;
use jiff::Timestamp;

/// What a ScheduledMachine shows of itself to the others that lend the same host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    /// Namespace and name.
    pub name: String,
    /// When the object was created, if the server says so.
    pub created_at: Option<Timestamp>,
    /// When its last Machine was made.
    pub lent_since: Option<Timestamp>,
    /// Whether status names a Machine.
    pub has_machine: bool,
    /// Whether status names an infrastructure object.
    pub has_infrastructure: bool,
}

/// Another ScheduledMachine that gives the same address to the same kind of provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Rival {
    /// What it shows of itself.
    pub claim: Claim,
    /// What it is told to do.
    pub orders: Orders,
    /// Its last reclaim.
    pub reclaim: Option<Reclaim>,
    /// When it is to be lent, if that can be read.
    pub schedule: Option<Schedule>,
}

impl Claim {
    /// Whether it has the better right to a Node that both ended up on: its Machine was made first.
    fn had_node_before(&self, mine: &Self) -> bool {
        let order = |claim: &Self| (claim.lent_since.is_none(), claim.lent_since, claim.name.clone());
        self.has_machine && order(self) < order(mine)
    }

    fn is_older_than(&self, mine: &Self) -> bool {
        (self.created_at, &self.name) < (mine.created_at, &mine.name)
    }
}

impl Rival {
    /// Whether it has the host, or gets it first.
    fn comes_before(&self, mine: &Claim, now: Timestamp) -> bool {
        let has_host = self.claim.has_machine || self.claim.has_infrastructure;
        has_host || (self.claim.is_older_than(mine) && self.wants_host(now))
    }

    fn wants_host(&self, now: Timestamp) -> bool {
        let Orders { deletion, kill_switch, enabled, .. } = &self.orders;
        let is_reclaimed = self.reclaim.as_ref().is_some_and(|reclaim| reclaim.stage() != Stage::Over);
        let may_lend = deletion.is_none() && *enabled && !kill_switch && !is_reclaimed;
        may_lend && self.schedule.as_ref().is_some_and(|schedule| schedule.is_active(now))
    }
}

/// The ScheduledMachine that has the host of this one, or gets it first.
pub fn host_rival(observed: &Observed, now: Timestamp) -> Option<&Claim> {
    let rival = observed.rivals.iter().find(|rival| rival.comes_before(&observed.claim, now));
    rival.map(|rival| &rival.claim)
}

/// The ScheduledMachine that has objects for the host of this one as well: two that begin in the same moment do not see each
/// other. The older one gets the host; one that waits too long for it has lost it.
pub fn racing_rival(observed: &Observed, is_slow: bool) -> Option<&Claim> {
    race(&observed.claim, &observed.rivals, is_slow)
}

fn race<'a>(mine: &Claim, rivals: &'a [Rival], is_slow: bool) -> Option<&'a Claim> {
    let mut claims = rivals.iter().map(|rival| &rival.claim);
    claims.find(|claim| claim.has_infrastructure && (is_slow || claim.is_older_than(mine)))
}

/// The ScheduledMachine that has a better right to this Node.
pub fn node_rival<'a>(observed: &Observed, node: &'a Node) -> Option<&'a Claim> {
    node.rivals.iter().find(|claim| claim.had_node_before(&observed.claim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{Budget, Deletion, Patience};
    use crate::reclaim::Calls;
    use crate::schedule::{Cron, Rule};
    use crate::zone;
    use std::time::Duration;

    const NOON: &str = "2026-03-02T12:00:00Z";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn made(name: &str, created_at: &str) -> Claim {
        Claim { name: name.into(), created_at: Some(at(created_at)), ..Claim::default() }
    }

    /// One that wants the host from 9 to 17.
    fn rival(claim: Claim) -> Rival {
        let calls = Calls {
            request: None,
            resume: None,
            commands: Vec::new(),
            disabled_for: None,
            resume_command: String::new(),
            enabled_by_person: false,
        };
        let budget = Budget { graceful: Duration::ZERO, drain: Duration::ZERO };
        let orders = Orders {
            deletion: None,
            kill_switch: false,
            enabled: true,
            paused: false,
            reclaim: calls,
            budget,
        };
        let rule = Rule::Cron(Cron::parse("* 9-16 * * *").unwrap());
        let schedule = Some(Schedule::new(rule, zone::lookup("UTC").unwrap()));
        Rival { claim, orders, reclaim: None, schedule }
    }

    fn reclaim(accepted_at: Option<Timestamp>) -> Reclaim {
        Reclaim {
            id: "r".into(),
            node: None,
            requested_at: String::new(),
            reason: String::new(),
            accepted_at,
            drain_deadline: None,
            machine_deleted: false,
            disabled: false,
            refused: None,
            hold: false,
            recent: Vec::new(),
        }
    }

    #[test]
    fn an_older_one_that_wants_the_host_gets_it() {
        let mine = made("b/mine", "2026-02-01T00:00:00Z");
        let older = || rival(made("z/older", "2026-01-01T00:00:00Z"));
        assert!(older().comes_before(&mine, at(NOON)));
        assert!(!older().comes_before(&mine, at("2026-03-02T20:00:00Z")), "its window is closed");
        let younger = rival(made("a/younger", "2026-02-02T00:00:00Z"));
        assert!(!younger.comes_before(&mine, at(NOON)));
        let same_second =
            |name: &str| rival(made(name, "2026-02-01T00:00:00Z")).comes_before(&mine, at(NOON));
        assert!(same_second("a/twin") && !same_second("c/twin"), "the name decides");

        let orders: [fn(&mut Rival); 5] = [
            |it| it.orders.deletion = Some(Deletion::Whole { patience: Patience::Endless }),
            |it| it.orders.kill_switch = true,
            |it| it.orders.enabled = false,
            |it| it.reclaim = Some(reclaim(Some(Timestamp::MIN))),
            |it| it.schedule = None,
        ];
        for (number, order) in orders.into_iter().enumerate() {
            let mut other = older();
            order(&mut other);
            assert!(!other.comes_before(&mine, at(NOON)), "order {number} keeps it out");
        }
        let mut released = older();
        released.reclaim = Some(reclaim(None));
        assert!(released.comes_before(&mine, at(NOON)));
    }

    #[test]
    fn one_that_has_the_host_keeps_it_whatever_it_is_told() {
        let mine = made("a/mine", "2026-01-01T00:00:00Z");
        for (has_machine, has_infrastructure) in [(true, true), (true, false), (false, true)] {
            let claim = made("b/younger", "2026-02-01T00:00:00Z");
            let mut other = rival(Claim { has_machine, has_infrastructure, ..claim });
            other.orders.enabled = false;
            assert!(other.comes_before(&mine, at(NOON)), "{has_machine} {has_infrastructure}");
        }
    }

    #[test]
    fn of_two_that_began_at_once_the_younger_gives_way_and_whoever_waits_too_long() {
        let with_objects = |claim: Claim| Claim { has_infrastructure: true, ..claim };
        let elder = with_objects(made("a/elder", "2026-01-01T00:00:00Z"));
        let younger = with_objects(made("b/younger", "2026-02-01T00:00:00Z"));
        let gives_way = |mine: &Claim, other: &Claim, is_slow: bool| {
            let rivals = [rival(other.clone())];
            race(mine, &rivals, is_slow).is_some()
        };
        assert!(gives_way(&younger, &elder, false) && !gives_way(&elder, &younger, false));
        assert!(gives_way(&elder, &younger, true), "the younger one has the host");
        let without = Claim { has_infrastructure: false, ..elder.clone() };
        assert!(!gives_way(&younger, &without, true), "one that has made nothing is in nobody's way");
    }

    #[test]
    fn of_two_on_one_node_exactly_one_gives_way() {
        let times = [None, Some(at("2026-01-01T00:00:00Z")), Some(at(NOON))];
        let claims: Vec<Claim> = ["a/one", "b/two"]
            .into_iter()
            .flat_map(|name| times.map(|lent_since| (name, lent_since)))
            .map(|(name, lent_since)| Claim {
                name: name.into(),
                lent_since,
                has_machine: true,
                ..Claim::default()
            })
            .collect();
        for one in &claims {
            for other in claims.iter().filter(|other| *other != one) {
                assert_ne!(one.had_node_before(other), other.had_node_before(one), "{one:?} {other:?}");
            }
            let without = Claim { has_machine: false, ..one.clone() };
            assert!(claims.iter().all(|other| !without.had_node_before(other)), "{without:?}");
        }
        let since =
            |lent_since| Claim { name: "z".into(), lent_since, has_machine: true, ..Claim::default() };
        assert!(since(times[1]).had_node_before(&claims[2]) && !since(times[2]).had_node_before(&claims[1]));
    }
}
