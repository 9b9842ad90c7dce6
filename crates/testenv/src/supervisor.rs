//! The process that outlives this one by a moment, to clean up after it.
//!
//! A destructor does not run when a test is killed, and the kernel's parent-death signal follows a thread,
//! not a process. A pipe has neither weakness: its end is seen whenever the last writer is gone.

use crate::error::{Context, Error};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const SCRIPT: &str = include_str!("supervisor.sh");

/// Time a supervisor gets to do what it is asked: it has only to make a folder or to fork.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lines of a log that an error shows.
const SHOWN_LINES: usize = 15;

/// Servers in one folder, and their end.
#[derive(Debug)]
pub(crate) struct Supervisor {
    folder: PathBuf,
    child: Mutex<Child>,
    input: Option<ChildStdin>,
}

impl Supervisor {
    /// Makes `folder`, which must not exist and will be removed in the end.
    pub(crate) fn start(folder: &Path) -> Result<Self, Error> {
        Self::start_with(folder, None)
    }

    /// The same with something to do when the servers have ended: a shell script and its argument.
    pub(crate) fn start_with(folder: &Path, clean_up: Option<(&str, &str)>) -> Result<Self, Error> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "5spot-supervisor"])
            .arg(folder)
            .args(clean_up.map(|(script, argument)| [script, argument]).into_iter().flatten())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A group of its own: what is sent to the group of a test does not reach it.
            .process_group(0)
            .spawn()
            .context(|| "start the supervisor, `sh`".to_owned())?;
        let input = child.stdin.take();
        let supervisor = Self { folder: folder.to_owned(), child: Mutex::new(child), input };
        supervisor.wait_for_pid("supervisor")?;
        Ok(supervisor)
    }

    /// The supervisor that still runs in a folder, if any.
    pub(crate) fn running(folder: &Path) -> Option<u32> {
        let pid = fs::read_to_string(folder.join("run/supervisor.pid")).ok()?.trim().parse().ok()?;
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        command.contains("5spot-supervisor").then_some(pid)
    }

    /// Whether a folder is one that a supervisor made.
    pub(crate) fn was_here(folder: &Path) -> bool {
        folder.join("run/supervisor.pid").is_file()
    }

    /// Starts a server under a name.
    pub(crate) fn spawn(&self, name: &str, program: &Path, args: &[String]) -> Result<(), Error> {
        let words = [program.to_string_lossy().into_owned()].into_iter().chain(args.iter().cloned());
        let line: Vec<String> = words.map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        let file = self.folder.join("run").join(name);
        fs::write(&file, format!("exec {}\n", line.join(" ")))
            .context(|| format!("write {}", file.display()))?;
        self.spawn_again(name)
    }

    /// Starts a server once more that ended. Its log goes on where it was.
    pub(crate) fn spawn_again(&self, name: &str) -> Result<(), Error> {
        let pid = self.pid_file(name);
        if pid.exists() {
            fs::remove_file(&pid).context(|| format!("remove {}", pid.display()))?;
        }
        let mut input = self.input.as_ref().ok_or_else(|| ended("the supervisor", ""))?;
        writeln!(input, "{name}").context(|| format!("ask the supervisor for {name}"))?;
        self.wait_for_pid(name)
    }

    /// Waits until the supervisor has told the process number of `name`, itself included.
    fn wait_for_pid(&self, name: &str) -> Result<(), Error> {
        let asked = Instant::now();
        while self.pid(name).is_none() {
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            if child.try_wait().context(|| "look at the supervisor".to_owned())?.is_some() {
                let mut said = String::new();
                if let Some(stderr) = child.stderr.as_mut() {
                    stderr.read_to_string(&mut said).context(|| "hear the supervisor".to_owned())?;
                }
                return Err(ended("the supervisor", &said));
            }
            drop(child);
            if asked.elapsed() > PATIENCE {
                return Err(Error::SupervisorSilent { waited: PATIENCE });
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// An error if a server has ended.
    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        let pid = self.pid(name).unwrap_or_default();
        // A process that ended but was not waited for is still listed, in state Z.
        match state(&PathBuf::from(format!("/proc/{pid}"))) {
            None | Some('Z' | 'X') => Err(ended(name, &self.log(name))),
            Some(_) => Ok(()),
        }
    }

    /// Sends a signal to a server that runs.
    pub(crate) fn signal(&self, name: &str, signal: Signal) -> Result<(), Error> {
        self.check(name)?;
        let pid = self.pid(name).and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| ended(name, &self.log(name)))?;
        kill_process(pid, signal).context(|| format!("send {signal:?} to {name}"))
    }

    /// Halts a server, and returns when every thread of it has stopped: until then it may still answer.
    pub(crate) fn freeze(&self, name: &str) -> Result<(), Error> {
        self.signal(name, Signal::STOP)?;
        let asked = Instant::now();
        while !self.is_stopped(name) {
            if asked.elapsed() > PATIENCE {
                return Err(Error::SupervisorSilent { waited: PATIENCE });
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn is_stopped(&self, name: &str) -> bool {
        let tasks = format!("/proc/{}/task", self.pid(name).unwrap_or_default());
        let states = fs::read_dir(tasks).into_iter().flatten().flatten().map(|task| state(&task.path()));
        states.into_iter().all(|state| matches!(state, None | Some('T')))
    }

    /// Ends a server, as the kernel does when memory is short, and returns when it is gone.
    pub(crate) fn kill(&self, name: &str) -> Result<(), Error> {
        self.signal(name, Signal::KILL)?;
        let asked = Instant::now();
        while self.check(name).is_ok() {
            if asked.elapsed() > PATIENCE {
                return Err(Error::SupervisorSilent { waited: PATIENCE });
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The end of a server's log.
    pub(crate) fn log(&self, name: &str) -> String {
        let text =
            fs::read_to_string(self.folder.join("logs").join(format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }

    /// The number of a server's process.
    pub(crate) fn pid(&self, name: &str) -> Option<u32> {
        fs::read_to_string(self.pid_file(name)).ok()?.trim().parse().ok()
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.folder.join("run").join(format!("{name}.pid"))
    }
}

impl Drop for Supervisor {
    /// Ends the servers and waits until they and the folder are gone.
    fn drop(&mut self) {
        drop(self.input.take());
        // Nothing useful can be done about an error here; the supervisor works on without us.
        let _ = self.child.get_mut().unwrap_or_else(PoisonError::into_inner).wait();
    }
}

/// The state of a process or a thread. It follows the name, which is in brackets and may hold anything.
fn state(process: &Path) -> Option<char> {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next()
}

fn ended(server: &str, log: &str) -> Error {
    Error::ServerEnded { server: server.to_owned(), log: log.to_owned() }
}
