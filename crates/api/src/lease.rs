//! The Lease through which a slot is held: `<program>-<slot>`, as `kubectl get leases` shows it, with what Kubernetes has
//! no field for in annotations.

use crate::names::{PREFERRED_SLOT, SLOT_COUNT, WANTED_BY};
use fivespot_core::slots::{Found, Holder, Instance, Record, What};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

/// What is read of a Lease.
#[derive(Debug, Clone, Deserialize)]
pub struct Lease {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u32>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}

/// Path of the Leases of a namespace.
pub fn leases_path(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// Name of the Lease of a slot.
pub fn lease_name(program: &str, slot: u32) -> String {
    format!("{program}-{slot}")
}

impl Lease {
    /// Which slot of a program it is for, if it is for one.
    pub fn slot(&self, program: &str) -> Option<u32> {
        let number = self.metadata.name.strip_prefix(program)?.strip_prefix('-')?;
        number.parse().ok().filter(|slot: &u32| slot.to_string() == number)
    }

    /// What it says.
    pub fn found(&self) -> Found {
        let annotation = |name: &str| self.metadata.annotations.get(name);
        let holder = self.spec.holder_identity.clone().filter(|name| !name.is_empty());
        let holder = holder.map(|name| Holder {
            name,
            own: annotation(PREFERRED_SLOT).and_then(|slot| slot.parse().ok()),
            // Who does not say goes by one.
            count: annotation(SLOT_COUNT).and_then(|count| count.parse().ok()).unwrap_or(NonZeroU32::MIN),
            duration: Duration::from_secs(u64::from(self.spec.lease_duration_seconds.unwrap_or(0))),
            stamp: self.spec.renew_time.clone().unwrap_or_default(),
        });
        let record = Record { holder, wanted_by: annotation(WANTED_BY).cloned() };
        Found { version: self.metadata.resource_version.clone(), record }
    }

    /// How often it has changed hands.
    pub fn transitions(&self) -> i64 {
        self.spec.lease_transitions.unwrap_or(0)
    }
}

/// A write to the Lease of a slot, to be merged into it if it exists. `now` is the time as Kubernetes writes it.
pub fn lease_change(what: &What, me: &Instance, before: Option<(&Lease, &Record)>, now: &str) -> Value {
    let renews =
        before.is_some_and(|(_, record)| record.holder.as_ref().is_some_and(|it| it.name == me.name));
    let transitions = before.map_or(0, |(lease, _)| lease.transitions());
    match what {
        What::Hold => {
            let mut spec = json!({
                "holderIdentity": me.name,
                "leaseDurationSeconds": me.timing.duration.as_secs(),
                "renewTime": now,
            });
            if !renews {
                spec["acquireTime"] = json!(now);
                spec["leaseTransitions"] = json!(transitions.saturating_add(1));
            }
            json!({
                "metadata": {"annotations": {
                    SLOT_COUNT: me.count.to_string(),
                    PREFERRED_SLOT: me.own.map(|own| own.to_string()),
                    WANTED_BY: null,
                }},
                "spec": spec,
            })
        }
        What::Free { wanted_by } => json!({
            "metadata": {"annotations": {SLOT_COUNT: null, PREFERRED_SLOT: null, WANTED_BY: wanted_by}},
            "spec": {"holderIdentity": null, "renewTime": now},
        }),
        What::Ask => json!({"metadata": {"annotations": {WANTED_BY: me.name}}}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fivespot_core::slots::Timing;

    fn lease(name: &str, spec: &Value, annotations: &Value) -> Lease {
        let metadata = json!({"name": name, "resourceVersion": "7", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn a_lease_is_known_by_its_name() {
        let slot = |name: &str| lease(name, &json!({}), &json!({})).slot("5spot-controller");
        assert_eq!(slot("5spot-controller-12"), Some(12));
        for other in
            ["5spot-controller", "5spot-controller-", "5spot-controller-01", "5spot-controller-x", "a-0"]
        {
            assert_eq!(slot(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let second = Duration::from_secs(1);
        let timing = Timing { duration: second * 15, renew_deadline: second * 10, retry: second * 2 };
        let count = NonZeroU32::new(3).unwrap();
        let me = Instance { name: "me".to_owned(), own: Some(1), count, timing };
        for what in [What::Hold, What::Free { wanted_by: Some("b".to_owned()) }, What::Ask] {
            let mut body = lease_change(&what, &me, None, "now");
            body["metadata"]["name"] = json!("a-1");
            body["metadata"]["resourceVersion"] = json!("1");
            // A server drops what is null.
            let annotations = body["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.retain(|_, value| !value.is_null());
            let read: Lease = serde_json::from_value(body).unwrap();
            assert_eq!(read.found().record, what.record(&me, None, "now"), "{what:?}");
        }
    }

    #[test]
    fn a_lease_of_a_version_that_knew_no_slots_goes_by_one() {
        let spec = json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "then"});
        let holder = lease("5spot-controller-0", &spec, &json!({})).found().record.holder.unwrap();
        assert_eq!((holder.count.get(), holder.own, holder.duration), (1, None, Duration::from_secs(15)));
        let free = lease("a-0", &json!({"holderIdentity": ""}), &json!({}));
        assert_eq!(free.found().record.holder, None);
    }
}
