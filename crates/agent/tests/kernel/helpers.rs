//! Helpers of the node and of the kernel quote what a guest chose, and are not the owner. Programs of the owner are,
//! wherever they run.

use crate::beside_others;
use crate::harness::{
    Agent, DETECTORS, Program, QUIET, Running, both, may_run, run_agent, skipped, token, until,
};
use crate::pods::{Groups, fake};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the kernel may take to start a helper.
const KERNEL_PATIENCE: Duration = Duration::from_secs(5);

/// A program that runs `$RUN` as its child, and so is the parent under whatever name it has.
fn parent(name: &str) -> Program {
    Program::new(OsStr::new(name), b"#!/bin/sh\neval \"$RUN\"\n:\n")
}

/// A program that stays, whatever its arguments quote.
fn stays(name: &str) -> Program {
    Program::new(OsStr::new(name), b"#!/bin/sh\nwhile :; do sleep 1; done\n")
}

/// The processes that quote a token in their command line, which end with this value.
struct Quoting<'a>(&'a str);

impl Quoting<'_> {
    fn pids(&self) -> Vec<i32> {
        let folders =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        let quotes = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(self.0)
        };
        folders.filter_map(|name| name.parse().ok()).filter(quotes).collect()
    }
}

impl Drop for Quoting<'_> {
    fn drop(&mut self) {
        for pid in self.pids().into_iter().filter_map(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn parent_of(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap_or_default().trim().to_owned()
}

/// Something that is started, and how.
struct Start {
    what: &'static str,
    /// Program and arguments that run the parent, such as `setsid`.
    prefix: &'static [&'static str],
    parent: &'static str,
    /// What the parent runs. `$PROGRAM` is the program, `$QUOTE` an argument that contains the token, `$GROUP` the
    /// control group.
    run: &'static str,
    /// A control group, if it is not that of the test.
    group: Option<&'static str>,
}

impl Start {
    fn go(&self, parent: &Program, program: &Program, quote: &str) -> Running {
        let words: Vec<&str> = self.prefix.iter().copied().chain([parent.path().to_str().unwrap()]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("RUN", self.run).env("PROGRAM", program.path()).env("QUOTE", quote);
        // A shell says there that its child was ended.
        command.stderr(Stdio::null());
        if let Some(group) = self.group {
            command.env("GROUP", Groups::root().join(group));
        }
        Running::start(&mut command)
    }
}

const HELPERS: [Start; 6] = [
    Start {
        what: "mount of the kubelet",
        prefix: &[],
        parent: "kubelet",
        run: r#""$PROGRAM" -t tmpfs "$QUOTE""#,
        group: None,
    },
    Start {
        what: "helper of a plugin of containerd",
        prefix: &[],
        parent: "containerd",
        run: r#"sh -c '"$PROGRAM" "$QUOTE"; :'"#,
        group: None,
    },
    Start {
        what: "helper of k0s",
        prefix: &["setsid"],
        parent: "k0s",
        run: r#""$PROGRAM" "$QUOTE""#,
        group: None,
    },
    Start {
        what: "mount of the kubelet in a scope of its own",
        prefix: &[],
        parent: "kubelet",
        run: r#"sh -c 'echo $$ >"$GROUP/cgroup.procs" && exec "$PROGRAM" "$QUOTE"'"#,
        group: Some("system.slice/run-r5spot.scope"),
    },
    Start {
        what: "helper of the kubelet whose parent is gone",
        prefix: &["setsid"],
        parent: "kubelet",
        run: r#"sh -c '"$PROGRAM" "$QUOTE" &'; sleep 60"#,
        group: None,
    },
    Start {
        what: "helper in the unit of k0s whose parent and session are gone",
        prefix: &[],
        parent: "k0s",
        run: r#"echo $$ >"$GROUP/cgroup.procs"; setsid "$PROGRAM" "$QUOTE" & exit"#,
        group: Some("system.slice/k0sworker.service"),
    },
];

#[test]
fn a_helper_of_a_node_service_is_not_the_owner() {
    let test = "a_helper_of_a_node_service_is_not_the_owner";
    if !may_run(test) {
        return;
    }
    let _listeners = beside_others();
    let paths: Vec<&str> = HELPERS.iter().filter_map(|start| start.group).collect();
    let _groups = match Groups::make(&paths) {
        Ok(groups) => groups,
        Err(error) => return skipped(test, &format!("control groups cannot be made: {error}")),
    };
    let (mount, tokens) = (stays("mount"), HELPERS.map(|_| token()));
    let patterns: Vec<&str> = tokens.iter().map(String::as_str).collect();
    for detector in DETECTORS {
        let agent = Agent::try_out(&both(&patterns), detector);
        let parents = HELPERS.map(|start| parent(start.parent));
        let quoting: Vec<Quoting<'_>> = patterns.iter().map(|token| Quoting(token)).collect();
        let mut running = Vec::new();
        for ((start, parent), token) in HELPERS.iter().zip(&parents).zip(&tokens) {
            running.push(start.go(parent, &mount, &format!("/var/lib/kubelet/pods/1/volumes/{token}-cache")));
        }
        for (start, quoting) in HELPERS.iter().zip(&quoting) {
            until(start.what, || !quoting.pids().is_empty());
        }
        std::thread::sleep(QUIET);
        let mistaken: Vec<&str> = HELPERS
            .iter()
            .zip(&tokens)
            .filter(|(_, token)| agent.has_seen(token))
            .map(|(start, _)| start.what)
            .collect();
        // The log may tell of the last alone if several match at once.
        let matches = agent.metric("fivespot_agent_matches_total");
        assert_eq!(matches, 0, "{detector}: taken for the owner, among others: {mistaken:?}");
        for (start, quoting) in HELPERS.iter().zip(&quoting) {
            assert!(!quoting.pids().is_empty(), "{} has ended", start.what);
        }
        // A program of the owner beside them is found.
        let owners = Program::sleeper(patterns[0]);
        let _owner = owners.run();
        agent.sees(patterns[0]);
        drop((running, quoting));
    }
}

/// A hierarchy of control groups of the test's own, without controllers. Before version 2 the kernel runs a program of
/// root's choice whenever a group in it empties, with the name of the group: a helper such as `modprobe`, started by
/// the same function of the kernel (`call_usermodehelper`).
struct Hierarchy {
    folder: tempfile::TempDir,
    name: String,
}

impl Hierarchy {
    fn mount(name: &str) -> Result<Self, String> {
        let this = Self { folder: tempfile::tempdir().unwrap(), name: name.to_owned() };
        this.mount_again().map(|()| this)
    }

    fn mount_again(&self) -> Result<(), String> {
        let options = format!("none,name={}", self.name);
        let mount = Command::new("mount")
            .args(["-t", "cgroup", "-o", &options, "none"])
            .arg(self.folder.path())
            .output();
        let output = mount.map_err(|error| error.to_string())?;
        output
            .status
            .success()
            .then_some(())
            .ok_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    fn unmount(&self) {
        let _ = Command::new("umount").arg(self.folder.path()).status();
    }

    /// Makes a group, lets a process run in it, and has `helper` told when it is empty.
    fn empty_a_group(&self, group: &str, helper: &Path) -> std::io::Result<()> {
        fs::write(self.folder.path().join("release_agent"), helper.to_str().unwrap())?;
        let folder = self.folder.path().join(group);
        fs::create_dir(&folder)?;
        fs::write(folder.join("notify_on_release"), "1")?;
        let running = Running::start(Command::new("sleep").arg("60"));
        fs::write(folder.join("cgroup.procs"), running.pid().to_string())
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        for group in fs::read_dir(self.folder.path()).unwrap().flatten() {
            let _ = fs::remove_dir(group.path());
        }
        self.unmount();
        // A hierarchy goes when it is unmounted without groups, and a removed group lives on for a moment.
        let stays = || fs::read_to_string("/proc/self/cgroup").unwrap().contains(&self.name);
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(20));
            if !stays() || self.mount_again().is_err() {
                break;
            }
            self.unmount();
        }
    }
}

#[test]
fn a_helper_of_the_kernel_is_not_the_owner() {
    let test = "a_helper_of_the_kernel_is_not_the_owner";
    if !may_run(test) {
        return;
    }
    let _listeners = beside_others();
    for detector in DETECTORS {
        let hierarchy = match Hierarchy::mount(&format!("5spot-{}", token())) {
            Ok(hierarchy) => hierarchy,
            Err(why) => {
                return skipped(test, &format!("no hierarchy of control groups can be mounted: {why}"));
            }
        };
        let token = token();
        // As modprobe does by its `install` lines, it runs another program with what it was told.
        let again = "#!/bin/sh\nsh -c 'while :; do sleep 1; done' sh \"$1\"\n";
        let helper = Program::new(OsStr::new("modprobe"), again.as_bytes());
        let agent = Agent::try_out(&both(&[&token]), detector);
        let quoting = Quoting(&token);
        if let Err(error) = hierarchy.empty_a_group(&format!("algif-{token}"), helper.path()) {
            return skipped(test, &format!("a group cannot tell that it is empty: {error}"));
        }
        let began = Instant::now();
        while quoting.pids().len() < 2 {
            if began.elapsed() > KERNEL_PATIENCE {
                return skipped(test, "this kernel does not run its helpers");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let parents: Vec<String> = quoting.pids().into_iter().map(parent_of).collect();
        assert!(parents.contains(&"2".to_owned()), "the kernel did not start it: {parents:?}");
        std::thread::sleep(QUIET);
        let matches = agent.metric("fivespot_agent_matches_total");
        assert_eq!(matches, 0, "{detector}: a helper of the kernel was taken for the owner");
        assert_eq!(quoting.pids().len(), 2, "it has ended");
        let owners = Program::sleeper(&token);
        let _owner = owners.run();
        agent.sees(&token);
        drop(quoting);
    }
}

const OWNERS: [Start; 7] = [
    Start {
        what: "program whose parent is gone",
        prefix: &[],
        parent: "bash",
        run: r#""$PROGRAM" 60 & exit"#,
        group: None,
    },
    Start {
        what: "program in a session of its own whose parent is gone",
        prefix: &[],
        parent: "bash",
        run: r#"setsid "$PROGRAM" 60 & exit"#,
        group: None,
    },
    Start {
        what: "program of a shell in the unit of sshd",
        prefix: &["setsid"],
        parent: "sshd",
        run: r#"echo $$ >"$GROUP/cgroup.procs"; "$PROGRAM" 60"#,
        group: Some("system.slice/ssh.service"),
    },
    Start {
        what: "program of a terminal that was adopted, in the unit of a display manager",
        prefix: &[],
        parent: "tmux",
        run: r#"echo $$ >"$GROUP/cgroup.procs"; setsid sh -c '"$PROGRAM" 60; :' & exit"#,
        group: Some("system.slice/gdm.service"),
    },
    Start {
        what: "program of a shell of k0s in a terminal",
        prefix: &["script", "--quiet", "/dev/null", "--command"],
        parent: "k0s",
        run: r#"sh -c '"$PROGRAM" 60; :'"#,
        group: None,
    },
    Start {
        what: "program in a container of a user",
        prefix: &["setpriv", "--reuid=65534", "--clear-groups"],
        parent: "conmon",
        run: r#""$PROGRAM" 60"#,
        group: None,
    },
    Start {
        what: "program in a container of Docker",
        prefix: &["setsid"],
        parent: "containerd-shim",
        run: r#"sh -c 'echo $$ >"$GROUP/cgroup.procs" && exec "$PROGRAM" 60'"#,
        group: Some("docker/5b07"),
    },
];

#[test]
fn a_program_of_the_owner_is_found_wherever_it_runs() {
    let test = "a_program_of_the_owner_is_found_wherever_it_runs";
    if !may_run(test) {
        return;
    }
    let _listeners = beside_others();
    let paths: Vec<&str> = OWNERS.iter().filter_map(|start| start.group).collect();
    let _groups = match Groups::make(&paths) {
        Ok(groups) => groups,
        Err(error) => return skipped(test, &format!("control groups cannot be made: {error}")),
    };
    for detector in DETECTORS {
        let tokens = OWNERS.map(|_| token());
        let patterns: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let agent = Agent::try_out(&both(&patterns), detector);
        for (start, token) in OWNERS.iter().zip(&tokens) {
            let (parent, program, quoting) = (parent(start.parent), Program::sleeper(token), Quoting(token));
            let running = start.go(&parent, &program, "");
            until(start.what, || !quoting.pids().is_empty());
            until(&format!("{detector} has seen the {}", start.what), || agent.has_seen(token));
            drop((quoting, running));
        }
    }
}

/// Puts a process into a made-up `/proc` whose command line quotes `java`.
fn fake_helper(root: &Path, pid: u32, name: &str, stat: &str) {
    fake(root, pid, name, "0::/\n");
    fs::write(root.join(format!("{pid}/cmdline")), "helper\0-q\0--\0algif-java\0").unwrap();
    fs::write(root.join(format!("{pid}/stat")), format!("{pid} ({name}) S {stat}\n")).unwrap();
}

/// The kernel that runs the tests may have no modules: this is what Debian's 6.12 shows.
#[test]
fn a_helper_of_the_kernel_is_known_in_a_made_up_proc() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("c.toml");
    fs::write(&config, both(&["java"])).unwrap();
    let root = folder.path().join("proc");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("loadavg"), "0.0 0.0 0.0 1/1 44\n").unwrap();
    let look = || {
        let args = ["--oneshot", "--config", config.to_str().unwrap(), "--proc-root", root.to_str().unwrap()];
        run_agent(&[], &args)
    };
    for (pid, name, stat) in [
        (1, "systemd", "0 1 1 0 -1 4194560 0"),
        (2, "kthreadd", "0 0 0 0 -1 2129984 0"),
        (57, "kworker/u8:3-events_unbound", "2 0 0 0 -1 69238880 0"),
    ] {
        fake(&root, pid, name, "0::/\n");
        fs::write(root.join(format!("{pid}/stat")), format!("{pid} ({name}) S {stat}\n")).unwrap();
    }
    fake_helper(&root, 901, "modprobe", "57 0 0 0 -1 4194560 0");
    fake_helper(&root, 902, "systemd-coredum", "2 0 0 0 -1 4194560 0");
    fake_helper(&root, 903, "apport-child", "1 0 0 0 -1 4194304 0");
    let (code, said) = look();
    assert_eq!(code, Some(1), "{said}");
    fake_helper(&root, 904, "sh", "1 904 904 0 -1 4194304 0");
    let (code, said) = look();
    assert_eq!(code, Some(0), "{said}");
}
