//! The wall clock is set while the controller runs. A shim moves it for this one process.

use crate::audit::{is_write, requests};
use crate::harness::{Controller, World};
use crate::wall_clock::Clock;
use crate::{end, plane, worlds};
use jiff::{SignedDuration, Timestamp, ToSpan};
use std::time::{Duration, Instant};

/// How long a machine may take to follow the clock.
const FOLLOWS: Duration = Duration::from_mins(1);

/// Machines, and the hours in which they are lent.
const MACHINES: [(&str, &str); 5] = [
    ("eleven", "* 11 * * *"),
    ("twelve", "* 12 * * *"),
    ("thirteen", "* 13 * * *"),
    ("always", "* 11-13 * * *"),
    ("never", "* 2 * * *"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_is_followed_and_moves_nobody_else() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "clock").await;
    let clock = Clock::new(plane, "set");
    let day = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).start_of_day().unwrap().timestamp();
    // Far from the end of an hour, and of a minute.
    let at = |hour: i64| day + SignedDuration::from_mins(hour * 60 + 30) + 10.seconds();
    clock.set(at(12));
    let controller = Controller::start_with(plane, "clock", &[], &clock.env());
    for (name, cron) in MACHINES {
        world.create(name, cron, |_| {}).await;
    }
    settle(&world, 12).await;
    let lent = uid(&world, "always").await;

    for hour in [13, 12, 11] {
        let since = Timestamp::now();
        clock.set(at(hour));
        let began = Instant::now();
        settle(&world, hour).await;
        println!("set to {hour}:30, followed after {:.1} s", began.elapsed().as_secs_f64());
        assert!(began.elapsed() < FOLLOWS);
        let untouched = |name: &str| name == "always" || name == "never";
        let touched: Vec<_> = requests(plane.management(), since)
            .into_iter()
            .filter(|entry| is_write(entry) && untouched(entry.name.trim_start_matches(&node(&world, ""))))
            .collect();
        assert!(touched.is_empty(), "{touched:#?}");
        assert_eq!(uid(&world, "always").await, lent);
    }
    assert!(controller.log().contains("the clock was set"));
    end(&controller);
}

/// Waits until exactly those are lent that are lent at this hour.
async fn settle(world: &World, hour: i64) {
    let lent = match hour {
        11 => ["eleven", "always"],
        12 => ["twelve", "always"],
        _ => ["thirteen", "always"],
    };
    for (name, _) in MACHINES {
        let phase = if lent.contains(&name) { "Active" } else { "Inactive" };
        world.until_phase(name, phase).await;
    }
}

fn node(world: &World, machine: &str) -> String {
    world.hosts.node_name(machine)
}

async fn uid(world: &World, machine: &str) -> String {
    world.objects("Machine").get(machine).await.unwrap().metadata.uid.unwrap()
}
