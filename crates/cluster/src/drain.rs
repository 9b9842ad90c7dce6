//! Pods: listed, evicted, ended.

use crate::cache::{Source, list_all};
use crate::error::{CALL, Error};
use crate::gate::Admission;
use crate::node::PodItem;
use crate::permission::Permission;
use crate::workload::Reached;
use fivespot_core::drain::{Attempt, Attempts, Outcome, Pod, PodId, Way};
use fivespot_core::text::{QUOTE_BYTES, printable};
use futures::StreamExt;
use kube::core::response::Status;
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};

/// Pods that are asked at the same time.
const AT_ONCE: usize = 16;

/// The pods of a Node.
pub(crate) async fn pods(reached: &Reached, node: &str) -> Result<Vec<Pod>, Error> {
    let source = Source {
        fields: Some(format!("spec.nodeName={node}")),
        metadata_only: true,
        ..reached.source("/api/v1/pods")
    };
    let pods = list_all::<PodItem>(&format!("list the pods of Node {node}"), &source).await?;
    Ok(pods.into_iter().map(|PodItem(pod)| pod).collect())
}

/// Asks each pod once.
pub(crate) async fn ask(
    reached: &Reached,
    pods: &[PodId],
    way: Way,
    admission: Admission,
    permission: &Permission,
) -> Attempts {
    let admission = &admission;
    let attempts = futures::stream::iter(pods.iter().cloned()).map(|pod| async move {
        let _permit = reached.gate.enter(admission.clone()).await;
        let not_ours =
            || Outcome::Refused("this instance does not look after the machine any more".to_owned());
        let outcome = permission.within(ask_one(&reached.client, &pod, way)).await.unwrap_or_else(not_ours);
        Attempt { pod, outcome }
    });
    Attempts(attempts.buffered(AT_ONCE).collect().await)
}

async fn ask_one(client: &Client, pod: &PodId, way: Way) -> Outcome {
    let request = match request(pod, way) {
        Ok(request) => request,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    match tokio::time::timeout(CALL, client.request::<Value>(request)).await {
        Ok(Ok(_)) => Outcome::Accepted,
        Ok(Err(KubeError::Api(status))) => read_answer(&status),
        Ok(Err(error)) => Outcome::Refused(crate::error::describe(&error)),
        Err(_) => Outcome::Refused(format!("no answer within {} s", CALL.as_secs())),
    }
}

/// Both requests carry the identity of the pod: a StatefulSet's next pod of the same name lives elsewhere.
pub(crate) fn request(pod: &PodId, way: Way) -> Result<http::Request<Vec<u8>>, http::Error> {
    let PodId { namespace, name, uid } = pod;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let (method, path, body) = match way {
        Way::Evict { grace } => {
            let mut options = json!({"preconditions": {"uid": uid}});
            if let Some(grace) = grace {
                options["gracePeriodSeconds"] = json!(grace);
            }
            let body = json!({
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"namespace": namespace, "name": name},
                "deleteOptions": options,
            });
            (http::Method::POST, format!("{path}/eviction"), body)
        }
        Way::Force => (
            http::Method::DELETE,
            path,
            json!({
                "apiVersion": "v1", "kind": "DeleteOptions",
                "gracePeriodSeconds": 0, "preconditions": {"uid": uid},
            }),
        ),
    };
    let request = http::Request::builder().method(method).uri(path);
    request.header(http::header::CONTENT_TYPE, "application/json").body(body.to_string().into_bytes())
}

pub(crate) fn read_answer(status: &Status) -> Outcome {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let cause = |reason: &str| causes.iter().find(|cause| cause.reason == reason);
    match (status.code, cause("DisruptionBudget")) {
        // Gone, or another pod of that name; or the server is busy: then it is asked again in the next pass, and nobody is
        // in the way.
        (404 | 409, _) | (429, None) => Outcome::Accepted,
        (429, Some(cause)) => Outcome::Blocked(printable(&cause.message, QUOTE_BYTES).into_owned()),
        (403, _) if cause("NamespaceTerminating").is_some() => {
            Outcome::Refused("its namespace is being deleted, which ends it too".to_owned())
        }
        (code, _) if status.message.is_empty() => Outcome::Refused(format!("the API server answered {code}")),
        _ => Outcome::Refused(printable(&status.message, QUOTE_BYTES).into_owned()),
    }
}
