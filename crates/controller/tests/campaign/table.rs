//! What a campaign came to.

use crate::Outcome;
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
    /// Runs whose call was not made.
    undisturbed: usize,
}

impl Table {
    pub(crate) fn new(calls: impl Iterator<Item = (Scenario, usize)>) -> Self {
        let row = |(scenario, calls)| (scenario, Row { calls, ..Row::default() });
        Self { rows: calls.map(row).collect(), violations: Vec::new(), undisturbed: 0 }
    }

    pub(crate) fn count(&mut self, scenario: Scenario, plan: Option<&Plan>, outcome: Outcome) {
        let Some(Plan { at, fault, times }) = plan else { return };
        if outcome == Outcome::NotDisturbed {
            self.undisturbed += 1;
            return;
        }
        *self.rows.entry(scenario).or_default().runs.entry(*fault).or_default() += 1;
        if let Outcome::Wrong(wrong) = outcome {
            let (scenario, fault) = (scenario.as_str(), fault.as_str());
            self.violations.push(format!("{scenario}, call {at}, {times} times {fault}: {wrong}"));
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.rows.values().flat_map(|row| row.runs.values()).sum()
    }

    /// Fails if anything was wrong, or if too little was tried.
    pub(crate) fn check(&self) {
        let (wrong, count) = (self.violations.join("\n"), self.violations.len());
        assert!(self.violations.is_empty(), "{count} violations:\n{wrong}");
        assert!(self.undisturbed * 10 < self.runs(), "{} calls were never made", self.undisturbed);
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
        let (runs, wrong, none) = (self.runs(), self.violations.len(), self.undisturbed);
        writeln!(
            f,
            "\n{runs} runs, {wrong} violations; {none} further runs made fewer calls and were not disturbed"
        )
    }
}
