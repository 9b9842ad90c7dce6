//! People edit: every field that the definition has, with values that are good, odd, wrong and of another type.
//!
//! The fields and their types come from the schema of the definition. The server says whether an edit is good. One that it
//! refuses must be refused with the name of the field, and change nothing. After one that it takes, the world comes to rest
//! as the object then asks for.

use crate::harness::OPEN;
use crate::look::{self, Look};
use crate::scenario::Scenario;
use crate::settled::Dice;
use crate::tally::{Outcome, Tally, is_campaign};
use crate::{Campaign, PATIENCE};
use fivespot_api::{ScheduledMachine, ScheduledMachineSpec, scheduled_machine_crd};
use fivespot_core::intent::Intent;
use futures::future::join_all;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Machines that are edited at the same time.
const MACHINES: usize = 8;

/// How long they are edited.
fn span() -> Duration {
    if is_campaign() { Duration::from_hours(1) } else { Duration::from_secs(40) }
}

/// What people write into fields whose type is a text, and some that they should not.
const WORDS: [&str; 16] = [
    "",
    "a",
    "web",
    "Web",
    "a b",
    "-1",
    "0",
    "*",
    "../..",
    "moon",
    "example.com/gpu",
    "kubernetes.io/os",
    "5spot.finos.org/x",
    "\u{202e}gnirts",
    "line\nbreak",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// What people write into a field who know what it is for.
fn known(field: &str) -> &'static [&'static str] {
    match field {
        "daysOfWeek" => &["mon-sun", "mon-fri", "sat,sun", "fri-mon", "wed", "mon-", "someday"],
        "hoursOfDay" => &["0-23", "22-6", "9-17", "12", "24", "9-", "1,3,5"],
        "cron" => &[OPEN, "* 0-23 * * *", "* * * * mon-fri", "59 23 29 2 *", "61 * * * *", "* * * *"],
        "timezone" => &["UTC", "Europe/London", "America/New_York", "Asia/Kolkata", "Mars/Olympus"],
        "gracefulShutdownTimeout" | "nodeDrainTimeout" => &["5m", "90s", "1h30m", "0s", "25h", "soon"],
        "killIfCommands" => &["java", "idea", "steam", "x"],
        "effect" => &["NoSchedule", "PreferNoSchedule", "NoExecute", "Sometimes"],
        "key" => &["lent", "example.com/lent", "night", "kubernetes.io/lent"],
        _ => &[],
    }
}

/// A field of the definition.
struct Field {
    /// From `spec`, such as `schedule.cron`.
    path: String,
    schema: Value,
}

/// Every field below `spec`, and the objects that hold fields.
fn fields() -> Vec<Field> {
    fn walk(path: &str, schema: &Value, found: &mut Vec<Field>) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            walk(&path, schema, found);
            found.push(Field { path, schema: schema.clone() });
        }
    }
    let crd = json!(scheduled_machine_crd());
    let mut found = Vec::new();
    walk("", &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], &mut found);
    found
}

fn pick<'a, T: ?Sized>(dice: &mut Dice, all: &[&'a T]) -> &'a T {
    all[usize::try_from(dice.below(all.len() as u64)).unwrap()]
}

/// A value for a field, of its type; one time in twelve of any type.
fn value(dice: &mut Dice, name: &str, schema: &Value) -> Value {
    let is_one_in = |dice: &mut Dice, many| dice.below(many) == 0;
    let kind = if is_one_in(dice, 12) {
        pick(dice, &["string", "integer", "boolean", "array", "object", "null"])
    } else {
        schema["type"].as_str().unwrap_or("object")
    };
    match kind {
        "null" => Value::Null,
        "boolean" => json!(is_one_in(dice, 2)),
        "integer" => {
            let bounds = [&schema["minimum"], &schema["maximum"]].map(|bound| bound.as_f64().unwrap_or(0.0));
            let some = [bounds[0], bounds[1], bounds[0] - 1.0, bounds[1] + 1.0, 7.0];
            #[expect(
                clippy::cast_possible_truncation,
                reason = "bounds of the schema are small whole numbers"
            )]
            let number = some[usize::try_from(dice.below(5)).unwrap()] as i64;
            json!(number)
        }
        "array" => {
            let count = dice.below(4);
            (0..count).map(|_| value(dice, name, &schema["items"])).collect()
        }
        "object" => {
            let mut object = Map::new();
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if !is_one_in(dice, 3) {
                    object.insert(name.clone(), value(dice, name, schema));
                }
            }
            if object.is_empty() {
                for _ in 0..dice.below(3) {
                    object.insert(pick(dice, &WORDS).to_owned(), json!(pick(dice, &WORDS)));
                }
            }
            Value::Object(object)
        }
        _ if schema["enum"].is_array() && !is_one_in(dice, 4) => {
            let all: Vec<&Value> = schema["enum"].as_array().into_iter().flatten().collect();
            pick(dice, &all).clone()
        }
        _ => match known(name) {
            [] => json!(pick(dice, &WORDS)),
            _ if is_one_in(dice, 8) => json!(pick(dice, &WORDS)),
            known => json!(pick(dice, known)),
        },
    }
}

