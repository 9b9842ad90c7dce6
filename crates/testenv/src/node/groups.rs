//! The control groups of a node's pods: one tree of the node's own in every hierarchy of the host.

use crate::error::{Context, Error};
use std::fs;
use std::path::{Path, PathBuf};

/// Where hierarchies are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The hierarchies without which a kubelet does not start.
const NEEDED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "freezer"];

/// Removes the groups of a node whose processes have ended, also those that were frozen: they can only end now.
/// The supervisor runs it with the name of the tree.
pub(super) const REMOVE: &str = r#"
attempt=0
while ls -d /sys/fs/cgroup/*/"$1" && [ $attempt -lt 500 ]; do
  find /sys/fs/cgroup/*/"$1" -name freezer.state | while read -r file; do echo THAWED >"$file"; done
  find /sys/fs/cgroup/*/"$1" -depth -type d -exec rmdir {} +
  attempt=$((attempt + 1))
  sleep 0.02
done >/dev/null
"#;

/// The tree of one node.
#[derive(Debug)]
pub(super) struct Groups {
    name: String,
}

impl Groups {
    /// Whether this machine has what a node needs.
    pub(super) fn check() -> Result<(), Error> {
        let mount = Path::new(MOUNT);
        let missing = NEEDED.into_iter().find(|name| !mount.join(name).join("cgroup.procs").exists());
        match missing {
            None => Ok(()),
            Some(_) if mount.join("cgroup.controllers").exists() => Err(Error::NodeUnavailable {
                why: "this machine has control groups of version 2 alone, and a node was only tried with version 1"
                    .to_owned(),
            }),
            Some(name) => {
                Err(Error::NodeUnavailable { why: format!("there is no control group hierarchy `{name}`") })
            }
        }
    }

    /// Makes the tree's root in every hierarchy.
    pub(super) fn make(name: &str) -> Result<Self, Error> {
        for hierarchy in hierarchies() {
            let group = hierarchy.join(name);
            fs::create_dir(&group).context(|| format!("create {}", group.display()))?;
            // A group without processors and memory nodes takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(all) = fs::read(hierarchy.join(file)) {
                    let file = group.join(file);
                    fs::write(&file, all).context(|| format!("write {}", file.display()))?;
                }
            }
        }
        Ok(Self { name: name.to_owned() })
    }

    /// The numbers, on the host, of all processes in the pod with this uid, or of those in all pods.
    pub(super) fn processes(&self, pod: Option<&str>) -> Vec<u32> {
        let root = Path::new(MOUNT).join("pids").join(&self.name).join("kubepods");
        let mut found = Vec::new();
        let mut folders = vec![root];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
            folders.extend(entries.filter(|path| path.is_dir()));
            let is_wanted = pod.is_none_or(|uid| {
                folder.components().any(|part| part.as_os_str() == format!("pod{uid}").as_str())
            });
            if is_wanted {
                let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            }
        }
        found.sort_unstable();
        found
    }

    /// Whether any hierarchy still has it.
    pub(super) fn exists(&self) -> bool {
        hierarchies().iter().any(|hierarchy| hierarchy.join(&self.name).exists())
    }
}

fn hierarchies() -> Vec<PathBuf> {
    let entries = fs::read_dir(MOUNT).into_iter().flatten().flatten().map(|entry| entry.path());
    // A link, such as `cpuacct` to `cpu,cpuacct`, is a second name.
    let is_hierarchy = |path: &PathBuf| !path.is_symlink() && path.join("cgroup.procs").exists();
    entries.filter(is_hierarchy).collect()
}
