//! What the servers of a cluster are told: certificates, kubeconfigs and flags, laid out in its folder.

use crate::error::{Context, Error};
use crate::kubeconfig::{Endpoint, kubeconfig};
use crate::pki::{Authority, token_keys};
use crate::private_file::write_private;
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// Everything is recorded: who did what to which object, and with which answer. Without bodies, but for Leases: they tell
/// who held what when.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: Request, verbs: [create, update, patch], resources: [{group: coordination.k8s.io, resources: [leases]}]}
  - {level: Metadata}
";

/// The controllers that have work in a cluster without kubelets, clouds and volumes. Each of the others costs a
/// tenth of a second at the start and watches of its own afterwards.
const CONTROLLERS: [&str; 18] = [
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "validatingadmissionpolicy-status-controller",
];

/// Everything about one cluster before it runs.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) authority: Authority,
    pub(crate) admin: Value,
    pub(crate) admin_path: PathBuf,
    pub(crate) audit_log: PathBuf,
    /// Kubeconfig of Cluster API's manager: an administrator too, but one that the audit log tells apart.
    pub(crate) cluster_api: String,
    pub(crate) api_server: Vec<String>,
    pub(crate) controller_manager: Vec<String>,
    pub(crate) scheduler: Vec<String>,
}

impl Plan {
    pub(crate) fn draw(folder: &Path, name: &'static str, port: u16, etcd: &str) -> Result<Self, Error> {
        // The management cluster's files stand at the top, where a person looks for them.
        let prefix = if name == "management" { String::new() } else { format!("{name}.") };
        let place = |file: &str| folder.join(format!("{prefix}{file}"));
        let secret = folder.join("pki").join(name);
        fs::create_dir_all(&secret).context(|| format!("create {}", secret.display()))?;
        let write = |path: PathBuf, text: &str| -> Result<String, Error> {
            write_private(&path, text).context(|| format!("write {}", path.display()))?;
            Ok(path.to_string_lossy().into_owned())
        };

        let authority = Authority::new()?;
        let url = format!("https://127.0.0.1:{port}");
        let endpoint = Endpoint { name: name.to_owned(), url, authority: authority.certificate().to_owned() };
        let server = authority.server()?;
        let server_certificate = write(secret.join("server.crt"), &server.certificate)?;
        let server_key = write(secret.join("server.key"), &server.key)?;
        // How it presents itself to kubelets, for `exec` and `logs`.
        let client = authority.client("kube-apiserver", None)?;
        let client_certificate = write(secret.join("kubelet-client.crt"), &client.certificate)?;
        let client_key = write(secret.join("kubelet-client.key"), &client.key)?;
        let ca = write(secret.join("ca.crt"), authority.certificate())?;
        let (token_key, token_public) = token_keys()?;
        let token_key = write(secret.join("tokens.key"), &token_key)?;
        let token_public = write(secret.join("tokens.pub"), &token_public)?;
        let audit_policy = write(secret.join("audit-policy.yaml"), AUDIT_POLICY)?;
        let user = |user: &str, group: Option<&str>, path: PathBuf| -> Result<(Value, String), Error> {
            let config = kubeconfig(&endpoint, &authority.client(user, group)?);
            let text = serde_saphyr::to_string(&config).map_err(Error::api("write a kubeconfig"))?;
            let path = write(path, &text)?;
            Ok((config, path))
        };
        let (admin, _) = user("5spot-admin", Some("system:masters"), place("kubeconfig"))?;
        let (_, manager) =
            user("system:kube-controller-manager", None, secret.join("controller-manager.kubeconfig"))?;
        let (_, scheduler) = user("system:kube-scheduler", None, secret.join("scheduler.kubeconfig"))?;
        let (_, cluster_api) =
            user("cluster-api-manager", Some("system:masters"), secret.join("cluster-api.kubeconfig"))?;
        let audit_log = place("audit.log");

        let api_server = args(&[
            ("etcd-servers", etcd),
            ("etcd-prefix", &format!("/{name}")),
            ("bind-address", "127.0.0.1"),
            // A loopback address is refused as an endpoint of the service "kubernetes": write none.
            ("advertise-address", "127.0.0.1"),
            ("endpoint-reconciler-type", "none"),
            ("secure-port", &port.to_string()),
            ("tls-cert-file", &server_certificate),
            ("tls-private-key-file", &server_key),
            ("client-ca-file", &ca),
            ("kubelet-client-certificate", &client_certificate),
            ("kubelet-client-key", &client_key),
            // The names of Nodes are in no name service.
            ("kubelet-preferred-address-types", "InternalIP"),
            ("service-account-issuer", "https://kubernetes.default.svc"),
            ("service-account-key-file", &token_public),
            ("service-account-signing-key-file", &token_key),
            ("service-cluster-ip-range", "10.0.0.0/24"),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction"),
            ("allow-privileged", "true"),
            ("profiling", "false"),
            ("audit-policy-file", &audit_policy),
            ("audit-log-path", &audit_log.to_string_lossy()),
            // In MB: at 100, the default, the log would begin anew, and whoever counts requests would miscount.
            ("audit-log-maxsize", "1000000"),
        ]);
        let controller_manager = args(&[
            ("kubeconfig", &manager),
            ("leader-elect", "false"),
            ("secure-port", "0"),
            ("use-service-account-credentials", "true"),
            ("controllers", &CONTROLLERS.join(",")),
            ("service-account-private-key-file", &token_key),
            ("root-ca-file", &ca),
            ("profiling", "false"),
        ]);
        let scheduler = args(&[
            ("kubeconfig", &scheduler),
            ("leader-elect", "false"),
            ("secure-port", "0"),
            ("profiling", "false"),
        ]);
        let admin_path = place("kubeconfig");
        Ok(Self {
            name,
            authority,
            admin,
            admin_path,
            audit_log,
            cluster_api,
            api_server,
            controller_manager,
            scheduler,
        })
    }

