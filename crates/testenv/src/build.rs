//! Builds the servers from the Go module registry, as `control-plane/go.mod` pins them, into the cache.

use crate::error::{Context, Error};
use crate::servers::{NAMES, PINS};
use rustix::fs::{FlockOperation, flock};
use std::collections::{HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// Hears how the build goes, so that minutes of work are minutes of news.
pub trait Progress {
    /// One more step of something that is called `what` and has `total` steps, if that is known.
    fn step(&mut self, what: &str, done: usize, total: Option<usize>);
    /// Something is finished.
    fn done(&mut self, what: &str);
}

/// The module of Cluster API.
const CLUSTER_API: &str = "sigs.k8s.io/cluster-api";

/// The binary of Cluster API's manager.
pub(crate) const MANAGER: &str = "cluster-api-manager";

/// Where Cluster API's main package tells its webhook server where to listen.
const WEBHOOK_OPTIONS: &str = "webhook.Options{";

/// What one binary is made of.
pub(crate) struct Source<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) package: &'a str,
    pub(crate) ldflags: &'a str,
}

/// Lines of a failed command's output that are shown.
const SHOWN_LINES: usize = 30;

/// Builds whatever is missing. Two builds at once wait for each other; a build that was interrupted leaves
/// nothing that looks finished, since each binary gets its name only when it is whole.
pub(crate) fn build(cache: &Path, progress: &mut dyn Progress) -> Result<(), Error> {
    let _lock = prepare(cache)?;
    let bin = cache.join("bin");
    fs::create_dir_all(&bin).context(|| format!("create {}", bin.display()))?;
    let mut compiled = HashSet::new();
    let (folder, ldflags) = (sources(), ldflags());
    for name in NAMES {
        let target = bin.join(name);
        if !target.is_file() {
            let source = Source { folder: &folder, package: &package(name), ldflags: &ldflags };
            build_one(name, &target, &source, &mut compiled, progress)?;
        }
    }
    Ok(())
}

/// Makes sure that there is Go, and that nobody else works on the cache until the lock is dropped.
pub(crate) fn prepare(cache: &Path) -> Result<File, Error> {
    if Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
        return Err(Error::NoGo);
    }
    fs::create_dir_all(cache).context(|| format!("create {}", cache.display()))?;
    let lock = cache.join("lock");
    let lock = File::create(&lock).context(|| format!("create {}", lock.display()))?;
    flock(&lock, FlockOperation::LockExclusive).context(|| "lock the cache".to_owned())?;
    Ok(lock)
}

/// `compiled` are the packages that went into the binaries before: the Go tool compiles them once.
pub(crate) fn build_one(
    name: &str,
    target: &Path,
    source: &Source<'_>,
    compiled: &mut HashSet<String>,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let Source { folder, package, ldflags } = *source;
    let mut list = go(folder, &["list", "-mod=readonly", "-deps", package]);
    let what = format!("{name}: fetching modules");
    let packages = run(&mut list, |done| progress.step(&what, done, None))?;
    let new = packages.lines().filter(|package| compiled.insert((*package).to_owned())).count();

    let partial = target.with_extension("partial");
    let mut build = go(folder, &["build", "-v", "-mod=readonly", "-trimpath", "-ldflags", ldflags, "-o"]);
    build.arg(&partial).arg(package).env("CGO_ENABLED", "0");
    let what = format!("{name}: compiling packages");
    run(&mut build, |done| progress.step(&what, done, Some(new)))?;
    fs::rename(&partial, target).context(|| format!("put {} in its place", target.display()))?;
    progress.done(name);
    Ok(())
}

/// Builds the manager of Cluster API and takes over what its module ships beside the code: taken from there, the
/// definitions always fit the pin.
pub(crate) fn build_cluster_api(cache: &Path, progress: &mut dyn Progress) -> Result<(), Error> {
    let (crds, webhooks, manager) =
        (cluster_api_crd_folder(cache), cluster_api_webhooks(cache), cluster_api_manager(cache));
    if crds.is_dir() && webhooks.is_file() && manager.is_file() {
        return Ok(());
    }
    let _lock = prepare(cache)?;
    let folder = sources().join("cluster-api");
    let what = format!("{CLUSTER_API}: fetching");
    run(&mut go(&folder, &["mod", "download", CLUSTER_API]), |done| progress.step(&what, done, None))?;
    let found =
        run(&mut go(&folder, &["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", CLUSTER_API]), |_| {})?;
    let module = Path::new(found.trim());
    if !crds.is_dir() {
        copy_folder(&module.join("config/crd/bases"), &crds)?;
        progress.done("the CRDs of Cluster API");
    }
    if !webhooks.is_file() {
        let partial = webhooks.with_extension("partial");
        copy_file(&module.join("config/webhook/manifests.yaml"), &partial)?;
        fs::rename(&partial, &webhooks).context(|| format!("put {} in its place", webhooks.display()))?;
    }
    if !manager.is_file() {
        build_manager(module, cache, &manager, progress)?;
    }
    Ok(())
}

