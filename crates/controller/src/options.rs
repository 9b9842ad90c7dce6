//! Flags and their environment variables. A flag beats its variable.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser};
use fivespot_api::names::GITOPS_MANAGERS;
use fivespot_cluster::CapiVersion;
use fivespot_core::servers::AllowedServer;
use fivespot_core::slots::{Instance, Timing};
use fivespot_ops::admin::MetricsOptions;
use fivespot_ops::logs::Format;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// Lends machines to clusters by the clock: watches ScheduledMachines, creates the Cluster API objects that make a machine
/// join when its window opens, drains its Node and takes it out when it closes.
#[derive(Debug, Clone, Parser)]
#[command(name = "5spot-controller", version, max_term_width = 100)]
pub(crate) struct Options {
    /// The slot that this process prefers, from 0. Without it, the ordinal at the end of the pod's name, if it has one.
    #[arg(long, env = "OPERATOR_INSTANCE_ID", value_name = "NUMBER")]
    pub(crate) instance_id: Option<u32>,

    /// Slots that the machines are shared out to. A process takes over slots whose holder is gone.
    #[arg(long, env = "OPERATOR_INSTANCE_COUNT", default_value_t = NonZeroU32::MIN, value_name = "NUMBER",
          value_parser = instance_count)]
    pub(crate) instance_count: NonZeroU32,

    /// Port of /metrics; 0 takes any that is free.
    #[arg(long, env = "METRICS_PORT", default_value_t = 8080, value_name = "PORT")]
    pub(crate) metrics_port: u16,

    /// Port of /health and /ready; 0 takes any that is free.
    #[arg(long, env = "HEALTH_PORT", default_value_t = 8081, value_name = "PORT")]
    pub(crate) health_port: u16,

    /// Address both listen on.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "0.0.0.0", value_name = "ADDRESS")]
    pub(crate) listen_address: IpAddr,

    #[command(flatten)]
    pub(crate) metrics: MetricsOptions,

    /// How log lines look. RUST_LOG says which there are.
    #[arg(long, env = "RUST_LOG_FORMAT", value_enum, default_value_t = Format::Text)]
    pub(crate) log_format: Format,

    /// Name of this process among others; in a pod, the pod's.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) pod_name: Option<String>,

    /// Identity of the pod: only a container that is started again in it goes on with what the last one held.
    #[arg(long, env = "POD_UID", value_name = "UID")]
    pub(crate) pod_uid: Option<String>,

    /// Namespace of the leases.
    #[arg(long, env = "POD_NAMESPACE", default_value = "5spot-system", value_name = "NAMESPACE")]
    pub(crate) lease_namespace: String,

    /// How long a lease is respected that its holder does not renew.
    #[arg(long, env = "LEASE_DURATION_SECONDS", default_value_t = 15, value_name = "SECONDS")]
    pub(crate) lease_duration_secs: u64,

    /// How long a holder writes without having renewed its lease.
    #[arg(long, env = "LEASE_RENEW_DEADLINE_SECONDS", default_value_t = 10, value_name = "SECONDS")]
    pub(crate) lease_renew_deadline_secs: u64,

    /// How often a lease is renewed or tried.
    #[arg(long, env = "LEASE_RETRY_PERIOD_SECONDS", default_value_t = 2, value_name = "SECONDS")]
    pub(crate) lease_retry_period_secs: u64,

    /// Give up a Machine that is not gone ten minutes after its deletion was sent, and let the ScheduledMachine be deleted.
    #[arg(long, env = "FORCE_FINALIZER_ON_TIMEOUT", default_value_t = false, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set,
          value_parser = BoolishValueParser::new(), value_name = "true|false")]
    pub(crate) force_finalizer_on_timeout: bool,

    /// Version of Cluster API to speak. Without it, the best that is served.
    #[arg(long, env = "CAPI_VERSION", value_parser = capi_version, value_name = "v1beta2|v1beta1")]
    pub(crate) capi_version: Option<CapiVersion>,

    /// Field managers that put spec.schedule.enabled back to what a stored manifest says: what they write does not release a
    /// machine that its owner reclaimed. Whatever server-side apply writes never does.
    #[arg(long, env = "GITOPS_MANAGERS", value_delimiter = ',', value_name = "NAMES",
          default_values_t = GITOPS_MANAGERS.map(str::to_owned))]
    pub(crate) gitops_managers: Vec<String>,

    /// Namespaces whose machines may join the management cluster itself if their Cluster has no kubeconfig Secret; * for
    /// all. Without it, none: a machine whose Cluster has no Secret is not followed into any cluster.
    #[arg(long, env = "MANAGEMENT_CLUSTER_NAMESPACES", value_delimiter = ',', value_name = "NAMES")]
    pub(crate) management_cluster_namespaces: Vec<String>,

    /// API servers that kubeconfig Secrets may lead to: networks (10.0.0.0/8), domains (*.example.com) and hosts
    /// (api.example.com:6443). Without it, every server.
    #[arg(long, env = "WORKLOAD_API_SERVERS", value_delimiter = ',', value_name = "SERVERS",
          value_parser = AllowedServer::parse)]
    pub(crate) workload_api_servers: Vec<AllowedServer>,

    /// Kubeconfig of the management cluster. Without it, what kubectl would use, or the pod's own account.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Decide, log and count, and write nothing.
    #[arg(long, env = "DRY_RUN", default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = BoolishValueParser::new(),
          value_name = "true|false")]
    pub(crate) dry_run: bool,
}

