//! One control plane: its servers, its clusters, its start and its end.

use crate::error::{Context, Error};
use crate::kubeconfig::{Endpoint, Identity, config, kubeconfig};
use crate::pki::{Authority, token_keys};
use crate::servers::Servers;
use crate::supervisor::Supervisor;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::future::Future;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

/// How long a server may take to get ready. Warm it takes some three seconds; a machine that compiles at the
/// same time has been seen to take twenty.
const PATIENCE: Duration = Duration::from_secs(90);

/// How often a server that is not ready is asked again.
const POLL: Duration = Duration::from_millis(50);

/// How often a start is tried when another process takes a port between the moment it is found free and the
/// moment a server listens on it.
const PORT_RACES: usize = 3;

/// Everything is recorded, without bodies: who did what to which object, and with which answer.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// How many clusters there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// One API server that is management and workload cluster.
    #[default]
    One,
    /// A management and a workload cluster, with two API servers on one etcd.
    Two,
}

/// What to start, and where.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// How many clusters.
    pub topology: Topology,
    /// Folder for everything, which must not exist and will be removed in the end. Without one, a temporary
    /// folder.
    pub folder: Option<PathBuf>,
    /// Port of the management cluster's API server. Without one, any free port.
    pub port: Option<u16>,
}

/// A running control plane. When it is dropped, or its process ends in whatever way, its servers end and its
/// folder goes.
#[derive(Debug)]
pub struct ControlPlane {
    servers: Servers,
    management: Cluster,
    workload: Option<Cluster>,
    supervisor: Supervisor,
}

/// One Kubernetes cluster, as its administrator sees it.
#[derive(Debug)]
pub struct Cluster {
    name: &'static str,
    kubeconfig: Value,
    kubeconfig_path: PathBuf,
    audit_log: PathBuf,
}

impl ControlPlane {
    /// Starts everything and returns when it is ready for use.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let servers = Servers::find()?;
        for _ in 1..PORT_RACES {
            match Self::try_start(&servers, &options).await {
                Err(error) if error.is_port_race() => {}
                outcome => return outcome,
            }
        }
        Self::try_start(&servers, &options).await
    }

    async fn try_start(servers: &Servers, options: &Options) -> Result<Self, Error> {
        let folder = choose_folder(options.folder.as_deref())?;
        let mut supervisor = Supervisor::start(&folder)?;
        let ports = Ports::pick(options)?;
        let names: &[&'static str] = match options.topology {
            Topology::One => &["management"],
            Topology::Two => &["management", "workload"],
        };
        let etcd = format!("http://127.0.0.1:{}", ports.etcd_client);
        supervisor.spawn("etcd", &servers.path("etcd"), &etcd_args(&folder, &ports))?;
        let mut plans = Vec::new();
        for (name, port) in names.iter().copied().zip(ports.api_servers) {
            let plan = Plan::draw(&folder, name, port, &etcd)?;
            supervisor.spawn(
                &plan.server("kube-apiserver"),
                &servers.path("kube-apiserver"),
                &plan.api_server,
            )?;
            plans.push(plan);
        }
        let mut plans = plans.into_iter();
        let (Some(management), workload) = (plans.next(), plans.next()) else {
            return Err(Error::api::<&str>("start")("no cluster was planned"));
        };
        let management = management.bring_up(servers, &mut supervisor).await?;
        let workload = match workload {
            Some(workload) => Some(workload.bring_up(servers, &mut supervisor).await?),
            None => None,
        };
        Ok(Self { servers: servers.clone(), management, workload, supervisor })
    }

    /// The cluster that holds ScheduledMachines and Machines.
    pub fn management(&self) -> &Cluster {
        &self.management
    }

    /// The cluster that holds Nodes and Pods; the management cluster itself in [`Topology::One`].
    pub fn workload(&self) -> &Cluster {
        self.workload.as_ref().unwrap_or(&self.management)
    }

    /// The binaries it runs.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// An error, with the end of its log, if a server of `cluster` is not running any more.
    pub fn check(&self, cluster: &Cluster) -> Result<(), Error> {
        self.supervisor.check("etcd")?;
        for server in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            self.supervisor.check(&server_name(cluster.name, server))?;
        }
        Ok(())
    }

    /// Runs kubectl on a cluster, with `input` on its standard input, and returns what it printed.
    pub fn kubectl(&self, cluster: &Cluster, args: &[&str], input: &str) -> Result<String, Error> {
        let what = || format!("run kubectl {}", args.join(" "));
        let mut child = Command::new(self.servers.path("kubectl"))
            .env("KUBECONFIG", cluster.kubeconfig_path())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(what)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A kubectl that ends before it has read everything has said why on its standard error.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().context(what)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(Error::Kubectl { args: args.join(" "), output: text(&output.stderr) })
    }
}

