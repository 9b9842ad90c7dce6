//! Five-field cron expressions, read as a set of minutes.
//!
//! crontab(5) is the model: `minute hour day-of-month month day-of-week`, each `*`, a value, a range, a
//! comma list of these, ranges and `*` with a `/step`; names of months and days; 7 is Sunday; and when both
//! day fields are restricted, a day that matches either one matches. Left out, each with an error that says
//! what to write: `@daily` and its like, `?`, `L`, `W`, `#`, a step on a single value, a range that runs
//! backwards or mixes a number and a name. One addition: `sun` at the end of a range is day 7, so that `fri-sun` means what it says.

use super::ranges::{Domain, SyntaxError, Token, parse_range, refuse_foreign_characters, write_list};
use super::{DAY_SECONDS, Days, Hours};
use jiff::Timestamp;
use jiff::civil::{self, Date};
use jiff::tz::Offset;
use std::fmt;

/// The minutes at which a cron expression holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cron {
    minutes: u64,
    hours: u32,
    days_of_month: u32,
    months: u16,
    /// Bit 0 is Sunday.
    days_of_week: u8,
    /// Which of the day fields are restricted, that is, do not begin with a star.
    restricted_days: [bool; 2],
}

const MINUTE: Domain = Domain {
    what: "a minute",
    expected: "0 to 59",
    names: &[],
    first: 0,
    last: 59,
    numbers: true,
    wraps: false,
};
const HOUR: Domain = Domain { wraps: false, ..super::HOUR };
const DAY_OF_MONTH: Domain = Domain {
    what: "a day of the month",
    expected: "1 to 31",
    names: &[],
    first: 1,
    last: 31,
    numbers: true,
    wraps: false,
};
const MONTH: Domain = Domain {
    what: "a month",
    expected: "1 to 12 or jan to dec",
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    first: 1,
    last: 12,
    numbers: true,
    wraps: false,
};
const DAY_OF_WEEK: Domain = Domain {
    what: "a day of the week",
    expected: "0 to 7 or sun to sat",
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    first: 0,
    last: 7,
    numbers: true,
    wraps: false,
};

const FIELDS: [&Domain; 5] = [&MINUTE, &HOUR, &DAY_OF_MONTH, &MONTH, &DAY_OF_WEEK];

