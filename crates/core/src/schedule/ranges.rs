//! The notation that days, hours and cron fields share: values, ranges and comma lists over a small domain.

use std::fmt;

/// Where a text stops making sense, and what would make sense there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// Position of the first character in question, counted from 0.
    pub at: usize,
    problem: String,
    hint: Option<String>,
}

impl std::error::Error for SyntaxError {}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.problem)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl SyntaxError {
    pub(super) fn new(at: usize, problem: impl Into<String>) -> Self {
        Self { at, problem: problem.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The values that may stand in one place: numbers, names, or both.
pub(super) struct Domain {
    /// What one value is called, with its article.
    pub(super) what: &'static str,
    /// What to write, for messages.
    pub(super) expected: &'static str,
    /// Names of the values from `first` on; empty if only numbers are read.
    pub(super) names: &'static [&'static str],
    pub(super) first: u8,
    pub(super) last: u8,
    pub(super) numbers: bool,
    /// Whether a range may run round the end, as in lists of days and hours. In these an empty list stands for
    /// all values; a cron field has a star for that.
    pub(super) wraps: bool,
}

/// A piece of the text and the position of its first character.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Token<'a> {
    /// The pieces between separators, each with its position.
    pub(super) fn split<'s>(self, separators: &'s [char]) -> impl Iterator<Item = Token<'a>> + use<'a, 's> {
        let mut at = self.at;
        self.text.split(separators).map(move |text| {
            let token = Token { text, at };
            at += text.chars().count() + 1;
            token
        })
    }

    /// This as a human counts characters.
    pub(super) fn place(self) -> usize {
        self.at + 1
    }
}

/// Reads a comma list of values and ranges into a bit set; a range whose end lies before its start wraps.
pub(super) fn parse_list(text: &str, domain: &Domain) -> Result<u64, SyntaxError> {
    if text.is_empty() {
        let Domain { expected, .. } = domain;
        return Err(SyntaxError::new(
            0,
            format!("is empty: expected {expected}, a range such as a-b, or a comma list"),
        ));
    }
    let list = Token { text, at: 0 };
    refuse_foreign_characters(list)?;
    let mut bits = 0;
    for part in list.split(&[',']) {
        let (start, end) = parse_range(part, domain)?;
        bits |= span(start, end, domain);
    }
    Ok(bits)
}

/// Characters that come from word processors and from habit, named before anything else is read.
pub(super) fn refuse_foreign_characters(token: Token<'_>) -> Result<(), SyntaxError> {
    for (i, c) in token.text.chars().enumerate() {
        let at = token.at + i;
        let place = at + 1;
        if matches!(c, '\u{2010}'..='\u{2015}' | '\u{2212}') {
            let problem = format!("\"{c}\" at character {place} is a typographic dash: write \"-\"");
            return Err(SyntaxError::new(at, problem));
        }
        if c.is_whitespace() {
            let problem = format!("a space at character {place}: write the list without spaces");
            return Err(SyntaxError::new(at, problem));
        }
    }
    Ok(())
}

/// Reads `a` as (a, a) and `a-b` as (a, b).
pub(super) fn parse_range(part: Token<'_>, domain: &Domain) -> Result<(u8, u8), SyntaxError> {
    let mut ends = part.split(&['-']);
    let (Some(start), end, None) = (ends.next(), ends.next(), ends.next()) else {
        let Token { text, at } = part;
        let place = part.place();
        return Err(SyntaxError::new(
            at,
            format!(
                "\"{text}\" at character {place} is not a range: write two ends with one \"-\" between them"
            ),
        ));
    };
    let start = parse_value(start, domain)?;
    let end = end.map_or(Ok(start), |end| parse_value(end, domain))?;
    Ok((start, end))
}

