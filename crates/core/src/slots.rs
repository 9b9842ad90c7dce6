//! Which instance of the controller looks after which machine.
//!
//! A machine belongs to a slot by its name alone ([`slot_of`]). A slot is held through a Lease, by one instance at a
//! time; an instance may hold several. [`Slots`] is what one instance knows of all Leases, and says what it writes to
//! them next. It never compares two clocks: a holder is taken for gone when its Lease has not been renewed for its whole
//! duration *on our own clock*, and a holder's own belief ends before that.
//!
//! How many slots there are may change while instances come and go. A Lease records the count that its holder goes by,
//! and two instances with different counts must never hold anything at the same time, since a machine is in another slot
//! by each count. Nothing can compare all Leases and write one in a single step, so it is done as two people do at a
//! door: first say that you go, then look whether the other does. A slot that was taken is *held* only when a look that
//! began after the write shows no live Lease of another count; if both took one, each sees the other, and both step
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

/// The slot of a machine: the one with the highest weight for its name. When their number grows by one, only those
/// machines move for which the new slot is the highest.
pub fn slot_of(namespace: &str, name: &str, count: NonZeroU32) -> u32 {
    let bytes = namespace.bytes().chain([b'/']).chain(name.bytes());
    // The hash called FNV-1a. What it lacks in quality the mixing makes good.
    let key = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    (0..count.get()).max_by_key(|slot| mix(mix(key) ^ mix(u64::from(*slot)))).unwrap_or(0)
}

/// The mixing of the generator called SplitMix64: every bit of the input changes half of the output's.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A moment on a clock that only runs, as the time since its beginning.
pub type Moment = Duration;

/// How long things last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long a Lease is respected that its holder does not renew.
    pub duration: Duration,
    /// How long a holder believes in a Lease that it could not renew. Shorter than the duration.
    pub renew_deadline: Duration,
    /// How often a Lease is renewed, and how often all are looked at.
    pub retry: Duration,
}

/// Who takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its name, for people.
    pub name: String,
    /// Its identity: of two processes with one name only one that follows the other, when that has ended for certain,
    /// may have the same.
    pub uid: String,
    /// The slot it prefers. Without one it takes what it gets.
    pub own: Option<u32>,
    /// How many slots there are.
    pub count: NonZeroU32,
    /// How long things last.
    pub timing: Timing,
}

/// What a Lease says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Who holds it, if anybody.
    pub holder: Option<Holder>,
    /// Who would have it, and asks its holder to hand it over.
    pub wanted_by: Option<String>,
}

/// Who holds a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// The slot that it prefers.
    pub own: Option<u32>,
    /// How many slots there are, for it.
    pub count: NonZeroU32,
    /// How long it asks to be respected without a renewal.
    pub duration: Duration,
    /// Another one with every renewal.
    pub stamp: String,
}

impl Holder {
    fn identity(&self) -> (&str, &str) {
        (&self.name, &self.uid)
    }
}

/// A Lease as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The version of the object: a write must name it.
    pub version: String,
    /// What it says.
    pub record: Record,
}

/// Who looks after a machine, by what the Leases of all slots say.
pub fn owner<'a>(namespace: &str, name: &str, leases: &'a BTreeMap<u32, Record>) -> Option<&'a Holder> {
    let held = leases.iter().filter_map(|(slot, record)| Some((slot, record.holder.as_ref()?)));
    let mut owners = held.filter(|(slot, holder)| slot_of(namespace, name, holder.count) == **slot);
    owners.next().map(|(_, holder)| holder)
}

/// Something to be written to the Lease of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Whose Lease.
    pub slot: u32,
    /// The version it must still have; `None` if there must be none yet.
    pub version: Option<String>,
    /// What it is to say.
    pub what: What,
}

/// What a write does to a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Takes it for us, or renews it if it is ours.
    Hold,
    /// Frees it, and keeps in mind who asked for it.
    Free {
        /// Who.
        wanted_by: Option<String>,
    },
    /// Asks its holder to hand it over to us, and leaves the rest as it is.
    Ask,
}

