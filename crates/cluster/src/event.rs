//! Events, for `kubectl describe`.

use crate::error::{Error, call};
use crate::watched::Watched;
use fivespot_api::names::CONTROLLER;
use fivespot_core::lifecycle::Note;
use fivespot_core::text::printable;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Bytes of a note that the server accepts.
const NOTE_BYTES: usize = 1024;

/// Characters of a ScheduledMachine's name that fit before the hash.
const STEM_CHARS: usize = 200;

/// One event, ready to be sent.
pub(crate) struct Event<'a> {
    /// Its reason.
    pub(crate) reason: &'a str,
    /// Its text.
    pub(crate) text: &'a str,
    /// Whether somebody should look.
    pub(crate) is_warning: bool,
}

impl<'a> From<&'a Note> for Event<'a> {
    fn from(note: &'a Note) -> Self {
        Self { reason: note.news.word(), text: &note.text, is_warning: note.news.is_warning() }
    }
}

impl Event<'_> {
    /// Sends it on behalf of an instance. Its name is made of what it says and of the version of the object it was decided on: a process
    /// that dies and decides the same again does not tell it twice.
    pub(crate) async fn send(
        &self,
        client: &Client,
        instance: &str,
        watched: &Watched,
        now: Timestamp,
    ) -> Result<(), Error> {
        let metadata = &watched.machine.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let version = metadata.resource_version.as_deref().unwrap_or_default();
        let mut hash = Sha256::new();
        for part in [watched.uid(), version, self.reason, self.text] {
            hash.update(part);
            hash.update([0]);
        }
        let mut id = name.chars().take(STEM_CHARS).collect::<String>() + ".";
        for byte in hash.finalize().iter().take(8) {
            // Writing to a String cannot fail.
            let _ = write!(id, "{byte:02x}");
        }
        let body = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": id, "namespace": namespace},
            "eventTime": format!("{now:.6}"),
            "reportingController": CONTROLLER,
            "reportingInstance": instance,
            "action": "Reconcile",
            "reason": self.reason,
            "note": printable(self.text, NOTE_BYTES),
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "regarding": {
                "apiVersion": "5spot.finos.org/v1alpha1",
                "kind": "ScheduledMachine",
                "namespace": namespace,
                "name": name,
                "uid": watched.uid(),
                "resourceVersion": version,
            },
        });
        let what = format!("send the event {}", self.reason);
        let request = http::Request::post(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| Error::api(&what, kube::Error::HttpError(error)))?;
        match call(&what, client.request::<Sent>(request)).await {
            Err(error) if error.code() == Some(409) => Ok(()),
            answer => answer.map(|Sent {}| ()),
        }
    }
}

#[derive(Deserialize)]
struct Sent {}
