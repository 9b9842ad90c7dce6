//! What a real node is made of: the kubelet of the pinned Kubernetes, a container runtime from Debian packages, and one
//! image. They are made once into a folder of the cache; nothing is installed on the machine.

use super::image;
use crate::build::{Progress, Source, build_one, ldflags, package, prepare, run};
use crate::error::{Context, Error};
use crate::servers::{PINS, cache_entry};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The checksums that the kubelet needs beside those of the servers. They are not in the servers' go.sum: it is part of the
/// key of their cache, and a change would make every machine build them again for minutes.
const KUBELET_SUMS: &str = include_str!("../../../../control-plane/kubelet.sum");

/// The Debian packages of which files are used. Their dependencies are on every Debian, except libseccomp2 for runc,
/// which [`Parts::find`] tries.
const PACKAGES: [&str; 4] = ["busybox-static", "containerd", "containernetworking-plugins", "runc"];

/// Raise this when the way of making the parts changes and parts of the old way must not be used any more.
const RECIPE: &str = "1";

/// Files that are there when everything is.
const KUBELET: &str = "bin/kubelet";
const PACKAGES_FOLDER: &str = "packages";
const IMAGE: &str = "image.tar";

/// The parts of a node, in the cache.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    folder: PathBuf,
}

impl Parts {
    /// Finds what `make control-plane` has made.
    pub(crate) fn find() -> Result<Self, Error> {
        let parts = Self { folder: folder() };
        if let Some(missing) = parts.first_missing() {
            can_be_packaged()?;
            return Err(Error::NodeNotBuilt { missing, folder: parts.folder });
        }
        let runc = Command::new(parts.packages().join("usr/sbin/runc")).arg("--version").output();
        match runc {
            Ok(output) if output.status.success() => Ok(parts),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(Error::NodeUnavailable { why: format!("runc does not run here: {said}") })
            }
            Err(error) => Err(Error::NodeUnavailable { why: format!("runc does not run here: {error}") }),
        }
    }

    /// Makes whatever is missing. Takes a minute where the servers were built before.
    pub(crate) fn build(progress: &mut dyn Progress) -> Result<(), Error> {
        let parts = Self { folder: folder() };
        if parts.first_missing().is_none() {
            return Ok(());
        }
        can_be_packaged()?;
        let _lock = prepare(&parts.folder)?;
        if !parts.kubelet().is_file() {
            parts.build_kubelet(progress)?;
        }
        if !parts.packages().is_dir() {
            parts.unpack_packages(progress)?;
        }
        if !parts.image().is_file() {
            image::write(&parts.packages().join("bin/busybox"), &parts.image())?;
            progress.done("the image of the node's pods");
        }
        Ok(())
    }

    pub(crate) fn kubelet(&self) -> PathBuf {
        self.folder.join(KUBELET)
    }

    /// The root of the unpacked packages.
    pub(crate) fn packages(&self) -> PathBuf {
        self.folder.join(PACKAGES_FOLDER)
    }

    /// The image of pods and of their sandboxes, as an OCI archive.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(IMAGE)
    }

    fn first_missing(&self) -> Option<&'static str> {
        [KUBELET, PACKAGES_FOLDER, IMAGE].into_iter().find(|name| !self.folder.join(name).exists())
    }

    /// In a copy of the servers' module that knows more checksums, so that no version can differ from theirs.
    fn build_kubelet(&self, progress: &mut dyn Progress) -> Result<(), Error> {
        let source = self.folder.join("kubelet-source");
        let bin = self.folder.join("bin");
        for folder in [&source, &bin] {
            fs::create_dir_all(folder).context(|| format!("create {}", folder.display()))?;
        }
        for (name, text) in [("go.mod", PINS[0].to_owned()), ("go.sum", format!("{}{KUBELET_SUMS}", PINS[1]))]
        {
            let file = source.join(name);
            fs::write(&file, text).context(|| format!("write {}", file.display()))?;
        }
        let (package, ldflags) = (package("kubelet"), ldflags());
        let source = Source { folder: &source, package: &package, ldflags: &ldflags };
        build_one("kubelet", &self.kubelet(), &source, &mut HashSet::new(), progress)
    }

    fn unpack_packages(&self, progress: &mut dyn Progress) -> Result<(), Error> {
        let (downloads, partial) = (self.folder.join("downloads"), self.folder.join("packages.partial"));
        for folder in [&downloads, &partial] {
            // What an interrupted build has left may be incomplete.
            let _ = fs::remove_dir_all(folder);
            fs::create_dir_all(folder).context(|| format!("create {}", folder.display()))?;
        }
        download(&downloads, progress)?;
        let files = fs::read_dir(&downloads).context(|| format!("read {}", downloads.display()))?;
        let files = files.flatten().map(|entry| entry.path());
        for file in files.filter(|path| path.extension().is_some_and(|it| it == "deb")) {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(&file).arg(&partial).stdin(Stdio::null());
            run(&mut unpack, |_| {})?;
        }
        fs::remove_dir_all(&downloads).context(|| format!("remove {}", downloads.display()))?;
        let target = self.packages();
        fs::rename(&partial, &target).context(|| format!("put {} in its place", target.display()))?;
        progress.done("the packages of the node's container runtime");
        Ok(())
    }
}

/// A folder of its own in the cache, so that a change here leaves the servers alone.
fn folder() -> PathBuf {
    let recipe = [RECIPE, image::RECIPE];
    cache_entry("node", [PINS[0], PINS[1], KUBELET_SUMS].into_iter().chain(PACKAGES).chain(recipe))
}

fn can_be_packaged() -> Result<(), Error> {
    for tool in ["apt-get", "dpkg-deb"] {
        if Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            return Err(Error::NodeUnavailable {
                why: format!(
                    "`{tool}` is not on PATH, and the container runtime is had from Debian's packages"
                ),
            });
        }
    }
    Ok(())
}

/// Downloads the packages that this machine's package lists name, or else those of lists that are fetched for this purpose
/// alone: the machine's own are not touched.
fn download(folder: &Path, progress: &mut dyn Progress) -> Result<(), Error> {
    let lists = folder.join("lists");
    let apt = |args: &[&str], own_lists: bool| {
        let mut command = Command::new("apt-get");
        if own_lists {
            command.arg("-o").arg(format!("Dir::State::Lists={}", lists.display()));
            command.arg("-o").arg(format!("Dir::Cache={}", folder.join("cache").display()));
        }
        // Debian's user for downloads cannot read the cache of root.
        command.args(["-o", "APT::Sandbox::User=root"]).args(args).current_dir(folder).stdin(Stdio::null());
        command
    };
    progress.step("the packages of the node's container runtime", 0, Some(PACKAGES.len()));
    let args = [&["download"], &PACKAGES[..]].concat();
    if run(&mut apt(&args, false), |_| {}).is_ok() {
        return Ok(());
    }
    for part in [lists.join("partial"), folder.join("cache/archives/partial")] {
        fs::create_dir_all(&part).context(|| format!("create {}", part.display()))?;
    }
    run(&mut apt(&["update"], true), |_| {})?;
    run(&mut apt(&args, true), |_| {})?;
    Ok(())
}
