//! Files that a person names, read with a bound: a file may be a device that never ends.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// How much is read of a kind of files, and what to do about one that is larger.
#[derive(Debug, Clone, Copy)]
pub struct FileBound {
    /// Bytes, in whole MiB.
    pub bytes: u64,
    /// What to do, as the end of a sentence.
    pub advice: &'static str,
}

/// A kubeconfig: the Secret that holds one has at most 1 MiB.
pub(crate) const KUBECONFIG: FileBound =
    FileBound { bytes: 1 << 20, advice: "the file meant is probably another one" };

#[derive(Debug, thiserror::Error)]
#[error("it is larger than {} MiB, the most that is read of such a file: {}", .0.bytes >> 20, .0.advice)]
struct TooLarge(FileBound);

impl From<TooLarge> for io::Error {
    fn from(error: TooLarge) -> Self {
        Self::new(ErrorKind::FileTooLarge, error)
    }
}

/// Reads a file, a pipe or a device, up to a bound. Of a file that is too large nothing is read.
pub fn read_file(path: &Path, bound: FileBound) -> io::Result<String> {
    check_size(path, bound)?;
    read_stream(File::open(path)?, bound)
}

/// Refuses a file that is larger than a bound. How much comes through a pipe is not known before it is read.
pub(crate) fn check_size(path: &Path, bound: FileBound) -> io::Result<()> {
    let metadata = path.metadata()?;
    if metadata.is_file() && metadata.len() > bound.bytes { Err(TooLarge(bound).into()) } else { Ok(()) }
}

/// Reads a stream to its end, and not further than a bound.
pub fn read_stream(stream: impl Read, bound: FileBound) -> io::Result<String> {
    let mut bytes = Vec::new();
    stream.take(bound.bytes + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > bound.bytes) {
        return Err(TooLarge(bound).into());
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: FileBound = FileBound { bytes: 1 << 20, advice: "split it" };

    #[test]
    fn a_stream_is_read_up_to_its_bound_and_no_byte_further() {
        let text = "x".repeat(1 << 20);
        assert_eq!(read_stream(text.as_bytes(), SMALL).unwrap(), text);
        let mut endless = io::repeat(b'x').take(1 << 30);
        let error = read_stream(&mut endless, SMALL).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(
            error.to_string(),
            "it is larger than 1 MiB, the most that is read of such a file: split it"
        );
        assert_eq!(endless.limit(), (1 << 30) - (1 << 20) - 1, "bytes that were not read");
        assert_eq!(read_stream(&b"\xff"[..], SMALL).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
