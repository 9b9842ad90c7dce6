//! Plurals and versions, as the server itself tells them.

use crate::error::{Error, call, code};
use fivespot_core::intent::ObjectType;
use kube::Client;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long it is believed that a kind is not served.
const DOUBT: Duration = Duration::from_secs(5);

/// What the server serves, as far as somebody asked.
#[derive(Default)]
pub(crate) struct Kinds {
    groups: Mutex<HashMap<String, (Instant, Group)>>,
    /// One asks, and the others wait for the answer.
    asking: tokio::sync::Mutex<()>,
}

/// Versions of a group, the preferred one first, and the kinds of each.
#[derive(Debug, Clone, Default)]
struct Group {
    versions: Vec<(String, HashMap<String, String>)>,
}

/// Where objects of a kind are had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) group: String,
    pub(crate) version: String,
    plural: String,
}

impl Place {
    /// Path of all objects, in one namespace or in all.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        let Self { group, version, plural } = self;
        match namespace {
            Some(namespace) => format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}"),
            None => format!("/apis/{group}/{version}/{plural}"),
        }
    }

    /// Plural and group, as rights are spoken of: `machines.cluster.x-k8s.io`.
    pub(crate) fn resource(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }
}

#[derive(Deserialize)]
struct ApiGroup {
    versions: Vec<ApiGroupVersion>,
}

#[derive(Deserialize)]
struct ApiGroupVersion {
    version: String,
}

#[derive(Deserialize)]
struct ApiResources {
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
    namespaced: bool,
}

impl Kinds {
    /// Where objects of a kind are had, in this version if it is served, else in the one the server prefers.
    pub(crate) async fn find(&self, client: &Client, kind: &ObjectType) -> Result<Option<Place>, Error> {
        let mut places = self.find_all(client, kind).await?;
        let exact = places.iter().position(|place| place.version == kind.version).unwrap_or(0);
        Ok((!places.is_empty()).then(|| places.swap_remove(exact)))
    }

    /// Every place where objects of a kind are had, the one that the server prefers first. All show the same objects;
    /// one whose version is not the stored one answers only while the provider's conversion webhook does.
    pub(crate) async fn find_all(&self, client: &Client, kind: &ObjectType) -> Result<Vec<Place>, Error> {
        let is_exact = |group: &Group| group.find(kind).iter().any(|place| place.version == kind.version);
        // It may have been installed since it was asked for.
        let is_good = |(asked, group): &(Instant, Group)| is_exact(group) || asked.elapsed() <= DOUBT;
        if let Some((_, group)) = self.known(&kind.group).filter(is_good) {
            return Ok(group.find(kind));
        }
        let _turn = self.asking.lock().await;
        if let Some((_, group)) = self.known(&kind.group).filter(is_good) {
            return Ok(group.find(kind));
        }
        match self.ask(client, &kind.group).await {
            // What was served when it was last asked for is better than nothing: no exit waits for discovery.
            Err(error) => match self.known(&kind.group) {
                Some((_, group)) => Ok(group.find(kind)),
                None => Err(error),
            },
            Ok(group) => Ok(group.find(kind)),
        }
    }

    /// Something that was served is not any more: whoever asks next asks the server.
    pub(crate) fn forget(&self, group: &str) {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).remove(group);
    }

    fn known(&self, group: &str) -> Option<(Instant, Group)> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).get(group).cloned()
    }

    async fn ask(&self, client: &Client, name: &str) -> Result<Group, Error> {
        let mut group = Group::default();
        let what = format!("ask the server for the kinds of {name}");
        let listed: Option<ApiGroup> = get(client, &what, &format!("/apis/{name}")).await?;
        for ApiGroupVersion { version } in listed.map(|listed| listed.versions).unwrap_or_default() {
            let path = format!("/apis/{name}/{version}");
            let Some(resources) = get::<ApiResources>(client, &what, &path).await? else { continue };
            let kinds = resources.resources.into_iter();
            // Subresources have a slash in their names.
            let kinds = kinds.filter(|resource| resource.namespaced && !resource.name.contains('/'));
            group.versions.push((version, kinds.map(|resource| (resource.kind, resource.name)).collect()));
        }
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.insert(name.to_owned(), (Instant::now(), group.clone()));
        Ok(group)
    }
}

impl Group {
    fn find(&self, kind: &ObjectType) -> Vec<Place> {
        let place = |(version, kinds): &(String, HashMap<String, String>)| {
            Some(Place {
                group: kind.group.clone(),
                version: version.clone(),
                plural: kinds.get(&kind.kind)?.clone(),
            })
        };
        self.versions.iter().filter_map(place).collect()
    }
}

/// Reads a path; `None` if there is nothing.
async fn get<T: serde::de::DeserializeOwned>(
    client: &Client,
    what: &str,
    path: &str,
) -> Result<Option<T>, Error> {
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(|error| Error::api(what, kube::Error::HttpError(error)))?;
    match call(what, client.request::<T>(request)).await {
        Err(Error::Api { answer, .. }) if code(&answer) == Some(404) => Ok(None),
        answer => answer.map(Some),
    }
}
