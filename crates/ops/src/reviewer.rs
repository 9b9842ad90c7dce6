//! Who may read the metrics: whoever sends a bearer token that the API server accepts, of a user who may `get` the path
//! `/metrics`.
//!
//! The API server is asked by a TokenReview and a SubjectAccessReview, as kube-rbac-proxy and controller-runtime do.
//! Whoever reaches the port can send tokens, so what is asked and what is remembered is bounded, and a flood of unknown
//! tokens does not keep out a token that was allowed before. Without an answer nobody is let in. A token is neither kept
//! nor logged; it is remembered by its hash.

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, Request};
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// The path that a user must be allowed to `get`.
pub(crate) const METRICS_PATH: &str = "/metrics";

/// How long an answer of the API server counts, so a token that is revoked is accepted for that long. Kubernetes' own
/// servers take the same 10 s (`DelegatingAuthenticationOptions`).
const ANSWER_TTL: Duration = Duration::from_secs(10);

/// How long the API server may take for both reviews. Prometheus gives up a scrape after 10 s.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest token that is reviewed. A token of a ServiceAccount has some 1,200 bytes.
const TOKEN_BYTES: usize = 16 << 10;

/// How long after its last review a token that was allowed is not counted as unknown.
const KNOWN_TTL: Duration = Duration::from_hours(1);

/// Tokens that are remembered as allowed: a Prometheus server has one.
const KNOWN_TOKENS: usize = 64;

/// Tokens that are remembered as refused. The rate of reviews keeps their number below this.
const REFUSED_TOKENS: usize = 256;

/// Reviews of unknown tokens that may be begun at once after a quiet time.
const UNKNOWN_BURST: u32 = 10;

/// Time after which another unknown token may be reviewed: five in a second.
const UNKNOWN_INTERVAL: Duration = Duration::from_millis(200);

/// Reviews that are under way at the same time, for known and for unknown tokens each.
const REVIEWS_AT_ONCE: usize = 4;

/// Why a request is not answered with metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has no token, or none that the API server accepts.
    Unauthenticated,
    /// The user of its token may not read metrics.
    Forbidden,
    /// Too many unknown tokens came before it.
    Busy,
    /// The API server did not answer.
    Unavailable,
}

/// The hash of a token.
type TokenHash = [u8; 32];

/// Asks the API server who may read the metrics.
pub(crate) struct Reviewer {
    client: Client,
    memory: Mutex<Memory>,
    known: Semaphore,
    unknown: Semaphore,
    /// What was wrong with the last review, if anything was.
    complaint: Mutex<Option<String>>,
}

impl Reviewer {
    pub(crate) fn new(client: Client) -> Self {
        let (known, unknown) = (Semaphore::new(REVIEWS_AT_ONCE), Semaphore::new(REVIEWS_AT_ONCE));
        let memory = Mutex::new(Memory::new(Instant::now()));
        Self { client, memory, known, unknown, complaint: Mutex::default() }
    }

    /// Whether a request with these headers may read the metrics.
    pub(crate) async fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let token = bearer_token(headers).ok_or(Refusal::Unauthenticated)?;
        let hash: TokenHash = Sha256::digest(token).into();
        let review = async {
            let _permit = match self.memory(|memory| memory.recall(&hash, Instant::now())) {
                Recall::Answer(answer) => return answer,
                Recall::Busy => return Err(Refusal::Busy),
                // The semaphores are never closed.
                Recall::ReviewKnown => self.known.acquire().await.ok(),
                Recall::ReviewUnknown => Some(self.unknown.try_acquire().map_err(|_| Refusal::Busy)?),
            };
            let answer = self.review(token).await.map_err(|error| self.complain(error.to_string()))?;
            self.memory(|memory| memory.remember(hash, answer, Instant::now()));
            *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = None;
            answer
        };
        let silent = |_| self.complain(format!("no answer within {} s", REVIEW_TIMEOUT.as_secs()));
        timeout(REVIEW_TIMEOUT, review).await.map_err(silent)?
    }

    fn memory<R>(&self, work: impl FnOnce(&mut Memory) -> R) -> R {
        work(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Logs what is wrong, once.
    fn complain(&self, text: String) -> Refusal {
        let mut complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        if complaint.as_ref() != Some(&text) {
            tracing::warn!(error = text, "metrics refused: the API server did not review a token");
            *complaint = Some(text);
        }
        Refusal::Unavailable
    }

    async fn review(&self, token: &str) -> Result<Result<(), Refusal>, kube::Error> {
        let spec = json!({"token": token});
        let status: TokenStatus =
            self.create("authentication.k8s.io/v1", "TokenReview", "tokenreviews", &spec).await?;
        let Some(user) = status.user.filter(|user| status.authenticated && !user.username.is_empty()) else {
            return Ok(Err(Refusal::Unauthenticated));
        };
        let spec = json!({
            "user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "nonResourceAttributes": {"path": METRICS_PATH, "verb": "get"},
        });
        let group = "authorization.k8s.io/v1";
        let status: AccessStatus =
            self.create(group, "SubjectAccessReview", "subjectaccessreviews", &spec).await?;
        Ok(if status.allowed && !status.denied { Ok(()) } else { Err(Refusal::Forbidden) })
    }

    /// Creates a review, which is answered and not stored.
    async fn create<T: DeserializeOwned>(
        &self,
        group: &str,
        kind: &str,
        plural: &str,
        spec: &Value,
    ) -> Result<T, kube::Error> {
        let body = json!({"apiVersion": group, "kind": kind, "spec": spec}).to_string().into_bytes();
        let request = Request::post(format!("/apis/{group}/{plural}"));
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let request = request.map_err(kube::Error::HttpError)?;
        Ok(self.client.request::<Review<T>>(request).await?.status)
    }
}

/// The one bearer token of a request.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (Some(only), None) = (all.next(), all.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    let is_usable = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= TOKEN_BYTES;
    is_usable.then_some(token)
}

