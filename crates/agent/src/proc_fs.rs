//! `/proc`, through one descriptor of its root.
//!
//! Files are read to their end, whatever their length: the command line of a java program can have a hundred thousand
//! bytes, and what is looked for may stand in the last of them.

use crate::source::{Fate, Name};
use fivespot_core::process::{ProcFile, View};
use rustix::fd::OwnedFd;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Bytes that are read at once: nearly every file ends before.
const CHUNK: usize = 4096;

/// The number after the last, if `kernel/pid_max` cannot be read (`PID_MAX_DEFAULT`, `include/linux/threads.h`).
const PID_MAX_DEFAULT: u32 = 0x8000;

/// What the first pid namespace is called (`PROC_PID_INIT_INO`, `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: &[u8] = b"pid:[4026531836]";

/// A root of `/proc` that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot read {what}: {source}; mount the host's /proc there, or give --proc-root", root.display())]
pub struct ProcError {
    root: PathBuf,
    what: &'static str,
    source: Errno,
}

/// A root of `/proc`.
pub struct ProcFs {
    root: OwnedFd,
    loadavg: OwnedFd,
}

impl ProcFs {
    /// Opens it.
    pub fn open(root: &Path) -> Result<Self, ProcError> {
        let failed = |what| move |source| ProcError { root: root.to_owned(), what, source };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty()).map_err(failed("it"))?;
        let loadavg = rustix::fs::openat(&fd, "loadavg", flags, Mode::empty()).map_err(failed("loadavg"))?;
        let fs = Self { root: fd, loadavg };
        fs.last_pid().map_err(failed("the last process number in loadavg"))?;
        Ok(fs)
    }

    /// The number that was given last, in the pid namespace of the reader: the last field of `loadavg`.
    pub(crate) fn last_pid(&self) -> Result<u32, Errno> {
        let mut buffer = [0; 128];
        let length = rustix::io::pread(&self.loadavg, &mut buffer, 0)?;
        let text = buffer[..length].trim_ascii_end();
        let last = text.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
        number(last).ok_or(Errno::INVAL)
    }

    /// The number after the highest that can be given.
    pub(crate) fn pid_max(&self) -> u32 {
        let mut buffer = Vec::new();
        let read = self.read("sys/kernel/pid_max", &mut buffer);
        read.ok().and_then(|()| number(buffer.trim_ascii_end())).unwrap_or(PID_MAX_DEFAULT)
    }

    /// Whether the reader is where he sees every process: numbers and events are those of his own namespace.
    pub(crate) fn is_in_initial_pid_namespace(&self) -> bool {
        let link = rustix::fs::readlinkat(&self.root, "self/ns/pid", Vec::new());
        link.is_ok_and(|link| link.as_bytes() == INITIAL_PID_NAMESPACE)
    }

    /// The numbers of all processes, lowest first.
    pub(crate) fn pids(&self) -> Result<Vec<u32>, Errno> {
        let mut pids = Vec::new();
        for entry in Dir::read_from(&self.root)? {
            pids.extend(number(entry?.file_name().to_bytes()));
        }
        pids.sort_unstable();
        Ok(pids)
    }

    /// A process, of which nothing has been read yet but what the source of a hint told.
    pub(crate) fn process(&self, pid: u32, name: Option<Name>) -> Process<'_> {
        let told = name.map(|name| name.bytes().to_vec());
        Process { fs: self, pid, told, fate: Fate::Alive, text: Vec::new() }
    }

    fn read(&self, path: &str, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, path, flags, Mode::empty())?;
        let mut length = 0;
        loop {
            buffer.resize(length + CHUNK, 0);
            match rustix::io::read(&file, &mut buffer[length..]) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        buffer.truncate(length);
        Ok(())
    }
}

/// A process, read part by part.
pub(crate) struct Process<'a> {
    fs: &'a ProcFs,
    pid: u32,
    told: Option<Vec<u8>>,
    fate: Fate,
    text: Vec<u8>,
}

impl Process<'_> {
    /// What was seen of it while it was judged.
    pub(crate) fn fate(&self) -> Fate {
        self.fate
    }

    fn part(&mut self, pid: u32, part: &str) -> Option<()> {
        let read = self.fs.read(&format!("{pid}/{part}"), &mut self.text).ok();
        if read.is_none() && pid == self.pid {
            self.fate = Fate::Absent;
        }
        read
    }
}

impl View for Process<'_> {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn name(&mut self) -> Option<&[u8]> {
        if self.told.is_some() {
            return self.told.as_deref();
        }
        self.part(self.pid, "comm")?;
        Some(self.text.strip_suffix(b"\n").unwrap_or(&self.text))
    }

    fn command_line(&mut self) -> Option<&[u8]> {
        self.part(self.pid, "cmdline")?;
        if self.text.is_empty() {
            self.fate = Fate::Blank;
        }
        Some(&self.text)
    }

    fn status(&mut self) -> Option<&[u8]> {
        self.part(self.pid, "status")?;
        Some(&self.text)
    }

    fn groups(&mut self) -> Option<&[u8]> {
        self.part(self.pid, "cgroup")?;
        Some(&self.text)
    }

    fn groups_of_init(&mut self) -> Option<&[u8]> {
        self.part(1, "cgroup")?;
        Some(&self.text)
    }

    fn file_of(&mut self, pid: u32, file: ProcFile) -> Option<&[u8]> {
        let name = match file {
            ProcFile::Stat => "stat",
            ProcFile::Status => "status",
            ProcFile::Groups => "cgroup",
        };
        self.part(pid, name)?;
        Some(&self.text)
    }
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_its_end() {
        let root = tempfile::tempdir().unwrap();
        let long = "x".repeat(120_000);
        std::fs::create_dir(root.path().join("7")).unwrap();
        std::fs::write(root.path().join("7/cmdline"), &long).unwrap();
        std::fs::write(root.path().join("7/stat"), "7 (java) S 3").unwrap();
        std::fs::write(root.path().join("loadavg"), "0.00 0.01 0.05 1/234 4711\n").unwrap();
        let fs = ProcFs::open(root.path()).unwrap();
        assert_eq!(fs.last_pid(), Ok(4711));
        assert_eq!(fs.pid_max(), PID_MAX_DEFAULT);
        assert_eq!(fs.pids(), Ok(vec![7]));
        let mut process = fs.process(7, Some(Name::new(b"java")));
        assert_eq!(process.name(), Some(&b"java"[..]));
        assert_eq!(process.command_line(), Some(long.as_bytes()));
        assert_eq!(process.file_of(7, ProcFile::Stat), Some(&b"7 (java) S 3"[..]));
        // A parent that is gone says nothing about the process.
        assert_eq!(process.file_of(3, ProcFile::Stat), None);
        assert_eq!(process.fate(), Fate::Alive);
        assert_eq!(process.groups(), None);
        assert_eq!(process.fate(), Fate::Absent);
    }

    #[test]
    fn a_root_that_is_no_proc_is_refused_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        let error = ProcFs::open(root.path()).err().unwrap().to_string();
        assert!(error.contains("cannot read loadavg") && error.contains("--proc-root"), "{error}");
    }
}
