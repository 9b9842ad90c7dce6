//! Whether a process is one that its owner wants his machine back for.
//!
//! One verdict for every detector: how a process was noticed plays no part in it. Everything is bytes, since neither a
//! name nor a command line need be UTF-8, and the kernel cuts names wherever the fifteenth byte ends.
//!
//! A process of a pod never matches. `killIfCommands: [java]` is about the java of the person at the desk; the java of
//! a pod is the guest, and would throw itself out. A helper of the node or of the kernel, which quotes what a guest
//! chose, does not match either.

mod origin;

use memchr::memmem::Finder;
use origin::Origin;
pub use origin::ProcFile;
use std::sync::Arc;

/// Bytes of a process name that the kernel keeps (`TASK_COMM_LEN` less its NUL, `include/linux/sched.h`).
pub const NAME_BYTES: usize = 15;

/// Names of programs that run on the host and quote what runs in pods: container names, images and paths stand in
/// their command lines. A name is cut as the kernel cuts it, so `containerd-shim` is also `containerd-shim-runc-v2`.
///
/// - the kubelet, and the distributions that are kubelet and runtime in one program;
/// - the runtimes, and what they start for each container: shims, monitors, and the low-level runtimes between the
///   fork and the container's own program.
pub const NODE_PROGRAMS: [&str; 20] = [
    "kubelet",
    "kubelite",
    "k0s",
    "k3s",
    "k3s-agent",
    "k3s-server",
    "rke2",
    "microk8s",
    "containerd",
    "containerd-shim",
    "crio",
    "cri-dockerd",
    "dockerd",
    "docker-proxy",
    "conmon",
    "conmonrs",
    "runc",
    "crun",
    "runsc",
    "youki",
];

/// A component of a control group's path under which the kubelet keeps all pods, whole or as a part between dashes:
/// `kubepods` (driver cgroupfs), `kubepods.slice` and `kubepods-burstable-pod….slice` (driver systemd),
/// `kubelet-kubepods.slice` (systemd with a `cgroupRoot`, as kind has it).
const POD_GROUP: &[u8] = b"kubepods";

/// What to look for.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    commands: Vec<Arc<str>>,
    arguments: Vec<(Arc<str>, Finder<'static>)>,
}

/// A process that matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Number of the process.
    pub pid: u32,
    /// The pattern, as it was written. Nothing else of a process ever leaves the host.
    pub pattern: Arc<str>,
}

/// A process as it can be seen. Each part is read when the verdict needs it, and not before: most processes are judged
/// by their name and command line alone. `None` means that it could not be read, mostly since the process is gone.
pub trait View {
    /// Number of the process, or of one of its threads.
    fn pid(&self) -> u32;
    /// `comm`, without the newline.
    fn name(&mut self) -> Option<&[u8]>;
    /// `cmdline`, to its end, as it is: arguments end with a NUL.
    fn command_line(&mut self) -> Option<&[u8]>;
    /// `status`.
    fn status(&mut self) -> Option<&[u8]>;
    /// `cgroup`.
    fn groups(&mut self) -> Option<&[u8]>;
    /// `cgroup` of process 1.
    fn groups_of_init(&mut self) -> Option<&[u8]>;
    /// A file of any process: this one, or one that it may descend from.
    fn file_of(&mut self, pid: u32, file: ProcFile) -> Option<&[u8]>;
}

impl Patterns {
    /// Patterns for names and for command lines. An empty one would match everything and is left out.
    pub fn new<S: AsRef<str>>(commands: &[S], arguments: &[S]) -> Self {
        let texts = |all: &[S]| -> Vec<Arc<str>> {
            all.iter().map(AsRef::as_ref).filter(|text| !text.is_empty()).map(Arc::from).collect()
        };
        let finder = |text: Arc<str>| {
            let finder = Finder::new(text.as_bytes()).into_owned();
            (text, finder)
        };
        Self { commands: texts(commands), arguments: texts(arguments).into_iter().map(finder).collect() }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.arguments.is_empty()
    }