impl Cluster {
    /// `management` or `workload`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Kubeconfig of the cluster's administrator.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig_path
    }

    /// One line of JSON for every request the API server answered.
    pub fn audit_log(&self) -> &Path {
        &self.audit_log
    }

    /// Client configuration with all rights, for a client that needs settings of its own.
    pub async fn config(&self) -> Result<Config, Error> {
        config(&self.kubeconfig, None).await
    }

    /// A client with all rights. A client belongs to the runtime it was made in: make one for each test.
    pub async fn client(&self) -> Result<Client, Error> {
        self.make_client(None).await
    }

    /// A client that acts as somebody else.
    pub async fn client_as(&self, identity: &Identity) -> Result<Client, Error> {
        self.make_client(Some(identity)).await
    }

    async fn make_client(&self, identity: Option<&Identity>) -> Result<Client, Error> {
        let config = config(&self.kubeconfig, identity).await?;
        Client::try_from(config).map_err(Error::api(format!("make a client for the {} cluster", self.name)))
    }

    /// Creates a namespace of which no other test knows, with a name that begins with `stem`.
    pub async fn fresh_namespace(&self, client: &Client, stem: &str) -> Result<String, Error> {
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"generateName": format!("{stem}-")}}))
                .map_err(Error::api("describe a namespace"))?;
        let made = Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .map_err(Error::api("create a namespace"))?;
        Ok(made.metadata.name.unwrap_or_default())
    }
}

/// The control plane that the tests of one binary share. It ends with the process.
///
/// # Panics
/// With the reason, if the control plane cannot be had: no test that asks for it can go on.
#[expect(clippy::panic, reason = "called by tests alone")]
pub fn shared() -> &'static ControlPlane {
    static SHARED: OnceLock<ControlPlane> = OnceLock::new();
    SHARED.get_or_init(|| {
        // A thread of its own, since the caller is inside a runtime already.
        let start = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.context(|| "start a runtime".to_owned())?;
            runtime.block_on(ControlPlane::start(Options::default()))
        };
        match std::thread::spawn(start).join() {
            Ok(Ok(plane)) => plane,
            Ok(Err(error)) => panic!("{error}"),
            Err(panicked) => std::panic::resume_unwind(panicked),
        }
    })
}

/// Waits, in a test, for something that comes true a moment later.
///
/// # Panics
/// If it does not within a minute.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_mins(1), "still not true after a minute: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Whether the long forms of tests run at full length, as `make proof` asks.
pub fn is_proof() -> bool {
    env::var_os("FIVESPOT_PROOF").is_some()
}

/// Everything about one cluster before it runs.
struct Plan {
    name: &'static str,
    admin: Value,
    admin_path: PathBuf,
    audit_log: PathBuf,
    api_server: Vec<String>,
    controller_manager: Vec<String>,
    scheduler: Vec<String>,
}

