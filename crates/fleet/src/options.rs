//! Flags and their environment variables. A flag beats its variable.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, ArgGroup};
use clap::{Parser, ValueEnum};
use fivespot_core::fleet::pods::{self, Policy};
use fivespot_ops::admin::MetricsOptions;
use fivespot_ops::logs::Format;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Speaks for a cluster with its BigFleet shard: tells it what the cluster wants, makes machines join, and gives them back
/// when the shard asks, without breaking a disruption budget.
#[derive(Debug, Clone, Parser)]
#[command(name = "5spot-fleet-operator", version, max_term_width = 100)]
#[command(group = ArgGroup::new("tls").args(["tls_cert", "tls_key", "tls_ca"]).multiple(true))]
pub struct Options {
    /// Name of this cluster in the fleet.
    #[arg(long, env = "CLUSTER_ID", value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub cluster_id: String,

    /// Where the shard listens.
    #[arg(long, env = "SHARD_ADDR", value_name = "HOST:PORT", value_parser = read_address)]
    pub shard_addr: String,

    /// Certificate that says which cluster this is. Without the three there is no TLS, and anybody is believed.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_cert: Option<PathBuf>,

    /// Key of the certificate.
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_ca"])]
    pub tls_key: Option<PathBuf>,

    /// Authorities that the shard's certificate must be signed by.
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub tls_ca: Option<PathBuf>,

    /// Kubeconfig of the cluster. Without it, what kubectl would use, or the pod's own account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// How often the shard is told what the cluster wants.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = read_time)]
    pub rollup_interval: Duration,

    /// Template of what makes a machine join.
    #[arg(long, value_name = "FILE")]
    pub bootstrap_template_file: Option<PathBuf>,

    /// Grace of a drain whose instruction was lost.
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = read_time)]
    pub default_grace: Duration,

    /// How long a session waits to hear of a machine. One that it has not heard of by then and that has no Node is not there
    /// any more, and its UpcomingNode is removed.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = read_time)]
    pub forget_after: Duration,

    /// Pods that are asked to go in a second, on all Nodes together.
    #[arg(long, default_value_t = 50, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub evictions_per_second: u32,

    /// Hold the session and tell what would be done, but neither cordon nor evict.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = BoolishValueParser::new(),
          value_name = "true|false")]
    pub observe_only: bool,

    /// Pods that nobody makes again, and pods with data in an emptyDir: evict them like all others, or wait for somebody to
    /// move them.
    #[arg(long, value_enum, default_value_t = LossyPods::Evict)]
    pub lossy_pods: LossyPods,

    /// Give a pod no more time to end than its drain has.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = BoolishValueParser::new(),
          value_name = "true|false")]
    pub cap_pod_grace: bool,

    /// Pods that are left at the deadline: say so and fail, or delete them without grace, whatever budgets say. Needs
    /// deploy/fleet/force.yaml.
    #[arg(long, value_enum, default_value_t = OnDeadline::Fail)]
    pub on_deadline: OnDeadline,

    /// Address that /health, /ready and /metrics listen on; port 0 takes any that is free.
    #[arg(long, env = "METRICS_ADDR", default_value = "0.0.0.0:8770", value_name = "ADDRESS:PORT")]
    pub metrics_addr: SocketAddr,

    /// Address that /health and /ready listen on in place of that of /metrics. Needed with --metrics-auth.
    #[arg(long, env = "HEALTH_ADDR", value_name = "ADDRESS:PORT")]
    pub health_addr: Option<SocketAddr>,

    /// Who may read /metrics.
    #[command(flatten)]
    pub metrics: MetricsOptions,

    /// Name of this process among others.
    #[arg(long, env = "POD_NAME", default_value = "5spot-fleet-operator", value_name = "NAME")]
    pub pod_name: String,

    /// Identity of the pod: only a container that is started again in it goes on with the Lease of the last one at once.
    #[arg(long, env = "POD_UID", value_name = "UID")]
    pub pod_uid: Option<String>,

    /// Namespace of this process, and of the Lease that says which of several speaks for the cluster.
    #[arg(long, env = "POD_NAMESPACE", default_value = fivespot_api::names::SYSTEM_NAMESPACE, value_name = "NAMESPACE")]
    pub lease_namespace: String,

    /// How log lines look. RUST_LOG says which there are.
    #[arg(long, env = "RUST_LOG_FORMAT", value_enum, default_value_t = Format::Text)]
    pub log_format: Format,
}

/// Pods that nobody makes again, or that lose what they have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LossyPods {
    /// Evict them like all others: the machine goes.
    Evict,
    /// Wait for somebody to move them; the drain fails at its deadline if nobody does.
    Block,
}

/// The end of a drain that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnDeadline {
    /// It has failed, and says why.
    Fail,
    /// What is left is deleted without grace, whatever budgets say.
    Force,
}

