//! What the reclaim agent of a Node looks for: the text under `reclaim.toml` in its ConfigMap.
//!
//! The controller writes it and the agent reads it; both do it here. Reading is strict: a key that is spelled wrong
//! would otherwise be an agent that watches for nothing, and nobody would know.

use fivespot_core::process::Patterns;
use std::ops::RangeInclusive;
use toml::{Table, Value};

const COMMANDS: &str = "match_commands";
const ARGUMENTS: &str = "match_argv_substrings";
const INTERVAL: &str = "poll_interval_ms";

/// Milliseconds of `poll_interval_ms` if it is not written.
pub const DEFAULT_POLL_INTERVAL_MS: u64 = 250;

/// Milliseconds that `poll_interval_ms` may have: below, polling would take more of the machine than the programs that
/// are looked for; above, it would be slower than the full scan that is made every ten seconds anyway.
pub const POLL_INTERVAL_MS: RangeInclusive<u64> = 1..=10_000;

/// What to look for, and how often if nobody tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// Names of processes, compared whole as far as the kernel keeps them.
    pub match_commands: Vec<String>,
    /// Parts of command lines, whose arguments are joined by spaces.
    pub match_argv_substrings: Vec<String>,
    /// Upper bound, in milliseconds, of the time in which a poll finds a process.
    pub poll_interval_ms: u64,
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML.
    #[error("not valid TOML: {0}")]
    Syntax(String),
    /// A key that nobody reads.
    #[error("unknown key {key}: write {COMMANDS}, {ARGUMENTS} or {INTERVAL}")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A value of the wrong type.
    #[error("{key}: expected {expected}")]
    Type {
        /// The key.
        key: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// A pattern that would match every process.
    #[error("{key}[{index}]: an empty pattern matches every process: remove it")]
    EmptyPattern {
        /// The key.
        key: &'static str,
        /// Place in the list.
        index: usize,
    },
    /// An interval out of bounds.
    #[error(
        "{INTERVAL}: {value} is out of range: write {} to {}",
        POLL_INTERVAL_MS.start(),
        POLL_INTERVAL_MS.end()
    )]
    Interval {
        /// What was written.
        value: i64,
    },
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            match_commands: Vec::new(),
            match_argv_substrings: Vec::new(),
            poll_interval_ms: DEFAULT_POLL_INTERVAL_MS,
        }
    }
}

impl AgentConfig {
    /// What is looked for on behalf of `killIfCommands`: every entry both as a name and in command lines, since a
    /// script or a java program carries its name in one of them only.
    pub fn for_commands(commands: &[String]) -> Self {
        Self {
            match_commands: commands.to_vec(),
            match_argv_substrings: commands.to_vec(),
            ..Self::default()
        }
    }

    /// The text for the ConfigMap. Equal configurations give equal texts.
    pub fn to_toml(&self) -> String {
        let list = |items: &[String]| Value::from(items.to_vec());
        let (commands, arguments) = (list(&self.match_commands), list(&self.match_argv_substrings));
        let interval = self.poll_interval_ms;
        format!("{COMMANDS} = {commands}\n{ARGUMENTS} = {arguments}\n{INTERVAL} = {interval}\n")
    }

    /// Reads the text of a ConfigMap.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| ConfigError::Syntax(error.to_string().trim_end().to_owned()))?;
        let mut config = Self::default();
        for (key, value) in &table {
            match key.as_str() {
                COMMANDS => config.match_commands = patterns(COMMANDS, value)?,
                ARGUMENTS => config.match_argv_substrings = patterns(ARGUMENTS, value)?,
                INTERVAL => config.poll_interval_ms = interval(value)?,
                unknown => return Err(ConfigError::UnknownKey { key: unknown.to_owned() }),
            }
        }
        Ok(config)
    }

    /// What a process is compared with.
    pub fn patterns(&self) -> Patterns {
        Patterns::new(&self.match_commands, &self.match_argv_substrings)
    }
}

fn patterns(key: &'static str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let wrong = || ConfigError::Type { key, expected: "a list of strings, such as [\"idea\", \"steam\"]" };
    let items = value.as_array().ok_or_else(wrong)?;
    let read = |(index, item): (usize, &Value)| match item.as_str().ok_or_else(wrong)? {
        "" => Err(ConfigError::EmptyPattern { key, index }),
        pattern => Ok(pattern.to_owned()),
    };
    items.iter().enumerate().map(read).collect()
}

fn interval(value: &Value) -> Result<u64, ConfigError> {
    let expected = "a whole number of milliseconds, such as 250";
    let value = value.as_integer().ok_or(ConfigError::Type { key: INTERVAL, expected })?;
    let in_range = u64::try_from(value).ok().filter(|value| POLL_INTERVAL_MS.contains(value));
    in_range.ok_or(ConfigError::Interval { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let odd = ["java", "idea \"x\"", "täxt\\n", "a\nb", "#", "16-character-xyz"].map(str::to_owned);
        let config = AgentConfig::for_commands(&odd);
        assert_eq!(config.match_commands, config.match_argv_substrings);
        assert_eq!(AgentConfig::parse(&config.to_toml()), Ok(config.clone()));
        assert_eq!(config.to_toml(), config.clone().to_toml());
        let plain = AgentConfig::for_commands(&["idea".to_owned()]).to_toml();
        let expected =
            "match_commands = [\"idea\"]\nmatch_argv_substrings = [\"idea\"]\npoll_interval_ms = 250\n";
        assert_eq!(plain, expected);
        assert_eq!(AgentConfig::parse(""), Ok(AgentConfig::default()));
    }

    fn check(text: &str, expected: &str) {
        let message = AgentConfig::parse(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }

    #[test]
    fn an_error_names_the_key_and_what_to_write() {
        check(
            "match_comands = []",
            "unknown key match_comands: write match_commands, match_argv_substrings or",
        );
        check(
            "match_commands = [\"a\", \"\"]",
            "match_commands[1]: an empty pattern matches every process: remove it",
        );
        check("match_argv_substrings = [1]", "match_argv_substrings: expected a list of strings");
        check("match_commands = \"java\"", "match_commands: expected a list of strings");
        check("poll_interval_ms = \"1s\"", "poll_interval_ms: expected a whole number of milliseconds");
        for odd in ["0", "-1", "10001"] {
            check(&format!("poll_interval_ms = {odd}"), &format!("{odd} is out of range: write 1 to 10000"));
        }
        check("match_commands = [", "not valid TOML");
    }
}
