//! What a person writes with the command line: that he wants the machine back, or that it may be lent again.

use crate::error::{Error, call};
use crate::node::REQUEST;
use crate::perform::{Answer, own_path};
use crate::shell::Shell;
use crate::watched::Watched;
use fivespot_api::names::{self, CLI};
use fivespot_core::reclaim;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Shell {
    /// Asks for the machine, on the ScheduledMachine itself. The request is for this very object, whatever else has
    /// changed in it meanwhile: an owner in a hurry does not race with the writes of the controller.
    pub async fn ask_back(&self, watched: &Watched, request: &reclaim::Request) -> Result<(), Error> {
        let annotations = json!({
            names::RECLAIM_REQUESTED: "true",
            names::RECLAIM_REASON: request.reason,
            names::RECLAIM_REQUESTED_AT: request.requested_at,
        });
        let body = json!({"metadata": {"uid": watched.uid(), "annotations": annotations}});
        self.patch_by_hand(watched, "ask for the machine", &body).await
    }

    /// Releases the hold of the reclaim with this id, enables the schedule, and takes a request by hand off that would
    /// begin anew. It is good for the object as it was seen and no other: [`Error::Changed`] asks to look again.
    pub async fn resume(&self, watched: &Watched, reclaim: &str) -> Result<(), Error> {
        let mut annotations: BTreeMap<&str, Value> =
            REQUEST.into_iter().map(|name| (name, Value::Null)).collect();
        annotations.insert(names::RESUME, json!(reclaim));
        let body = json!({
            "metadata": {
                "uid": watched.uid(),
                "resourceVersion": watched.machine.metadata.resource_version,
                "annotations": annotations,
            },
            "spec": {"schedule": {"enabled": true}},
        });
        self.patch_by_hand(watched, "resume the machine", &body).await
    }

    async fn patch_by_hand(&self, watched: &Watched, what: &str, body: &Value) -> Result<(), Error> {
        let key = watched.key();
        let params = PatchParams { field_manager: Some(CLI.to_owned()), ..PatchParams::default() };
        let request = Request::new(own_path(&key)).patch(&key.name, &params, &Patch::Merge(body));
        let request = request.map_err(|error| Error::api(what, kube::Error::BuildRequest(error)))?;
        match call(what, self.client.request::<Answer>(request)).await {
            Err(error) if error.is_race() => Err(Error::Changed { what: what.to_owned() }),
            answer => answer.map(|_| ()),
        }
    }
}
