//! One control plane: its servers, its clusters, its start and its end.

use crate::audit::{self, AuditEntry};
use crate::build::MANAGER;
use crate::cluster_api::{self, ClusterApi};
use crate::error::{Context, Error};
use crate::hosts::Inventory;
use crate::kubeconfig::{Endpoint, Identity, config};
use crate::pki::Authority;
use crate::plan::{Plan, Ports, etcd_args, server_name};
use crate::provider_webhook::ProviderWebhook;
use crate::servers::Servers;
use crate::supervisor::Supervisor;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

/// How long a server may take to get ready. Warm it takes some three seconds; a machine that compiles at the
/// same time has been seen to take twenty.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long one answer may take: a server that accepts a connection may still never answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How often a server that is not ready is asked again.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// How often a start is tried when another process takes a port between the moment it is found free and the
/// moment a server listens on it.
const PORT_RACES: usize = 3;

/// The server that can be stopped and started while the others run.
const API_SERVER: &str = "kube-apiserver";

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
    /// How much of Cluster API.
    pub cluster_api: ClusterApi,
}

/// A running control plane. When it is dropped, or its process ends in whatever way, its servers end and its
/// folder goes.
#[derive(Debug)]
pub struct ControlPlane {
    servers: Servers,
    management: Cluster,
    workload: Option<Cluster>,
    cluster_api: ClusterApi,
    provider_webhook: Option<ProviderWebhook>,
    inventory: Arc<Inventory>,
    supervisor: Supervisor,
}

