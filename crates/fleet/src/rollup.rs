//! All demands of a cluster, summed up for its shard.
//!
//! A rollup is the whole truth: what is missing in it is not wanted, and machines that nobody wants are taken away.

use crate::quantity::{Amount, NotAnAmount};
use crate::wire::node_selector_requirement::Operator;
use crate::wire::topology_spread::WhenUnsatisfiable;
use crate::wire::{
    CapacityNeed, ClusterCapacityNeeds, NodeSelectorRequirement, PenaltyBucket, TopologySpread as WireSpread,
};
use fivespot_api::fleet::{CapacityRequestSpec, CoLocation, Requirement};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;

/// A demand that cannot be told to the shard, since it would refuse all others with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// An amount is none.
    #[error("spec.{field}: {source}")]
    Amount {
        /// Where.
        field: String,
        /// Why.
        source: NotAnAmount,
    },
    /// Less than nothing is wanted, which would take away from what others want.
    #[error("spec.{field}: {quantity} is less than nothing: write 0 or more")]
    Negative {
        /// Where.
        field: String,
        /// How much.
        quantity: String,
    },
    /// An operator is none.
    #[error("spec.requirements[{index}].operator: {word:?}: write In, NotIn, Exists or DoesNotExist")]
    Operator {
        /// Where.
        index: usize,
        /// What it is.
        word: String,
    },
}

/// What makes two demands one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Profile {
    requirements: Vec<(String, i32, Vec<String>)>,
    priority: i32,
    spread: Vec<(String, i32)>,
    penalties: [i32; 2],
    group: String,
}

/// A demand as the shard reads it.
struct Demand {
    profile: Profile,
    resources: BTreeMap<String, Amount>,
}

/// Sums up. Demands that cannot be used are returned with their reason, in the order they came.
pub fn sum_up<'a>(
    cluster: &str,
    now: Timestamp,
    demands: impl IntoIterator<Item = (&'a str, &'a CapacityRequestSpec)>,
) -> (ClusterCapacityNeeds, Vec<(String, Unusable)>) {
    let mut needs: BTreeMap<Profile, [BTreeMap<String, Amount>; 2]> = BTreeMap::new();
    let mut unusable = Vec::new();
    for (name, spec) in demands {
        let Demand { profile, resources } = match read(spec) {
            Ok(demand) => demand,
            Err(why) => {
                unusable.push((name.to_owned(), why));
                continue;
            }
        };
        let [sum, greatest] = needs.entry(profile).or_default();
        for (resource, amount) in resources {
            let total = sum.entry(resource.clone()).or_default();
            *total = *total + amount;
            let most = greatest.entry(resource).or_default();
            *most = amount.max(*most);
        }
    }
    let needs = needs.into_iter().map(|(profile, sums)| need(profile, sums)).collect();
    let timestamp_unix_nanos = i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX);
    (ClusterCapacityNeeds { cluster_id: cluster.to_owned(), timestamp_unix_nanos, needs }, unusable)
}

fn need(profile: Profile, [sum, greatest]: [BTreeMap<String, Amount>; 2]) -> CapacityNeed {
    let Profile { requirements, priority, spread, penalties: [interruption, reclamation], group } = profile;
    let print = |amounts: BTreeMap<String, Amount>| {
        amounts.into_iter().map(|(resource, amount)| (resource, amount.to_string())).collect()
    };
    CapacityNeed {
        requirements: requirements
            .into_iter()
            .map(|(key, operator, values)| NodeSelectorRequirement { key, operator, values })
            .collect(),
        aggregate_resources: print(sum),
        priority,
        spread: spread
            .into_iter()
            .map(|(topology_key, max_skew)| WireSpread {
                topology_key,
                max_skew,
                when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule.into(),
            })
            .collect(),
        interruption_penalty_bucket: interruption,
        reclamation_penalty_bucket: reclamation,
        min_unit: print(greatest),
        group,
    }
}

