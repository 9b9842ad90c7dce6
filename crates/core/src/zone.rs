//! Time zones by IANA name, from the database that is compiled in.
//!
//! The system's tzdata is never read: an update of it under a running controller, or a node without the
//! package, must not change what a schedule means.

use jiff::tz::{TimeZone, TimeZoneDatabase};

/// Why a zone is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// Not in the database.
    #[error("\"{0}\" is not a time zone of the IANA database: write a name such as Europe/Zurich or UTC")]
    Unknown(String),
    /// Right but for upper and lower case.
    #[error("\"{written}\" is not a time zone of the IANA database: did you mean {meant}?")]
    Case {
        /// What stands in the spec.
        written: String,
        /// How the database spells it.
        meant: String,
    },
}

/// The zone called `name`, letter for letter.
pub fn lookup(name: &str) -> Result<TimeZone, ZoneError> {
    let unknown = || ZoneError::Unknown(name.to_owned());
    let zone = TimeZoneDatabase::bundled().get(name).map_err(|_| unknown())?;
    match zone.iana_name() {
        Some(known) if known == name => Ok(zone),
        Some(known) => Err(ZoneError::Case { written: name.to_owned(), meant: known.to_owned() }),
        None => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_letter_for_letter() {
        for name in
            ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Etc/GMT+5", "US/Eastern"]
        {
            assert_eq!(lookup(name).unwrap().iana_name(), Some(name));
        }
        assert_eq!(lookup("Mars/Olympus"), Err(ZoneError::Unknown("Mars/Olympus".into())));
        let near = lookup("europe/zurich").unwrap_err();
        assert_eq!(
            near.to_string(),
            "\"europe/zurich\" is not a time zone of the IANA database: did you mean Europe/Zurich?"
        );
    }
}
