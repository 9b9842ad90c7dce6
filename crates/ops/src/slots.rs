//! Shares of the work, each held through a Lease by one process at a time.
//!
//! What is decided about Leases is in [`fivespot_core::slots`]; here it is carried out. Leases are looked at every few
//! seconds, at the very moment one may have ended, and when a watch tells that one was freed or is asked for.

use fivespot_api::{Lease, lease_change, lease_name, leases_path};
use fivespot_core::slots::{Found, Instance, Moment, Slots, Write};
use futures::{StreamExt, future};
use http::Request;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use kube::Client;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// How soon Leases are looked at again that could not be read.
const AFTER_A_FAILURE: Duration = Duration::from_millis(250);

/// How often everything is given back, until nothing bears our name.
const RELEASES: u32 = 3;

/// Which Leases, and for whom.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the Leases.
    pub namespace: String,
    /// Whose they are: they are called `<program>-<slot>`.
    pub program: &'static str,
    /// Who we are.
    pub instance: Instance,
}

/// What is held, as far as this process knows.
#[derive(Debug, Clone)]
pub struct Holdings {
    count: NonZeroU32,
    until: Arc<Mutex<BTreeMap<u32, Moment>>>,
    complaint: Arc<Mutex<Option<String>>>,
}

impl Holdings {
    /// How many slots there are.
    pub fn count(&self) -> NonZeroU32 {
        self.count
    }

    /// For how long a slot is held, if it is.
    pub fn remaining(&self, slot: u32) -> Option<Duration> {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner).get(&slot).copied()?;
        until.checked_sub(now()).filter(|remaining| !remaining.is_zero())
    }

    /// The slots that are held now.
    pub fn held(&self) -> Vec<u32> {
        let (now, until) = (now(), self.until.lock().unwrap_or_else(PoisonError::into_inner));
        until.iter().filter(|(_, until)| now < **until).map(|(slot, _)| *slot).collect()
    }

    /// What was wrong when Leases were last looked at, if anything was.
    pub fn complaint(&self) -> Option<String> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other slots in the place of those that were held; returns the ones before.
    fn replace(&self, until: BTreeMap<u32, Moment>) -> BTreeMap<u32, Moment> {
        std::mem::replace(&mut *self.until.lock().unwrap_or_else(PoisonError::into_inner), until)
    }

    fn remove(&self, slot: u32) {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
    }
}

/// How a slot was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It was given to one who asked for it.
    HandedOver,
    /// It could not be renewed in time, or another took it.
    Lost,
}

/// Who works on what is held.
pub trait Tenant {
    /// This slot is ours from now on.
    fn gained(&self, slot: u32);

    /// It is ours no more.
    fn lost(&self, slot: u32, how: Loss);

    /// Ends what is done in these slots; they are handed over when this returns. Nothing new may be begun in them.
    fn leave(&self, slots: &BTreeSet<u32>) -> impl Future<Output = ()> + Send;
}

/// Takes, renews and hands over.
pub struct Keeper {
    client: Client,
    settings: Settings,
    slots: Slots,
    holdings: Holdings,
    leases: BTreeMap<u32, Lease>,
    ring: Arc<Notify>,
    /// Who goes by another count, as it was last said.
    told: Option<(String, NonZeroU32)>,
    stands_by: bool,
}

#[derive(Deserialize)]
struct Leases {
    items: Vec<Lease>,
}

impl Keeper {
    /// One that holds nothing yet.
    pub fn new(client: Client, settings: Settings) -> Self {
        let holdings =
            Holdings { count: settings.instance.count, until: Arc::default(), complaint: Arc::default() };
        let slots = Slots::new(settings.instance.clone());
        let (leases, ring) = (BTreeMap::new(), Arc::default());
        Self { client, settings, slots, holdings, leases, ring, told: None, stands_by: false }
    }

    /// What is held, to be asked before every write.
    pub fn holdings(&self) -> Holdings {
        self.holdings.clone()
    }

    /// Takes and keeps what it can get, until it is asked to stop. What it is about to write then is written, so that
    /// nothing is held without anybody knowing.
    pub async fn keep(&mut self, tenant: &impl Tenant, stop: impl Future<Output = ()>) {
        let watch = self.watch();
        let mut stop = pin!(stop);
        let rounds = async {
            let mut failures = 0;
            loop {
                failures = if self.round(tenant).await { 0 } else { failures + 1 };
                let longest = self.settings.instance.timing.retry;
                let shortest = match failures {
                    0 => Duration::ZERO,
                    many => (AFTER_A_FAILURE * 2_u32.saturating_pow(many - 1)).min(longest),
                };
                let pause = self.slots.next(now()).saturating_sub(now()).max(shortest);
                tokio::select! {
                    () = &mut stop => return,
                    _ = timeout(pause, self.ring.notified()) => {}
                }
            }
        };
        tokio::select! {
            () = watch => {}
            () = rounds => {}
        }
    }

