//! How long it takes from the start of a program to the verdict: by the kernel's events, by the range poll, and by a
//! poll of everything every 250 ms, on a quiet host and in a storm of other starts. All in one run, in turns, so that
//! what else the machine does falls on all of them.
//!
//! Then the same until the request stands on the Node, through the agent itself and a real API server.
//!
//! The time begins before the fork, so it contains the fork and the exec themselves, about a millisecond.
//!
//! `make bench`, as root for the rows of the kernel's events.

mod annotated;

use annotated::Cluster;
use anyhow::Context;
use fivespot_agent::detector::{Choice, Detector, Orders, Settings, look_once};
use fivespot_agent::metrics::Metrics;
use fivespot_agent::source::Kind;
use fivespot_core::process::Patterns;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The program that is looked for.
const NAME: &str = "zqfigure";

/// How long it runs if nobody sees it.
const LIFE: Duration = Duration::from_millis(600);

/// Starts in each turn, and turns.
const STARTS: u64 = 25;
const TURNS: usize = 4;

/// Time between two looks of the plain poll.
const PLAIN: Duration = Duration::from_millis(250);

/// Who looks.
#[derive(Clone, Copy)]
enum Looker {
    Detector(Kind),
    PlainPoll,
    /// The agent, until the request stands.
    Agent(Kind),
}

/// One row of the table.
struct Row {
    looker: Looker,
    stormy: bool,
    times: Vec<Duration>,
    missed: usize,
}

fn main() -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("figures-{}", std::process::id()));
    std::fs::create_dir(&folder).context("make a folder")?;
    let program = folder.join(NAME);
    std::fs::copy("/bin/sleep", &program).context("copy sleep")?;
    let outcome = measure(&folder, &program);
    std::fs::remove_dir_all(&folder).context("remove the folder")?;
    print(&outcome?);
    Ok(())
}

fn measure(folder: &Path, program: &Path) -> anyhow::Result<Vec<Row>> {
    let cluster = Cluster::start(folder)?;
    let lookers = [
        Looker::Detector(Kind::Netlink),
        Looker::Detector(Kind::Poll),
        Looker::PlainPoll,
        Looker::Agent(Kind::Netlink),
        Looker::Agent(Kind::Poll),
    ];
    let row = |looker, stormy| Row { looker, stormy, times: Vec::new(), missed: 0 };
    let mut rows: Vec<Row> =
        [false, true].into_iter().flat_map(|stormy| lookers.map(|looker| row(looker, stormy))).collect();
    for _ in 0..TURNS {
        for row in &mut rows {
            let storms = if row.stormy { storm()? } else { Vec::new() };
            let outcome = turn(row, &cluster, program);
            for mut storm in storms {
                storm.kill().context("end the storm")?;
                storm.wait().context("end the storm")?;
            }
            outcome?;
        }
    }
    Ok(rows)
}

/// Other starts, one after the other, on every processor of a small machine.
fn storm() -> anyhow::Result<Vec<Child>> {
    let one = || Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn();
    (0..2).map(|_| one().context("start the storm")).collect()
}

fn turn(row: &mut Row, cluster: &Cluster, program: &Path) -> anyhow::Result<()> {
    let (tell, seen) = channel();
    let patterns = Patterns::new(&[NAME], &[]);
    match row.looker {
        Looker::Detector(kind) => {
            let settings = Settings::new("/proc".into(), Choice::Only(kind));
            let tell = move |_| {
                let _ = tell.send(Instant::now());
            };
            let detector = Detector::start(settings, Metrics::default(), tell)?;
            detector.order(Some(Orders { patterns, interval: PLAIN }));
            starts(row, program, &seen)
        }
        Looker::PlainPoll => {
            let ended = Arc::new(AtomicBool::new(false));
            let thread = {
                let ended = Arc::clone(&ended);
                std::thread::spawn(move || plain_poll(&patterns, &tell, &ended))
            };
            let outcome = starts(row, program, &seen);
            ended.store(true, Ordering::Release);
            // It only loops: it cannot have panicked.
            let _ = thread.join();
            outcome
        }
        Looker::Agent(kind) => {
            for time in cluster.turn(kind, program)? {
                match time {
                    Some(time) => row.times.push(time),
                    None => row.missed += 1,
                }
            }
            Ok(())
        }
    }
}

fn plain_poll(patterns: &Patterns, tell: &Sender<Instant>, ended: &AtomicBool) {
    while !ended.load(Ordering::Acquire) {
        std::thread::sleep(PLAIN);
        if let Ok(Some(_)) = look_once(Path::new("/proc"), patterns) {
            let _ = tell.send(Instant::now());
        }
    }
}

fn starts(row: &mut Row, program: &Path, seen: &Receiver<Instant>) -> anyhow::Result<()> {
    for number in 0..STARTS {
        // At no fixed moment of anybody's interval.
        std::thread::sleep(Duration::from_millis(30 + number * 37 % 250));
        while seen.try_recv().is_ok() {}
        let began = Instant::now();
        let mut child =
            Command::new(program).arg("60").stdin(Stdio::null()).spawn().context("start the program")?;
        match seen.recv_timeout(LIFE) {
            Ok(at) => row.times.push(at.saturating_duration_since(began)),
            Err(_) => row.missed += 1,
        }
        child.kill().context("end the program")?;
        child.wait().context("end the program")?;
    }
    Ok(())
}

fn print(rows: &[Row]) {
    println!(
        "{:<14} {:<6} {:>6} {:>6} {:>11} {:>11} {:>11}",
        "", "host", "seen", "missed", "p50", "p99", "max"
    );
    for row in rows {
        let name = match row.looker {
            Looker::Detector(kind) => kind.word(),
            Looker::PlainPoll => "poll of 250 ms",
            Looker::Agent(Kind::Netlink) => "netlink, asked",
            Looker::Agent(Kind::Poll) => "poll, asked",
        };
        let host = if row.stormy { "storm" } else { "quiet" };
        let mut times = row.times.clone();
        times.sort_unstable();
        let at = |percent: usize| {
            let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
            times
                .get(place)
                .map_or_else(|| "-".to_owned(), |time| format!("{:.2} ms", time.as_secs_f64() * 1e3))
        };
        let (seen, missed) = (times.len(), row.missed);
        println!("{name:<14} {host:<6} {seen:>6} {missed:>6} {:>11} {:>11} {:>11}", at(50), at(99), at(100));
    }
}