impl Instance {
    /// Whether it is this one that holds something.
    fn is(&self, holder: &Holder) -> bool {
        (self.name.as_str(), self.uid.as_str()) == holder.identity()
    }
}

impl What {
    /// What the Lease says after the write, if it was carried out by `me`, with `stamp` for a renewal.
    pub fn record(&self, me: &Instance, before: Option<&Record>, stamp: &str) -> Record {
        let holder = before.and_then(|before| before.holder.clone());
        match self {
            Self::Hold => Record {
                holder: Some(Holder {
                    name: me.name.clone(),
                    uid: me.uid.clone(),
                    own: me.own,
                    count: me.count,
                    duration: me.timing.duration,
                    stamp: stamp.to_owned(),
                }),
                wanted_by: None,
            },
            Self::Free { wanted_by } => Record { holder: None, wanted_by: wanted_by.clone() },
            Self::Ask => Record { holder, wanted_by: Some(me.name.clone()) },
        }
    }
}

/// What an instance knows of all Leases.
#[derive(Debug, Clone)]
pub struct Slots {
    me: Instance,
    known: BTreeMap<u32, Known>,
    mine: BTreeMap<u32, Mine>,
    /// How often we stepped back, and until when nothing is taken.
    stepped_back: (u64, Moment),
}

#[derive(Debug, Clone)]
struct Known {
    found: Found,
    /// Since when its holder has not renewed it, or since when it is free.
    since: Moment,
    /// Since when we know it to have this holder.
    held_since: Moment,
}

impl Known {
    /// What is known of a Lease that was found at `now`.
    fn new(found: Found, before: Option<&Self>, now: Moment) -> Self {
        let holder = found.record.holder.as_ref();
        let unchanged = before.filter(|before| before.holder() == holder);
        let of_the_same =
            before.filter(|before| before.holder().map(Holder::identity) == holder.map(Holder::identity));
        let since = unchanged.map_or(now, |before| before.since);
        let held_since = of_the_same.map_or(now, |before| before.held_since);
        Self { found, since, held_since }
    }

    fn holder(&self) -> Option<&Holder> {
        self.found.record.holder.as_ref()
    }
}

/// A Lease that we wrote last.
#[derive(Debug, Clone)]
struct Mine {
    stamp: String,
    /// When the write was sent.
    asked: Moment,
    /// Whether a look after it has shown that nobody goes by another count.
    confirmed: bool,
}

impl Slots {
    /// Nothing is known yet.
    pub fn new(me: Instance) -> Self {
        Self { me, known: BTreeMap::new(), mine: BTreeMap::new(), stepped_back: (0, Duration::ZERO) }
    }

    /// Who we are.
    pub fn me(&self) -> &Instance {
        &self.me
    }

    /// Until when each slot is ours, unless it is renewed.
    pub fn held(&self, now: Moment) -> BTreeMap<u32, Moment> {
        let ours = self.mine.iter().filter(|(_, mine)| mine.confirmed);
        let until = ours.map(|(slot, mine)| (*slot, mine.asked + self.me.timing.renew_deadline));
        until.filter(|(_, until)| now < *until).collect()
    }

    /// All Leases as they were found by a look that ended at `now` and began after the answer to every write before it.
    pub fn see(&mut self, now: Moment, leases: BTreeMap<u32, Found>) {
        let before = std::mem::take(&mut self.known);
        for (slot, found) in leases {
            let known = Known::new(found, before.get(&slot), now);
            self.known.insert(slot, known);
        }
        // What somebody else wrote over is not ours any more, even if he has our name.
        let (known, deadline) = (&self.known, self.me.timing.renew_deadline);
        self.mine.retain(|slot, mine| {
            let holder = known.get(slot).and_then(Known::holder);
            holder.is_some_and(|holder| holder.stamp == mine.stamp) && now < mine.asked + deadline
        });
        if self.of_another_count(now).is_none() {
            self.mine.values_mut().for_each(|mine| mine.confirmed = true);
        }
    }

