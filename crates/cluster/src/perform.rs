//! One function for each action. Each names, in the request itself, what must still be true.

use crate::cache::Key;
use crate::capi::CapiVersion;
use crate::drain;
use crate::error::{Error, Retry, call};
use crate::event::Event;
use crate::gate::{Admission, Rank};
use crate::kinds::Place;
use crate::observe::provider_type;
use crate::permission::Permission;
use crate::shell::{Capi, CapiPlaces, Shell};
use crate::watched::Watched;
use crate::workload::Reached;
use fivespot_api::names::{self, CONTROLLER};
use fivespot_api::{ScheduledMachineStatus, Writing};
use fivespot_core::drain::{Attempts, PodId, Way};
use fivespot_core::intent::Intent;
use fivespot_core::lifecycle::{Action, Decision, Failure, Note, Part, Phase};
use fivespot_core::observed::{Observed, Version};
use fivespot_core::status;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::sync::Arc;

/// What a pass did.
#[derive(Debug)]
pub struct Performed {
    /// The decision, as it came out: its actions are done, whatever became of status.
    pub decision: Decision,
    /// Whether status was written.
    pub wrote_status: Result<bool, Error>,
}

/// One pass that is being carried out.
pub(crate) struct Pass<'a> {
    pub(crate) watched: &'a Watched,
    pub(crate) wish: Option<&'a Intent>,
    /// The version of the ScheduledMachine as we know it: each of our writes makes a new one.
    pub(crate) version: String,
    /// The version of the Machine after a write of ours.
    machine_version: Option<String>,
    attempts: Attempts,
    /// Why the server would not disable the schedule.
    pub(crate) refused: Option<String>,
    /// What the server said of provider objects that it was asked to try.
    pub(crate) tried: Option<Result<(), String>>,
    /// Writes since the machine last came to rest, in this pass and in those before it: at a boundary the first steps of
    /// all machines go before the second of any, however important.
    step: u16,
    /// Whether it waits for nobody.
    is_urgent: bool,
}

impl Pass<'_> {
    /// Where the next write stands among those of other machines.
    pub(crate) fn admission(&mut self) -> Admission {
        self.step = self.step.saturating_add(1);
        if self.is_urgent {
            return Admission::Urgent(self.watched.key().namespace);
        }
        Admission::Ranked(Rank { step: self.step, priority: priority(self.watched) })
    }
}

/// How important a machine is.
pub(crate) fn priority(watched: &Watched) -> Reverse<u8> {
    Reverse(u8::try_from(watched.machine.spec.priority.clamp(0, 255)).unwrap_or(u8::MAX))
}

impl Shell {
    /// Carries a decision out: actions in order, then status and events. Stops at the first action that fails; the
    /// failure is shown in status as far as that can be written.
    pub async fn perform(
        &self,
        watched: &Watched,
        wish: Option<&Intent>,
        observed: &Observed,
        decision: Decision,
        now: Timestamp,
    ) -> Result<Performed, Error> {
        let version = watched.machine.metadata.resource_version.clone().unwrap_or_default();
        let is_urgent = decision.phase == Phase::EmergencyRemove;
        let key = watched.key();
        let step = self.steps(&key);
        let mut pass = Pass { wish, version, step, is_urgent, ..self.only_a_word(watched) };
        let performed = Box::pin(self.carry_out(&mut pass, observed, decision, now)).await;
        self.set_steps(&key, (pass.step != step).then_some(pass.step));
        performed
    }

