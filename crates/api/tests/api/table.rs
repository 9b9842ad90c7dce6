//! One table of cases, two judges: `fivespot_core::intent` and the API server.

use crate::setup::{cluster, create, kubectl, machine, machines, message};
use fivespot_api::{ScheduledMachine, read_manifest, scheduled_machine_crd};
use fivespot_core::intent::Intent;
use fivespot_testenv::{ControlPlane, eventually};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) base: Value,
    rows: Vec<Row>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    #[serde(default)]
    set: Map<String, Value>,
    #[serde(default)]
    change: Map<String, Value>,
    refused: Option<String>,
    core_refuses: Option<String>,
    says: Option<String>,
    only: Option<Judge>,
    why: Option<String>,
}

#[derive(Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Judge {
    Core,
    Server,
}

impl Table {
    pub(crate) fn load() -> Self {
        let table: Self = serde_saphyr::from_str(include_str!("table/scheduled_machine.yaml")).unwrap();
        for row in &table.rows {
            assert_eq!(row.only.is_some(), row.why.is_some(), "{}: `only` needs a `why`", row.name);
        }
        table
    }

    /// Every object the server refuses although its types are right and nothing required is missing, by row.
    /// Left out: what no release can make stricter without breaking stored objects anyway.
    pub(crate) fn malformed(&self, namespace: &str) -> Vec<(String, Value)> {
        let is_broken = |row: &Row| {
            let structural = ["Required value", "must be of type", "unknown field"];
            let says = row.says.as_deref().unwrap_or_default();
            row.refused.is_some()
                && row.change.is_empty()
                && row.only.is_none()
                && !structural.iter().any(|text| says.contains(text))
        };
        let rows = self.rows.iter().enumerate().filter(|(_, row)| is_broken(row));
        rows.map(|(number, row)| (row.name.clone(), self.object(number, row, namespace))).collect()
    }

    fn object(&self, number: usize, row: &Row, namespace: &str) -> Value {
        let mut object = self.base.clone();
        object["metadata"]["name"] = json!(format!("row-{number}"));
        put(&mut object, &row.set, namespace);
        object
    }
}

impl Row {
    /// The path that `judge` must name, or `None` if it must accept.
    fn refusal(&self, judge: Judge) -> Option<&str> {
        if self.only.is_some_and(|only| only != judge) {
            return None;
        }
        match judge {
            Judge::Core => self.core_refuses.as_deref().or(self.refused.as_deref()),
            Judge::Server => self.refused.as_deref(),
        }
    }
}

/// Puts each value at its dotted path.
fn put(object: &mut Value, fields: &Map<String, Value>, namespace: &str) {
    for (path, value) in fields {
        let (parents, last) = path.rsplit_once('.').unwrap();
        let parent = parents.split('.').fold(&mut *object, |at, name| &mut at[name]);
        if value.is_null() {
            parent.as_object_mut().unwrap().remove(last);
        } else {
            parent[last] = expand(value, namespace);
        }
    }
}

/// Writes out the shorthands that the head of the table explains.
fn expand(value: &Value, namespace: &str) -> Value {
    let count = |value: &Value, i: u64| -> Value {
        serde_json::from_str(&value.to_string().replace("${i}", &i.to_string())).unwrap()
    };
    if value == &json!({"null": true}) {
        return Value::Null;
    }
    match (value.get("times").and_then(Value::as_u64), value.get("item"), value.get("key")) {
        (Some(times), Some(item), None) => (0..times).map(|i| count(item, i)).collect(),
        (Some(times), None, Some(key)) => {
            let entry = |i| (count(key, i).as_str().unwrap().to_owned(), value["value"].clone());
            Value::Object((0..times).map(entry).collect())
        }
        _ => serde_json::from_str(&value.to_string().replace("${namespace}", namespace)).unwrap(),
    }
}

/// A judge's verdict beside the table's; `None` if they agree.
fn disagreement(row: &Row, judge: Judge, verdict: Result<(), Vec<(String, String)>>) -> Option<String> {
    let said = |errors: &[(String, String)]| {
        errors.iter().map(|(path, problem)| format!("{path}: {problem}")).collect::<Vec<_>>().join("\n    ")
    };
    match (row.refusal(judge), verdict) {
        (None, Ok(())) => None,
        (None, Err(errors)) => {
            Some(format!("{}: refused, should be accepted:\n    {}", row.name, said(&errors)))
        }
        (Some(path), Ok(())) => Some(format!("{}: accepted, should be refused at {path}", row.name)),
        (Some(path), Err(errors)) => {
            let found = errors.iter().any(|(at, _)| at == path);
            (!found).then(|| format!("{}: refused, but not at {path}:\n    {}", row.name, said(&errors)))
        }
    }
}

fn report(judge: &str, rows: usize, disagreements: &[String]) {
    println!("{judge}: {rows} rows, {} disagree", disagreements.len());
    assert!(disagreements.is_empty(), "{judge} disagrees with the table:\n{}", disagreements.join("\n"));
}

#[test]
fn the_table_is_large_and_has_no_two_rows_of_one_name() {
    let table = Table::load();
    let names: BTreeSet<&str> = table.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names.len(), table.rows.len());
    assert!(table.rows.len() >= 120, "{} rows", table.rows.len());
}

