//! Who started a process: the owner, one of the node's services, or the kernel.
//!
//! Helpers run outside every pod and quote what a guest chose. The kubelet runs `mount` with the name of a volume. The
//! kernel runs `modprobe` with the name of a module that a pod asked for, and a core dump handler with the name of the
//! program that crashed in a pod. None of them is the owner, whatever stands in their command lines.
//!
//! The verdict rests on facts that a guest cannot choose: parents, session, controlling terminal, user, control group,
//! and the names of processes outside pods. What none of them shows to be a helper is the owner's: an unusual terminal
//! must not hide a program.

use super::{View, hierarchies, is_node_program, status_field};

/// Ancestors that are looked at. A login session is some ten deep; the bound keeps a long chain from costing more.
const MAX_ANCESTORS: usize = 64;

/// The process number of the parent of all kernel threads (`kthreadd`, `init/main.c`).
const KTHREADD: u32 = 2;

/// The flag of a kernel thread in `stat` (`include/linux/sched.h`).
const PF_KTHREAD: u32 = 0x0020_0000;

/// Node programs that people run in a terminal too, as in `k0s kubectl` or `runc run`. With a controlling terminal they
/// are no service. Under all of them the kubelet is a process of its own, or one with another name (`k3s-agent`,
/// `kubelite`), so what the kubelet starts is known all the same.
const TERMINAL_PROGRAMS: [&str; 8] = ["k0s", "k3s", "rke2", "microk8s", "runc", "crun", "runsc", "youki"];

/// Units of the node's services: a helper that left its parent and its session is still in the unit's control group.
const NODE_UNITS: [&str; 16] = [
    "kubelet.service",
    "containerd.service",
    "crio.service",
    "docker.service",
    "cri-docker.service",
    "k0scontroller.service",
    "k0sworker.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-agent.service",
    "rke2-server.service",
    "snap.docker.dockerd.service",
    "snap.k8s.containerd.service",
    "snap.k8s.kubelet.service",
    "snap.microk8s.daemon-containerd.service",
    "snap.microk8s.daemon-kubelite.service",
];

/// The part of the tree in which systemd keeps what people start. A unit in it belongs to a person, such as the
/// `docker.service` of rootless Docker.
const USER_SLICE: &[u8] = b"user.slice";

/// A file in the folder of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcFile {
    /// `stat`: name, parent, session, terminal, flags.
    Stat,
    /// `status`: users.
    Status,
    /// `cgroup`.
    Groups,
}

/// Who started a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Owner,
    NodeService,
    Kernel,
}

/// Who started `process`, which is in `groups`; `None` if it is gone.
pub(super) fn origin(process: &mut impl View, groups: &[u8]) -> Option<Origin> {
    let pid = process.pid();
    let own = Stat::of(process, pid)?;
    if own.is_kernel_thread || is_in_kernel_session(process, &own) {
        return Some(Origin::Kernel);
    }
    let mut seen = vec![pid];
    // A process inherits its session: the leader is an ancestor that it keeps when its parent ends.
    for (child, ancestor) in [(Some(pid), own.parent), (None, own.session)] {
        if let Some(origin) = by_ancestors(process, groups, (child, ancestor), &mut seen) {
            return Some(origin);
        }
    }
    Some(if is_in_node_unit(groups) { Origin::NodeService } else { Origin::Owner })
}

/// What the first telling ancestor says, from `ancestor` upwards. `child` is the process that named it as its parent.
fn by_ancestors(
    process: &mut impl View,
    groups: &[u8],
    (mut child, mut ancestor): (Option<u32>, u32),
    seen: &mut Vec<u32>,
) -> Option<Origin> {
    for _ in 0..MAX_ANCESTORS {
        if ancestor == 0 || seen.contains(&ancestor) {
            return None;
        }
        let Some(stat) = Stat::of(process, ancestor) else {
            // It ended just now. The kernel has given its child another parent, which may be a shim.
            let parent = Stat::of(process, child?)?.parent;
            if parent == ancestor {
                return None;
            }
            ancestor = parent;
            continue;
        };
        seen.push(ancestor);
        if stat.is_kernel_thread {
            return Some(Origin::Kernel);
        }
        if is_node_service(process, ancestor, &stat) {
            let of_service = process.file_of(ancestor, ProcFile::Groups).unwrap_or_default();
            let is_container = is_container_beside(groups, of_service);
            return Some(if is_container { Origin::Owner } else { Origin::NodeService });
        }
        (child, ancestor) = (Some(ancestor), stat.parent);
    }
    None
}

