//! A Lease: the right to write, held by one process at a time.
//!
//! As in Kubernetes' own leader election, nobody compares clocks. Whoever wants the Lease watches its record; only when
//! the record has not changed for the whole duration *on the watcher's own clock* is its holder taken for gone. The
//! holder, for its part, stops to believe in its right before that: [`Held::is_held`] ends at a deadline that is
//! counted from before the renewal was sent.

use http::Request;
use jiff::Timestamp;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Which Lease, for whom, and how long.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are; no other process has this name.
    pub holder: String,
    /// How long a record that does not change is respected.
    pub duration: Duration,
    /// How long the holder writes without having renewed.
    pub renew_deadline: Duration,
    /// How often it is renewed, or tried.
    pub retry: Duration,
}

/// The right to write, as far as this process knows.
#[derive(Debug, Clone, Default)]
pub struct Held {
    until: Arc<Mutex<Option<Instant>>>,
}

impl Held {
    /// Whether the right stands now.
    pub fn is_held(&self) -> bool {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn set(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// One Lease and what is known of it.
pub struct Lease {
    client: Client,
    settings: Settings,
    held: Held,
    seen: Option<(Record, Instant)>,
}

/// The part of a Lease that tells who holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Record {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}

#[derive(Deserialize)]
struct Object {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Record,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMeta {
    resource_version: String,
}

impl Lease {
    /// A Lease that is not held.
    pub fn new(client: Client, settings: Settings) -> Self {
        Self { client, settings, held: Held::default(), seen: None }
    }

    /// The right, to be asked before every write.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Returns when the Lease is ours.
    pub async fn acquire(&mut self) {
        let mut told = None;
        while !self.try_take().await {
            let holder = self.seen.as_ref().and_then(|(record, _)| record.holder_identity.clone());
            if holder.is_some() && holder != told {
                tracing::info!(lease = self.settings.name, ?holder, "another process holds the lease");
                told = holder;
            }
            sleep(self.settings.retry).await;
        }
        tracing::info!(lease = self.settings.name, holder = self.settings.holder, "holds the lease");
    }

    /// Renews the Lease; returns when it is lost.
    pub async fn keep(&mut self) {
        while self.held.is_held() {
            sleep(self.settings.retry).await;
            self.try_take().await;
        }
        tracing::error!(lease = self.settings.name, "the lease is lost");
    }

    /// Gives the Lease back, so that nobody has to wait for it.
    pub async fn release(&mut self) {
        self.held.set(None);
        let Ok(Some(object)) = self.read().await else { return };
        if object.spec.holder_identity.as_deref() != Some(self.settings.holder.as_str()) {
            return;
        }
        let record = Record {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(now()),
            ..object.spec
        };
        match self.write(Some(&object.metadata.resource_version), &record).await {
            Ok(()) => tracing::info!(lease = self.settings.name, "released the lease"),
            Err(error) => {
                tracing::warn!(lease = self.settings.name, %error, "the lease could not be released");
            }
        }
    }

    /// One attempt to take or renew it; whether it is ours.
    async fn try_take(&mut self) -> bool {
        let asked = Instant::now();
        match self.take(asked).await {
            Ok(true) => {
                self.held.set(Some(asked + self.settings.renew_deadline));
                true
            }
            Ok(false) => {
                self.held.set(None);
                false
            }
            // Somebody wrote to it meanwhile: whether it is still ours is seen next time.
            Err(kube::Error::Api(status)) if status.code == 409 => false,
            // The right stands until its deadline: the server may be back before.
            Err(error) => {
                tracing::warn!(lease = self.settings.name, %error, "the lease could not be renewed");
                false
            }
        }
    }

    async fn take(&mut self, asked: Instant) -> Result<bool, kube::Error> {
        let Some(object) = self.read().await? else {
            return self.write(None, &self.next(&Record::default())).await.map(|()| true);
        };
        let record = object.spec;
        let ours = record.holder_identity.as_deref() == Some(self.settings.holder.as_str());
        let free = record.holder_identity.as_deref().unwrap_or_default().is_empty();
        if !ours && !free && !self.is_stale(&record, asked) {
            return Ok(false);
        }
        self.write(Some(&object.metadata.resource_version), &self.next(&record)).await.map(|()| true)
    }

    /// Whether a record has not changed for its whole duration, on our own clock.
    fn is_stale(&mut self, record: &Record, asked: Instant) -> bool {
        let since = match &self.seen {
            Some((seen, since)) if seen == record => *since,
            _ => {
                self.seen = Some((record.clone(), asked));
                asked
            }
        };
        let seconds = record.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(self.settings.duration, Duration::from_secs);
        asked.duration_since(since) >= duration
    }

    fn next(&self, record: &Record) -> Record {
        let ours = record.holder_identity.as_deref() == Some(self.settings.holder.as_str());
        let transitions = record.lease_transitions.unwrap_or(0);
        let now = now();
        Record {
            holder_identity: Some(self.settings.holder.clone()),
            lease_duration_seconds: i64::try_from(self.settings.duration.as_secs()).ok(),
            acquire_time: if ours { record.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
        }
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.settings.namespace)
    }

    async fn read(&self) -> Result<Option<Object>, kube::Error> {
        let path = format!("{}/{}", self.path(), self.settings.name);
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        match self.bounded(self.client.request::<Object>(request)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            answer => answer.map(Some),
        }
    }

    async fn write(&self, version: Option<&str>, record: &Record) -> Result<(), kube::Error> {
        let Settings { namespace, name, .. } = &self.settings;
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace, "resourceVersion": version},
            "spec": record,
        });
        let request = match version {
            Some(_) => Request::put(format!("{}/{name}", self.path())),
            None => Request::post(self.path()),
        };
        let request = request.header(http::header::CONTENT_TYPE, "application/json");
        let request = request.body(body.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
        self.bounded(self.client.request::<Object>(request)).await.map(|_| ())
    }

    /// A call that takes longer than the right lasts is of no use.
    async fn bounded<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
        let silent = |_| kube::Error::ReadEvents(std::io::Error::from(std::io::ErrorKind::TimedOut));
        timeout(self.settings.renew_deadline / 2, call).await.map_err(silent)?
    }
}

fn now() -> String {
    format!("{:.6}", Timestamp::now())
}
