//! Which Node an instruction means.
//!
//! By the letter of the protocol an instruction names Nodes; what a shard sends is the id of a machine. Whoever takes one
//! for the other cordons nothing and reports success. So an entry is looked up in four ways, as a machine first: a Node
//! that happens to have the name of another machine must not go in its place.
//!
//! The index is kept as watches report changes. A session begins with the states of all machines, and none of them costs a
//! walk over all Nodes.

use super::NodeId;
use super::phase::Phase;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a watch shows of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Which.
    pub id: NodeId,
    /// The machine as its provider calls it.
    pub provider_id: Option<String>,
    /// The machine as its fleet calls it, if the Node says so.
    pub machine: Option<String>,
    /// Whether its kubelet has fallen silent.
    pub is_silent: bool,
    /// The machine of the record on it, if its drain has not ended.
    pub drains_for: Option<String>,
}

/// What a watch shows of the UpcomingNode of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpcomingFacts {
    /// The machine.
    pub machine: String,
    /// Its identity.
    pub uid: String,
    /// The name of the Node that it has become.
    pub node: Option<String>,
    /// The identity of that Node: another one may have its name.
    pub node_uid: Option<String>,
    /// The machine as its provider calls it.
    pub provider_id: Option<String>,
    /// Its phase, if it has one.
    pub phase: Option<Phase>,
}

/// Why a Node is the one that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// It has this name.
    Name,
    /// The UpcomingNode of this machine says so.
    Upcoming,
    /// It has the provider's id of this machine.
    ProviderId,
    /// It bears the id of this machine as a label or an annotation.
    Label,
}

impl Rule {
    /// All of them, the surest first.
    pub const ALL: [Self; 4] = [Self::Upcoming, Self::ProviderId, Self::Label, Self::Name];

    /// As logs and metrics show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Upcoming => "upcoming",
            Self::ProviderId => "provider_id",
            Self::Label => "label",
        }
    }
}

/// Nodes, UpcomingNodes and the provider's ids of machines.
#[derive(Debug, Default)]
pub struct Index {
    nodes: BTreeMap<String, NodeFacts>,
    /// Names of Nodes by each tail of their provider's id.
    by_provider_id: HashMap<String, BTreeSet<String>>,
    /// Names of Nodes by the machine that they say they are.
    by_label: HashMap<String, BTreeSet<String>>,
    upcoming: BTreeMap<String, UpcomingFacts>,
    /// Machines by the Node that their UpcomingNodes name.
    by_node: HashMap<String, BTreeSet<String>>,
    /// Machines that should have a Node, and whose UpcomingNode does not name it.
    without_node: BTreeSet<String>,
    /// The provider's ids, as the shard tells them.
    provider_ids: HashMap<String, String>,
}

impl Index {
    /// The Node that an entry of an instruction means, and why.
    pub fn find(&self, entry: &str) -> Option<(&NodeFacts, Rule)> {
        let upcoming = self.upcoming.get(entry);
        Rule::ALL.into_iter().find_map(|rule| {
            let node = match rule {
                Rule::Name => self.nodes.get(entry),
                Rule::Upcoming => upcoming.and_then(|it| {
                    let node = self.nodes.get(it.node.as_deref()?);
                    node.filter(|node| it.node_uid.as_ref().is_none_or(|uid| *uid == node.id.uid))
                }),
                Rule::ProviderId => {
                    let told = self.provider_ids.get(entry).map(String::as_str);
                    let id = told.or_else(|| upcoming.and_then(|it| it.provider_id.as_deref()))?;
                    self.only(self.by_provider_id.get(id))
                }
                Rule::Label => self.only(self.by_label.get(entry)),
            };
            node.map(|node| (node, rule))
        })
    }

    /// Two Nodes of one machine are a mistake of somebody: none of them is taken.
    fn only(&self, names: Option<&BTreeSet<String>>) -> Option<&NodeFacts> {
        let names = names.filter(|names| names.len() == 1)?;
        self.nodes.get(names.first()?)
    }

    /// A Node, by its name.
    pub fn node(&self, name: &str) -> Option<&NodeFacts> {
        self.nodes.get(name)
    }

    /// The UpcomingNode of a machine.
    pub fn upcoming(&self, machine: &str) -> Option<&UpcomingFacts> {
        self.upcoming.get(machine)
    }

    /// All machines that have an UpcomingNode.
    pub(super) fn machines(&self) -> impl Iterator<Item = &String> {
        self.upcoming.keys()
    }

    /// Machines that should have a Node, whose UpcomingNode does not name it, and for which one is found.
    pub(super) fn found_at_last(&self) -> Vec<String> {
        self.without_node.iter().filter(|machine| self.find(machine).is_some()).cloned().collect()
    }

    /// The machine that an entry of an instruction is about: by the letter of the protocol it may be the name of a Node.
    /// `is_machine` says whether the shard has mentioned a machine of that name.
    pub(super) fn machine_of(&self, entry: &str, is_machine: bool) -> String {
        if is_machine || self.upcoming.contains_key(entry) || self.provider_ids.contains_key(entry) {
            return entry.to_owned();
        }
        let refers = || self.by_node.get(entry).and_then(BTreeSet::first);
        let by_label = || self.nodes.get(entry).and_then(|node| node.machine.as_ref());
        refers().or_else(by_label).cloned().unwrap_or_else(|| entry.to_owned())
    }

