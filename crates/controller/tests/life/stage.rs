//! Scenarios: tests that wait for most of their time, so that many run at once however few test threads there are.
//!
//! A module lists its scenarios with [`scenarios!`], which makes a test of each. The first test that runs starts all
//! scenarios of the binary, or those that the filter of its command line names.

use crate::harness::{CLOSED, Controller, World};
use fivespot_testenv::{ControlPlane, Core, shared_with_cluster_api};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::panic::PanicHookInfo;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, Semaphore};

/// Scenarios under way at once: with more, the servers of two cores get slow, and nothing gets faster.
const AT_ONCE: usize = 14;

/// One scenario.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) path: &'static str,
    pub(crate) start: fn() -> Pin<Box<dyn Future<Output = ()>>>,
}

/// Makes a test of each scenario of a module.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        /// The scenarios of this module.
        pub(crate) const SCENARIOS: &[$crate::stage::Scenario] = &[$($crate::stage::Scenario {
            path: concat!(module_path!(), "::test::", stringify!($name)),
            start: || Box::pin($name()),
        }),+];

        mod test {
            $(
                #[test]
                fn $name() {
                    $crate::stage::perform(concat!(module_path!(), "::", stringify!($name)));
                }
            )+
        }
    };
}
pub(crate) use scenarios;

/// Waits until a scenario has ended, and fails if it did.
pub(crate) fn perform(path: &str) {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    let stage = STAGE.get_or_init(Stage::open);
    let under_way = lock(&stage.under_way).remove(path);
    let under_way = under_way.unwrap_or_else(|| stage.start(path));
    if under_way.join().is_err() {
        let words = lock(&LAST_WORDS).remove(path).unwrap_or_default();
        panic!("{words}\n{}", keep_log());
    }
}

/// What scenarios said when they failed. Their threads belong to no test, so that nobody would print it.
static LAST_WORDS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Stage {
    runtime: &'static Runtime,
    under_way: Mutex<BTreeMap<&'static str, JoinHandle<()>>>,
}

impl Stage {
    fn open() -> Self {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| match thread::current().name() {
            Some(path) if crate::all().iter().any(|scenario| scenario.path == path) => {
                lock(&LAST_WORDS).insert(path.to_owned(), panic.to_string());
            }
            _ => usual(panic),
        }));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let stage = Self { runtime: Box::leak(Box::new(runtime)), under_way: Mutex::default() };
        // As libtest reads its command line: what is no flag is a part of a name.
        let filters: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
        let is_named = |path: &str| filters.iter().any(|filter| path.contains(filter.as_str()));
        let mut under_way = lock(&stage.under_way);
        for Scenario { path, .. } in crate::all() {
            if filters.is_empty() || is_named(path) {
                under_way.insert(path, stage.start(path));
            }
        }
        drop(under_way);
        stage
    }

    /// Each on a thread of its own: a scenario need not be fit to be moved between threads.
    fn start(&self, path: &str) -> JoinHandle<()> {
        static SEATS: Semaphore = Semaphore::const_new(AT_ONCE);
        let scenario = crate::all().into_iter().find(|scenario| scenario.path == path).unwrap();
        let runtime = self.runtime;
        let perform = move || {
            runtime.block_on(async {
                let _seat = SEATS.acquire().await.unwrap();
                (scenario.start)().await;
            });
        };
        thread::Builder::new().name(path.to_owned()).spawn(perform).unwrap()
    }
}

static CONTROLLER: OnceLock<Controller> = OnceLock::new();

/// The folder of the control plane goes with it: what the controller said is kept for whoever looks into a failure.
fn keep_log() -> String {
    let path = format!("{}/controller-{}.log", env!("CARGO_TARGET_TMPDIR"), crate::VERSION);
    let log = CONTROLLER.get().map(|controller| controller.log()).unwrap_or_default();
    std::fs::write(&path, log).map_or_else(|error| error.to_string(), |()| format!("see {path}"))
}

/// The clusters, under the controller that all scenarios share.
fn plane() -> &'static ControlPlane {
    let plane = shared_with_cluster_api();
    CONTROLLER.get_or_init(|| Controller::start(plane, "life", &["--capi-version", crate::VERSION]));
    plane
}

/// The namespace, Cluster and hosts that scenarios share: each uses names of its own for its machines and pods.
pub(crate) async fn world() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(|| own_world("life")).await
}

/// Waits until the garbage collector knows our kinds: it looks for new ones every half minute.
pub(crate) async fn garbage_is_collected() {
    let world = world().await;
    let mut canary = world.machine("canary", CLOSED);
    canary["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "00000000-0000-4000-8000-000000000000",
    }]);
    let params = PatchParams::apply("canary").force();
    world.machines().patch("canary", &params, &Patch::Apply(canary)).await.unwrap();
    world.until_gone(&world.machines(), "canary").await;
}

/// A namespace, Cluster and hosts for a scenario that does something to all of them.
pub(crate) async fn own_world(stem: &str) -> World {
    World::new(plane(), Core::Real, stem).await
}
