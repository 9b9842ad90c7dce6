//! The controller is killed before and after every single write of an eject, and Nodes vanish at any moment of it.
//!
//! All machines are taken back at the same moment. Each has a write of its own at which the controller dies, and dies
//! but once: whoever comes after it goes on where it was.

use crate::harness::{Controller, OPEN, World};
use crate::proxy::{Call, Executioner, Fate, Proxy};
use crate::{end, plane, worlds};
use axum::http::Method;
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{Fault, is_proof};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pods on each Node: each is a write.
const PODS: usize = 2;

/// Every write of an eject, in its order.
const WRITES: [Write; 17] = [
    Write::Record,
    Write::Tell("EmergencyReclaim"),
    Write::Cordon,
    Write::Kill("0"),
    Write::Kill("1"),
    Write::Tell("NodeDraining"),
    Write::Exclude,
    Write::DeleteMachine,
    Write::Disable,
    Write::Hold,
    Write::Tell("NodeDrained"),
    Write::Tell("MachineDeleted"),
    Write::Tell("EmergencyReclaimDisabledSchedule"),
    Write::DeleteConfig,
    Write::Disarm,
    Write::Clear,
    Write::End,
];

/// A write of an eject, by what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Write {
    Record,
    Tell(&'static str),
    Cordon,
    Kill(&'static str),
    Exclude,
    DeleteMachine,
    Disable,
    Hold,
    DeleteConfig,
    Disarm,
    Clear,
    End,
}

impl Write {
    fn is(self, call: &Call) -> bool {
        let on = |part: &str| call.path.contains(part);
        let status = || on("/scheduledmachines/") && call.path.ends_with("/status");
        let reclaim = &call.body["status"]["reclaim"];
        let node = |word: &str| {
            call.method == Method::PATCH && on("/nodes/") && call.body.to_string().contains(word)
        };
        match self {
            Self::Record => status() && reclaim["id"].is_string() && reclaim["hold"] != json!(true),
            Self::Hold => status() && reclaim["hold"] == json!(true),
            Self::End => status() && call.body["status"]["phase"] == json!("Disabled"),
            Self::Tell(reason) => call.body["reason"] == json!(reason),
            Self::Cordon => node("unschedulable"),
            Self::Disarm => node("reclaim-armed-for"),
            Self::Clear => node("reclaim-requested"),
            Self::Kill(pod) => call.method == Method::DELETE && call.path.ends_with(&format!("-pod-{pod}")),
            Self::Exclude => call.method == Method::PATCH && on("/machines/"),
            Self::DeleteMachine => call.method == Method::DELETE && on("/machines/"),
            Self::Disable => call.method == Method::PATCH && on("/scheduledmachines/") && !status(),
            Self::DeleteConfig => call.method == Method::DELETE && on("/configmaps/"),
        }
    }
}

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_mins(12);

/// Before which step a Node vanishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Drain,
    Delete,
    Disable,
    Clear,
}

impl Moment {
    /// The Node vanishes before this write arrives.
    fn write(self) -> Write {
        match self {
            Self::Drain => Write::Cordon,
            Self::Delete => Write::Exclude,
            Self::Disable => Write::Disable,
            Self::Clear => Write::DeleteConfig,
        }
    }
}

/// What happens to one machine.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// The controller dies at this write.
    at: Write,
    fate: Fate,
    vanishes: Option<Moment>,
    /// Whether a tool puts `enabled: true` back every second.
    tool: bool,
}

fn plans() -> Vec<Plan> {
    let moments =
        [None, Some(Moment::Drain), Some(Moment::Delete), Some(Moment::Disable), Some(Moment::Clear)];
    let mut all = Vec::new();
    for (number, at) in WRITES.into_iter().enumerate() {
        for fate in [Fate::DiesBefore, Fate::DiesAfter] {
            for (moment, vanishes) in moments.into_iter().enumerate() {
                // Without proof, each write in one of its ways, and some with a Node that vanishes.
                let is_turn = (fate == Fate::DiesBefore) == (number % 2 == 0)
                    && moment == number % 3 * (number % 5) % 5;
                if is_proof() || is_turn {
                    all.push(Plan { at, fate, vanishes, tool: all.len() % 4 == 0 });
                }
            }
        }
    }
    all
}

/// What is known of one machine.
struct Case {
    plan: Plan,
    is_dead: bool,
    has_vanished: bool,
}

struct Court {
    cases: Mutex<BTreeMap<String, Case>>,
    /// How the names of Nodes begin.
    prefix: String,
    nodes: Api<Node>,
    is_open: AtomicBool,
    pid: AtomicI32,
    deaths: Mutex<Vec<String>>,
}

