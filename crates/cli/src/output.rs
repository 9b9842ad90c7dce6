//! Standard output, and the codes a script can ask for.

use anyhow::Result;
use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

/// Nothing can be said: the code clap uses for arguments it does not understand.
pub(crate) const ERROR: u8 = 2;
/// Something a reader should look at was found.
pub(crate) const WARNED: u8 = 1;

/// Prints everything at once. A reader that has seen enough, such as `head`, is no error.
pub(crate) fn print(text: &str) -> Result<ExitCode> {
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        outcome => Ok(outcome.map(|()| ExitCode::SUCCESS)?),
    }
}
