//! Bounds on what a workload cluster may answer.
//!
//! Whoever may write a kubeconfig chooses the server, and its answers are read into the memory that all tenants share.
//! So the bytes of one answer and of one event are bounded, and so is what all answers that are being read may hold
//! together: when that is used up, the clusters that hold more than an even part of it break off, and the others go
//! on. A watch that sends more than can be read cheaply is read slower, and nothing is lost. Of an error only what has a
//! fixed form is let through ([`foreign`]).

use crate::foreign;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Either, Full};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Service};

/// Bytes of one answer. The pods of a full Node have some 5 MB; a page of 200 Nodes with all their images as much.
pub(crate) const ANSWER: usize = 16 << 20;

/// Bytes of one event of a watch: an object in etcd has 1.5 MB at most.
pub(crate) const EVENT: usize = 2 << 20;

/// Bytes of all answers of all workload clusters that are being read: with the copy that their parsing makes, a quarter
/// of what the controller's container may use.
pub(crate) const TOGETHER: usize = 32 << 20;

/// Bytes that the watches of one cluster are read at, a second. 5,000 Nodes that report every five minutes send half of it.
const WATCH_RATE: usize = 1 << 20;

/// Bytes that a watch may send at once before it is read slower: every Node of a large cluster, after a break.
const WATCH_BURST: usize = 32 << 20;

/// Objects in one list. Kubernetes itself is made for 5,000 Nodes.
pub(crate) const OBJECTS: usize = 20_000;

/// How long a list may take, with all its pages.
pub(crate) const LIST_TIME: Duration = Duration::from_mins(2);

/// Bytes of what is kept of one kind of objects of a workload cluster: some 8,000 Nodes.
pub(crate) const KEPT: usize = 8 << 20;

/// A bound that a workload cluster does not keep to. The texts are ours alone: nothing that such a server sends is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitExceeded {
    #[error("one answer is larger than {} MiB", ANSWER >> 20)]
    Answer,
    #[error("one event of a watch is larger than {} MiB", EVENT >> 20)]
    Event,
    #[error(
        "the answers of all workload clusters together are larger than {} MiB, and this cluster has more than its part",
        TOGETHER >> 20
    )]
    Together,
    #[error("one list has more than {OBJECTS} objects")]
    Objects,
    #[error("one list takes longer than {} s", LIST_TIME.as_secs())]
    Time,
    #[error("what is kept of its objects is larger than {} MiB", KEPT >> 20)]
    Kept,
}

impl LimitExceeded {
    /// The bound behind a failed call, if it was one.
    pub(crate) fn of(error: &kube::Error) -> Option<Self> {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = next {
            if let Some(limit) = error.downcast_ref::<Self>() {
                return Some(*limit);
            }
            next = error.source();
        }
        None
    }
}

impl From<LimitExceeded> for kube::Error {
    fn from(limit: LimitExceeded) -> Self {
        Self::Service(Box::new(limit))
    }
}

/// What all workload clusters may hold together.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    held: Mutex<HashMap<u64, usize>>,
    next: Mutex<u64>,
}

impl Budget {
    /// The part of a new cluster.
    pub(crate) fn meter(self: &Arc<Self>) -> Arc<Meter> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        let bucket = Bucket { level: WATCH_BURST, at: Instant::now() };
        Arc::new(Meter { id: *next, budget: Arc::clone(self), bucket: Mutex::new(bucket) })
    }

    /// Holds more bytes for a cluster, unless all hold too much and this one more than an even part.
    fn hold(&self, id: u64, bytes: usize) -> Result<(), LimitExceeded> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = held.get(&id).copied().unwrap_or_default() + bytes;
        let together = held.values().sum::<usize>() + bytes;
        let clusters = held.len() + usize::from(!held.contains_key(&id));
        if together > TOGETHER && mine > TOGETHER / clusters {
            return Err(LimitExceeded::Together);
        }
        held.insert(id, mine);
        Ok(())
    }

    fn release(&self, id: u64, bytes: usize) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mine) = held.get_mut(&id) {
            *mine = mine.saturating_sub(bytes);
            if *mine == 0 {
                held.remove(&id);
            }
        }
    }
}