#[derive(Deserialize)]
struct Review<T> {
    status: T,
}

#[derive(Deserialize)]
struct TokenStatus {
    #[serde(default)]
    authenticated: bool,
    user: Option<User>,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    extra: HashMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct AccessStatus {
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    denied: bool,
}

/// What to do about a token.
#[derive(Debug, PartialEq, Eq)]
enum Recall {
    /// The API server was asked just now.
    Answer(Result<(), Refusal>),
    /// It is to be asked about a token that it allowed before.
    ReviewKnown,
    /// It is to be asked about another token.
    ReviewUnknown,
    /// It was asked about too many other tokens.
    Busy,
}

/// What the API server answered, and how often it may be asked.
struct Memory {
    /// When each token was last allowed.
    allowed: HashMap<TokenHash, Instant>,
    /// Why, and when, each token was last refused.
    refused: HashMap<TokenHash, (Refusal, Instant)>,
    /// Unknown tokens that may be reviewed now.
    budget: u32,
    /// Since when the budget has not grown.
    budget_since: Instant,
}

impl Memory {
    fn new(now: Instant) -> Self {
        let (allowed, refused) = (HashMap::new(), HashMap::new());
        Self { allowed, refused, budget: UNKNOWN_BURST, budget_since: now }
    }

    fn recall(&mut self, hash: &TokenHash, now: Instant) -> Recall {
        let allowed = self.allowed.get(hash).map(|at| now.duration_since(*at));
        if allowed.is_some_and(|age| age < ANSWER_TTL) {
            return Recall::Answer(Ok(()));
        }
        if let Some((refusal, at)) = self.refused.get(hash)
            && now.duration_since(*at) < ANSWER_TTL
        {
            return Recall::Answer(Err(*refusal));
        }
        if allowed.is_some_and(|age| age < KNOWN_TTL) {
            return Recall::ReviewKnown;
        }
        if self.spend(now) { Recall::ReviewUnknown } else { Recall::Busy }
    }

    fn remember(&mut self, hash: TokenHash, answer: Result<(), Refusal>, now: Instant) {
        self.allowed.remove(&hash);
        self.refused.remove(&hash);
        self.allowed.retain(|_, at| now.duration_since(*at) < KNOWN_TTL);
        self.refused.retain(|_, (_, at)| now.duration_since(*at) < ANSWER_TTL);
        match answer {
            Ok(()) => {
                forget_oldest(&mut self.allowed, KNOWN_TOKENS, |at| *at);
                self.allowed.insert(hash, now);
            }
            Err(refusal) => {
                forget_oldest(&mut self.refused, REFUSED_TOKENS, |(_, at)| *at);
                self.refused.insert(hash, (refusal, now));
            }
        }
    }

