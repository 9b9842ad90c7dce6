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

/// Lines of a failed command's output that are shown.
const SHOWN_LINES: usize = 30;

/// Builds whatever is missing. Two builds at once wait for each other; a build that was interrupted leaves
/// nothing that looks finished, since each binary gets its name only when it is whole.
pub(crate) fn build(cache: &Path, progress: &mut dyn Progress) -> Result<(), Error> {
    let _lock = prepare(cache)?;
    let bin = cache.join("bin");
    fs::create_dir_all(&bin).context(|| format!("create {}", bin.display()))?;
    let mut compiled = HashSet::new();
    for name in NAMES {
        let target = bin.join(name);
        if !target.is_file() {
            build_one(name, &target, &mut compiled, progress)?;
        }
    }
    Ok(())
}

/// Makes sure that there is Go, and that nobody else works on the cache until the lock is dropped.
fn prepare(cache: &Path) -> Result<File, Error> {
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
fn build_one(
    name: &str,
    target: &Path,
    compiled: &mut HashSet<String>,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let package = package(name);
    let folder = sources();
    let mut list = go(&folder, &["list", "-mod=readonly", "-deps", &package]);
    let what = format!("{name}: fetching modules");
    let packages = run(&mut list, |done| progress.step(&what, done, None))?;
    let new = packages.lines().filter(|package| compiled.insert((*package).to_owned())).count();

    let partial = target.with_extension("partial");
    let mut build = go(&folder, &["build", "-v", "-mod=readonly", "-trimpath", "-ldflags", &ldflags(), "-o"]);
    build.arg(&partial).arg(&package).env("CGO_ENABLED", "0");
    let what = format!("{name}: compiling packages");
    run(&mut build, |done| progress.step(&what, done, Some(new)))?;
    fs::rename(&partial, target).context(|| format!("put {} in its place", target.display()))?;
    progress.done(name);
    Ok(())
}

/// Cluster API ships its CRDs in the module, beside the code: taken from there, they always fit the pin.
pub(crate) fn copy_cluster_api_crds(cache: &Path, progress: &mut dyn Progress) -> Result<(), Error> {
    let target = cluster_api_crd_folder(cache);
    if target.is_dir() {
        return Ok(());
    }
    let _lock = prepare(cache)?;
    let module = "sigs.k8s.io/cluster-api";
    let folder = sources().join("cluster-api");
    let what = format!("{module}: fetching");
    run(&mut go(&folder, &["mod", "download", module]), |done| progress.step(&what, done, None))?;
    let found = run(&mut go(&folder, &["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module]), |_| {})?;
    let bases = Path::new(found.trim()).join("config/crd/bases");
    let partial = target.with_extension("partial");
    fs::create_dir_all(&partial).context(|| format!("create {}", partial.display()))?;
    let entries = fs::read_dir(&bases).context(|| format!("read {}", bases.display()))?;
    for entry in entries {
        let from = entry.context(|| format!("read {}", bases.display()))?.path();
        let to = partial.join(from.file_name().unwrap_or_default());
        let text = fs::read(&from).context(|| format!("read {}", from.display()))?;
        fs::write(&to, text).context(|| format!("write {}", to.display()))?;
    }
    fs::rename(&partial, &target).context(|| format!("put {} in its place", target.display()))?;
    progress.done("the CRDs of Cluster API");
    Ok(())
}

pub(crate) fn cluster_api_crd_folder(cache: &Path) -> PathBuf {
    cache.join("cluster-api-crds")
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../control-plane")
}

fn package(name: &str) -> String {
    match name {
        "etcd" => "go.etcd.io/etcd/server/v3".to_owned(),
        _ => format!("k8s.io/kubernetes/cmd/{name}"),
    }
}

/// Without these a server built outside the Kubernetes tree reports v0.0.0, and clients that look at the
/// version of a server turn features off.
fn ldflags() -> String {
    let version =
        PINS[0].lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes ")).unwrap_or("v0.0.0");
    let version = version.split(' ').next().unwrap_or(version);
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

fn go(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.current_dir(folder).args(args).stdin(Stdio::null());
    command
}

/// Runs a command to its end and returns what it printed. `heard` gets the number of lines on its standard
/// error so far: the Go tool prints one for each module it fetches and each package it compiles.
fn run(command: &mut Command, mut heard: impl FnMut(usize)) -> Result<String, Error> {
    let shown = || -> String {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        format!("go {}", args.join(" "))
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
