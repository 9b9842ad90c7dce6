//! The sample policy for clusters in which several teams write ScheduledMachines.

use super::{RIGHTS_OF_AUTHORS, as_user, patch};
use crate::setup::{apply, cluster, create, dry_run, kubectl, machine, machines, read_yaml};
use fivespot_testenv::{ControlPlane, eventually};
use serde_json::{Value, json};

const FOREIGN_KEY: &str = "controllers may act on keys with a prefix";

/// A ScheduledMachine of a team, whose name begins with its namespace, with one field changed.
fn with(namespace: &str, name: &str, path: &[&str], value: &Value) -> Value {
    let mut object = machine(&format!("{namespace}-{name}"));
    *path.iter().fold(&mut object["spec"], |at, field| &mut at[*field]) = value.clone();
    object
}

/// One field that is changed, what it is changed to, and what the policy says.
type Attempt = (Vec<&'static str>, Value, &'static str);

/// Tries what a team may not write: before the policy is there, when all of it is accepted, and after.
async fn all_are_refused(stem: &str, attempts: &[Attempt]) {
    let (plane, client, namespace) = cluster(stem).await;
    let api = machines(&client, &namespace);
    for (path, value, _) in attempts {
        let accepted = dry_run(&api, &with(&namespace, "before", path, value)).await;
        assert!(accepted.is_ok(), "without the policy: {path:?} {value}: {accepted:?}");
    }
    equip(plane, &namespace);
    bind_here(plane, &namespace, &read_yaml("examples/policies/tenant-payloads.yaml"));
    let probe = with(&namespace, "probe", &["bootstrapSpec", "spec", "files"], &json!([]));
    eventually("the policy is in force", async || dry_run(&api, &probe).await.is_err()).await;
    let mut wrong = Vec::new();
    for (path, value, says) in attempts {
        let answer = dry_run(&api, &with(&namespace, "bad", path, value)).await;
        if !answer.as_ref().is_err_and(|text| text.contains(says)) {
            let path = path.join(".");
            wrong.push(format!("{path} {value}: wanted \"{says}\", got {:?}", answer.map(|_| "ACCEPTED")));
        }
    }
    println!("{} of {} attempts were refused as they should", attempts.len() - wrong.len(), attempts.len());
    assert!(wrong.is_empty(), "not refused, or not so:\n{}", wrong.join("\n"));
    create(&api, &machine(&format!("{namespace}-good"))).await.unwrap();
}

/// What an administrator gives to a team.
fn equip(plane: &ControlPlane, namespace: &str) {
    let networks = "example.com/machine-networks=192.168.10.0/24, 10.20.0.0/16";
    let keys = "example.com/machine-ssh-keys=workstation-ssh-key, second-ssh-key";
    kubectl(plane, &["annotate", "namespace", namespace, networks, keys]);
}

fn bootstrap(field: &'static str, value: Value, says: &'static str) -> Attempt {
    (vec!["bootstrapSpec", "spec", field], value, says)
}

