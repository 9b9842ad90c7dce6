//! The real agent as a process of its own, programs for it to find, and what a test does with them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests: the line that fails is the message"
)]

use fivespot_testenv::Daemon;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take that should happen soon.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long to wait for what should not happen: some looks of a poll, less than the time to the next full scan.
pub(crate) const QUIET: Duration = Duration::from_millis(1500);

/// Both detectors.
pub(crate) const DETECTORS: [&str; 2] = ["netlink", "poll"];

/// Says that a test did not run, and why.
pub(crate) fn skipped(test: &str, why: &str) {
    fivespot_testenv::skipped(env!("CARGO_TARGET_TMPDIR"), test, why);
}

/// Whether this process may do what a test on the real kernel must; says so if not.
pub(crate) fn may_run(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(test, "needs root");
    }
    is_root
}

/// A name of which no other process knows: ten characters.
pub(crate) fn token() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) % 1000;
    format!("zq{:05x}{count:03}", std::process::id() % 0x10_0000)
}

/// Waits for something that comes true a moment later.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "still not true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An agent.
pub(crate) struct Agent {
    daemon: Daemon,
    /// Its configuration and its log.
    _folder: TempDir,
}

impl Deref for Agent {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_5spot-reclaim-agent")
}

/// A configuration that looks for `patterns` in both ways.
pub(crate) fn both(patterns: &[&str]) -> String {
    format!("match_commands = {patterns:?}\nmatch_argv_substrings = {patterns:?}\n")
}

impl Agent {
    /// One that looks for what `config` says and tells its log alone.
    pub(crate) fn try_out(config: &str, detector: &str) -> Self {
        Self::try_out_by(&[], config, detector)
    }

    /// The same, started by another program, such as `unshare -n`.
    pub(crate) fn try_out_by(prefix: &[&str], config: &str, detector: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Another user may have to read it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = folder.path().join("reclaim.toml");
        fs::write(&file, config).unwrap();
        let file = file.to_str().unwrap().to_owned();
        Self::start(folder, prefix, &["--config", &file, "--detector", detector])
    }

    pub(crate) fn start(folder: TempDir, prefix: &[&str], args: &[&str]) -> Self {
        let daemon = Daemon::start(folder.path(), |command| {
            command.args(prefix).args([binary(), "--health-port=0"]).args(args);
        });
        Self { daemon, _folder: folder }
    }

    /// Whether a line tells of this pattern.
    pub(crate) fn has_seen(&self, pattern: &str) -> bool {
        self.log().contains(&format!("a process matches pattern={pattern:?}"))
    }

    /// Waits until a line does.
    pub(crate) fn sees(&self, pattern: &str) {
        let began = Instant::now();
        while !self.has_seen(pattern) {
            let log = self.log();
            assert!(
                began.elapsed() < PATIENCE,
                "{pattern} has not been seen:\n{log}\n{}",
                self.http("/metrics").1
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A number from `/metrics`, by the beginning of its line.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.http("/metrics").1;
        let line =
            text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    }

    /// What an HTTP path answers: status and text.
    pub(crate) fn http(&self, path: &str) -> (u16, String) {
        self.daemon.http("port", path)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Asked first, so that it unsubscribes.
        if self.runs() {
            self.signal("-TERM");
        }
        let began = Instant::now();
        while self.runs() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs an agent that ends by itself: its code and what it said.
pub(crate) fn run_agent(prefix: &[&str], args: &[&str]) -> (Option<i32>, String) {
    let all: Vec<&str> = prefix.iter().copied().chain([binary()]).chain(args.iter().copied()).collect();
    let output = Command::new(all[0]).args(&all[1..]).env_remove("NODE_NAME").output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The program `sleep`.
pub(crate) fn sleep() -> Vec<u8> {
    let found = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| Path::new(path).exists());
    fs::read(found.unwrap()).unwrap()
}

/// A program on disk, with a name of its own.
pub(crate) struct Program {
    _folder: TempDir,
    path: PathBuf,
}

impl Program {
    /// A copy of `sleep`.
    pub(crate) fn sleeper(name: impl AsRef<OsStr>) -> Self {
        Self::new(name.as_ref(), &sleep())
    }

    /// A script, which waits for the end of its input.
    pub(crate) fn script(name: &str, interpreter: &str) -> Self {
        Self::new(OsStr::new(name), format!("#!{interpreter}\nread x\n").as_bytes())
    }

    pub(crate) fn new(name: &OsStr, content: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Another user may have to run it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { _folder: folder, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs for a minute, or as long as this value lives.
    pub(crate) fn run(&self) -> Running {
        self.run_for("60")
    }

    pub(crate) fn run_for(&self, seconds: &str) -> Running {
        Running::start(Command::new(&self.path).arg(seconds))
    }

    /// The same under another `argv[0]`.
    pub(crate) fn run_as(&self, name: &[u8]) -> Running {
        Running::start(Command::new(&self.path).arg0(OsStr::from_bytes(name)).arg("60"))
    }
}

/// A process that ends with this value.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped());
        loop {
            match command.spawn() {
                Ok(child) => return Self(child),
                // Another thread of the test has forked while the program was written, and its child holds the file.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