/// Whether a helper of the kernel, or what it left behind, is in the session of the kernel's threads: number 0.
///
/// Session 0 alone does not say so. From inside a pid namespace it is every session that began outside, and on a host
/// whose first process never made a session it is that of all services.
fn is_in_kernel_session(process: &mut impl View, own: &Stat) -> bool {
    own.session == 0
        && Stat::of(process, KTHREADD).is_some_and(|stat| stat.is_kernel_thread)
        && Stat::of(process, 1).is_some_and(|stat| stat.session != 0)
}

/// Whether a process is one of the node's services, or a part of one: these run as root, and without a terminal those
/// that have commands for people too. A user's own `conmon` or `k0s kubectl` is that user's.
fn is_node_service(process: &mut impl View, pid: u32, stat: &Stat) -> bool {
    if !is_node_program(&stat.name) {
        return false;
    }
    if stat.has_terminal && TERMINAL_PROGRAMS.iter().any(|program| program.as_bytes() == stat.name) {
        return false;
    }
    // One that has ended meanwhile cannot be asked; nearly all of them are the node's.
    process.file_of(pid, ProcFile::Status).is_none_or(|status| {
        let users = status_field(status, b"Uid:").unwrap_or_default();
        users.split(u8::is_ascii_whitespace).next() == Some(b"0")
    })
}

/// Whether `groups` are those of a container that Docker or Podman runs for a person, and not just those of
/// `of_service`, which started it. Pods are known before by their own groups, also where Docker runs them.
///
/// What both have in common does not count: in a cluster that itself runs in Docker, everything is in such a group.
fn is_container_beside(groups: &[u8], of_service: &[u8]) -> bool {
    hierarchies(groups).any(|(hierarchy, path)| {
        let other = hierarchies(of_service).find(|(other, _)| *other == hierarchy);
        let other = other.map(|(_, path)| path).unwrap_or_default();
        let shared = components(path).zip(components(other)).take_while(|(own, other)| own == other).count();
        components(path).skip(shared).any(is_container_group)
    })
}

fn is_container_group(component: &[u8]) -> bool {
    component == b"docker"
        || component.starts_with(b"libpod-")
        || (component.starts_with(b"docker-") && component.ends_with(b".scope"))
}

fn is_in_node_unit(groups: &[u8]) -> bool {
    let is_unit = |component: &[u8]| NODE_UNITS.iter().any(|unit| unit.as_bytes() == component);
    hierarchies(groups).any(|(_, path)| {
        components(path).any(is_unit) && !components(path).any(|component| component == USER_SLICE)
    })
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}

/// The fields of `stat` that say where a process comes from (`do_task_stat`, `fs/proc/array.c`).
struct Stat {
    name: Vec<u8>,
    parent: u32,
    session: u32,
    has_terminal: bool,
    is_kernel_thread: bool,
}

impl Stat {
    fn of(process: &mut impl View, pid: u32) -> Option<Self> {
        Self::parse(process.file_of(pid, ProcFile::Stat)?)
    }