    /// The verdict on a process. `own` is the number of the process that asks, which never matches.
    pub fn judge(&self, own: u32, process: &mut impl View) -> Option<Match> {
        if process.pid() == own {
            return None;
        }
        let name = process.name()?;
        if is_node_program(name) {
            return None;
        }
        let pattern = match self.by_name(name) {
            Some(pattern) => pattern,
            None if self.arguments.is_empty() => return None,
            None => self.by_command_line(process.command_line()?)?,
        };
        let pid = process.pid();
        // What cannot be read belongs to a process that has gone meanwhile: nobody can say whose it was.
        if !is_running_process(pid, process.status()?) {
            return None;
        }
        let of_init = process.groups_of_init().unwrap_or_default().to_vec();
        let groups = process.groups()?.to_vec();
        if is_in_pod(&groups, &of_init) {
            return None;
        }
        match origin::origin(process, &groups)? {
            Origin::Owner => Some(Match { pid, pattern: Arc::clone(pattern) }),
            Origin::NodeService | Origin::Kernel => None,
        }
    }

    /// The first pattern that is the name; one that is longer than the kernel's names matches by what fits.
    fn by_name(&self, name: &[u8]) -> Option<&Arc<str>> {
        self.commands.iter().find(|text| cut(text.as_bytes()) == cut(name))
    }

    /// The first pattern that is part of the arguments, joined by spaces.
    fn by_command_line(&self, line: &[u8]) -> Option<&Arc<str>> {
        let line = line.strip_suffix(b"\0").unwrap_or(line);
        let joined: Vec<u8> = line.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
        let found = self.arguments.iter().find(|(_, finder)| finder.find(&joined).is_some());
        found.map(|(text, _)| text)
    }
}

fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(NAME_BYTES)]
}

fn is_node_program(name: &[u8]) -> bool {
    NODE_PROGRAMS.iter().any(|program| program.as_bytes() == name)
}

/// Whether `status` is that of a process that runs: not of one of its threads, which `/proc` shows under their own
/// number too, and not of one that has ended and was not fetched by its parent.
fn is_running_process(pid: u32, status: &[u8]) -> bool {
    let state = status_field(status, b"State:");
    let ended = state.is_none_or(|state| matches!(state.first(), Some(b'Z' | b'X')));
    !ended && status_field(status, b"Tgid:") == Some(pid.to_string().as_bytes())
}

fn status_field<'a>(status: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key));
    line.map(<[u8]>::trim_ascii)
}

/// Whether `groups` are those of a pod.
///
/// From the host's control group namespace the path says so. From a namespace of his own, which is what a pod has, a
/// reader sees paths relative to his own group: `/../../besteffort/pod…` does not show that the common parent is
/// `kubepods`. It shows that there is one, though: process 1 belongs to no pod, and whoever is reached by fewer steps
/// up than it shares a parent with the reader, who is in a pod.
///
/// Before version 2 there are many hierarchies. A runtime puts a pod into all it knows, so in every one in which the
/// reader is not at the top, a pod is nearer to him than process 1; something that shares just one parent with him,
/// such as a service's memory group, is not a pod.
fn is_in_pod(groups: &[u8], of_init: &[u8]) -> bool {
    if hierarchies(groups).any(|(_, path)| path.split(|byte| *byte == b'/').any(is_pod_group)) {
        return true;
    }
    let steps = |wanted: &[u8], groups| {
        hierarchies(groups).find(|(hierarchy, _)| *hierarchy == wanted).map(|(_, path)| steps_up(path))
    };
    let mut below = hierarchies(of_init).filter(|(_, path)| steps_up(path) > 0).peekable();
    below.peek().is_some()
        && below.all(|(hierarchy, path)| steps(hierarchy, groups).is_some_and(|steps| steps < steps_up(path)))
}

