//! Which Node an instruction means.
//!
//! By the letter of the protocol an instruction names Nodes; what a shard sends is the id of a machine. Whoever takes one
//! for the other cordons nothing and reports success. So the entry is looked for in four ways, as a machine first: a Node
//! that happens to have the name of another machine must not go in its place.

use crate::record::Record;
use std::sync::Arc;

/// What is known of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// The machine as its provider calls it.
    pub provider_id: Option<String>,
    /// The machine as its fleet calls it, if the Node says so.
    pub machine: Option<String>,
    /// Whether its kubelet has fallen silent.
    pub is_silent: bool,
    /// The reclaim that stands on it.
    pub record: Option<Record>,
}

/// What is known of the UpcomingNode of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpcomingView {
    /// The machine.
    pub machine: String,
    /// The Node it has become.
    pub node: Option<String>,
    /// The identity of that Node: another one may have its name.
    pub node_uid: Option<String>,
    /// The machine as its provider calls it.
    pub provider_id: Option<String>,
    /// Its phase; empty if it has none yet.
    pub phase: String,
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

    /// A word for logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Upcoming => "upcoming",
            Self::ProviderId => "provider_id",
            Self::Label => "label",
        }
    }
}

/// Everything that an entry is looked for in.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// All Nodes.
    pub nodes: &'a [Arc<NodeView>],
    /// The UpcomingNode of the machine that the entry may be.
    pub upcoming: Option<&'a UpcomingView>,
    /// The provider's id of the machine, if the shard has said it.
    pub provider_id: Option<&'a str>,
}

/// The Node that an entry of an instruction means, and why.
pub fn resolve<'a>(entry: &str, places: Places<'a>) -> Option<(&'a NodeView, Rule)> {
    let Places { nodes, upcoming, .. } = places;
    let nodes = || nodes.iter().map(|node| &**node);
    let by_name = |name: &str| nodes().find(|node| node.name == name);
    Rule::ALL.into_iter().find_map(|rule| {
        let node = match rule {
            Rule::Name => by_name(entry),
            Rule::Upcoming => upcoming.and_then(|it| {
                let node = it.node.as_deref().and_then(by_name);
                node.filter(|node| it.node_uid.as_ref().is_none_or(|uid| *uid == node.uid))
            }),
            Rule::ProviderId => {
                let id = places.provider_id.or_else(|| upcoming.and_then(|it| it.provider_id.as_deref()));
                id.and_then(|id| only(nodes().filter(|node| has_provider_id(node, id))))
            }
            Rule::Label => only(nodes().filter(|node| node.machine.as_deref() == Some(entry))),
        };
        node.map(|node| (node, rule))
    })
}

/// A Node's provider id is a URL whose last part is what providers themselves call the machine.
fn has_provider_id(node: &NodeView, id: &str) -> bool {
    let Some(theirs) = node.provider_id.as_deref().filter(|_| !id.is_empty()) else { return false };
    theirs == id || theirs.strip_suffix(id).is_some_and(|before| before.ends_with('/'))
}

/// Two Nodes of one machine are a mistake of somebody: none of them is taken.
fn only<'a>(mut found: impl Iterator<Item = &'a NodeView>) -> Option<&'a NodeView> {
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, provider_id: Option<&str>, machine: Option<&str>) -> Arc<NodeView> {
        Arc::new(NodeView {
            name: name.into(),
            uid: format!("uid-{name}"),
            provider_id: provider_id.map(str::to_owned),
            machine: machine.map(str::to_owned),
            is_silent: false,
            record: None,
        })
    }

    fn upcoming(machine: &str, node: Option<&str>, provider_id: Option<&str>) -> UpcomingView {
        UpcomingView {
            machine: machine.into(),
            node: node.map(str::to_owned),
            node_uid: node.map(|node| format!("uid-{node}")),
            provider_id: provider_id.map(str::to_owned),
            phase: "Ready".into(),
        }
    }

    fn check(entry: &str, nodes: &[Arc<NodeView>], all: &[UpcomingView], expected: Option<(&str, Rule)>) {
        let upcoming = all.iter().find(|it| it.machine == entry);
        let found = resolve(entry, Places { nodes, upcoming, provider_id: None });
        assert_eq!(found.map(|(node, rule)| (node.name.as_str(), rule)), expected, "{entry}");
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
        check("a", &nodes, &all, Some(("a", Rule::Name)));
        check("m-a", &nodes, &all, Some(("a", Rule::Upcoming)));
        check("m-b", &nodes, &all, Some(("b", Rule::ProviderId)));
        check("m-c", &nodes, &all, Some(("c", Rule::Label)));
        check("c", &nodes, &all, Some(("a", Rule::Upcoming)));
        check("b", &nodes, &all, Some(("b", Rule::Name)));
        check("nobody", &nodes, &all, None);
    }

    #[test]
    fn a_part_of_a_provider_id_is_not_the_id_and_two_nodes_are_none() {
        let nodes = [node("a", Some("aws:///z/i-12"), None), node("b", Some("x/i-3"), None)];
        check("m", &nodes, &[upcoming("m", None, Some("2"))], None);
        check("m", &nodes, &[upcoming("m", None, Some(""))], None);
        let twice = [node("a", Some("x/i-3"), None), node("b", Some("y/i-3"), None)];
        check("m", &twice, &[upcoming("m", None, Some("i-3"))], None);
    }

    #[test]
    fn another_node_with_the_name_of_one_that_is_gone_is_not_it() {
        let nodes = [node("ip-10-0-0-5", Some("x/i-2"), None), node("ip-10-0-0-6", Some("x/i-1"), None)];
        let gone = |provider_id| UpcomingView {
            node_uid: Some("uid-old".into()),
            ..upcoming("m", Some("ip-10-0-0-5"), provider_id)
        };
        check("m", &nodes, &[gone(None)], None);
        check("m", &nodes, &[gone(Some("i-1"))], Some(("ip-10-0-0-6", Rule::ProviderId)));
    }

    #[test]
    fn what_the_shard_said_last_beats_what_was_written_down() {
        let nodes = [node("a", Some("x/i-1"), None), node("b", Some("x/i-2"), None)];
        let all = [upcoming("m", None, Some("i-1"))];
        let places = Places { nodes: &nodes, upcoming: all.first(), provider_id: Some("i-2") };
        assert_eq!(resolve("m", places).map(|(node, _)| node.name.as_str()), Some("b"));
    }
}
