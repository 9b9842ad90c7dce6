//! What a NetworkPolicy says, for tests: no network of a test enforces one.

use serde_json::{Value, json};

/// Checks that a NetworkPolicy selects the pods of a template, and lets pods of namespaces with the label
/// `5spot.finos.org/scrape-metrics: "true"` reach this port, and nobody reach another.
///
/// # Panics
/// If it does not.
pub fn assert_only_scrapers_reach(policy: &Value, template: &Value, port: &Value) {
    let selected = policy["spec"]["podSelector"].clone();
    let labels = selected["matchLabels"].as_object().cloned().unwrap_or_default();
    assert!(!labels.is_empty(), "it selects all pods: {policy}");
    for (key, value) in &labels {
        assert_eq!(&template["metadata"]["labels"][key], value, "it selects other pods: {policy}");
    }
    if port.is_string() {
        let containers = template["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let mut ports = containers.iter().flat_map(|it| it["ports"].as_array().cloned().unwrap_or_default());
        assert!(ports.any(|it| it["name"] == *port), "no container has the port {port}: {template}");
    }
    let scrapers = json!({"namespaceSelector": {"matchLabels": {"5spot.finos.org/scrape-metrics": "true"}}});
    let expected = json!({
        "podSelector": selected,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [scrapers], "ports": [{"protocol": "TCP", "port": port}]}],
    });
    assert_eq!(policy["spec"], expected);
}