/// The lines of a `cgroup` file: `0::/path`, or `4:memory:/path` before version 2.
fn hierarchies(groups: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    groups.split(|byte| *byte == b'\n').filter_map(|line| {
        let number = line.iter().position(|byte| *byte == b':')?;
        let controllers = line[number + 1..].iter().position(|byte| *byte == b':')?;
        let (hierarchy, path) = line.split_at(number + 1 + controllers);
        Some((hierarchy, &path[1..]))
    })
}

fn is_pod_group(component: &[u8]) -> bool {
    component.split(|byte| *byte == b'-').any(|part| part.starts_with(POD_GROUP))
}

fn steps_up(path: &[u8]) -> usize {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.split(|byte| *byte == b'/').take_while(|component| *component == b"..").count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: &str = "0::/user.slice/user-1000.slice/session-2.scope\n";
    const INIT: &str = "0::/init.scope\n";

    /// A process of the person at the desk, unless a test says otherwise.
    struct Process {
        pid: u32,
        name: Vec<u8>,
        line: Vec<u8>,
        status: String,
        groups: Option<String>,
        init: String,
    }

    impl Process {
        fn new(name: &[u8], line: &[u8]) -> Self {
            Self {
                pid: 42,
                name: name.to_vec(),
                line: line.to_vec(),
                status: "Name:\tx\nState:\tS (sleeping)\nTgid:\t42\nPid:\t42\n".to_owned(),
                groups: Some(HOST.to_owned()),
                init: INIT.to_owned(),
            }
        }

        fn in_group(groups: &str, init: &str) -> Self {
            let mut process = Self::new(b"java", b"java\0");
            (process.groups, process.init) = (Some(groups.to_owned()), init.to_owned());
            process
        }
    }

    impl View for Process {
        fn pid(&self) -> u32 {
            self.pid
        }
        fn name(&mut self) -> Option<&[u8]> {
            Some(&self.name)
        }
        fn command_line(&mut self) -> Option<&[u8]> {
            Some(&self.line)
        }
        fn status(&mut self) -> Option<&[u8]> {
            Some(self.status.as_bytes())
        }
        fn groups(&mut self) -> Option<&[u8]> {
            self.groups.as_deref().map(str::as_bytes)
        }
        fn groups_of_init(&mut self) -> Option<&[u8]> {
            Some(self.init.as_bytes())
        }
        fn file_of(&mut self, _: u32, file: ProcFile) -> Option<&[u8]> {
            // Whose process is the parent of which is the matter of `origin`.
            (file == ProcFile::Stat).then_some(b"42 (x) S 1 42 42 0 -1 4194304 0")
        }
    }

    fn check(patterns: &Patterns, mut process: Process, expected: Option<&str>) {
        let found = patterns.judge(1000, &mut process);
        let found = found.as_ref().map(|found| &*found.pattern);
        let name = String::from_utf8_lossy(&process.name);
        assert_eq!(found, expected, "{name}: {:?}", process.groups);
    }

    fn both(patterns: &[&str]) -> Patterns {
        Patterns::new(patterns, patterns)
    }

    #[test]
    fn a_name_matches_whole_and_a_command_line_in_part() {
        let patterns = both(&["java"]);
        check(&patterns, Process::new(b"java", b"java\0-jar\0x.jar\0"), Some("java"));
        check(&patterns, Process::new(b"javac", b"renamed\0"), None);
        check(&patterns, Process::new(b"sh", b"/usr/bin/java\0"), Some("java"));
        check(&patterns, Process::new(b"sh", b"JAVA\0"), None);
        check(&Patterns::new(&["java"], &[]), Process::new(b"sh", b"java\0"), None);
        check(&Patterns::new(&[], &["java"]), Process::new(b"java", b"other\0"), None);
        check(&both(&[]), Process::new(b"java", b"java\0"), None);
        check(&both(&[""]), Process::new(b"java", b"java\0"), None);
    }

    #[test]
    fn arguments_are_joined_by_spaces() {
        let patterns = Patterns::new(&[], &["-jar idea"]);
        check(&patterns, Process::new(b"java", b"java\0-jar\0idea.jar\0"), Some("-jar idea"));
        check(&patterns, Process::new(b"java", b"java\0-jaridea\0"), None);
        // There is no space behind the last.
        check(&Patterns::new(&[], &["idea "]), Process::new(b"sh", b"sh\0idea\0"), None);
        check(&Patterns::new(&[], &["idea "]), Process::new(b"sh", b"idea\0x\0"), Some("idea "));
    }

    #[test]
    fn a_long_pattern_matches_a_name_by_what_the_kernel_keeps_of_it() {
        let patterns = Patterns::new(&["intellij-idea-16"], &[]);
        check(&patterns, Process::new(b"intellij-idea-1", b""), Some("intellij-idea-16"));
        check(&patterns, Process::new(b"intellij-idea-", b""), None);
        // The fifteenth byte is in the middle of a letter.
        let patterns = Patterns::new(&["entwicklungstö"], &[]);
        check(
            &patterns,
            Process::new("entwicklungstö".as_bytes().get(..15).unwrap(), b""),
            Some("entwicklungstö"),
        );
        let patterns = Patterns::new(&["entwicklungs-tö"], &[]);
        check(&patterns, Process::new(&"entwicklungs-tö".as_bytes()[..15], b""), Some("entwicklungs-tö"));
    }

    #[test]
    fn names_and_lines_that_are_not_utf_8_are_compared_all_the_same() {
        let patterns = both(&["idea"]);
        check(&patterns, Process::new(b"\xff\xfe", b"\xff\0idea\0\xc3"), Some("idea"));
        check(&patterns, Process::new(b"idea\xff", b"\xff\0"), None);
    }

    #[test]
    fn the_agent_and_the_programs_of_the_node_never_match() {
        let mut own = Process::new(b"java", b"java\0");
        own.pid = 1000;
        own.status = own.status.replace("42", "1000");
        check(&both(&["java"]), own, None);
        for program in NODE_PROGRAMS {
            check(&both(&["java", program]), Process::new(program.as_bytes(), b"-n\0k8s_java_0\0"), None);
            assert!(program.len() <= NAME_BYTES, "{program} is longer than a name can be");
        }
        let shim = &b"containerd-shim-runc-v2"[..NAME_BYTES];
        check(&both(&["java"]), Process::new(shim, b"java\0"), None);
    }

    #[test]
    fn neither_a_thread_nor_what_has_ended_matches() {
        let with = |from: &str, to: &str| {
            let mut process = Process::new(b"java", b"java\0");
            process.status = process.status.replace(from, to);
            process
        };
        check(&both(&["java"]), with("Tgid:\t42", "Tgid:\t41"), None);
        check(&both(&["java"]), with("S (sleeping)", "Z (zombie)"), None);
        check(&both(&["java"]), with("S (sleeping)", "X (dead)"), None);
        check(&both(&["java"]), with("S (sleeping)", "R (running)"), Some("java"));
    }

    #[test]
    fn a_process_that_went_before_its_groups_could_be_read_does_not_match() {
        let mut process = Process::new(b"java", b"java\0");
        process.groups = None;
        check(&both(&["java"]), process, None);
    }

    /// Every process that starts is judged, and nearly none matches: the price of those is the price of a storm.
    #[test]
    fn what_matches_no_pattern_is_asked_for_its_name_and_command_line_alone() {
        struct Stranger;
        impl View for Stranger {
            fn pid(&self) -> u32 {
                42
            }
            fn name(&mut self) -> Option<&[u8]> {
                Some(b"sh")
            }
            fn command_line(&mut self) -> Option<&[u8]> {
                Some(b"sh\0-c\0true\0")
            }
            fn status(&mut self) -> Option<&[u8]> {
                unreachable!("status was read")
            }
            fn groups(&mut self) -> Option<&[u8]> {
                unreachable!("groups were read")
            }
            fn groups_of_init(&mut self) -> Option<&[u8]> {
                unreachable!("groups of init were read")
            }
            fn file_of(&mut self, pid: u32, file: ProcFile) -> Option<&[u8]> {
                unreachable!("{file:?} of {pid} was read")
            }
        }
        assert_eq!(both(&["java"]).judge(1000, &mut Stranger), None);
    }

    #[test]
    fn a_pod_is_known_by_its_groups() {
        let java = both(&["java"]);
        let pods = [
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-2.scope",
            "0::/kubepods/besteffort/pod1/2",
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice/x.scope",
            "0::/system.slice/containerd.service/kubepods-burstable-pod1.slice:cri-containerd:2",
            "12:memory:/user.slice\n4:cpu,cpuacct:/kubepods/burstable/pod1/2\n0::/",
        ];
        for groups in pods {
            check(&java, Process::in_group(groups, INIT), None);
        }
        let host =
            ["0::/", "0::/user.slice/user-1000.slice", "0::/system.slice/mykubepods.service", "", "0::/-"];
        for groups in host {
            check(&java, Process::in_group(groups, INIT), Some("java"));
        }
    }

    #[test]
    fn a_pod_is_known_from_a_private_namespace_by_the_steps_it_is_away() {
        let java = both(&["java"]);
        let init = "0::/../../../../init.scope\n";
        let pods = [
            // Another pod of the same class, one of another class, a container of the reader's own pod, the reader's own.
            "0::/../../pod1/2",
            "0::/../../../besteffort/pod1/2",
            "0::/../3",
            "0::/",
            "0::/../../../kubepods-besteffort.slice/x",
        ];
        for groups in pods {
            check(&java, Process::in_group(groups, init), None);
        }
        for groups in ["0::/../../../../user.slice/x", "0::/../../../..", "0::/../../../../..x"] {
            check(&java, Process::in_group(groups, init), Some("java"));
        }
        // Each hierarchy is compared with itself.
        let init = "4:memory:/\n0::/../../init.scope\n";
        check(&java, Process::in_group("4:memory:/\n0::/../../user.slice\n", init), Some("java"));
        check(&java, Process::in_group("4:memory:/\n0::/../pod1\n", init), None);
        // The reader shares a memory group with a service of the host.
        let init = "4:memory:/../..\n0::/../../init.scope\n";
        check(&java, Process::in_group("4:memory:/\n0::/../../user.slice\n", init), Some("java"));
        check(&java, Process::in_group("4:memory:/../pod1\n0::/../pod1\n", init), None);
    }

    proptest! {
        #[test]
        fn a_command_line_matches_as_a_naive_search_does(
            arguments in prop::collection::vec(prop::collection::vec(1u8.., 0..8), 0..6),
            patterns in prop::collection::vec("[a-c ]{1,3}", 0..4),
            planted in any::<prop::sample::Index>(),
        ) {
            let mut arguments = arguments;
            if let Some(pattern) = (!patterns.is_empty()).then(|| &patterns[planted.index(patterns.len())]) {
                arguments.push(pattern.as_bytes().to_vec());
            }
            let line: Vec<u8> = arguments.iter().flat_map(|argument| [argument, &b"\0"[..]].concat()).collect();
            let joined = arguments.join(&b' ');
            let naive = |pattern: &&String| joined.windows(pattern.len()).any(|part| part == pattern.as_bytes());
            let expected = patterns.iter().find(naive).map(String::as_str);
            let none: Vec<String> = Vec::new();
            check(&Patterns::new(&none, &patterns), Process::new(b"sh", &line), expected);
        }

        #[test]
        fn no_bytes_make_it_fail(
            name in prop::collection::vec(any::<u8>(), 0..20),
            line in prop::collection::vec(any::<u8>(), 0..64),
            groups in "[0-9:/.a-z\n]{0,40}",
            init in "[0-9:/.a-z\n]{0,40}",
        ) {
            let mut process = Process::new(&name, &line);
            (process.groups, process.init) = (Some(groups), init);
            let _ = both(&["a", "b c"]).judge(1, &mut process);
        }
    }
}
