//! One fault at a time, and what becomes of the machines of the one it hits. One of the three instances has a clock that
//! is five seconds ahead all the while, which changes nothing: nobody compares clocks.

use crate::harness::{CLOSED, Controller, World, from_root};
use crate::timeline::{Deed, Timeline};
use crate::wall_clock::Clock;
use crate::{end, plane, short_lease, start, worlds};
use fivespot_core::slots::slot_of;
use fivespot_testenv::{AuditEntry, ControlPlane, eventually};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MACHINES: usize = 24;

/// How long after a stop what was on its way before may still go out.
const LEFT_BEHIND: SignedDuration = SignedDuration::from_millis(500);

/// How long a hand-over may take at most; a Lease that runs out takes five seconds at the least.
const HANDED_OVER: SignedDuration = SignedDuration::from_secs(4);

fn machine(number: usize) -> String {
    format!("m{number:02}")
}

fn three() -> NonZeroU32 {
    NonZeroU32::new(3).unwrap()
}

fn slot(world: &World, machine: &str) -> u32 {
    slot_of(&world.namespace, machine, three())
}

/// A machine in this slot, the last of them.
fn machine_in(world: &World, wanted: u32) -> String {
    (0..MACHINES).rev().map(machine).find(|name| slot(world, name) == wanted).unwrap()
}

pub(crate) async fn until_ready(controller: &Controller, text: &str) {
    eventually(text, async || controller.http("/ready").1.trim() == format!("ready: {text}")).await;
}

/// Opens and closes a machine, whoever looks after it now.
async fn comes_and_goes(world: &World, name: &str) {
    world.open(name).await;
    world.until_phase(name, "Active").await;
    world.close(name).await;
    world.until_phase(name, "Inactive").await;
}

/// Passes bytes on until it is cut: then nothing arrives any more, and nobody is told.
struct Cable {
    port: u16,
    is_cut: Arc<AtomicBool>,
}

impl Cable {
    fn to_server(plane: &ControlPlane) -> Self {
        let config = std::fs::read_to_string(plane.management().kubeconfig_path()).unwrap();
        let port = config.split("https://127.0.0.1:").nth(1).unwrap();
        let port: String = port.chars().take_while(char::is_ascii_digit).collect();
        Self::to(port.parse().unwrap())
    }

    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&is_cut);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let cut = Arc::clone(&cut);
                    std::thread::spawn(move || {
                        let mut buffer = [0; 16 << 10];
                        while let Ok(length) = from.read(&mut buffer) {
                            // What comes in while it is cut waits, as in a network.
                            while cut.load(Ordering::Acquire) {
                                std::thread::sleep(Duration::from_millis(20));
                            }
                            if length == 0 || to.write_all(&buffer[..length]).is_err() {
                                break;
                            }
                        }
                        // What has arrived is answered, though nobody hears it any more.
                        std::thread::sleep(Duration::from_secs(1));
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self { port: own, is_cut }
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Release);
    }
}

/// Starts an instance whose only way to the server is a cable.
fn start_behind(plane: &ControlPlane, cable: &Cable, name: &str, own: u32) -> Controller {
    let [duration, deadline, retry] = short_lease();
    let args = [
        format!("--instance-id={own}"),
        "--instance-count=3".to_owned(),
        format!("--lease-duration-secs={duration}"),
        format!("--lease-renew-deadline-secs={deadline}"),
        format!("--lease-retry-period-secs={retry}"),
    ];
    Controller::start_behind(plane, name, cable.port, &args.each_ref().map(String::as_str))
}

fn ms(from: Timestamp, to: Timestamp) -> i128 {
    to.duration_since(from).as_millis()
}

/// Three instances: the first behind a cable, the second with a clock that is ahead.
struct Scene {
    world: World,
    since: Timestamp,
    cable: Cable,
    clock: Clock,
    zero: Controller,
    one: Controller,
    two: Controller,
}

