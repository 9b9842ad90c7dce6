//! Files with keys and tokens in them.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file that only its owner may read, from its first moment on: one that is made private afterwards can be
/// opened by others before. Whatever stands at the path is replaced, and no link is followed.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_private_file_is_new_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.symlink_metadata().unwrap().permissions().mode() & 0o7777;
        let [plain, shared, link, target] =
            ["plain", "shared", "link", "target"].map(|name| folder.path().join(name));
        fs::write(&shared, "old").unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o666)).unwrap();
        fs::write(&target, "not ours").unwrap();
        symlink(&target, &link).unwrap();
        for path in [&plain, &shared, &link] {
            write_private(path, "token").unwrap();
            assert_eq!((mode(path), fs::read_to_string(path).unwrap().as_str()), (0o600, "token"));
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "not ours", "the link was not followed");
    }
}
