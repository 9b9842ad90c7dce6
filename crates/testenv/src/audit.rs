//! What an API server wrote down about the requests it answered.

use crate::error::{Context, Error};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// One request, as the API server saw it. Fields that a request does not have are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// When it came.
    pub at: Timestamp,
    /// `ResponseComplete`; a watch has another entry before, with `ResponseStarted`; `Panic` if the server did.
    pub stage: String,
    /// Who asked: the impersonated user, if any.
    pub user: String,
    /// With which program.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// API group of the object, empty for the core group.
    pub group: String,
    /// Plural of the object's kind.
    pub resource: String,
    /// `status`, `eviction` and the like.
    pub subresource: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The answer's HTTP status, 0 if there was none yet.
    pub code: u16,
    /// What was sent, of writes to Leases.
    pub body: Option<Value>,
}

/// Reads a whole log. The last line may be half written: it is left for the next time.
pub(crate) fn read(log: &Path) -> Result<Vec<AuditEntry>, Error> {
    let text = fs::read(log).context(|| format!("read {}", log.display()))?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let lines = text[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let event: Event =
                serde_json::from_slice(line).map_err(Error::api("read a line of the audit log"))?;
            event.entry()
        })
        .collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    request_received_timestamp: String,
    stage: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    user_agent: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    object_ref: Object,
    #[serde(default)]
    response_status: Answer,
    request_object: Option<Value>,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Object {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Answer {
    code: u16,
}

impl Event {
    fn entry(self) -> Result<AuditEntry, Error> {
        let at =
            self.request_received_timestamp.parse().map_err(Error::api("read a time of the audit log"))?;
        let Object { api_group, resource, subresource, namespace, name } = self.object_ref;
        Ok(AuditEntry {
            at,
            stage: self.stage,
            user: self.impersonated_user.unwrap_or(self.user).username,
            user_agent: self.user_agent,
            verb: self.verb,
            uri: self.request_uri,
            group: api_group,
            resource,
            subresource,
            namespace,
            name,
            code: self.response_status.code,
            body: self.request_object,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_line_that_is_half_written_is_left_for_later() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        let line = r#"{"stage":"ResponseComplete","requestURI":"/api/v1/pods","verb":"list","user":{"username":"a"},
            "impersonatedUser":{"username":"b"},"responseStatus":{"code":200},
            "requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z"}"#;
        write!(log, "{}\n{{\"stage\":\"Resp", line.replace('\n', "")).unwrap();
        let entries = read(log.path()).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].user.as_str(), entries[0].code), ("b", 200));
        assert_eq!(entries[0].at.to_string(), "2026-01-02T03:04:05.678901Z");
    }
}