    async fn carry_out(
        &self,
        pass: &mut Pass<'_>,
        observed: &Observed,
        decision: Decision,
        now: Timestamp,
    ) -> Result<Performed, Error> {
        let watched = pass.watched;
        // What failed and did not stop the rest: the pass is repeated for it.
        let mut left_undone = None;
        for action in decision.actions.clone() {
            if let Err(error) = self.act(pass, &action).await {
                let is_answer = matches!(action, Action::Try(_)) && error.retry() == Retry::Refused;
                if is_answer && decision.goes_on_without(&action) {
                    break;
                }
                if error.retry() != Retry::Soon && decision.goes_on_without(&action) {
                    tracing::warn!(object = %watched.key(), %action, %error, "an action failed; goes on without it");
                    left_undone.get_or_insert(error);
                    continue;
                }
                let is_final = match error.retry() {
                    // The next look shows how the world has moved on: there is nothing to tell yet.
                    Retry::Soon => return Err(error),
                    Retry::Later => false,
                    Retry::Refused => true,
                };
                let failure = Failure { action, text: error.to_string(), is_final };
                let mut shown = decision.failed(observed, failure);
                if let Some(outcome) = pass.tried.take() {
                    shown = shown.tried(watched.spec_id(), outcome, now);
                }
                if let Err(second) = self.write_status(pass, observed, &shown, now).await {
                    tracing::warn!(object = %watched.key(), error = %second, "a failure could not be shown in status");
                }
                return Err(error);
            }
        }
        let released = decision.actions.contains(&Action::RemoveFinalizer);
        let decision = decision.after(&pass.attempts, observed);
        let decision = match pass.refused.take() {
            Some(refusal) => decision.not_disabled(refusal),
            None => decision,
        };
        let decision = match pass.tried.take() {
            Some(outcome) => decision.tried(watched.spec_id(), outcome, now),
            None => decision,
        };
        // At a boundary all machines take their step before any tells of it; one that is alone does both at once.
        let mut teller = Pass {
            attempts: Attempts::default(),
            refused: None,
            tried: None,
            version: String::new(),
            machine_version: None,
            ..*pass
        };
        teller.step = teller.step.saturating_add(u16::from(!decision.notes.is_empty()));
        let write = async {
            // Without our finalizer there may be no object left to write to.
            if released { Ok(false) } else { self.write_status(pass, observed, &decision, now).await }
        };
        let tell = async {
            if teller.is_urgent {
                return self.tell_aside(&teller, decision.notes.clone(), now);
            }
            for note in &decision.notes {
                self.tell(&mut teller, &Event::from(note), now).await;
            }
        };
        let (wrote_status, ()) = futures::future::join(write, tell).await;
        pass.step = pass.step.max(teller.step);
        match left_undone {
            Some(error) if wrote_status.is_ok() => Err(error),
            Some(_) | None => Ok(Performed { decision, wrote_status }),
        }
    }

    /// Tells people by an event that passes fail.
    pub async fn tell_failure(&self, watched: &Watched, error: &Error) {
        let text = error.to_string();
        let event = Event { reason: "ReconcileFailed", text: &text, is_warning: true };
        self.tell(&mut self.only_a_word(watched), &event, Timestamp::now()).await;
    }

    /// Shows in status that a pass failed before it could do anything.
    pub async fn show_failure(&self, watched: &Watched, error: &Error) {
        let is_final = error.retry() == Retry::Refused;
        let next = watched.machine.failed_status(&error.to_string(), is_final, Timestamp::now());
        if let Err(second) = self.patch_status(&mut self.only_a_word(watched), &next).await {
            tracing::warn!(object = %watched.key(), error = %second, "a failure could not be shown in status");
        }
    }

