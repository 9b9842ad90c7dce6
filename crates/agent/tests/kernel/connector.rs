//! The ways in which the kernel's events fail without an error, and that nothing is missed by them.

use crate::harness::{Agent, PATIENCE, Program, both, may_run, skipped, token, until};
use crate::{alone, beside_others};
use fivespot_agent::connector::{Connector, Settings};
use fivespot_agent::detector::{self, Choice, Detector, Orders, Report, look_once};
use fivespot_agent::metrics::Metrics;
use fivespot_agent::source::{Hint, Kind, Lost, Source};
use fivespot_agent::wire::{self, Ask, Event, PROC};
use fivespot_core::process::Patterns;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::{CONNECTOR, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A socket of the connector without any care: what another program on the host could do.
struct Raw(OwnedFd);

impl Raw {
    fn open() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(CONNECTOR)).unwrap();
        bind(&fd, &SocketAddrNetlink::new(0, 1)).unwrap();
        Self(fd)
    }

    fn send(&self, ask: Ask) {
        let message = wire::request(PROC, ask, 0);
        sendto(&self.0, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).unwrap();
    }

    /// Everything that waits.
    fn receive(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut buffer = [0; 256];
        loop {
            match recv(&self.0, &mut buffer, RecvFlags::empty()) {
                Ok((_, length)) => events.push(wire::parse(&buffer[..length])),
                Err(Errno::AGAIN) => return events,
                Err(_) => {}
            }
        }
    }

    /// Whether the kernel tells of processes at all: it does if anybody is counted as a listener.
    fn hears(&self) -> bool {
        self.receive();
        assert!(Command::new("true").status().unwrap().success());
        self.receive().iter().any(|event| matches!(event, Event::Exec { .. }))
    }
}

/// Takes the count of listeners down by one, as any user can.
fn count_down() {
    let attacker = Raw::open();
    attacker.send(Ask::Unknown);
    attacker.send(Ask::Ignore);
}

/// A kernel that believes that nobody listens, until this value goes.
struct Silence;

impl Silence {
    /// Takes the count down until nobody hears anything.
    fn fall(test: &str) -> Option<Self> {
        let witness = Raw::open();
        for _ in 0..1000 {
            if !witness.hears() {
                return Some(Self);
            }
            count_down();
        }
        skipped(test, "this kernel does not let itself be silenced");
        None
    }

    /// The same, and so far down that a new subscription does not bring it back.
    fn fall_deep(test: &str) -> Option<Self> {
        let silence = Self::fall(test)?;
        for _ in 0..50 {
            count_down();
        }
        Some(silence)
    }
}

impl Drop for Silence {
    /// Counts up until something is heard again. Those who count are gone then, and are counted all the same.
    fn drop(&mut self) {
        let witness = Raw::open();
        for _ in 0..1000 {
            if witness.hears() {
                return;
            }
            Raw::open().send(Ask::Listen);
        }
    }
}

fn execs(count: u32) {
    for _ in 0..count {
        assert!(Command::new("true").status().unwrap().success());
    }
}

fn works(test: &str) -> bool {
    if !may_run(test) {
        return false;
    }
    match std::thread::spawn(|| Connector::open(Settings::default()).map(drop)).join().unwrap() {
        Ok(()) => true,
        Err(why) => {
            skipped(test, &why.to_string());
            false
        }
    }
}

#[test]
fn after_an_overflow_all_is_drained_and_what_was_lost_is_found_by_a_scan() {
    let test = "after_an_overflow_all_is_drained_and_what_was_lost_is_found_by_a_scan";
    let _listeners = beside_others();
    if !works(test) {
        return;
    }
    let mut connector = Connector::open(Settings { receive_bytes: 4096, ..Settings::default() }).unwrap();
    execs(300);
    let token = token();
    let program = Program::sleeper(&token);
    let running = program.run();
    let mut hints: Vec<Hint> = Vec::new();
    assert_eq!(connector.drain(Instant::now(), &mut hints), Err(Lost::Hints));
    assert!(hints.iter().all(|hint| hint.pid != running.pid()), "its event was not lost");
    let patterns = Patterns::new(&[&token], &[]);
    until("a scan finds it", || {
        look_once(Path::new("/proc"), &patterns).unwrap().as_deref() == Some(token.as_str())
    });
    // It goes on: the next start is told of again.
    hints.clear();
    let next = program.run();
    until("the next is told of", || {
        let heard = connector.drain(Instant::now(), &mut hints);
        assert!(!matches!(heard, Err(Lost::Source(_))), "{heard:?}");
        hints.iter().any(|hint| hint.pid == next.pid())
    });
}

fn orders(pattern: &str) -> Orders {
    Orders { patterns: Patterns::new(&[pattern], &[]), interval: Duration::from_millis(250) }
}

#[test]
fn a_detector_that_lost_events_looks_at_everything() {
    let test = "a_detector_that_lost_events_looks_at_everything";
    let _listeners = beside_others();
    if !works(test) {
        return;
    }
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Metrics::new(&mut registry);
    let (tell, reports) = mpsc::channel();
    let mut settings = detector::Settings::new("/proc".into(), Choice::Only(Kind::Netlink));
    settings.connector.receive_bytes = 4096;
    let detector = Detector::start(settings, metrics, move |report| drop(tell.send(report))).unwrap();
    let token = token();
    detector.order(Some(orders(&token)));
    let lost = || {
        let mut metrics = String::new();
        prometheus_client::encoding::text::encode(&mut metrics, &registry).unwrap();
        metrics.contains("fivespot_agent_scans_total{cause=\"loss\"}")
    };
    let storm = "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done";
    let began = Instant::now();
    while !lost() {
        assert!(began.elapsed() < PATIENCE, "no overflow");
        let storms: Vec<_> =
            (0..8).map(|_| Command::new("sh").args(["-c", storm]).spawn().unwrap()).collect();
        for mut storm in storms {
            storm.wait().unwrap();
        }
    }
    let program = Program::sleeper(&token);
    let _running = program.run();
    let Report::Seen(sighting) = reports.recv_timeout(PATIENCE).unwrap() else { panic!("it failed") };
    assert_eq!(*sighting.pattern, *token);
}

