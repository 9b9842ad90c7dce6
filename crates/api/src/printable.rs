//! Status as people may see it.

use crate::{ObjectRef, ScheduledMachineStatus};
use fivespot_core::text::{MESSAGE_BYTES, printable};
use std::borrow::Cow;

impl ScheduledMachineStatus {
    /// The same status, every text of it safe to show: most of them quote what others wrote on Machines, Nodes and pods.
    /// Identities in it are printable already where they are read, so that what is remembered compares equal later.
    pub(crate) fn printable(mut self) -> Self {
        let Self {
            phase,
            message,
            conditions,
            machine_ref,
            bootstrap_ref,
            infrastructure_ref,
            node_ref,
            provider_id,
            applied_node_taints,
            pending_node_taints,
            shutdown,
            reclaim,
            host,
            checked,
            // Numbers and times.
            in_schedule: _,
            last_scheduled_time: _,
            next_activation: _,
            next_cleanup: _,
            next_transition: _,
            observed_generation: _,
            instance: _,
        } = &mut self;
        let mut texts: Vec<&mut String> = [phase, message, provider_id].into_iter().flatten().collect();
        for it in conditions {
            texts.extend([&mut it.type_, &mut it.status, &mut it.reason, &mut it.message]);
        }
        for it in [machine_ref, bootstrap_ref, infrastructure_ref].into_iter().flatten() {
            let ObjectRef { api_version, kind, namespace, name, uid } = it;
            texts.extend([api_version, kind, namespace, name]);
            texts.extend(uid);
        }
        if let Some(it) = node_ref {
            texts.extend([&mut it.api_version, &mut it.kind, &mut it.name]);
            texts.extend(&mut it.uid);
        }
        for it in applied_node_taints.iter_mut().chain(pending_node_taints) {
            texts.extend([&mut it.key, &mut it.effect]);
            texts.extend(&mut it.value);
        }
        if let Some(it) = shutdown {
            texts.extend([&mut it.cause, &mut it.machine_uid].into_iter().flatten());
        }
        if let Some(it) = reclaim {
            let of_request = [&mut it.id, &mut it.node_name, &mut it.node_uid, &mut it.requested_at];
            texts.extend(of_request.into_iter().chain([&mut it.reason, &mut it.refused]).flatten());
        }
        if let Some(it) = host {
            texts.extend([&mut it.node_name, &mut it.machine_id, &mut it.system_uuid]);
        }
        if let Some(it) = checked {
            texts.push(&mut it.spec);
            texts.extend(&mut it.problem);
        }
        for text in texts {
            let shown = match printable(text, MESSAGE_BYTES) {
                Cow::Borrowed(_) => continue,
                Cow::Owned(shown) => shown,
            };
            *text = shown;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduled_machine_crd;
    use fivespot_core::text::is_hidden;
    use serde_json::{Value, json};

    /// An object that has every field of a schema, each text with characters that are obeyed and not seen.
    fn hostile(schema: &Value) -> Value {
        match (schema["type"].as_str(), schema["format"].as_str()) {
            (Some("object"), _) => {
                let fields = schema["properties"].as_object().unwrap();
                fields.iter().map(|(name, field)| (name.clone(), hostile(field))).collect()
            }
            (Some("array"), _) => json!([hostile(&schema["items"])]),
            (Some("string"), Some("date-time")) => json!("2026-11-16T03:00:00Z"),
            (Some("string"), _) => json!("a\u{1b}[2J\nReady=True\u{202e}\u{200b}".repeat(500)),
            (Some("boolean"), _) => json!(true),
            (Some("integer"), _) => json!(1),
            other => panic!("{other:?} in {schema}"),
        }
    }

    /// How many texts there are in a value; each is looked at.
    fn count_texts(value: &Value, look: &impl Fn(&str)) -> usize {
        match value {
            Value::Object(fields) => fields.values().map(|field| count_texts(field, look)).sum(),
            Value::Array(items) => items.iter().map(|item| count_texts(item, look)).sum(),
            Value::String(text) => {
                look(text);
                1
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
    }

    #[test]
    fn no_text_of_any_field_of_status_has_a_hidden_character() {
        let crd = json!(scheduled_machine_crd());
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        let before = hostile(schema);
        let status: ScheduledMachineStatus = serde_json::from_value(before.clone()).unwrap();
        let after = json!(status.printable());
        let texts = count_texts(&after, &|text| {
            assert!(!text.contains(is_hidden) && text.len() <= MESSAGE_BYTES, "{text:?}");
        });
        assert_eq!(texts, count_texts(&before, &|_| {}), "a field of the schema is not in the status");
        assert!(texts > 40, "{texts} texts");
    }
}