/// The files of mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whom we believe.
    pub ca: PathBuf,
}

impl Options {
    /// Whether the flags fit together.
    pub fn check(&self) -> anyhow::Result<()> {
        self.metrics.check()?;
        anyhow::ensure!(
            self.health_addr.is_some() || !self.metrics.metrics_auth,
            "--metrics-auth needs --health-addr: probes have no token, and /metrics is served over HTTPS"
        );
        Ok(())
    }

    /// What is chosen about pods.
    pub fn policy(&self) -> Policy {
        let Self { lossy_pods, cap_pod_grace, on_deadline, .. } = *self;
        Policy {
            lossy_pods: match lossy_pods {
                LossyPods::Evict => pods::LossyPods::Evict,
                LossyPods::Block => pods::LossyPods::Block,
            },
            cap_pod_grace,
            on_deadline: match on_deadline {
                OnDeadline::Fail => pods::OnDeadline::Fail,
                OnDeadline::Force => pods::OnDeadline::Force,
            },
        }
    }

    /// The files of mutual TLS, if it is wanted.
    pub fn tls(&self) -> Option<TlsFiles> {
        let (cert, key, ca) = (self.tls_cert.clone()?, self.tls_key.clone()?, self.tls_ca.clone()?);
        Some(TlsFiles { cert, key, ca })
    }
}

fn read_address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("write HOST:PORT, such as shard-0.fleet:7780")?;
    if host.is_empty() {
        return Err("the host is missing: write HOST:PORT, such as shard-0.fleet:7780".to_owned());
    }
    port.parse::<u16>().map_err(|_| format!("{port:?} is no port: write a number from 1 to 65535"))?;
    Ok(text.to_owned())
}

fn read_time(text: &str) -> Result<Duration, String> {
    let time: jiff::SignedDuration =
        text.parse().map_err(|_| "write a time such as 500ms, 10s or 5m".to_owned())?;
    let time = Duration::try_from(time).map_err(|_| "a time cannot be negative".to_owned())?;
    if time < Duration::from_millis(100) || time > Duration::from_hours(24) {
        return Err("write a time from 100ms to 24h".to_owned());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// With the two that are needed, unless they are given.
    fn read(args: &[&str]) -> Result<Options, clap::Error> {
        let needed = ["--cluster-id=lab", "--shard-addr=shard:7780"];
        let is_given = |flag: &str| args.iter().any(|arg| arg.split('=').next() == flag.split('=').next());
        let needed = needed.into_iter().filter(|flag| !is_given(flag));
        Options::try_parse_from(
            std::iter::once("5spot-fleet-operator").chain(needed).chain(args.iter().copied()),
        )
    }

    #[test]
    fn flags_are_well_formed_and_have_the_defaults_of_the_contract() {
        Options::command().debug_assert();
        let plain = read(&[]).unwrap();
        assert_eq!(plain.rollup_interval, Duration::from_secs(10));
        assert_eq!(plain.default_grace, Duration::from_mins(10));
        assert!(!plain.observe_only && plain.tls().is_none());
        assert_eq!(plain.policy(), Policy::default());
        let all = ["--lossy-pods=block", "--cap-pod-grace", "--on-deadline=force"];
        let chosen = Policy {
            lossy_pods: pods::LossyPods::Block,
            cap_pod_grace: true,
            on_deadline: pods::OnDeadline::Force,
        };
        assert_eq!(read(&all).unwrap().policy(), chosen);
        assert!(read(&["--observe-only"]).unwrap().observe_only);
        assert!(read(&["--tls-cert=a", "--tls-key=b", "--tls-ca=c"]).unwrap().tls().is_some());
    }

    #[test]
    fn what_is_wrong_names_the_flag_and_the_fix() {
        for (args, words) in [
            (&["--tls-cert=a"][..], "--tls-key"),
            (&["--shard-addr=shard"], "write HOST:PORT"),
            (&["--shard-addr=:1"], "the host is missing"),
            (&["--shard-addr=a:b"], "is no port"),
            (&["--rollup-interval=0s"], "write a time from 100ms to 24h"),
            (&["--rollup-interval=often"], "write a time such as"),
            (&["--cluster-id="], "--cluster-id"),
        ] {
            let message = read(args).unwrap_err().to_string();
            assert!(message.contains(words), "{args:?}: {message}");
        }
        assert!(read(&["--metrics-auth", "--health-addr=0.0.0.0:8771"]).unwrap().check().is_ok());
        let message = read(&["--metrics-auth"]).unwrap().check().unwrap_err().to_string();
        assert!(message.contains("needs --health-addr"), "{message}");
        let unused = ["--metrics-cert-file=a", "--metrics-key-file=b"];
        let message = read(&unused).unwrap().check().unwrap_err().to_string();
        assert!(message.contains("needs --metrics-auth"), "{message}");
    }
}