/// One Kubernetes cluster, as its administrator sees it.
#[derive(Debug)]
pub struct Cluster {
    name: &'static str,
    authority: Authority,
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
        let supervisor = Supervisor::start(&folder)?;
        let ports = Ports::pick(options.port)?;
        let etcd = format!("http://127.0.0.1:{}", ports.etcd_client);
        supervisor.spawn("etcd", &servers.path("etcd"), &etcd_args(&folder, &ports))?;
        // Each step is taken for both clusters before the next: waiting for one is time for the other.
        let launch = |name, port| -> Result<Plan, Error> {
            let plan = Plan::draw(&folder, name, port, &etcd)?;
            let program = servers.path(API_SERVER);
            supervisor.spawn(&plan.server(API_SERVER), &program, &plan.api_server)?;
            Ok(plan)
        };
        let [management, workload] = ports.api_servers;
        let management = launch("management", management)?;
        let workload = match options.topology {
            Topology::One => None,
            Topology::Two => Some(launch("workload", workload)?),
        };
        let plans = || [Some(&management), workload.as_ref()].into_iter().flatten();
        for plan in plans() {
            start_controllers(plan, servers, &supervisor).await?;
        }
        let (wanted, port) = (options.cluster_api, ports.webhooks);
        let provider_webhook = cluster_api::install(wanted, &management, port, &supervisor, &folder).await?;
        for plan in plans() {
            settle(plan, &supervisor).await?;
        }
        cluster_api::settle(wanted, &management, &supervisor).await?;
        Ok(Self {
            servers: servers.clone(),
            management: Cluster::of(management),
            workload: workload.map(Cluster::of),
            cluster_api: wanted,
            provider_webhook,
            inventory: Arc::default(),
            supervisor,
        })
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
        if self.cluster_api == ClusterApi::Manager && cluster.name == self.management.name {
            self.supervisor.check(MANAGER)?;
        }
        Ok(())
    }

    /// How much of Cluster API there is.
    pub fn cluster_api(&self) -> ClusterApi {
        self.cluster_api
    }

    /// The hosts that simulated machines of all namespaces run on.
    pub(crate) fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Kills the API server of a cluster. Its clients find nobody at its port until [`Self::start_api_server`].
    pub fn stop_api_server(&self, cluster: &Cluster) -> Result<(), Error> {
        self.supervisor.kill(&server_name(cluster.name, API_SERVER))
    }

    /// Starts an API server that was stopped, at its old port, and waits until it answers.
    pub async fn start_api_server(&self, cluster: &Cluster) -> Result<(), Error> {
        let server = server_name(cluster.name, API_SERVER);
        self.supervisor.spawn_again(&server)?;
        answers(&cluster.client().await?, &server, &self.supervisor).await
    }

    /// Halts the API server of a cluster without ending it. Its clients reach it and get no answer, until
    /// [`Self::thaw_api_server`].
    pub fn freeze_api_server(&self, cluster: &Cluster) -> Result<(), Error> {
        self.supervisor.freeze(&server_name(cluster.name, API_SERVER))
    }

    /// Lets an API server go on that was frozen.
    pub fn thaw_api_server(&self, cluster: &Cluster) -> Result<(), Error> {
        self.supervisor.signal(&server_name(cluster.name, API_SERVER), Signal::CONT)
    }

    /// Kills the manager of Cluster API, and with it its webhooks: objects of Cluster API can neither be written nor
    /// read in v1beta1.
    pub fn stop_manager(&self) -> Result<(), Error> {
        self.supervisor.kill(MANAGER)
    }

    /// Starts a manager that was stopped. It does not wait until it is at work.
    pub fn start_manager(&self) -> Result<(), Error> {
        self.supervisor.spawn_again(MANAGER)
    }

    /// Stops the webhooks of the provider, as when k0smotron is down. Its objects can neither be read nor written in
    /// v1beta1, which is not stored. In v1beta2 they can, but for K0sWorkerConfigs, which nobody can create or change
    /// without admission (their status can be written, and they can be deleted).
    pub fn stop_provider_webhook(&self) {
        if let Some(webhook) = &self.provider_webhook {
            webhook.stop();
        }
    }

    /// Starts the webhooks of the provider again. They answer when this returns.
    pub fn start_provider_webhook(&self) -> Result<(), Error> {
        self.provider_webhook.as_ref().map_or(Ok(()), ProviderWebhook::start)
    }

    /// Runs a program beside the servers, until they end. Its output is in `logs/NAME.log` of the folder.
    pub fn run(&self, name: &str, program: &Path, args: &[String]) -> Result<(), Error> {
        self.supervisor.spawn(name, program, args)
    }

    /// An error, with the end of its log, if a program that [`ControlPlane::run`] started has ended.
    pub fn check_program(&self, name: &str) -> Result<(), Error> {
        self.supervisor.check(name)
    }

    /// Ends a program that [`ControlPlane::run`] started, and returns when it is gone.
    pub fn stop(&self, name: &str) -> Result<(), Error> {
        self.supervisor.kill(name)
    }

    /// A kubeconfig of the management cluster with a token of a ServiceAccount in `5spot-system`, good for a day.
    pub fn account_kubeconfig(&self, account: &str) -> Result<String, Error> {
        let kubectl = |args: &[&str]| self.kubectl(self.management(), args, "");
        let token = kubectl(&["-n", "5spot-system", "create", "token", account, "--duration=24h"])?;
        let admin = kubectl(&["config", "view", "--raw", "-o", "json"])?;
        let mut config: Value = serde_json::from_str(&admin).map_err(Error::api("read the kubeconfig"))?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        Ok(config.to_string())
    }

    /// Waits until a cluster serves all kinds that were defined on it. `kubectl wait` ends with an error if it looks before
    /// the server has written any condition.
    pub fn until_established(&self, cluster: &Cluster) -> Result<(), Error> {
        let get = ["get", "customresourcedefinitions", "-o", "json"];
        let began = Instant::now();
        loop {
            let all: Value = serde_json::from_str(&self.kubectl(cluster, &get, "")?)
                .map_err(Error::api("read the definitions"))?;
            let holds = |it: &Value| it["type"] == "Established" && it["status"] == "True";
            let conditions =
                |crd: &Value| crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let all = all["items"].as_array().cloned().unwrap_or_default();
            let waiting = all.iter().filter(|crd| !conditions(crd).iter().any(holds)).count();
            if waiting == 0 {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                let (args, output) = (get.join(" "), format!("{waiting} definitions are not established"));
                return Err(Error::Kubectl { args, output });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Runs kubectl on a cluster, with `input` on its standard input, and returns what it printed.
    pub fn kubectl(&self, cluster: &Cluster, args: &[&str], input: &str) -> Result<String, Error> {
        let what = || format!("run kubectl {}", args.join(" "));
        let mut child = Command::new(self.servers.path("kubectl"))
            .env("KUBECONFIG", cluster.kubeconfig_path())
            // Neither the user's habits nor his cache: nothing is left in his home.
            .env("KUBERC", "off")
            .env("KUBECACHEDIR", cluster.kubeconfig_path().with_file_name("kubectl-cache"))
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
    fn of(plan: Plan) -> Self {
        let Plan { name, authority, admin, admin_path, audit_log, .. } = plan;
        Self { name, authority, kubeconfig: admin, kubeconfig_path: admin_path, audit_log }
    }

    /// Who signs its certificates.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Where its API server is.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let url = format!("https://127.0.0.1:{}", self.port());
        Endpoint { name: self.name.to_owned(), url, authority: self.authority.certificate().to_owned() }
    }

    /// Port of its API server on loopback.
    pub(crate) fn port(&self) -> u16 {
        let url = self.kubeconfig["clusters"][0]["cluster"]["server"].as_str().unwrap_or_default();
        url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default()
    }

    /// Kubeconfig of the cluster's administrator.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig_path
    }

    /// One line of JSON for every request the API server answered.
    pub fn audit_log(&self) -> &Path {
        &self.audit_log
    }

    /// Every request the API server answered, in the order of the answers.
    pub fn audit(&self) -> Result<Vec<AuditEntry>, Error> {
        audit::read(&self.audit_log)
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

/// Waits for the API server and starts what needs it.
async fn start_controllers(plan: &Plan, servers: &Servers, supervisor: &Supervisor) -> Result<(), Error> {
    answers(&admin(plan).await?, &plan.server(API_SERVER), supervisor).await?;
    for (server, args) in
        [("kube-controller-manager", &plan.controller_manager), ("kube-scheduler", &plan.scheduler)]
    {
        supervisor.spawn(&plan.server(server), &servers.path(server), args)?;
    }
    Ok(())
}

/// Waits until an API server says that it is ready.
async fn answers(client: &Client, server: &str, supervisor: &Supervisor) -> Result<(), Error> {
    wait_until(supervisor, server, || async {
        let request = http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
        client.request_text(request).await.map_err(|error| chain(&error))
    })
    .await?;
    Ok(())
}

/// Waits until a cluster is ready for use: pods and tokens need the default account, which the controller manager
/// makes when it is at work.
async fn settle(plan: &Plan, supervisor: &Supervisor) -> Result<(), Error> {
    let accounts = Api::<ServiceAccount>::namespaced(admin(plan).await?, "default");
    wait_until(supervisor, &plan.server("kube-controller-manager"), || async {
        accounts.get("default").await.map_err(|error| chain(&error))
    })
    .await?;
    supervisor.check(&plan.server("kube-scheduler"))
}

pub(crate) async fn admin(plan: &Plan) -> Result<Client, Error> {
    let config = config(&plan.admin, None).await?;
    Client::try_from(config).map_err(Error::api(format!("make a client for the {} cluster", plan.name)))
}

/// Asks until the answer is good, the server has ended, or patience has.
pub(crate) async fn wait_until<T, F>(
    supervisor: &Supervisor,
    server: &str,
    ask: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, String>>,
{
    let began = Instant::now();
    loop {
        // An API server whose etcd died waits for ever: look at etcd first.
        supervisor.check("etcd")?;
        supervisor.check(server)?;
        let answer = match tokio::time::timeout(ANSWER, ask()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(answer)) => answer,
            Err(_) => format!("none within {ANSWER:?}"),
        };
        let waited = began.elapsed();
        if waited > PATIENCE {
            let (server, log) = (server.to_owned(), supervisor.log(server));
            return Err(Error::NotReady { server, waited, answer, log });
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
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
pub(crate) fn choose_folder(wanted: Option<&Path>) -> Result<PathBuf, Error> {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let Some(folder) = wanted else {
        let next = || STARTED.fetch_add(1, Ordering::Relaxed);
        let name = || env::temp_dir().join(format!("5spot-{}-{}", std::process::id(), next()));
        // Another process of this number may have left a folder when the machine lost power.
        return Ok(std::iter::repeat_with(name).find(|folder| !folder.exists()).unwrap_or_default());
    };
    if let Some(pid) = Supervisor::running(folder) {
        return Err(Error::AlreadyRunning { folder: folder.to_owned(), pid });
    }
    if Supervisor::was_here(folder) {
        // The remains of a machine that lost power: nothing else ends a supervisor before its work is done.
        fs::remove_dir_all(folder).context(|| format!("remove the remains of {}", folder.display()))?;
    }
    if folder.exists() {
        return Err(Error::FolderExists { folder: folder.to_owned() });
    }
    std::path::absolute(folder).context(|| format!("find {}", folder.display()))
}
