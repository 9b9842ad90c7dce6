//! Names as Kubernetes spells them: qualified keys, label values, object names.

use crate::limits::{LABEL_VALUE_CHARS, OBJECT_NAME_CHARS, RESERVED_DOMAINS};

/// Why a name is refused. Each message carries the rule, so that the reader can mend the name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not `[prefix/]name`.
    #[error(
        "\"{0}\" is not a qualified name: write [prefix/]name, the prefix a DNS subdomain in lower case, the \
         name 1 to 63 letters, digits, \"-\", \"_\" or \".\" that begins and ends with a letter or digit"
    )]
    Key(String),
    /// The prefix belongs to somebody else.
    #[error(
        "\"{key}\" is reserved: keys under {domain} belong to Kubernetes, Cluster API or 5-Spot; use a domain \
         of your own"
    )]
    Reserved {
        /// The whole key.
        key: String,
        /// The reserved domain its prefix falls under.
        domain: &'static str,
    },
    /// Not a label value.
    #[error(
        "\"{0}\" is not a label value: write at most 63 letters, digits, \"-\", \"_\" or \".\", beginning and \
         ending with a letter or digit"
    )]
    LabelValue(String),
    /// Not an object name.
    #[error(
        "\"{0}\" is not an object name: write lower case letters, digits, \"-\" or \".\", beginning and ending \
         with a letter or digit"
    )]
    ObjectName(String),
    /// Too long for its place.
    #[error("has {chars} characters: at most {most} are allowed")]
    TooLong {
        /// What it has.
        chars: usize,
        /// What it may have.
        most: usize,
    },
}

/// Checks the length in characters, as the API server's `maxLength` does.
pub fn at_most(text: &str, most: usize) -> Result<(), NameError> {
    let chars = text.chars().count();
    if chars > most { Err(NameError::TooLong { chars, most }) } else { Ok(()) }
}

/// A label, annotation or taint key that the user may set: a qualified name outside the reserved domains.
pub fn free_key(key: &str) -> Result<(), NameError> {
    qualified_key(key)?;
    match key.split_once('/').and_then(|(prefix, _)| reserved_domain(prefix)) {
        Some(domain) => Err(NameError::Reserved { key: key.to_owned(), domain }),
        None => Ok(()),
    }
}

/// Whether a key belongs to Kubernetes, Cluster API or 5-Spot itself.
pub fn is_reserved(key: &str) -> bool {
    key.split_once('/').is_some_and(|(prefix, _)| reserved_domain(prefix).is_some())
}

/// A qualified name, whoever's.
pub fn qualified_key(key: &str) -> Result<(), NameError> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let well_formed = prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name);
    if well_formed { Ok(()) } else { Err(NameError::Key(key.to_owned())) }
}

/// A label value; the empty one is legal.
pub fn label_value(value: &str) -> Result<(), NameError> {
    if value.is_empty() || is_label_value(value) {
        Ok(())
    } else {
        Err(NameError::LabelValue(value.to_owned()))
    }
}

/// The name of a namespaced object: an RFC 1123 subdomain.
pub fn object_name(name: &str) -> Result<(), NameError> {
    if is_subdomain(name) { Ok(()) } else { Err(NameError::ObjectName(name.to_owned())) }
}

/// An object name that also serves as a label value.
pub fn labelled_object_name(name: &str) -> Result<(), NameError> {
    at_most(name, LABEL_VALUE_CHARS)?;
    object_name(name)
}

fn reserved_domain(prefix: &str) -> Option<&'static str> {
    RESERVED_DOMAINS
        .into_iter()
        .find(|domain| prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

fn is_label_value(text: &str) -> bool {
    let ends_well = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= LABEL_VALUE_CHARS
        && ends_well(text.chars().next())
        && ends_well(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn is_subdomain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= OBJECT_NAME_CHARS
        && text.split('.').all(|label| {
            label.starts_with(plain) && label.ends_with(plain) && label.chars().all(|c| plain(c) || c == '-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_domains_cover_their_subdomains_and_nothing_beside_them() {
        for key in [
            "kubernetes.io/x",
            "node-role.kubernetes.io/x",
            "pre-drain.delete.hook.machine.cluster.x-k8s.io/x",
            "5spot.finos.org/x",
        ] {
            assert!(matches!(free_key(key), Err(NameError::Reserved { .. })), "{key}");
        }
        for key in
            ["notkubernetes.io/x", "kubernetes.io.example.com/x", "x-k8s.io/x", "kubernetes.io", "team"]
        {
            assert_eq!(free_key(key), Ok(()), "{key}");
        }
    }

    #[test]
    fn malformed_keys_are_refused() {
        for key in ["", "/", "a/", "/a", "a/b/c", "-a", "a-", "UPPER.example.com/a", "a b", "ex..ample/a"] {
            assert!(matches!(free_key(key), Err(NameError::Key(_))), "{key}");
        }
    }
}
