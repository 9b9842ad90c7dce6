//! Which taints of a Node are ours, and what must change.
//!
//! The identity of a taint is (key, effect). A taint is ours if the Node's own record says so, the ScheduledMachine says
//! so too, and its value is still the one we gave it; everything else belongs to somebody else and is never touched. A
//! conflict on one taint does not stop the others.
//!
//! The record alone proves nothing: the kubelet of a Node may write its annotations, and must not get us to remove a taint
//! that it may not remove itself. What a kubelet cannot write is status: [`Claims`] are written there before a taint is
//! applied, and are given up only when the server has confirmed what stands on the Node.

use crate::intent::{Effect, Taint};
use crate::name;
use crate::observed::{NodeTaint, Record};
use std::fmt;

/// What must change on a Node, and what cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintPlan {
    /// The change, if one is needed.
    pub change: Option<TaintChange>,
    /// What status must claim before the change is made, if it does not yet.
    pub claims: Option<Claims>,
    /// The record after the change.
    pub record: Vec<Taint<Effect>>,
    /// Taints that are not as declared, since they are not ours.
    pub conflicts: Vec<Conflict>,
}

/// One change of a Node: taints and record together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintChange {
    /// Every taint as it was read: the change applies only while the Node still has exactly these.
    pub before: Vec<NodeTaint>,
    /// Every taint afterwards.
    pub after: Vec<NodeTaint>,
    /// The record as it was read, if there was one.
    pub record_before: Option<String>,
}

/// A taint that is not as declared and that we must not touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Key.
    pub key: String,
    /// Effect.
    pub effect: Effect,
    /// Why it is not ours.
    pub why: NotOurs,
}

/// Why a taint must not be touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOurs {
    /// Somebody else put it there.
    Foreign,
    /// The Node's record says that it is ours, and the ScheduledMachine does not.
    Unproven,
    /// It was ours, and somebody changed its value.
    Changed {
        /// The value we gave it.
        ours: String,
        /// The value it has.
        now: String,
    },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, effect, why } = self;
        let effect = effect.word();
        match why {
            NotOurs::Foreign => write!(
                f,
                "taint {key}:{effect} stands on the Node and was not put there by 5-Spot: remove it from the Node, or \
                 from spec.nodeTaints"
            ),
            NotOurs::Unproven => write!(
                f,
                "taint {key}:{effect} is in the annotation 5spot.finos.org/applied-taints of the Node, but not in \
                 status.appliedNodeTaints: 5-Spot leaves it alone. Remove it from the Node if nobody needs it"
            ),
            NotOurs::Changed { ours, now } => write!(
                f,
                "taint {key}:{effect} was given the value \"{now}\" in the place of \"{ours}\" by somebody else: set it \
                 back, or remove it from the Node"
            ),
        }
    }
}

/// The most conflicts that are written out: a record can name thousands.
const SHOWN: usize = 5;

/// Conflicts in one text.
pub fn describe(conflicts: &[Conflict]) -> String {
    let shown = conflicts.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match conflicts.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// Most taints that may be about to be applied: more than one declaration has, since an older one may not be settled yet.
const PENDING: usize = 128;

/// What status says about taints that are ours.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims {
    /// `status.appliedNodeTaints`.
    pub applied: Vec<Taint<Effect>>,
    /// `status.pendingNodeTaints`: about to be applied, or applied by a process that did not live to say so.
    pub pending: Vec<Taint<Effect>>,
}

impl Claims {
    /// Whether a taint with this very value may be removed by us.
    pub fn contain(&self, taint: &Taint<Effect>) -> bool {
        !name::is_reserved(&taint.key) && (self.applied.contains(taint) || self.pending.contains(taint))
    }

    /// The same with taints that are to be applied.
    fn and(&self, wanted: &[Taint<Effect>]) -> Self {
        let is_new = |taint: &&Taint<Effect>| !self.applied.contains(taint) && !self.pending.contains(taint);
        let mut pending: Vec<_> = self.pending.iter().chain(wanted.iter().filter(is_new)).cloned().collect();
        pending.drain(..pending.len().saturating_sub(PENDING));
        Self { applied: self.applied.clone(), pending }
    }
}

