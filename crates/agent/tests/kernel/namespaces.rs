//! Where the kernel's events cannot be had, that is said with its cause; polling takes over.

use crate::harness::{Agent, Program, both, may_run, run_agent, skipped, token};
use crate::{alone, beside_others};
use fivespot_agent::connector::{Connector, Settings, Unusable};
use fivespot_agent::wire::ConnectorId;
use std::process::Command;

/// Whether the host lets a program be started so.
fn can(test: &str, prefix: &[&str]) -> bool {
    let able = Command::new(prefix[0]).args(&prefix[1..]).arg("true").output();
    let able = able.is_ok_and(|output| output.status.success());
    if !able {
        skipped(test, &format!("{} does not work here", prefix.join(" ")));
    }
    able
}

/// A forced detector fails with `cause`; `auto` says the same and works.
fn check(test: &str, prefix: &[&str], cause: &str) {
    if !may_run(test) || !can(test, prefix) {
        return;
    }
    let _listeners = beside_others();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("c.toml");
    std::fs::write(&config, both(&["zq-nothing"])).unwrap();
    let (code, said) =
        run_agent(prefix, &["--config", config.to_str().unwrap(), "--detector=netlink", "--health-port=0"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--detector=netlink cannot work here") && said.contains(cause), "{said}");
}

#[test]
fn without_the_network_of_the_host_it_asks_for_host_network() {
    check("without_the_network_of_the_host", &["unshare", "-n"], "set hostNetwork: true");
}

#[test]
fn without_the_processes_of_the_host_it_asks_for_host_pid() {
    check("without_the_processes_of_the_host", &["unshare", "-p", "-f"], "set hostPID: true");
}

#[test]
fn without_the_users_of_the_host_it_asks_for_host_users() {
    check("without_the_users_of_the_host", &["unshare", "-U"], "hostUsers: true");
}

#[test]
fn without_the_network_of_the_host_polling_takes_over() {
    let test = "without_the_network_of_the_host_polling_takes_over";
    // Its metrics are in the other network too: the log must do.
    if !may_run(test) || !can(test, &["unshare", "-n"]) {
        return;
    }
    let _listeners = beside_others();
    let token = token();
    let agent = Agent::try_out_by(&["unshare", "-n"], &both(&[&token]), "auto");
    let warnings = |log: &str| log.lines().filter(|line| line.contains("WARN")).count();
    assert!(agent.log().contains("polling for processes, since"), "{}", agent.log());
    let program = Program::sleeper(&token);
    let _running = program.run();
    let began = std::time::Instant::now();
    while !agent.has_seen(&token) {
        assert!(began.elapsed().as_secs() < 30, "{}", agent.log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(warnings(&agent.log()), 1, "{}", agent.log());
}

#[test]
fn without_the_processes_of_the_host_a_poll_says_what_it_does_not_see() {
    let test = "without_the_processes_of_the_host_a_poll_says_what_it_does_not_see";
    let prefix = ["unshare", "-p", "-f", "--kill-child", "--mount-proc"];
    if !may_run(test) || !can(test, &prefix) {
        return;
    }
    let agent = Agent::try_out_by(&prefix, &both(&["zq-nothing"]), "poll");
    assert!(
        agent.log().contains("only its own processes are seen; in a pod, set hostPID: true"),
        "{}",
        agent.log()
    );
}

#[test]
fn a_connector_that_nobody_registered_does_not_answer() {
    if !may_run("a_connector_that_nobody_registered_does_not_answer") {
        return;
    }
    // What a kernel without CONFIG_PROC_EVENTS looks like.
    let nobody = ConnectorId { index: 0x5107, value: 1 };
    let opened = Connector::open(Settings { connector: nobody, ..Settings::default() });
    assert_eq!(opened.err(), Some(Unusable::NotAcknowledged));
}

/// Since 6.6 everybody may listen.
fn kernel_lets_everybody_listen() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        release.split(|char: char| !char.is_ascii_digit()).map(|part| part.parse().unwrap_or(0u32));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 6)
}

#[test]
fn the_capability_that_is_needed_is_named() {
    let test = "the_capability_that_is_needed_is_named";
    if !may_run(test) {
        return;
    }
    let _alone = alone();
    let matrix: [(&[&str], bool); 4] = [
        (&["setpriv", "--bounding-set", "-all"], false),
        (&["setpriv", "--bounding-set", "-net_admin"], false),
        (&["setpriv", "--bounding-set", "-all,+net_admin"], true),
        (&["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"], false),
    ];
    for (prefix, has_it) in matrix {
        if !can(test, prefix) {
            continue;
        }
        let token = token();
        if has_it || kernel_lets_everybody_listen() {
            let agent = Agent::try_out_by(prefix, &both(&[&token]), "netlink");
            let program = Program::sleeper(&token);
            let _running = program.run();
            agent.sees(&token);
        } else {
            check(test, prefix, "the capability NET_ADMIN");
        }
    }
}
