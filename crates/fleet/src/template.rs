//! What makes a machine join, from a template.
//!
//! A template is text with actions in double braces, in the notation that BigFleet's own operator reads: `{{.ClusterID}}`,
//! `{{range .Requirements}}` with `{{.Key}}`, `{{.Operator}}` and `{{.Values}}` inside, and `{{range .Values}}` with
//! `{{.}}`; `{{-` and `-}}` trim the space around. Nothing else: a template that asks for more is refused when the
//! process starts, and not when a machine waits.

use crate::wire::NodeSelectorRequirement;
use crate::wire::node_selector_requirement::Operator;

/// The part of a template that is repeated for each requirement, or each of its values, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Whole,
    Requirement,
    Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    ClusterId,
    Key,
    Operator,
    Values,
    Value,
    EachRequirement(Vec<Part>),
    EachValue(Vec<Part>),
}

/// A template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

/// A template that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TemplateError {
    line: usize,
    what: String,
}

/// What a cluster without a template answers: a machine that comes up with this shows what is missing.
const DEFAULT: &str = "#cloud-config\n\
    # Cluster {{.ClusterID}} has no template: give the fleet operator --bootstrap-template-file.\n";

impl Default for Template {
    fn default() -> Self {
        // It is read by a test.
        Self::read(DEFAULT).unwrap_or(Self(Vec::new()))
    }
}

impl Template {
    /// Reads a template.
    pub fn read(text: &str) -> Result<Self, TemplateError> {
        let mut open: Vec<(Scope, usize, Vec<Part>)> = vec![(Scope::Whole, 1, Vec::new())];
        let (mut rest, mut line, mut trim) = (text, 1, false);
        loop {
            let (before, action) = match rest.split_once("{{") {
                Some((before, after)) => (before, Some(after)),
                None => (rest, None),
            };
            let fail = |line: usize, what: &str| TemplateError { line, what: what.to_owned() };
            let trim_end = action.is_some_and(|action| action.starts_with("- "));
            let shown = if trim { before.trim_start() } else { before };
            let shown = if trim_end { shown.trim_end() } else { shown };
            line += before.matches('\n').count();
            let Some((_, _, parts)) = open.last_mut() else {
                return Err(fail(line, "{{end}} without range"));
            };
            if !shown.is_empty() {
                parts.push(Part::Text(shown.to_owned()));
            }
            let Some(action) = action else { break };
            let (inside, after) =
                action.split_once("}}").ok_or_else(|| fail(line, "{{ without }}: close the action"))?;
            (rest, trim) = (after, inside.ends_with(" -"));
            let word = inside.strip_prefix("- ").unwrap_or(inside);
            let word = word.strip_suffix(" -").unwrap_or(word).trim();
            let scope = open.last().map_or(Scope::Whole, |(scope, ..)| *scope);
            line += inside.matches('\n').count();
            match (scope, word) {
                (_, word) if word.starts_with("/*") && word.ends_with("*/") => {}
                (Scope::Whole, "range .Requirements") => open.push((Scope::Requirement, line, Vec::new())),
                (Scope::Requirement, "range .Values") => open.push((Scope::Value, line, Vec::new())),
                (_, "end") => {
                    let closed = open.pop().filter(|(scope, ..)| *scope != Scope::Whole);
                    let (scope, _, inner) = closed.ok_or_else(|| fail(line, "{{end}} without range"))?;
                    let part = if scope == Scope::Value { Part::EachValue } else { Part::EachRequirement };
                    if let Some((_, _, parts)) = open.last_mut() {
                        parts.push(part(inner));
                    }
                }
                (scope, word) => {
                    let part = read_field(scope, word).ok_or_else(|| fail(line, &unknown(scope, word)))?;
                    if let Some((_, _, parts)) = open.last_mut() {
                        parts.push(part);
                    }
                }
            }
        }
        match open.pop() {
            Some((Scope::Whole, _, parts)) => Ok(Self(parts)),
            Some((_, line, _)) => Err(TemplateError { line, what: "range without {{end}}".to_owned() }),
            None => Ok(Self(Vec::new())),
        }
    }

