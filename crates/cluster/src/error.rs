//! What can go wrong between us and an API server, and whether it helps to try again.

use fivespot_core::text::{QUOTE_BYTES, printable};
use kube::core::response::Status;
use std::time::Duration;

/// How long one call may take.
pub(crate) const CALL: Duration = Duration::from_secs(10);

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused, or could not be reached.
    #[error("could not {what}: {}", describe(answer))]
    Api {
        /// What was tried.
        what: String,
        /// The answer.
        answer: Box<kube::Error>,
    },
    /// No answer.
    #[error("could not {what}: no answer within {} s", CALL.as_secs())]
    Timeout {
        /// What was tried.
        what: String,
    },
    /// The world has changed since the decision.
    #[error("could not {what}: it has changed meanwhile")]
    Changed {
        /// What was tried.
        what: String,
    },
    /// The right to write has been lost.
    #[error("did not {what}: this instance does not look after the machine any more")]
    NotHolder {
        /// What was not tried.
        what: String,
    },
    /// A text from a server or a Secret is not what it should be.
    #[error("could not {what}: {why}")]
    Unreadable {
        /// What was tried.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

/// When to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// In a moment: the world has moved on, and the next look shows how.
    Soon,
    /// With growing distance: something is broken that may mend itself.
    Later,
    /// With growing distance, and a person should know: the server refuses it for what it is.
    Refused,
}

impl Error {
    pub(crate) fn api(what: impl Into<String>, answer: kube::Error) -> Self {
        Self::Api { what: what.into(), answer: Box::new(answer) }
    }

    /// When to try again.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Changed { .. } | Self::NotHolder { .. } => Retry::Soon,
            Self::Timeout { .. } | Self::Unreadable { .. } => Retry::Later,
            Self::Api { answer, .. } => match code(answer) {
                Some(400 | 403 | 404 | 405 | 422) => Retry::Refused,
                Some(_) | None => Retry::Later,
            },
        }
    }

    /// Every word that [`Error::word`] says.
    pub const WORDS: [&str; 8] =
        ["changed", "timeout", "unreadable", "not_holder", "forbidden", "server", "refused", "connection"];

    /// A word for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Changed { .. } => "changed",
            Self::Timeout { .. } => "timeout",
            Self::Unreadable { .. } => "unreadable",
            Self::NotHolder { .. } => "not_holder",
            Self::Api { answer, .. } => match code(answer) {
                Some(403) => "forbidden",
                Some(code) if code >= 500 => "server",
                Some(_) => "refused",
                None => "connection",
            },
        }
    }

    /// The status code of the answer, if there was one.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Api { answer, .. } => code(answer),
            Self::Timeout { .. }
            | Self::Changed { .. }
            | Self::Unreadable { .. }
            | Self::NotHolder { .. } => None,
        }
    }
}

pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Whether the server itself failed. It answers so for a webhook that is down.
pub(crate) fn is_server_error(error: &kube::Error) -> bool {
    code(error).is_some_and(|code| code >= 500)
}

impl Error {
    /// Whether the server, or a webhook that it asks, could not do what it was asked to do.
    pub(crate) fn is_breakdown(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Api { answer, .. } => is_server_error(answer),
            Self::Changed { .. } | Self::Unreadable { .. } | Self::NotHolder { .. } => false,
        }
    }

    /// Whether a webhook would have to be asked that takes no part in dry runs.
    pub(crate) fn refuses_dry_runs(&self) -> bool {
        self.code() == Some(400) && self.to_string().contains("does not support dry run")
    }

    /// Whether the server said that there is no such object, and not that there is no such kind.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Self::Api { answer, .. } => match answer.as_ref() {
                kube::Error::Api(status) => status.code == 404 && has_name(status),
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether the server said that the caller has not the right to it.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Whether nobody answered.
    pub(crate) fn is_silence(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Api { answer, .. } => {
                !matches!(answer.as_ref(), kube::Error::Api(_) | kube::Error::SerdeError(_))
            }
            Self::Changed { .. } | Self::Unreadable { .. } | Self::NotHolder { .. } => false,
        }
    }

    /// Whether what a write named as still true was not: the version or the identity of the object, or a test of a
    /// JSON patch. An admission policy answers with the same code, but names the object.
    pub(crate) fn is_race(&self) -> bool {
        let Self::Api { answer, .. } = self else { return false };
        let kube::Error::Api(status) = answer.as_ref() else { return false };
        let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
        match status.code {
            404 | 409 => true,
            422 => !has_name(status) || causes.iter().any(|cause| cause.field == "metadata.uid"),
            _ => false,
        }
    }
}

fn has_name(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

/// What kube calls an answer that is no Kubernetes error.
const NO_STATUS: &str = "Failed to parse error data";

/// The server's own words, or the innermost cause: the layers between say nothing to a reader.
pub(crate) fn describe(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        if status.code == 404 && !has_name(status) {
            return "the server does not serve this kind (404): what defines it is not installed".to_owned();
        }
        // Whoever may write a kubeconfig chooses the server: what it says is shown only if it is a Kubernetes error.
        if status.reason == NO_STATUS {
            return format!("the server answered {} and no Kubernetes error", status.code);
        }
        // What kube makes of an event that it cannot read.
        if status.code == 0 && status.message.is_empty() {
            return "the server sent an event that is not one of Kubernetes".to_owned();
        }
        if status.message.is_empty() {
            return format!("{} {}", status.code, printable(&status.reason, QUOTE_BYTES));
        }
        return printable(&status.message, QUOTE_BYTES).into_owned();
    }
    if let kube::Error::SerdeError(error) = error {
        return describe_json(error);
    }
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    printable(&innermost.to_string(), QUOTE_BYTES).into_owned()
}

/// Where a text that should be JSON is not as it should be. What stands there is not shown: it may be a secret, or what
/// somebody wants to be read.
pub(crate) fn describe_json(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Io => "it could not be read",
        serde_json::error::Category::Syntax => "it is not JSON",
        serde_json::error::Category::Data => "a field is not of its type",
        serde_json::error::Category::Eof => "it ends too early",
    };
    format!("{what}, at line {} column {}", error.line(), error.column())
}

/// One call, with its bound.
pub(crate) async fn call<T>(
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(CALL, request).await {
        Ok(answer) => answer.map_err(|source| Error::api(what, source)),
        Err(_) => Err(Error::Timeout { what: what.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_server_are_quoted_in_one_line() {
        let says = |message: &str, reason: &str| {
            let details = serde_json::json!({"name": "a"});
            let status = serde_json::json!({
                "status": "Failure", "code": 422, "message": message, "reason": reason, "details": details,
            });
            describe(&kube::Error::Api(serde_json::from_value(status).unwrap()))
        };
        assert_eq!(says("no\n\u{1b}[2J\u{202e}", "Invalid"), r"no\n\u{1b}[2J\u{202e}");
        assert_eq!(says("", "Inv\u{9b}"), r"422 Inv\u{9b}");
        let long = says(&"ä".repeat(1000), "Invalid");
        assert!(long.len() <= QUOTE_BYTES && long.ends_with("ä…"), "{long}");
    }
}
