//! What a campaign came to.

use crate::harness::from_root;
use std::collections::BTreeMap;
use std::fmt;

/// Whether all of a campaign runs, and its page is written.
pub(crate) fn is_campaign() -> bool {
    std::env::var_os("FIVESPOT_CAMPAIGN").is_some()
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Right,
    /// In what way, and what was called.
    Wrong(String),
    /// The call that was to fail was not made: what is told of a run may be told in fewer calls.
    NotDisturbed,
}

/// Runs by row and column.
pub(crate) struct Tally {
    /// What the rows are, for the head of the table.
    of: &'static str,
    columns: Vec<&'static str>,
    rows: BTreeMap<String, Row>,
    undisturbed: usize,
}

#[derive(Default)]
struct Row {
    /// How many calls there are to disturb, where calls are disturbed.
    calls: Option<usize>,
    runs: BTreeMap<&'static str, usize>,
    violations: Vec<String>,
}

impl Tally {
    pub(crate) fn new(of: &'static str, columns: impl IntoIterator<Item = &'static str>) -> Self {
        Self { of, columns: columns.into_iter().collect(), rows: BTreeMap::new(), undisturbed: 0 }
    }

    /// A row in which so many calls are disturbed.
    pub(crate) fn calls(&mut self, row: &str, calls: usize) {
        self.rows.entry(row.to_owned()).or_default().calls = Some(calls);
    }

    /// Counts a run; `what` says which, if something was wrong with it.
    pub(crate) fn count(&mut self, row: &str, column: &'static str, what: &str, outcome: Outcome) {
        let row = self.rows.entry(row.to_owned()).or_default();
        match outcome {
            Outcome::NotDisturbed => {
                self.undisturbed += 1;
                return;
            }
            Outcome::Wrong(wrong) => row.violations.push(format!("{what}: {wrong}")),
            Outcome::Right => {}
        }
        *row.runs.entry(column).or_default() += 1;
    }

    pub(crate) fn runs(&self) -> usize {
        self.rows.values().flat_map(|row| row.runs.values()).sum()
    }

    fn violations(&self) -> Vec<String> {
        let all = self.rows.iter().flat_map(|(name, row)| row.violations.iter().map(move |it| (name, it)));
        all.map(|(name, violation)| format!("{name}, {violation}")).collect()
    }

    /// Shows it, writes it into its part of `docs/campaign.md` if this is a campaign, and fails if anything was wrong or
    /// too little was tried.
    pub(crate) fn close(&self, part: &str) {
        println!("{self}");
        if is_campaign() {
            write_part(part, &self.to_string());
        }
        let violations = self.violations();
        assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
        assert!(self.runs() > 0, "nothing was tried");
        assert!(self.undisturbed * 10 < self.runs(), "{} calls were never made", self.undisturbed);
    }
}

/// Puts a text into the page of the campaign, between the marks of its part.
fn write_part(part: &str, text: &str) {
    let path = from_root("docs/campaign.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- generated: {part} -->\n"), "<!-- end -->");
    let (before, rest) = page.split_once(&begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    std::fs::write(path, format!("{before}{begin}\n{text}\n{end}{after}")).unwrap();
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_calls = self.rows.values().any(|row| row.calls.is_some());
        let calls = if has_calls { [" calls |", "---|"] } else { ["", ""] };
        write!(f, "| {} |{}", self.of, calls[0])?;
        for column in &self.columns {
            write!(f, " {column} |")?;
        }
        writeln!(f, " runs | violations |\n|---|{}{}---|---|", calls[1], "---|".repeat(self.columns.len()))?;
        for (name, row) in &self.rows {
            write!(f, "| {name} |")?;
            if has_calls {
                write!(f, " {} |", row.calls.unwrap_or_default())?;
            }
            for column in &self.columns {
                write!(f, " {} |", row.runs.get(column).copied().unwrap_or_default())?;
            }
            writeln!(f, " {} | {} |", row.runs.values().sum::<usize>(), row.violations.len())?;
        }
        let (runs, wrong) = (self.runs(), self.violations().len());
        write!(f, "\n{runs} runs, {wrong} violations")?;
        if self.undisturbed > 0 {
            write!(f, "; {} further runs made fewer calls and were not disturbed", self.undisturbed)?;
        }
        writeln!(f, ".")
    }
}