    /// A write of ours was carried out: it was sent at `asked`, and this is what the Lease says now.
    pub fn wrote(&mut self, write: &Write, asked: Moment, now: Moment, found: Found) {
        if let (What::Hold, Some(holder)) = (&write.what, &found.record.holder) {
            // A renewal that was sent when the belief had ended already is as good as new.
            let deadline = self.me.timing.renew_deadline;
            let in_time = |mine: &Mine| mine.confirmed && asked < mine.asked + deadline;
            let confirmed = self.mine.get(&write.slot).is_some_and(in_time);
            let mine = Mine { stamp: holder.stamp.clone(), asked, confirmed };
            self.mine.insert(write.slot, mine);
        }
        let known = Known::new(found, self.known.get(&write.slot), now);
        self.known.insert(write.slot, known);
    }

    /// Slots that another asks us to hand over. What is done in them must end before they are freed.
    pub fn to_hand_over(&self) -> BTreeSet<u32> {
        let asked_for = |slot: &&u32| {
            let wanted_by = self.known.get(slot).and_then(|known| known.found.record.wanted_by.as_ref());
            Some(**slot) != self.me.own && wanted_by.is_some_and(|name| *name != self.me.name)
        };
        self.mine.keys().filter(asked_for).copied().collect()
    }

    /// What frees these slots. They are not ours from now on, whatever becomes of the writes.
    pub fn free(&mut self, slots: &BTreeSet<u32>, now: Moment) -> Vec<Write> {
        let mut writes = Vec::new();
        for slot in slots {
            self.mine.remove(slot);
            let Some(known) = self.known.get_mut(slot) else { continue };
            let wanted_by = known.found.record.wanted_by.clone();
            let version = Some(known.found.version.clone());
            writes.push(Write { slot: *slot, version, what: What::Free { wanted_by } });
            // What is promised is not taken back in the same breath.
            (known.found.record.holder, known.since, known.held_since) = (None, now, now);
        }
        writes
    }

    /// Frees everything that bears our name, for the end; also what was written without an answer.
    pub fn free_all(&mut self, now: Moment) -> Vec<Write> {
        let ours = |known: &Known| known.holder().is_some_and(|it| self.me.is(it));
        let all = self.known.iter().filter(|(_, known)| ours(known)).map(|(slot, _)| *slot).collect();
        self.free(&all, now)
    }

    /// What to write after a look.
    pub fn plan(&mut self, now: Moment) -> Vec<Write> {
        if self.of_another_count(now).is_some() {
            let mut writes = self.step_back(now);
            writes.extend(self.renew(now));
            return writes;
        }
        let mut writes = self.renew(now);
        if now >= self.stepped_back.1 {
            let free = (0..self.me.count.get()).filter(|slot| self.may_be_taken(*slot, now));
            writes.extend(free.filter_map(|slot| self.write(slot, What::Hold)));
        }
        if writes.iter().all(|write| self.mine.contains_key(&write.slot)) {
            writes.extend(self.wish(now).and_then(|slot| self.write(slot, What::Ask)));
        }
        // What nobody takes any more must not look alive to those who come later.
        let beyond =
            self.known.keys().filter(|slot| **slot >= self.me.count.get() && self.is_dead(**slot, now));
        writes.extend(beyond.filter_map(|slot| self.write(*slot, What::Free { wanted_by: None })));
        writes
    }

    /// What to write if the look failed: nothing is known of others, but what is ours may be renewed.
    pub fn renew(&mut self, now: Moment) -> Vec<Write> {
        let (deadline, retry) = (self.me.timing.renew_deadline, self.me.timing.retry);
        self.mine.retain(|_, mine| now < mine.asked + deadline);
        let due = self.mine.iter().filter(|(_, mine)| now >= mine.asked + retry);
        due.filter_map(|(slot, _)| self.write(*slot, What::Hold)).collect()
    }

    /// When to look again at the latest.
    pub fn next(&self, now: Moment) -> Moment {
        if self.mine.values().any(|mine| !mine.confirmed) {
            return now;
        }
        let renewals = self.mine.values().map(|mine| mine.asked + self.me.timing.retry);
        let ends = self.known.values().filter_map(|known| {
            let holder = known.holder().filter(|holder| !self.me.is(holder));
            let patience = holder.map_or(self.patience(), |holder| holder.duration);
            Some(known.since + patience).filter(|end| *end > now)
        });
        renewals.chain(ends).chain([now + self.me.timing.retry]).min().unwrap_or(now).max(now)
    }

