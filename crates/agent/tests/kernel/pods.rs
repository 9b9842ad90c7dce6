//! What runs in a pod is not what its owner started, wherever the agent looks from.

use crate::beside_others;
use crate::harness::{Agent, DETECTORS, Program, QUIET, Running, both, may_run, run_agent, skipped, token};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tree of control groups that goes with this value.
pub(crate) struct Groups {
    made: Vec<PathBuf>,
}

impl Groups {
    pub(crate) fn root() -> PathBuf {
        let whole = PathBuf::from("/sys/fs/cgroup");
        if whole.join("cgroup.procs").exists() { whole } else { whole.join("unified") }
    }

    /// Makes `paths` with all they are in.
    pub(crate) fn make(paths: &[&str]) -> std::io::Result<Self> {
        let mut groups = Self { made: Vec::new() };
        for path in paths {
            let mut folder = Self::root();
            for part in path.split('/') {
                folder.push(part);
                if !folder.exists() {
                    fs::create_dir(&folder)?;
                    groups.made.push(folder.clone());
                }
            }
            // The folder must be a control group and not just a folder.
            fs::metadata(folder.join("cgroup.procs"))?;
        }
        Ok(groups)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // Its last process may still be on its way out.
            for _ in 0..100 {
                if fs::remove_dir(folder).is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

/// Starts a program in a group: the shell moves there and becomes it.
const ENTER: &str = r#"echo $$ >"$0/cgroup.procs" && exec "$@""#;

struct Layout {
    name: &'static str,
    agent: &'static str,
    pods: [&'static str; 3],
}

const LAYOUTS: [Layout; 2] = [
    Layout {
        name: "systemd",
        agent: "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5a.slice/cri-containerd-5b.scope",
        pods: [
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5c.slice/cri-containerd-5d.scope",
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod5e.slice/cri-containerd-5f.scope",
            "kubepods.slice/kubepods-pod5g.slice/cri-containerd-5h.scope",
        ],
    },
    Layout {
        name: "cgroupfs",
        agent: "kubepods/burstable/pod5a/5b",
        pods: ["kubepods/burstable/pod5c/5d", "kubepods/besteffort/pod5e/5f", "kubepods/pod5g/5h"],
    },
];

/// Starts a program in every pod, then one beside them: only the last is found.
fn check(test: &str, layout: &Layout, private: bool) {
    if !may_run(test) {
        return;
    }
    let _listeners = beside_others();
    let mut paths = layout.pods.to_vec();
    paths.push(layout.agent);
    let groups = match Groups::make(&paths) {
        Ok(groups) => groups,
        Err(error) => return skipped(test, &format!("control groups cannot be made: {error}")),
    };
    for detector in DETECTORS {
        let token = token();
        let program = Program::sleeper(&token);
        let place = Groups::root().join(layout.agent);
        let enter = ["sh", "-c", ENTER, place.to_str().unwrap()];
        let mut prefix = enter.to_vec();
        if private {
            prefix.extend(["unshare", "--cgroup"]);
        }
        let agent = Agent::try_out_by(&prefix, &both(&[&token]), detector);
        let in_pods: Vec<Running> = layout.pods.iter().map(|pod| run_in(&program, pod)).collect();
        std::thread::sleep(QUIET);
        assert!(!agent.has_seen(&token), "{} {detector}: a pod was taken for its owner", layout.name);
        let _on_host = program.run();
        agent.sees(&token);
        drop((agent, in_pods));
    }
    drop(groups);
}

/// Starts it so that no command line on the way quotes its name.
fn run_in(program: &Program, group: &str) -> Running {
    let enter = r#"echo $$ >"$GROUP/cgroup.procs" && exec "$PROGRAM" 60"#;
    let mut command = Command::new("sh");
    let group = Groups::root().join(group);
    command.args(["-c", enter]).env("GROUP", group).env("PROGRAM", program.path());
    Running::start(&mut command)
}

#[test]
fn a_pod_is_not_its_owner() {
    // One after the other: the two layouts are in one tree.
    for layout in &LAYOUTS {
        check("a_pod_is_not_its_owner", layout, false);
        check("a_pod_is_not_its_owner, seen from a private namespace", layout, true);
    }
}

/// Writes what `/proc` shows of a process.
pub(crate) fn fake(root: &Path, pid: u32, name: &str, groups: &str) {
    let folder = root.join(pid.to_string());
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
    fs::write(folder.join("cmdline"), format!("{name}\0-x\0")).unwrap();
    fs::write(folder.join("status"), format!("Name:\t{name}\nState:\tS (sleeping)\nTgid:\t{pid}\n")).unwrap();
    fs::write(folder.join("stat"), format!("{pid} ({name}) S 1 {pid} {pid} 0 -1 4194304 0\n")).unwrap();
    fs::write(folder.join("cgroup"), groups).unwrap();
}

#[test]
fn a_pod_is_known_in_a_made_up_proc() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("c.toml");
    fs::write(&config, both(&["java"])).unwrap();
    let root = folder.path().join("proc");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("loadavg"), "0.0 0.0 0.0 1/1 44\n").unwrap();
    fake(&root, 1, "systemd", "0::/../../../../init.scope\n");
    fake(&root, 42, "java", "0::/../../../besteffort/pod1/2\n");
    fake(&root, 43, "containerd-shim", "0::/../../../../system.slice/containerd.service\n");
    let look = || {
        let args = ["--oneshot", "--config", config.to_str().unwrap(), "--proc-root", root.to_str().unwrap()];
        run_agent(&[], &args)
    };
    let (code, said) = look();
    assert_eq!(code, Some(1), "{said}");
    fake(&root, 44, "java", "0::/../../../../user.slice/user-1000.slice\n");
    let (code, said) = look();
    assert_eq!(code, Some(0), "{said}");
}
