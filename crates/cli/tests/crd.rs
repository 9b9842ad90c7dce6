//! `5spot crd`, driven as a user drives it.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use fivespot_testenv::shared;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn fivespot(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_5spot")).args(args).output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = fivespot(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_it_prints_installs_and_is_what_deploy_holds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let yaml = printed(&["crd"]);
    let committed = fs::read_to_string(root.join("deploy/crds/scheduledmachines.yaml")).unwrap();
    let (_head, committed) = committed.split_once('\n').unwrap();
    assert_eq!(yaml, committed);

    let plane = shared();
    let kubectl = |args: &[&str], input: &str| plane.kubectl(plane.management(), args, input).unwrap();
    let apply = ["apply", "--server-side", "-f", "-"];
    assert_eq!(
        kubectl(&apply, &yaml),
        "customresourcedefinition.apiextensions.k8s.io/scheduledmachines.5spot.finos.org serverside-applied\n"
    );
    plane.until_established(plane.management()).unwrap();
    let generation =
        ["get", "crd", "scheduledmachines.5spot.finos.org", "-o", "jsonpath={.metadata.generation}"];
    let before = kubectl(&generation, "");
    kubectl(&apply, &printed(&["crd", "-o", "json"]));
    assert_eq!(kubectl(&generation, ""), before, "YAML and JSON say the same");
}

#[test]
fn all_kinds_install_and_are_what_deploy_holds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let yaml = printed(&["crd", "--all"]);
    for file in ["deploy/crds/scheduledmachines.yaml", "deploy/fleet/crds.yaml"] {
        let committed = fs::read_to_string(root.join(file)).unwrap();
        let (_head, committed) = committed.split_once('\n').unwrap();
        assert!(yaml.contains(committed), "{file}");
    }
    let plane = shared();
    let kubectl = |args: &[&str], input: &str| plane.kubectl(plane.management(), args, input).unwrap();
    let apply = ["apply", "--server-side", "-f", "-"];
    let applied = kubectl(&apply, &yaml);
    assert_eq!(applied.matches("serverside-applied").count(), 4, "{applied}");
    plane.until_established(plane.management()).unwrap();
    let generations = ["get", "crd", "-o", "jsonpath={.items[*].metadata.generation}"];
    let before = kubectl(&generations, "");
    kubectl(&apply, &printed(&["crd", "--all", "-o", "json"]));
    assert_eq!(kubectl(&generations, ""), before, "YAML and JSON say the same");
}

#[test]
fn a_mistake_is_answered_with_usage_and_exit_code_2() {
    let output = fivespot(&["crd", "-o", "xml"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("invalid value 'xml' for '--output <OUTPUT>'"), "{message}");
    assert!(message.contains("[possible values: yaml, json]"), "{message}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_5spot")).arg("crd").stdout(writer).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