    /// Whether others hold all slots.
    pub fn is_idle(&self, now: Moment) -> bool {
        let held: BTreeSet<u32> = self.others(now).map(|(slot, _)| slot).collect();
        (0..self.me.count.get()).all(|slot| held.contains(&slot))
    }

    /// How long a free slot is left to the one who asked for it.
    fn patience(&self) -> Duration {
        self.me.timing.retry * 2
    }

    fn write(&self, slot: u32, what: What) -> Option<Write> {
        let version = self.known.get(&slot).map(|known| known.found.version.clone());
        // Only what is to be held is made.
        (version.is_some() || what == What::Hold).then_some(Write { slot, version, what })
    }

    /// Whoever holds a Lease and is not us, with whether it must still be respected.
    fn other(&self, slot: u32, now: Moment) -> Option<(&Holder, bool)> {
        let known = self.known.get(&slot)?;
        let holder = known.holder()?;
        (!self.me.is(holder)).then(|| (holder, now < known.since + holder.duration))
    }

    /// Those who hold something and must be respected.
    fn others(&self, now: Moment) -> impl Iterator<Item = (u32, &Holder)> {
        let live = move |slot: &u32| self.other(*slot, now).filter(|(_, is_live)| *is_live);
        self.known.keys().filter_map(move |slot| live(slot).map(|(holder, _)| (*slot, holder)))
    }

    /// Somebody who holds a slot and goes by another count: until he is gone, nothing can be taken.
    pub fn of_another_count(&self, now: Moment) -> Option<&Holder> {
        self.others(now).map(|(_, holder)| holder).find(|holder| holder.count != self.me.count)
    }

    /// Whether a Lease is held by somebody who is gone, or by us without our knowing.
    fn is_dead(&self, slot: u32, now: Moment) -> bool {
        let held = self.known.get(&slot).is_some_and(|known| known.holder().is_some());
        held && !self.mine.contains_key(&slot) && self.other(slot, now).is_none_or(|(_, is_live)| !is_live)
    }

    fn may_be_taken(&self, slot: u32, now: Moment) -> bool {
        let Some(known) = self.known.get(&slot) else { return !self.mine.contains_key(&slot) };
        let is_promised = known.found.record.wanted_by.as_ref().is_some_and(|name| *name != self.me.name)
            && now < known.since + self.patience();
        match known.found.record.holder {
            Some(_) => self.is_dead(slot, now),
            None => !is_promised,
        }
    }

    /// Both who met at the door step back, and come again after different times. What was held before stays.
    fn step_back(&mut self, now: Moment) -> Vec<Write> {
        let taken: BTreeSet<u32> =
            self.mine.iter().filter(|(_, mine)| !mine.confirmed).map(|(slot, _)| *slot).collect();
        let writes = self.free(&taken, now);
        if !taken.is_empty() {
            self.stepped_back.0 += 1;
            let name =
                self.me.name.bytes().fold(self.stepped_back.0, |seed, byte| mix(seed ^ u64::from(byte)));
            let share = u32::try_from(name % 1000).unwrap_or(0);
            self.stepped_back.1 = now + self.me.timing.retry + self.me.timing.retry * share / 1000;
        }
        writes
    }

    /// Whether its holder has had it for the duration of a Lease. Whoever takes over from one that died finds things
    /// left undone; were he asked at once, they would wait for a third.
    fn is_settled(&self, slot: u32, now: Moment) -> bool {
        self.known.get(&slot).is_some_and(|known| now >= known.held_since + self.me.timing.duration)
    }