/// The manager's webhook server listens on every address of the machine, and no flag changes that. So it is built
/// from a copy of its main package that names one: the single difference from what Cluster API ships. The copy
/// lives in a module below Cluster API's own path, since it imports packages that are internal to it.
fn build_manager(
    module: &Path,
    cache: &Path,
    target: &Path,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let folder = cache.join("cluster-api-manager-source");
    fs::create_dir_all(&folder).context(|| format!("create {}", folder.display()))?;
    let main = module.join("main.go");
    let text = fs::read_to_string(&main).context(|| format!("read {}", main.display()))?;
    let (before, after) = text
        .split_once(WEBHOOK_OPTIONS)
        .filter(|(_, after)| !after.contains(WEBHOOK_OPTIONS))
        .ok_or_else(|| Error::BuildFailed {
            command: "make the webhooks of Cluster API listen on loopback only".to_owned(),
            output: format!("{} does not hold `{WEBHOOK_OPTIONS}` exactly once", main.display()),
        })?;
    let pins = PINS[2].lines().map(|line| match line.strip_prefix("module ") {
        Some(_) => format!("module {CLUSTER_API}/loopback\n"),
        None => format!("{line}\n"),
    });
    for (name, text) in [
        ("main.go", format!("{before}{WEBHOOK_OPTIONS}\n\t\t\t\tHost: \"127.0.0.1\",{after}")),
        ("go.mod", pins.collect()),
        ("go.sum", PINS[3].to_owned()),
    ] {
        let file = folder.join(name);
        fs::write(&file, text).context(|| format!("write {}", file.display()))?;
    }
    let version = pinned(PINS[2], CLUSTER_API);
    let ldflags = format!("-s -w -X {CLUSTER_API}/version.gitVersion={version}");
    let source = Source { folder: &folder, package: ".", ldflags: &ldflags };
    build_one(MANAGER, target, &source, &mut HashSet::new(), progress)
}

fn copy_folder(from: &Path, target: &Path) -> Result<(), Error> {
    let partial = target.with_extension("partial");
    fs::create_dir_all(&partial).context(|| format!("create {}", partial.display()))?;
    let entries = fs::read_dir(from).context(|| format!("read {}", from.display()))?;
    for entry in entries {
        let file = entry.context(|| format!("read {}", from.display()))?.path();
        copy_file(&file, &partial.join(file.file_name().unwrap_or_default()))?;
    }
    fs::rename(&partial, target).context(|| format!("put {} in its place", target.display()))
}

/// Not `fs::copy`: files of the module cache are read-only, and a copy would be too.
fn copy_file(from: &Path, to: &Path) -> Result<(), Error> {
    let text = fs::read(from).context(|| format!("read {}", from.display()))?;
    fs::write(to, text).context(|| format!("write {}", to.display()))
}

/// The webhooks that the manager of Cluster API answers, as its module ships them.
pub(crate) fn cluster_api_webhooks(cache: &Path) -> PathBuf {
    cache.join("cluster-api-webhooks.yaml")
}

/// The manager of Cluster API. It always comes from here, also where somebody supplies the other servers: it must
/// fit the definitions.
pub(crate) fn cluster_api_manager(cache: &Path) -> PathBuf {
    cache.join("bin").join(MANAGER)
}

pub(crate) fn cluster_api_crd_folder(cache: &Path) -> PathBuf {
    cache.join("cluster-api-crds")
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../control-plane")
}

pub(crate) fn package(name: &str) -> String {
    match name {
        "etcd" => "go.etcd.io/etcd/server/v3".to_owned(),
        _ => format!("k8s.io/kubernetes/cmd/{name}"),
    }
}

/// Without these a server built outside the Kubernetes tree reports v0.0.0, and clients that look at the
/// version of a server turn features off.
pub(crate) fn ldflags() -> String {
    let version = pinned(PINS[0], "k8s.io/kubernetes");
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
    let stamp = |package: &str| {
        format!(
            "-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} \
             -X {package}.gitTreeState=clean"
        )
    };
    format!("-s -w {} {}", stamp("k8s.io/component-base/version"), stamp("k8s.io/client-go/pkg/version"))
}

/// The version of a module that a go.mod requires.
fn pinned<'a>(go_mod: &'a str, module: &str) -> &'a str {
    let mut lines = go_mod.lines().map(|line| line.trim().split(' '));
    lines
        .find_map(|mut words| (words.next() == Some(module)).then(|| words.next()).flatten())
        .unwrap_or("v0.0.0")
}

fn go(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.current_dir(folder).args(args).stdin(Stdio::null());
    command
}

/// Runs a command to its end and returns what it printed. `heard` gets the number of lines on its standard
/// error so far: the Go tool prints one for each module it fetches and each package it compiles.
pub(crate) fn run(command: &mut Command, mut heard: impl FnMut(usize)) -> Result<String, Error> {
    let shown = || -> String {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        format!("{} {}", command.get_program().to_string_lossy(), args.join(" "))
    };
    let shown = shown();
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context(|| format!("run `{shown}`"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let collected = thread::spawn(move || -> io::Result<String> {
        let mut text = String::new();
        stdout.map_or(Ok(0), |mut out| out.read_to_string(&mut text))?;
        Ok(text)
    });
    let mut last = VecDeque::new();
    for (count, line) in stderr.into_iter().flat_map(|err| BufReader::new(err).lines()).enumerate() {
        let line = line.context(|| format!("read from `{shown}`"))?;
        heard(count + 1);
        if last.len() == SHOWN_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait().context(|| format!("wait for `{shown}`"))?;
    let stdout =
        collected.join().unwrap_or_else(|_| Ok(String::new())).context(|| format!("read from `{shown}`"))?;
    if status.success() {
        return Ok(stdout);
    }
    Err(Error::BuildFailed { command: shown, output: Vec::from(last).join("\n") })
}