    /// A Node is there, or is not any more. Returns whether something changed by which it is found.
    pub(super) fn put_node(&mut self, name: &str, facts: Option<NodeFacts>) -> bool {
        let before = self.nodes.remove(name);
        let key = |facts: &Option<NodeFacts>| {
            facts.as_ref().map(|it| (it.id.clone(), it.provider_id.clone(), it.machine.clone()))
        };
        let is_change = key(&before) != key(&facts);
        if is_change {
            if let Some(facts) = &before {
                tails(facts).for_each(|tail| forget(&mut self.by_provider_id, tail, name));
                facts.machine.iter().for_each(|machine| forget(&mut self.by_label, machine, name));
            }
            if let Some(facts) = &facts {
                tails(facts).for_each(|tail| add(&mut self.by_provider_id, tail, name));
                facts.machine.iter().for_each(|machine| add(&mut self.by_label, machine, name));
            }
        }
        if let Some(facts) = facts {
            self.nodes.insert(name.to_owned(), facts);
        }
        is_change
    }

    /// The UpcomingNode of a machine is there, or is not any more.
    pub(super) fn put_upcoming(&mut self, machine: &str, facts: Option<UpcomingFacts>) {
        if let Some(node) = self.upcoming.remove(machine).and_then(|before| before.node) {
            forget(&mut self.by_node, &node, machine);
        }
        self.without_node.remove(machine);
        let Some(facts) = facts else { return };
        let has_joined = matches!(facts.phase, Some(Phase::Registered | Phase::Ready | Phase::Draining));
        match &facts.node {
            Some(node) => add(&mut self.by_node, node, machine),
            None if has_joined => {
                self.without_node.insert(machine.to_owned());
            }
            None => {}
        }
        self.upcoming.insert(machine.to_owned(), facts);
    }

    /// The shard tells how a machine is called by its provider.
    pub(super) fn put_provider_id(&mut self, machine: &str, id: &str) {
        if !id.is_empty() {
            self.provider_ids.insert(machine.to_owned(), id.to_owned());
        }
    }

    /// Machines whose provider's id is known from the shard.
    pub(super) fn told_machines(&self) -> impl Iterator<Item = &String> {
        self.provider_ids.keys()
    }

    /// A machine is gone.
    pub(super) fn forget_provider_id(&mut self, machine: &str) {
        self.provider_ids.remove(machine);
    }
}

/// A Node's provider id is a URL whose last part is what providers themselves call the machine: the whole of it, and what
/// stands behind each slash.
fn tails(facts: &NodeFacts) -> impl Iterator<Item = &str> {
    let id = facts.provider_id.as_deref().unwrap_or_default();
    let behind = id.match_indices('/').map(move |(slash, _)| &id[slash + 1..]);
    std::iter::once(id).chain(behind).filter(|tail| !tail.is_empty())
}

fn add(index: &mut HashMap<String, BTreeSet<String>>, key: &str, value: &str) {
    index.entry(key.to_owned()).or_default().insert(value.to_owned());
}