/// What one cluster sends.
#[derive(Debug)]
pub(crate) struct Meter {
    id: u64,
    budget: Arc<Budget>,
    bucket: Mutex<Bucket>,
}

/// Bytes of watches that may be read now, as of an instant.
#[derive(Debug)]
struct Bucket {
    level: usize,
    at: Instant,
}

impl Meter {
    /// How long to wait until the next bytes of a watch are read, after these.
    fn pause(&self, bytes: usize, now: Instant) -> Duration {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let millis = usize::try_from(now.duration_since(bucket.at).as_millis()).unwrap_or(usize::MAX);
        let level = bucket.level.saturating_add(millis.saturating_mul(WATCH_RATE / 1000)).min(WATCH_BURST);
        let missing = bytes.saturating_sub(level);
        *bucket = Bucket { level: level.saturating_sub(bytes), at: now };
        Duration::from_millis(u64::try_from(missing / (WATCH_RATE / 1000)).unwrap_or(u64::MAX))
    }
}

/// A server whose answers are bounded.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    inner: S,
    meter: Arc<Meter>,
}

impl<S> Bounded<S> {
    pub(crate) fn new(inner: S, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

/// An answer as it comes, or an error in our words.
type ForeignBody<B> = Either<BoundedBody<B>, Full<Bytes>>;

type Answering<B> = Pin<Box<dyn Future<Output = Result<Response<ForeignBody<B>>, BoxError>> + Send>>;

impl<S, In, Out> Service<Request<In>> for Bounded<S>
where
    S: Service<Request<In>, Response = Response<Out>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    Out: Body<Data = Bytes> + Send + Unpin + 'static,
    Out::Error: Into<BoxError>,
{
    type Response = Response<ForeignBody<Out>>;
    type Error = BoxError;
    type Future = Answering<Out>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        let mut query = request.uri().query().unwrap_or_default().split('&');
        let is_watch = query.any(|part| part == "watch=true" || part == "watch=1");
        let meter = Arc::clone(&self.meter);
        let answering = self.inner.call(request);
        Box::pin(async move {
            let answer = answering.await.map_err(Into::into)?;
            let is_error = answer.status().is_client_error() || answer.status().is_server_error();
            // What refuses a watch is one answer, like any other.
            let is_watch = is_watch && answer.status().is_success();
            let (parts, inner) = answer.into_parts();
            let body = BoundedBody { inner, meter, is_watch, seen: 0, held: 0, pause: None };
            if !is_error {
                return Ok(Response::from_parts(parts, Either::Left(body)));
            }
            let body = body.collect().await?.to_bytes();
            // Its fields are texts and numbers: writing them cannot fail.
            let error = serde_json::to_vec(&foreign::read(parts.status.as_u16(), &body)).unwrap_or_default();
            let mut answer = Response::new(Either::Right(Full::from(error)));
            *answer.status_mut() = parts.status;
            Ok(answer)
        })
    }
}

/// An answer that ends with an error where it becomes too long.
pub(crate) struct BoundedBody<B> {
    inner: B,
    meter: Arc<Meter>,
    is_watch: bool,
    /// Bytes of this answer, or of the event that is not whole yet.
    seen: usize,
    /// Bytes that are held for it in the budget.
    held: usize,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<B> BoundedBody<B> {
    fn take(&mut self, data: &Bytes) -> Result<(), LimitExceeded> {
        let (budget, id) = (Arc::clone(&self.meter.budget), self.meter.id);
        if self.is_watch {
            let mut lines = data.split(|byte| *byte == b'\n');
            let first = lines.next().map_or(0, <[u8]>::len);
            if self.seen + first > EVENT {
                return Err(LimitExceeded::Event);
            }
            // The lines between are shorter than what was read at once. The last is not whole yet.
            self.seen = lines.next_back().map_or(self.seen + first, <[u8]>::len);
        } else {
            self.seen += data.len();
            if self.seen > ANSWER {
                return Err(LimitExceeded::Answer);
            }
        }
        if self.seen >= self.held {
            budget.hold(id, self.seen - self.held)?;
        } else {
            budget.release(id, self.held - self.seen);
        }
        self.held = self.seen;
        if self.is_watch {
            let now = Instant::now();
            let pause = self.meter.pause(data.len(), now);
            self.pause = (!pause.is_zero()).then(|| Box::pin(tokio::time::sleep_until(now + pause)));
        }
        Ok(())
    }
}

impl<B> Drop for BoundedBody<B> {
    fn drop(&mut self) {
        self.meter.budget.release(self.meter.id, self.held);
    }
}

impl<B> Body for BoundedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(Into::into)?;
            if let Some(data) = frame.data_ref() {
                this.take(data)?;
            }
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Chunks(Vec<Bytes>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready((!self.0.is_empty()).then(|| Ok(Frame::data(self.0.remove(0)))))
        }
    }