    /// A slot to ask for: our own, if its holder prefers another; without one of our own, one of whoever has most. Never
    /// one that somebody has asked for: a holder that frees it would find another version than he decided on, keep it,
    /// and be asked again.
    fn wish(&self, now: Moment) -> Option<u32> {
        let asks =
            |slot: u32| self.known.get(&slot).and_then(|known| known.found.record.wanted_by.as_deref());
        let may_be_asked_for = |slot: u32| self.is_settled(slot, now) && asks(slot).is_none();
        if (0..self.me.count.get()).any(|slot| asks(slot) == Some(self.me.name.as_str())) {
            return None;
        }
        let others: Vec<(u32, &Holder)> = self.others(now).collect();
        if let Some(own) = self.me.own {
            let holder = others.iter().find(|(slot, _)| *slot == own).map(|(_, holder)| holder);
            match holder {
                Some(holder) if holder.own != Some(own) => return may_be_asked_for(own).then_some(own),
                // Another has the same number: as good as none.
                Some(_) => {}
                None => return None,
            }
        }
        let mut of_holder: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (slot, holder) in &others {
            of_holder.entry(&holder.name).or_default().push(*slot);
        }
        let enough = self.mine.len() + 1;
        let richest = of_holder.into_values().filter(|slots| slots.len() > enough).max_by_key(Vec::len)?;
        let is_spare = |slot: &u32| {
            let own = others.iter().any(|(other, holder)| other == slot && holder.own == Some(*slot));
            !own && may_be_asked_for(*slot)
        };
        richest.into_iter().rev().find(is_spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    /// Names as people give them: numbered, and in a few namespaces.
    fn names(how_many: u32) -> impl Iterator<Item = (String, String)> {
        (0..how_many).map(|n| (format!("team-{}", n % 7), format!("workstation-{n}")))
    }

    #[test]
    fn slots_have_even_shares() {
        for slots in 2..=16 {
            let mut shares = vec![0_u32; slots as usize];
            for (namespace, name) in names(1_000_000) {
                shares[slot_of(&namespace, &name, count(slots)) as usize] += 1;
            }
            let even = 1_000_000 / slots;
            for share in &shares {
                assert!(share.abs_diff(even) * 20 < even, "{slots} slots: {shares:?}");
            }
        }
    }

    #[test]
    fn one_slot_more_moves_its_own_share_and_nothing_else() {
        for slots in 1..=16 {
            let (mut moved, all) = (0_u32, 100_000);
            for (namespace, name) in names(all) {
                let before = slot_of(&namespace, &name, count(slots));
                let after = slot_of(&namespace, &name, count(slots + 1));
                assert!(after == before || after == slots, "a machine moved between old slots");
                moved += u32::from(after != before);
            }
            assert!(moved <= all / (slots + 1) + all / 50, "{slots}: {moved} of {all}");
        }
    }

    #[test]
    fn a_name_never_changes_its_slot() {
        let slots = |slots: u32| -> Vec<u32> {
            names(12).map(|(namespace, name)| slot_of(&namespace, &name, count(slots))).collect()
        };
        assert_eq!(
            slots(3),
            [1, 0, 2, 2, 0, 2, 2, 0, 0, 1, 2, 1],
            "machines would change hands while versions are mixed"
        );
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn instance(name: &str, own: Option<u32>, slots: u32) -> Slots {
        let timing = Timing { duration: SECOND * 15, renew_deadline: SECOND * 10, retry: SECOND * 2 };
        let (name, uid) = (name.to_owned(), "1".to_owned());
        Slots::new(Instance { name, uid, own, count: count(slots), timing })
    }

    /// All Leases, and how often each was written.
    #[derive(Default)]
    struct Server {
        leases: BTreeMap<u32, Found>,
        writes: u32,
    }

    impl Server {
        fn look(&self, slots: &mut Slots, now: Moment) {
            slots.see(now, self.leases.clone());
        }

        fn take(&mut self, slots: &mut Slots, writes: Vec<Write>, now: Moment) {
            let slots_written: BTreeSet<u32> = writes.iter().map(|write| write.slot).collect();
            assert_eq!(slots_written.len(), writes.len(), "two writes to one Lease: {writes:?}");
            for write in writes {
                let before = self.leases.get(&write.slot);
                if before.map(|found| found.version.clone()) != write.version {
                    continue;
                }
                self.writes += 1;
                let stamp = self.writes.to_string();
                let record = write.what.record(slots.me(), before.map(|found| &found.record), &stamp);
                let found = Found { version: stamp, record };
                self.leases.insert(write.slot, found.clone());
                slots.wrote(&write, now, now, found);
            }
        }

        /// A look, what follows from it, and another look.
        fn round(&mut self, slots: &mut Slots, now: Moment) -> Vec<u32> {
            self.look(slots, now);
            let handed = slots.to_hand_over();
            let mut writes = slots.free(&handed, now);
            writes.extend(slots.plan(now));
            self.take(slots, writes, now);
            self.look(slots, now);
            slots.held(now).into_keys().collect()
        }
    }

    #[test]
    fn who_comes_alone_takes_all_and_gives_others_their_own() {
        let mut server = Server::default();
        let (mut a, mut b) = (instance("a", Some(0), 3), instance("b", Some(1), 3));
        for second in 1..16 {
            assert_eq!(server.round(&mut a, SECOND * second), [0, 1, 2]);
            assert_eq!(server.round(&mut b, SECOND * second), [0; 0], "it lets the holder do what is due");
        }
        assert_eq!(server.round(&mut b, SECOND * 16), [0; 0], "it asks");
        assert_eq!(server.round(&mut a, SECOND * 16), [0, 2]);
        assert_eq!(server.round(&mut a, SECOND * 17), [0, 2], "what is promised is not taken back");
        assert_eq!(server.round(&mut b, SECOND * 17), [1]);
        assert_eq!(server.round(&mut b, SECOND * 18), [1], "the third is not its own, and has a holder");
    }

    #[test]
    fn without_numbers_the_slots_are_shared_evenly() {
        let mut server = Server::default();
        let mut all: Vec<Slots> = ["a", "b", "c"].iter().map(|name| instance(name, None, 6)).collect();
        let mut held = vec![0; 3];
        for round in 1..30 {
            for (n, slots) in all.iter_mut().enumerate() {
                held[n] = server.round(slots, SECOND * round).len();
            }
        }
        assert_eq!(held, [2, 2, 2]);
    }

    #[test]
    fn a_second_process_with_the_same_number_stands_by() {
        let mut server = Server::default();
        let (mut a, mut b) = (instance("a", Some(0), 1), instance("b", Some(0), 1));
        assert_eq!(server.round(&mut a, SECOND), [0]);
        for second in 2..16 {
            assert_eq!(server.round(&mut b, SECOND * second), [0; 0], "{second}");
        }
        assert_eq!(a.held(SECOND * 11), BTreeMap::new(), "it does not believe in what it has not renewed");
        assert_eq!(b.next(SECOND * 16), SECOND * 17, "the very moment is known");
        assert_eq!(server.round(&mut b, SECOND * 17), [0]);
        assert_eq!(server.round(&mut a, SECOND * 18), [0; 0]);
    }

    #[test]
    fn what_is_freed_at_the_end_is_taken_at_once() {
        let mut server = Server::default();
        let (mut a, mut b) = (instance("a", Some(0), 2), instance("b", Some(1), 2));
        for second in 1..=17 {
            server.round(&mut a, SECOND * second);
            server.round(&mut b, SECOND * second);
        }
        assert_eq!(b.held(SECOND * 17).into_keys().collect::<Vec<_>>(), [1]);
        let writes = a.free_all(SECOND * 18);
        server.take(&mut a, writes, SECOND * 18);
        assert_eq!(server.round(&mut b, SECOND * 18), [0, 1]);
    }

    #[test]
    fn who_returns_lets_his_successor_do_what_is_due_before_he_asks() {
        let mut server = Server::default();
        let (mut a, mut b) = (instance("a", Some(0), 2), instance("b", Some(1), 2));
        server.round(&mut b, SECOND);
        server.round(&mut a, SECOND);
        for second in 2..=40 {
            server.round(&mut a, SECOND * second);
            server.round(&mut b, SECOND * second);
        }
        assert_eq!(a.held(SECOND * 40).len(), 1, "each has its own");
        // It is killed, and back before its Lease has run out.
        let mut again = instance("a", Some(0), 2);
        again.me.uid = "2".to_owned();
        let holder = |second: u32| {
            let of_b = server.round(&mut b, SECOND * second);
            match server.round(&mut again, SECOND * second).as_slice() {
                [0] => 'a',
                _ if of_b == [0, 1] => 'b',
                _ => '-',
            }
        };
        let holders: String = (41..=80).map(holder).collect();
        assert_eq!(holders, "-------------bbbbbbbbbbbbbbbbaaaaaaaaaaa");
    }

    #[test]
    fn another_count_waits_until_nobody_goes_by_the_old_one() {
        let mut server = Server::default();
        let (mut old, mut new) = (instance("old", Some(0), 3), instance("new", Some(0), 2));
        assert_eq!(server.round(&mut old, SECOND), [0, 1, 2]);
        assert_eq!(server.round(&mut new, SECOND), [0; 0]);
        let writes = old.free(&BTreeSet::from([0, 1]), SECOND * 2);
        server.take(&mut old, writes, SECOND * 2);
        assert_eq!(server.round(&mut new, SECOND * 2), [0; 0], "one is enough");
        let writes = old.free_all(SECOND * 3);
        server.take(&mut old, writes, SECOND * 3);
        assert_eq!(server.round(&mut new, SECOND * 3), [0, 1]);
    }

    #[test]
    fn two_who_meet_at_the_door_both_step_back() {
        let mut server = Server::default();
        let (mut a, mut b) = (instance("a", Some(0), 2), instance("b", Some(2), 3));
        for slots in [&mut a, &mut b] {
            server.look(slots, SECOND);
        }
        let (of_a, of_b) = (a.plan(SECOND), b.plan(SECOND));
        server.take(&mut a, of_a, SECOND);
        server.take(&mut b, of_b, SECOND);
        for slots in [&mut a, &mut b] {
            server.look(slots, SECOND);
            assert_eq!(slots.held(SECOND), BTreeMap::new(), "it was taken, but is not held");
        }
        let mut first = None;
        for tenth in 11..80 {
            let now = SECOND / 10 * tenth;
            let held = [server.round(&mut a, now).len(), server.round(&mut b, now).len()];
            assert!(held.contains(&0), "both hold something");
            first = first.or(held.iter().position(|held| *held > 0));
        }
        assert!(first.is_some(), "one of them gets through");
    }

    #[test]
    fn a_lease_that_nobody_takes_any_more_is_freed() {
        let mut server = Server::default();
        let (mut gone, mut new) = (instance("gone", None, 4), instance("new", None, 2));
        assert_eq!(server.round(&mut gone, SECOND).len(), 4);
        server.look(&mut new, SECOND);
        assert_eq!(server.round(&mut new, SECOND * 16), [0, 1]);
        assert!(server.leases.values().skip(2).all(|found| found.record.holder.is_none()));
    }

    #[test]
    fn a_container_that_is_started_again_goes_on_at_once_and_another_pod_of_its_name_waits() {
        let mut server = Server::default();
        let (mut before, mut again) = (instance("a", Some(0), 1), instance("a", Some(0), 1));
        assert_eq!(server.round(&mut before, SECOND), [0]);
        assert_eq!(server.round(&mut again, SECOND * 2), [0], "of the same pod");
        server.look(&mut before, SECOND * 3);
        assert_eq!(before.held(SECOND * 3), BTreeMap::new(), "it finds a renewal that it did not write");

        let mut other = instance("a", Some(0), 1);
        other.me.uid = "2".to_owned();
        for second in 3..17 {
            assert_eq!(
                server.round(&mut other, SECOND * second),
                [0; 0],
                "{second}: the old one may be alive"
            );
        }
        assert_eq!(server.round(&mut other, SECOND * 18), [0]);
    }

    #[test]
    fn a_renewal_that_comes_too_late_needs_a_second_look() {
        let mut server = Server::default();
        let mut slow = instance("slow", Some(0), 1);
        assert_eq!(server.round(&mut slow, SECOND), [0]);
        server.look(&mut slow, SECOND * 4);
        let renewal = slow.plan(SECOND * 4);
        // It was stopped between the decision and the write.
        server.take(&mut slow, renewal, SECOND * 30);
        assert_eq!(slow.held(SECOND * 30), BTreeMap::new());
        server.look(&mut slow, SECOND * 31);
        assert_eq!(slow.held(SECOND * 31).len(), 1);
    }
}
