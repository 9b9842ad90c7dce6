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
}

/// Versions of a group, the preferred one first, and the kinds of each.
#[derive(Debug, Clone, Default)]
struct Group {
    versions: Vec<(String, HashMap<String, String>)>,
}

/// Where objects of a kind are had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    group: String,
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
        let known = self.known(&kind.group);
        let (asked, group) = match known {
            Some(known) => known,
            None => (Instant::now(), self.ask(client, &kind.group).await?),
        };
        if let Some(place) = group.find(kind).filter(|place| place.version == kind.version) {
            return Ok(Some(place));
        }
        // It may have been installed since.
        let group = if asked.elapsed() > DOUBT { self.ask(client, &kind.group).await? } else { group };
        Ok(group.find(kind))
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
    fn find(&self, kind: &ObjectType) -> Option<Place> {
        let exact = self.versions.iter().filter(|(version, _)| *version == kind.version);
        exact.chain(&self.versions).find_map(|(version, kinds)| {
            Some(Place {
                group: kind.group.clone(),
                version: version.clone(),
                plural: kinds.get(&kind.kind)?.clone(),
            })
        })
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
        Err(Error::Api { source, .. }) if code(&source) == Some(404) => Ok(None),
        answer => answer.map(Some),
    }
}