#[test]
fn a_subscription_that_is_silenced_is_noticed_and_nothing_is_missed() {
    let test = "a_subscription_that_is_silenced_is_noticed_and_nothing_is_missed";
    let _alone = alone();
    if !works(test) {
        return;
    }
    let (first, second) = (token(), token());
    let agent = Agent::try_out(&both(&[&first, &second]), "auto");
    let Some(_silence) = Silence::fall(test) else { return };
    let program = Program::sleeper(&first);
    let _running = program.run();
    agent.sees(&first);
    until("the silence is noticed", || agent.metric("fivespot_agent_heartbeats_lost_total") > 0);
    until("it has subscribed anew", || agent.log().contains("subscribed anew"));
    assert_eq!(agent.metric("fivespot_agent_detector{kind=\"netlink\"}"), 1);
    let program = Program::sleeper(&second);
    let _running = program.run();
    agent.sees(&second);
}

#[test]
fn a_subscription_that_cannot_be_had_again_is_replaced_by_polling() {
    let test = "a_subscription_that_cannot_be_had_again_is_replaced_by_polling";
    let _alone = alone();
    if !works(test) {
        return;
    }
    let (first, second) = (token(), token());
    let agent = Agent::try_out(&both(&[&first, &second]), "auto");
    let Some(_silence) = Silence::fall_deep(test) else { return };
    let program = Program::sleeper(&first);
    let _running = program.run();
    agent.sees(&first);
    until("polling has taken over", || agent.metric("fivespot_agent_detector{kind=\"poll\"}") == 1);
    let (code, why) = agent.http("/ready");
    assert!(code == 503 && why.contains("it polls for processes"), "{code} {why}");
    assert_eq!(agent.http("/health").0, 200, "it is not restarted for it");
    assert!(agent.log().contains("polling for processes, since"), "{}", agent.log());
    let program = Program::sleeper(&second);
    let _running = program.run();
    agent.sees(&second);
}

#[test]
fn polling_ends_when_the_kernel_tells_again() {
    let test = "polling_ends_when_the_kernel_tells_again";
    let _alone = alone();
    if !works(test) {
        return;
    }
    let Some(silence) = Silence::fall_deep(test) else { return };
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Metrics::new(&mut registry);
    let uses = |kind: &str| {
        let mut metrics = String::new();
        prometheus_client::encoding::text::encode(&mut metrics, &registry).unwrap();
        metrics.contains(&format!("fivespot_agent_detector{{kind=\"{kind}\"}} 1"))
    };
    let mut settings = detector::Settings::new("/proc".into(), Choice::Auto);
    settings.retry = Duration::from_millis(500);
    let (tell, reports) = mpsc::channel();
    let detector = Detector::start(settings, metrics, move |report| drop(tell.send(report))).unwrap();
    let token = token();
    detector.order(Some(orders(&token)));
    until("it polls", || uses("poll"));
    assert!(detector.has_stepped_down());
    drop(silence);
    until("it listens", || uses("netlink"));
    assert!(!detector.has_stepped_down());
    let program = Program::sleeper(&token);
    let _running = program.run();
    let Report::Seen(sighting) = reports.recv_timeout(PATIENCE).unwrap() else { panic!("it failed") };
    assert_eq!(*sighting.pattern, *token);
}

#[test]
fn a_forced_subscription_that_is_lost_for_good_ends_the_agent() {
    let test = "a_forced_subscription_that_is_lost_for_good_ends_the_agent";
    let _alone = alone();
    if !works(test) {
        return;
    }
    let agent = Agent::try_out(&both(&[&token()]), "netlink");
    let Some(_silence) = Silence::fall_deep(test) else { return };
    let why = "--detector=netlink cannot work here";
    let began = Instant::now();
    while !agent.log().contains(why) {
        assert!(began.elapsed() < PATIENCE, "{}\n{}", agent.log(), agent.http("/metrics").1);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_agent_that_is_asked_to_end_unsubscribes() {
    let test = "an_agent_that_is_asked_to_end_unsubscribes";
    let _alone = alone();
    if !works(test) {
        return;
    }
    let agent = Agent::try_out(&both(&[&token()]), "netlink");
    until("it listens", || agent.metric("fivespot_agent_detector{kind=\"netlink\"}") == 1);
    // Answers to requests go to every listener.
    let witness = Raw::open();
    witness.send(Ask::Listen);
    std::thread::sleep(Duration::from_millis(100));
    witness.receive();
    agent.signal("-TERM");
    until("its request to be left alone was answered", || {
        witness.receive().iter().any(|event| matches!(event, Event::Ack { error: 0, .. }))
    });
    until("it has ended", || agent.log().contains("ended"));
    witness.send(Ask::Ignore);
}

#[test]
fn an_agent_with_nothing_to_look_for_does_not_listen() {
    let test = "an_agent_with_nothing_to_look_for_does_not_listen";
    let _alone = alone();
    if !works(test) {
        return;
    }
    let agent = Agent::try_out("", "auto");
    assert_eq!(agent.metric("fivespot_agent_armed"), 0);
    for kind in ["netlink", "poll"] {
        assert_eq!(agent.metric(&format!("fivespot_agent_detector{{kind=\"{kind}\"}}")), 0);
    }
}
