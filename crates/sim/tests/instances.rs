//! Many instances share slots on a server that answers late, or never, or twice; they are stopped, killed, started again
//! and told other counts. At no moment do two of them believe that they look after the same machine, and in the end
//! each machine has exactly one.

#![expect(clippy::unwrap_used, reason = "tests: the line that fails is the message")]

use fivespot_core::slots::{Found, Instance, Moment, Slots, Timing, Write, slot_of};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
const TIMING: Timing = Timing {
    duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};

/// How long a call is awaited.
const CALL: Duration = Duration::from_millis(2500);

/// Machines that somebody must look after.
const MACHINES: usize = 24;

/// The generator called SplitMix64.
struct Dice {
    seed: u64,
    /// Whether messages arrive at once.
    calm: bool,
}

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// How long a message is on its way: mostly not at all, sometimes longer than anybody waits.
    fn delay(&mut self) -> Duration {
        match self.below(40) {
            _ if self.calm => Duration::ZERO,
            0 => SECOND * u32::try_from(self.below(30)).unwrap(),
            1..=6 => TICK * u32::try_from(self.below(15)).unwrap(),
            _ => Duration::ZERO,
        }
    }
}

/// The server: one object for each slot, each write with the version it was decided on.
#[derive(Default)]
struct Server {
    leases: BTreeMap<u32, Found>,
    versions: u64,
}

impl Server {
    fn write(&mut self, me: &Instance, write: &Write) -> Answer {
        let before = self.leases.get(&write.slot);
        if before.map(|found| &found.version) != write.version.as_ref() {
            return Answer::Conflict;
        }
        self.versions += 1;
        let version = self.versions.to_string();
        let record = write.what.record(me, before.map(|found| &found.record), &version);
        let found = Found { version, record };
        self.leases.insert(write.slot, found.clone());
        Answer::Done(found)
    }
}

#[derive(Clone)]
enum Answer {
    Done(Found),
    Conflict,
}

/// A write on its way.
struct Letter {
    from: Instance,
    write: Write,
    asked: Moment,
    arrives: Moment,
    returns: Moment,
    /// What came of it, once it has arrived.
    answer: Option<Answer>,
}

enum Doing {
    Sleeping {
        until: Moment,
    },
    Looking {
        asked: Moment,
        arrives: Moment,
        returns: Moment,
        seen: Option<BTreeMap<u32, Found>>,
    },
    /// It has decided and not yet sent: it may be stopped in between.
    Deciding {
        writes: Vec<Write>,
    },
    Writing {
        letters: Vec<Letter>,
        give_up: Moment,
    },
    Ended,
}

struct Process {
    slots: Slots,
    doing: Doing,
    stopped_until: Moment,
    /// Its clock is its own.
    ahead: Duration,
    ends: bool,
    /// The slot of each machine, by its count.
    slot_of: Vec<u32>,
}

impl Process {
    fn new(instance: Instance, dice: &mut Dice) -> Self {
        let ahead = SECOND * u32::try_from(dice.below(1000)).unwrap();
        let (doing, stopped_until) = (Doing::Sleeping { until: Duration::ZERO }, Duration::ZERO);
        let slot_of = |machine| slot_of("lab", &format!("m{machine}"), instance.count);
        let slot_of = (0..MACHINES).map(slot_of).collect();
        Self { slots: Slots::new(instance), doing, stopped_until, ahead, ends: false, slot_of }
    }

    /// The machines it believes to look after.
    fn owns(&self, now: Moment) -> Vec<usize> {
        let held = self.slots.held(now + self.ahead);
        (0..MACHINES).filter(|machine| held.contains_key(&self.slot_of[*machine])).collect()
    }

    fn step(&mut self, now: Moment, server: &mut Server, late: &mut Vec<Letter>, dice: &mut Dice) {
        let local = now + self.ahead;
        match &mut self.doing {
            Doing::Sleeping { until } if now >= *until => {
                let arrives = now + dice.delay();
                let returns = arrives + dice.delay();
                self.doing = Doing::Looking { asked: now, arrives, returns, seen: None };
            }
            Doing::Ended | Doing::Sleeping { .. } => {}
            Doing::Looking { asked, arrives, returns, seen } => {
                if seen.is_none() && now >= *arrives {
                    *seen = Some(server.leases.clone());
                }
                if now > *asked + CALL {
                    self.doing = Doing::Sleeping { until: now + TICK };
                } else if now >= *returns {
                    let seen = seen.take().unwrap_or_default();
                    self.slots.see(local, seen);
                    let writes = if self.ends {
                        self.slots.free_all(local)
                    } else {
                        let mut writes = self.slots.free(&self.slots.to_hand_over(), local);
                        writes.extend(self.slots.plan(local));
                        writes
                    };
                    let slots: BTreeSet<u32> = writes.iter().map(|write| write.slot).collect();
                    assert_eq!(slots.len(), writes.len(), "two writes to one Lease: {writes:?}");
                    self.doing = Doing::Deciding { writes };
                }
            }
            Doing::Deciding { writes } => {
                let from = self.slots.me().clone();
                let letters = std::mem::take(writes).into_iter().map(|write| {
                    let arrives = now + dice.delay();
                    let returns = arrives + dice.delay();
                    Letter { from: from.clone(), write, asked: local, arrives, returns, answer: None }
                });
                self.doing = Doing::Writing { letters: letters.collect(), give_up: now + CALL };
            }
            Doing::Writing { letters, give_up } => {
                for letter in
                    letters.iter_mut().filter(|letter| letter.answer.is_none() && now >= letter.arrives)
                {
                    letter.answer = Some(server.write(&letter.from, &letter.write));
                }
                let is_back = |letter: &Letter| now >= letter.returns && letter.answer.is_some();
                if !letters.iter().all(is_back) && now <= *give_up {
                    return;
                }
                for letter in std::mem::take(letters) {
                    match letter.answer.clone() {
                        Some(Answer::Done(found)) if is_back(&letter) && now <= *give_up => {
                            self.slots.wrote(&letter.write, letter.asked, local, found);
                        }
                        // Nobody waits for it any more, and yet it may arrive.
                        None => late.push(letter),
                        Some(_) => {}
                    }
                }
                let next = self.slots.next(local).saturating_sub(self.ahead).max(now);
                self.doing = if self.ends { Doing::Ended } else { Doing::Sleeping { until: next } };
            }
        }
    }
}

