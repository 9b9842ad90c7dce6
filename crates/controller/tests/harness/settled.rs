//! Whether machines are where their schedules have them, and chance that can be repeated.

use crate::harness::World;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Numbers that look random and come again with the same seed.
pub(crate) struct Dice(u64);

impl Dice {
    /// `FIVESPOT_SEED`, or one that was never used.
    pub(crate) fn new() -> Self {
        let given = std::env::var("FIVESPOT_SEED").ok().map(|seed| seed.parse().unwrap());
        let seed = given.unwrap_or_else(|| Timestamp::now().as_microsecond().unsigned_abs());
        println!("FIVESPOT_SEED={seed}");
        Self::seeded(seed)
    }

    /// One whose numbers are known.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// A moment of a span.
    pub(crate) fn within(&mut self, span: Duration) -> Duration {
        Duration::from_millis(self.below(u64::try_from(span.as_millis()).unwrap()))
    }

    /// A number from 0, by the generator called SplitMix64.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Waits until every machine is where it should be, with all it needs and nothing else. `wanted` says which are lent at
/// a time of their own clock, `others` in which phase each of the rest is.
pub(crate) async fn settle(
    world: &World,
    offset: SignedDuration,
    wanted: impl Fn(Timestamp) -> BTreeSet<String>,
    others: impl Fn(&str) -> &'static str,
) -> Duration {
    let began = Instant::now();
    loop {
        let now = Timestamp::now() + offset;
        let wrong = wrong(world, &wanted(now), &others).await;
        // All of it was read within one minute.
        if wrong.is_empty() && (Timestamp::now() + offset).as_second() / 60 == now.as_second() / 60 {
            return began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_mins(2), "not as scheduled: {wrong:#?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn wrong(
    world: &World,
    wanted: &BTreeSet<String>,
    others: impl Fn(&str) -> &'static str,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for machine in world.machines().list(&ListParams::default()).await.unwrap() {
        let (name, phase) =
            (machine.name_any(), machine.status.and_then(|status| status.phase).unwrap_or_default());
        let expected = if wanted.contains(&name) { "Active" } else { others(&name) };
        if phase != expected {
            wrong.push(format!("{name} is {phase}, not {expected}"));
        }
    }
    for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
        let all = world.objects(kind).list(&ListParams::default()).await.unwrap();
        let names: BTreeSet<String> = all.items.iter().map(ResourceExt::name_any).collect();
        wrong.extend(names.symmetric_difference(wanted).map(|name| format!("{kind} {name}")));
    }
    let nodes: Api<Node> = world.nodes();
    let ours = world.hosts.node_name("");
    let nodes = nodes.list(&ListParams::default()).await.unwrap();
    let names = nodes.items.iter().filter_map(|node| Some(node.name_any().strip_prefix(&ours)?.to_owned()));
    wrong.extend(
        names.collect::<BTreeSet<_>>().symmetric_difference(wanted).map(|name| format!("Node {name}")),
    );
    wrong
}