impl Cron {
    /// Reads an expression. Fields are separated by spaces or tabs.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        if text.starts_with('@') {
            let problem = format!("\"{text}\" is a shorthand: write the five fields out");
            return Err(SyntaxError::new(0, problem));
        }
        let blank = [' ', '\t'];
        if text.starts_with(blank) || text.ends_with(blank) {
            return Err(SyntaxError::new(0, "begins or ends with a space: write the five fields alone"));
        }
        let fields: Vec<Token<'_>> =
            Token { text, at: 0 }.split(&blank).filter(|field| !field.text.is_empty()).collect();
        let count = fields.len();
        let fields: [Token<'_>; 5] = fields.try_into().map_err(|_| {
            let problem = format!(
                "has {count} fields: expected five, minute hour day-of-month month day-of-week, such as \
                 \"* 9-16 * * mon-fri\""
            );
            SyntaxError::new(0, problem)
        })?;
        let mut sets = [0_u64; 5];
        for ((set, field), domain) in sets.iter_mut().zip(fields).zip(FIELDS) {
            *set = parse_field(field, domain)?;
        }
        let [minutes, hours, days_of_month, months, days_of_week] = sets;
        // Sunday is both 0 and 7.
        let days_of_week = (days_of_week | days_of_week >> 7) & 0x7f;
        let restricted = |field: Token<'_>| !field.text.starts_with('*');
        Ok(Self {
            minutes,
            hours: low_bits(hours),
            days_of_month: low_bits(days_of_month),
            months: low_bits(months),
            days_of_week: low_bits(days_of_week),
            restricted_days: [restricted(fields[2]), restricted(fields[4])],
        })
    }

    /// Whether the expression holds at a local time, counted in seconds since local 1970 began.
    pub(super) fn holds(&self, local: i64) -> bool {
        let minute_of_day = local.rem_euclid(DAY_SECONDS) / 60;
        date(local.div_euclid(DAY_SECONDS)).is_some_and(|date| self.holds_on(date))
            && self.hours >> (minute_of_day / 60) & 1 != 0
            && self.minutes >> (minute_of_day % 60) & 1 != 0
    }

    /// The first local time after `local` and before `limit` at which the answer is not `active`.
    pub(super) fn change_after(&self, local: i64, active: bool, limit: i64) -> Option<i64> {
        let first = local.div_euclid(60) + 1;
        let (mut day, mut minute) = (first.div_euclid(MINUTES), first.rem_euclid(MINUTES));
        while day * DAY_SECONDS < limit {
            let date = date(day)?;
            let changed = match (self.holds_on(date), active) {
                (true, _) => self.minute_of_day(minute, !active),
                (false, true) => Some(minute),
                (false, false) => None,
            };
            if let Some(minute) = changed {
                let at = day * DAY_SECONDS + minute * 60;
                return (at < limit).then_some(at);
            }
            let skipped = if has(self.months, date.month()) || active {
                1
            } else {
                i64::from(date.days_in_month()) - i64::from(date.day()) + 1
            };
            (day, minute) = (day + skipped, 0);
        }
        None
    }

    /// What always holds, if the answer is the same at every minute.
    pub(super) fn constant(&self) -> Option<bool> {
        let all_months = self.months == 0x1ffe;
        let (all_dates, all_weekdays) = (self.days_of_month == 0xffff_fffe, self.days_of_week == 0x7f);
        let all_days = all_months
            && if self.either_day() { all_dates || all_weekdays } else { all_dates && all_weekdays };
        if all_days && self.hours == 0x00ff_ffff && self.minutes == ALL_MINUTES {
            return Some(true);
        }
        // Every date falls on every weekday sooner or later, February 29 too.
        let longest = |month: i8| civil::date(2000, month, 1).days_in_month();
        let dates = (1..=12).filter(|month| has(self.months, *month)).map(longest).max().unwrap_or(0);
        let some_date = (1..=dates).any(|day| has(self.days_of_month, day));
        if some_date || self.either_day() { None } else { Some(false) }
    }

    /// crontab(5): the day fields are joined by "or" if both are restricted, by "and" otherwise.
    pub(super) fn either_day(&self) -> bool {
        self.restricted_days == [true, true]
    }

    /// Whether minutes of this date can hold.
    fn holds_on(&self, date: Date) -> bool {
        self.has_day(date) && self.has_month(date.month())
    }

    /// Whether the day fields allow this date, whatever the month.
    pub(super) fn has_day(&self, date: Date) -> bool {
        let day_of_month = has(self.days_of_month, date.day());
        let day_of_week = has(self.days_of_week, date.weekday().to_sunday_zero_offset());
        if self.either_day() { day_of_month || day_of_week } else { day_of_month && day_of_week }
    }

    /// The days and hours of an expression that says nothing but these: any date, any month, whole hours.
    pub(super) fn weekly(&self) -> Option<(Days, Hours)> {
        let only_weekly =
            !self.restricted_days[0] && self.days_of_month == 0xffff_fffe && self.months == 0x1ffe;
        let monday_first = self.days_of_week >> 1 | (self.days_of_week & 1) << 6;
        (only_weekly && self.minutes == ALL_MINUTES).then_some((Days(monday_first), Hours(self.hours)))
    }

    pub(super) fn has_month(&self, month: i8) -> bool {
        has(self.months, month)
    }

    pub(super) fn has_hour(&self, hour: i8) -> bool {
        has(self.hours, hour)
    }

    pub(super) fn has_minute(&self, minute: i8) -> bool {
        has(self.minutes, minute)
    }

    /// On a date that holds: the first minute of the day, from `from` on, that is `wanted`.
    fn minute_of_day(&self, from: i64, wanted: bool) -> Option<i64> {
        let mut minute = from % 60;
        for hour in from / 60..24 {
            let held = if self.hours >> hour & 1 != 0 { self.minutes } else { 0 };
            let found = (if wanted { held } else { !held & ALL_MINUTES }) >> minute;
            if found != 0 {
                return Some(hour * 60 + minute + i64::from(found.trailing_zeros()));
            }
            minute = 0;
        }
        None
    }
}

impl fmt::Display for Cron {
    /// Writes an expression that reads the same, also in which day fields are restricted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [dates, weekdays] = self.restricted_days;
        let fields = [
            write_field(self.minutes, &MINUTE, false),
            write_field(self.hours.into(), &HOUR, false),
            write_field(self.days_of_month.into(), &DAY_OF_MONTH, dates),
            write_field(self.months.into(), &MONTH, false),
            write_field(self.days_of_week.into(), &DAY_OF_WEEK, weekdays),
        ];
        f.write_str(&fields.join(" "))
    }
}

