//! Somebody sets kill switches by the dozen while the owner of another namespace wants a machine back.
//!
//! How much slower a server is that has a hundred writes at once depends on the machine it runs on. How many of them one
//! namespace sends at once does not, so that is what is counted here, while none of them is answered.

use crate::harness::{Controller, OPEN, World};
use crate::proxy::{Call, Executioner, Fate, Proxy};
use crate::{end, plane, worlds};
use futures::future::join_all;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const MACHINES: usize = 40;

/// Urgent writes of one namespace at once, as shipped.
const BOUND: usize = 16;

/// How long no further write comes before the bound is taken to be reached.
const QUIET: Duration = Duration::from_secs(1);

/// How long an owner may wait: much less than the writes of the other namespace take, none of which is answered.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A server that answers no write of one namespace.
struct Slow {
    namespace: String,
    is_held: watch::Sender<bool>,
    held: AtomicUsize,
    most: AtomicUsize,
}

/// A write that waits; whoever made it may give up.
struct Held<'a>(&'a Slow);

impl<'a> Held<'a> {
    fn new(slow: &'a Slow) -> Self {
        let held = slow.held.fetch_add(1, Ordering::SeqCst) + 1;
        slow.most.fetch_max(held, Ordering::SeqCst);
        Self(slow)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Executioner for Slow {
    async fn judge(&self, call: &Call) -> Fate {
        // Events are told beside the work, and wait for nothing.
        if *self.is_held.borrow() && call.path.contains(&self.namespace) && !call.path.contains("/events") {
            let _held = Held::new(self);
            // The other end is part of this value.
            let _ = self.is_held.subscribe().wait_for(|is_held| !*is_held).await;
        }
        Fate::Made
    }
}

impl Slow {
    async fn until_no_more_come(&self) -> usize {
        let began = Instant::now();
        let mut last = (0, Instant::now());
        while last.0 == 0 || last.1.elapsed() < QUIET {
            assert!(began.elapsed() < Duration::from_secs(30), "it does not come to rest at {}", last.0);
            let held = self.held.load(Ordering::SeqCst);
            if held != last.0 {
                last = (held, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        last.0
    }
}

async fn lend(world: &World, name: &str) {
    world.create(name, OPEN, |spec| spec["killIfCommands"] = json!(["idea"])).await;
    world.until_phase(name, "Active").await;
    world.until_armed(name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_switches_by_the_dozen_hold_up_no_reclaim_of_another_namespace() {
    let (plane, _turn) = plane().await;
    let (flood, quiet) = (worlds::own(plane, "flood").await, worlds::own(plane, "quiet").await);
    let slow = Arc::new(Slow {
        namespace: flood.namespace.clone(),
        is_held: watch::Sender::new(false),
        held: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let proxy = Proxy::start(flood.management.clone(), Arc::clone(&slow)).await;
    let controller = Controller::start_through(plane, "flooded", &proxy.url, &[]);
    let names: Vec<String> = (0..MACHINES).map(|number| format!("m{number:02}")).collect();
    join_all(names.iter().map(|name| lend(&flood, name))).await;
    lend(&quiet, "wanted").await;
    quiet.pod("wanted", "guest", |_| {}).await;

    slow.is_held.send_replace(true);
    join_all(names.iter().map(|name| flood.patch(name, json!({"spec": {"killSwitch": true}})))).await;
    let held = slow.until_no_more_come().await;
    let began = Instant::now();
    quiet.ask_back("wanted").await;
    quiet.until_phase("wanted", "Disabled").await;
    let took = began.elapsed();
    let most = slow.most.load(Ordering::SeqCst);
    println!(
        "{held} urgent writes of one namespace wait, {most} at most; another is reclaimed in {took:.1?}"
    );
    assert!(took < AT_ONCE, "it took {took:?}");
    assert!((BOUND / 2..=BOUND).contains(&held) && most <= BOUND, "{held} writes at once, {most} at most");
    slow.is_held.send_replace(false);
    for name in &names {
        flood.until_phase(name, "Terminated").await;
    }
    end(&controller);
}
