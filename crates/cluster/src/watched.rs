//! A ScheduledMachine as the controller keeps it: the embedded specs stay the text they were sent as.
//!
//! They are passed on unread and unchanged, whatever they hold: a number no float can hold, or a structure so deep
//! that a reader of JSON gives up. Only the rest of the object is read.

use crate::cache::{Item, Key};
use fivespot_api::ScheduledMachine;
use fivespot_api::names::CONTROLLER;
use fivespot_core::lifecycle::{Orders, Part, Patience};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// A ScheduledMachine whose embedded specs have not been read.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The object, with embedded specs that are empty.
    pub machine: ScheduledMachine,
    /// Who wrote `spec.schedule.enabled` as it is now, but for those who applied a manifest: an apply says what is stored
    /// somewhere, and not what somebody wants now.
    enabled_by: Vec<String>,
    bootstrap: Box<RawValue>,
    infrastructure: Box<RawValue>,
    spec_id: String,
}

impl Watched {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        let metadata = &self.machine.metadata;
        Key::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    }

    /// Identity.
    pub fn uid(&self) -> &str {
        self.machine.metadata.uid.as_deref().unwrap_or_default()
    }

    /// What the object is told to do, whatever else its spec says. Tools that write the same again and again are not
    /// taken for people.
    pub fn orders(&self, patience: Patience, tools: &[String]) -> Orders {
        let is_person = |manager: &String| manager != CONTROLLER && !tools.contains(manager);
        self.machine.orders(patience, self.enabled_by.iter().any(is_person))
    }

    /// The whole object, with its embedded specs. One that is too deep to be read is left out.
    pub fn to_json(&self) -> serde_json::Value {
        let mut object = serde_json::to_value(&self.machine).unwrap_or_default();
        for (field, spec) in
            [("bootstrapSpec", &self.bootstrap), ("infrastructureSpec", &self.infrastructure)]
        {
            object["spec"][field]["spec"] = serde_json::from_str(spec.get()).unwrap_or_default();
        }
        object
    }

    /// Identity of the embedded objects: kinds and specs.
    pub(crate) fn spec_id(&self) -> &str {
        &self.spec_id
    }

    /// The embedded spec of a part, as it was sent.
    pub(crate) fn embedded(&self, part: Part) -> Option<&RawValue> {
        match part {
            Part::Bootstrap => Some(&self.bootstrap),
            Part::Infrastructure => Some(&self.infrastructure),
            Part::Machine => None,
        }
    }
}

