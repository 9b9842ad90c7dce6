//! Where the server binaries are.
//!
//! The first place that has all five wins: the folder `KUBEBUILDER_ASSETS` names, PATH, the cache that
//! `make control-plane` fills. Servers of different places are never mixed: their versions would not fit.

use crate::Error;
use crate::build::{self, Progress};
use sha2::{Digest, Sha256};
use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The pinned sources the servers are built from, as they were when this crate was compiled.
pub(crate) const PINS: [&str; 4] = [
    include_str!("../../../control-plane/go.mod"),
    include_str!("../../../control-plane/go.sum"),
    include_str!("../../../control-plane/cluster-api/go.mod"),
    include_str!("../../../control-plane/cluster-api/go.sum"),
];

/// Raise this when the way of building changes and binaries of the old way must not be used any more.
const RECIPE: &str = "1";

/// Every binary a control plane needs.
pub(crate) const NAMES: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

/// The binaries of one control plane.
#[derive(Debug, Clone)]
pub struct Servers {
    folder: PathBuf,
}

impl Servers {
    /// Finds the binaries, or says how to get them.
    pub fn find() -> Result<Self, Error> {
        if let Some(folder) = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) {
            return match first_missing(&folder) {
                Some(missing) => Err(Error::IncompleteAssets { missing, folder }),
                None => Ok(Self { folder }),
            };
        }
        if let Some(folder) = on_path() {
            return Ok(Self { folder });
        }
        let folder = cache_folder().join("bin");
        match first_missing(&folder) {
            Some(missing) => Err(Error::NotBuilt { missing, folder }),
            None => Ok(Self { folder }),
        }
    }

    /// Finds the binaries, or builds them into the cache. Takes some eleven minutes on two cores, once.
    /// Wherever the servers come from, Cluster API's manager and definitions come from their module.
    pub fn find_or_build(progress: &mut dyn Progress) -> Result<Self, Error> {
        let cache = cache_folder();
        let servers = match Self::find() {
            Err(Error::NotBuilt { .. }) => {
                build::build(&cache, progress)?;
                Self::find()?
            }
            found => found?,
        };
        build::build_cluster_api(&cache, progress)?;
        Ok(servers)
    }

    /// The folder they are in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether they are those that `make control-plane` builds, and so of the pinned versions.
    pub fn are_built_here(&self) -> bool {
        self.folder == cache_folder().join("bin")
    }

    /// The names of the binaries in [`Servers::folder`].
    pub fn names() -> &'static [&'static str] {
        &NAMES
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// A cache outside the checkout, keyed by what is built, so that a fresh clone finds what another one built.
pub(crate) fn cache_folder() -> PathBuf {
    cache_entry("control-plane", PINS.into_iter().chain([RECIPE]))
}

/// The folder of the cache for something that is made of these texts, on this kind of machine.
pub(crate) fn cache_entry<'a>(name: &str, made_of: impl IntoIterator<Item = &'a str>) -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir);
    base.join("5spot").join(format!("{name}-{}", key(made_of)))
}

fn key<'a>(made_of: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in made_of.into_iter().chain([env::consts::ARCH, env::consts::OS]) {
        hash.update(part);
        hash.update([0]);
    }
    let digest = hash.finalize();
    digest.iter().take(8).fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn first_missing(folder: &Path) -> Option<&'static str> {
    NAMES.into_iter().find(|name| !folder.join(name).is_file())
}

fn on_path() -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).find(|folder| first_missing(folder).is_none())
}
