//! Files that somebody else wrote, or that never end: the real binary prints nothing that a terminal would obey, and
//! reads no more than a bound.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use fivespot_core::text::is_hidden;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Clears the screen, sets the title, ends the line, forges the last line of a lint, and turns the rest around.
const HOSTILE: &str =
    "x\u{1b}[2J\u{1b}]0;t\u{7}\r\n0 machines, 0 errors, 0 warnings\n\u{9b}1A\u{202e}\u{200b}\u{2028}y";

const SHOWN: &str =
    r"x\u{1b}[2J\u{1b}]0;t\u{7}\r\n0 machines, 0 errors, 0 warnings\n\u{9b}1A\u{202e}\u{200b}\u{2028}y";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_5spot")).args(args).env("TZ", "UTC").output().unwrap()
}

/// What was printed, on both ways out; no character of it is hidden, but for the ends of lines.
fn printed(output: &Output) -> String {
    let text = String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    assert!(!text.contains(|c| c != '\n' && is_hidden(c)), "{text:?}");
    text
}

/// A manifest of the examples with another text in the place of the first of its kind.
fn example(old: &str, new: &str) -> String {
    let text = fs::read_to_string(root().join("examples/workstation.yaml")).unwrap();
    assert!(text.contains(old), "{old}");
    text.replacen(old, new, 1)
}

/// A text as YAML and JSON can write it.
fn quoted(text: &str) -> String {
    let escaped: Vec<String> = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    format!("\"{}\"", escaped.concat())
}