    /// A pass that has nothing to carry out.
    fn only_a_word<'a>(&self, watched: &'a Watched) -> Pass<'a> {
        let version = watched.machine.metadata.resource_version.clone().unwrap_or_default();
        let (attempts, step) = (Attempts::default(), self.steps(&watched.key()));
        let (wish, machine_version, refused, tried) = (None, None, None, None);
        Pass { watched, wish, version, machine_version, attempts, refused, tried, step, is_urgent: false }
    }

    /// An event that cannot be sent is not worth a second try.
    async fn tell(&self, pass: &mut Pass<'_>, event: &Event<'_>, now: Timestamp) {
        let _permit = self.gate.enter(pass.admission()).await;
        let telling = event.send(&self.client, &self.settings.instance, pass.watched, now);
        if let Some(Err(error)) = self.permission(pass).within(telling).await {
            tracing::warn!(object = %pass.watched.key(), %error, "an event was lost");
        }
    }

    /// Sends events while the next steps are taken: an event that a webhook holds up must not hold up an eject.
    fn tell_aside(&self, pass: &Pass<'_>, notes: Vec<Note>, now: Timestamp) {
        if notes.is_empty() {
            return;
        }
        let (client, instance) = (self.client.clone(), self.settings.instance.clone());
        let (permission, watched) = (self.permission(pass), pass.watched.clone());
        tokio::spawn(async move {
            for note in &notes {
                let event = Event::from(note);
                let telling = event.send(&client, &instance, &watched, now);
                if let Some(Err(error)) = permission.within(telling).await {
                    tracing::warn!(object = %permission.key, %error, "an event was lost");
                }
            }
        });
    }

    async fn act(&self, pass: &mut Pass<'_>, action: &Action) -> Result<(), Error> {
        match action {
            Action::AddFinalizer => self.set_finalizer(pass, true).await,
            Action::RemoveFinalizer => self.set_finalizer(pass, false).await,
            Action::Try(part) => self.try_create(pass, *part).await,
            Action::Create(part) => self.create(pass, *part).await,
            Action::Delete { part, uid, version } => self.delete(pass, *part, uid, version.as_ref()).await,
            Action::ExcludeDrain { uid, version, volumes } => {
                self.exclude_drain(pass, uid, version.as_ref(), *volumes).await
            }
            Action::Cordon(node) => self.cordon(pass, node).await,
            Action::Uncordon(node) => self.uncordon(pass, node).await,
            Action::SetTaints { node, change, record } => self.set_taints(pass, node, change, record).await,
            Action::Evict(pods) => {
                let reached = self.reach(pass.watched).await?;
                pass.attempts = self.ask(pass, &reached, pods, Way::Evict { grace: None }).await;
                Ok(())
            }
            Action::ForceDelete(pods) => {
                let reached = self.reach(pass.watched).await?;
                pass.attempts = self.ask(pass, &reached, pods, Way::Force).await;
                Ok(())
            }
            Action::Disable { reclaim } => self.disable(pass, reclaim).await,
            Action::ClearOwnRequest => self.clear_own_request(pass).await,
            Action::RememberHost(host) => self.remember_host(pass, host).await,
            Action::ClearRequest { node, requested_at } => self.clear_request(pass, node, requested_at).await,
            Action::WriteAgentConfig { node, commands } => {
                self.write_agent_config(pass, node, commands).await
            }
            Action::DeleteAgentConfig { node, uid } => self.delete_agent_config(pass, node, uid).await,
            Action::Arm { node, machine } => self.arm(pass, node, Some(machine)).await,
            Action::Disarm(node) => self.arm(pass, node, None).await,
        }
    }

    async fn ask(&self, pass: &mut Pass<'_>, reached: &Reached, pods: &[PodId], way: Way) -> Attempts {
        let admission = pass.admission();
        drain::ask(reached, pods, way, admission, &self.permission(pass)).await
    }

    async fn set_finalizer(&self, pass: &mut Pass<'_>, present: bool) -> Result<(), Error> {
        let what = if present { "add our finalizer" } else { "remove our finalizer" };
        let mut finalizers = pass.watched.machine.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != names::FINALIZER);
        if present {
            finalizers.push(names::FINALIZER.to_owned());
        }
        let body = json!({"metadata": {
            "uid": pass.watched.uid(),
            "resourceVersion": pass.version,
            "finalizers": finalizers,
        }});
        let key = pass.watched.key();
        let request = Request::new(own_path(&key)).patch(&key.name, &patch_params(), &Patch::Merge(&body));
        match self.send(pass, what, request).await {
            // It is gone, which is what its finalizer was removed for.
            Err(error) if !present && error.code() == Some(404) => Ok(()),
            answer => {
                self.wrote_version(pass, &answer?);
                Ok(())
            }
        }
    }

    async fn delete(
        &self,
        pass: &mut Pass<'_>,
        part: Part,
        uid: &str,
        version: Option<&Version>,
    ) -> Result<(), Error> {
        let what = format!("delete the {part}");
        let changed = || Error::Changed { what: what.clone() };
        let places = match part {
            Part::Machine => self.served().map(|(_, places)| places.machines).ok_or_else(changed)?,
            Part::Bootstrap | Part::Infrastructure => {
                let kind = provider_type(pass.watched, part).ok_or_else(changed)?;
                self.kinds.find_all(&self.client, &kind).await?
            }
        };
        let key = pass.watched.key();
        let resource_version = version.map(|Version(read)| match &pass.machine_version {
            Some(written) if part == Part::Machine => written.clone(),
            _ => read.clone(),
        });
        let only_this = Preconditions { uid: Some(uid.to_owned()), resource_version };
        let params = DeleteParams::background().preconditions(only_this);
        let request =
            |place: &Place| Request::new(place.path(Some(&key.namespace))).delete(&key.name, &params);
        match self.send_through(pass, &what, &places, request).await {
            Err(error) if error.code() == Some(404) => Ok(()),
            Err(error) if error.code() == Some(409) => Err(changed()),
            answer => answer.map(|_| ()),
        }
    }

    async fn exclude_drain(
        &self,
        pass: &mut Pass<'_>,
        uid: &str,
        version: Option<&Version>,
        volumes: bool,
    ) -> Result<(), Error> {
        let what = "tell Cluster API to leave the drain to us";
        let (_, places) = self.served().ok_or_else(|| Error::Changed { what: what.to_owned() })?;
        let mut annotations = json!({names::EXCLUDE_DRAIN: "true"});
        if volumes {
            annotations[names::EXCLUDE_VOLUMES] = json!("true");
        }
        let mut body = json!({"metadata": {"uid": uid, "annotations": annotations}});
        if let Some(Version(read)) = version {
            body["metadata"]["resourceVersion"] = json!(read);
        }
        let key = pass.watched.key();
        let request = |place: &Place| {
            let request = Request::new(place.path(Some(&key.namespace)));
            request.patch(&key.name, &patch_params(), &Patch::Merge(&body))
        };
        match self.send_through(pass, what, &places.machines, request).await {
            // It is gone, or another one has its name.
            Err(error) if error.is_race() => Err(Error::Changed { what: what.to_owned() }),
            answer => {
                pass.machine_version = answer?.metadata.resource_version;
                Ok(())
            }
        }
    }

    /// One write that is the same in every version of a kind, through the first version that works.
    async fn send_through(
        &self,
        pass: &mut Pass<'_>,
        what: &str,
        places: &[Place],
        request: impl Fn(&Place) -> Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Answer, Error> {
        let mut broken = Error::Changed { what: what.to_owned() };
        for place in places {
            match self.send(pass, what, request(place)).await {
                Err(error) if error.is_breakdown() => broken = error,
                answer => return answer,
            }
        }
        Err(broken)
    }

    pub(crate) fn served(&self) -> Option<(CapiVersion, CapiPlaces)> {
        match self.capi() {
            Capi::Served(version, places) => Some((version, places)),
            Capi::Unknown | Capi::Missing | Capi::OtherVersion => None,
        }
    }

    pub(crate) async fn reach(&self, watched: &Watched) -> Result<Reached, Error> {
        let what = "reach the workload cluster".to_owned();
        let reached = self.workloads.reach(&self.wanted(watched)).await;
        reached.map_err(|why| Error::Unreadable { what, why: why.message })
    }

    /// Writes status if it differs; whether it did.
    async fn write_status(
        &self,
        pass: &mut Pass<'_>,
        observed: &Observed,
        decision: &Decision,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let watched = pass.watched;
        let machine_version = match self.capi() {
            Capi::Served(version, ..) => version.api_version(),
            Capi::Unknown | Capi::Missing | Capi::OtherVersion => String::new(),
        };
        let slot = self.settings.right.slot(&watched.key());
        let writing = Writing { machine_version: &machine_version, slot, now };
        let next = watched.machine.next_status(&status::report(decision, observed), &writing);
        self.patch_status(pass, &next).await
    }

    async fn patch_status(&self, pass: &mut Pass<'_>, next: &ScheduledMachineStatus) -> Result<bool, Error> {
        let what = "write status";
        let watched = pass.watched;
        let Some(change) = change(watched.machine.status.as_ref(), next) else { return Ok(false) };
        let key = watched.key();
        let body = json!({
            "metadata": {"uid": watched.uid(), "resourceVersion": pass.version},
            "status": change,
        });
        let request = Request::new(own_path(&key));
        let request = request.patch_subresource("status", &key.name, &patch_params(), &Patch::Merge(&body));
        match self.send(pass, what, request).await {
            Err(error) if matches!(error.code(), Some(404 | 409)) => {
                Err(Error::Changed { what: what.to_owned() })
            }
            answer => {
                self.wrote_version(pass, &answer?);
                Ok(true)
            }
        }
    }

    fn permission(&self, pass: &Pass<'_>) -> Permission {
        Permission { right: Arc::clone(&self.settings.right), key: pass.watched.key() }
    }

    /// One write.
    pub(crate) async fn write<T>(
        &self,
        pass: &Pass<'_>,
        what: &str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        let not_holder = || Error::NotHolder { what: what.to_owned() };
        self.permission(pass).within(call(what, request)).await.ok_or_else(not_holder)?
    }

    pub(crate) fn wrote_version(&self, pass: &mut Pass<'_>, answer: &Answer) {
        let version = answer.metadata.resource_version.clone().unwrap_or_default();
        self.wrote(&pass.watched.key(), &version);
        pass.version = version;
    }

    pub(crate) async fn send(
        &self,
        pass: &mut Pass<'_>,
        what: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Answer, Error> {
        let request = request.map_err(|error| Error::api(what, kube::Error::BuildRequest(error)))?;
        let _permit = self.gate.enter(pass.admission()).await;
        match self.write(pass, what, self.client.request::<Answer>(request)).await {
            // Of a write that names a version or an identity: somebody else wrote meanwhile.
            Err(error) if error.code() == Some(409) && !what.starts_with("create") => {
                Err(Error::Changed { what: what.to_owned() })
            }
            answer => answer,
        }
    }
}

/// What is read of the answer to a write.
#[derive(Deserialize)]
pub(crate) struct Answer {
    #[serde(default)]
    metadata: AnswerMeta,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AnswerMeta {
    resource_version: Option<String>,
}

pub(crate) fn own_path(key: &Key) -> String {
    format!("/apis/5spot.finos.org/v1alpha1/namespaces/{}/scheduledmachines", key.namespace)
}

pub(crate) fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() }
}

/// What must be merged into one status to get the other; `None` if they are the same.
fn change(before: Option<&ScheduledMachineStatus>, after: &ScheduledMachineStatus) -> Option<Value> {
    if before == Some(after) {
        return None;
    }
    let as_object = |status: Option<&ScheduledMachineStatus>| {
        let value = serde_json::to_value(status).unwrap_or_default();
        value.as_object().cloned().unwrap_or_default()
    };
    let (before, after) = (as_object(before), as_object(Some(after)));
    let mut change = serde_json::Map::new();
    for (key, value) in &after {
        if before.get(key) != Some(value) {
            change.insert(key.clone(), value.clone());
        }
    }
    // Members of an object that is merged stay unless they are named.
    for (key, old) in &before {
        let Some(new) = after.get(key) else {
            change.insert(key.clone(), Value::Null);
            continue;
        };
        if let (Some(old), Some(Value::Object(new))) =
            (old.as_object(), change.get_mut(key).filter(|_| new.is_object()))
        {
            for member in old.keys() {
                new.entry(member.clone()).or_insert(Value::Null);
            }
        }
    }
    (!change.is_empty()).then_some(Value::Object(change))
}
