//! Which taints of a Node are ours, and what must change.
//!
//! The identity of a taint is (key, effect). A taint is ours if the Node's own record says so and its value is
//! still the one we gave it; everything else belongs to somebody else and is never touched. A conflict on one taint
//! does not stop the others.

use crate::intent::{Effect, Taint};
use crate::observed::{NodeTaint, Record};
use std::fmt;

/// What must change on a Node, and what cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintPlan {
    /// The change, if one is needed.
    pub change: Option<TaintChange>,
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
            NotOurs::Changed { ours, now } => write!(
                f,
                "taint {key}:{effect} was given the value \"{now}\" in the place of \"{ours}\" by somebody else: set it \
                 back, or remove it from the Node"
            ),
        }
    }
}

/// Compares what is declared with what stands on the Node.
pub fn plan(declared: &[Taint<Effect>], taints: &[NodeTaint], record: &Record) -> TaintPlan {
    let (recorded, record_before): (&[_], _) = match record {
        Record::None => (&[], None),
        Record::Read(taints, text) => (taints, Some(text.clone())),
        // What nobody can read gives no rights.
        Record::Unreadable(text) => (&[], Some(text.clone())),
    };
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
            (Some(_), None) => conflicts.push(Conflict::of(wanted, NotOurs::Foreign)),
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
    let unchanged = after == taints
        && match record {
            Record::Read(recorded, _) => *recorded == next,
            Record::None | Record::Unreadable(_) => next.is_empty(),
        };
    let change = (!unchanged).then(|| TaintChange { before: taints.to_vec(), after, record_before });
    TaintPlan { change, record: next, conflicts }
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
        expect.assert_eq(&show(&plan(&list(declared), &on_node, &record)));
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
        let plan = plan(&list("a:NoSchedule"), &on_node, &Record::Unreadable("[{".into()));
        expect![[r#"
            no change
            record: 
            conflict: taint a:NoSchedule stands on the Node and was not put there by 5-Spot: remove it from the Node, or from spec.nodeTaints"#]].assert_eq(&show(&plan));
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
        ) {
            let before: Vec<NodeTaint> = on_node.iter().map(node_taint).collect();
            let record = Record::Read(recorded.clone(), String::new());
            let first = plan(&declared, &before, &record);
            let after = first.change.as_ref().map_or(before.clone(), |change| change.after.clone());
            for taint in &on_node {
                let owned = recorded.iter().any(|ours| same(ours, taint) && ours.value == taint.value);
                prop_assert!(owned || after.contains(&node_taint(taint)), "{taint:?} was touched");
            }
            let again = plan(&declared, &after, &Record::Read(first.record.clone(), String::new()));
            prop_assert_eq!(again.change, None);
            prop_assert_eq!(again.conflicts, first.conflicts);
            prop_assert_eq!(again.record, first.record);
        }
    }
}