    pub(crate) fn server(&self, server: &str) -> String {
        server_name(self.name, server)
    }
}

pub(crate) fn server_name(cluster: &str, server: &str) -> String {
    format!("{cluster}-{server}")
}

pub(crate) fn etcd_args(folder: &Path, ports: &Ports) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", ports.etcd_client);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    let mut flags = args(&[
        ("data-dir", &folder.join("etcd").to_string_lossy()),
        ("listen-client-urls", &client),
        ("advertise-client-urls", &client),
        ("listen-peer-urls", &peer),
        ("initial-advertise-peer-urls", &peer),
        ("initial-cluster", &format!("default={peer}")),
        ("log-level", "warn"),
    ]);
    // The data dies with the process: there is nothing to keep safe from a power cut.
    flags.push("--unsafe-no-fsync".to_owned());
    flags
}

pub(crate) fn args(flags: &[(&str, &str)]) -> Vec<String> {
    flags.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

/// Ports nobody listens on.
pub(crate) struct Ports {
    pub(crate) etcd_client: u16,
    etcd_peer: u16,
    pub(crate) api_servers: [u16; 2],
    pub(crate) webhooks: u16,
}

impl Ports {
    /// Finds them; `wanted` is the management cluster's, if somebody cares.
    pub(crate) fn pick(wanted: Option<u16>) -> Result<Self, Error> {
        // All are held until the last is found, so that no two are the same.
        let mut held = Vec::new();
        let mut take = |port: u16| -> Result<u16, Error> {
            let listener = match TcpListener::bind(("127.0.0.1", port)) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(Error::PortInUse { port }),
                outcome => outcome.context(|| format!("listen on port {port} of 127.0.0.1"))?,
            };
            let port = listener.local_addr().context(|| "read the number of a port".to_owned())?.port();
            held.push(listener);
            Ok(port)
        };
        // Port 0 is any that is free.
        let management = take(wanted.unwrap_or(0))?;
        let (etcd_client, etcd_peer) = (take(0)?, take(0)?);
        let api_servers = [management, take(0)?];
        Ok(Self { etcd_client, etcd_peer, api_servers, webhooks: take(0)? })
    }
}
