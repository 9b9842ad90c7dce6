//! What is found, by each detector: programs in every disguise that a program can come in.

use crate::beside_others;
use crate::harness::{
    Agent, DETECTORS, Program, QUIET, Running, both, may_run, run_agent, skipped, sleep, token, until,
};
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Starts an agent for each detector and lets `disguise` start something that `pattern` must find.
fn check(test: &str, pattern: &str, config: &str, disguise: impl Fn() -> Running) {
    if !may_run(test) {
        return;
    }
    let _listeners = beside_others();
    for detector in DETECTORS {
        let agent = Agent::try_out(config, detector);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!agent.has_seen(pattern), "{detector}: {}", agent.log());
        let _running = disguise();
        agent.sees(pattern);
        assert_eq!(agent.metric(&format!("fivespot_agent_detector{{kind=\"{detector}\"}}")), 1);
    }
}

fn by_name(pattern: &str) -> String {
    format!("match_commands = [{pattern:?}]\n")
}

fn by_line(pattern: &str) -> String {
    format!("match_argv_substrings = [{pattern:?}]\n")
}

#[test]
fn a_program_is_found_when_it_starts() {
    let token = token();
    let program = Program::sleeper(&token);
    check("a_program_is_found_when_it_starts", &token, &both(&[&token]), || program.run());
}

#[test]
fn a_program_is_found_by_its_name_under_another_argv0() {
    let token = token();
    let program = Program::sleeper(&token);
    check("argv0", &token, &by_name(&token), || program.run_as(b"other"));
}

#[test]
fn a_program_is_found_by_its_argv0_under_another_name() {
    let token = token();
    let program = Program::sleeper("plainsleep");
    check("argv0", &token, &by_line(&token), || program.run_as(token.as_bytes()));
}

#[test]
fn a_script_is_found_by_its_name() {
    let token = token();
    let script = Program::script(&token, "/bin/sh");
    check("a_script", &token, &by_name(&token), || Running::start(&mut Command::new(script.path())));
}

#[test]
fn a_script_behind_env_is_found() {
    let token = token();
    let script = Program::script(&token, "/usr/bin/env sh");
    check("env", &token, &both(&[&token]), || Running::start(&mut Command::new(script.path())));
}

#[test]
fn a_shell_that_becomes_the_program_is_found() {
    let token = token();
    let program = Program::sleeper(&token);
    // The shell's own command line does not tell.
    let chain = "sleep 0.4; exec sh -c 'sleep 0.4; exec \"$PROGRAM\" 60'";
    check("chain", &token, &both(&[&token]), || {
        Running::start(Command::new("sh").args(["-c", chain]).env("PROGRAM", program.path()))
    });
}

/// Tests run in threads that are not the first of their process, so this very test can play the process too.
#[test]
fn a_thread_that_becomes_the_program_is_found() {
    const PROGRAM: &str = "FIVESPOT_TEST_PROGRAM";
    if let Some(program) = std::env::var_os(PROGRAM) {
        std::thread::sleep(Duration::from_millis(400));
        panic!("{}", Command::new(program).arg("60").exec());
    }
    let token = token();
    let program = Program::sleeper(&token);
    let this = "found::a_thread_that_becomes_the_program_is_found";
    check("a_thread_that_becomes_the_program_is_found", &token, &both(&[&token]), || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Running::start(command.args(["--exact", this, "--nocapture"]).env(PROGRAM, program.path()))
    });
}

#[test]
fn a_program_that_is_in_memory_alone_is_found() {
    let token = token();
    let memory = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut memory = std::fs::File::from(memory);
    memory.write_all(&sleep()).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    check("a_program_that_is_in_memory_alone_is_found", &token, &by_line(&token), || {
        Running::start(Command::new(&path).arg0(&token).arg("60"))
    });
}

#[test]
fn a_process_that_takes_another_name_is_found() {
    let token = token();
    let rename = "sleep 0.4; printf %s \"$NAME\" >/proc/$$/comm; read x";
    check("rename", &token, &by_name(&token), || {
        Running::start(Command::new("sh").args(["-c", rename]).env("NAME", &token))
    });
}