fn forget(index: &mut HashMap<String, BTreeSet<String>>, key: &str, value: &str) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(name: &str, provider_id: Option<&str>, machine: Option<&str>) -> NodeFacts {
        NodeFacts {
            id: NodeId { name: name.into(), uid: format!("uid-{name}") },
            provider_id: provider_id.map(str::to_owned),
            machine: machine.map(str::to_owned),
            is_silent: false,
            drains_for: None,
        }
    }

    fn upcoming(machine: &str, node: Option<&str>, provider_id: Option<&str>) -> UpcomingFacts {
        UpcomingFacts {
            machine: machine.into(),
            uid: format!("uid-{machine}"),
            node: node.map(str::to_owned),
            node_uid: node.map(|node| format!("uid-{node}")),
            provider_id: provider_id.map(str::to_owned),
            phase: Some(Phase::Ready),
        }
    }

    fn index(nodes: &[NodeFacts], upcoming: &[UpcomingFacts]) -> Index {
        let mut index = Index::default();
        for facts in nodes {
            index.put_node(&facts.id.name, Some(facts.clone()));
        }
        for facts in upcoming {
            index.put_upcoming(&facts.machine, Some(facts.clone()));
        }
        index
    }

    fn check(entry: &str, index: &Index, expected: Option<(&str, Rule)>) {
        let found = index.find(entry).map(|(node, rule)| (node.id.name.as_str(), rule));
        assert_eq!(found, expected, "{entry}");
    }

    #[test]
    fn an_entry_is_found_in_four_ways_and_the_surest_wins() {
        let nodes = [
            node("a", Some("aws:///z/i-1"), None),
            node("b", Some("aws:///z/i-2"), Some("m-b")),
            node("c", None, Some("m-c")),
            node("m-c", None, None),
        ];
        let all = [
            upcoming("m-a", Some("a"), None),
            upcoming("m-b", None, Some("i-2")),
            upcoming("c", Some("a"), None),
        ];
        let index = index(&nodes, &all);
        check("a", &index, Some(("a", Rule::Name)));
        check("m-a", &index, Some(("a", Rule::Upcoming)));
        check("m-b", &index, Some(("b", Rule::ProviderId)));
        check("m-c", &index, Some(("c", Rule::Label)));
        check("c", &index, Some(("a", Rule::Upcoming)));
        check("b", &index, Some(("b", Rule::Name)));
        check("nobody", &index, None);
        assert_eq!(index.machine_of("a", false), "c", "the first machine whose UpcomingNode names it");
        assert_eq!(index.machine_of("c", false), "c");
        assert_eq!(index.machine_of("b", false), "m-b", "by its label");
        assert_eq!(index.machine_of("b", true), "b");
    }

    #[test]
    fn a_part_of_a_provider_id_is_not_the_id_and_two_nodes_are_none() {
        let nodes = [node("a", Some("aws:///z/i-12"), None), node("b", Some("x/i-3"), None)];
        check("m", &index(&nodes, &[upcoming("m", None, Some("2"))]), None);
        check("m", &index(&nodes, &[upcoming("m", None, Some(""))]), None);
        check("m", &index(&nodes, &[upcoming("m", None, Some("z/i-12"))]), Some(("a", Rule::ProviderId)));
        let twice = [node("a", Some("x/i-3"), None), node("b", Some("y/i-3"), None)];
        check("m", &index(&twice, &[upcoming("m", None, Some("i-3"))]), None);
    }

    #[test]
    fn another_node_with_the_name_of_one_that_is_gone_is_not_it() {
        let nodes = [node("ip-10-0-0-5", Some("x/i-2"), None), node("ip-10-0-0-6", Some("x/i-1"), None)];
        let gone = |provider_id| UpcomingFacts {
            node_uid: Some("uid-old".into()),
            ..upcoming("m", Some("ip-10-0-0-5"), provider_id)
        };
        check("m", &index(&nodes, &[gone(None)]), None);
        check("m", &index(&nodes, &[gone(Some("i-1"))]), Some(("ip-10-0-0-6", Rule::ProviderId)));
    }

    #[test]
    fn what_the_shard_said_last_beats_what_was_written_down() {
        let nodes = [node("a", Some("x/i-1"), None), node("b", Some("x/i-2"), None)];
        let mut index = index(&nodes, &[upcoming("m", None, Some("i-1"))]);
        index.put_provider_id("m", "i-2");
        check("m", &index, Some(("b", Rule::ProviderId)));
    }

    #[test]
    fn a_machine_that_should_have_a_node_is_known_until_its_upcoming_node_names_it() {
        let mut index = index(&[], &[upcoming("m", None, Some("i-1"))]);
        assert_eq!(index.found_at_last(), [""; 0]);
        index.put_node("a", Some(node("a", Some("x/i-1"), None)));
        assert_eq!(index.found_at_last(), ["m"]);
        index.put_upcoming("m", Some(upcoming("m", Some("a"), Some("i-1"))));
        assert_eq!(index.found_at_last(), [""; 0]);
    }

    proptest! {
        /// Whatever came and went, the index is the one that is built anew from what is there.
        #[test]
        fn an_index_that_is_kept_is_the_index_of_what_is_there(
            changes in proptest::collection::vec((0_u8..4, any::<bool>(), 0_u8..4, 0_u8..4, any::<bool>()), 0..40),
        ) {
            let mut kept = Index::default();
            let mut nodes = BTreeMap::new();
            let mut all = BTreeMap::new();
            for (which, is_node, id, machine, is_there) in changes {
                let (name, provider) = (format!("n{which}"), format!("x/y/i-{id}"));
                if is_node {
                    let facts = node(&name, (id > 0).then_some(&provider), Some(&format!("m{machine}")));
                    let facts = is_there.then_some(facts);
                    kept.put_node(&name, facts.clone());
                    nodes.insert(name, facts);
                } else {
                    let machine = format!("m{which}");
                    let of = (id > 1).then(|| format!("n{id}"));
                    let facts = upcoming(&machine, of.as_deref(), Some(&format!("i-{id}")));
                    let facts = is_there.then_some(facts);
                    kept.put_upcoming(&machine, facts.clone());
                    all.insert(machine, facts);
                }
            }
            let nodes: Vec<_> = nodes.into_values().flatten().collect();
            let all: Vec<_> = all.into_values().flatten().collect();
            let anew = index(&nodes, &all);
            for entry in ["n0", "n1", "n2", "n3", "m0", "m1", "m2", "m3"] {
                let name = |index: &Index| index.find(entry).map(|(node, rule)| (node.id.name.clone(), rule));
                prop_assert_eq!(name(&kept), name(&anew));
                prop_assert_eq!(kept.machine_of(entry, false), anew.machine_of(entry, false));
            }
            prop_assert_eq!(kept.found_at_last(), anew.found_at_last());
        }
    }
}