#[test]
fn the_code_judges_every_row_as_the_table_says() {
    let table = Table::load();
    let namespace = "team-blue";
    let mut disagreements = Vec::new();
    let mut judged = 0;
    for (number, row) in table.rows.iter().enumerate() {
        let mut object = table.object(number, row, namespace);
        object["metadata"]["namespace"] = json!(namespace);
        // What our types cannot hold, the schema's types refuse: such an object is never stored.
        let Ok(machine) = serde_json::from_value::<ScheduledMachine>(object) else {
            assert!(row.only == Some(Judge::Server), "{}: our types cannot read it", row.name);
            continue;
        };
        judged += 1;
        let verdict = Intent::try_from(&machine).map(|_| ()).map_err(|invalid| {
            invalid.errors().iter().map(|e| (e.path.clone(), e.problem.clone())).collect()
        });
        disagreements.extend(disagreement(row, Judge::Core, verdict));
    }
    report("fivespot_core::intent", judged, &disagreements);
}

/// What a file holds is judged without a server, by both: the schema's shape and the rules of the code.
#[test]
fn a_file_is_judged_as_the_server_or_the_code_judges_the_object() {
    let table = Table::load();
    let mut disagreements = Vec::new();
    let mut judged = 0;
    for (number, row) in table.rows.iter().enumerate() {
        // These need the stored object, or the kinds and prefixes that the cluster's own definition lists.
        let says = row.says.as_deref().unwrap_or_default();
        let of_cluster = ["not known here", "is not allowed here", "that an administrator allows"];
        let needs_cluster = !row.change.is_empty() || of_cluster.iter().any(|text| says.contains(text));
        if needs_cluster {
            continue;
        }
        judged += 1;
        let mut object = table.object(number, row, "team-blue");
        object["metadata"]["namespace"] = json!("team-blue");
        let verdict = read_manifest(&object).map(|_| ()).map_err(|invalid| {
            invalid.errors().iter().map(|e| (e.path.clone(), e.problem.clone())).collect()
        });
        // Where only one side can know, the file's judge is that side; where both do, paths may be either's.
        let by_server = Row { only: None, core_refuses: None, ..row.clone() };
        let by_code = Row { only: None, ..row.clone() };
        let outcomes = [by_server, by_code].map(|row| disagreement(&row, Judge::Core, verdict.clone()));
        disagreements.extend(outcomes.into_iter().reduce(Option::and).flatten());
    }
    report("fivespot_api::read_manifest", judged, &disagreements);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_judges_every_row_as_the_table_says_and_every_rule_is_seen_at_work() {
    let (plane, client, namespace) = cluster("table").await;
    let api = machines(&client, &namespace);
    let table = Table::load();
    make_k0smotron_kinds_known(plane, &api).await;
    allow_prefixes(plane, &api).await;

    let mut disagreements = Vec::new();
    let mut refusals = Vec::new();
    for (number, row) in table.rows.iter().enumerate() {
        let object = table.object(number, row, &namespace);
        let mut outcome = create(&api, &object).await;
        if !row.change.is_empty() {
            outcome.as_ref().expect("a row with a change must first be created");
            let mut change = json!({});
            put(&mut change, &row.change, &namespace);
            let name = object["metadata"]["name"].as_str().unwrap();
            outcome = message(api.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await);
        }
        if let (Ok(stored), None) = (&outcome, row.refusal(Judge::Core)) {
            disagreements.extend(defaults_differ(row, &object, stored));
        }
        if let (Err(text), Some(says)) = (&outcome, &row.says)
            && !text.contains(says)
        {
            disagreements.push(format!("{}: does not say {says:?}:\n    {text}", row.name));
        }
        if let (Err(text), Some(path)) = (&outcome, &row.refused) {
            refusals.push((anywhere(path), text.clone()));
        }
        let verdict = outcome.map(|_| ()).map_err(|text| vec![(path_in(row, &text), text)]);
        disagreements.extend(disagreement(row, Judge::Server, verdict));
    }
    report("the API server", table.rows.len(), &disagreements);
    every_rule_spoke(&refusals);
    every_bound_was_tried(&refusals);
}

/// The path of the row, if the message names it as a whole path, not as the beginning of a longer one.
fn path_in(row: &Row, text: &str) -> String {
    let path = row.refused.clone().unwrap_or_default();
    let named = [format!("{path}: "), format!("{path}\"")].iter().any(|whole| text.contains(whole));
    if named { path } else { String::new() }
}

/// The server fills in defaults and drops nulls, and so do we: both must come to the same wish.
fn defaults_differ(row: &Row, sent: &Value, stored: &DynamicObject) -> Option<String> {
    let mut sent = sent.clone();
    sent["metadata"]["namespace"] = json!(stored.metadata.namespace);
    let (sent, ours) = read_manifest(&sent).unwrap();
    let stored: ScheduledMachine = serde_json::from_value(json!(stored)).unwrap();
    let theirs = Intent::try_from(&stored).unwrap();
    (ours != theirs || sent.spec != stored.spec)
        .then(|| format!("{}: the server stored another wish than we read:\n{ours:?}\n{theirs:?}", row.name))
}

/// Kinds in the group k0smotron.io are not known by default: do what the message tells an administrator.
async fn make_k0smotron_kinds_known(plane: &ControlPlane, api: &Api<DynamicObject>) {
    let annotate = ["annotate", "crd", "scheduledmachines.5spot.finos.org"];
    for kind in ["K0sWorkerConfig.k0smotron.io=k0sworkerconfigs", "RemoteMachine.k0smotron.io=remotemachines"]
    {
        kubectl(plane, &[&annotate[..], &[&format!("embedded.5spot.finos.org/{kind}")]].concat());
    }
    eventually("the new kinds are known", async || {
        let mut object = machine("kinds");
        object["spec"]["bootstrapSpec"]["apiVersion"] = json!("k0smotron.io/v1beta1");
        object["spec"]["infrastructureSpec"]["apiVersion"] = json!("k0smotron.io/v1beta1");
        create(api, &object).await.is_ok()
    })
    .await;
}

/// No prefix of `machineTemplate` is allowed by default: do what the message tells an administrator.
async fn allow_prefixes(plane: &ControlPlane, api: &Api<DynamicObject>) {
    let annotate = ["annotate", "crd", "scheduledmachines.5spot.finos.org"];
    let prefixes = ["example.com", "a.b-c", "notkubernetes.io", "kubernetes.io.example.com"];
    for prefix in prefixes {
        let allowed = format!("machine-keys.5spot.finos.org/{prefix}=allowed");
        kubectl(plane, &[&annotate[..], &[&allowed]].concat());
    }
    eventually("the prefixes are allowed", async || {
        let mut object = machine("prefixes");
        let keys: Map<_, _> = prefixes.iter().map(|prefix| (format!("{prefix}/x"), json!("y"))).collect();
        object["spec"]["machineTemplate"] = json!({"labels": keys});
        create(api, &object).await.is_ok()
    })
    .await;
}

/// Walks the schema of the spec: path and node.
fn walk<'a>(path: &str, node: &'a Value, visit: &mut dyn FnMut(&str, &'a Value)) {
    visit(path, node);
    for (name, child) in node.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let child_path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        walk(&child_path, child, visit);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(child) = node.get(inner).filter(|child| child.is_object()) {
            walk(&format!("{path}[]"), child, visit);
        }
    }
}