#[test]
fn texts_of_a_file_can_neither_command_a_terminal_nor_forge_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let quoted = quoted(HOSTILE);
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let files = [
        write("name.yaml", &example("name: workstation", &format!("name: {quoted}"))),
        write("zone.yaml", &example("timezone: Europe/London", &format!("timezone: {quoted}"))),
        write("field.yaml", &example("  clusterName: lab", &format!("  clusterName: lab\n  {quoted}: 1"))),
        write(
            "kind.yaml",
            &format!("{{apiVersion: 5spot.finos.org/v1alpha1, kind: {quoted}, metadata: {{name: a}}}}"),
        ),
        write("broken.yaml", &format!("a: {quoted}\nb: [{quoted}\n")),
        // Characters that YAML refuses as they are, and characters that it takes.
        write("refused.yaml", "a: \u{1b}[2J\n"),
        write("taken.yaml", &example("name: workstation", "name: a\u{202e}b")),
        // The name of the file itself, with all that a file system takes.
        write(&format!("{}.yaml", HOSTILE.replace('/', "")), "a: [\u{202e}"),
    ];
    for file in &files {
        for args in [&["schedule", "preview", "-f", file][..], &["schedule", "explain", "-f", file]] {
            let output = run(args);
            let text = printed(&output);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
            assert!(!text.lines().any(|line| line.starts_with("0 machines")), "{args:?}: {text}");
        }
    }

    let folder = folder.path().to_str().unwrap();
    let output = run(&["schedule", "lint", "-f", folder]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    // One line for each finding, and the last says how many: no text became one of its own.
    let (last, findings) =
        text.lines().collect::<Vec<_>>().split_last().map(|(last, all)| (*last, all.to_vec())).unwrap();
    assert!(findings.iter().all(|line| line.starts_with(folder) && line.contains("error: ")), "{text}");
    assert_eq!(last, format!("5 machines, {} errors, 0 warnings", findings.len()), "{text}");
    for says in [
        &format!("document 1, {SHOWN}: error: "),
        &format!("\"{SHOWN}\" is not a time zone"),
        &format!("spec.{SHOWN}: unknown field"),
        &format!("{SHOWN}.yaml: error: "),
        "kind: must be ScheduledMachine",
        r"document 1, a\u{202e}b: error: ",
        "broken.yaml: error: ",
        "refused.yaml: error: ",
    ] {
        assert!(text.contains(says), "{says}:\n{text}");
    }

    // For scripts the names are what they are.
    let output = run(&["schedule", "lint", "-f", folder, "-o", "json"]);
    let data: Value = serde_json::from_str(&printed(&output)).unwrap();
    let names: Vec<&Value> = data["findings"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert!(names.contains(&&Value::from(HOSTILE)), "{names:?}");
}

#[test]
fn a_file_that_is_not_there_is_named_and_not_obeyed() {
    let output = run(&["schedule", "preview", "-f", HOSTILE]);
    assert_eq!(
        printed(&output),
        format!("5spot: cannot read {SHOWN}: No such file or directory (os error 2)\n")
    );
    let output = run(&["get", "--kubeconfig", HOSTILE]);
    assert_eq!(
        printed(&output),
        format!("5spot: could not use --kubeconfig {SHOWN}: No such file or directory (os error 2)\n")
    );
}

/// Runs a command line with at most 500 MB of memory, and something on its standard input.
fn shell(line: &str, input: Stdio) -> Output {
    let bin = Path::new(env!("CARGO_BIN_EXE_5spot")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let line = format!("ulimit -v 500000; {line}");
    let began = Instant::now();
    let output = Command::new("sh").args(["-c", &line]).env("PATH", path).stdin(input).output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{line} took {:?}", began.elapsed());
    output
}

const TOO_LARGE: &str =
    "it is larger than 16 MiB, the most that is read of such a file: split it into several";

#[test]
fn a_file_is_read_up_to_a_bound_whatever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let sparse = |name: &str, bytes: u64| {
        File::create(path(name)).unwrap().set_len(bytes).unwrap();
        path(name)
    };
    let refused = |file: &str, output: &Output| {
        let text = printed(output);
        assert_eq!(text, format!("5spot: cannot read {file}: {TOO_LARGE}\n"));
        assert_eq!(output.status.code(), Some(2));
    };

    // One byte more than the bound, and more than any memory.
    for huge in [sparse("huge.yaml", (16 << 20) + 1), sparse("endless.yaml", 1 << 40)] {
        refused(&huge, &shell(&format!("5spot schedule preview -f {huge}"), Stdio::null()));
    }
    // A file as large as the bound is read, whatever becomes of it: these are no letters.
    let output =
        shell(&format!("5spot schedule preview -f {}", sparse("full.yaml", 16 << 20)), Stdio::null());
    assert!(printed(&output).contains("is not YAML that can be read"), "{}", printed(&output));

    refused("/dev/zero", &shell("5spot schedule explain -f /dev/zero", Stdio::null()));
    let zero = || Stdio::from(File::open("/dev/zero").unwrap());
    refused("standard input", &shell("5spot schedule explain -f -", zero()));

    // A pipe with a name, that somebody fills and never closes.
    let pipe = path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let path_to_fill = pipe.clone();
    let writer = std::thread::spawn(move || {
        let mut pipe = fs::OpenOptions::new().write(true).open(path_to_fill).unwrap();
        loop {
            if let Err(error) = pipe.write_all(&[b'a'; 1 << 12]) {
                return error.kind();
            }
        }
    });
    refused(&pipe, &shell(&format!("5spot schedule explain -f {pipe}"), Stdio::null()));
    assert_eq!(writer.join().unwrap(), ErrorKind::BrokenPipe);

    // In a folder a pipe is not waited for, and what is too large hides nothing else.
    fs::rename(&pipe, path("pipe.yaml")).unwrap();
    fs::remove_file(path("full.yaml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("zero.yaml")).unwrap();
    fs::copy(root().join("examples/workstation.yaml"), path("good.yaml")).unwrap();
    let output = shell(&format!("5spot schedule lint -f {}", folder.path().display()), Stdio::null());
    let text = printed(&output);
    assert_eq!(text.matches(TOO_LARGE).count(), 2, "{text}");
    assert_eq!(text.matches("it is not a file").count(), 2, "{text}");
    assert!(text.ends_with("1 machines, 4 errors, 0 warnings\n"), "{text}");
}

#[test]
fn a_kubeconfig_is_read_up_to_a_bound_whatever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let large = path("large");
    File::create(&large).unwrap().set_len((1 << 20) + 1).unwrap();
    let says = |line: &str, says: &str| {
        let output = shell(line, Stdio::null());
        let text = printed(&output);
        assert!(text.contains(says), "{line}: {text}");
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
    };
    let too_large = "it is larger than 1 MiB, the most that is read of such a file";
    for file in [&large, "/dev/zero"] {
        says(
            &format!("5spot get --kubeconfig {file}"),
            &format!("could not use --kubeconfig {file}: {too_large}"),
        );
        says(&format!("KUBECONFIG={file} 5spot get"), too_large);
        says(&format!("KUBECONFIG={file} 5spot get"), file);
        // The first of several is good.
        let good = path("good");
        fs::write(&good, config("http://127.0.0.1:1")).unwrap();
        says(&format!("KUBECONFIG={good}:{file} 5spot get"), too_large);
    }

    // What comes through a pipe is read as ever: the server that it names does not answer.
    let good = path("good");
    fs::write(&good, config("http://127.0.0.1:1")).unwrap();
    says(&format!("cat {good} | 5spot get --kubeconfig /dev/stdin"), "Connection refused");
    // Files that it names are looked for beside it.
    fs::write(
        path("beside"),
        config("https://127.0.0.1:1")
            .replace("\"server\"", "\"certificate-authority\":\"ca.crt\",\"server\""),
    )
    .unwrap();
    says(&format!("5spot get --kubeconfig {}", path("beside")), "ca.crt");
}

#[test]
fn a_kubeconfig_with_a_mistake_is_not_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "apiVersion: v1\nusers:\n- name: a\n  user:\n    token: do-not-show\n   broken: [\n")
        .unwrap();
    let output = run(&["get", "--kubeconfig", path.to_str().unwrap()]);
    let text = printed(&output);
    assert!(text.contains("it is not a kubeconfig: ") && text.lines().count() == 1, "{text}");
    assert!(!text.contains("do-not-show"), "{text}");
}

fn config(server: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    })
    .to_string()
}