/// The most slots there can be.
const INSTANCES: u32 = 64;

impl Options {
    /// In a pod its name, else the host's with the number of the process.
    pub(crate) fn instance_name(&self) -> String {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.pod_name.clone().unwrap_or_else(|| format!("{}-{}", host(), std::process::id()))
    }

    /// Who takes part in sharing the slots out.
    pub(crate) fn instance(&self) -> Instance {
        let ordinal = || self.pod_name.as_deref()?.rsplit('-').next()?.parse().ok();
        // The pods of a Deployment may end in digits, too.
        let ordinal = || ordinal().filter(|ordinal| *ordinal < self.instance_count.get());
        Instance {
            name: self.instance_name(),
            uid: self.pod_uid.clone().unwrap_or_else(fivespot_ops::slots::fresh_uid),
            own: self.instance_id.or_else(ordinal),
            count: self.instance_count,
            timing: Timing {
                duration: Duration::from_secs(self.lease_duration_secs),
                renew_deadline: Duration::from_secs(self.lease_renew_deadline_secs),
                retry: Duration::from_secs(self.lease_retry_period_secs),
            },
        }
    }

    /// Whether the lease's times fit together: the holder must stop before another begins, and must have had more than
    /// one chance to renew by then. And whether the slot that is preferred exists.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if let Some(id) = self.instance_id {
            let count = self.instance_count;
            anyhow::ensure!(
                id < count.get(),
                "--instance-id ({id}) must be less than --instance-count ({count}): instances are numbered from 0"
            );
        }
        self.metrics.check()?;
        let (duration, deadline, retry) =
            (self.lease_duration_secs, self.lease_renew_deadline_secs, self.lease_retry_period_secs);
        anyhow::ensure!(
            duration > deadline,
            "--lease-duration-secs ({duration}) must be longer than --lease-renew-deadline-secs ({deadline})"
        );
        anyhow::ensure!(
            retry > 0 && deadline >= 2 * retry,
            "--lease-renew-deadline-secs ({deadline}) must be twice --lease-retry-period-secs ({retry}) at least, and \
             that at least 1"
        );
        Ok(())
    }
}

fn instance_count(text: &str) -> Result<NonZeroU32, String> {
    let count = text.parse().ok().filter(|count: &NonZeroU32| count.get() <= INSTANCES);
    count.ok_or_else(|| format!("\"{text}\" is not a number from 1 to {INSTANCES}"))
}

fn capi_version(text: &str) -> Result<CapiVersion, String> {
    CapiVersion::parse(text)
        .ok_or_else(|| format!("\"{text}\" is not a version we speak: write v1beta2 or v1beta1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_well_formed_and_booleans_take_a_value() {
        Options::command().debug_assert();
        let read = |args: &[&str]| Options::parse_from([&["5spot-controller"], args].concat());
        assert!(!read(&[]).dry_run);
        assert!(read(&["--dry-run"]).dry_run);
        assert!(!read(&["--dry-run=false", "--force-finalizer-on-timeout=true"]).dry_run);
        assert!(read(&[]).check().is_ok());
        for odd in ["--lease-duration-secs=5", "--lease-retry-period-secs=0", "--lease-renew-deadline-secs=1"]
        {
            assert!(read(&[odd]).check().is_err(), "{odd}");
        }
        let own_certificate = ["--metrics-auth", "--metrics-cert-file=a", "--metrics-key-file=b"];
        assert!(read(&own_certificate).check().is_ok() && read(&own_certificate[1..]).check().is_err());
        assert!(read(&["--instance-id=2", "--instance-count=3"]).check().is_ok());
        assert!(read(&["--instance-id=3", "--instance-count=3"]).check().is_err());
        for odd in ["0", "65", "three", "-1"] {
            let args = ["5spot-controller", "--instance-count", odd];
            assert!(Options::try_parse_from(args).is_err(), "{odd}");
        }
        assert_eq!(read(&["--capi-version=v1beta1"]).capi_version, Some(CapiVersion::V1Beta1));
    }

    #[test]
    fn the_slot_that_is_preferred_may_come_from_the_name_of_the_pod() {
        let own = |args: &[&str]| {
            Options::parse_from([&["5spot-controller", "--instance-count=3"], args].concat()).instance().own
        };
        assert_eq!(own(&["--pod-name=5spot-controller-2"]), Some(2), "of a StatefulSet");
        assert_eq!(own(&["--pod-name=5spot-controller-2", "--instance-id=1"]), Some(1));
        for name in
            ["5spot-controller-7d9c5b8f6-x2z4k", "5spot-controller-7d9c5b8f6-24789", "5spot-controller"]
        {
            assert_eq!(own(&["--pod-name", name]), None, "{name}");
        }
    }
}