    /// The name is in parentheses, and may contain some.
    fn parse(text: &[u8]) -> Option<Self> {
        let begin = text.iter().position(|byte| *byte == b'(')? + 1;
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let name = text.get(begin..end)?.to_vec();
        let rest = std::str::from_utf8(&text[end + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace().skip(1);
        let mut number = || fields.next()?.parse::<i64>().ok();
        // A process that is about to vanish has session -1.
        let (parent, _group, session) = (number()?, number()?, number()?);
        let (terminal, _foreground, flags) = (number()?, number()?, number()?);
        Some(Self {
            name,
            parent: u32::try_from(parent).ok()?,
            session: u32::try_from(session).ok()?,
            has_terminal: terminal != 0,
            is_kernel_thread: u32::try_from(flags).ok()? & PF_KTHREAD != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Origin::{Kernel, NodeService, Owner};
    use super::*;
    use crate::process::Patterns;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A host, one process a line: number, name, parent, session, path of its control group, then any of
    /// `terminal`, `kernel` (a kernel thread) and `user` (not root).
    const SYSTEMD: &str = "
        1    systemd          0    1    /init.scope
        2    kthreadd         0    0    /                                       kernel
        30   kworker/u8:0     2    0    /                                       kernel
        100  kubelet          1    100  /system.slice/kubelet.service
        110  containerd       1    110  /system.slice/containerd.service
        120  containerd-shim  1    110  /system.slice/containerd.service
        130  crio             1    130  /system.slice/crio.service
        131  conmon           1    131  /system.slice/crio-conmon-1.scope
        140  dockerd          1    140  /system.slice/docker.service
        200  sshd             1    200  /system.slice/ssh.service
        201  sshd             200  201  /user.slice/user-1000.slice/session-2.scope
        202  bash             201  202  /user.slice/user-1000.slice/session-2.scope  terminal user
        210  systemd          1    210  /user.slice/user-1000.slice/user@1000.service/init.scope  user
        220  gdm3             1    220  /system.slice/gdm.service
        221  gdm-session-wor  220  220  /user.slice/user-1000.slice/session-3.scope";

    /// One service for everything, as `k0s install worker` makes it.
    const K0S: &str = "
        1    systemd          0    1    /init.scope
        2    kthreadd         0    0    /                                       kernel
        100  k0s              1    100  /system.slice/k0sworker.service
        110  containerd       100  100  /system.slice/k0sworker.service
        111  kubelet          100  100  /system.slice/k0sworker.service
        120  containerd-shim  1    100  /system.slice/k0sworker.service
        202  bash             1    202  /user.slice/user-1000.slice/session-2.scope  terminal";

    /// No manager of control groups: whatever is no pod is at the top.
    const CGROUPFS: &str = "
        1    init             0    1    /
        2    kthreadd         0    0    /  kernel
        100  kubelet          1    100  /
        110  containerd       1    110  /
        120  containerd-shim  1    110  /
        202  bash             1    202  /  terminal
        300  bash             202  202  /  terminal";

    /// The whole node in a container of Docker, seen without a control group namespace.
    const IN_DOCKER: &str = "
        1    k3s-server       0    1    /docker/1f
        110  containerd       1    1    /docker/1f
        120  containerd-shim  1    1    /docker/1f";

    #[derive(Default)]
    struct Host {
        files: BTreeMap<(u32, &'static str), String>,
        judged: u32,
        /// What the lines say as soon as somebody asks for a process that is gone.
        later: String,
    }

    impl Host {
        /// The last line is the process that is judged.
        fn new(lines: &str) -> Self {
            let mut host = Self::default();
            lines.lines().for_each(|line| host.add(line));
            host
        }

        fn add(&mut self, line: &str) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [pid, name, parent, session, path, rest @ ..] = &words[..] else { return };
            assert!(path.starts_with('/'), "{line}");
            let flag = |word| u32::from(rest.contains(&word));
            let (terminal, flags, uid) =
                (flag("terminal") * 34816, flag("kernel") * 0x0020_8040, flag("user") * 1000);
            let stat = format!("{pid} ({name}) S {parent} {session} {session} {terminal} -1 {flags} 0 0\n");
            let status = format!("Name:\t{name}\nState:\tS (sleeping)\nTgid:\t{pid}\nUid:\t{uid}\t0\t0\t0\n");
            self.judged = pid.parse().unwrap();
            let files = [("stat", stat), ("status", status), ("cgroup", format!("0::{path}\n"))];
            self.files.extend(files.map(|(name, text)| ((self.judged, name), text)));
        }
    }

    impl View for Host {
        fn pid(&self) -> u32 {
            self.judged
        }
        fn name(&mut self) -> Option<&[u8]> {
            Some(b"mount")
        }
        fn command_line(&mut self) -> Option<&[u8]> {
            Some(b"mount\0/volumes/java-cache\0")
        }
        fn status(&mut self) -> Option<&[u8]> {
            self.file_of(self.judged, ProcFile::Status)
        }
        fn groups(&mut self) -> Option<&[u8]> {
            self.file_of(self.judged, ProcFile::Groups)
        }
        fn groups_of_init(&mut self) -> Option<&[u8]> {
            self.file_of(1, ProcFile::Groups)
        }
        fn file_of(&mut self, pid: u32, file: ProcFile) -> Option<&[u8]> {
            let name = match file {
                ProcFile::Stat => "stat",
                ProcFile::Status => "status",
                ProcFile::Groups => "cgroup",
            };
            if !self.files.contains_key(&(pid, name)) {
                let judged = self.judged;
                let later = std::mem::take(&mut self.later);
                later.lines().for_each(|line| self.add(line));
                self.judged = judged;
                return None;
            }
            self.files.get(&(pid, name)).map(String::as_bytes)
        }
    }

    fn check_in(what: &str, mut host: Host, expected: Origin) {
        let groups = host.groups().unwrap().to_vec();
        assert_eq!(origin(&mut host, &groups), Some(expected), "{what}");
        let found = Patterns::new(&[], &["java"]).judge(9999, &mut host);
        assert_eq!(found.is_some(), expected == Owner, "{what}: the verdict");
    }

    /// Judges the last process of `lines` on `host`.
    fn check(what: &str, host: &str, lines: &str, expected: Origin) {
        check_in(what, Host::new(&format!("{host}\n{lines}")), expected);
    }

    #[test]
    fn a_helper_of_a_node_service_is_not_the_owner_under_systemd() {
        let unit = "/system.slice/kubelet.service";
        let node = |what, lines: &str| check(what, SYSTEMD, lines, NodeService);
        node("mount of the kubelet", &format!("500 mount 100 100 {unit}"));
        node("mount in a scope of its own, by systemd-run", "500 mount 100 100 /system.slice/run-r1f.scope");
        node("helper of a helper", &format!("499 sh 100 100 {unit}\n500 mount 499 100 {unit}"));
        node("helper of a CNI plugin", "499 bridge 110 110 /x\n500 iptables 499 110 /x");
        node("hook of a shim", "499 runc 120 110 /x\n500 nvidia-containe 499 110 /x");
        node("exec of conmon", "500 java-probe 131 131 /system.slice/crio-conmon-1.scope");
        node("hook of crio", "500 hook 130 130 /system.slice/crio.service");
        node("helper that another user runs for the kubelet", "500 mount 100 100 /x user");
        node("program in a container of no kubepods", "500 java 120 500 /k8s.io/1f");
    }

    #[test]
    fn a_helper_whose_parent_is_gone_is_known_by_its_session_or_its_control_group() {
        let node = |what, host, lines| check(what, host, lines, NodeService);
        node("adopted by init, session of the kubelet", SYSTEMD, "500 mount 1 100 /x");
        node("parent not there any more", SYSTEMD, "500 mount 499 100 /x");
        node("session of its own, in the unit", SYSTEMD, "500 fuse 1 500 /system.slice/kubelet.service");
        node("in the unit of k0s", K0S, "500 fuse 1 500 /system.slice/k0sworker.service");
        node(
            "leader of its session left, in the unit",
            K0S,
            "500 mount 1 77 /system.slice/k0sworker.service",
        );
        node("group below the unit", K0S, "500 mount 1 500 /system.slice/k0sworker.service/helpers");
        node("session of a script of the kubelet", SYSTEMD, "499 sh 100 499 /x\n500 mount 1 499 /x");
        node("session of the kubelet, without units", CGROUPFS, "500 mount 1 100 /");
    }

    #[test]
    fn a_parent_that_ends_meanwhile_is_followed_by_the_one_that_adopts() {
        let mut host = Host::new(&format!("{SYSTEMD}\n500 nsenter 499 500 /x"));
        host.later = "500 nsenter 120 500 /x".to_owned();
        check_in("adopted by a shim", host, NodeService);
        let mut host = Host::new(&format!("{SYSTEMD}\n498 sh 499 498 /x\n500 nsenter 498 498 /x"));
        host.later = "498 sh 120 498 /x".to_owned();
        check_in("parent adopted by a shim", host, NodeService);
        let mut host = Host::new(&format!("{SYSTEMD}\n500 java 499 500 /x"));
        host.later = "500 java 1 500 /x".to_owned();
        check_in("adopted by init", host, Owner);
    }

    #[test]
    fn a_helper_of_a_node_service_is_not_the_owner_under_k0s_and_without_units() {
        let unit = "/system.slice/k0sworker.service";
        let node = |what, host, lines: &str| check(what, host, lines, NodeService);
        node("mount of the kubelet of k0s", K0S, &format!("500 mount 111 100 {unit}"));
        node("helper of k0s itself", K0S, &format!("500 iptables 100 100 {unit}"));
        node("hook of a shim of k0s", K0S, &format!("499 runc 120 100 {unit}\n500 hook 499 100 {unit}"));
        node("mount of the kubelet", CGROUPFS, "500 mount 100 100 /");
        node("helper of a CNI plugin", CGROUPFS, "499 bridge 110 110 /\n500 iptables 499 110 /");
        node(
            "mount of a kubelet in a terminal",
            CGROUPFS,
            "301 kubelet 300 202 / terminal\n500 mount 301 202 / terminal",
        );
        let k0s = "301 k0s 300 202 / terminal\n302 kubelet 301 202 / terminal\n500 mount 302 202 / terminal";
        node("mount below a k0s worker in a terminal", CGROUPFS, k0s);
        node("mount of a node in Docker", IN_DOCKER, "500 mount 1 1 /docker/1f");
        node("hook of a shim in Docker", IN_DOCKER, "500 hook 120 1 /docker/1f");
        node(
            "mount in a scope of a node in Docker",
            IN_DOCKER,
            "500 mount 1 1 /docker/1f/system.slice/run-r1.scope",
        );
    }

    #[test]
    fn a_helper_of_the_kernel_is_not_the_owner() {
        let kernel = |what, lines| check(what, SYSTEMD, lines, Kernel);
        kernel("modprobe, for which a worker waits", "500 modprobe 30 0 /");
        kernel("core dump handler, for which nobody waits", "500 systemd-coredum 2 0 /");
        kernel("helper of a core dump handler", "499 apport 2 0 /\n500 sh 499 0 /");
        kernel("helper of a helper that made a session", "499 apport 2 499 /\n500 sh 499 499 /");
        kernel("adopted by init", "500 sh 1 0 /");
        kernel("kernel thread", "500 java 2 0 / kernel");
    }

    #[test]
    fn session_0_is_the_kernel_s_only_where_the_kernel_s_threads_and_a_session_of_init_are_seen() {
        let in_namespace = "1 systemd 0 1 /\n2 systemd-journal 1 2 /\n";
        check("shell that came from outside of the namespace", in_namespace, "500 bash 0 0 /", Owner);
        let plain_init = "1 init 0 0 /\n2 kthreadd 0 0 / kernel\n";
        check("service of an init without a session", plain_init, "500 java 1 0 /", Owner);
    }

    #[test]
    fn a_program_of_the_owner_is_seen_wherever_its_terminal_runs() {
        let owner = |what, host, lines: &str| check(what, host, lines, Owner);
        let session = "/user.slice/user-1000.slice/session-2.scope";
        owner("login by ssh", SYSTEMD, &format!("500 java 202 202 {session} terminal user"));
        owner(
            "login by ssh without a scope",
            SYSTEMD,
            "499 bash 200 499 /system.slice/ssh.service\n500 java 499 499 /system.slice/ssh.service",
        );
        owner("desktop of a display manager", SYSTEMD, "500 java 221 220 /system.slice/gdm.service user");
        owner(
            "user service",
            SYSTEMD,
            "500 java 210 500 /user.slice/user-1000.slice/user@1000.service/app.slice/java.service user",
        );
        owner("system service", SYSTEMD, "500 java 1 500 /system.slice/render.service");
        owner("login shell at the top", CGROUPFS, "500 java 300 202 / terminal");
        owner("program of root at the top", CGROUPFS, "500 java 1 500 /");
        owner(
            "tmux, adopted by init",
            CGROUPFS,
            "498 tmux 1 498 /\n499 bash 498 499 / terminal\n500 java 499 499 / terminal",
        );
        owner("parent is gone", SYSTEMD, &format!("500 java 1 202 {session} user"));
        owner("parent and session are gone", SYSTEMD, "500 java 499 497 /");
        owner(
            "shell from outside of the namespace",
            IN_DOCKER,
            "499 bash 0 499 /docker/1f terminal\n500 java 499 499 /docker/1f terminal",
        );
    }

    #[test]
    fn a_node_program_that_a_person_runs_is_no_service() {
        let owner = |what, lines: &str| check(what, SYSTEMD, lines, Owner);
        owner(
            "shell of sudo k0s",
            "301 k0s 202 202 /x terminal\n302 sh 301 202 /x terminal\n500 java 302 202 /x terminal",
        );
        owner("plugin of k0s kubectl of a user", "301 k0s 202 202 /x user\n500 kubectl-java 301 202 /x user");
        owner("program named runc of a user", "301 runc 202 202 /x user\n500 java 301 202 /x user");
        owner("container of runc in a terminal", "301 runc 202 202 /x terminal\n500 java 301 500 /mine");
    }

    #[test]
    fn a_container_that_a_person_runs_is_that_person_s() {
        let owner = |what, lines: &str| check(what, SYSTEMD, lines, Owner);
        owner("docker run", "500 java 120 500 /system.slice/docker-1f.scope");
        owner("docker run, driver cgroupfs", "500 java 120 500 /docker/1f");
        owner(
            "docker build",
            "499 runc 140 140 /system.slice/docker.service\n500 java 499 500 /docker/buildkit/1f",
        );
        owner(
            "podman run of root",
            "301 conmon 1 301 /machine.slice/libpod-conmon-1f.scope\n500 java 301 500 /machine.slice/libpod-1f.scope/container",
        );
        let app = "/user.slice/user-1000.slice/user@1000.service";
        owner(
            "podman run of a user",
            &format!("301 conmon 1 301 {app}/app.slice user\n500 java 301 500 {app}/app.slice user"),
        );
        owner(
            "rootless Docker",
            &format!(
                "301 containerd-shim 1 301 {app}/app.slice/docker.service user\n500 java 301 500 {app}/app.slice/docker.service user"
            ),
        );
        let shim = "110 containerd-shim 1 110 /../../../../system.slice/containerd.service";
        owner(
            "docker run, seen from a private namespace",
            &format!("{shim}\n500 java 110 500 /../../../../system.slice/docker-1f.scope"),
        );
        check("hook of Docker", SYSTEMD, "500 hook 120 110 /system.slice/containerd.service", NodeService);
        check(
            "hook of conmon",
            SYSTEMD,
            "301 conmon 1 301 /machine.slice/libpod-conmon-1f.scope\n500 hook 301 301 /machine.slice/libpod-conmon-1f.scope",
            NodeService,
        );
    }

    #[test]
    fn a_process_that_is_gone_has_no_origin() {
        let mut host = Host::new(SYSTEMD);
        host.judged = 500;
        assert_eq!(origin(&mut host, b"0::/\n"), None);
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = Stat::parse(b"7 (a) S 2 (b) R 5 6 7 0 -1 4194560 1 2\n").unwrap();
        assert_eq!((&stat.name[..], stat.parent, stat.session), (&b"a) S 2 (b"[..], 5, 7));
        assert!(!stat.has_terminal && !stat.is_kernel_thread);
        assert!(Stat::parse(b"7 (a) Z 0 -1 -1 0 -1 4228364 0\n").is_none());
        assert!(
            Stat::parse(b"").is_none() && Stat::parse(b")(").is_none() && Stat::parse(b"7 (a)").is_none()
        );
    }

    #[test]
    fn a_long_chain_of_ancestors_is_not_followed_for_ever() {
        let chain: Vec<String> = (500..2500).rev().map(|pid| format!("{pid} sh {} 1 /", pid + 1)).collect();
        check("two thousand shells", SYSTEMD, &chain.join("\n"), Owner);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fail(
            files in prop::collection::vec("[0-9]{1,2} \\(?[a-z() ]{0,8}\\)? S( -?[0-9]{1,2}){0,7}", 0..8),
            raw in prop::collection::vec(any::<u8>(), 0..40),
            groups in "[0-9:/.a-z\n-]{0,40}",
        ) {
            let mut host = Host::new("500 x 1 3 /");
            for (pid, file) in files.into_iter().enumerate() {
                host.files.insert((u32::try_from(pid).unwrap(), "stat"), file);
            }
            let _ = origin(&mut host, groups.as_bytes());
            let _ = Stat::parse(&raw);
            let _ = (is_in_node_unit(&raw), is_container_beside(&raw, groups.as_bytes()));
        }

        /// Whatever a helper is called and wherever its control group is, its parents decide.
        #[test]
        fn no_name_makes_a_helper_the_owner(name in "[a-z-]{1,15}", path in "(/[a-z.-]{1,8}){1,4}") {
            prop_assume!(!path.contains("docker") && !path.contains("libpod"));
            check("helper", CGROUPFS, &format!("500 {name} 100 100 {path}"), NodeService);
        }
    }
}