fn infrastructure(field: &'static str, value: Value, says: &'static str) -> Attempt {
    (vec!["infrastructureSpec", "spec", field], value, says)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_writes_no_field_that_runs_a_command_or_chooses_another_kind() {
    let kinds = "this cluster allows bootstrapSpec of kind K0sWorkerConfig";
    all_are_refused(
        "commands",
        &[
            bootstrap("cloudInit", json!("#cloud-config"), "remove cloudInit"),
            bootstrap("CloudInit", json!("#cloud-config"), "remove CloudInit"),
            bootstrap("files", json!([]), "remove files"),
            bootstrap("preStartCommands", json!(["id"]), "remove preStartCommands"),
            bootstrap("postStartCommands", json!(["id"]), "remove postStartCommands"),
            bootstrap("preK0sCommands", json!(["id"]), "remove preK0sCommands"),
            bootstrap("postK0sCommands", json!(["id"]), "remove postK0sCommands"),
            bootstrap("downloadURL", json!("https://evil.example.net/k0s"), "remove downloadURL"),
            bootstrap("k0sInstallDir", json!("/home/owner"), "remove k0sInstallDir"),
            bootstrap("workingDir", json!("/home/owner"), "remove workingDir"),
            bootstrap("provisioner", json!({"platform": "windows"}), "remove provisioner"),
            bootstrap("ignition", json!({}), "remove ignition"),
            bootstrap("customUserDataRef", json!({}), "remove customUserDataRef"),
            bootstrap("secretMetadata", json!({"labels": {"a": "b"}}), "remove secretMetadata"),
            bootstrap("Version", json!("v1.34.1+k0s.0"), "remove Version"),
            bootstrap("a\nb", json!(""), "does not allow every field"),
            infrastructure("provisionJob", json!({}), "remove provisionJob"),
            infrastructure("cleanUpCommands", json!(["id"]), "remove cleanUpCommands"),
            infrastructure("customCleanUpCommands", json!(["id"]), "remove customCleanUpCommands"),
            infrastructure("pool", json!("theirs"), "remove pool"),
            infrastructure("providerID", json!("remote-machine://theirs"), "remove providerID"),
            infrastructure("commandsAsScript", json!(true), "remove commandsAsScript"),
            infrastructure("workingDir", json!("/home/owner"), "remove workingDir"),
            infrastructure("Address", json!("203.0.113.9"), "remove Address"),
            (vec!["bootstrapSpec", "kind"], json!("KubeadmConfig"), kinds),
            (vec!["infrastructureSpec", "kind"], json!("Metal3Machine"), kinds),
            (vec!["bootstrapSpec", "apiVersion"], json!("bootstrap.cluster.x-k8s.io/v1"), kinds),
            (vec!["infrastructureSpec", "apiVersion"], json!("infrastructure.cluster.x-k8s.io/v2"), kinds),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_writes_no_value_that_reaches_a_shell_or_an_address() {
    let mut attempts = Vec::new();
    for version in [
        json!("v1 && id"),
        json!("v1.34.1+k0s.0/../../x"),
        json!("../../evil/k0s"),
        json!("v1.34.1+k0s.0%2F..%2F..%2Fx"),
        json!("v1.34.1+k0s.0?x=y"),
        json!("v1.34.1+k0s.0#x"),
        json!("v1.34.1+k0s.0\n"),
        json!("\nv1.34.1+k0s.0"),
        json!("v1.34.1+k0s.0\nid"),
        json!("id\nv1.34.1+k0s.0"),
        json!("v1.34.1+k0s.0\r"),
        json!("v1.34.1+k0s.0 "),
        json!("v1.34.1+k0s.0\u{0}"),
        json!("v1.34.1+k0s.0\u{2028}"),
        json!("V1.34.1+K0S.0"),
        json!("v1.34.1+k0s"),
        json!("v1.34.1"),
        json!("v1.34.1-$(id).0+k0s.0"),
        json!("v1.34.1-RC.0+k0s.0"),
        json!("v\u{661}.34.1+k0s.0"),
        json!("latest"),
        json!(""),
        json!(["v1.34.1+k0s.0"]),
        json!({"v1.34.1+k0s.0": ""}),
        json!(1.34),
        json!(true),
        json!(null),
    ] {
        attempts.push(bootstrap("version", version, "must be a version of k0s"));
    }
    for user in [
        json!("root; id"),
        json!("-oProxyCommand=id"),
        json!("k0s\n"),
        json!("k0s\nid"),
        json!("\nk0s"),
        json!("Root"),
        json!("k0s@203.0.113.9"),
        json!("../k0s"),
        json!("$(id)"),
        json!("k0s "),
        json!(""),
        json!(0),
        json!(["k0s"]),
        json!(null),
    ] {
        attempts.push(infrastructure("user", user, "must be the name of a user"));
    }
    for port in [
        json!("22"),
        json!("22;id"),
        json!(0),
        json!(-1),
        json!(65536),
        json!(22.5),
        json!([22]),
        json!(null),
    ] {
        attempts.push(infrastructure("port", port, "port: must be a number from 1 to 65535"));
    }
    for value in [json!("true"), json!("; id"), json!(1), json!([true]), json!({}), json!(null)] {
        let says = "must be true or false";
        attempts.push(infrastructure("useSudo", value.clone(), says));
        attempts.push(bootstrap("useSystemHostname", value.clone(), says));
        attempts.push(bootstrap("preInstalledK0s", value, says));
    }
    attempts.extend(refused_args().into_iter().map(|(args, says)| bootstrap("args", args, says)));
    all_are_refused("values", &attempts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_reaches_its_own_networks_with_its_own_keys() {
    let mut attempts = Vec::new();
    for address in [
        json!("203.0.113.9"),
        json!("10.21.0.1"),
        json!("192.168.11.1"),
        json!("db.example.com"),
        json!("10.20.3.4.example.com"),
        json!("10.20.3.4:22"),
        json!("10.20.3.4/16"),
        json!("010.020.003.004"),
        json!("0x0a.20.3.4"),
        json!("169083652"),
        json!("10.5124"),
        json!("::ffff:10.20.3.4"),
        json!("::ffff:203.0.113.9"),
        json!("fe80::1%eth0"),
        json!("10.20.3.4 203.0.113.9"),
        json!("10.20.3.4,203.0.113.9"),
        json!(" 10.20.3.4"),
        json!("10.20.3.4\u{0}"),
        json!("-oProxyCommand=id"),
        json!(""),
        json!(["10.20.3.4"]),
        json!({"10.20.3.4": ""}),
        json!(169_083_652),
        json!(null),
    ] {
        attempts.push(infrastructure("address", address, "is not an address of namespace"));
    }
    for address in ["10.20.3.4\n", "203.0.113.9\n10.20.3.4"] {
        attempts.push(infrastructure("address", json!(address), "address: must be an IP address within"));
    }
    for key in [
        json!({"name": "admin-ssh-key"}),
        json!({"name": "workstation-ssh-key, second-ssh-key"}),
        json!({"name": "workstation-ssh-key2"}),
        json!({"name": "workstation-ssh-ke"}),
        json!({"name": "WORKSTATION-SSH-KEY"}),
        json!({"name": " workstation-ssh-key"}),
        json!({"name": "workstation-ssh-key\n"}),
        json!({"name": "../admin/workstation-ssh-key"}),
        json!({"name": ""}),
        json!({"name": null}),
        json!({"name": ["workstation-ssh-key"]}),
        json!({"Name": "workstation-ssh-key"}),
        json!({"name": "workstation-ssh-key", "namespace": "kube-system"}),
        json!({"name": "workstation-ssh-key", "key": "admin"}),
        json!({}),
        json!("workstation-ssh-key"),
        json!(["workstation-ssh-key"]),
        json!(["name"]),
        json!(null),
    ] {
        attempts.push(infrastructure("sshKeyRef", key, "may use: workstation-ssh-key, second-ssh-key"));
    }
    all_are_refused("addresses", &attempts).await;
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
        (json!(["--labels=node-role.kubernetes.io/worker=x"]), FOREIGN_KEY),
        (json!(["--labels=a=b,5spot.finos.org/reclaim-agent=enabled"]), FOREIGN_KEY),
        (json!(["--taints=node.kubernetes.io/unreachable:NoExecute"]), FOREIGN_KEY),
        // By this label k0smotron finds the Node of a Machine, here of another one.
        (json!(["--labels=k0smotron.io/machine-name=other"]), FOREIGN_KEY),
        (json!(["--labels=example.com/a=b,k0smotron.io/machine-name=other"]), FOREIGN_KEY),
        (json!(["--taints=example.com/a=b:NoSchedule,karpenter.sh/disrupted:NoSchedule"]), FOREIGN_KEY),
        (json!(["--labels=sub.example.com/a=b"]), FOREIGN_KEY),
        (json!(["--labels=example.com.example.org/a=b"]), FOREIGN_KEY),
        (json!(["--labels=Example.com/a=b"]), "this cluster allows --debug"),
        (json!(["--labels=example.com/x/k0smotron.io/machine-name=other"]), "this cluster allows --debug"),
        (json!(null), "must be a list of texts"),
        (json!("--debug"), "must be a list of texts"),
        (json!({"--debug": ""}), "must be a list of texts"),
        (json!([1]), "must be a list of texts"),
        (json!([["--debug"]]), "must be a list of texts"),
        (json!([{"--debug": ""}]), "must be a list of texts"),
    ]);
    all
}

/// An administrator gives a team its networks and keys; what was there before the policy can be handed back.
#[tokio::test(flavor = "multi_thread")]
async fn a_team_has_nothing_before_it_is_given_something() {
    let (plane, client, namespace) = cluster("payloads").await;
    let api = machines(&client, &namespace);
    let address = |name: &str, text: &str| {
        with(&namespace, name, &["infrastructureSpec", "spec", "address"], &json!(text))
    };
    let cloud_init =
        with(&namespace, "old-1", &["bootstrapSpec", "spec", "cloudInit"], &json!("#cloud-config"));
    create(&api, &cloud_init).await.unwrap();
    create(&api, &address("old-2", "203.0.113.9")).await.unwrap();

    bind_here(plane, &namespace, &read_yaml("examples/policies/tenant-payloads.yaml"));
    let says =
        "write an IP address within the networks that its annotation example.com/machine-networks lists";
    let mine = address("mine", "10.20.3.4");
    eventually("no address is allowed", async || {
        dry_run(&api, &mine).await.is_err_and(|it| it.ends_with(says))
    })
    .await;
    kubectl(plane, &["annotate", "namespace", &namespace, "example.com/machine-networks=10.20.0.0/16"]);
    let says = format!(
        "spec.infrastructureSpec.spec.sshKeyRef: must be {{name: SECRET}}, SECRET being one that namespace {namespace} may \
         use: it may use none, so ask an administrator to run \"kubectl annotate namespace {namespace} \
         example.com/machine-ssh-keys=SECRET\""
    );
    eventually("no key is allowed", async || dry_run(&api, &mine).await.is_err_and(|it| it.ends_with(&says)))
        .await;
    let keys = "example.com/machine-ssh-keys=workstation-ssh-key";
    kubectl(plane, &["annotate", "namespace", &namespace, keys]);
    eventually("its own are allowed", async || create(&api, &mine).await.is_ok()).await;

    for name in ["old-1", "old-2"] {
        let name = format!("{namespace}-{name}");
        patch(&api, &name, json!({"spec": {"schedule": {"enabled": false}}})).await.unwrap();
        patch(&api, &name, json!({"spec": {"killSwitch": true}})).await.unwrap();
    }
}

/// The name of a ScheduledMachine is what the flag --hostname-override would be.
#[tokio::test(flavor = "multi_thread")]
async fn a_team_takes_no_name_of_another_node() {
    let (plane, client, namespace) = cluster("names").await;
    let api = machines(&client, &namespace);
    for name in ["control-plane-1", &namespace] {
        dry_run(&api, &machine(name)).await.unwrap();
    }
    create(&api, &machine("older")).await.unwrap();
    equip(plane, &namespace);
    bind_here(plane, &namespace, &read_yaml("examples/policies/tenant-payloads.yaml"));
    let attack = machine("control-plane-1");
    eventually("the policy is in force", async || dry_run(&api, &attack).await.is_err()).await;
    let refused = create(&api, &attack).await.unwrap_err();
    let says = format!("it begins with the namespace: write \"{namespace}-control-plane-1\"");
    assert!(refused.contains("metadata.name: it becomes") && refused.ends_with(&says), "{refused}");
    for name in [namespace.clone(), format!("x-{namespace}-1"), format!("{namespace}x")] {
        let refused = dry_run(&api, &machine(&name)).await.expect_err(&name);
        assert!(refused.contains("it begins with the namespace"), "{name}: {refused}");
    }
    let generated = |stem: &str| {
        let mut object = machine("x");
        object["metadata"] = json!({"generateName": stem});
        object
    };
    create(&api, &generated("control-plane-")).await.unwrap_err();
    create(&api, &generated(&format!("{namespace}-"))).await.unwrap();
    // What has another name already keeps it.
    let specs = json!({"spec": {"bootstrapSpec": {"spec": {"args": ["--debug"]}}}});
    patch(&api, "older", specs).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_may_write_what_its_machines_need() {
    let (plane, client, namespace) = cluster("allowed").await;
    let api = machines(&client, &namespace);
    equip(plane, &namespace);
    bind_here(plane, &namespace, &read_yaml("examples/policies/tenant-payloads.yaml"));
    let data_dir = json!(["--data-dir=/home/owner"]);
    let data_dir = with(&namespace, "probe", &["bootstrapSpec", "spec", "args"], &data_dir);
    eventually("the policy is in force", async || dry_run(&api, &data_dir).await.is_err()).await;
    let refused = dry_run(&api, &data_dir).await.unwrap_err();
    assert!(refused.ends_with("each as one item: remove \"--data-dir=/home/owner\""), "{refused}");

    let bootstrap = |field, value| (vec!["bootstrapSpec", "spec", field], value);
    let infrastructure = |field, value| (vec!["infrastructureSpec", "spec", field], value);
    for (path, value) in [
        bootstrap("args", json!([])),
        bootstrap("args", json!(["--debug"])),
        bootstrap("args", json!(["--verbose", "--debug"])),
        bootstrap("args", json!(["--labels=example.com/accelerator=a100,rack=r12,empty="])),
        bootstrap("args", json!(["--taints=example.com/gpu=a100:NoSchedule,away:NoExecute", "--labels=a=b"])),
        bootstrap("version", json!("v1.35.0-rc.1+k0s.0")),
        bootstrap("useSystemHostname", json!(true)),
        bootstrap("preInstalledK0s", json!(false)),
        infrastructure("useSudo", json!(true)),
        infrastructure("port", json!(2222)),
        infrastructure("user", json!("k0s-1")),
        infrastructure("address", json!("10.20.3.4")),
        infrastructure("sshKeyRef", json!({"name": "second-ssh-key"})),
        (vec!["bootstrapSpec", "apiVersion"], json!("bootstrap.cluster.x-k8s.io/v1beta1")),
        (vec!["infrastructureSpec", "apiVersion"], json!("infrastructure.cluster.x-k8s.io/v1beta1")),
    ] {
        let answer = dry_run(&api, &with(&namespace, "good", &path, &value)).await;
        assert!(answer.is_ok(), "{path:?} {value}: {answer:?}");
    }
    // The example that gives a flag is one that this policy allows.
    let example = read_yaml("examples/overnight-with-taints.yaml").remove(0);
    let args = &example["spec"]["bootstrapSpec"]["spec"]["args"];
    dry_run(&api, &with(&namespace, "example", &["bootstrapSpec", "spec", "args"], args)).await.unwrap();
}

/// The sample role: a team has 5-Spot create what it may not create itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_team_creates_machines_through_5_spot_and_not_directly() {
    let (plane, _, namespace) = cluster("role").await;
    let role = read_yaml("examples/policies/team-role.yaml").remove(0);
    apply(plane, &role);
    let team = as_user(plane, "theo", &namespace).await;
    create(&team, &machine("early")).await.unwrap_err();
    let bind = ["create", "rolebinding", "team", "-n", &namespace, "--clusterrole=5spot-team", "--user=theo"];
    kubectl(plane, &bind);
    eventually("the team may", async || create(&team, &machine("one")).await.is_ok()).await;
    patch(&team, "one", json!({"spec": {"bootstrapSpec": {"spec": {"args": ["--debug"]}}}})).await.unwrap();
    patch(&team, "one", json!({"spec": {"machineTemplate": {"labels": {"team": "blue"}}}})).await.unwrap();

    let may = |verb: &str, resource: &str| {
        let question = ["auth", "can-i", verb, resource, "-n", &namespace, "--as=theo", "--quiet"];
        plane.kubectl(plane.management(), &question, "").is_ok()
    };
    assert!(may("create", "scheduledmachines.5spot.finos.org"));
    for resource in [RIGHTS_OF_AUTHORS[1], RIGHTS_OF_AUTHORS[2], RIGHTS_OF_AUTHORS[3], "secrets"] {
        for verb in ["create", "update", "patch", "delete", "get"] {
            assert!(!may(verb, resource), "{verb} {resource}");
        }
    }
    // The verb counts for each of the three kinds: without one of them nothing is created.
    for left_out in 1..4 {
        let mut role = role.clone();
        role["metadata"] = json!({"name": format!("{namespace}-without-{left_out}")});
        let resource = role["rules"][left_out]["resources"][0].as_str().unwrap().to_owned();
        role["rules"][left_out]["verbs"] = json!(["get"]);
        apply(plane, &role);
        let user = format!("without-{left_out}");
        let name = role["metadata"]["name"].as_str().unwrap();
        let bind = ["create", "rolebinding", &user, "-n", &namespace, "--clusterrole", name, "--user", &user];
        kubectl(plane, &bind);
        let api = as_user(plane, &user, &namespace).await;
        eventually("one right is missing", async || {
            let refused = dry_run(&api, &machine("bad")).await.unwrap_err();
            refused.contains(&format!("you may not create {resource}."))
                && refused.ends_with("ask for that right, or for the verb schedule")
        })
        .await;
    }
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