/// A field as a list of ranges, or with a star in front of what the star leaves over. A restricted field must
/// not begin with a star; a field of days that is not restricted must.
fn write_field(bits: u64, domain: &Domain, is_restricted: bool) -> String {
    let week = domain.last == 7;
    let last = if week { 6 } else { domain.last };
    let stepped = |step: u8| {
        (domain.first..=last).step_by(usize::from(step)).fold(0_u64, |bits, value| bits | 1 << value)
    };
    let starred = (1..=domain.last).find(|step| stepped(*step) & !bits == 0).filter(|_| !is_restricted);
    let is_days = week || domain.last == 31;
    match starred {
        Some(1) => "*".to_owned(),
        Some(step) if is_days => {
            // On the week, "*/7" counts 0 and 7, which are one Sunday.
            match write_list(bits & !stepped(step), domain) {
                rest if rest.is_empty() => format!("*/{step}"),
                rest => format!("*/{step},{rest}"),
            }
        }
        _ => write_list(bits, domain),
    }
}

/// Minutes of a day.
const MINUTES: i64 = DAY_SECONDS / 60;
/// Every minute of an hour.
const ALL_MINUTES: u64 = (1 << 60) - 1;

/// The date that many days after 1970-01-01. `None` beyond the year 9999.
fn date(day: i64) -> Option<Date> {
    let midnight = Timestamp::from_second(day.checked_mul(DAY_SECONDS)?).ok()?;
    Some(Offset::UTC.to_datetime(midnight).date())
}

fn parse_field(field: Token<'_>, domain: &Domain) -> Result<u64, SyntaxError> {
    refuse_foreign_characters(field)?;
    let mut bits = 0;
    for part in field.split(&[',']) {
        bits |= parse_part(part, domain)?;
    }
    Ok(bits)
}

/// One element of a field's comma list: `*`, `a` or `a-b`, the first and the last with an optional `/step`.
fn parse_part(part: Token<'_>, domain: &Domain) -> Result<u64, SyntaxError> {
    let mut pieces = part.split(&['/']);
    let (Some(range), step, None) = (pieces.next(), pieces.next(), pieces.next()) else {
        let (Token { text, at }, place) = (part, part.place());
        return Err(SyntaxError::new(at, format!("\"{text}\" at character {place} has more than one \"/\"")));
    };
    let is_star = range.text == "*";
    let written = step.map(|step| format!("/{}", step.text)).unwrap_or_default();
    let (first, last) =
        if is_star { (domain.first, domain.last) } else { ascending(range, &written, domain)? };
    let step = match step {
        None => 1,
        Some(step) if !is_star && !range.text.contains('-') => {
            let (Token { text, at }, place) = (range, part.place());
            let problem = format!("\"{}\" at character {place} steps from a single value", part.text);
            parse_step(step, domain)?;
            let (turn, again) = ends(text, domain);
            let text = if text == "7" { again.as_str() } else { text };
            return Err(
                SyntaxError::new(at, problem).hint(format!("did you mean {text}-{turn}/{}?", step.text))
            );
        }
        Some(step) => parse_step(step, domain)?,
    };
    Ok((first..=last).step_by(usize::from(step)).fold(0, |bits, value| bits | 1 << value))
}

/// Reads a range whose ends are both numbers or both names, and which does not run backwards.
fn ascending(range: Token<'_>, step: &str, domain: &Domain) -> Result<(u8, u8), SyntaxError> {
    let (first, last) = parse_range(range, domain)?;
    let (Token { text, at }, place) = (range, range.place());
    let Some((start, end)) = text.split_once('-') else { return Ok((first, last)) };
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    if is_number(start) != is_number(end) {
        let problem =
            format!("\"{text}\" at character {place} mixes a number and a name: write two of a kind");
        return Err(SyntaxError::new(at, problem));
    }
    let last = if end.eq_ignore_ascii_case("sun") && first > 0 { 7 } else { last };
    if first <= last {
        return Ok((first, last));
    }
    let (turn, again) = ends(start, domain);
    let problem = format!("\"{text}\" at character {place} runs backwards");
    // 7 is the Sunday that begins the week, not the one that ends it.
    let hint = match first {
        7 if domain.last == 7 => format!("did you mean {again}-{end}{step}?"),
        _ => format!("did you mean {start}-{turn}{step},{again}-{end}{step}?"),
    };
    Err(SyntaxError::new(at, problem).hint(hint))
}

