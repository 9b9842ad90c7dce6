//! What the cluster wants, told to the shard again and again.
//!
//! A rollup that is built from half a list takes machines away that are needed. So it is built only from a copy that was
//! whole once and is kept by a live watch; and that nothing at all is wanted is believed only if the server itself says so.

use crate::metrics::{Metrics, count};
use crate::rollup::sum_up;
use crate::seen::{REQUESTS, RequestView};
use crate::wire::ClusterCapacityNeeds;
use fivespot_cluster::fleet::Fleet;
use fivespot_cluster::{Cache, Key};
use futures::StreamExt;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A watch that has heard nothing for this long may be dead without knowing it; the server speaks every minute.
const SILENCE: Duration = Duration::from_secs(100);

/// Requests that are acknowledged at the same time.
const AT_ONCE: usize = 16;

/// What the cluster wants.
pub struct Demand {
    /// Name of the cluster.
    pub cluster: String,
    /// The API server.
    pub fleet: Fleet,
    /// All requests.
    pub requests: Cache<RequestView>,
    /// What is counted.
    pub metrics: Metrics,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// Whether the last rollup wanted nothing, by the server's own word.
    was_empty: bool,
    /// Requests that cannot be used, and why.
    unusable: BTreeMap<String, String>,
}

impl Demand {
    /// The demand of a cluster.
    pub fn new(cluster: String, fleet: Fleet, requests: Cache<RequestView>, metrics: Metrics) -> Self {
        Self { cluster, fleet, requests, metrics, told: Mutex::default() }
    }

    /// All that is wanted now, or why that cannot be said; and the requests that the shard has heard of when it
    /// acknowledges that.
    pub async fn rollup(&self) -> Result<(ClusterCapacityNeeds, Vec<Key>), String> {
        self.check()?;
        let mut all = self.requests.all();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        if all.is_empty() && !self.told().was_empty {
            let listed = self.fleet.list::<RequestView>("list all CapacityRequests", REQUESTS).await;
            let listed = listed.map_err(|error| error.to_string())?;
            if !listed.is_empty() {
                return Err(format!(
                    "the watch shows no CapacityRequest and the server has {}",
                    listed.len()
                ));
            }
        }
        let names: Vec<String> = all.iter().map(|(key, _)| key.to_string()).collect();
        let demands = names.iter().zip(&all).map(|(name, (_, view))| (name.as_str(), &view.spec));
        let (rollup, unusable) = sum_up(&self.cluster, Timestamp::now(), demands);
        let mut told = self.told();
        told.was_empty = all.is_empty();
        let unusable: BTreeMap<String, String> =
            unusable.into_iter().map(|(name, why)| (name, why.to_string())).collect();
        for (name, why) in unusable.iter().filter(|(name, why)| told.unusable.get(*name) != Some(why)) {
            tracing::error!(
                request = name,
                "a CapacityRequest is left out, the shard would refuse all with it: {why}"
            );
        }
        self.metrics.unusable_requests.set(i64::try_from(unusable.len()).unwrap_or(i64::MAX));
        told.unusable = unusable;
        if rollup.needs.is_empty() && !all.is_empty() {
            // The shard would take it for a word that nothing is wanted.
            return Err(format!("no CapacityRequest of {} can be used", all.len()));
        }
        let is_new = |(key, request): &(Key, Arc<RequestView>)| {
            !request.is_acknowledged && !told.unusable.contains_key(&key.to_string())
        };
        Ok((rollup, all.into_iter().filter(is_new).map(|(key, _)| key).collect()))
    }

    /// Whether what the watch shows is all there is.
    fn check(&self) -> Result<(), String> {
        let health = self.requests.health();
        if let Some(failure) = health.failure {
            return Err(format!("the watch of CapacityRequests does not hear: {}", failure.message));
        }
        if !health.synced {
            return Err("the CapacityRequests have not been read yet".to_owned());
        }
        if health.doubted || health.heard.elapsed() > SILENCE {
            return Err("the watch of CapacityRequests has been silent for too long".to_owned());
        }
        if let Some((request, problem)) = self.requests.unreadable().first_key_value() {
            return Err(format!("CapacityRequest {request} cannot be read: {problem}"));
        }
        Ok(())
    }

    /// Says on requests that the fleet has heard of them.
    pub async fn acknowledge(&self, requests: Vec<Key>) {
        let now = Timestamp::now();
        let write = |request: Key| async move {
            if let Err(error) = self.fleet.acknowledge(&request, now).await {
                count(&self.metrics.writes, "failed");
                tracing::warn!(%request, %error, "a CapacityRequest could not be acknowledged");
            }
        };
        futures::stream::iter(requests).for_each_concurrent(AT_ONCE, write).await;
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