    fn body(meter: &Arc<Meter>, is_watch: bool) -> BoundedBody<Chunks> {
        let (inner, meter) = (Chunks(Vec::new()), Arc::clone(meter));
        BoundedBody { inner, meter, is_watch, seen: 0, held: 0, pause: None }
    }

    fn chunk(bytes: usize) -> Bytes {
        Bytes::from(vec![b'x'; bytes])
    }

    #[tokio::test]
    async fn an_answer_ends_where_it_becomes_too_long() {
        let budget = Arc::new(Budget::default());
        let mut answer = body(&budget.meter(), false);
        assert_eq!(answer.take(&chunk(ANSWER)), Ok(()));
        assert_eq!(answer.take(&chunk(1)), Err(LimitExceeded::Answer));
        drop(answer);
        assert!(budget.held.lock().unwrap().is_empty(), "what was held is free again");
    }

    #[tokio::test]
    async fn an_event_ends_where_it_becomes_too_long_and_a_watch_does_not() {
        let budget = Arc::new(Budget::default());
        let mut watch = body(&budget.meter(), true);
        let line = Bytes::from([&vec![b'x'; EVENT][..], b"\n"].concat());
        for _ in 0..20 {
            assert_eq!(watch.take(&line), Ok(()));
            assert_eq!(watch.held, 0, "an event that is whole is held by nobody");
        }
        assert_eq!(watch.take(&Bytes::from_static(b"a\nbb\nccc")), Ok(()));
        assert_eq!((watch.seen, watch.held), (3, 3));
        assert_eq!(watch.take(&chunk(EVENT - 3)), Ok(()));
        assert_eq!(watch.take(&chunk(1)), Err(LimitExceeded::Event));
    }

    #[tokio::test]
    async fn a_watch_that_sends_too_much_is_read_slower() {
        let meter = Arc::new(Budget::default()).meter();
        let now = Instant::now();
        assert_eq!(meter.pause(WATCH_BURST, now), Duration::ZERO);
        assert_eq!(meter.pause(WATCH_RATE, now), Duration::from_secs(1));
        assert_eq!(meter.pause(1000, now + Duration::from_secs(1)), Duration::ZERO);
    }

    #[tokio::test]
    async fn who_holds_more_than_an_even_part_breaks_off_and_the_others_go_on() {
        let budget = Arc::new(Budget::default());
        let greedy: Vec<_> = (0..4).map(|_| budget.meter()).collect();
        let mut greedy: Vec<_> = greedy.iter().map(|meter| body(meter, false)).collect();
        for answer in &mut greedy {
            answer.take(&chunk(TOGETHER / 4)).unwrap();
        }
        let mut modest = body(&budget.meter(), false);
        assert_eq!(modest.take(&chunk(TOGETHER / 5)), Ok(()));
        assert_eq!(greedy[0].take(&chunk(1)), Err(LimitExceeded::Together));
        greedy.remove(0);
        assert_eq!(modest.take(&chunk(1)), Ok(()));
    }
}
