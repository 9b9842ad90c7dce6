//! Every sample a user may copy is applied to the real server.

use crate::setup::{cluster, from_root, kubectl};
use fivespot_api::{ScheduledMachine, lint_provider_specs, read_manifest};
use fivespot_core::intent::Intent;
use kube::Api;
use kube::api::ListParams;
use std::fs;

#[tokio::test(flavor = "multi_thread")]
async fn every_example_is_accepted_and_is_a_valid_wish() {
    let (plane, client, namespace) = cluster("examples").await;
    let folder = from_root("examples");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let count = files.filter(|path| path.extension().is_some_and(|ending| ending == "yaml")).count();
    assert!(count >= 4, "only {count} examples");
    kubectl(plane, &["apply", "-n", &namespace, "-f", folder.to_str().unwrap()]);
    let stored =
        Api::<ScheduledMachine>::namespaced(client, &namespace).list(&ListParams::default()).await.unwrap();
    assert_eq!(stored.items.len(), count);
    for machine in stored {
        if let Err(invalid) = Intent::try_from(&machine) {
            panic!("{:?}: {invalid}", machine.metadata.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_lists_and_explains() {
    let (plane, _, namespace) = cluster("explain").await;
    let example = from_root("examples/workstation.yaml");
    kubectl(plane, &["apply", "-n", &namespace, "-f", example.to_str().unwrap()]);
    let table = kubectl(plane, &["get", "sm", "-n", &namespace]);
    assert_eq!(
        table.split_whitespace().take(8).collect::<Vec<_>>(),
        ["NAME", "PHASE", "INSCHEDULE", "ENABLED", "NODE", "NEXT", "KILLSWITCH", "AGE"]
    );
    let by_category = kubectl(plane, &["get", "fivespot", "-n", &namespace]);
    assert!(by_category.contains("workstation"), "{by_category}");
    let explained = kubectl(plane, &["explain", "sm.spec.schedule"]);
    for text in ["Saturday 02:00 is outside", "cron", "daysOfWeek", "hoursOfDay", "timezone", "enabled"] {
        assert!(
            explained.contains(text) || explained.replace('\n', " ").contains(text),
            "{text}:\n{explained}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_has_a_description() {
    let (plane, ..) = cluster("descriptions").await;
    let all = kubectl(plane, &["get", "--raw", "/openapi/v3/apis/5spot.finos.org/v1alpha1"]);
    let document: serde_json::Value = serde_json::from_str(&all).unwrap();
    let schema = &document["components"]["schemas"]["org.finos.5spot.v1alpha1.ScheduledMachine"];
    let mut silent = Vec::new();
    walk("spec", &schema["properties"]["spec"], &mut silent);
    walk("status", &schema["properties"]["status"], &mut silent);
    assert!(schema["properties"]["spec"]["properties"].as_object().is_some_and(|fields| fields.len() >= 12));
    assert!(silent.is_empty(), "fields without a description: {silent:?}");
}

/// Notes every property below `node` that says nothing about itself.
fn walk(path: &str, node: &serde_json::Value, silent: &mut Vec<String>) {
    for (name, child) in node["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if child["description"].as_str().is_none_or(str::is_empty) {
            silent.push(path.clone());
        }
        walk(&path, child, silent);
        walk(&path, &child["items"], silent);
    }
}

/// Every ScheduledMachine that a document shows.
fn shown_in_documents() -> Vec<(String, String)> {
    let pages = fs::read_dir(from_root("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let mut shown = Vec::new();
    for path in pages.chain([from_root("README.md")]) {
        let text = fs::read_to_string(&path).unwrap();
        let file = path.file_name().unwrap().to_str().unwrap();
        for block in text.split("```yaml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            if block.contains("kind: ScheduledMachine") {
                shown.push((file.to_owned(), block.to_owned()));
            }
        }
    }
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_documents_show_is_accepted() {
    let (plane, _, namespace) = cluster("documents").await;
    let shown = shown_in_documents();
    assert!(!shown.is_empty());
    for (file, yaml) in shown {
        let applied = plane.kubectl(plane.management(), &["apply", "-n", &namespace, "-f", "-"], &yaml);
        assert!(applied.is_ok(), "{file}: {applied:?}");
    }
}

/// The API server accepts more than the provider can use: a sample must be one that really joins.
#[test]
fn what_examples_and_documents_show_is_of_use_to_k0smotron() {
    let mut shown = shown_in_documents();
    for entry in fs::read_dir(from_root("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let file = path.file_name().unwrap().to_str().unwrap().to_owned();
            shown.push((file, fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(shown.len() >= 6, "{shown:?}");
    let mut findings = Vec::new();
    for (file, yaml) in shown {
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&yaml).unwrap();
        for document in documents {
            let (machine, _) = read_manifest(&document).unwrap();
            let found = lint_provider_specs(&machine.spec);
            findings.extend(found.iter().map(|finding| format!("{file}: {finding}")));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// kubectl reads YAML 1.1, in which more words are booleans and numbers than one may think.
#[tokio::test(flavor = "multi_thread")]
async fn yaml_is_read_as_kubectl_reads_it() {
    let (plane, _, namespace) = cluster("yaml").await;
    let example = fs::read_to_string(from_root("examples/workstation.yaml")).unwrap();
    let mut verdicts = Vec::new();
    for (line, instead) in [
        ("  priority: 20", "  priority: 0x10"),
        ("  priority: 20", "  priority: 2e1"),
        ("  priority: 20", "  priority: '20'"),
        ("  priority: 20", "  priority: ~"),
        ("  priority: 20", "  killSwitch: off"),
        ("  priority: 20", "  killSwitch: yes"),
        ("  priority: 20", "  killSwitch: 'yes'"),
        ("  priority: 20", "  killSwitch: TRUE"),
        ("  clusterName: lab", "  clusterName: 12"),
        ("  clusterName: lab", "  clusterName: on"),
        ("  clusterName: lab", "  clusterName: \"12\""),
        ("    hoursOfDay: [\"19-23\"]", "    hoursOfDay: [19-23]"),
        ("    hoursOfDay: [\"19-23\"]", "    hoursOfDay: [19]"),
        ("    hoursOfDay: [\"19-23\"]", "    hoursOfDay: ['09']"),
        ("    daysOfWeek: [mon-fri]", "    daysOfWeek: [mon-fri, no]"),
        ("    daysOfWeek: [mon-fri]", "    daysOfWeek:\n    - mon-fri\n    - sat # and a comment"),
    ] {
        assert!(example.contains(line), "{line}");
        let text = example.replace(line, instead);
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
        let ours = read_manifest(&documents[0]).is_ok();
        let dry_run = ["create", "--dry-run=server", "-n", &namespace, "-f", "-"];
        let theirs = plane.kubectl(plane.management(), &dry_run, &text);
        if ours != theirs.is_ok() {
            verdicts.push(format!("{}: ours {ours}, kubectl {theirs:?}", instead.trim()));
        }
    }
    assert!(verdicts.is_empty(), "{}", verdicts.join("\n"));
}
