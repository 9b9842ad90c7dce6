//! The sample policy for clusters in which several teams write ScheduledMachines.

use super::patch;
use crate::setup::{apply, cluster, create, dry_run, kubectl, machine, machines, read_yaml};
use fivespot_testenv::{ControlPlane, eventually};
use serde_json::{Value, json};

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
