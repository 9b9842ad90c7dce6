//! What a campaign came to.

use crate::disturbance::{Fault, Plan};
use crate::scenario::Scenario;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Default)]
struct Row {
    calls: usize,
    runs: BTreeMap<Fault, usize>,
}

pub(crate) struct Table {
    rows: BTreeMap<Scenario, Row>,
    violations: Vec<String>,
}

impl Table {
    pub(crate) fn new(calls: impl Iterator<Item = (Scenario, usize)>) -> Self {
        let row = |(scenario, calls)| (scenario, Row { calls, ..Row::default() });
        Self { rows: calls.map(row).collect(), violations: Vec::new() }
    }

    pub(crate) fn count(&mut self, scenario: Scenario, plan: Option<&Plan>, wrong: Option<String>) {
        let Some(Plan { at, fault, times }) = plan else { return };
        *self.rows.entry(scenario).or_default().runs.entry(*fault).or_default() += 1;
        if let Some(wrong) = wrong {
            let (scenario, fault) = (scenario.as_str(), fault.as_str());
            self.violations.push(format!("{scenario}, call {at}, {times} times {fault}: {wrong}"));
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.rows.values().flat_map(|row| row.runs.values()).sum()
    }

    /// Fails if anything was wrong.
    pub(crate) fn check(&self) {
        assert!(
            self.violations.is_empty(),
            "{} violations:\n{}",
            self.violations.len(),
            self.violations.join("\n")
        );
    }

    /// The page for `docs/`.
    pub(crate) fn page(&self) -> String {
        format!(
            "# The campaign\n\nWritten by `make campaign`: every call of every scenario, disturbed in every way, once and three \
             times in a row, on a real API server. A violation is an end state that differs from the undisturbed run, or a \
             broken rule of `crates/controller/tests/campaign/never.rs`.\n\n{self}"
        )
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| scenario | calls |")?;
        for fault in Fault::ALL {
            write!(f, " {} |", fault.as_str())?;
        }
        writeln!(f, " runs | violations |\n|---|---|{}---|---|", "---|".repeat(Fault::ALL.len()))?;
        for (scenario, row) in &self.rows {
            let name = scenario.as_str();
            write!(f, "| {name} | {} |", row.calls)?;
            for fault in Fault::ALL {
                write!(f, " {} |", row.runs.get(&fault).copied().unwrap_or_default())?;
            }
            let wrong = self.violations.iter().filter(|it| it.starts_with(&format!("{name}, "))).count();
            writeln!(f, " {} | {wrong} |", row.runs.values().sum::<usize>())?;
        }
        writeln!(f, "\n{} runs, {} violations", self.runs(), self.violations.len())
    }
}
