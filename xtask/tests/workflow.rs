//! The hosted workflow is YAML and runs what the Makefile has. Whether it passes there is not known here.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use serde_json::Value;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// The commands of a target of the Makefile.
fn recipe(target: &str) -> String {
    let makefile = read("Makefile");
    let lines = makefile.lines().skip_while(|line| !line.starts_with(&format!("{target}:")));
    lines.skip(1).take_while(|line| line.starts_with('\t')).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_hosted_workflow_runs_targets_that_exist() {
    let workflow: Value = serde_saphyr::from_str(&read(".github/workflows/test.yml")).unwrap();
    let on = workflow["on"].as_object().unwrap();
    for event in ["push", "pull_request", "schedule"] {
        assert!(on.contains_key(event), "not on {event}: {on:?}");
    }
    assert_eq!(workflow["permissions"], serde_json::json!({"contents": "read"}));
    let jobs = workflow["jobs"].as_object().unwrap();
    let mut targets = Vec::new();
    for (name, job) in jobs {
        for step in job["steps"].as_array().unwrap() {
            if let Some(action) = step["uses"].as_str() {
                let version = action.split_once("@v").map(|(_, version)| version.parse::<u32>());
                assert!(version.is_some_and(|version| version.is_ok()), "{action} has no major version");
            }
            if let Some(line) = step["run"].as_str() {
                let target = line.strip_prefix("make ").unwrap();
                assert!(!recipe(target).is_empty(), "there is no target {target}");
                targets.push((name.as_str(), target.to_owned()));
            }
        }
    }
    targets.sort();
    assert_eq!(targets, [("advisories", "advisories".to_owned()), ("test", "test".to_owned())]);
    // The advisories are looked at on every event, and on a schedule nothing else is.
    assert!(jobs["advisories"].get("if").is_none());
    assert_eq!(jobs["test"]["if"], "github.event_name != 'schedule'");
    assert!(recipe("advisories").contains("deny check advisories"), "{}", recipe("advisories"));
}