impl Court {
    /// The machine that a write is about.
    fn machine(&self, call: &Call) -> Option<String> {
        let last = |path: &str| call.path.split(path).nth(1)?.split('/').next().map(str::to_owned);
        let of_node = |node: String| node.strip_prefix(&self.prefix).map(str::to_owned);
        let of_pod = |pod: String| pod.rsplit_once("-pod-").map(|(machine, _)| machine.to_owned());
        let regarding = || call.body["regarding"]["name"].as_str().map(str::to_owned);
        last("/scheduledmachines/")
            .or_else(|| last("/machines/"))
            .or_else(|| last("/nodes/").and_then(of_node))
            .or_else(|| last("/configmaps/reclaim-agent-").and_then(of_node))
            .or_else(|| last("/pods/").and_then(of_pod))
            .or_else(regarding)
    }
}

impl Executioner for Court {
    async fn judge(&self, call: &Call) -> Fate {
        if !self.is_open.load(Ordering::Acquire) {
            return Fate::Made;
        }
        let Some(machine) = self.machine(call) else { return Fate::Made };
        let (fate, vanishes) = {
            let mut cases = self.cases.lock().unwrap();
            let Some(case) = cases.get_mut(&machine) else { return Fate::Made };
            let vanishes = !case.has_vanished && case.plan.vanishes.is_some_and(|it| it.write().is(call));
            case.has_vanished |= vanishes;
            let dies = case.plan.at.is(call) && !case.is_dead;
            // Of two who die at the same moment, one has not made this call yet.
            if dies && self.pid.load(Ordering::Acquire) == 0 {
                return Fate::DiesBefore;
            }
            case.is_dead |= dies;
            if dies {
                self.deaths
                    .lock()
                    .unwrap()
                    .push(format!("{machine} {:?} {:?}", case.plan.fate, case.plan.at));
            }
            (if dies { case.plan.fate } else { Fate::Made }, vanishes)
        };
        if vanishes {
            let node = format!("{}{machine}", self.prefix);
            let _ = self.nodes.delete(&node, &DeleteParams::default()).await;
        }
        fate
    }

