//! The provider objects of a ScheduledMachine: of them only metadata is of interest.

use crate::cache::{Item, Key};
use fivespot_core::observed::{Certainty, Foreign, Object, Presence, Version, one_line};
use fivespot_core::text::{QUOTE_BYTES, printable};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A provider object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PartItem {
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) object: Object,
}

/// Why a provider fails, as its object says it: where the contract of v1beta1 has it, or where v1beta2 keeps that.
#[derive(Debug, PartialEq)]
pub(crate) struct ProviderWords(pub(crate) Option<String>);

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawFailing {
    failure_message: Option<String>,
    failure_reason: Option<String>,
    deprecated: RawDeprecated,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawDeprecated {
    v1beta1: RawFailure,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawFailure {
    failure_message: Option<String>,
    failure_reason: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawPart {
    status: RawFailing,
}

impl Item for ProviderWords {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let RawPart { status } = serde_json::from_str(raw.get())?;
        let RawFailure { failure_message, failure_reason } = status.deprecated.v1beta1;
        let said = [status.failure_message, failure_message, status.failure_reason, failure_reason];
        let said = said.into_iter().flatten().find(|text| !text.trim().is_empty());
        let said = said.map(|text| printable(&one_line(&text), QUOTE_BYTES).into_owned());
        Ok((key_of(&metadata), Self(said)))
    }
}

#[derive(Deserialize)]
pub(crate) struct MetaOnly {
    pub(crate) metadata: Meta,
}

/// What is read of the metadata of objects. Not who manages their fields: that is as deep as the fields are, and a
/// reader of JSON gives up where an API server does not.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Meta {
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) creation_timestamp: Option<Time>,
    pub(crate) deletion_timestamp: Option<Time>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    pub(crate) owner_references: Option<Vec<OwnerReference>>,
}

impl Item for PartItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let owners = metadata.owner_references.clone().unwrap_or_default();
        Ok((key_of(&metadata), Self { object: object_of(&metadata, &owners), owners }))
    }
}

impl PartItem {
    /// How it stands to the ScheduledMachine of this identity.
    pub(crate) fn presence(&self, uid: &str, what: &str) -> Presence<Object> {
        if is_owned(&self.owners, uid) {
            return Presence::Ours(self.object.clone());
        }
        Presence::Foreign(foreign(&self.owners, what))
    }
}

pub(crate) fn key_of(metadata: &Meta) -> Key {
    Key::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

pub(crate) fn object_of(metadata: &Meta, owners: &[OwnerReference]) -> Object {
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    Object {
        uid: metadata.uid.clone().unwrap_or_default(),
        version: Version(metadata.resource_version.clone().unwrap_or_default()),
        created_at: time(&metadata.creation_timestamp).unwrap_or(Timestamp::UNIX_EPOCH),
        deleting_since: time(&metadata.deletion_timestamp),
        has_machine_owner: owners
            .iter()
            .any(|owner| owner.kind == "Machine" && owner.api_version.starts_with("cluster.x-k8s.io/")),
    }
}

/// Ours is what names this very ScheduledMachine as an owner: not one of the same name that lived before.
pub(crate) fn is_owned(owners: &[OwnerReference], uid: &str) -> bool {
    owners.iter().any(|owner| owner.uid == uid)
}

pub(crate) fn foreign(owners: &[OwnerReference], what: &str) -> Foreign {
    let owner = owners.iter().find(|owner| owner.controller == Some(true)).or(owners.first());
    Foreign { what: what.to_owned(), owner: owner.map(|owner| format!("{} {}", owner.kind, owner.name)) }
}

/// No object, as far as is known.
pub(crate) fn absent<T>(certain: bool) -> Presence<T> {
    Presence::Absent(if certain { Certainty::Confirmed } else { Certainty::Rumour })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_however_deep_its_fields_are() {
        let deep = format!("{}1{}", r#"{"f:a":"#.repeat(500), "}".repeat(500));
        let text = format!(
            r#"{{"metadata":{{"name":"a","namespace":"b","managedFields":[{{"fieldsV1":{deep}}}],"uid":"u"}},"spec":{deep}}}"#
        );
        let (key, item) = PartItem::read(&RawValue::from_string(text).unwrap()).unwrap();
        assert_eq!((key, item.object.uid.as_str()), (Key::new("b", "a"), "u"));
    }
}