    /// Gives everything back, so that nobody has to wait for it.
    pub async fn release(&mut self) {
        self.holdings.replace(BTreeMap::new());
        let mut released = BTreeSet::new();
        // Somebody may write to one between look and write, to ask for it.
        for _ in 0..RELEASES {
            let Ok(leases) = self.look().await else { continue };
            self.see(leases);
            let writes = self.slots.free_all(now());
            if writes.is_empty() {
                break;
            }
            released.extend(writes.iter().map(|write| write.slot));
            self.carry_out(writes).await;
        }
        if !released.is_empty() {
            tracing::info!(slots = ?Vec::from_iter(released), "released");
        }
    }

    /// Looks at the Leases and does what follows; whether the server let us.
    async fn round(&mut self, tenant: &impl Tenant) -> bool {
        let look = self.look().await;
        let is_seen = look.is_ok();
        let writes = match look {
            Ok(leases) => {
                self.see(leases);
                self.say_who_counts_otherwise();
                self.publish(tenant);
                self.say_that_it_stands_by();
                let mut writes = self.hand_over(tenant).await;
                writes.extend(self.slots.plan(now()));
                writes
            }
            Err(error) => {
                self.complain(format!("the leases could not be read: {error}"));
                self.slots.renew(now())
            }
        };
        let is_written = self.carry_out(writes).await;
        self.publish(tenant);
        if is_seen && is_written {
            *self.complaint() = None;
        }
        is_seen && is_written
    }

    /// Says what is wrong, once.
    fn complain(&self, text: String) {
        let mut complaint = self.complaint();
        if complaint.as_ref() != Some(&text) {
            tracing::warn!("{text}");
            *complaint = Some(text);
        }
    }

