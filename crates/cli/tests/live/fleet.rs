//! What the fleet takes back, at a glance.

use crate::{check, run, start};
use expect_test::expect;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

#[tokio::test]
async fn drains_are_listed_with_what_holds_them() {
    let plane = start().await;
    let kubectl = |args: &[&str], input: &str| plane.kubectl(plane.management(), args, input).unwrap();
    check(
        &plane,
        &["fleet", "status"],
        &expect![[r#"
            the fleet takes no Node back
            exit 0
        "#]],
    );
    let at = |minutes: i64| Timestamp::now().checked_add(minutes.minutes()).unwrap().to_string();
    let node = |name: &str, record: Value, progress: Option<&str>| {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "annotations": {
                "5spot.finos.org/fleet-reclaim": record.to_string(),
                "5spot.finos.org/fleet-progress": progress.unwrap_or_default(),
            }},
        });
        kubectl(&["apply", "-f", "-"], &node.to_string());
    };
    let record = |minutes: i64, outcome: Option<&str>| {
        let mut record = json!({
            "instructions": ["first", "second"], "machine": "m-1", "acceptedAt": at(-1), "deadline": at(minutes),
            "preemptorPriority": 0, "cordonedByUs": true,
        });
        if let Some(outcome) = outcome {
            record["outcome"] = json!(outcome);
        }
        record
    };
    node("goes-well", record(5, None), None);
    check(
        &plane,
        &["fleet", "status"],
        &expect![[r#"
            NODE MACHINE STATE ENDS INSTRUCTION HELD BY
            goes-well m-1 draining in TIME second -
            exit 0
        "#]],
    );
    node("has-failed", record(-5, Some("Failed")), None);
    assert_eq!(run(&plane, &["fleet", "status"]).status.code(), Some(1), "whatever is known of it");
    let blocked =
        "1 left: default/web-0 is held by its disruption budget: web-pdb needs 1 healthy pods and has 1";
    node("is-held", record(5, None), Some(blocked));
    node("is-done", record(-5, Some("Drained")), None);
    node("is-late", record(-5, None), None);
    node("is-lost", record(-5, None), Some("1 left: default/db-0 is held"));
    node("has-failed", record(-5, Some("Failed")), Some("not drained within 10 s: 1 pod to evict"));
    check(
        &plane,
        &["fleet", "status"],
        &expect![[r#"
        NODE MACHINE STATE ENDS INSTRUCTION HELD BY
        goes-well m-1 draining in TIME second -
        has-failed m-1 failed - second not drained within 10 s: 1 pod to evict
        is-done m-1 drained - second -
        is-held m-1 draining in TIME second 1 left: default/web-0 is held by its disruption budget: web-pdb needs 1 healthy pods and has 1
        is-late m-1 overdue TIME ago second nobody goes on with it: is the fleet operator running?
        is-lost m-1 overdue TIME ago second nobody goes on with it: is the fleet operator running? The last word was: 1 left: default/db-0 is held
        exit 1
    "#]],
    );
    let output = run(&plane, &["fleet", "status", "-o", "json"]);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all[3]["node"], "is-held");
    assert_eq!(all[3]["heldBy"], blocked);
    assert_eq!(output.status.code(), Some(1));
}
