//! The admission policies, shipped and sample, judged on who asks and on what changes.

use crate::setup::{apply, cluster, create, dry_run, kubectl, machine, machines, message, read_yaml};
use fivespot_testenv::{AuditEntry, ControlPlane, Identity, eventually};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Lets a user create, read and patch a resource, written `resource.group`, in a namespace. The API server need
/// not know a resource for RBAC to speak of it.
fn grant(plane: &ControlPlane, namespace: &str, user: &str, resource: &str) {
    let (plural, group) = resource.split_once('.').unwrap();
    let api_group = "rbac.authorization.k8s.io";
    let metadata = json!({"name": plural, "namespace": namespace});
    apply(
        plane,
        &json!({
            "apiVersion": format!("{api_group}/v1"), "kind": "Role", "metadata": metadata,
            "rules": [{"apiGroups": [group], "resources": [plural], "verbs": ["create", "get", "patch"]}],
        }),
    );
    apply(
        plane,
        &json!({
            "apiVersion": format!("{api_group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": api_group, "kind": "Role", "name": plural},
            "subjects": [{"apiGroup": api_group, "kind": "User", "name": user}],
        }),
    );
}

async fn as_user(plane: &ControlPlane, user: &str, namespace: &str) -> Api<DynamicObject> {
    let client: Client = plane.management().client_as(&Identity::user(user)).await.unwrap();
    machines(&client, namespace)
}