impl Plan {
    fn draw(folder: &Path, name: &'static str, port: u16, etcd: &str) -> Result<Self, Error> {
        // The management cluster's files stand at the top, where a person looks for them.
        let prefix = if name == "management" { String::new() } else { format!("{name}.") };
        let place = |file: &str| folder.join(format!("{prefix}{file}"));
        let secret = folder.join("pki").join(name);
        fs::create_dir_all(&secret).context(|| format!("create {}", secret.display()))?;
        let write = |path: PathBuf, text: &str| -> Result<String, Error> {
            fs::write(&path, text).context(|| format!("write {}", path.display()))?;
            Ok(path.to_string_lossy().into_owned())
        };

        let authority = Authority::new()?;
        let url = format!("https://127.0.0.1:{port}");
        let endpoint = Endpoint { name: name.to_owned(), url, authority: authority.certificate().to_owned() };
        let server = authority.server()?;
        let server_certificate = write(secret.join("server.crt"), &server.certificate)?;
        let server_key = write(secret.join("server.key"), &server.key)?;
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
        ]);
        let controller_manager = args(&[
            ("kubeconfig", &manager),
            ("leader-elect", "false"),
            ("secure-port", "0"),
            ("use-service-account-credentials", "true"),
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
        Ok(Self { name, admin, admin_path, audit_log, api_server, controller_manager, scheduler })
    }

    fn server(&self, server: &str) -> String {
        server_name(self.name, server)
    }

    /// Waits for the API server, starts what needs it, and waits until the cluster is ready for use.
    async fn bring_up(self, servers: &Servers, supervisor: &mut Supervisor) -> Result<Cluster, Error> {
        let cluster = Cluster {
            name: self.name,
            kubeconfig: self.admin.clone(),
            kubeconfig_path: self.admin_path.clone(),
            audit_log: self.audit_log.clone(),
        };
        let client = cluster.client().await?;
        let api_server = self.server("kube-apiserver");
        wait_until(supervisor, &api_server, || async {
            let request = http_get("/readyz")?;
            client.request_text(request).await.map_err(|error| chain(&error))
        })
        .await?;
        for (server, args) in
            [("kube-controller-manager", &self.controller_manager), ("kube-scheduler", &self.scheduler)]
        {
            supervisor.spawn(&self.server(server), &servers.path(server), args)?;
        }
        // Pods and tokens need the default account, which the controller manager makes when it is at work.
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
        wait_until(supervisor, &self.server("kube-controller-manager"), || async {
            accounts.get("default").await.map_err(|error| chain(&error))
        })
        .await?;
        supervisor.check(&self.server("kube-scheduler"))?;
        Ok(cluster)
    }
}

fn server_name(cluster: &str, server: &str) -> String {
    format!("{cluster}-{server}")
}

fn etcd_args(folder: &Path, ports: &Ports) -> Vec<String> {
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

fn args(flags: &[(&str, &str)]) -> Vec<String> {
    flags.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

/// Asks until the answer is good, the server has ended, or patience has.
async fn wait_until<T, F>(supervisor: &Supervisor, server: &str, ask: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, String>>,
{
    let began = Instant::now();
    loop {
        // An API server whose etcd died waits for ever: look at etcd first.
        supervisor.check("etcd")?;
        supervisor.check(server)?;
        let answer = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(answer) => answer,
        };
        let waited = began.elapsed();
        if waited > PATIENCE {
            let (server, log) = (server.to_owned(), supervisor.log(server));
            return Err(Error::NotReady { server, waited, answer, log });
        }
        tokio::time::sleep(POLL).await;
    }
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>, String> {
    http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// A folder that does not exist yet. The supervisor makes it, so that nobody can be killed between its making
/// and the moment somebody answers for it.
fn choose_folder(wanted: Option<&Path>) -> Result<PathBuf, Error> {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let Some(folder) = wanted else {
        let count = STARTED.fetch_add(1, Ordering::Relaxed);
        return Ok(env::temp_dir().join(format!("5spot-{}-{count}", std::process::id())));
    };
    if let Some(pid) = Supervisor::running(folder) {
        return Err(Error::AlreadyRunning { folder: folder.to_owned(), pid });
    }
    if folder.exists() {
        // The remains of a machine that lost power: nothing else ends a supervisor before its work is done.
        fs::remove_dir_all(folder).context(|| format!("remove the remains of {}", folder.display()))?;
    }
    std::path::absolute(folder).context(|| format!("find {}", folder.display()))
}

/// Ports nobody listens on.
struct Ports {
    etcd_client: u16,
    etcd_peer: u16,
    api_servers: [u16; 2],
}

impl Ports {
    fn pick(options: &Options) -> Result<Self, Error> {
        if let Some(port) = options.port {
            TcpListener::bind(("127.0.0.1", port)).map_err(|_| Error::PortInUse { port })?;
        }
        // All are held until the last is found, so that no two are the same.
        let mut held = Vec::new();
        let mut next = || -> Result<u16, Error> {
            let what = || "find a free port on 127.0.0.1".to_owned();
            let listener = TcpListener::bind("127.0.0.1:0").context(what)?;
            let port = listener.local_addr().context(what)?.port();
            held.push(listener);
            Ok(port)
        };
        let (etcd_client, etcd_peer) = (next()?, next()?);
        let api_servers = [options.port.map_or_else(&mut next, Ok)?, next()?];
        debug_assert_eq!(BTreeSet::from([etcd_client, etcd_peer, api_servers[0], api_servers[1]]).len(), 4);
        Ok(Self { etcd_client, etcd_peer, api_servers })
    }
}
