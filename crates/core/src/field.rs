//! Errors that name their field, spelled the way the API server spells paths: `spec.nodeTaints[2].key`.

use std::fmt;

/// One field and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Path from the root of the object.
    pub path: String,
    /// What is wrong and how to mend it.
    pub problem: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)
    }
}

/// All errors of one object, in the order of its fields. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    errors: Vec<FieldError>,
}

impl Invalid {
    /// The errors, in the order of the object's fields.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

/// Collects errors while a whole object is read, so that a user mends them all at once.
#[derive(Debug, Default)]
pub struct Problems {
    errors: Vec<FieldError>,
}

impl Problems {
    /// Notes a problem with the field at `path`.
    pub fn note(&mut self, path: impl Into<String>, problem: impl fmt::Display) {
        self.errors.push(FieldError { path: path.into(), problem: problem.to_string() });
    }

    /// The value of `result`, or `None` with its error noted.
    pub fn keep<T, E: fmt::Display>(&mut self, path: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.note(path, error)).ok()
    }

    /// Whether nothing was noted yet.
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Ends the collection: the value, if nothing was noted. A value that is missing has left its error behind.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Invalid> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(Invalid { errors: self.errors }),
        }
    }
}
