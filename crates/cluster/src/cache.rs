//! A copy of what the server has, kept by one watch and trimmed to what is used.
//!
//! Lists and events are read object by object. One object that cannot be read costs that object and nothing else;
//! read as a whole, it would blind the watch for all others (ADR 2).

use crate::bounds::{self, LimitExceeded};
use crate::error::{CALL, Error, call, code, describe, describe_json, is_server_error};
use crate::foreign;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, WatchEvent};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Objects in one answer of a list: a Node can have 30 KB, and an answer must come in time over a slow link.
const PAGE: u32 = 200;

/// Objects in one answer after larger ones were too large.
const SMALLEST_PAGE: u32 = 5;

/// Objects that a page counts as, if it has fewer: pages without objects may not go on for ever either.
const SMALLEST_COUNT: usize = 20;

/// How long a watch may be silent. The server sends a bookmark every minute when nothing happens.
const SILENCE: Duration = Duration::from_secs(90);

/// Seconds after which the server ends a watch by itself.
const WATCH_SECONDS: u32 = 290;

/// First and last delay before a broken watch is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// A watch that ends sooner is broken, whatever its end looks like.
const SHORTEST: Duration = Duration::from_secs(1);

/// Objects that cannot be read and are reported, of one kind: somebody may send them without end.
const REPORTED: usize = 1000;

/// How long one page of a list may take.
const LIST: Duration = Duration::from_secs(20);

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace; empty for what has none.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// A key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// What is kept of an object.
pub trait Item: PartialEq + Sized + Send + Sync + 'static {
    /// Reads an object; equal items mean that nothing of interest has changed.
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error>;

    /// Bytes that it holds, for what comes from a server that is not trusted ([`Source::bounded`]).
    fn weight(&self) -> usize {
        0
    }
}

/// Which objects.
#[derive(Clone)]
pub struct Source {
    /// Of this server.
    pub client: Client,
    /// Path of the collection, such as `/api/v1/nodes`; one for each version in which it is served. The next is tried
    /// when the server fails on one: a conversion webhook that is down breaks all versions but the stored one.
    pub paths: Vec<String>,
    /// Only with these fields.
    pub fields: Option<String>,
    /// Only with these labels.
    pub labels: Option<String>,
    /// Whether metadata is enough.
    pub metadata_only: bool,
    /// Whether the server may not have more objects than [`bounds`] allow.
    pub is_bounded: bool,
}

impl Source {
    /// All objects of a collection, whole.
    pub fn of(client: Client, path: impl Into<String>) -> Self {
        Self {
            client,
            paths: vec![path.into()],
            fields: None,
            labels: None,
            metadata_only: false,
            is_bounded: false,
        }
    }

    /// The same, of a server that is not trusted.
    #[must_use]
    pub(crate) fn bounded(self) -> Self {
        Self { is_bounded: true, ..self }
    }

    fn path(&self) -> &str {
        self.paths.first().map_or("", String::as_str)
    }
}

/// How a watch is doing.
#[derive(Debug, Clone)]
pub struct Health {
    /// Whether it has ever been whole.
    pub synced: bool,
    /// When it last heard from the server.
    pub heard: Instant,
    /// Why it does not hear, if it does not.
    pub failure: Option<Failure>,
    /// Whether another call to the same server was not answered, and nothing was heard since.
    pub doubted: bool,
}

/// Why a watch does not hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Status code, if the server answered.
    pub code: Option<u16>,
    /// In words.
    pub message: String,
    /// Whether the server does not keep to a bound.
    pub is_limit: bool,
    /// Since when.
    pub since: Instant,
}

/// A copy of what the server has.
pub struct Cache<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    what: String,
    items: RwLock<Items<T>>,
    health: watch::Sender<Health>,
    unreadable: Mutex<HashMap<Key, String>>,
    doubt: Notify,
}

/// The objects, and what they weigh together.
struct Items<T> {
    by_key: HashMap<Key, Arc<T>>,
    weight: usize,
}

impl<T: Item> Items<T> {
    fn of(items: HashMap<Key, T>) -> Self {
        let weight = items.values().map(Item::weight).sum();
        Self { by_key: items.into_iter().map(|(key, item)| (key, Arc::new(item))).collect(), weight }
    }

    /// Puts an object in the place of the one before.
    fn insert(&mut self, key: Key, item: T) {
        self.weight += item.weight();
        self.weight -= self.by_key.insert(key, Arc::new(item)).map_or(0, |old| old.weight());
    }

    fn remove(&mut self, key: &Key) {
        self.weight -= self.by_key.remove(key).map_or(0, |old| old.weight());
    }
}