impl Scene {
    async fn set(plane: &'static ControlPlane) -> Self {
        let since = Timestamp::now();
        let world = worlds::own(plane, "faults").await;
        for number in 0..MACHINES {
            world.create(&machine(number), CLOSED, |spec| spec["killIfCommands"] = json!(["idea"])).await;
        }
        let (cable, clock) = (Cable::to_server(plane), Clock::new(plane, "ahead"));
        clock.set(Timestamp::now() + SignedDuration::from_secs(5));
        let zero = start_behind(plane, &cable, "zero", 0);
        let one = start(plane, "one", 1, 3, short_lease(), &clock.env());
        let two = start(plane, "two", 2, 3, short_lease(), &[]);
        Self { world, since, cable, clock, zero, one, two }
    }

    fn timeline(&self) -> Timeline {
        Timeline::read(&self.world, self.since, short_lease())
    }

    /// The machines of a slot.
    fn machines(&self, of: u32) -> Vec<String> {
        (0..MACHINES).map(machine).filter(|name| slot(&self.world, name) == of).collect()
    }

    /// Opens all machines of a slot, and returns in the middle of the work.
    async fn open_all(&self, of: u32) -> Vec<String> {
        let machines = self.machines(of);
        for name in &machines {
            self.world.open(name).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        machines
    }

    /// When somebody took a slot after a fault, which must be in time.
    async fn taken(&self, slot: u32, after: Timestamp, fault: &str) -> Timestamp {
        eventually("its slot is taken", async || self.timeline().held(slot, None, after).is_some()).await;
        let taken = self.timeline().held(slot, None, after).unwrap().from;
        println!("taken over {} ms after {fault}", ms(after, taken));
        assert!(taken.duration_since(after) < bound());
        taken
    }

    async fn each_has_its_own(&self) {
        for (number, controller) in [(0, &self.zero), (1, &self.one), (2, &self.two)] {
            until_ready(controller, &format!("holds slot {number} of 3")).await;
            let metrics = controller.http("/metrics").1;
            assert!(metrics.contains(&format!("fivespot_slot_held{{slot=\"{number}\"}} 1")), "{metrics}");
            assert!(metrics.contains("fivespot_slot_count 3"), "{metrics}");
        }
        for number in 0..MACHINES {
            let name = machine(number);
            let status = self.world.until_phase(&name, "Inactive").await.status.unwrap();
            assert_eq!(status.instance, Some(i64::from(slot(&self.world, &name))));
        }
        for number in 0..3 {
            comes_and_goes(&self.world, &machine_in(&self.world, number)).await;
        }
    }

    /// Asked to end: its slot is taken at once. Started again: it gets it back.
    async fn one_ends(&mut self, plane: &ControlPlane) {
        let asked = Timestamp::now();
        end(&self.one).await;
        let taken = self.taken(1, asked, "the request to end").await;
        assert!(taken.duration_since(asked) < HANDED_OVER);
        comes_and_goes(&self.world, &machine_in(&self.world, 1)).await;
        let back = Timestamp::now();
        self.one = start(plane, "one", 1, 3, short_lease(), &self.clock.env());
        until_ready(&self.one, "holds slot 1 of 3").await;
        let held = self.timeline().held(1, Some("one"), back).unwrap().from;
        println!("back in its slot {} ms after its start", ms(back, held));
    }

    /// Killed: its slot is taken when its Lease has run out. An owner who asks meanwhile gets his machine.
    async fn two_dies(&self) {
        let name = machine_in(&self.world, 2);
        self.world.open(&name).await;
        self.world.until_phase(&name, "Active").await;
        self.world.until_armed(&name).await;
        let killed = Timestamp::now();
        self.two.signal("-KILL");
        self.world.ask_back(&name).await;
        self.world.until_phase(&name, "Disabled").await;
        self.taken(2, killed, "a death").await;
        let timeline = self.timeline();
        let eject = timeline.deeds.iter().find(|deed| deed.machine == name && deed.at > killed).unwrap().at;
        println!("an eject that fell into it begun {} ms after the death", ms(killed, eject));
        assert!(eject.duration_since(killed) < bound());
        assert!(!self.world.machines().get(&name).await.unwrap().spec.schedule.enabled);
    }

    /// Stopped for longer than its Lease, in the middle of work: when it wakes it sends nothing that it decides then.
    async fn one_stops(&self) {
        let machines = self.open_all(1).await;
        let stopped = Timestamp::now();
        self.one.signal("-STOP");
        self.taken(1, stopped, "a stop").await;
        for name in &machines {
            self.world.until_phase(name, "Active").await;
        }
        let woken = Timestamp::now();
        self.one.signal("-CONT");
        until_ready(&self.one, "holds slot 1 of 3").await;
        let timeline = self.timeline();
        let again = timeline.held(1, Some("one"), woken).unwrap().from;
        // What was on its way when it was stopped may still go out, and is refused.
        let sent = timeline.sent("one", woken, again);
        let is_new = |deed: &&&Deed| deed.done || deed.at.duration_since(woken) > LEFT_BEHIND;
        let new: Vec<_> = sent.iter().filter(is_new).collect();
        assert!(new.is_empty(), "{new:#?}");
    }

    /// Cut off: the same, and what waited in the network does no harm.
    async fn zero_is_cut_off(&self) {
        let machines = self.open_all(0).await;
        let cut = Timestamp::now();
        self.cable.cut(true);
        self.taken(0, cut, "a cut").await;
        for name in &machines {
            self.world.until_phase(name, "Active").await;
        }
        self.cable.cut(false);
        until_ready(&self.zero, "holds slot 0 of 3").await;
        self.world.close(&machines[0]).await;
        self.world.until_phase(&machines[0], "Inactive").await;
    }
}

/// How long a machine may be without an owner.
fn bound() -> SignedDuration {
    SignedDuration::from_secs(i64::try_from(short_lease()[0] + 5).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_gone_the_machines_have_an_owner_again_in_time() {
    let (plane, _turn) = plane().await;
    let mut scene = Scene::set(plane).await;
    scene.each_has_its_own().await;
    scene.one_ends(plane).await;
    scene.two_dies().await;
    scene.one_stops().await;
    scene.zero_is_cut_off().await;
    for controller in [&scene.zero, &scene.one] {
        end(controller).await;
    }
    let timeline = scene.timeline();
    print!("{}", timeline.show());
    let checked = timeline.check();
    println!("{checked} writes, each by the holder of its slot");
    assert!(checked > MACHINES * 2, "only {checked} writes were seen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_deployment_share_the_slots_and_another_count_waits_for_the_old_one() {
    let (plane, _turn) = plane().await;
    let since = Timestamp::now();
    let world = worlds::linked(plane, "deployment").await;
    for number in 0..MACHINES {
        world.create(&machine(number), CLOSED, |_| {}).await;
    }
    let [duration, deadline, retry] = short_lease();
    let pod = |name: &str, count: u32| {
        let args = [
            format!("--instance-count={count}"),
            format!("--lease-duration-secs={duration}"),
            format!("--lease-renew-deadline-secs={deadline}"),
            format!("--lease-retry-period-secs={retry}"),
        ];
        Controller::start_with(plane, name, &args.each_ref().map(String::as_str), &[])
    };
    let shares = |controllers: &[&Controller]| -> Vec<usize> {
        let share = |it: &&Controller| {
            let text = it.http("/metrics").1;
            text.lines().filter(|line| line.starts_with("fivespot_slot_held") && line.ends_with(" 1")).count()
        };
        controllers.iter().map(share).collect()
    };
    let (first, second) = (pod("pod-x2z4k", 2), pod("pod-9fj2w", 2));
    eventually("each has one", async || shares(&[&first, &second]) == [1, 1]).await;
    // Both see the Nodes: whoever takes over need not begin with that.
    world.open(&machine(0)).await;
    world.until_phase(&machine(0), "Active").await;
    eventually("both watch Nodes", async || {
        let audit = plane.workload().audit().unwrap();
        ["pod-x2z4k", "pod-9fj2w"].iter().all(|name| {
            let agent = format!("({name})");
            let watches = |it: &AuditEntry| it.verb == "watch" && it.resource == "nodes" && it.at >= since;
            audit.iter().any(|entry| watches(entry) && entry.user_agent.ends_with(&agent))
        })
    })
    .await;
    world.close(&machine(0)).await;
    world.until_phase(&machine(0), "Inactive").await;

    // A rolling update: the new ones are ready, and wait.
    let (third, fourth) = (pod("pod-b7xkq", 4), pod("pod-c5vmm", 4));
    for controller in [&third, &fourth] {
        eventually("it says why it waits", async || {
            controller.log().contains("goes by another number of slots, and must end first")
        })
        .await;
        until_ready(controller, "stands by: holds no slot of 4").await;
    }
    end(&first).await;
    eventually("the old one has both", async || shares(&[&second, &third, &fourth]) == [2, 0, 0]).await;
    comes_and_goes(&world, &machine(1)).await;
    let asked = Timestamp::now();
    end(&second).await;
    eventually("the new ones have all", async || shares(&[&third, &fourth]) == [2, 2]).await;
    comes_and_goes(&world, &machine(2)).await;
    for number in 0..MACHINES {
        let name = machine(number);
        let wanted = i64::from(slot_of(&world.namespace, &name, NonZeroU32::new(4).unwrap()));
        let told = |it: &fivespot_api::ScheduledMachine| {
            it.status.as_ref().is_some_and(|status| status.instance == Some(wanted))
        };
        world.until(&name, "told of its new slot", told).await;
    }
    for controller in [&third, &fourth] {
        end(controller).await;
    }
    let timeline = Timeline::read(&world, since, short_lease());
    let taken = timeline.spans.iter().find(|span| span.count.get() == 4).unwrap().from;
    println!("another count went on {} ms after the last of the old one was asked to end", ms(asked, taken));
    assert!(taken.duration_since(asked) < HANDED_OVER);
    print!("{}", timeline.show());
    timeline.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_told_by_its_environment_and_works_without_a_pod() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "nameless").await;
    world.create("m", CLOSED, |_| {}).await;
    let nameless = Controller::start_nameless(plane, "nameless", &[]);
    until_ready(&nameless, "holds slot 0 of 1").await;
    comes_and_goes(&world, "m").await;
    end(&nameless).await;

    // As the overlay has it; the server has nothing against it.
    let overlay = from_root("deploy/instances");
    let apply = ["apply", "--server-side", "--dry-run=server", "-o", "json", "-k", overlay.to_str().unwrap()];
    let applied: Value =
        serde_json::from_str(&plane.kubectl(plane.management(), &apply, "").unwrap()).unwrap();
    let deployment =
        applied["items"].as_array().unwrap().iter().find(|it| it["kind"] == "Deployment").unwrap();
    assert_eq!(deployment["spec"]["replicas"], 3);
    let env = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    let env = env.iter().filter_map(|it| Some((it["name"].as_str()?, it["value"].as_str()?)));
    let env: Vec<_> = env.chain([("POD_NAME", "5spot-controller-7d9c5b8f6-x2z4k")]).collect();
    let pod = Controller::start_nameless(plane, "pod", &env);
    until_ready(&pod, "holds slots 0, 1, 2 of 3").await;
    comes_and_goes(&world, "m").await;
    let params = ListParams::default();
    let events: Api<Event> = Api::namespaced(world.management.clone(), &world.namespace);
    let reporters: Vec<_> = events
        .list(&params)
        .await
        .unwrap()
        .into_iter()
        .filter_map(|event| event.reporting_instance)
        .collect();
    assert!(reporters.contains(&"5spot-controller-7d9c5b8f6-x2z4k".to_owned()), "{reporters:?}");
    end(&pod).await;

    // As a pod of a StatefulSet: its number is its ordinal.
    let env = [("OPERATOR_INSTANCE_COUNT", "3"), ("POD_NAME", "5spot-controller-1")];
    let ordinal = Controller::start_nameless(plane, "ordinal", &env);
    let given = [("OPERATOR_INSTANCE_COUNT", "3"), ("OPERATOR_INSTANCE_ID", "2"), ("POD_NAME", "b-1")];
    let given = Controller::start_nameless(plane, "given", &given);
    until_ready(&ordinal, "holds slots 0, 1 of 3").await;
    until_ready(&given, "holds slot 2 of 3").await;
    end(&given).await;
    end(&ordinal).await;
}
