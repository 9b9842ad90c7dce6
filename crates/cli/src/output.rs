//! What is printed, and the codes a script can ask for.
//!
//! Names, messages and file names are what others chose. Text for people therefore goes out line by line ([`Lines`],
//! [`say`]), each line made printable, so that no text can end its line, move the cursor or turn what follows around.
//! Data for scripts keeps its value: [`json`] and [`yaml`] write the same characters as escapes of their own notation.

use anyhow::{Context, Result};
use fivespot_core::text::{is_hidden, printable};
use serde::Serialize;
use std::fmt::{self, Write as _};
use std::io::{ErrorKind, Write as _, stdout};
use std::process::ExitCode;

/// Nothing can be said: the code clap uses for arguments it does not understand.
pub(crate) const ERROR: u8 = 2;
/// Something a reader should look at was found.
pub(crate) const WARNED: u8 = 1;

/// Prints data that is whole already. A reader that has seen enough, such as `head`, is no error.
pub(crate) fn print(data: &str) -> Result<ExitCode> {
    match stdout().write_all(data.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        outcome => Ok(outcome.map(|()| ExitCode::SUCCESS)?),
    }
}

/// Prints one line to standard error.
pub(crate) fn say(line: &str) {
    eprintln!("{}", printable(line, usize::MAX));
}

/// Text for people, of whole lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines(String);

impl Lines {
    /// Adds a line, whatever stands in it.
    pub(crate) fn line(&mut self, line: &str) {
        self.0.push_str(&printable(line, usize::MAX));
        self.0.push('\n');
    }

    /// What `writeln!` calls: one call is one line, and the only line break is the one that `writeln!` itself adds.
    /// `write!` is not meant for it.
    #[expect(clippy::unnecessary_wraps, reason = "`writeln!` is a result everywhere else, and read as one")]
    pub(crate) fn write_fmt(&mut self, line: fmt::Arguments<'_>) -> fmt::Result {
        let line = line.to_string();
        self.line(line.strip_suffix('\n').unwrap_or(&line));
        Ok(())
    }

    /// Prints all of it at once.
    pub(crate) fn print(&self) -> Result<ExitCode> {
        print(&self.0)
    }
}

impl<S: AsRef<str>> FromIterator<S> for Lines {
    fn from_iter<I: IntoIterator<Item = S>>(lines: I) -> Self {
        let mut all = Self::default();
        lines.into_iter().for_each(|line| all.line(line.as_ref()));
        all
    }
}

/// JSON for scripts, that a terminal can be shown too. JSON itself escapes some hidden characters and not the others.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).context("print JSON")?;
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        // Outside of texts there are no hidden characters but the line breaks of the layout.
        if c == '\n' || !is_hidden(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out.push('\n');
    Ok(out)
}

/// YAML for scripts and people. Only in its JSON form, which is YAML too, can every hidden character be escaped: that form
/// is printed if there is one.
pub(crate) fn yaml(value: &impl Serialize) -> Result<String> {
    let text = serde_saphyr::to_string(value).context("print YAML")?;
    if text.contains(|c| c != '\n' && is_hidden(c)) { json(value) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const HOSTILE: &str = "a\u{1b}[2J\nb\u{7f}\u{9b}\u{202e}\u{2028}\u{e0041}";

    #[test]
    fn a_line_cannot_end_before_its_end() {
        let mut all = Lines::default();
        writeln!(all, "name: {HOSTILE}").unwrap();
        writeln!(all).unwrap();
        let ends = "ends with one\n";
        writeln!(all, "  {ends}").unwrap();
        all.line("last");
        let shown = r"a\u{1b}[2J\nb\u{7f}\u{9b}\u{202e}\u{2028}\u{e0041}";
        assert_eq!(all.0, format!("name: {shown}\n\n  ends with one\\n\nlast\n"));
    }

    #[test]
    fn data_keeps_its_value_and_shows_no_hidden_character() {
        for value in [json!({"a": HOSTILE, HOSTILE: ["ü", 1, null]}), json!({"plain": "two\nlines: ü"})] {
            let shown = [json(&value).unwrap(), yaml(&value).unwrap()];
            for text in &shown {
                assert!(!text.contains(|c| c != '\n' && is_hidden(c)), "{text:?}");
                assert_eq!(serde_saphyr::from_str::<Value>(text).unwrap(), value, "{text}");
            }
            assert_eq!(serde_json::from_str::<Value>(&shown[0]).unwrap(), value);
        }
        assert_eq!(yaml(&json!({"a": "b"})).unwrap(), "a: b\n");
    }
}