/// A merge patch that sets one field.
fn patch(path: &str, value: Value) -> Value {
    let nested = |inner: Value, name: &str| json!({name: inner});
    json!({"spec": path.rsplit('.').fold(value, nested)})
}

/// What is wrong with the world around a machine, if it is at rest and its object says something else.
fn mismatch(machine: &ScheduledMachine, usual: &ScheduledMachineSpec, look: &Look) -> Option<String> {
    let status = machine.status.clone().unwrap_or_default();
    if status.observed_generation != machine.metadata.generation {
        return Some("status speaks of another generation".to_owned());
    }
    let spec = &machine.spec;
    let usual = (&usual.bootstrap_spec, &usual.infrastructure_spec, &usual.kubeconfig_secret_ref);
    if (&spec.bootstrap_spec, &spec.infrastructure_spec, &spec.kubeconfig_secret_ref) != usual {
        // It may never join, or never be reached: what becomes of it is told by other tests.
        return None;
    }
    let intent = Intent::try_from(machine);
    let phase = look.phase();
    let wanted = match &intent {
        _ if spec.kill_switch => "Terminated",
        _ if !spec.schedule.enabled => "Disabled",
        Err(_) => "Error",
        Ok(intent) if intent.schedule.at(Timestamp::now()).active => "Active",
        Ok(_) => "Inactive",
    };
    if phase != wanted {
        return Some(format!("{phase} and not {wanted}"));
    }
    let Ok(intent) = intent else { return None };
    if wanted != "Active" {
        let left = ["Machine", "RemoteMachine", "K0sWorkerConfig", "node taints", "agent config"];
        return left.iter().find(|it| look.has(it)).map(|it| format!("{it} is left"));
    }
    let mut taints: Vec<String> =
        intent.node_taints.iter().map(|taint| format!("{}={}", taint.key, taint.value)).collect();
    taints.sort();
    if look.fact("node taints") != taints.join(" ") {
        return Some(format!("taints {:?} and not {taints:?}", look.fact("node taints")));
    }
    if look.fact("node cordoned") != "false" {
        return Some("the Node is cordoned".to_owned());
    }
    (look.has("agent config") == intent.kill_if_commands.is_empty()).then(|| {
        let is_there = look.has("agent config");
        format!("the agent is told something: {is_there}; programs: {:?}", intent.kill_if_commands)
    })
}

/// One who edits a machine.
struct Editor<'a> {
    campaign: &'a Campaign,
    machine: String,
    usual: ScheduledMachineSpec,
    dice: Dice,
    /// What was edited since the world was last at rest.
    edits: Vec<String>,
}

