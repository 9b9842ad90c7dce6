//! Creating the objects of a machine, and asking the server beforehand whether it would.

use crate::capi;
use crate::error::{Error, Retry};
use crate::kinds::Place;
use crate::perform::Pass;
use crate::shell::Shell;
use fivespot_api::names::{self, CONTROLLER};
use fivespot_core::lifecycle::Part;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

impl Shell {
    /// Asks the server whether it would create a part. What it would not is remembered, and stops what would follow.
    pub(crate) async fn try_create(&self, pass: &mut Pass<'_>, part: Part) -> Result<(), Error> {
        let (place, body) = self.new_part(pass, part).await?;
        let what = format!("create the {part}, which was tried");
        match self.send(pass, &what, post(pass, &place, body, Earnest::DryRun)).await {
            // One of that name is there already: the server looked at everything else before. A webhook that takes no
            // part in dry runs has said nothing.
            Err(error) if error.code() != Some(409) && !error.refuses_dry_runs() => {
                if error.retry() == Retry::Refused {
                    pass.tried = Some(Err(error.to_string()));
                }
                Err(error)
            }
            Ok(_) | Err(_) => {
                pass.tried.get_or_insert(Ok(()));
                Ok(())
            }
        }
    }

    pub(crate) async fn create(&self, pass: &mut Pass<'_>, part: Part) -> Result<(), Error> {
        let (place, body) = self.new_part(pass, part).await?;
        let what = format!("create the {part}");
        match self.send(pass, &what, post(pass, &place, body, Earnest::Real)).await {
            // Neither a failure nor a success: the next look tells whether it is ours.
            Err(error) if error.code() == Some(409) => Err(Error::Changed { what }),
            answer => answer.map(|_| ()),
        }
    }

    async fn new_part(&self, pass: &Pass<'_>, part: Part) -> Result<(Place, String), Error> {
        let what = || format!("create the {part}");
        let changed = || Error::Changed { what: what() };
        let unwritable =
            |error: serde_json::Error| Error::Unreadable { what: what(), why: error.to_string() };
        let watched = pass.watched;
        let Some(embedded) = watched.embedded(part) else {
            let (version, places) = self.served().ok_or_else(changed)?;
            let place = places.machines.into_iter().next().ok_or_else(changed)?;
            let intent = pass.wish.ok_or_else(changed)?;
            return Ok((place, capi::machine(version, watched, intent).to_string()));
        };
        // Of the kind that the Machine refers to, and that the spec was written for.
        let intent = pass.wish.ok_or_else(changed)?;
        let kind = if part == Part::Bootstrap { &intent.bootstrap } else { &intent.infrastructure };
        let place = self.kinds.find(&self.client, kind).await?.ok_or_else(changed)?;
        let body = NewObject {
            api_version: format!("{}/{}", kind.group, kind.version),
            kind: &kind.kind,
            metadata: json!({
                "name": names::part_name(&watched.machine),
                "namespace": watched.machine.metadata.namespace,
                "labels": capi::labels(watched),
                "annotations": {names::CREATED_BY: CONTROLLER},
                "ownerReferences": [capi::owner(watched, false)],
            }),
            spec: embedded,
        };
        Ok((place, serde_json::to_string(&body).map_err(unwritable)?))
    }
}

/// A provider object, with its spec as the user sent it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewObject<'a> {
    api_version: String,
    kind: &'a str,
    metadata: Value,
    spec: &'a RawValue,
}

/// Whether a create is only tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Earnest {
    DryRun,
    Real,
}

/// A request to create an object. A field that the server does not know is an error: it would drop the field.
fn post(
    pass: &Pass<'_>,
    place: &Place,
    body: String,
    earnest: Earnest,
) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
    let path = place.path(pass.watched.machine.metadata.namespace.as_deref());
    let dry_run = match earnest {
        Earnest::DryRun => "&dryRun=All",
        Earnest::Real => "",
    };
    http::Request::post(format!("{path}?fieldManager={CONTROLLER}&fieldValidation=Strict{dry_run}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body.into_bytes())
        .map_err(kube::core::request::Error::BuildRequest)
}