/// Where a domain ends and begins again, in the writer's own terms: names if `like` is one.
fn ends(like: &str, domain: &Domain) -> (String, String) {
    let is_number = like.starts_with(|c: char| c.is_ascii_digit());
    match domain.names {
        [again, .., turn] if !is_number => ((*turn).to_owned(), (*again).to_owned()),
        _ if domain.last == 7 => ("6".to_owned(), "0".to_owned()),
        _ => (domain.last.to_string(), domain.first.to_string()),
    }
}

fn parse_step(step: Token<'_>, domain: &Domain) -> Result<u8, SyntaxError> {
    let (Token { text, at }, place, most) = (step, step.place(), domain.last);
    let is_number = text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse::<u8>().ok().filter(|n| is_number && (1..=most).contains(n)).ok_or_else(|| {
        SyntaxError::new(at, format!("\"{text}\" at character {place} is not a step: expected 1 to {most}"))
    })
}

/// Whether the bit for a calendar value is set. jiff's values are never negative.
fn has(bits: impl Into<u64>, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| bits.into() >> value & 1 != 0)
}

/// The bits of a domain that fits `T` by construction.
fn low_bits<T: TryFrom<u64> + Default>(bits: u64) -> T {
    T::try_from(bits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use jiff::civil::{DateTime, date};
    use proptest::prelude::*;

    fn check_error(text: &str, expect: &Expect) {
        expect.assert_eq(&Cron::parse(text).unwrap_err().to_string());
    }

    fn holds(cron: Cron, local: DateTime) -> bool {
        cron.holds(Offset::UTC.to_timestamp(local).unwrap().as_second())
    }

    #[test]
    fn reads_a_set_of_minutes() {
        let office = Cron::parse("* 9-16 * * mon-fri").unwrap();
        let friday = date(2026, 11, 13);
        assert!(holds(office, friday.at(16, 59, 59, 0)));
        assert!(!holds(office, friday.at(17, 0, 0, 0)));
        assert!(!holds(office, date(2026, 11, 14).at(12, 0, 0, 0)));
        let quarter = Cron::parse("*/15 * * * *").unwrap();
        let marks: Vec<i8> = (0..60).filter(|&m| holds(quarter, friday.at(0, m, 0, 0))).collect();
        assert_eq!(marks, [0, 15, 30, 45]);
    }

    #[test]
    fn days_are_joined_by_or_only_if_both_are_restricted() {
        let friday_13 = date(2026, 11, 13).at(0, 0, 0, 0);
        let monday_1 = date(2027, 2, 1).at(0, 0, 0, 0);
        let tuesday_2 = date(2027, 2, 2).at(0, 0, 0, 0);
        let either = Cron::parse("* * 1 * fri").unwrap();
        assert!(holds(either, friday_13) && holds(either, monday_1) && !holds(either, tuesday_2));
        let first = Cron::parse("* * 1 * *").unwrap();
        assert!(!holds(first, friday_13) && holds(first, monday_1));
        // crontab(5): a field that begins with "*" is not restricted, so "*/2" joins by "and".
        let even_fridays = Cron::parse("* * */2 * fri").unwrap();
        assert!(holds(even_fridays, friday_13) && !holds(even_fridays, monday_1));
    }

    #[test]
    fn sunday_is_0_and_7_and_ends_a_range() {
        let sunday = date(2026, 11, 15).at(8, 0, 0, 0);
        for text in
            ["* * * * 0", "* * * * 7", "* * * * sun", "* * * * fri-sun", "* * * * 5-7", "* * * * SUN-mon"]
        {
            assert!(holds(Cron::parse(text).unwrap(), sunday), "{text}");
        }
        assert!(!holds(Cron::parse("* * * * mon-sat").unwrap(), sunday));
    }

    #[test]
    fn what_is_printed_reads_the_same() {
        for (text, printed) in [
            ("* 9-16 * * mon-fri", "* 9-16 * * mon-fri"),
            ("*/15 0-23 * * *", "0,15,30,45 * * * *"),
            ("* * */2 * fri", "* * */2 * fri"),
            ("* * 1-31 * fri", "* * 1-31 * fri"),
            ("* * */10,5 * 0-7", "* * */10,5 * sun-sat"),
            ("* * 3 jan-mar *", "* * 3 jan-mar *"),
            ("* * 3 * */7", "* * 3 * */7"),
            ("* * 3 * 5-7", "* * 3 * sun,fri-sat"),
        ] {
            let cron = Cron::parse(text).unwrap();
            assert_eq!(cron.to_string(), printed);
            assert_eq!(Cron::parse(printed), Ok(cron), "{text}");
        }
    }

    /// A field: a star, a value, a range, steps, and lists of these.
    fn field(first: u8, last: u8) -> impl Strategy<Value = String> {
        let range = (first..=last, first..=last).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let part = prop_oneof![
            Just("*".to_owned()),
            (1..=last).prop_map(|step| format!("*/{step}")),
            (first..=last).prop_map(|value| value.to_string()),
            range.clone().prop_map(|(a, b)| format!("{a}-{b}")),
            (range, 1..=last).prop_map(|((a, b), step)| format!("{a}-{b}/{step}")),
        ];
        proptest::collection::vec(part, 1..4).prop_map(|parts| parts.join(","))
    }

    proptest! {
        #[test]
        fn any_expression_prints_as_it_reads(
            fields in (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7)),
        ) {
            let (minute, hour, date, month, weekday) = fields;
            let cron = Cron::parse(&format!("{minute} {hour} {date} {month} {weekday}")).unwrap();
            prop_assert_eq!(Cron::parse(&cron.to_string()), Ok(cron));
        }
    }

    #[test]
    fn what_an_error_suggests_is_accepted() {
        for (before, bad, after) in [
            ("", "5/15", " * * * *"),
            ("* ", "22-6", " * * *"),
            ("* * * ", "nov-feb", " *"),
            ("* * * ", "11-2/3", " *"),
            ("* * * * ", "fri-mon", ""),
            ("* * * * ", "mon/2", ""),
            ("* * * * ", "5-0", ""),
            ("* * * * ", "7-3", ""),
            ("* * * * ", "7/2", ""),
            ("* ", "11-2/3", " * * *"),
        ] {
            let error = Cron::parse(&format!("{before}{bad}{after}")).unwrap_err().to_string();
            let hint = error.rsplit_once("did you mean ").unwrap().1.trim_end_matches('?');
            Cron::parse(&format!("{before}{hint}{after}")).unwrap_or_else(|e| panic!("{bad} -> {hint}: {e}"));
        }
    }

    #[test]
    fn errors_say_where_and_what_was_meant() {
        check_error(
            "* 9-16 * *",
            &expect![[
                r#"has 4 fields: expected five, minute hour day-of-month month day-of-week, such as "* 9-16 * * mon-fri""#
            ]],
        );
        check_error("@daily", &expect![[r#""@daily" is a shorthand: write the five fields out"#]]);
        check_error(" * * * * *", &expect!["begins or ends with a space: write the five fields alone"]);
        check_error("60 * * * *", &expect![[r#""60" at character 1 is not a minute: expected 0 to 59"#]]);
        check_error(
            "* 22-6 * * *",
            &expect![[r#""22-6" at character 3 runs backwards; did you mean 22-23,0-6?"#]],
        );
        check_error(
            "* * * * 5-0",
            &expect![[r#""5-0" at character 9 runs backwards; did you mean 5-6,0-0?"#]],
        );
        check_error(
            "* * * * fri-mon",
            &expect![[r#""fri-mon" at character 9 runs backwards; did you mean fri-sat,sun-mon?"#]],
        );
        check_error(
            "* * * * mon-5",
            &expect![[r#""mon-5" at character 9 mixes a number and a name: write two of a kind"#]],
        );
        check_error(
            "5/15 * * * *",
            &expect![[r#""5/15" at character 1 steps from a single value; did you mean 5-59/15?"#]],
        );
        check_error("*/0 * * * *", &expect![[r#""0" at character 3 is not a step: expected 1 to 59"#]]);
        check_error(
            "* * * * mno",
            &expect![[
                r#""mno" at character 9 is not a day of the week: expected 0 to 7 or sun to sat; did you mean mon?"#
            ]],
        );
        check_error(
            "* * ? * *",
            &expect![[r#""?" at character 5 is not a day of the month: expected 1 to 31"#]],
        );
    }
}