    /// What a machine of these requirements gets.
    pub fn render(&self, cluster: &str, requirements: &[NodeSelectorRequirement]) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::EachRequirement(inner) => {
                    for requirement in requirements {
                        render_requirement(&mut text, inner, cluster, requirement);
                    }
                }
                Part::ClusterId => text.push_str(cluster),
                Part::Text(words) => text.push_str(words),
                // These are read inside a range only.
                Part::Key | Part::Operator | Part::Values | Part::Value | Part::EachValue(_) => {}
            }
        }
        text
    }
}

fn read_field(scope: Scope, word: &str) -> Option<Part> {
    match (scope, word) {
        (Scope::Whole, ".ClusterID") | (_, "$.ClusterID") => Some(Part::ClusterId),
        (Scope::Requirement, ".Key") => Some(Part::Key),
        (Scope::Requirement, ".Operator") => Some(Part::Operator),
        (Scope::Requirement, ".Values") => Some(Part::Values),
        (Scope::Value, ".") => Some(Part::Value),
        _ => None,
    }
}

fn unknown(scope: Scope, word: &str) -> String {
    let known = match scope {
        Scope::Whole => "{{.ClusterID}} and {{range .Requirements}}",
        Scope::Requirement => "{{.Key}}, {{.Operator}}, {{.Values}}, {{range .Values}} and {{end}}",
        Scope::Value => "{{.}} and {{end}}",
    };
    format!("{{{{{}}}}} is not known here: write {known}", word.chars().take(40).collect::<String>())
}

fn render_requirement(text: &mut String, parts: &[Part], cluster: &str, it: &NodeSelectorRequirement) {
    for part in parts {
        match part {
            Part::Text(words) => text.push_str(words),
            Part::ClusterId => text.push_str(cluster),
            Part::Key => text.push_str(&it.key),
            Part::Operator => text.push_str(operator_word(it.operator())),
            Part::Values => {
                text.push('[');
                text.push_str(&it.values.join(" "));
                text.push(']');
            }
            Part::EachValue(inner) => {
                for value in &it.values {
                    for part in inner {
                        match part {
                            Part::Text(words) => text.push_str(words),
                            Part::ClusterId => text.push_str(cluster),
                            Part::Value => text.push_str(value),
                            Part::Key
                            | Part::Operator
                            | Part::Values
                            | Part::EachRequirement(_)
                            | Part::EachValue(_) => {}
                        }
                    }
                }
            }
            Part::Value | Part::EachRequirement(_) => {}
        }
    }
}

/// An operator as objects spell it.
pub fn operator_word(operator: Operator) -> &'static str {
    match operator {
        Operator::Unspecified => "",
        Operator::In => "In",
        Operator::NotIn => "NotIn",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
        Operator::Same => "Same",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str) -> String {
        let requirement = |key: &str, operator: Operator, values: &[&str]| NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: values.iter().map(|it| (*it).to_owned()).collect(),
        };
        let requirements =
            [requirement("zone", Operator::In, &["a", "b"]), requirement("gpu", Operator::Exists, &[])];
        Template::read(template).unwrap().render("lab", &requirements)
    }

    #[test]
    fn a_template_says_which_cluster_and_what_is_required() {
        assert_eq!(rendered("join {{.ClusterID}}\n"), "join lab\n");
        assert_eq!(
            rendered("{{range .Requirements}}{{.Key}} {{.Operator}} {{.Values}};{{end}}"),
            "zone In [a b];gpu Exists [];"
        );
        assert_eq!(
            rendered(
                "a {{- range .Requirements -}} {{range .Values}}<{{.}}@{{$.ClusterID}}>{{end}} {{- end}} z"
            ),
            "a<a@lab><b@lab> z"
        );
        assert!(Template::default().render("lab", &[]).contains("Cluster lab has no template"));
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_line_and_what_to_write() {
        for (template, message) in [
            (
                "a\n{{.MachineID}}",
                "line 2: {{.MachineID}} is not known here: write {{.ClusterID}} and {{range .Requirements}}",
            ),
            ("{{end}}", "line 1: {{end}} without range"),
            ("\n\n{{range .Requirements}}", "line 3: range without {{end}}"),
            ("{{.ClusterID", "line 1: {{ without }}: close the action"),
            (
                "{{.Key}}",
                "line 1: {{.Key}} is not known here: write {{.ClusterID}} and {{range .Requirements}}",
            ),
        ] {
            assert_eq!(Template::read(template).unwrap_err().to_string(), message);
        }
    }
}
