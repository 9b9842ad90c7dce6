//! Flags and their environment variables. A flag beats its variable.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser};
use fivespot_api::names::GITOPS_MANAGERS;
use fivespot_cluster::CapiVersion;
use fivespot_ops::logs::Format;
use std::net::IpAddr;
use std::path::PathBuf;

/// Lends machines to clusters by the clock: watches ScheduledMachines, creates the Cluster API objects that make a machine
/// join when its window opens, drains its Node and takes it out when it closes.
#[derive(Debug, Clone, Parser)]
#[command(name = "5spot-controller", version, max_term_width = 100)]
pub(crate) struct Options {
    /// Port of /metrics; 0 takes any that is free.
    #[arg(long, env = "METRICS_PORT", default_value_t = 8080, value_name = "PORT")]
    pub(crate) metrics_port: u16,

    /// Port of /health and /ready; 0 takes any that is free.
    #[arg(long, env = "HEALTH_PORT", default_value_t = 8081, value_name = "PORT")]
    pub(crate) health_port: u16,

    /// Address both listen on.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "0.0.0.0", value_name = "ADDRESS")]
    pub(crate) listen_address: IpAddr,

    /// How log lines look. RUST_LOG says which there are.
    #[arg(long, env = "RUST_LOG_FORMAT", value_enum, default_value_t = Format::Text)]
    pub(crate) log_format: Format,

    /// Name of this process among others; in a pod, the pod's.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) pod_name: Option<String>,

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

    /// Field managers of tools that put spec.schedule.enabled back: what they write does not release a machine that its
    /// owner took back.
    #[arg(long, env = "GITOPS_MANAGERS", value_delimiter = ',', value_name = "NAMES",
          default_values_t = GITOPS_MANAGERS.map(str::to_owned))]
    pub(crate) gitops_managers: Vec<String>,

    /// Kubeconfig of the management cluster. Without it, the pod's own account, or what kubectl would use.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Decide, log and count, and write nothing.
    #[arg(long, env = "DRY_RUN", default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = BoolishValueParser::new(),
          value_name = "true|false")]
    pub(crate) dry_run: bool,
}

impl Options {
    /// Whether the lease's times fit together: the holder must stop before another begins, and must have had more than
    /// one chance to renew by then.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let (duration, deadline, retry) =
            (self.lease_duration_secs, self.lease_renew_deadline_secs, self.lease_retry_period_secs);
        anyhow::ensure!(
            duration > deadline,
            "--lease-duration-secs ({duration}) must be longer than --lease-renew-deadline-secs ({deadline})"
        );
        anyhow::ensure!(
            retry > 0 && deadline > retry,
            "--lease-renew-deadline-secs ({deadline}) must be longer than --lease-retry-period-secs ({retry}), and that \
             at least 1"
        );
        Ok(())
    }
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
        assert_eq!(read(&["--capi-version=v1beta1"]).capi_version, Some(CapiVersion::V1Beta1));
    }
}