fn read(spec: &CapacityRequestSpec) -> Result<Demand, Unusable> {
    let mut requirements = Vec::new();
    for (index, Requirement { key, operator, values }) in spec.requirements.iter().enumerate() {
        let read = match operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            word => return Err(Unusable::Operator { index, word: word.to_owned() }),
        };
        let mut values = values.clone();
        values.sort();
        requirements.push((key.clone(), i32::from(read), values));
    }
    let mut group = String::new();
    // Together in no respect is not together.
    let together = spec.co_location.as_ref().filter(|it| !it.topology_key.is_empty());
    if let Some(CoLocation { topology_key, label_selector }) = together {
        requirements.push((topology_key.clone(), Operator::Same.into(), Vec::new()));
        group = format!("{topology_key}\0{}", selector_text(label_selector));
    }
    requirements.sort();
    // The shard has no use for a wish that may be ignored.
    let spread = spec.topology_spread.iter().filter(|spread| spread.when_unsatisfiable != "ScheduleAnyway");
    let mut spread: Vec<_> = spread.map(|it| (it.topology_key.clone(), it.max_skew)).collect();
    spread.sort();
    let amount = |field: String, quantity: &Quantity| {
        Amount::read(&quantity.0).map_err(|source| Unusable::Amount { field, source })
    };
    let mut resources = BTreeMap::new();
    for (resource, quantity) in &spec.resources {
        let field = format!("resources[{resource}]");
        let amount = amount(field.clone(), quantity)?;
        if amount.is_negative() {
            return Err(Unusable::Negative { field, quantity: quantity.0.clone() });
        }
        resources.insert(resource.clone(), amount);
    }
    let penalty = |field: &str, quantity: &Option<Quantity>| {
        let quantity = quantity.as_ref().map(|quantity| amount(field.to_owned(), quantity)).transpose()?;
        Ok(i32::from(bucket(quantity)))
    };
    let penalties = [
        penalty("interruptionPenalty", &spec.interruption_penalty)?,
        penalty("reclamationPenalty", &spec.reclamation_penalty)?,
    ];
    Ok(Demand {
        profile: Profile { requirements, priority: spec.priority, spread, penalties, group },
        resources,
    })
}

/// Dollars, rounded up to a bucket: nothing, half a dollar, or a power of two.
fn bucket(dollars: Option<Amount>) -> PenaltyBucket {
    let Some(dollars) = dollars else { return PenaltyBucket::Unspecified };
    if dollars <= Amount::default() {
        return PenaltyBucket::Zero;
    }
    if dollars.is_at_most_half() {
        return PenaltyBucket::HalfDollar;
    }
    let whole = u128::try_from(dollars.ceil()).unwrap_or(1);
    let power = whole.checked_next_power_of_two().map_or(u32::MAX, u128::trailing_zeros);
    let first = i32::from(PenaltyBucket::PenaltyBucket1);
    let bucket = i32::try_from(power).ok().and_then(|power| first.checked_add(power));
    bucket.and_then(|bucket| PenaltyBucket::try_from(bucket).ok()).unwrap_or(PenaltyBucket::Pinned)
}