fn spec_schema() -> Value {
    let crd = json!(scheduled_machine_crd());
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone()
}

/// A path with its places taken out, as a schema has it: `spec.nodeTaints[].key`.
fn anywhere(path: &str) -> String {
    let names: Vec<&str> =
        path.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest)).collect();
    names.join("[]")
}

/// A rule nobody ever saw refuse anything is not known to work.
fn every_rule_spoke(refusals: &[(String, String)]) {
    let schema = spec_schema();
    let mut silent = Vec::new();
    let mut rules = 0;
    walk("", &schema, &mut |path, node| {
        for rule in node.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten() {
            rules += 1;
            let text = |key: &str| rule.get(key).and_then(Value::as_str);
            let path = format!("{path}{}", text("fieldPath").unwrap_or_default());
            // A message expression is `the bad key + "literal text"`.
            let literal = || -> Option<String> {
                serde_json::from_str(text("messageExpression")?.rsplit_once(" + ")?.1).ok()
            };
            let message = text("message").map(str::to_owned).or_else(literal).unwrap();
            if !refusals.iter().any(|(at, said)| *at == path && said.contains(&message)) {
                silent.push(format!("{path}: {message}"));
            }
        }
    });
    println!("{rules} CEL rules");
    assert!(rules > 20);
    assert!(silent.is_empty(), "rules that no row of the table breaks:\n{}", silent.join("\n"));
}

/// Every bound of every field has a row that it refuses.
fn every_bound_was_tried(refusals: &[(String, String)]) {
    // How the server says that a bound is passed.
    let bounds = [
        ("maxLength", "Too long"),
        ("maxItems", "Too many"),
        ("maxProperties", "Too many"),
        ("minimum", "greater than or equal to"),
        ("maximum", "less than or equal to"),
        ("enum", "Unsupported value"),
        ("x-kubernetes-list-map-keys", "Duplicate value"),
    ];
    let schema = spec_schema();
    let mut untried = Vec::new();
    walk("", &schema, &mut |path, node| {
        for (bound, says) in bounds {
            let tried = || refusals.iter().any(|(at, said)| tells_of(at, path) && said.contains(says));
            if node.get(bound).is_some() && !path.starts_with("status") && !tried() {
                untried.push(format!("{path}: {bound}"));
            }
        }
    });
    assert!(untried.is_empty(), "bounds that no row of the table breaks: {untried:?}");
}

/// Whether a refusal at `at` may come from the field at `path`: duplicates are told of the item, and lengths of a
/// map's values with a dot.
fn tells_of(at: &str, path: &str) -> bool {
    at == path
        || at == format!("{path}[]")
        || path.strip_suffix("[]").is_some_and(|map| at == format!("{map}.team"))
}