/// Compares what is declared with what stands on the Node.
pub fn plan(declared: &[Taint<Effect>], taints: &[NodeTaint], record: &Record, claims: &Claims) -> TaintPlan {
    let entries = record.entries();
    let recorded: &[_] = &entries.iter().filter(|it| claims.contain(it)).cloned().collect::<Vec<_>>();
    let record_before = match record {
        Record::None => None,
        Record::Read(_, text) | Record::Unreadable(text) => Some(text.clone()),
    };
    let has = |all: &[Taint<Effect>], taint: &Taint<Effect>| all.iter().any(|it| same(it, taint));
    let is_unproven = |taint: &Taint<Effect>| has(entries, taint) && !has(recorded, taint);
    let mut after = taints.to_vec();
    let mut next = Vec::new();
    let mut conflicts = Vec::new();
    for wanted in declared {
        let found = after.iter_mut().find(|taint| is(taint, wanted));
        let ours = recorded.iter().find(|taint| same(taint, wanted));
        match (found, ours) {
            (None, _) => {
                after.push(node_taint(wanted));
                next.push(wanted.clone());
            }
            (Some(_), None) => {
                let why = if is_unproven(wanted) { NotOurs::Unproven } else { NotOurs::Foreign };
                conflicts.push(Conflict::of(wanted, why));
            }
            (Some(found), Some(ours)) => {
                let now = found.value.clone().unwrap_or_default();
                if now == ours.value || now == wanted.value {
                    if now != wanted.value {
                        found.value = (!wanted.value.is_empty()).then(|| wanted.value.clone());
                    }
                    next.push(wanted.clone());
                } else {
                    conflicts.push(Conflict::of(wanted, NotOurs::Changed { ours: ours.value.clone(), now }));
                    next.push(ours.clone());
                }
            }
        }
    }
    for ours in recorded.iter().filter(|ours| !declared.iter().any(|wanted| same(wanted, ours))) {
        let Some(place) = after.iter().position(|taint| is(taint, ours)) else { continue };
        let now = after[place].value.clone().unwrap_or_default();
        if now == ours.value {
            after.remove(place);
        } else {
            conflicts.push(Conflict::of(ours, NotOurs::Changed { ours: ours.value.clone(), now }));
            next.push(ours.clone());
        }
    }
    for unproven in entries.iter().filter(|it| is_unproven(it)) {
        let is_on_node = taints.iter().any(|taint| is(taint, unproven));
        let is_told = conflicts.iter().any(|it| it.key == unproven.key && it.effect == unproven.effect);
        if is_on_node && !is_told {
            conflicts.push(Conflict::of(unproven, NotOurs::Unproven));
        }
    }
    let new_claims = claims.and(&next);
    // What others wrote into the record is no reason to write. A claim that came to nothing is given up when the server has
    // confirmed that the Node is as it was seen, by a change that changes nothing: a watch may be behind our own write.
    let is_settled = claims.pending.iter().all(|taint| next.contains(taint));
    let unchanged = after == taints && recorded == next && is_settled;
    let change = (!unchanged).then(|| TaintChange { before: taints.to_vec(), after, record_before });
    let claims = Some(new_claims).filter(|new| new != claims && change.is_some());
    TaintPlan { change, claims, record: next, conflicts }
}

impl Conflict {
    fn of(taint: &Taint<Effect>, why: NotOurs) -> Self {
        Self { key: taint.key.clone(), effect: taint.effect, why }
    }
}

fn same(a: &Taint<Effect>, b: &Taint<Effect>) -> bool {
    a.key == b.key && a.effect == b.effect
}

fn is(on_node: &NodeTaint, taint: &Taint<Effect>) -> bool {
    on_node.key == taint.key && on_node.effect == taint.effect.word()
}

