//! Pods that carry the names of the owner's programs wherever a name can be.

use fivespot_testenv::{ControlPlane, GUEST_IMAGE, RealNode, eventually};
use futures::StreamExt;
use futures::stream;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// Pods of one namespace on one node.
pub(crate) struct Guests {
    plane: &'static ControlPlane,
    node: &'static RealNode,
    client: Client,
    namespace: String,
    /// What the owner has declared.
    names: [String; 3],
}

impl Guests {
    pub(crate) async fn new(
        plane: &'static ControlPlane,
        node: &'static RealNode,
        names: &[String; 3],
    ) -> Self {
        let client = plane.management().client().await.unwrap();
        let namespace = plane.management().fresh_namespace(&client, "guests").await.unwrap();
        let guests = Self { plane, node, client, namespace, names: names.clone() };
        let [java, idea, steam] = names;
        let data = json!({idea: "jetbrains", steam: "valve", java: "oracle"});
        let map = json!({"metadata": {"name": java}, "data": data});
        let maps: Api<ConfigMap> = guests.api();
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        let secret = json!({"metadata": {"name": idea}, "stringData": data});
        let secrets: Api<Secret> = guests.api();
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        guests
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// A pod that runs programs of the declared names in its containers, its hooks and its probes, with arguments full of
    /// them. They are copies of a real program in the first volume.
    fn pod(&self, name: &str) -> Value {
        let [java, idea, steam] = &self.names;
        let mut pod = self.node.pod(&format!("{name}-{java}"), "");
        // The name of the process is that of the file; its first argument says which program of busybox it is.
        let run = |program: &str, time: &str| format!("exec -a sleep /tools/{program} {time}");
        let hook = |program: &str| json!(["sh", "-c", run(program, "0.05"), idea, steam, java]);
        let copy = format!(
            "for it in {java} {idea} {steam}; do cp /bin/busybox /tools/$it; done; {}",
            run(java, "0.1")
        );
        let tools = json!({"name": java, "mountPath": "/tools"});
        let memory = json!({"name": steam, "mountPath": format!("/{steam}")});
        pod["metadata"]["labels"] = json!({"app": java});
        pod["metadata"]["annotations"] = json!({idea: steam});
        pod["spec"]["initContainers"] = json!([{
            "name": format!("init-{java}"), "image": GUEST_IMAGE,
            "command": ["sh", "-c", copy, java, idea], "volumeMounts": [tools],
        }]);
        pod["spec"]["containers"] = json!([{
            "name": java, "image": GUEST_IMAGE,
            "command": ["sh", "-c", run(java, "1000"), idea, steam],
            "env": [{"name": "JAVA_HOME", "value": java}],
            "startupProbe": {"exec": {"command": hook(steam)}, "periodSeconds": 1},
            "readinessProbe": {"exec": {"command": hook(idea)}, "periodSeconds": 1},
            "livenessProbe": {"exec": {"command": hook(java)}, "periodSeconds": 1},
            "lifecycle": {"postStart": {"exec": {"command": hook(steam)}}, "preStop": {"exec": {"command": hook(idea)}}},
            "volumeMounts": [tools, memory],
        }]);
        pod["spec"]["volumes"] = json!([
            {"name": java, "emptyDir": {}},
            {"name": steam, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ]);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
        pod
    }

    /// Starts a pod with every kind of volume that needs no other machine.
    pub(crate) async fn start_with_everything(&self, name: &str) -> Pod {
        let [java, idea, steam] = &self.names;
        let claim = self.claim_local_volume().await;
        let mut pod = self.pod(name);
        let kinds = [
            ("map", json!({"configMap": {"name": java}})),
            ("secret", json!({"secret": {"secretName": idea}})),
            (
                "downward",
                json!({"downwardAPI": {"items": [{"path": steam, "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            ),
            (
                "projected",
                json!({"projected": {"sources": [
                    {"configMap": {"name": java}},
                    {"secret": {"name": idea, "items": [{"key": java, "path": format!("{steam}-secret")}]}},
                    {"serviceAccountToken": {"path": format!("{java}-token"), "expirationSeconds": 600}},
                    {"downwardAPI": {"items": [{"path": format!("{idea}-labels"), "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                ]}}),
            ),
            ("host", json!({"hostPath": {"path": format!("/run/{java}"), "type": "DirectoryOrCreate"}})),
            ("local", json!({"persistentVolumeClaim": {"claimName": claim}})),
        ];
        for (kind, mut volume) in kinds {
            let volume_name = format!("{kind}-{idea}");
            volume["name"] = json!(volume_name);
            let mount = json!({"name": volume_name, "mountPath": format!("/{kind}/{steam}")});
            push(&mut pod["spec"]["volumes"], volume);
            push(&mut pod["spec"]["containers"][0]["volumeMounts"], mount);
        }
        // A part of a volume is a mount of its own, which the kubelet makes.
        let part = json!({"name": java, "mountPath": format!("/part-{idea}"), "subPath": format!("part-{steam}/{idea}")});
        push(&mut pod["spec"]["containers"][0]["volumeMounts"], part);
        self.node.run(&self.pods(), pod).await.unwrap()
    }

    /// A claim that is bound to a folder of the node. Nobody binds claims here, so that is done by hand.
    async fn claim_local_volume(&self) -> String {
        let [java, idea, _] = &self.names;
        let folder = format!("/run/local-{java}");
        fs::create_dir_all(self.node.root().join(folder.trim_start_matches('/'))).unwrap();
        let (claims, volumes): (Api<PersistentVolumeClaim>, Api<PersistentVolume>) =
            (self.api(), Api::all(self.client.clone()));
        let size = json!({"storage": "1Mi"});
        let claim = json!({"metadata": {"name": idea}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": java, "resources": {"requests": size},
        }});
        let claim =
            claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
        let on_node =
            json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [self.node.name()]});
        let volume = json!({"metadata": {"name": java}, "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": size, "local": {"path": folder},
            "claimRef": {"namespace": self.namespace, "name": idea, "uid": claim.metadata.uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        }});
        volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        volumes.patch_status(java, &PatchParams::default(), &bound).await.unwrap();
        // A claim without capacity is one that has to grow.
        let bound = Patch::Merge(json!({"status": {"phase": "Bound", "capacity": size}}));
        claims.patch_status(idea, &PatchParams::default(), &bound).await.unwrap();
        idea.clone()
    }

    /// Starts so many pods, so many at once, runs something in each with `kubectl exec`, and deletes each, every second
    /// one without grace.
    pub(crate) async fn start_and_delete(&self, count: usize, at_once: usize) {
        let life = async |number: usize| {
            let pod = self.node.run(&self.pods(), self.pod(&format!("guest-{number}"))).await.unwrap();
            self.exec(&pod).await;
            self.delete(&pod, u32::from(number.is_multiple_of(2))).await;
        };
        stream::iter(0..count).for_each_concurrent(at_once, life).await;
    }

    /// Runs the declared programs in a pod with `kubectl exec`. Neither the pod's name nor theirs is on its command line: it
    /// reads both.
    pub(crate) async fn exec(&self, pod: &Pod) {
        let object = self.pods().get(&pod.name_any()).await.unwrap();
        let file = self.file(pod.metadata.uid.as_deref().unwrap());
        fs::write(&file, serde_json::to_string(&object).unwrap()).unwrap();
        let [java, idea, steam] = &self.names;
        let script =
            format!("sh -c 'exec -a sleep /tools/{idea} 0.05' {java} {steam}; /tools/{java}; echo done\n");
        let (plane, path) = (self.plane, file.to_str().unwrap().to_owned());
        let run = move || {
            let args = ["exec", "--stdin", "--filename", &path, "--", "sh"];
            plane.kubectl(plane.management(), &args, &script)
        };
        let said = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
        assert!(said.ends_with("done\n"), "{said}");
        fs::remove_file(file).unwrap();
    }

    /// A file that goes with the control plane.
    fn file(&self, name: &str) -> PathBuf {
        self.plane.management().kubeconfig_path().with_file_name(format!("{name}.json"))
    }

    /// Adds a container to a pod that runs, as `kubectl debug` does, and waits until it runs.
    pub(crate) async fn add_ephemeral_container(&self, pod: &Pod) {
        let [java, idea, steam] = &self.names;
        let script = format!("exec -a sleep /tools/{steam} 1000");
        let patch = json!({"spec": {"ephemeralContainers": [{
            "name": format!("debug-{idea}"), "image": GUEST_IMAGE, "command": ["sh", "-c", script, java],
            "volumeMounts": [{"name": java, "mountPath": "/tools"}],
        }]}});
        let (pods, name) = (self.pods(), pod.name_any());
        pods.patch_ephemeral_containers(&name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
            .unwrap();
        eventually("the ephemeral container runs", async || {
            let status = pods.get(&name).await.unwrap().status.unwrap();
            let statuses = status.ephemeral_container_statuses.unwrap_or_default();
            statuses.iter().any(|it| it.state.as_ref().is_some_and(|state| state.running.is_some()))
        })
        .await;
    }

    /// Deletes a pod and waits until it is gone, from the API and from the machine.
    pub(crate) async fn delete(&self, pod: &Pod, grace: u32) {
        let (pods, name) = (self.pods(), pod.name_any());
        pods.delete(&name, &DeleteParams::default().grace_period(grace)).await.unwrap();
        eventually("the pod is gone", async || {
            let is_there = pods.get_metadata_opt(&name).await.unwrap().is_some();
            !is_there && self.node.pod_processes(pod.metadata.uid.as_deref().unwrap()).is_empty()
        })
        .await;
    }

    /// The names that the kernel has for the processes of a pod.
    pub(crate) fn names_of_processes(&self, pod: &Pod) -> Vec<String> {
        let pids = self.node.pod_processes(pod.metadata.uid.as_deref().unwrap());
        let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        pids.iter().map(|pid| name(pid).trim().to_owned()).collect()
    }
}

fn push(list: &mut Value, item: Value) {
    list.as_array_mut().unwrap().push(item);
}