fn parse_value(token: Token<'_>, domain: &Domain) -> Result<u8, SyntaxError> {
    let Domain { what, expected, .. } = domain;
    let Token { text, at } = token;
    let place = token.place();
    if text.is_empty() {
        return Err(SyntaxError::new(
            at,
            format!("{what} is missing at character {place}: expected {expected}"),
        ));
    }
    let by_name = domain.names.iter().zip(domain.first..).find(|(name, _)| name.eq_ignore_ascii_case(text));
    if let Some((_, value)) = by_name {
        return Ok(value);
    }
    // "9" and "09" are the same hour; "+9" and "009" are mistakes.
    let is_number = text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit());
    if domain.numbers
        && is_number
        && let Ok(value) = text.parse::<u8>()
        && (domain.first..=domain.last).contains(&value)
    {
        return Ok(value);
    }
    let error =
        SyntaxError::new(at, format!("\"{text}\" at character {place} is not {what}: expected {expected}"));
    Err(match near_miss(text, domain) {
        Some(hint) => error.hint(hint),
        None => error,
    })
}

/// The values from `start` to `end`, both included, going round the end of the domain if need be.
fn span(start: u8, end: u8, domain: &Domain) -> u64 {
    let up_to = |n: u8| (2_u64 << n) - 1;
    let from = |n: u8| !((1_u64 << n) - 1);
    if start <= end {
        from(start) & up_to(end)
    } else {
        (from(start) & up_to(domain.last)) | (up_to(end) & from(domain.first))
    }
}

/// Writes a set the way it is read: ranges of neighbours, in order, round the end if the domain wraps. The inverse
/// of [`parse_list`].
pub(super) fn write_list(bits: u64, domain: &Domain) -> String {
    let mut runs: Vec<(u8, u8)> = Vec::new();
    for value in (domain.first..=domain.last).filter(|value| bits >> value & 1 != 0) {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == value => *end = value,
            _ => runs.push((value, value)),
        }
    }
    if let ([(first, end), .., (start, last)], true) = (&runs[..], domain.wraps)
        && (*first, *last) == (domain.first, domain.last)
    {
        let around = (*start, *end);
        runs.pop();
        runs.remove(0);
        runs.push(around);
    }
    let name = |value: u8| match domain.names.get(usize::from(value - domain.first)) {
        Some(name) => (*name).to_owned(),
        None => value.to_string(),
    };
    let part = |(start, end): (u8, u8)| {
        if start == end { name(start) } else { format!("{}-{}", name(start), name(end)) }
    };
    runs.into_iter().map(part).collect::<Vec<_>>().join(",")
}

/// What the writer most likely meant.
fn near_miss(text: &str, domain: &Domain) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    if let Some(name) = domain.names.iter().find(|name| lower.starts_with(*name) || is_close(&lower, name)) {
        return Some(format!("did you mean {name}?"));
    }
    if text == "*" && domain.wraps {
        return Some("leave the list empty for all".to_owned());
    }
    if domain.numbers { near_number(&lower, domain) } else { None }
}

fn near_number(text: &str, domain: &Domain) -> Option<String> {
    let fits = |n: u8| (domain.first..=domain.last).contains(&n).then_some(n);
    let meant = |n: u8| format!("did you mean {n}?");
    if domain.wraps && domain.last == 23 {
        if text == "24" {
            return Some("midnight is 0".to_owned());
        }
        if let Some(hour) = text.strip_suffix("am").and_then(on_the_dial) {
            return fits(hour % 12).map(meant);
        }
        if let Some(hour) = text.strip_suffix("pm").and_then(on_the_dial) {
            return fits(hour % 12 + 12).map(meant);
        }
        if let Some((hour, _)) = text.split_once(':') {
            let hour = fits(hour.parse().ok()?)?;
            return Some(format!("a window begins on the hour: did you mean {hour}?"));
        }
    }
    fits(text.parse().ok()?).map(meant)
}

/// An hour as a clock with twelve of them shows it.
fn on_the_dial(text: &str) -> Option<u8> {
    text.trim_end().parse().ok().filter(|hour| (1..=12).contains(hour))
}

/// Whether `text` is `name` with one character changed, or two neighbours swapped.
fn is_close(text: &str, name: &str) -> bool {
    let (a, b) = (text.as_bytes(), name.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let differ: Vec<usize> = (0..a.len()).filter(|&i| a[i] != b[i]).collect();
    match differ[..] {
        [_] => true,
        [i, j] => j == i + 1 && a[i] == b[j] && a[j] == b[i],
        _ => false,
    }
}