    fn kill(&self) {
        let pid = self.pid.swap(0, Ordering::AcqRel);
        if pid != 0 {
            let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eject_survives_a_death_before_and_after_every_write() {
    let (plane, _turn) = plane().await;
    let world = Arc::new(worlds::own(plane, "ejected").await);
    let fates = plans();
    let name = |number: usize| format!("e{number:03}");
    let cases = fates
        .iter()
        .enumerate()
        .map(|(number, plan)| (name(number), Case { plan: *plan, is_dead: false, has_vanished: false }));
    let court = Arc::new(Court {
        cases: Mutex::new(cases.collect()),
        prefix: world.hosts.node_name(""),
        nodes: world.nodes(),
        is_open: AtomicBool::new(false),
        pid: AtomicI32::new(0),
        deaths: Mutex::default(),
    });
    let proxy = Proxy::start(world.management.clone(), Arc::clone(&court)).await;
    // The usual lease is lost where the API server is as busy as here.
    let args = ["--lease-duration-secs=180", "--lease-renew-deadline-secs=120"];
    let start = || {
        let controller = Controller::start_through(plane, "ejected", &proxy.url, &args);
        court.pid.store(controller.pid(), Ordering::Release);
        controller
    };
    let mut controller = start();
    lend_all(&world, fates.len(), name).await;
    let versions = Versions::watch(&world).await;
    let since = Timestamp::now();
    for number in 0..fates.len() {
        world.hosts.set(&name(number), Fault::FinalizerStays);
    }
    court.is_open.store(true, Ordering::Release);
    let tools = tools(&world, &fates, name);
    ask_all(&world, fates.len(), name).await;
    let began = Instant::now();
    // The machines do not go before all requests are taken off: what comes after step 4 is seen on Nodes that are there.
    for wanted in ["held", "gone"] {
        loop {
            if court.pid.load(Ordering::Acquire) == 0 {
                controller = start();
            }
            let left = if wanted == "held" { not_held(&world).await } else { not_gone(&world).await };
            if left.is_empty() {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "not {wanted}: {left:?}\n{}", controller.log());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        for number in 0..fates.len() {
            world.hosts.reset(&name(number));
        }
    }
    tools.abort();
    let deaths = court.deaths.lock().unwrap().clone();
    println!(
        "{} machines taken back in {:.0} s over {} deaths of the controller",
        fates.len(),
        began.elapsed().as_secs_f64(),
        deaths.len()
    );
    for write in WRITES {
        let died = |it: &&Case| it.plan.at == write && it.is_dead;
        let deadly = court.cases.lock().unwrap().values().filter(died).count();
        // An event is told once, with what it tells of: who goes on after a death does not tell it again.
        let is_event = matches!(write, Write::Tell(_));
        let tried = !is_event && fates.iter().any(|plan| plan.at == write && plan.vanishes.is_none());
        assert!(deadly > 0 || !tried, "nobody died of {write:?}:\n{}", deaths.join("\n"));
    }
    nothing_is_left(&world).await;
    nothing_is_made_again(&world, since);
    versions.check(&world, fates.len(), name);
    end(&controller);
}

/// Machines whose eject has not come to its last step.
async fn not_held(world: &World) -> Vec<String> {
    let all = world.machines().list(&ListParams::default()).await.unwrap();
    let is_held = |it: &ScheduledMachine| {
        let reclaim = it.status.as_ref().and_then(|status| status.reclaim.as_ref());
        reclaim.is_some_and(|reclaim| reclaim.hold)
    };
    let mut left: Vec<String> = all.iter().filter(|it| !is_held(it)).map(ResourceExt::name_any).collect();
    let nodes = world.nodes().list(&ListParams::default()).await.unwrap();
    let bears = |node: &&Node| {
        let is_labelled = node.labels().contains_key("5spot.finos.org/reclaim-agent");
        is_labelled || node.annotations().contains_key("5spot.finos.org/reclaim-requested")
    };
    left.extend(nodes.iter().filter(bears).map(ResourceExt::name_any));
    left
}

/// Machines that are not with their owners.
async fn not_gone(world: &World) -> Vec<String> {
    let all = world.machines().list(&ListParams::default()).await.unwrap();
    let is_gone = |it: &ScheduledMachine| {
        it.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Disabled")
    };
    all.iter().filter(|it| !is_gone(it)).map(ResourceExt::name_any).collect()
}

async fn lend_all(world: &Arc<World>, count: usize, name: fn(usize) -> String) {
    for number in 0..count {
        world.create(&name(number), OPEN, |spec| spec["killIfCommands"] = json!(["idea"])).await;
    }
    for number in 0..count {
        world.until_phase(&name(number), "Active").await;
        for pod in 0..PODS {
            world.pod(&name(number), &format!("{}-pod-{pod}", name(number)), |_| {}).await;
        }
    }
    let began = Instant::now();
    let params = ListParams::default().labels("5spot.finos.org/reclaim-agent=enabled");
    while world.nodes().list(&params).await.unwrap().items.len() < count {
        assert!(began.elapsed() < Duration::from_mins(1), "not all agents are armed");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn ask_all(world: &World, count: usize, name: fn(usize) -> String) {
    for number in 0..count {
        world.ask_back(&name(number)).await;
    }
}

/// A tool that applies what is in its repository, every second.
fn tools(world: &Arc<World>, fates: &[Plan], name: fn(usize) -> String) -> tokio::task::JoinHandle<()> {
    let world = Arc::clone(world);
    let numbers: Vec<usize> = (0..fates.len()).filter(|number| fates[*number].tool).collect();
    tokio::spawn(async move {
        loop {
            for number in &numbers {
                let mut object = world.machine(&name(*number), OPEN);
                object["spec"]["schedule"]["enabled"] = json!(true);
                object["spec"]["killIfCommands"] = json!(["idea"]);
                let params = PatchParams::apply("kustomize-controller").force();
                let _ = world.machines().patch(&name(*number), &params, &Patch::Apply(object)).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
}

/// Nothing is made again, now and a moment later.
async fn nothing_is_left(world: &World) {
    let prefix = world.hosts.node_name("");
    for _ in 0..2 {
        for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
            let left = world.objects(kind).list(&ListParams::default()).await.unwrap();
            let left: Vec<String> = left.items.iter().map(ResourceExt::name_any).collect();
            assert!(left.is_empty(), "{kind}: {left:?}");
        }
        let configs: Api<k8s_openapi::api::core::v1::ConfigMap> =
            Api::namespaced(world.workload.clone(), "5spot-system");
        let configs = configs.list(&ListParams::default()).await.unwrap();
        let told = format!("reclaim-agent-{prefix}");
        let told: Vec<String> =
            configs.items.iter().map(ResourceExt::name_any).filter(|name| name.starts_with(&told)).collect();
        assert!(told.is_empty(), "{told:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// No Machine was made again.
fn nothing_is_made_again(world: &World, since: Timestamp) {
    for entry in world.plane.management().audit().unwrap() {
        let is_ours = entry.at >= since && entry.namespace == world.namespace;
        let makes = entry.verb == "create" && entry.resource == "machines";
        assert!(!(is_ours && makes), "{} is made again", entry.name);
    }
}

fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

/// Hears of every change after a version. A watch ends after some minutes, and goes on where it ended.
async fn follow<K>(api: Api<K>, mut from: String, mut hear: impl FnMut(K))
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    loop {
        let changes = api.watch(&WatchParams::default().timeout(290), &from).await.unwrap();
        let mut changes = pin!(changes.into_stream());
        while let Some(Ok(change)) = changes.next().await {
            if let WatchEvent::Modified(object) = change {
                from = object.resource_version().unwrap();
                hear(object);
            }
        }
    }
}

/// At which version of everything a schedule was disabled, and a request taken off.
struct Versions {
    /// All versions at which it was.
    disabled: Arc<Mutex<BTreeMap<String, Vec<u64>>>>,
    cleared: Arc<Mutex<BTreeMap<String, u64>>>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Versions {
    async fn watch(world: &Arc<World>) -> Self {
        let (disabled, cleared) =
            (Arc::<Mutex<BTreeMap<_, Vec<_>>>>::default(), Arc::<Mutex<BTreeMap<_, _>>>::default());
        let list = world.machines().list(&ListParams::default()).await.unwrap();
        let from = list.metadata.resource_version.unwrap();
        let machines = {
            let (api, from, disabled) = (world.machines(), from.clone(), Arc::clone(&disabled));
            tokio::spawn(async move {
                let mut enabled = BTreeMap::new();
                follow(api, from, |it| {
                    let is_enabled = it.spec.schedule.enabled;
                    let was_enabled = enabled.insert(it.name_any(), is_enabled).unwrap_or(true);
                    if was_enabled && !is_enabled {
                        disabled.lock().unwrap().entry(it.name_any()).or_default().push(version(&it));
                    }
                })
                .await;
            })
        };
        let nodes = {
            let (api, cleared, prefix) = (world.nodes(), Arc::clone(&cleared), world.hosts.node_name(""));
            tokio::spawn(async move {
                let mut asked = std::collections::BTreeSet::new();
                follow(api, from, |node| {
                    let uid = node.uid().unwrap();
                    let Some(name) = node.name_any().strip_prefix(&prefix).map(str::to_owned) else { return };
                    if node.annotations().contains_key("5spot.finos.org/reclaim-requested") {
                        asked.insert(uid);
                    } else if asked.remove(&uid) {
                        cleared.lock().unwrap().entry(name).or_insert(version(&node));
                    }
                })
                .await;
            })
        };
        Self { disabled, cleared, tasks: [machines, nodes] }
    }

    /// Step 5 is taken once, and comes before step 6, always.
    fn check(&self, world: &World, count: usize, name: fn(usize) -> String) {
        let (disabled, cleared) = (self.disabled.lock().unwrap(), self.cleared.lock().unwrap());
        let mut compared = 0;
        for name in (0..count).map(name) {
            let disabled = disabled.get(&name).map(Vec::as_slice).unwrap_or_default();
            assert_eq!(disabled.len(), 1, "{}/{name}: disabled once", world.namespace);
            if let Some(cleared) = cleared.get(&name) {
                assert!(
                    disabled[0] < *cleared,
                    "{}/{name}: taken off before it was disabled",
                    world.namespace
                );
                compared += 1;
            }
        }
        assert!(compared > count / 4, "only {compared} of {count} requests were seen to be taken off");
        println!("{compared} requests were seen to be taken off, each after its schedule was disabled");
    }
}

impl Drop for Versions {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// A cluster in which an eviction takes for ever.
struct Sluggish(Mutex<usize>);

impl Executioner for Sluggish {
    async fn judge(&self, call: &Call) -> Fate {
        if call.path.ends_with("/eviction") {
            *self.0.lock().unwrap() += 1;
            tokio::time::sleep(Duration::from_mins(5)).await;
        }
        Fate::Made
    }

    fn kill(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eject_does_not_wait_for_an_eviction_that_is_not_answered() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "sluggish").await;
    let sluggish = Arc::new(Sluggish(Mutex::new(0)));
    let proxy = Proxy::start(world.management.clone(), Arc::clone(&sluggish)).await;
    let controller = Controller::start_through(plane, "sluggish", &proxy.url, &[]);
    world.create("slow", OPEN, |spec| spec["killIfCommands"] = json!(["idea"])).await;
    world.until_phase("slow", "Active").await;
    world.pod("slow", "slow-pod", |_| {}).await;
    world.close("slow").await;
    let began = Instant::now();
    while *sluggish.0.lock().unwrap() == 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "no eviction:\n{}", controller.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let began = Instant::now();
    ask_all(&world, 1, |_| "slow".to_owned()).await;
    world.until_gone(&world.pods(), "slow-pod").await;
    let taken = began.elapsed();
    println!("ended {taken:.1?} after the request, while an eviction was not answered");
    // An eviction would have been waited for for ten seconds.
    assert!(taken < Duration::from_secs(5), "it waited {taken:?}");
    world.until_phase("slow", "Disabled").await;
    end(&controller);
}
