//! Why a rule holds or does not: the parts it is made of, each beside the local time it is compared with.

use super::{Cron, Rule};
use jiff::civil::DateTime;

/// One part of a rule at one local time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What is compared: `day`, `hour`, ...
    pub what: &'static str,
    /// What it was at that time.
    pub value: String,
    /// What the rule asks for.
    pub wanted: String,
    /// Whether the two fit.
    pub holds: bool,
}

impl Rule {
    /// The parts of the rule at a local time. It holds if all of them do.
    pub fn parts(&self, local: DateTime) -> Vec<Part> {
        let hour = local.hour().to_string();
        match self {
            Self::Calendar { days, hours } => vec![
                Part {
                    what: "day",
                    value: super::day_name(local.weekday()).to_owned(),
                    wanted: days.to_string(),
                    holds: days.contains(local.weekday()),
                },
                Part {
                    what: "hour",
                    value: hour,
                    wanted: hours.to_string(),
                    holds: hours.contains(local.hour()),
                },
            ],
            Self::Cron(cron) => cron.parts(local),
        }
    }
}

impl Cron {
    fn parts(&self, local: DateTime) -> Vec<Part> {
        let text = self.to_string();
        let mut fields = text.split(' ');
        let mut part = |what, value: String, holds| Part {
            what,
            value,
            wanted: fields.next().unwrap_or_default().to_owned(),
            holds,
        };
        let minute = part("minute", local.minute().to_string(), self.has_minute(local.minute()));
        let hour = part("hour", local.hour().to_string(), self.has_hour(local.hour()));
        let date = part("day of month", local.day().to_string(), true);
        let month = part("month", local.month().to_string(), self.has_month(local.month()));
        let weekday = part("day of week", super::day_name(local.weekday()).to_owned(), true);
        let join = if self.either_day() { "or" } else { "and" };
        let day = Part {
            what: "day",
            value: format!("{} {}", weekday.value, date.value),
            wanted: format!("{} {join} {}", date.wanted, weekday.wanted),
            holds: self.has_day(local.date()),
        };
        vec![minute, hour, day, month]
    }
}
