//! A program of ours, run by a test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "called by tests alone: the line that fails is the message"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a start may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Lines of a log that are shown if a test fails.
const SHOWN: usize = 200;

/// Ends the program when nobody holds the other end of its input any more.
const WRAPPER: &str = r#"folder=$1; shift
"$@" </dev/null >/dev/null 2>>"$folder/log" & echo $! >"$folder/pid.tmp"; mv "$folder/pid.tmp" "$folder/pid"
cat >/dev/null; kill -9 "$!" 2>/dev/null; wait"#;

/// A program that serves until it is asked to end. It ends with this value, and with the process of the test in any case.
pub struct Daemon {
    wrapper: Child,
    folder: PathBuf,
}

impl Daemon {
    /// Starts a program in `folder`, which has its log, and waits until it says that it listens. `change` says what is
    /// run: its arguments and environment.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(folder: &Path, change: impl FnOnce(&mut Command)) -> Self {
        fs::create_dir_all(folder).unwrap();
        for old in ["pid", "log"] {
            let _ = fs::remove_file(folder.join(old));
        }
        let mut command = Command::new("sh");
        command.args(["-c", WRAPPER, "daemon"]).arg(folder);
        change(&mut command);
        let wrapper = command.stdin(Stdio::piped()).spawn().unwrap();
        let daemon = Self { wrapper, folder: folder.to_owned() };
        let began = Instant::now();
        while !(daemon.log().contains("listening") && daemon.folder.join("pid").exists()) {
            let has_failed = daemon.folder.join("pid").exists() && !daemon.runs();
            let is_slow = began.elapsed() > PATIENCE;
            assert!(!is_slow && !has_failed, "it does not start:\n{}", daemon.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    /// What it has said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The number of its process.
    ///
    /// # Panics
    /// If it never ran.
    pub fn pid(&self) -> i32 {
        fs::read_to_string(self.folder.join("pid")).unwrap().trim().parse().unwrap()
    }

    /// Sends it a signal, such as `-TERM`.
    ///
    /// # Panics
    /// If it does not run any more.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
        !matches!(state, None | Some('Z' | 'X'))
    }

    /// Resident memory, in KiB, at its highest.
    pub fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).unwrap_or_default()
    }

    /// Sockets that it has open now.
    pub fn sockets(&self) -> usize {
        let files = fs::read_dir(format!("/proc/{}/fd", self.pid())).into_iter().flatten().flatten();
        let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }

    /// The port that its log names in `field`, such as `port`.
    ///
    /// # Panics
    /// If it does not listen on one.
    pub fn port(&self, field: &str) -> u16 {
        let (log, field) = (self.log(), format!("{field}="));
        let port = log.split(&field).nth(1).expect("it listens").split_whitespace().next().unwrap();
        port.parse().unwrap()
    }

    /// What a path answers on the port that its log names in `field`, such as `port`: status and text.
    ///
    /// # Panics
    /// If nobody answers.
    pub fn http(&self, field: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port(field))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.wrapper.stdin.take());
        let _ = self.wrapper.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(SHOWN)..];
            eprintln!("--- {} said:\n{}", self.folder.display(), last.join("\n"));
        }
    }
}