    /// Whether another unknown token may be reviewed.
    fn spend(&mut self, now: Instant) -> bool {
        let grown = now.duration_since(self.budget_since).as_millis() / UNKNOWN_INTERVAL.as_millis();
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        let full = self.budget.saturating_add(grown) >= UNKNOWN_BURST;
        self.budget_since = if full { now } else { self.budget_since + UNKNOWN_INTERVAL * grown };
        self.budget = self.budget.saturating_add(grown).min(UNKNOWN_BURST);
        let may = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        may
    }
}

/// Makes room for one more entry.
fn forget_oldest<K: Hash + Eq + Copy, V>(map: &mut HashMap<K, V>, most: usize, at: impl Fn(&V) -> Instant) {
    while map.len() >= most {
        let Some(oldest) = map.iter().min_by_key(|(_, value)| at(value)).map(|(key, _)| *key) else { return };
        map.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn hash(number: u32) -> TokenHash {
        Sha256::digest(number.to_be_bytes()).into()
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn a_token_is_one_bearer_token_of_a_bounded_length() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            bearer_token(&headers).map(str::to_owned)
        };
        assert_eq!(read(&["Bearer abc"]), Some("abc".to_owned()));
        assert_eq!(read(&["bearer abc"]), Some("abc".to_owned()));
        let long = format!("Bearer {}", "a".repeat(TOKEN_BYTES + 1));
        for refused in [&[][..], &["abc"], &["Bearer "], &["Basic abc"], &["Bearer a", "Bearer b"], &[&long]]
        {
            assert_eq!(read(refused), None, "{refused:?}");
        }
    }

    #[test]
    fn an_answer_counts_for_ten_seconds() {
        let now = Instant::now();
        let mut memory = Memory::new(now);
        assert_eq!(memory.recall(&hash(1), now), Recall::ReviewUnknown);
        memory.remember(hash(1), Ok(()), now);
        memory.remember(hash(2), Err(Refusal::Forbidden), now);
        for at in [0, 9] {
            assert_eq!(memory.recall(&hash(1), now + seconds(at)), Recall::Answer(Ok(())));
            let refused = Recall::Answer(Err(Refusal::Forbidden));
            assert_eq!(memory.recall(&hash(2), now + seconds(at)), refused);
        }
        assert_eq!(memory.recall(&hash(1), now + seconds(10)), Recall::ReviewKnown);
        assert_eq!(memory.recall(&hash(2), now + seconds(10)), Recall::ReviewUnknown);
        memory.remember(hash(1), Err(Refusal::Unauthenticated), now + seconds(10));
        let later = now + seconds(20);
        assert_eq!(memory.recall(&hash(1), later), Recall::ReviewUnknown, "its right was taken away");
    }

    #[test]
    fn a_flood_of_unknown_tokens_is_bounded_and_does_not_keep_a_known_one_out() {
        let start = Instant::now();
        let mut memory = Memory::new(start);
        assert_eq!(memory.recall(&hash(0), start), Recall::ReviewUnknown);
        memory.remember(hash(0), Ok(()), start);
        let (mut reviews, mut number, time) = (0, 1, 60_u64);
        for step in 0..time * 100 {
            let now = start + Duration::from_millis(step * 10);
            for _ in 0..10 {
                number += 1;
                match memory.recall(&hash(number), now) {
                    Recall::ReviewUnknown => {
                        reviews += 1;
                        memory.remember(hash(number), Err(Refusal::Unauthenticated), now);
                    }
                    Recall::Busy => {}
                    other => panic!("{other:?}"),
                }
            }
            match memory.recall(&hash(0), now) {
                Recall::Answer(Ok(())) => {}
                Recall::ReviewKnown => memory.remember(hash(0), Ok(()), now),
                other => panic!("{other:?} after {step}"),
            }
            assert!(memory.refused.len() <= REFUSED_TOKENS, "{} are remembered", memory.refused.len());
        }
        let most = u64::from(UNKNOWN_BURST) + time * 5;
        assert!(reviews <= most, "{reviews} reviews in {time} s, {most} at most");
        assert!(reviews >= most - 10, "only {reviews} reviews in {time} s");
        println!("{number} tokens in {time} s led to {reviews} reviews");
    }

    #[test]
    fn what_is_remembered_is_bounded_whoever_is_allowed() {
        let now = Instant::now();
        let mut memory = Memory::new(now);
        for number in 0..1000 {
            memory.remember(hash(number), Ok(()), now + Duration::from_millis(number.into()));
            memory.remember(hash(number + 5000), Err(Refusal::Forbidden), now);
        }
        assert_eq!((memory.allowed.len(), memory.refused.len()), (KNOWN_TOKENS, REFUSED_TOKENS));
        assert_eq!(memory.recall(&hash(999), now + seconds(1)), Recall::Answer(Ok(())), "the last one");
    }
}
