//! Who held which slot when, and who wrote to which machine, from the audit log.

use crate::harness::World;
use fivespot_core::slots::slot_of;
use fivespot_testenv::AuditEntry;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::num::NonZeroU32;

/// A time in which an instance held a slot.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) slot: u32,
    pub(crate) holder: String,
    pub(crate) count: NonZeroU32,
    pub(crate) from: Timestamp,
    /// The last renewal.
    renewed: Timestamp,
    /// When it was given back, or another took it.
    pub(crate) to: Option<Timestamp>,
}

/// A write on behalf of a machine.
#[derive(Clone)]
pub(crate) struct Deed {
    pub(crate) at: Timestamp,
    pub(crate) by: String,
    pub(crate) machine: String,
    /// What was done, and the answer: for people.
    what: String,
    /// Whether it went through.
    pub(crate) done: bool,
    /// Whether it is a write to the ScheduledMachine.
    pub(crate) is_own: bool,
}

impl std::fmt::Debug for Deed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} for {}", self.at, self.by, self.what, self.machine)
    }
}

pub(crate) struct Timeline {
    pub(crate) spans: Vec<Span>,
    pub(crate) deeds: Vec<Deed>,
    namespace: String,
    /// How long a holder believes in what it has not renewed.
    deadline: SignedDuration,
}

/// The instance that made a request, from how it presents itself.
fn instance(entry: &AuditEntry) -> Option<String> {
    let rest = entry.user_agent.strip_prefix("5spot-controller/")?;
    Some(rest.split_once('(')?.1.strip_suffix(')')?.to_owned())
}

impl Timeline {
    pub(crate) fn read(world: &World, since: Timestamp, [_, deadline, _]: [u64; 3]) -> Self {
        let mut entries = world.plane.management().audit().unwrap();
        entries.retain(|entry| entry.at >= since && entry.stage == "ResponseComplete");
        entries.sort_by_key(|entry| entry.at);
        let deadline = SignedDuration::from_secs(i64::try_from(deadline).unwrap());
        let namespace = world.namespace.clone();
        let mut this = Self { spans: Vec::new(), deeds: Vec::new(), namespace, deadline };
        let node_stem = world.hosts.node_name("");
        for entry in &entries {
            let Some(by) = instance(entry) else { continue };
            if entry.resource == "leases" {
                this.note_lease(entry, &by);
            } else if !matches!(entry.verb.as_str(), "get" | "list" | "watch") {
                this.note_deed(entry, by, &node_stem);
            }
        }
        this
    }

    fn note_lease(&mut self, entry: &AuditEntry, by: &str) {
        let Some(body) = entry.body.as_ref().filter(|_| matches!(entry.code, 200 | 201)) else { return };
        let name = body["metadata"]["name"].as_str().unwrap_or(&entry.name);
        let Some(slot) = name.strip_prefix("5spot-controller-").and_then(|slot| slot.parse().ok()) else {
            return;
        };
        // One that asks for a slot leaves the rest as it is.
        let Some(holder) = body["spec"].as_object().and_then(|spec| spec.get("holderIdentity")) else {
            return;
        };
        let open = self.spans.iter_mut().rfind(|span| span.slot == slot && span.to.is_none());
        if holder.as_str() != Some(by) {
            // It is given back, by its holder or by one who found it dead.
            if let Some(span) = open {
                span.to = Some(entry.at);
            }
            return;
        }
        let count = body["metadata"]["annotations"]["5spot.finos.org/slot-count"].as_str().unwrap();
        let count = count.parse().unwrap();
        match open {
            Some(span) if span.holder == by => span.renewed = entry.at,
            open => {
                if let Some(span) = open {
                    span.to = Some(entry.at);
                }
                let (holder, from, renewed) = (by.to_owned(), entry.at, entry.at);
                self.spans.push(Span { slot, holder, count, from, renewed, to: None });
            }
        }
    }

