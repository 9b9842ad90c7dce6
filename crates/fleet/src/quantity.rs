//! Amounts as Kubernetes writes them: `1`, `500m`, `8Gi`, `1e3`.
//!
//! They are summed exactly, in billionths, which is the finest that Kubernetes knows.

use crate::wire::Resources;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::ops::Add;

/// Billionths in one.
const ONE: i128 = 1_000_000_000;

/// An amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Amount(i128);

/// A text that is no amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity: write a number such as 2, 0.5, 500m or 8Gi")]
pub struct NotAnAmount(String);

impl Amount {
    /// Reads a text.
    pub fn read(text: &str) -> Result<Self, NotAnAmount> {
        parse(text.trim()).map(Self).ok_or_else(|| NotAnAmount(text.chars().take(40).collect()))
    }

    /// In whole ones, rounded up.
    pub fn ceil(self) -> i128 {
        self.0.div_euclid(ONE) + i128::from(self.0.rem_euclid(ONE) != 0)
    }

    /// Whether it is less than nothing.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether it is at most half of one.
    pub fn is_at_most_half(self) -> bool {
        self.0 <= ONE / 2
    }
}

impl Add for Amount {
    type Output = Self;

    /// What is too much to be counted is as much as can be.
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Amount {
    /// In the greatest unit that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, suffix) in [(ONE, ""), (1_000_000, "m"), (1000, "u")] {
            if self.0 % unit == 0 {
                return write!(f, "{}{suffix}", self.0 / unit);
            }
        }
        write!(f, "{}n", self.0)
    }
}

/// What the shard says of a machine, without what is no amount: who reads an object with one of those in it cannot read the
/// others either.
pub fn readable(resources: Option<&Resources>) -> BTreeMap<String, Quantity> {
    let all = resources.into_iter().flat_map(|it| &it.resources);
    let readable = all.filter(|(_, amount)| Amount::read(amount).is_ok());
    readable.map(|(name, amount)| (name.clone(), Quantity(amount.trim().to_owned()))).collect()
}

fn parse(text: &str) -> Option<i128> {
    let end = text.find(|letter: char| !matches!(letter, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (negative, number) = match number.strip_prefix('-') {
        Some(number) => (true, number),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) {
        return None;
    }
    // As Kubernetes does, what is finer than a billionth is rounded up.
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let places = u32::try_from(fraction.len()).ok()?;
    let (up, down) = scale(suffix)?;
    let up = mantissa.checked_mul(ONE)?.checked_mul(up)?;
    let down = 10_i128.checked_pow(places)?.checked_mul(down)?;
    let value = up.div_euclid(down) + i128::from(up.rem_euclid(down) != 0);
    Some(if negative { -value } else { value })
}

/// What a suffix multiplies by, and divides by.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let decimal = |power: u32| 10_i128.checked_pow(power);
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, decimal(9)?),
        "u" => (1, decimal(6)?),
        "m" => (1, decimal(3)?),
        "k" => (decimal(3)?, 1),
        "M" => (decimal(6)?, 1),
        "G" => (decimal(9)?, 1),
        "T" => (decimal(12)?, 1),
        "P" => (decimal(15)?, 1),
        "E" => (decimal(18)?, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        other => {
            let power: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            match u32::try_from(power) {
                Ok(power) => (decimal(power)?, 1),
                Err(_) => (1, decimal(power.unsigned_abs())?),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_and_print() {
        for (text, printed) in [
            ("0", "0"),
            ("2", "2"),
            ("+2", "2"),
            ("-2", "-2"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1.", "1"),
            ("500m", "500m"),
            ("1500m", "1500m"),
            ("2000m", "2"),
            ("8Gi", "8589934592"),
            ("1.5Ki", "1536"),
            ("1k", "1000"),
            ("1e3", "1000"),
            ("1E3", "1000"),
            ("1E", "1000000000000000000"),
            ("25e-1", "2500m"),
            ("100u", "100u"),
            ("7n", "7n"),
            ("0.1n", "1n"),
        ] {
            assert_eq!(Amount::read(text).unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_says_so() {
        for text in ["", "m", "1x", "1 Gi", "--1", "1.2.3", "e3", "1e", "1e99", "ten", "+-1"] {
            assert!(Amount::read(text).is_err(), "{text}");
        }
        assert_eq!(
            Amount::read("ten").unwrap_err().to_string(),
            "\"ten\" is not a quantity: write a number such as 2, 0.5, 500m or 8Gi"
        );
    }

    #[test]
    fn sums_are_exact_and_rounding_goes_up() {
        let all = ["100m", "1Gi", "900m"].map(|text| Amount::read(text).unwrap());
        assert_eq!(all.into_iter().sum::<Amount>().to_string(), "1073741825");
        assert_eq!(Amount::read("2.1").unwrap().ceil(), 3);
        assert_eq!(Amount::read("2").unwrap().ceil(), 2);
    }

    #[test]
    fn what_is_no_amount_does_not_spoil_the_others() {
        let said = [("cpu", "8"), ("memory", " 32Gi"), ("nvidia.com/gpu", "eight")];
        let said = said.map(|(name, amount)| (name.to_owned(), amount.to_owned()));
        let read = readable(Some(&Resources { resources: said.into() }));
        let read: Vec<(&str, &str)> =
            read.iter().map(|(name, amount)| (name.as_str(), amount.0.as_str())).collect();
        assert_eq!(read, [("cpu", "8"), ("memory", "32Gi")]);
        assert!(readable(None).is_empty());
    }
}