    fn complaint(&self) -> MutexGuard<'_, Option<String>> {
        self.holdings.complaint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&mut self, leases: BTreeMap<u32, Lease>) {
        self.slots.see(now(), leases.iter().map(|(slot, lease)| (*slot, lease.found())).collect());
        self.leases = leases;
    }

    /// Ends what is done in slots that others ask for.
    async fn hand_over(&mut self, tenant: &impl Tenant) -> Vec<Write> {
        let slots = self.slots.to_hand_over();
        if slots.is_empty() {
            return Vec::new();
        }
        tenant.leave(&slots).await;
        for slot in &slots {
            self.holdings.remove(*slot);
            tracing::info!(slot, "hands the slot over");
            tenant.lost(*slot, Loss::HandedOver);
        }
        self.slots.free(&slots, now())
    }

    /// Makes known what is held.
    fn publish(&self, tenant: &impl Tenant) {
        let now = now();
        let held = self.slots.held(now);
        let after: BTreeSet<u32> = held.keys().copied().collect();
        let before = self.holdings.replace(held);
        for slot in before.keys().filter(|slot| !after.contains(slot)) {
            tracing::warn!(slot, "the slot is lost");
            tenant.lost(*slot, Loss::Lost);
        }
        // What was not held for a moment is gained anew: whatever fell into that moment must not be missed.
        for slot in after.iter().filter(|slot| before.get(slot).is_none_or(|until| *until <= now)) {
            let of = self.settings.instance.count;
            tracing::info!(slot, of, holder = self.settings.instance.name, "holds the slot");
            tenant.gained(*slot);
        }
    }

    fn say_who_counts_otherwise(&mut self) {
        let other = self.slots.of_another_count(now()).map(|holder| (holder.name.clone(), holder.count));
        if let Some((holder, theirs)) = other.as_ref().filter(|_| other != self.told) {
            let ours = self.settings.instance.count;
            tracing::warn!(
                holder,
                theirs,
                ours,
                "waits: another instance goes by another number of slots, and must end first"
            );
        }
        self.told = other;
    }

    fn say_that_it_stands_by(&mut self) {
        let idle = self.slots.is_idle(now());
        if idle && !self.stands_by {
            tracing::info!("stands by: others hold all slots");
        }
        self.stands_by = idle;
    }

    async fn look(&self) -> Result<BTreeMap<u32, Lease>, kube::Error> {
        // From the server itself, not from its cache: what was written before this must be in it.
        let request = Request::get(leases_path(&self.settings.namespace)).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError)?;
        let leases = self.bounded(self.client.request::<Leases>(request)).await?.items.into_iter();
        let program = self.settings.program;
        Ok(leases.filter_map(|lease| Some((lease.slot(program)?, lease))).collect())
    }

    /// Writes; whether the server let us, though somebody may have been faster.
    async fn carry_out(&mut self, writes: Vec<Write>) -> bool {
        let mut is_written = true;
        let outcomes = future::join_all(writes.into_iter().map(|write| self.write(write))).await;
        for (write, asked, answer) in outcomes {
            match answer {
                Ok(lease) => {
                    self.slots.wrote(&write, asked, now(), lease.found());
                    self.leases.insert(write.slot, lease);
                }
                // Somebody was faster: the next look shows who.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    tracing::debug!(slot = write.slot, what = ?write.what, "somebody was faster");
                }
                // What is held stands until its deadline: the server may be back before.
                Err(error) => {
                    self.complain(format!("the lease of slot {} could not be written: {error}", write.slot));
                    is_written = false;
                }
            }
        }
        is_written
    }

    async fn write(&self, write: Write) -> (Write, Moment, Result<Lease, kube::Error>) {
        let asked = now();
        let answer = match self.request(&write) {
            Ok(request) => self.bounded(self.client.request::<Lease>(request)).await,
            Err(error) => Err(kube::Error::HttpError(error)),
        };
        (write, asked, answer)
    }

    fn request(&self, write: &Write) -> Result<Request<Vec<u8>>, http::Error> {
        let Settings { namespace, program, instance } = &self.settings;
        let (path, name) = (leases_path(namespace), lease_name(program, write.slot));
        let before = self.leases.get(&write.slot).map(|lease| (lease, lease.found().record));
        let before = before.as_ref().map(|(lease, record)| (*lease, record));
        let mut body = lease_change(&write.what, instance, before, &format!("{:.6}", Timestamp::now()));
        let bytes = |body: &Value| body.to_string().into_bytes();
        if let Some(version) = &write.version {
            body["metadata"]["resourceVersion"] = json!(version);
            return Request::patch(format!("{path}/{name}?fieldManager={program}"))
                .header(CONTENT_TYPE, "application/merge-patch+json")
                .body(bytes(&body));
        }
        body["metadata"]["name"] = json!(name);
        body["kind"] = json!("Lease");
        body["apiVersion"] = json!("coordination.k8s.io/v1");
        // What is to be absent need not be named.
        if let Some(annotations) = body["metadata"]["annotations"].as_object_mut() {
            annotations.retain(|_, value| !value.is_null());
        }
        Request::post(format!("{path}?fieldManager={program}"))
            .header(CONTENT_TYPE, "application/json")
            .body(bytes(&body))
    }

    /// A call must end while a holder is still respected that believed in its Lease when it sent it; and there must be
    /// time for more than one.
    async fn bounded<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
        let timing = self.settings.instance.timing;
        let longest = (timing.renew_deadline / 4).min(timing.duration.saturating_sub(timing.renew_deadline));
        let silent = |_| kube::Error::ReadEvents(std::io::Error::from(std::io::ErrorKind::TimedOut));
        timeout(longest, call).await.map_err(silent)?
    }

    /// Rings when a slot is freed, or is asked for. A watch that fails costs some seconds and nothing else.
    fn watch(&self) -> impl Future<Output = ()> + Send + use<> {
        let (client, settings, ring) = (self.client.clone(), self.settings.clone(), Arc::clone(&self.ring));
        async move {
            loop {
                if let Err(error) = follow(&client, &settings, &ring).await {
                    tracing::debug!(%error, "the watch of the leases ended");
                }
                sleep(settings.instance.timing.retry).await;
            }
        }
    }
}

/// A watch that hears nothing while Leases are renewed is deaf.
async fn follow(client: &Client, settings: &Settings, ring: &Notify) -> Result<(), kube::Error> {
    let patience = settings.instance.timing.renew_deadline;
    let deaf = |_| kube::Error::ReadEvents(std::io::Error::from(std::io::ErrorKind::TimedOut));
    let path = leases_path(&settings.namespace);
    let request = Request::get(format!("{path}?watch=true&timeoutSeconds=290")).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    let events = timeout(patience, client.request_events::<Lease>(request)).await.map_err(deaf)??;
    let mut events = pin!(events);
    while let Some(event) = timeout(patience, events.next()).await.map_err(deaf)? {
        let (WatchEvent::Added(lease) | WatchEvent::Modified(lease) | WatchEvent::Deleted(lease)) = event?
        else {
            continue;
        };
        let Found { record, .. } = lease.found();
        let asks_us = record.wanted_by.is_some()
            && record.holder.as_ref().is_some_and(|holder| holder.name == settings.instance.name);
        if lease.slot(settings.program).is_some() && (record.holder.is_none() || asks_us) {
            ring.notify_one();
        }
    }
    Ok(())
}

/// An identity that no other process has.
pub fn fresh_uid() -> String {
    format!("{:x}-{:x}", Timestamp::now().as_nanosecond(), std::process::id())
}

/// A clock that only runs, and does not stand still while the host sleeps.
fn now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}