/// Field, whether it was accepted, and what came of it.
type Edited = (String, &'static str, Outcome);

impl Editor<'_> {
    async fn look(&self) -> (ScheduledMachine, Look) {
        let machine = self.campaign.world.machines().get(&self.machine).await.unwrap();
        let look = look::read(&self.campaign.world, [self.machine.as_str()].into_iter()).await.remove(0);
        (machine, look)
    }

    /// Waits until the world is as the object asks for.
    async fn settle(&mut self) -> Outcome {
        let began = Instant::now();
        loop {
            let (machine, look) = self.look().await;
            let Some(wrong) = mismatch(&machine, &self.usual, &look) else {
                self.edits.clear();
                return Outcome::Right;
            };
            if began.elapsed() > PATIENCE {
                let status = json!(machine.status);
                let edits = std::mem::take(&mut self.edits).join("\n");
                return Outcome::Wrong(format!("{wrong} after\n{edits}\n{look:?}\n{status}"));
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Sends a patch, and says what came of it but for what the controller makes of it.
    async fn send(&mut self, patch: &Value) -> (&'static str, Outcome) {
        let machines = self.campaign.world.machines();
        let before = machines.get(&self.machine).await.unwrap();
        let sent = machines.patch(&self.machine, &PatchParams::default(), &Patch::Merge(patch)).await;
        let refused = match sent {
            Ok(_) => {
                self.edits.push(patch.to_string());
                return ("accepted", Outcome::Right);
            }
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => status.message,
            Err(error) => return ("refused", Outcome::Wrong(format!("{patch}: {error}"))),
        };
        let after = machines.get(&self.machine).await.unwrap();
        let outcome = if after.metadata.generation != before.metadata.generation {
            Outcome::Wrong(format!("{patch} was refused, and changed something: {refused}"))
        } else if !refused.contains("spec") {
            Outcome::Wrong(format!("{patch} was refused without the name of a field: {refused}"))
        } else {
            Outcome::Right
        };
        ("refused", outcome)
    }

    /// Edits until time is up.
    async fn edit(mut self, fields: &[Field], until: Instant) -> Vec<Edited> {
        let mut all = Vec::new();
        while Instant::now() < until {
            let (machine, _) = self.look().await;
            let strays = machine.spec.bootstrap_spec != self.usual.bootstrap_spec
                || machine.spec.infrastructure_spec != self.usual.infrastructure_spec
                || machine.spec.kubeconfig_secret_ref != self.usual.kubeconfig_secret_ref;
            if strays || self.dice.below(8) == 0 {
                all.push(self.mend().await);
                continue;
            }
            let field = &fields[usize::try_from(self.dice.below(fields.len() as u64)).unwrap()];
            let name = field.path.rsplit('.').next().unwrap_or_default().to_owned();
            let value = value(&mut self.dice, &name, &field.schema);
            let (answer, outcome) = self.send(&patch(&field.path, value)).await;
            let is_right = outcome == Outcome::Right;
            all.push((field.path.clone(), answer, outcome));
            // Now and then the next edit comes while this one is acted upon.
            if is_right && answer == "accepted" && self.dice.below(4) > 0 {
                let settled = self.settle().await;
                if let (Some((_, _, last)), Outcome::Wrong(_)) = (all.last_mut(), &settled) {
                    *last = settled;
                }
            }
        }
        all.push(self.mend().await);
        all
    }

    /// Puts the object back as it was made.
    async fn mend(&mut self) -> Edited {
        let (machine, _) = self.look().await;
        let mut whole = json!(self.usual);
        // A merge leaves alone what it does not name.
        for (name, value) in json!(machine.spec).as_object().into_iter().flatten() {
            erase(&mut whole[name], value);
        }
        let (answer, outcome) = self.send(&json!({"spec": whole})).await;
        let outcome = if outcome == Outcome::Right { self.settle().await } else { outcome };
        ("(all of it)".to_owned(), answer, outcome)
    }
}

/// Sets to null in a merge patch what stands in an object and not in the patch.
fn erase(patch: &mut Value, stands: &Value) {
    let Some(stands) = stands.as_object() else { return };
    let Some(fields) = patch.as_object_mut() else { return };
    for (name, value) in stands {
        erase(fields.entry(name.clone()).or_insert(Value::Null), value);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_people_edit_the_world_follows() {
    let mut campaign = Campaign::begin(&[]).await;
    let fields = fields();
    assert!(fields.len() > 25, "{} fields", fields.len());
    let mut dice = Dice::new();
    let mut names = Vec::new();
    for number in 0..MACHINES {
        let machine = campaign.run(Scenario::Activate, None).machine;
        let by_days = json!({"daysOfWeek": ["mon-sun"], "hoursOfDay": ["0-23"]});
        let change = |spec: &mut Value| {
            if number % 2 == 1 {
                spec["schedule"] = by_days;
            }
        };
        campaign.world.create(&machine, OPEN, change).await;
        names.push(machine);
    }
    for machine in &names {
        campaign.world.until_phase(machine, "Active").await;
    }
    let until = Instant::now() + span();
    let mut editors = Vec::new();
    for machine in names {
        let usual = campaign.world.machines().get(&machine).await.unwrap().spec;
        let dice = Dice::seeded(dice.below(u64::MAX));
        editors.push(Editor { campaign: &campaign, machine, usual, dice, edits: Vec::new() });
    }
    let edited = join_all(editors.into_iter().map(|editor| editor.edit(&fields, until))).await;
    let mut tally = Tally::new("field of spec", ["accepted", "refused"]);
    for (field, answer, outcome) in edited.into_iter().flatten() {
        tally.count(&field, answer, &field, outcome);
    }
    tally.close("edits");
}