/// A selector in one spelling, whatever the order it was written in.
fn selector_text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|it| {
        let mut values = it.values.clone().unwrap_or_default();
        values.sort();
        match it.operator.as_str() {
            "Exists" => it.key.clone(),
            "DoesNotExist" => format!("!{}", it.key),
            "NotIn" => format!("{} notin ({})", it.key, values.join(",")),
            _ => format!("{} in ({})", it.key, values.join(",")),
        }
    });
    let mut parts: Vec<String> = labels.chain(expressions).collect();
    parts.sort();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn spec(change: impl FnOnce(&mut Value)) -> CapacityRequestSpec {
        let mut spec = json!({
            "requirements": [{"key": "type", "operator": "In", "values": ["b", "a"]}],
            "resources": {"cpu": "500m", "memory": "1Gi"},
            "priority": 7,
        });
        change(&mut spec);
        serde_json::from_value(spec).unwrap()
    }

    fn sum(specs: &[CapacityRequestSpec]) -> (ClusterCapacityNeeds, Vec<(String, Unusable)>) {
        sum_up("lab", Timestamp::UNIX_EPOCH, specs.iter().map(|spec| ("d", spec)))
    }

    #[test]
    fn equal_demands_become_one_need_with_their_sum_and_their_greatest() {
        let (rollup, unusable) = sum(&[
            spec(|_| {}),
            spec(|it| it["resources"] = json!({"cpu": "1", "memory": "1Gi"})),
            spec(|it| it["requirements"][0]["values"] = json!(["a", "b"])),
            spec(|it| it["priority"] = json!(8)),
        ]);
        assert!(unusable.is_empty());
        assert_eq!(rollup.cluster_id, "lab");
        let [first, second] = rollup.needs.as_slice() else { panic!("{rollup:?}") };
        assert_eq!((first.priority, second.priority), (7, 8));
        assert_eq!(first.aggregate_resources["cpu"], "2");
        assert_eq!(first.aggregate_resources["memory"], (3_u64 << 30).to_string());
        assert_eq!(first.min_unit["cpu"], "1");
        assert_eq!(first.requirements[0].values, ["a", "b"]);
        assert_eq!(first.interruption_penalty_bucket(), PenaltyBucket::Unspecified);
    }

    #[test]
    fn what_wants_to_be_together_is_a_group_and_a_wish_that_may_be_ignored_is() {
        let selector = |values: Value| {
            json!({"topologyKey": "rack", "labelSelector": {
                "matchLabels": {"b": "2", "a": "1"},
                "matchExpressions": [{"key": "c", "operator": "In", "values": values}],
            }})
        };
        let spread = |when: &str| json!([{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": when}]);
        let (rollup, _) = sum(&[
            spec(|it| it["coLocation"] = selector(json!(["y", "x"]))),
            spec(|it| {
                it["coLocation"] = selector(json!(["x", "y"]));
                it["topologySpread"] = spread("ScheduleAnyway");
            }),
            spec(|it| it["topologySpread"] = spread("DoNotSchedule")),
            spec(|it| {
                it["topologySpread"] = spread("DoNotSchedule");
                it["coLocation"] = json!({"topologyKey": "", "labelSelector": {}});
            }),
        ]);
        let groups: Vec<&str> = rollup.needs.iter().map(|need| need.group.as_str()).collect();
        assert_eq!(groups, ["rack\0a=1,b=2,c in (x,y)", ""]);
        assert!(rollup.needs[0].requirements.iter().any(|it| it.operator() == Operator::Same));
        assert_eq!(rollup.needs[1].spread.len(), 1);
    }

    #[test]
    fn one_demand_that_cannot_be_read_costs_that_demand_alone() {
        let (rollup, unusable) = sum(&[
            spec(|it| it["resources"]["cpu"] = json!("many")),
            spec(|_| {}),
            spec(|it| it["requirements"][0]["operator"] = json!("Gt")),
        ]);
        assert_eq!(rollup.needs.len(), 1);
        let words: Vec<String> = unusable.iter().map(|(_, why)| why.to_string()).collect();
        assert_eq!(
            words,
            [
                "spec.resources[cpu]: \"many\" is not a quantity: write a number such as 2, 0.5, 500m or 8Gi",
                "spec.requirements[0].operator: \"Gt\": write In, NotIn, Exists or DoesNotExist",
            ]
        );
    }

    #[test]
    fn penalties_are_rounded_up_to_a_bucket() {
        let bucket_of = |text: &str| bucket(Some(Amount::read(text).unwrap())).as_str_name();
        for (dollars, name) in [
            ("-1", "PENALTY_BUCKET_ZERO"),
            ("0", "PENALTY_BUCKET_ZERO"),
            ("1m", "PENALTY_BUCKET_HALF_DOLLAR"),
            ("500m", "PENALTY_BUCKET_HALF_DOLLAR"),
            ("0.51", "PENALTY_BUCKET_1"),
            ("1", "PENALTY_BUCKET_1"),
            ("1.5", "PENALTY_BUCKET_2"),
            ("3", "PENALTY_BUCKET_4"),
            ("8388608", "PENALTY_BUCKET_8388608"),
            ("8388609", "PENALTY_BUCKET_PINNED"),
            ("1E", "PENALTY_BUCKET_PINNED"),
        ] {
            assert_eq!(bucket_of(dollars), name, "{dollars}");
        }
    }

    proptest! {
        /// The order of demands does not matter, and nothing that is wanted gets lost.
        #[test]
        fn a_rollup_is_a_sum(mut cpus in proptest::collection::vec((0_u32..5000, 0_i32..3), 0..30)) {
            let make = |cpus: &[(u32, i32)]| {
                let specs: Vec<_> = cpus.iter().map(|(cpu, priority)| spec(|it| {
                    it["resources"] = json!({"cpu": format!("{cpu}m")});
                    it["priority"] = json!(priority);
                })).collect();
                sum(&specs).0
            };
            let rollup = make(&cpus);
            let total: Amount = rollup.needs.iter()
                .map(|need| Amount::read(&need.aggregate_resources["cpu"]).unwrap()).sum();
            let wanted: u32 = cpus.iter().map(|(cpu, _)| cpu).sum();
            prop_assert_eq!(total, Amount::read(&format!("{wanted}m")).unwrap());
            cpus.reverse();
            prop_assert_eq!(make(&cpus), rollup);
        }
    }
}
