//! Puts bounds, defaults and CEL rules onto the schema that the types give.
//!
//! The derived schema knows names, types and descriptions. What a value may be is said in one table
//! ([`crate::rules`]) and laid over it here, field by field, so that the table reads like the contract.

use kube::core::cel::{Message, Rule};
use serde_json::{Map, Value, json};

/// What one field may be. Its path is written `spec.nodeTaints[].key`: `[]` are the items of a list, `{}` the
/// values of a map.
pub(crate) struct Field {
    path: &'static str,
    keywords: Map<String, Value>,
    rules: Vec<Rule>,
}

/// Begins the description of the field at `path`.
pub(crate) fn field(path: &'static str) -> Field {
    Field { path, keywords: Map::new(), rules: Vec::new() }
}

impl Field {
    fn keyword(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.keywords.insert(name.to_owned(), value.into());
        self
    }

    /// In the place of what the type says about itself.
    pub(crate) fn says(self, text: &str) -> Self {
        self.keyword("description", text)
    }

    pub(crate) fn default(self, value: impl Into<Value>) -> Self {
        self.keyword("default", value)
    }

    pub(crate) fn required(self, fields: &[&str]) -> Self {
        self.keyword("required", fields)
    }

    pub(crate) fn max_items(self, most: usize) -> Self {
        self.keyword("maxItems", most)
    }

    pub(crate) fn max_entries(self, most: usize) -> Self {
        self.keyword("maxProperties", most)
    }

    pub(crate) fn max_chars(self, most: usize) -> Self {
        self.keyword("maxLength", most)
    }

    pub(crate) fn between(self, range: std::ops::RangeInclusive<i64>) -> Self {
        self.keyword("minimum", *range.start()).keyword("maximum", *range.end())
    }

    pub(crate) fn one_of(self, values: &[&str]) -> Self {
        self.keyword("enum", values)
    }

    /// A list whose items are identified by `keys`: the API server refuses duplicates and merges by them.
    pub(crate) fn keyed_by(self, keys: &[&str]) -> Self {
        self.keyword("x-kubernetes-list-type", "map").keyword("x-kubernetes-list-map-keys", keys)
    }

    /// An object whose content is nobody's business but its provider's. The type says "a map of anything",
    /// under which the server would keep the first level and prune the second.
    pub(crate) fn anything(self) -> Self {
        self.keyword("type", "object")
            .keyword("x-kubernetes-preserve-unknown-fields", true)
            .keyword("additionalProperties", Value::Null)
    }

    pub(crate) fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }
}

/// A rule that holds if `cel` does, and says `message` if not.
pub(crate) fn must(cel: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(cel).message(Message::Message(message.into()))
}

/// Lays the table over a derived schema. A path that does not exist in it is an error of the table.
pub(crate) fn overlay(schema: &mut Value, table: Vec<Field>) -> Result<(), String> {
    tidy(schema);
    for Field { path, keywords, rules } in table {
        let target = descend(schema, path).ok_or_else(|| format!("the schema has no field {path}"))?;
        target.extend(keywords);
        target.retain(|_, value| !value.is_null());
        if !rules.is_empty() {
            target.insert("x-kubernetes-validations".to_owned(), json!(rules));
        }
    }
    Ok(())
}

/// Removes what the lenient types say about defaults and nulls: the table says it. A null in a field that is
/// not nullable is pruned by the API server, so `killIfCommands: null` stays legal. Joins the lines of
/// descriptions.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            // A property may well be called "default"; a keyword stands beside "type" or a list of schemas.
            if map.get("type").is_some_and(Value::is_string) || map.contains_key("description") {
                for keyword in ["default", "nullable"] {
                    map.remove(keyword);
                }
            }
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = unwrap(text);
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Lines of a doc comment end where the source does; `kubectl explain` breaks them where the terminal does.
fn unwrap(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

fn descend<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Map<String, Value>> {
    let mut at = schema;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let name = step.trim_end_matches("[]").trim_end_matches("{}");
        at = at.get_mut("properties")?.get_mut(name)?;
        if step.ends_with("[]") {
            at = at.get_mut("items")?;
        }
        if step.ends_with("{}") {
            at = at.get_mut("additionalProperties")?;
        }
    }
    at.as_object_mut()
}