    fn note_deed(&mut self, entry: &AuditEntry, by: String, node_stem: &str) {
        let name = match entry.resource.as_str() {
            "nodes" => entry.name.strip_prefix(node_stem),
            _ if entry.namespace != self.namespace => None,
            // Called after what they are about, and a hash.
            "events" => entry.name.rsplit_once('.').map(|(machine, _)| machine),
            _ => Some(entry.name.as_str()),
        };
        let Some(machine) = name.filter(|name| !name.is_empty()) else { return };
        let what = format!("{} {} {}: {}", entry.verb, entry.resource, entry.subresource, entry.code);
        let is_own = entry.resource == "scheduledmachines";
        let done = (200..300).contains(&entry.code);
        self.deeds.push(Deed { at: entry.at, by, machine: machine.to_owned(), what, done, is_own });
    }

    /// Until when a span was believed in at the longest.
    fn end(&self, span: &Span) -> Timestamp {
        let belief = span.renewed + self.deadline;
        span.to.map_or(belief, |to| to.min(belief))
    }

    /// Every write that went through was made by the holder of the machine's slot, and nobody wrote after another had.
    /// Returns how many there were.
    pub(crate) fn check(&self) -> usize {
        let mut last: BTreeMap<&str, &Deed> = BTreeMap::new();
        let done = self.deeds.iter().filter(|deed| deed.done);
        let mut checked = 0;
        for deed in done {
            let holds = |span: &&Span| {
                let slot = slot_of(&self.namespace, &deed.machine, span.count);
                span.holder == deed.by
                    && span.slot == slot
                    && span.from <= deed.at
                    && deed.at <= self.end(span)
            };
            let Some(span) = self.spans.iter().find(holds) else {
                panic!("{deed:?} by one who did not hold its slot:\n{}", self.show());
            };
            if let Some(before) = last.insert(&deed.machine, deed).filter(|before| before.by != deed.by) {
                assert!(
                    span.from > before.at,
                    "{deed:?} by one who held its slot since {}, and yet {before:?} came between:\n{}",
                    span.from,
                    self.show()
                );
            }
            checked += 1;
        }
        checked
    }

    /// What an instance sent between two times.
    pub(crate) fn sent(&self, by: &str, from: Timestamp, to: Timestamp) -> Vec<&Deed> {
        self.deeds.iter().filter(|deed| deed.by == by && deed.at > from && deed.at < to).collect()
    }

    /// When an instance first held a slot after a moment.
    pub(crate) fn held(&self, slot: u32, by: Option<&str>, after: Timestamp) -> Option<&Span> {
        let is_it = |span: &&Span| {
            span.slot == slot && span.from >= after && by.is_none_or(|name| span.holder == name)
        };
        self.spans.iter().find(is_it)
    }

    /// For people: a line for each time in which a slot was held.
    pub(crate) fn show(&self) -> String {
        let mut text = String::new();
        let Some(first) = self.spans.first().map(|span| span.from) else { return text };
        let since = |at: Timestamp| at.duration_since(first).as_secs_f64();
        let mut spans: Vec<&Span> = self.spans.iter().collect();
        spans.sort_by_key(|span| (span.slot, span.from));
        for span in spans {
            let mine = |deed: &&Deed| {
                let slot = slot_of(&self.namespace, &deed.machine, span.count);
                deed.done
                    && deed.by == span.holder
                    && slot == span.slot
                    && deed.at >= span.from
                    && deed.at <= self.end(span)
            };
            let writes: Vec<&Deed> = self.deeds.iter().filter(mine).collect();
            let machines: BTreeSet<&str> = writes.iter().map(|deed| deed.machine.as_str()).collect();
            let end = match span.to {
                Some(to) if to <= span.renewed + self.deadline => format!("given up {:6.1}", since(to)),
                Some(to) => format!("lost     {:6.1}", since(to)),
                None => format!("held at  {:6.1}", since(span.renewed)),
            };
            writeln!(
                text,
                "slot {} of {}: {:6.1} to {end} s  {:<8} {:4} writes for {:3} machines",
                span.slot,
                span.count,
                since(span.from),
                span.holder,
                writes.len(),
                machines.len(),
            )
            .unwrap();
        }
        text
    }
}
