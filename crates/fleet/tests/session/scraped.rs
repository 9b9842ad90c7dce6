//! Who may read the metrics of the operator, with `deploy/fleet-metrics-auth` and by the NetworkPolicy.

use crate::harness::shard::PlayedShard;
use crate::harness::{Operator, from_root, plane};
use fivespot_testenv::{Daemon, Scraper, assert_only_scrapers_reach, eventually};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_need_a_token_and_probes_do_not() {
    let (plane, _turn) = plane().await;
    let kubectl = |args: &[&str]| plane.kubectl(plane.management(), args, "").unwrap();
    let read = |args: &[&str]| -> Value { serde_json::from_str(&kubectl(args)).unwrap() };
    let get = |kind: &'static str| ["-n", "5spot-system", "get", kind, "5spot-fleet-operator", "-o", "json"];
    let plain = read(&get("deployment"))["spec"]["template"].clone();
    assert_only_scrapers_reach(&read(&get("networkpolicy")), &plain, &json!("metrics"));

    let overlay = from_root("deploy/fleet-metrics-auth");
    let apply = ["apply", "--server-side", "--dry-run=server", "-o", "json", "-k", overlay.to_str().unwrap()];
    let applied = read(&apply);
    let find =
        |kind: &str| applied["items"].as_array().unwrap().iter().find(|it| it["kind"] == kind).unwrap();
    let template = &find("Deployment")["spec"]["template"];
    assert_only_scrapers_reach(find("NetworkPolicy"), template, &json!("metrics"));
    let container = &template["spec"]["containers"][0];
    let env = container["env"].as_array().unwrap();
    let value = |name: &str| env.iter().find(|it| it["name"] == name).unwrap()["value"].as_str().unwrap();
    assert_eq!((value("METRICS_AUTH"), value("HEALTH_ADDR")), ("true", "0.0.0.0:8771"));
    let ports = json!([
        {"name": "health", "containerPort": 8771, "protocol": "TCP"},
        {"name": "metrics", "containerPort": 8770, "protocol": "TCP"},
    ]);
    assert_eq!(container["ports"], ports);
    for (probe, path) in [("livenessProbe", "/health"), ("readinessProbe", "/ready")] {
        let asked = &container[probe]["httpGet"];
        assert_eq!((&asked["port"], &asked["path"]), (&json!("health"), &json!(path)));
    }

    let rights = from_root("deploy/fleet-metrics-auth/rbac.yaml");
    kubectl(&["apply", "-f", rights.to_str().unwrap()]);
    let shard = PlayedShard::start().await;
    let args = ["--metrics-auth", "--health-addr=127.0.0.1:0"];
    let operator = Operator::start(plane, "scraped", &shard.address, &args);
    for path in ["/health", "/ready"] {
        eventually(path, async || Daemon::http(&operator, "health_port", path).0 == 200).await;
    }
    assert_eq!(Daemon::http(&operator, "health_port", "/metrics").0, 404);
    let scraper = Scraper::new(operator.port("metrics_port"));
    let status = async |token: Option<&str>| scraper.get("/metrics", token).await.unwrap().status;
    kubectl(&["-n", "default", "create", "serviceaccount", "prometheus"]);
    let token = kubectl(&["-n", "default", "create", "token", "prometheus"]);
    assert_eq!(status(None).await, 401);
    eventually("the operator may review tokens", async || status(Some(token.trim())).await == 403).await;
    let account = "--serviceaccount=default:prometheus";
    let role = "--clusterrole=5spot-metrics-reader";
    kubectl(&["create", "clusterrolebinding", "fleet-scraper", role, account]);
    eventually("the reader is let in", async || status(Some(token.trim())).await == 200).await;
    drop(operator);
    // A test beside this one looks for rights that are not used.
    kubectl(&["delete", "clusterrolebinding", "fleet-scraper"]);
    kubectl(&["delete", "-f", rights.to_str().unwrap()]);
}
