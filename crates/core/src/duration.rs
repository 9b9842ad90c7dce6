//! Durations as users write them: `90s`, `5m`, `1h30m`.

use crate::limits::{DURATION_CHARS, DURATION_MAX_HOURS};
use std::time::Duration;

/// Why a duration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not the notation.
    #[error(
        "\"{0}\" is not a duration: write hours, minutes and seconds in this order, each at most once, such as \
         90s, 5m or 1h30m"
    )]
    Notation(String),
    /// Longer than a day.
    #[error("\"{0}\" is too long: at most {DURATION_MAX_HOURS}h are allowed")]
    TooLong(String),
}

/// Reads `([0-9]+h)?([0-9]+m)?([0-9]+s)?`, not empty, from 0s to 24h.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let notation = || DurationError::Notation(text.to_owned());
    if text.is_empty() || text.len() > DURATION_CHARS {
        return Err(notation());
    }
    let mut rest = text;
    let mut seconds: u64 = 0;
    for (unit, in_seconds) in [('h', 3600), ('m', 60), ('s', 1)] {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let Some(after) = rest[digits..].strip_prefix(unit) else { continue };
        // A number too large for u64 is far beyond a day, not another notation.
        let count = rest[..digits]
            .bytes()
            .fold(0_u64, |n, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
        if digits == 0 {
            return Err(notation());
        }
        seconds = seconds.saturating_add(count.saturating_mul(in_seconds));
        rest = after;
    }
    if !rest.is_empty() {
        return Err(notation());
    }
    if seconds > DURATION_MAX_HOURS * 3600 {
        return Err(DurationError::TooLong(text.to_owned()));
    }
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_notation_and_nothing_else() {
        for (text, seconds) in [
            ("0s", 0),
            ("5m", 300),
            ("1h30m", 5400),
            ("1h5s", 3605),
            ("24h", 86400),
            ("86400s", 86400),
            ("007m", 420),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "5", "-5m", "5m1h", "m", "5m5m", "1.5h", "5 m", "5M", "+5m", "1d", "٣m"] {
            assert!(matches!(parse(text), Err(DurationError::Notation(_))), "{text}");
        }
        for text in ["25h", "24h1s", "1441m", "99999999999999999999s"] {
            assert!(matches!(parse(text), Err(DurationError::TooLong(_))), "{text}");
        }
    }
}