async fn patch(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<DynamicObject, String> {
    message(api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_gets_from_5_spot_only_what_he_could_create_himself() {
    let (plane, client, namespace) = cluster("tenant").await;
    let user = "tina";
    grant(plane, &namespace, user, "scheduledmachines.5spot.finos.org");
    let api = as_user(plane, user, &namespace).await;

    eventually("he may write the object, but not what it embeds", async || {
        let refused = create(&api, &machine("one")).await.unwrap_err();
        refused.contains("you may not create k0sworkerconfigs.bootstrap.cluster.x-k8s.io")
    })
    .await;

    grant(plane, &namespace, user, "k0sworkerconfigs.bootstrap.cluster.x-k8s.io");
    eventually("the missing right is the other one", async || {
        let refused = create(&api, &machine("one")).await.unwrap_err();
        refused.contains("you may not create remotemachines.infrastructure.cluster.x-k8s.io")
    })
    .await;

    grant(plane, &namespace, user, "remotemachines.infrastructure.cluster.x-k8s.io");
    eventually("he may", async || create(&api, &machine("one")).await.is_ok()).await;

    // The rights to the embedded kinds hold in that namespace and in no other.
    let second = plane.management().fresh_namespace(&client, "tenant-second").await.unwrap();
    grant(plane, &second, user, "scheduledmachines.5spot.finos.org");
    let elsewhere = as_user(plane, user, &second).await;
    eventually("he may not, elsewhere", async || {
        let refused = create(&elsewhere, &machine("two")).await.unwrap_err();
        refused.contains(&format!(
            "you may not create k0sworkerconfigs.bootstrap.cluster.x-k8s.io in namespace {second}"
        ))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_change_the_embedded_specs_needs_no_right_to_them() {
    let (plane, client, namespace) = cluster("operator").await;
    create(&machines(&client, &namespace), &machine("one")).await.unwrap();
    grant(plane, &namespace, "otto", "scheduledmachines.5spot.finos.org");
    let api = as_user(plane, "otto", &namespace).await;
    eventually("otto may disable", async || {
        patch(&api, "one", json!({"spec": {"schedule": {"enabled": false}}})).await.is_ok()
    })
    .await;
    patch(&api, "one", json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/x"]}}))
        .await
        .unwrap();
    patch(&api, "one", json!({"metadata": {"finalizers": null}})).await.unwrap();
    for part in ["bootstrapSpec", "infrastructureSpec"] {
        let refused = patch(&api, "one", json!({"spec": {part: {"spec": {"x": "y"}}}})).await.unwrap_err();
        assert!(refused.contains("you may not create"), "{part}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_known_any_more_is_refused_but_what_runs_can_be_given_back() {
    let (plane, client, namespace) = cluster("unknown").await;
    let api = machines(&client, &namespace);
    let of_kind = |name: &str| {
        let mut object = machine(name);
        object["spec"]["bootstrapSpec"]["kind"] = json!("OddConfig");
        object
    };
    let annotate = |line: &str| {
        let key = format!("embedded.5spot.finos.org/OddConfig.bootstrap.cluster.x-k8s.io{line}");
        kubectl(plane, &["annotate", "crd", "scheduledmachines.5spot.finos.org", &key]);
    };
    annotate("=oddconfigs");
    eventually("the kind is known", async || create(&api, &of_kind("before")).await.is_ok()).await;
    annotate("-");
    let mut tries = 0;
    eventually("the kind is unknown", async || {
        tries += 1;
        let refused = create(&api, &of_kind(&format!("after-{tries}"))).await;
        refused
            .is_err_and(|message| message.contains("OddConfig.bootstrap.cluster.x-k8s.io is not known here"))
    })
    .await;
    patch(&api, "before", json!({"spec": {"schedule": {"enabled": false}}})).await.unwrap();
    patch(&api, "before", json!({"metadata": {"finalizers": ["example.com/x"]}})).await.unwrap();
    patch(&api, "before", json!({"metadata": {"finalizers": null}})).await.unwrap();
    patch(&api, "before", json!({"spec": {"bootstrapSpec": {"spec": {"x": "y"}}}})).await.unwrap_err();
}

/// The finalizer that the controller puts on a ScheduledMachine before it makes anything for it.
const OURS: &str = "5spot.finos.org/scheduledmachine";

fn with_finalizers(name: &str, finalizers: &[&str]) -> Value {
    let mut object = machine(name);
    object["metadata"]["finalizers"] = json!(finalizers);
    object
}

async fn delete(api: &Api<DynamicObject>, name: &str, params: &DeleteParams) -> Result<(), String> {
    message(api.delete(name, params).await).map(|_| ())
}

/// Options of a delete request, with a propagation policy or without.
fn propagating(propagation_policy: Option<PropagationPolicy>) -> DeleteParams {
    DeleteParams { propagation_policy, ..DeleteParams::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_has_something_to_tear_down_is_not_deleted_in_the_foreground() {
    let (plane, client, namespace) = cluster("foreground").await;
    let api = machines(&client, &namespace);
    let (foreground, background) = (DeleteParams::foreground(), DeleteParams::background());
    for (name, finalizers) in [
        ("lent", vec![OURS]),
        ("marked", vec!["foregroundDeletion", OURS]),
        ("going", vec![OURS]),
        ("inactive", vec![]),
        ("inactive-marked", vec!["foregroundDeletion"]),
    ] {
        create(&api, &with_finalizers(name, &finalizers)).await.unwrap();
    }
    let says = format!(
        "ScheduledMachine {namespace}/lent is not deleted in the foreground: its host would be reset before its pods \
         have left. Delete it in the background: kubectl delete --cascade=background. In Argo CD set the sync option \
         PrunePropagationPolicy=background, and to delete a whole Application its finalizer \
         resources-finalizer.argocd.argoproj.io/background"
    );
    eventually("the policy is in force", async || {
        delete(&api, "lent", &foreground.clone().dry_run()).await.is_err_and(|text| text.ends_with(&says))
    })
    .await;

    let refused = delete(&api, "lent", &foreground).await.unwrap_err();
    assert!(refused.ends_with(&says), "{refused}");
    // A server that is not told how goes by the finalizer of the object.
    let refused = delete(&api, "marked", &propagating(None)).await.unwrap_err();
    assert!(refused.contains("/marked is not deleted in the foreground"), "{refused}");
    // It leaves gracefully, and may not be hurried.
    delete(&api, "going", &background).await.unwrap();
    let refused = delete(&api, "going", &foreground).await.unwrap_err();
    assert!(refused.contains("/going is not deleted in the foreground"), "{refused}");
    let all = ListParams::default().fields("metadata.name=lent");
    let refused = message(api.delete_collection(&foreground, &all).await.map(|_| ())).unwrap_err();
    assert!(refused.ends_with(&says), "{refused}");
    let by_kubectl = ["delete", "sm", "-n", &namespace, "lent", "--cascade=foreground"];
    let refused = plane.kubectl(plane.management(), &by_kubectl, "").unwrap_err().to_string();
    assert!(refused.contains("is forbidden") && refused.contains(&says), "{refused}");
    for name in ["lent", "marked"] {
        assert_eq!(api.get(name).await.unwrap().metadata.deletion_timestamp, None);
    }

    // What has nothing in a cluster goes in any way.
    delete(&api, "inactive", &foreground).await.unwrap();
    delete(&api, "inactive-marked", &propagating(None)).await.unwrap();
    // And everything goes in the background, which also takes the mark off.
    delete(&api, "marked", &background).await.unwrap();
    assert_eq!(api.get("marked").await.unwrap().metadata.finalizers.unwrap_or_default(), [OURS]);
    message(api.delete_collection(&background, &all).await.map(|_| ())).unwrap();
    assert!(api.get("lent").await.unwrap().metadata.deletion_timestamp.is_some());
    for (name, propagation) in [("by-default", None), ("orphaning", Some(PropagationPolicy::Orphan))] {
        create(&api, &with_finalizers(name, &[OURS])).await.unwrap();
        delete(&api, name, &propagating(propagation)).await.unwrap();
    }
    // The older option, which kube has not.
    create(&api, &with_finalizers("older", &["foregroundDeletion", OURS])).await.unwrap();
    let path = format!("{}/older?orphanDependents=false", api.resource_url());
    kubectl(plane, &["delete", "--raw", &path]);
}

/// Whoever could write it could have any Node of the workload cluster drained whose machine id they know.
#[tokio::test(flavor = "multi_thread")]
async fn the_host_that_was_lent_is_the_word_of_the_controller_alone() {
    let (plane, _, namespace) = cluster("lent-host").await;
    let user = "mallory";
    for resource in [
        "scheduledmachines.5spot.finos.org",
        "k0sworkerconfigs.bootstrap.cluster.x-k8s.io",
        "remotemachines.infrastructure.cluster.x-k8s.io",
    ] {
        grant(plane, &namespace, user, resource);
    }
    let api = as_user(plane, user, &namespace).await;
    eventually("a machine can be created", async || create(&api, &machine("one")).await.is_ok()).await;
    let host = r#"{"nodeName":"control-plane-1","machineID":"m","systemUUID":"s"}"#;
    let note = |host: Value| json!({"metadata": {"annotations": {"5spot.finos.org/lent-host": host}}});
    let refused = patch(&api, "one", note(json!(host))).await.unwrap_err();
    assert!(refused.contains("5spot.finos.org/lent-host") && refused.contains("leave it out"), "{refused}");
    let mut forged = machine("two");
    forged["metadata"]["annotations"] = json!({"5spot.finos.org/lent-host": host});
    assert!(create(&api, &forged).await.unwrap_err().contains("5spot.finos.org/lent-host"));
    // The controller, and whoever may write status, as for a restore.
    let admin = machines(&plane.management().client().await.unwrap(), &namespace);
    patch(&admin, "one", note(json!(host))).await.unwrap();
    // What stands there stays, and may be left out.
    patch(&api, "one", json!({"spec": {"priority": 51}})).await.unwrap();
    patch(&api, "one", note(Value::Null)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_deleted_with_its_lent_machines() {
    let (plane, client, namespace) = cluster("doomed").await;
    let api = machines(&client, &namespace);
    create(&api, &with_finalizers("lent", &[OURS])).await.unwrap();
    eventually("the policy is in force", async || {
        delete(&api, "lent", &DeleteParams::foreground().dry_run()).await.is_err()
    })
    .await;
    kubectl(plane, &["delete", "namespace", &namespace, "--wait=false"]);
    eventually("the machine is being deleted", async || {
        api.get("lent").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    let is_it = |it: &AuditEntry| it.resource == "scheduledmachines" && it.namespace == namespace;
    let deletions: Vec<_> = plane.management().audit().unwrap().into_iter().filter(is_it).collect();
    let by_namespace = |it: &&AuditEntry| {
        it.verb == "deletecollection" && it.user.ends_with(":namespace-controller") && it.code == 200
    };
    assert!(deletions.iter().any(|it| by_namespace(&it)), "{deletions:?}");
    patch(&api, "lent", json!({"metadata": {"finalizers": null}})).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client);
    eventually("the namespace is gone", async || namespaces.get_opt(&namespace).await.unwrap().is_none())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_policy_for_tenants_refuses_commands_and_foreign_addresses() {
    let (plane, client, namespace) = cluster("payloads").await;
    let api = machines(&client, &namespace);
    let with = |name: &str, path: &[&str], value: Value| {
        let mut object = machine(name);
        *path.iter().fold(&mut object["spec"], |at, field| &mut at[*field]) = value;
        object
    };
    let cloud_init = |name| with(name, &["bootstrapSpec", "spec", "cloudInit"], json!("#cloud-config"));
    let address = |name, text: &str| with(name, &["infrastructureSpec", "spec", "address"], json!(text));

    // Without the policy both are accepted: what is refused below is refused by the policy.
    create(&api, &cloud_init("old-1")).await.unwrap();
    create(&api, &address("old-2", "203.0.113.9")).await.unwrap();

    let documents = read_yaml("examples/policies/tenant-payloads.yaml");
    bind_here(plane, &namespace, &documents);
    eventually("a namespace without the annotation may reach nothing", async || {
        let refused = create(&api, &machine("none")).await;
        refused.is_err_and(|text| {
            text.contains("the networks that its annotation example.com/machine-networks lists")
        })
    })
    .await;
    let networks = "example.com/machine-networks=192.168.10.0/24, 10.20.0.0/16";
    kubectl(plane, &["annotate", "namespace", &namespace, networks]);
    eventually("its own addresses are accepted", async || {
        create(&api, &address("mine", "10.20.3.4")).await.is_ok()
    })
    .await;

    let bootstrap = |field: &str, value: Value| with("bad", &["bootstrapSpec", "spec", field], value);
    let infrastructure =
        |field: &str, value: Value| with("bad", &["infrastructureSpec", "spec", field], value);
    let kind = |part: &str, kind: &str| with("bad", &[part, "kind"], json!(kind));
    for (object, says) in [
        (cloud_init("bad"), "remove cloudInit".to_owned()),
        (bootstrap("files", json!([])), "remove files".to_owned()),
        (bootstrap("version", json!("v1 && id")), "must be a version of k0s".to_owned()),
        (bootstrap("version", json!("v1.34.1+k0s.0/../../x")), "must be a version of k0s".to_owned()),
        (bootstrap("version", json!(["v1.34.1+k0s.0"])), "must be a version of k0s".to_owned()),
        (infrastructure("user", json!("root; id")), "must be the name of a user".to_owned()),
        (infrastructure("user", json!("-oProxyCommand=id")), "must be the name of a user".to_owned()),
        (infrastructure("provisionJob", json!({})), "remove provisionJob".to_owned()),
        (infrastructure("cleanUpCommands", json!(["id"])), "remove cleanUpCommands".to_owned()),
        (infrastructure("pool", json!("theirs")), "remove pool".to_owned()),
        (kind("bootstrapSpec", "KubeadmConfig"), "of kind K0sWorkerConfig".to_owned()),
        (kind("infrastructureSpec", "Metal3Machine"), "of kind RemoteMachine only".to_owned()),
    ]
    .into_iter()
    .chain(["203.0.113.9", "10.21.0.1", "db.example.com", ""].map(|text| {
        (address("bad", text), format!("address: \"{text}\" is not an address of namespace {namespace}"))
    })) {
        let refused = create(&api, &object).await.expect_err(&says);
        assert!(refused.contains(&says), "{says}: {refused}");
    }

    // What was there before can still be taken out of service.
    for name in ["old-1", "old-2"] {
        patch(&api, name, json!({"spec": {"killSwitch": true}})).await.unwrap();
    }
}

/// Flags of `k0s worker` that a team may not give, each in the forms in which it could be tried.
fn refused_args() -> Vec<(Value, &'static str)> {
    let not_allowed = [
        // With `=`, as the next item, in upper case, with one dash, and within another item.
        json!(["--kubelet-root-dir=/home/owner"]),
        json!(["--kubelet-root-dir", "/home/owner"]),
        json!(["--data-dir=/home/owner"]),
        json!(["--data-dir", "/home/owner"]),
        json!(["--DATA-DIR=/home/owner"]),
        json!(["-data-dir=/home/owner"]),
        json!(["--kubelet-extra-args=--root-dir=/home/owner"]),
        json!(["--kubelet-extra-args", "--provider-id=other"]),
        json!(["--kubelet-extra-args=--hostname-override=other"]),
        json!(["--debug --data-dir=/home/owner"]),
        json!(["--debug\n--data-dir=/home/owner"]),
        json!(["--debug\t"]),
        json!([" --debug"]),
        json!(["--debug "]),
        json!(["--debug\n"]),
        json!(["--debug\u{0}"]),
        json!(["--debug=true"]),
        json!(["--Debug"]),
        json!(["-d"]),
        json!(["--"]),
        json!(["-"]),
        json!([""]),
        json!([" "]),
        json!(["--labels"]),
        json!(["--labels", "a=b"]),
        json!(["--labels="]),
        json!(["--labels=a"]),
        json!(["--labels=a=b,"]),
        json!(["--labels=a=b --data-dir=/home/owner"]),
        json!(["--labels=a=b,--data-dir=/home/owner"]),
        json!(["--labels=a=$(id)"]),
        json!(["--labels=a='b'"]),
        json!(["--labels=a=b;id"]),
        json!(["--taints=a=b"]),
        json!(["--taints=a=b:Sometimes"]),
        json!(["--token-file=/etc/shadow"]),
        json!(["--cri-socket=remote:/run/mine.sock"]),
        json!(["--env=PATH=/home/owner/bin"]),
        json!(["; id"]),
        json!(["$(id)"]),
        json!(["`id`"]),
        json!(["--debug", "--verbose", "worker"]),
    ];
    let mut all: Vec<_> = not_allowed.map(|args| (args, "this cluster allows --debug")).into();
    all.extend([
        (json!(["--debug", "--debug"]), "a flag is given twice"),
        (json!(["--labels=a=b", "--verbose", "--labels=c=d"]), "a flag is given twice"),
        (json!(["--labels=node-role.kubernetes.io/worker=x"]), "are reserved"),
        (json!(["--labels=a=b,5spot.finos.org/reclaim-agent=enabled"]), "are reserved"),
        (json!(["--taints=node.kubernetes.io/unreachable:NoExecute"]), "are reserved"),
        (json!("--debug"), "must be a list of texts"),
        (json!({"--debug": ""}), "must be a list of texts"),
        (json!([1]), "must be a list of texts"),
        (json!([["--debug"]]), "must be a list of texts"),
        (json!([{"--debug": ""}]), "must be a list of texts"),
    ]);
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_policy_for_tenants_allows_four_flags_and_no_other() {
    let (plane, client, namespace) = cluster("args").await;
    let api = machines(&client, &namespace);
    let with = |name: &str, args: &Value| {
        let mut object = machine(name);
        object["spec"]["bootstrapSpec"]["spec"]["args"] = args.clone();
        object
    };
    // Without the policy they are accepted: what is refused below is refused by the policy.
    for (n, (args, _)) in refused_args().iter().enumerate() {
        create(&api, &with(&format!("before-{n}"), args)).await.unwrap();
    }
    let networks = "example.com/machine-networks=192.168.10.0/24";
    kubectl(plane, &["annotate", "namespace", &namespace, networks]);
    bind_here(plane, &namespace, &read_yaml("examples/policies/tenant-payloads.yaml"));
    let data_dir = with("probe", &json!(["--data-dir=/home/owner"]));
    eventually("the policy is in force", async || dry_run(&api, &data_dir).await.is_err()).await;

    let mut wrong = Vec::new();
    for (args, says) in refused_args() {
        let answer = dry_run(&api, &with("bad", &args)).await;
        if !answer.as_ref().is_err_and(|text| text.contains(says)) {
            wrong.push(format!("{args}: wanted \"{says}\", got {:?}", answer.map(|_| "ACCEPTED")));
        }
    }
    assert!(wrong.is_empty(), "not refused, or not so:\n{}", wrong.join("\n"));
    let refused = dry_run(&api, &data_dir).await.unwrap_err();
    assert!(refused.ends_with("each as one item: remove \"--data-dir=/home/owner\""), "{refused}");

    for (n, args) in [
        json!([]),
        json!(["--debug"]),
        json!(["--verbose", "--debug"]),
        json!(["--labels=example.com/accelerator=a100,rack=r12,empty="]),
        json!(["--taints=example.com/gpu=a100:NoSchedule,away:NoExecute", "--labels=a=b"]),
    ]
    .iter()
    .enumerate()
    {
        let answer = create(&api, &with(&format!("good-{n}"), args)).await;
        assert!(answer.is_ok(), "{args}: {answer:?}");
    }
    // The example that gives a flag is one that this policy allows.
    let example = read_yaml("examples/overnight-with-taints.yaml").remove(0);
    let args = &example["spec"]["bootstrapSpec"]["spec"]["args"];
    dry_run(&api, &with("example", args)).await.unwrap();
}

/// Applies the documents of a policy file under names of this test, its binding confined to this namespace, so
/// that the tests beside this one are not judged by it.
fn bind_here(plane: &ControlPlane, namespace: &str, documents: &[Value]) {
    for document in documents {
        let mut document = document.clone();
        let name = document["metadata"]["name"].as_str().unwrap();
        document["metadata"]["name"] = json!(format!("{namespace}.{name}"));
        if document["kind"] == "ValidatingAdmissionPolicyBinding" {
            let policy = document["spec"]["policyName"].as_str().unwrap();
            document["spec"]["policyName"] = json!(format!("{namespace}.{policy}"));
            document["spec"]["matchResources"] =
                json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}});
        }
        apply(plane, &document);
    }
}