#[test]
fn the_last_byte_of_a_long_command_line_counts() {
    let token = token();
    let argument = format!("{}{token}", "x".repeat(120_000));
    check("long", &token, &by_line(&token), || {
        Running::start(Command::new("sh").args(["-c", "read x", "sh", &argument]))
    });
}

#[test]
fn bytes_that_are_no_text_do_not_hide_a_program() {
    let token = token();
    let name = [b"\xff\xfe\xc3", &b"bin"[..]].concat();
    let program = Program::sleeper(OsStr::from_bytes(&name));
    let argv0 = [b"\xff\xc3 ", token.as_bytes(), b"\xe2\x82"].concat();
    check("bytes", &token, &both(&[&token]), || program.run_as(&argv0));
}

#[test]
fn a_name_of_sixteen_characters_is_found_by_the_fifteen_that_are_kept() {
    let name = format!("{}123456", token());
    assert_eq!(name.len(), 16);
    let program = Program::sleeper(&name);
    check("sixteen", &name, &by_name(&name), || program.run_as(b"other"));
}

#[test]
fn a_name_that_is_cut_inside_a_letter_is_found() {
    let name = format!("{}1234ö", token());
    assert_eq!(name.len(), 16);
    let program = Program::sleeper(&name);
    check("cut", &name, &by_name(&name), || program.run_as(b"other"));
}

#[test]
fn what_runs_already_is_found_at_the_start() {
    if !may_run("what_runs_already_is_found_at_the_start") {
        return;
    }
    let _listeners = beside_others();
    let token = token();
    let program = Program::sleeper(&token);
    let running = program.run();
    let comm = format!("/proc/{}/comm", running.pid());
    until("the program runs", || std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == token));
    for detector in DETECTORS {
        let agent = Agent::try_out(&both(&[&token]), detector);
        agent.sees(&token);
        // And not only by the scan that comes every ten seconds.
        assert_eq!(agent.metric("fivespot_agent_scans_total{cause=\"interval\"}"), 0);
    }
}

#[test]
fn one_look_says_by_its_code_whether_something_runs() {
    let token = token();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("c.toml");
    let look = || run_agent(&[], &["--oneshot", "--config", config.to_str().unwrap()]);
    std::fs::write(&config, by_name(&token)).unwrap();
    assert_eq!(look().0, Some(1));
    let program = Program::sleeper(&token);
    let running = program.run();
    until("one look finds it", || look().0 == Some(0));
    drop(running);
    assert_eq!(look().0, Some(1));
    std::fs::write(&config, "match_comands = []").unwrap();
    let (code, said) = look();
    assert_eq!(code, Some(2));
    assert!(said.contains("unknown key match_comands: write match_commands"), "{said}");
}

#[test]
fn a_command_line_never_gets_into_the_log() {
    if !may_run("a_command_line_never_gets_into_the_log") {
        return;
    }
    let _listeners = beside_others();
    let (token, secret) = (token(), token());
    let agent = Agent::try_out(&by_line(&token), "auto");
    let line = format!("{token} --password={secret}");
    let _running = Running::start(Command::new("sh").args(["-c", "read x", "sh", &line]));
    agent.sees(&token);
    assert!(!agent.log().contains(&secret) && !agent.http("/metrics").1.contains(&secret), "{}", agent.log());
}

#[test]
fn the_name_of_a_thread_is_not_the_name_of_a_program() {
    if !may_run("the_name_of_a_thread_is_not_the_name_of_a_program") {
        return;
    }
    let _listeners = beside_others();
    let token = token();
    let agents = DETECTORS.map(|detector| Agent::try_out(&by_name(&token), detector));
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let wait = move || stopped.recv().unwrap_or_default();
    let thread = std::thread::Builder::new().name(token.clone()).spawn(wait).unwrap();
    std::thread::sleep(QUIET);
    for agent in &agents {
        assert!(!agent.has_seen(&token), "{}", agent.log());
    }
    drop(stop);
    thread.join().unwrap();
}