fn node_taint(taint: &Taint<Effect>) -> NodeTaint {
    NodeTaint {
        key: taint.key.clone(),
        value: (!taint.value.is_empty()).then(|| taint.value.clone()),
        effect: taint.effect.word().to_owned(),
        time_added: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn taint(text: &str) -> Taint<Effect> {
        let (rest, effect) = text.split_once(':').unwrap();
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        Taint { key: key.into(), value: value.into(), effect: Effect::parse(effect).unwrap() }
    }

    fn list(text: &str) -> Vec<Taint<Effect>> {
        text.split_whitespace().map(taint).collect()
    }

    fn write(key: &str, value: &str, effect: &str) -> String {
        if value.is_empty() { format!("{key}:{effect}") } else { format!("{key}={value}:{effect}") }
    }

    fn show(plan: &TaintPlan) -> String {
        let after = plan.change.as_ref().map_or("no change".to_owned(), |change| {
            let after = change.after.iter();
            let after = after.map(|t| write(&t.key, t.value.as_deref().unwrap_or_default(), &t.effect));
            format!("change to: {}", after.collect::<Vec<_>>().join(" "))
        });
        let record = plan.record.iter().map(|t| write(&t.key, &t.value, t.effect.word()));
        let record = format!("record: {}", record.collect::<Vec<_>>().join(" "));
        let conflicts = plan.conflicts.iter().map(|c| format!("\nconflict: {c}"));
        format!("{after}\n{record}{}", conflicts.collect::<String>())
    }

    fn check(declared: &str, on_node: &str, record: Option<&str>, expect: &Expect) {
        let on_node: Vec<NodeTaint> = list(on_node).iter().map(node_taint).collect();
        let record = record.map_or(Record::None, |text| Record::Read(list(text), text.to_owned()));
        // What is in the record was applied by us, unless a test says otherwise.
        let claims = Claims { applied: record.entries().to_vec(), pending: Vec::new() };
        expect.assert_eq(&show(&plan(&list(declared), &on_node, &record, &claims)));
    }

    #[test]
    fn declared_taints_are_added_and_recorded() {
        check(
            "a=1:NoSchedule",
            "x=9:NoExecute",
            None,
            &expect![[r#"
            change to: x=9:NoExecute a=1:NoSchedule
            record: a=1:NoSchedule"#]],
        );
    }

    #[test]
    fn a_taint_that_somebody_else_put_there_is_a_conflict_also_with_an_equal_value() {
        check(
            "a=1:NoSchedule b:NoExecute",
            "a=1:NoSchedule",
            None,
            &expect![[r#"
            change to: a=1:NoSchedule b:NoExecute
            record: b:NoExecute
            conflict: taint a:NoSchedule stands on the Node and was not put there by 5-Spot: remove it from the Node, or from spec.nodeTaints"#]],
        );
    }

    #[test]
    fn drift_is_repaired_and_a_new_value_replaces_ours() {
        check(
            "a=1:NoSchedule",
            "",
            Some("a=1:NoSchedule"),
            &expect![[r#"
            change to: a=1:NoSchedule
            record: a=1:NoSchedule"#]],
        );
        check(
            "a=2:NoSchedule",
            "a=1:NoSchedule",
            Some("a=1:NoSchedule"),
            &expect![[r#"
            change to: a=2:NoSchedule
            record: a=2:NoSchedule"#]],
        );
    }

    #[test]
    fn what_is_not_declared_any_more_goes_if_it_is_still_ours() {
        check(
            "",
            "a=1:NoSchedule b:NoSchedule",
            Some("a=1:NoSchedule"),
            &expect![[r#"
            change to: b:NoSchedule
            record: "#]],
        );
        check(
            "",
            "a=7:NoSchedule",
            Some("a=1:NoSchedule"),
            &expect![[r#"
            no change
            record: a=1:NoSchedule
            conflict: taint a:NoSchedule was given the value "7" in the place of "1" by somebody else: set it back, or remove it from the Node"#]],
        );
    }

    #[test]
    fn a_record_that_nobody_can_read_gives_no_rights() {
        let on_node: Vec<NodeTaint> = list("a:NoSchedule").iter().map(node_taint).collect();
        let plan =
            plan(&list("a:NoSchedule"), &on_node, &Record::Unreadable("[{".into()), &Claims::default());
        expect![[r#"
            no change
            record: 
            conflict: taint a:NoSchedule stands on the Node and was not put there by 5-Spot: remove it from the Node, or from spec.nodeTaints"#]].assert_eq(&show(&plan));
    }

    /// What a record is worth of which the ScheduledMachine remembers only `applied`.
    fn check_forged(declared: &str, on_node: &str, record: &str, applied: &str, expect: &Expect) {
        let on_node: Vec<NodeTaint> = list(on_node).iter().map(node_taint).collect();
        let record = Record::Read(list(record), record.to_owned());
        let claims = Claims { applied: list(applied), pending: Vec::new() };
        expect.assert_eq(&show(&plan(&list(declared), &on_node, &record, &claims)));
    }

    #[test]
    fn a_record_without_the_word_of_the_scheduled_machine_gives_no_rights() {
        check_forged(
            "",
            "a=1:NoSchedule b:NoSchedule",
            "a=1:NoSchedule b:NoSchedule",
            "b:NoSchedule",
            &expect![[r#"
                change to: a=1:NoSchedule
                record: 
                conflict: taint a:NoSchedule is in the annotation 5spot.finos.org/applied-taints of the Node, but not in status.appliedNodeTaints: 5-Spot leaves it alone. Remove it from the Node if nobody needs it"#]],
        );
        // Another value than the one that was applied: an administrator changed both taint and record, or a kubelet did.
        check_forged(
            "a=2:NoSchedule",
            "a=9:NoSchedule",
            "a=9:NoSchedule",
            "a=1:NoSchedule",
            &expect![[r#"
                no change
                record: 
                conflict: taint a:NoSchedule is in the annotation 5spot.finos.org/applied-taints of the Node, but not in status.appliedNodeTaints: 5-Spot leaves it alone. Remove it from the Node if nobody needs it"#]],
        );
        // What is not on the Node at all is no conflict.
        check_forged(
            "",
            "",
            "a:NoSchedule",
            "",
            &expect![[r#"
            no change
            record: "#]],
        );
    }

    #[test]
    fn a_reserved_key_is_never_ours() {
        let key = "node.kubernetes.io/unschedulable:NoSchedule";
        check_forged(
            "",
            key,
            key,
            key,
            &expect![[r#"
            no change
            record: 
            conflict: taint node.kubernetes.io/unschedulable:NoSchedule is in the annotation 5spot.finos.org/applied-taints of the Node, but not in status.appliedNodeTaints: 5-Spot leaves it alone. Remove it from the Node if nobody needs it"#]],
        );
    }

    #[test]
    fn a_taint_is_claimed_before_it_is_applied_and_known_after_a_crash() {
        let claims = Claims { applied: list("a=1:NoSchedule"), pending: Vec::new() };
        let on_node: Vec<NodeTaint> = list("a=1:NoSchedule").iter().map(node_taint).collect();
        let record = Record::Read(list("a=1:NoSchedule"), String::new());
        let first = plan(&list("a=2:NoSchedule"), &on_node, &record, &claims);
        let claimed = first.claims.unwrap();
        assert_eq!(claimed.pending, list("a=2:NoSchedule"));
        let change = plan(&list("a=2:NoSchedule"), &on_node, &record, &claimed);
        assert_eq!(change.claims, None, "claimed already");
        // The change was made, nobody lived to say so, and it is not declared any more.
        let record = Record::Read(list("a=2:NoSchedule"), String::new());
        let after = plan(&[], &change.change.unwrap().after, &record, &claimed);
        assert_eq!((after.change.unwrap().after, after.conflicts), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_claim_that_came_to_nothing_is_given_up_when_the_server_confirms_it() {
        let claims = Claims { applied: Vec::new(), pending: list("a:NoSchedule") };
        let change = plan(&[], &[], &Record::None, &claims).change.unwrap();
        assert_eq!((change.before, change.after, change.record_before), (Vec::new(), Vec::new(), None));
    }

    #[test]
    fn thousands_of_conflicts_are_counted() {
        let taints: Vec<String> = (0..2000).map(|n| format!("k{n}:NoSchedule")).collect();
        let (taints, record) =
            (list(&taints.join(" ")), Record::Read(list(&taints.join(" ")), String::new()));
        let on_node: Vec<NodeTaint> = taints.iter().map(node_taint).collect();
        let text = describe(&plan(&[], &on_node, &record, &Claims::default()).conflicts);
        assert!(text.ends_with("; and 1995 more") && text.len() < 2000, "{text}");
    }

    fn some_taints() -> impl Strategy<Value = Vec<Taint<Effect>>> {
        let effect = prop_oneof![Just(Effect::NoSchedule), Just(Effect::NoExecute)];
        let taint = (0_u8..3, 0_u8..3, effect).prop_map(|(key, value, effect)| Taint {
            key: format!("k{key}"),
            value: if value == 0 { String::new() } else { value.to_string() },
            effect,
        });
        proptest::collection::vec(taint, 0..5).prop_map(|mut taints| {
            let mut seen = Vec::new();
            taints.retain(|taint: &Taint<Effect>| {
                let identity = (taint.key.clone(), taint.effect);
                let new = !seen.contains(&identity);
                seen.push(identity);
                new
            });
            taints
        })
    }

    proptest! {
        /// Law 6: a (key, effect) that is not ours is never touched, and the plan after its own application is empty.
        #[test]
        fn taints_of_others_are_safe_and_a_plan_is_final(
            declared in some_taints(),
            on_node in some_taints(),
            recorded in some_taints(),
            applied in some_taints(),
            pending in some_taints(),
        ) {
            let claims = Claims { applied, pending };
            let before: Vec<NodeTaint> = on_node.iter().map(node_taint).collect();
            let record = Record::Read(recorded.clone(), String::new());
            let first = plan(&declared, &before, &record, &claims);
            let after = first.change.as_ref().map_or(before.clone(), |change| change.after.clone());
            for taint in &on_node {
                let owned = recorded.contains(taint) && claims.contain(taint);
                prop_assert!(owned || after.contains(&node_taint(taint)), "{taint:?} was touched");
            }
            // As the next pass finds it: with the record rewritten if anything was written, and what is ours in status.
            let next = if first.change.is_some() { first.record.clone() } else { recorded };
            let claims = Claims { applied: first.record.clone(), pending: Vec::new() };
            let again = plan(&declared, &after, &Record::Read(next, String::new()), &claims);
            prop_assert_eq!(again.change, None);
            prop_assert_eq!(again.record, first.record);
            let is_known = |it: &Conflict| first.conflicts.iter().any(|was| (&was.key, was.effect) == (&it.key, it.effect));
            prop_assert!(again.conflicts.iter().all(is_known));
        }
    }
}