/// How far a list has come, of a server that may not go on for ever.
struct Extent {
    is_bounded: bool,
    began: Instant,
    objects: usize,
    weight: usize,
}

impl Extent {
    fn new(source: &Source) -> Self {
        Self { is_bounded: source.is_bounded, began: Instant::now(), objects: 0, weight: 0 }
    }

    /// One more page.
    fn add(&mut self, objects: usize) -> Result<(), LimitExceeded> {
        self.objects += objects.max(SMALLEST_COUNT);
        match self {
            Self { is_bounded: false, .. } => Ok(()),
            Self { objects, .. } if *objects > bounds::OBJECTS => Err(LimitExceeded::Objects),
            Self { began, .. } if began.elapsed() > bounds::LIST_TIME => Err(LimitExceeded::Time),
            Self { .. } => Ok(()),
        }
    }

    /// One more object that is kept.
    fn keep(&mut self, weight: usize) -> Result<(), LimitExceeded> {
        self.weight += weight;
        if self.is_bounded && self.weight > bounds::KEPT { Err(LimitExceeded::Kept) } else { Ok(()) }
    }
}

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Item> Cache<T> {
    /// An empty copy of what is called `what`.
    pub fn new(what: impl Into<String>) -> Self {
        let health = Health { synced: false, heard: Instant::now(), failure: None, doubted: false };
        let shared = Shared {
            what: what.into(),
            items: RwLock::new(Items { by_key: HashMap::new(), weight: 0 }),
            health: watch::Sender::new(health),
            unreadable: Mutex::default(),
            doubt: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// What it is a copy of.
    pub fn what(&self) -> &str {
        &self.shared.what
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.items(|items| items.get(key).cloned())
    }

    /// The keys of all objects for which `wanted` holds.
    pub fn keys(&self, wanted: impl Fn(&Key, &T) -> bool) -> Vec<Key> {
        self.items(|items| {
            items.iter().filter(|(key, item)| wanted(key, item)).map(|(key, _)| key.clone()).collect()
        })
    }

    /// All objects.
    pub fn all(&self) -> Vec<(Key, Arc<T>)> {
        self.items(|items| items.iter().map(|(key, item)| (key.clone(), Arc::clone(item))).collect())
    }

    /// Objects that are there and could not be read, each with its problem, in order.
    pub fn unreadable(&self) -> BTreeMap<Key, String> {
        let unreadable = self.shared.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        unreadable.iter().map(|(key, problem)| (key.clone(), problem.clone())).collect()
    }

    fn items<R>(&self, look: impl FnOnce(&HashMap<Key, Arc<T>>) -> R) -> R {
        look(&self.shared.items.read().unwrap_or_else(PoisonError::into_inner).by_key)
    }

    /// How the watch is doing.
    pub fn health(&self) -> Health {
        self.shared.health.borrow().clone()
    }

    /// Another call to the same server was not answered: the watch may be dead without knowing it, and begins anew.
    pub(crate) fn doubt(&self) {
        self.shared.health.send_modify(|health| health.doubted = true);
        self.shared.doubt.notify_one();
    }

    /// Hears of every change of it.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    /// Returns when the copy has been whole once.
    pub async fn synced(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.shared.health.subscribe().wait_for(|health| health.synced).await;
    }

    /// Returns when the copy is whole, or the watch has failed for the first time.
    pub async fn tried(&self) {
        let tried = |health: &Health| health.synced || health.failure.is_some();
        let _ = self.shared.health.subscribe().wait_for(tried).await;
    }

    /// Keeps the copy until the server does not know the kind any more. `changed` hears of every object that is not
    /// what it was.
    pub async fn follow(&self, mut source: Source, changed: impl Fn(&Key) + Send + Sync) {
        let mut backoff = BACKOFF.0;
        let mut version = None;
        let mut page = PAGE;
        loop {
            let began = Instant::now();
            let outcome = self.follow_once(&source, page, &mut version, &changed).await;
            let lived = began.elapsed();
            if lived > BACKOFF.1 {
                backoff = BACKOFF.0;
            }
            match outcome {
                Ok(()) if lived >= SHORTEST => continue,
                Ok(()) => {}
                Err(error) => {
                    // An error may also come as an event of a watch.
                    let error = if source.is_bounded { foreign::clean_error(error) } else { error };
                    self.failed(&error);
                    // Too old a version, or one the server does not accept: begin with a list.
                    if matches!(code(&error), Some(400 | 404 | 410)) {
                        version = None;
                    }
                    if let Some(limit) = LimitExceeded::of(&error) {
                        version = None;
                        // Objects that are large make a page that is too large.
                        if matches!(limit, LimitExceeded::Answer | LimitExceeded::Together) {
                            page = (page / 4).max(SMALLEST_PAGE);
                        }
                    }
                    if code(&error) == Some(404) {
                        return;
                    }
                    // Versions of objects are the same in every version of their kind.
                    if !source.paths.is_empty() && (is_server_error(&error) || is_timeout(&error)) {
                        source.paths.rotate_left(1);
                    }
                }
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF.1);
        }
    }

    fn failed(&self, error: &kube::Error) {
        let (code, message) = (code(error), describe(error));
        let is_limit = LimitExceeded::of(error).is_some();
        tracing::warn!(watch = self.what(), error = message, "the watch broke off");
        self.shared.health.send_modify(|health| {
            let now = Instant::now();
            let since = health.failure.as_ref().map_or(now, |before| before.since);
            // A server that refuses is heard all the same.
            if code.is_some() {
                health.heard = now;
            }
            health.failure = Some(Failure { code, message, is_limit, since });
        });
    }

    /// One list, if there is no version to go on from, and one watch, until it ends.
    async fn follow_once(
        &self,
        source: &Source,
        page: u32,
        version: &mut Option<String>,
        changed: &(impl Fn(&Key) + Send + Sync),
    ) -> Result<(), kube::Error> {
        let mut from = match version.take() {
            Some(version) => version,
            None => self.list(source, page, changed).await?,
        };
        // Wherever this ends, the next goes on from here.
        *version = Some(from.clone());
        let params = WatchParams {
            field_selector: source.fields.clone(),
            label_selector: source.labels.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = Request::new(source.path());
        let request = if source.metadata_only {
            request.watch_metadata(&params, &from)
        } else {
            request.watch(&params, &from)
        };
        let request = request.map_err(kube::Error::BuildRequest)?;
        let silent = || kube::Error::ReadEvents(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let events = tokio::time::timeout(CALL, source.client.request_events::<Box<RawValue>>(request));
        let mut events = std::pin::pin!(events.await.map_err(|_| silent())??);
        self.heard();
        loop {
            let next = async {
                tokio::select! {
                    () = self.shared.doubt.notified() => Err(()),
                    next = tokio::time::timeout(SILENCE, events.next()) => next.map_err(|_| ()),
                }
            };
            let event = match next.await {
                Err(()) => return Err(silent()),
                Ok(None) => return Ok(()),
                Ok(Some(event)) => event?,
            };
            match event {
                WatchEvent::Added(raw) | WatchEvent::Modified(raw) => {
                    from = read_version(&raw).unwrap_or(from);
                    match self.read(&raw) {
                        Ok((key, item)) => {
                            if source.is_bounded {
                                self.weigh(&key, &item)?;
                            }
                            if self.put(key.clone(), item) {
                                changed(&key);
                            }
                        }
                        // What it was before is not true any more.
                        Err(Some(key)) => {
                            self.forget(&key);
                            changed(&key);
                        }
                        Err(None) => {}
                    }
                }
                WatchEvent::Deleted(raw) => {
                    from = read_version(&raw).unwrap_or(from);
                    if let Some(key) = read_key(&raw) {
                        self.forget(&key);
                        self.shared.unreadable.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
                        changed(&key);
                    }
                }
                WatchEvent::Bookmark(bookmark) => from = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
            *version = Some(from.clone());
            self.heard();
        }
    }

    async fn list(
        &self,
        source: &Source,
        page: u32,
        changed: &(impl Fn(&Key) + Send + Sync),
    ) -> Result<String, kube::Error> {
        let (mut items, mut unread) = (HashMap::new(), HashSet::new());
        let mut extent = Extent::new(source);
        let mut params = ListParams::default().limit(page);
        params.field_selector.clone_from(&source.fields);
        params.label_selector.clone_from(&source.labels);
        let version = loop {
            let page = list_page(source, &params).await?;
            let objects = page.items.unwrap_or_default();
            extent.add(objects.len())?;
            for raw in objects {
                match self.read(&raw) {
                    Ok((key, item)) => {
                        extent.keep(item.weight())?;
                        items.insert(key, item);
                    }
                    Err(key) => unread.extend(key),
                }
            }
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => break page.metadata.resource_version.unwrap_or_default(),
            }
        };
        let problems = || self.shared.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        problems().retain(|key, _| unread.contains(key));
        let mut touched = Vec::new();
        {
            let mut old = self.shared.items.write().unwrap_or_else(PoisonError::into_inner);
            touched.extend(old.by_key.keys().filter(|key| !items.contains_key(*key)).cloned());
            for (key, item) in &items {
                if old.by_key.get(key).is_none_or(|old| **old != *item) {
                    touched.push(key.clone());
                }
            }
            *old = Items::of(items);
        }
        self.heard();
        self.shared.health.send_modify(|health| health.synced = true);
        touched.iter().for_each(changed);
        Ok(version)
    }

    fn heard(&self) {
        self.shared.health.send_modify(|health| {
            health.heard = Instant::now();
            health.failure = None;
            health.doubted = false;
        });
    }

    /// Puts an object in; whether it is not what it was.
    pub(crate) fn put(&self, key: Key, item: T) -> bool {
        let mut items = self.shared.items.write().unwrap_or_else(PoisonError::into_inner);
        let is_news = items.by_key.get(&key).is_none_or(|old| **old != item);
        items.insert(key, item);
        is_news
    }

    /// Fails if one object more would be too much to keep.
    fn weigh(&self, key: &Key, item: &T) -> Result<(), LimitExceeded> {
        let items = self.shared.items.read().unwrap_or_else(PoisonError::into_inner);
        let before = items.by_key.get(key).map_or(0, |old| old.weight());
        if items.weight - before + item.weight() > bounds::KEPT {
            return Err(LimitExceeded::Kept);
        }
        Ok(())
    }

    fn forget(&self, key: &Key) {
        self.shared.items.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Reads an object. One that cannot be read is reported once for each problem it has, and left out.
    fn read(&self, raw: &RawValue) -> Result<(Key, T), Option<Key>> {
        let mut unreadable = self.shared.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        match T::read(raw) {
            Ok((key, item)) => {
                unreadable.remove(&key);
                Ok((key, item))
            }
            Err(error) => {
                let Some(key) = read_key(raw) else { return Err(None) };
                let problem = describe_json(&error);
                if unreadable.get(&key) != Some(&problem) && unreadable.len() < REPORTED {
                    tracing::error!(watch = self.what(), object = %key, error = problem, "an object cannot be read");
                    unreadable.insert(key.clone(), problem);
                }
                Err(Some(key))
            }
        }
    }
}

/// A list whose objects are not read yet.
#[derive(Deserialize)]
pub(crate) struct RawList {
    #[serde(default)]
    metadata: ListMeta,
    pub(crate) items: Option<Vec<Box<RawValue>>>,
}

async fn list_page(source: &Source, params: &ListParams) -> Result<RawList, kube::Error> {
    let request = Request::new(source.path());
    let request = if source.metadata_only { request.list_metadata(params) } else { request.list(params) };
    let request = request.map_err(kube::Error::BuildRequest)?;
    match tokio::time::timeout(LIST, source.client.request::<RawList>(request)).await {
        Ok(answer) => answer,
        Err(_) => Err(kube::Error::ReadEvents(std::io::Error::from(std::io::ErrorKind::TimedOut))),
    }
}

/// One list, whole, without a watch.
pub(crate) async fn list_all<T: Item>(what: &str, source: &Source) -> Result<Vec<T>, Error> {
    // What is chosen by a field is little, and found by its index; with a limit servers before 1.34 look through everything
    // in etcd instead.
    let params = ListParams::default();
    let mut params = if source.fields.is_some() { params } else { params.limit(PAGE) };
    params.field_selector.clone_from(&source.fields);
    params.label_selector.clone_from(&source.labels);
    let (mut all, mut extent) = (Vec::new(), Extent::new(source));
    let too_much = |limit: LimitExceeded| Error::api(what, limit.into());
    loop {
        let page = call(what, list_page(source, &params)).await?;
        let objects = page.items.unwrap_or_default();
        extent.add(objects.len()).map_err(too_much)?;
        for raw in objects {
            let unreadable = |error: serde_json::Error| Error::Unreadable {
                what: what.to_owned(),
                why: describe_json(&error),
            };
            all.push(T::read(&raw).map_err(unreadable)?.1);
        }
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params.continue_token = Some(next),
            None => return Ok(all),
        }
    }
}

fn is_timeout(error: &kube::Error) -> bool {
    matches!(error, kube::Error::ReadEvents(error) if error.kind() == std::io::ErrorKind::TimedOut)
}

/// The least that is read of any object.
#[derive(Deserialize)]
struct Bare {
    metadata: BareMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BareMeta {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    resource_version: Option<String>,
}

fn read_key(raw: &RawValue) -> Option<Key> {
    let bare: Bare = serde_json::from_str(raw.get()).ok()?;
    Some(Key::new(bare.metadata.namespace, bare.metadata.name))
}

fn read_version(raw: &RawValue) -> Option<String> {
    let bare: Bare = serde_json::from_str(raw.get()).ok()?;
    bare.metadata.resource_version
}
