//! Flags and their environment variables. A flag beats its variable.

use crate::detector::Choice;
use crate::source::Kind;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser, ValueEnum};
use fivespot_ops::logs::Format;
use std::net::IpAddr;
use std::path::PathBuf;

/// Watches a lent machine for the programs its owner has named. When one runs, it asks on the machine's Node that the
/// machine be given back. It kills nothing and starts nothing.
#[derive(Debug, Clone, Parser)]
#[command(name = "5spot-reclaim-agent", version, max_term_width = 100)]
pub struct Options {
    /// Name of the Node that this machine is.
    #[arg(long, env = "NODE_NAME", value_name = "NAME", required_unless_present = "config")]
    pub node_name: Option<String>,

    /// How processes are noticed: by events of the kernel (netlink), by polling, or by the best that works.
    #[arg(long, env = "RECLAIM_DETECTOR", value_enum, default_value_t = DetectorFlag::Auto)]
    pub detector: DetectorFlag,

    /// Where the host's /proc is.
    #[arg(long, env = "RECLAIM_PROC_ROOT", default_value = "/proc", value_name = "FOLDER")]
    pub proc_root: PathBuf,

    /// Where the host's machine-id is; it must be the one the Node reports.
    #[arg(long, env = "MACHINE_ID_PATH", default_value = "/etc/machine-id", value_name = "FILE")]
    pub machine_id_path: PathBuf,

    /// Do not compare the machine-id with the Node's: whoever sets NODE_NAME then chooses which machine is given back.
    #[arg(long, env = "SKIP_HOST_ID_CHECK", default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = BoolishValueParser::new(),
          value_name = "true|false")]
    pub skip_host_id_check: bool,

    /// Look once and end: 0 if a process matches, 1 if none does, 2 if that cannot be known. Nothing is written.
    #[arg(long)]
    pub oneshot: bool,

    /// Read what to look for from this file instead of the ConfigMap, and only log what is found: a trial that neither
    /// asks nor tells a cluster.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address that /health, /ready and /metrics listen on.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub listen_address: IpAddr,

    /// Their port; 0 takes any that is free.
    #[arg(long, env = "HEALTH_PORT", default_value_t = 8082, value_name = "PORT")]
    pub health_port: u16,

    /// Kubeconfig of the cluster the Node is in. Without it, what kubectl would use, or the pod's own account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// How log lines look. RUST_LOG says which there are.
    #[arg(long, env = "RUST_LOG_FORMAT", value_enum, default_value_t = Format::Text)]
    pub log_format: Format,
}

/// How processes are noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DetectorFlag {
    /// The best that works.
    Auto,
    /// Events of the kernel, or none.
    Netlink,
    /// Polling.
    Poll,
}

impl From<DetectorFlag> for Choice {
    fn from(flag: DetectorFlag) -> Self {
        match flag {
            DetectorFlag::Auto => Self::Auto,
            DetectorFlag::Netlink => Self::Only(Kind::Netlink),
            DetectorFlag::Poll => Self::Only(Kind::Poll),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_well_formed_and_a_node_or_a_file_is_needed() {
        Options::command().debug_assert();
        let read = |args: &[&str]| Options::try_parse_from([&["5spot-reclaim-agent"], args].concat());
        let plain = read(&["--node-name=n"]).unwrap();
        assert!(!plain.skip_host_id_check && !plain.oneshot);
        assert!(plain.listen_address.is_loopback());
        assert!(read(&["--node-name=n", "--skip-host-id-check"]).unwrap().skip_host_id_check);
        assert!(!read(&["--node-name=n", "--skip-host-id-check=false"]).unwrap().skip_host_id_check);
        assert!(read(&["--config=x"]).unwrap().node_name.is_none());
        assert_eq!(
            Choice::from(read(&["--config=x", "--detector=poll"]).unwrap().detector),
            Choice::Only(Kind::Poll)
        );
        if std::env::var_os("NODE_NAME").is_none() {
            assert!(read(&[]).unwrap_err().to_string().contains("--node-name"));
        }
    }
}