#[test]
fn a_number_that_is_given_again_is_looked_at_again() {
    let test = "a_number_that_is_given_again_is_looked_at_again";
    if !may_run(test) {
        return;
    }
    let last = "/proc/sys/kernel/ns_last_pid";
    if std::fs::OpenOptions::new().write(true).open(last).is_err() {
        return skipped(test, "this kernel does not let the last process number be set");
    }
    let _listeners = beside_others();
    for detector in DETECTORS {
        let token = token();
        let (harmless, program) = (Program::sleeper("plainsleep"), Program::sleeper(&token));
        let agent = Agent::try_out(&both(&[&token]), detector);
        let mut given_again = None;
        for _ in 0..50 {
            let pid = harmless.run().pid();
            std::thread::sleep(Duration::from_millis(60));
            std::fs::write(last, (pid - 1).to_string()).unwrap();
            let running = program.run();
            if running.pid() == pid {
                given_again = Some(running);
                break;
            }
        }
        if given_again.is_none() {
            return skipped(test, "other processes took the number every time");
        }
        agent.sees(&token);
    }
}

#[test]
fn in_a_storm_every_program_is_found() {
    if !may_run("in_a_storm_every_program_is_found") {
        return;
    }
    let _listeners = beside_others();
    let tokens: Vec<String> = (0..20).map(|_| token()).collect();
    let patterns: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let programs: Vec<Program> = tokens.iter().map(Program::sleeper).collect();
    for detector in DETECTORS {
        let agent = Agent::try_out(&by_name_all(&patterns), detector);
        let storm = "while :; do /bin/true; done";
        let storms: Vec<Running> =
            (0..2).map(|_| Running::start(Command::new("sh").args(["-c", storm]))).collect();
        for (token, program) in tokens.iter().zip(&programs) {
            // Gone before the next full scan: only the detector itself can have seen it.
            let running = program.run_for("0.3");
            std::thread::sleep(Duration::from_millis(400));
            drop(running);
            until(&format!("{detector} has seen {token}"), || agent.has_seen(token));
        }
        drop(storms);
    }
}

/// A control group with a twentieth of a processor, which goes with this value.
struct Throttle(PathBuf);

impl Throttle {
    fn new() -> std::io::Result<Self> {
        let v1 = Path::new("/sys/fs/cgroup/cpu");
        if v1.join("cpu.cfs_quota_us").exists() || v1.join("cgroup.procs").exists() {
            let this = Self(v1.join(token()));
            std::fs::create_dir(&this.0)?;
            std::fs::write(this.0.join("cpu.cfs_period_us"), "100000")?;
            std::fs::write(this.0.join("cpu.cfs_quota_us"), "5000")?;
            return Ok(this);
        }
        let v2 = Path::new("/sys/fs/cgroup");
        std::fs::write(v2.join("cgroup.subtree_control"), "+cpu")?;
        let this = Self(v2.join(token()));
        std::fs::create_dir(&this.0)?;
        std::fs::write(this.0.join("cpu.max"), "5000 100000")?;
        Ok(this)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn with_hardly_any_processor_a_program_of_an_instant_is_found_in_a_storm() {
    let test = "with_hardly_any_processor_a_program_of_an_instant_is_found_in_a_storm";
    if !may_run(test) {
        return;
    }
    let _listeners = beside_others();
    let throttle = match Throttle::new() {
        Ok(throttle) => throttle,
        Err(error) => return skipped(test, &format!("no processor quota can be set: {error}")),
    };
    let tokens: Vec<String> = (0..5).map(|_| token()).collect();
    let patterns: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let programs: Vec<Program> = tokens.iter().map(Program::sleeper).collect();
    let agent = Agent::try_out(&by_name_all(&patterns), "netlink");
    for thread in std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap() {
        let thread = thread.unwrap().file_name().into_encoded_bytes();
        std::fs::write(throttle.0.join("tasks"), &thread)
            .or_else(|_| std::fs::write(throttle.0.join("cgroup.procs"), agent.pid().to_string()))
            .unwrap();
    }
    let storm = Running::start(Command::new("sh").args(["-c", "while :; do /bin/true; done"]));
    for (token, program) in tokens.iter().zip(&programs) {
        let running = program.run_for("0.6");
        std::thread::sleep(Duration::from_millis(700));
        drop(running);
        until(&format!("{token} is seen"), || agent.has_seen(token));
    }
    drop(storm);
    drop(agent);
}

fn by_name_all(patterns: &[&str]) -> String {
    format!("match_commands = {patterns:?}\n")
}
