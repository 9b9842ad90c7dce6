//! The real Kubernetes control plane, for tests, demo and benchmarks.
//!
//! [`ControlPlane::start`] starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler on
//! loopback and free ports, with RBAC and Node authorisation, bound service-account tokens, admission
//! policies and an audit log. Nothing is mocked. Nothing is left behind either: the servers belong to a
//! supervisor process that ends them and removes their folder when this process is gone, however it went.
//!
//! [`Servers`] finds or builds the binaries; `make control-plane` does it once for a machine.
//!
//! [`ClusterApi`] adds Cluster API with its real manager, and [`Hosts`] the machines that join, run pods and leave.
//!
//! [`RealNode`] adds a machine with a kubelet and containers, where a test is about processes and not about objects.
//!
//! Tests of one binary share a control plane ([`shared`]) and take a namespace of their own
//! ([`Cluster::fresh_namespace`]).

mod audit;
mod build;
mod cluster_api;
mod cluster_fixture;
mod control_plane;
mod crds;
mod daemon;
mod error;
mod hostile;
mod hosts;
mod kubeconfig;
mod network_policy;
mod node;
mod pki;
mod plan;
mod private_file;
mod programs;
mod provider_webhook;
mod scraper;
mod servers;
mod shared;
mod supervisor;
mod tls;

pub use audit::AuditEntry;
pub use build::Progress;
pub use cluster_api::ClusterApi;
pub use cluster_fixture::{
    Lacking, cluster_api, create_cluster, create_cluster_lacking, create_cluster_without_secret,
    create_kubeconfig_secret,
};
pub use control_plane::{Cluster, ControlPlane, Options, Topology};
pub use crds::cluster_api_crds;
pub use daemon::Daemon;
pub use error::Error;
pub use hostile::{Attack, HostileServer, LIE};
pub use hosts::{Behaviour, Core, Fault, Hosts, PROVIDER_WORKERS, SSH_KEY, create_ssh_key};
pub use kubeconfig::{Identity, anonymous_kubeconfig};
pub use network_policy::assert_only_scrapers_reach;
pub use node::{GUEST_IMAGE, RealNode};
pub use private_file::write_private;
pub use programs::{build_programs, cargo, skipped};
pub use scraper::{Scraped, Scraper};
pub use servers::Servers;
pub use shared::{eventually, is_proof, share, shared, shared_with_cluster_api};