impl PartialEq for Watched {
    /// A version of an object has one content.
    fn eq(&self, other: &Self) -> bool {
        let identity =
            |it: &Self| (it.machine.metadata.uid.clone(), it.machine.metadata.resource_version.clone());
        identity(self) == identity(other)
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shadow<'a> {
    #[serde(borrow)]
    metadata: ShadowMeta<'a>,
    #[serde(borrow)]
    spec: ShadowSpec<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ShadowMeta<'a> {
    /// As deep as what it tells of.
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ShadowSpec<'a> {
    #[serde(borrow)]
    bootstrap_spec: ShadowObject<'a>,
    #[serde(borrow)]
    infrastructure_spec: ShadowObject<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ShadowObject<'a> {
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

/// Who wrote what. Only the way to one field is read: everything else in it is passed over, however deep it is.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ManagedFields {
    manager: String,
    operation: String,
    #[serde(rename = "fieldsV1")]
    fields: OwnFields,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OwnFields {
    #[serde(rename = "f:spec")]
    spec: OwnSpec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OwnSpec {
    #[serde(rename = "f:schedule")]
    schedule: OwnSchedule,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OwnSchedule {
    #[serde(rename = "f:enabled")]
    enabled: Option<IgnoredAny>,
}

impl Item for Watched {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let text = raw.get();
        let shadow: Shadow<'_> = serde_json::from_str(text)?;
        let specs = [shadow.spec.bootstrap_spec.spec, shadow.spec.infrastructure_spec.spec];
        let unread = [(specs[0], "{}"), (specs[1], "{}"), (shadow.metadata.managed_fields, "null")];
        let machine = serde_json::from_str(&without(text, unread))?;
        let managers = shadow.metadata.managed_fields.map(|fields| serde_json::from_str(fields.get()));
        let managers: Vec<ManagedFields> = managers.transpose()?.unwrap_or_default();
        let writes =
            |it: &ManagedFields| it.operation != "Apply" && it.fields.spec.schedule.enabled.is_some();
        let enabled_by = managers.into_iter().filter(writes).map(|it| it.manager).collect();
        let keep = |spec: Option<&RawValue>| match spec {
            Some(spec) => Ok(spec.to_owned()),
            None => RawValue::from_string("{}".to_owned()),
        };
        let (bootstrap, infrastructure) = (keep(specs[0])?, keep(specs[1])?);
        let spec_id = spec_id(&machine, [&bootstrap, &infrastructure]);
        let watched = Self { machine, enabled_by, bootstrap, infrastructure, spec_id };
        Ok((watched.key(), watched))
    }
}

/// Sixteen digits that other kinds, versions and specs do not have.
fn spec_id(machine: &ScheduledMachine, specs: [&RawValue; 2]) -> String {
    let mut hash = Sha256::new();
    let objects = [&machine.spec.bootstrap_spec, &machine.spec.infrastructure_spec];
    for (object, spec) in objects.into_iter().zip(specs) {
        for part in [object.api_version.as_str(), object.kind.as_str(), spec.get()] {
            hash.update(part);
            hash.update([0]);
        }
    }
    hash.finalize().iter().take(8).fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The text with something else in the place of parts of it.
fn without(text: &str, parts: [(Option<&RawValue>, &'static str); 3]) -> String {
    // A part is borrowed from the text, so its place is the distance between the two.
    let place = |(part, instead): (Option<&RawValue>, &'static str)| {
        let part = part?.get();
        let start = (part.as_ptr().addr()).wrapping_sub(text.as_ptr().addr());
        Some((start, start + part.len(), instead))
    };
    let mut places: Vec<(usize, usize, &str)> = parts.into_iter().filter_map(place).collect();
    places.sort_unstable();
    let mut rest = String::with_capacity(text.len());
    let mut from = 0;
    for (start, end, instead) in places {
        rest.push_str(text.get(from..start).unwrap_or_default());
        rest.push_str(instead);
        from = end;
    }
    rest.push_str(text.get(from..).unwrap_or_default());
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bootstrap: &str) -> Watched {
        // The server's record of who wrote what is as deep as what was written.
        let text = format!(
            r#"{{"apiVersion":"5spot.finos.org/v1alpha1","kind":"ScheduledMachine",
            "metadata":{{"name":"a","namespace":"b","managedFields":[{{"fieldsV1":{bootstrap}}}],"uid":"u"}},
            "spec":{{"infrastructureSpec":{{"spec":{{"address":"10.0.0.1"}},"kind":"RemoteMachine"}},"killSwitch":true,
            "bootstrapSpec":{{"kind":"K0sWorkerConfig","spec":{bootstrap}}}}}}}"#
        );
        Watched::read(&RawValue::from_string(text).unwrap()).unwrap().1
    }

    #[test]
    fn an_embedded_spec_stays_the_text_it_was() {
        let odd = r#"{"n": 123456789012345678901234567890.10, "s": "\u00e9", "a":  [1]}"#;
        let watched = read(odd);
        assert_eq!(watched.embedded(Part::Bootstrap).unwrap().get(), odd);
        assert_eq!(watched.embedded(Part::Infrastructure).unwrap().get(), r#"{"address":"10.0.0.1"}"#);
        assert_eq!(watched.machine.spec.bootstrap_spec.kind, "K0sWorkerConfig");
        assert_eq!(watched.machine.spec.infrastructure_spec.kind, "RemoteMachine");
        assert_eq!(watched.machine.metadata.managed_fields, None);
    }

    #[test]
    fn an_embedded_spec_may_be_deeper_than_a_reader_of_json_goes() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
        let watched = read(&deep);
        assert!(watched.machine.spec.kill_switch, "orders are read whatever the rest is");
        assert_eq!(watched.embedded(Part::Bootstrap).unwrap().get(), deep);
        assert_eq!((watched.uid(), &watched.machine.metadata.managed_fields), ("u", &None));
    }

    #[test]
    fn specs_that_are_missing_are_empty() {
        let text = r#"{"metadata":{"name":"a","namespace":"b"},"spec":{}}"#;
        let (key, watched) = Watched::read(&RawValue::from_string(text.to_owned()).unwrap()).unwrap();
        assert_eq!(key, Key::new("b", "a"));
        assert_eq!(watched.embedded(Part::Bootstrap).unwrap().get(), "{}");
    }
}
