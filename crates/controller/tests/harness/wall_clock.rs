//! The wall clock of one controller, moved by a shim: neither the machine nor any other process notices.

use fivespot_testenv::ControlPlane;
use jiff::{SignedDuration, Timestamp};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The clock of one process.
pub(crate) struct Clock {
    shim: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Compiles the shim, for a clock of this name.
    pub(crate) fn new(plane: &ControlPlane, name: &str) -> Self {
        let beside =
            |end: &str| plane.management().kubeconfig_path().with_file_name(format!("clock-{name}.{end}"));
        let (shim, file) = (beside("so"), beside("offset"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness/shim.c");
        let mut compiler = Command::new("cc");
        let compiler = compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
        assert!(compiler.arg(&shim).arg(source).status().unwrap().success());
        Self { shim, file }
    }

    /// Sets it to a time, and returns by how much it differs from ours. The file is replaced whole, so that nobody reads
    /// half of it.
    pub(crate) fn set(&self, to: Timestamp) -> SignedDuration {
        let offset = to.duration_since(Timestamp::now()).as_secs();
        let new = self.file.with_extension("new");
        fs::write(&new, offset.to_string()).unwrap();
        fs::rename(new, &self.file).unwrap();
        SignedDuration::from_secs(offset)
    }

    /// What the process needs to be started with.
    pub(crate) fn env(&self) -> [(&str, &str); 2] {
        [("LD_PRELOAD", self.shim.to_str().unwrap()), ("CLOCK_OFFSET_FILE", self.file.to_str().unwrap())]
    }
}