struct Run {
    now: Moment,
    server: Server,
    late: Vec<Letter>,
    processes: Vec<Process>,
    started: u32,
    dice: Dice,
}

impl Run {
    fn new(seed: u64) -> Self {
        let (server, late, processes) = (Server::default(), Vec::new(), Vec::new());
        Self { now: SECOND, server, late, processes, started: 0, dice: Dice { seed, calm: false } }
    }

    fn start(&mut self, slots: u32) {
        self.started += 1;
        let own = (!self.dice.one_in(3)).then(|| u32::try_from(self.dice.below(u64::from(slots))).unwrap());
        let (name, count) = (format!("p{}", self.started), NonZeroU32::new(slots).unwrap());
        let instance = Instance { uid: name.clone(), name, own, count, timing: TIMING };
        self.processes.push(Process::new(instance, &mut self.dice));
    }

    /// A moment passes; which machines have no owner after it.
    fn tick(&mut self) -> Vec<usize> {
        self.now += TICK;
        let (arrived, late) =
            std::mem::take(&mut self.late).into_iter().partition(|letter| self.now >= letter.arrives);
        self.late = late;
        let arrived: Vec<Letter> = arrived;
        for letter in arrived {
            self.server.write(&letter.from, &letter.write);
        }
        for process in &mut self.processes {
            if self.now >= process.stopped_until {
                process.step(self.now, &mut self.server, &mut self.late, &mut self.dice);
            }
        }
        self.processes.retain(|process| !matches!(process.doing, Doing::Ended));
        let mut owners = [0; MACHINES];
        for process in &self.processes {
            process.owns(self.now).into_iter().for_each(|machine| owners[machine] += 1);
        }
        assert!(owners.iter().all(|owners| *owners < 2), "owners of each machine: {owners:?}");
        (0..MACHINES).filter(|machine| owners[*machine] == 0).collect()
    }

    /// Who holds each slot, by its Lease.
    fn holders(&self) -> BTreeMap<u32, Option<String>> {
        let holder = |found: &Found| found.record.holder.as_ref().map(|holder| holder.uid.clone());
        self.server.leases.iter().map(|(slot, found)| (*slot, holder(found))).collect()
    }

    fn disturb(&mut self, slots: &mut u32) {
        let victim = |run: &mut Self| {
            let all = u64::try_from(run.processes.len()).unwrap();
            (all > 0).then(|| usize::try_from(run.dice.below(all)).unwrap())
        };
        if self.dice.one_in(150) {
            *slots = 1 + u32::try_from(self.dice.below(4)).unwrap();
        }
        if self.processes.len() < 4 && self.dice.one_in(30) {
            self.start(*slots);
        }
        if self.dice.one_in(80)
            && let Some(victim) = victim(self)
        {
            let long = SECOND * u32::try_from(self.dice.below(40)).unwrap();
            self.processes[victim].stopped_until = self.now + long;
        }
        if self.dice.one_in(200)
            && let Some(victim) = victim(self)
        {
            // Killed, sometimes to come back under its name and with another count.
            let dead = self.processes.remove(victim);
            if let Doing::Writing { letters, .. } = dead.doing {
                self.late.extend(letters.into_iter().filter(|letter| letter.answer.is_none()));
            }
            if self.dice.one_in(2) {
                let count = NonZeroU32::new(*slots).unwrap();
                let instance = Instance { count, ..dead.slots.me().clone() };
                self.processes.push(Process::new(instance, &mut self.dice));
            }
        }
        if self.dice.one_in(120)
            && let Some(victim) = victim(self)
        {
            self.processes[victim].ends = true;
        }
    }
}

#[test]
fn no_machine_ever_has_two_owners_and_each_has_one_in_the_end() {
    let seeds = if std::env::var_os("FIVESPOT_PROOF").is_some() { 30_000 } else { 500 };
    let mut changes = 0;
    for seed in 0..seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            let mut slots = 3;
            (0..3).for_each(|_| run.start(slots));
            for _ in 0..3000 {
                run.disturb(&mut slots);
                run.tick();
            }
            // Quiet: nobody goes by an old count any more, and messages arrive.
            run.processes.retain(|process| process.slots.me().count.get() == slots && !process.ends);
            run.start(slots);
            run.dice.calm = true;
            // Some are stopped for 40 s more, Leases run out after 15, and whoever takes over is asked after 15.
            for _ in 0..1200 {
                run.tick();
            }
            let holders = run.holders();
            for _ in 0..300 {
                let orphans = run.tick();
                assert!(orphans.is_empty(), "{orphans:?} have no owner");
            }
            assert_eq!(run.holders(), holders, "they do not come to rest");
            run.server.versions
        });
        changes += outcome.unwrap_or_else(|_| panic!("seed {seed}"));
    }
    println!("{seeds} lives of 5 minutes, {changes} writes to Leases: one owner at every moment");
}
