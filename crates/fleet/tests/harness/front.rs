//! grpc-go before the shard of a test.
//!
//! BigFleet's shard is a Go program, and its module cannot be fetched where these tests run; what carries its words can. So
//! the operator speaks with the gRPC, protobuf and TLS that the real one has, whatever stands behind them.

use super::from_root;
use fivespot_testenv::{ControlPlane, Daemon};
use prost::Message as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Listens on loopback until it is dropped.
pub(crate) struct Front {
    pub(crate) address: String,
    pub(crate) process: Daemon,
}

impl Front {
    /// Takes whoever comes.
    pub(crate) fn before(plane: &ControlPlane, name: &str, shard: &str) -> Self {
        Self::start(plane, name, shard, "127.0.0.1:0", &[])
    }

    /// The same at an address of old, or with flags such as those of TLS.
    pub(crate) fn start(
        plane: &ControlPlane,
        name: &str,
        shard: &str,
        address: &str,
        flags: &[&str],
    ) -> Self {
        let folder = plane.management().kubeconfig_path().with_file_name(format!("front-{name}"));
        fs::create_dir_all(&folder).unwrap();
        let described = folder.join("described");
        let protocol =
            protox::compile(["bigfleet.proto"], [from_root("crates/fleet/proto")]).unwrap().encode_to_vec();
        fs::write(&described, protocol).unwrap();
        let process = Daemon::start(&folder, |command| {
            command.arg(program()).args(["-to", shard, "-listen", address, "-described"]).arg(&described);
            command.args(flags);
        });
        let log = process.log();
        let address = log.split("listening address=").nth(1).unwrap().split_whitespace().next().unwrap();
        Self { address: address.to_owned(), process }
    }
}

/// The program, which Go builds from its pins.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("grpc-go");
        let mut go = Command::new("go");
        go.args(["build", "-mod=readonly", "-trimpath", "-o"]).arg(&program).arg(".");
        go.current_dir(from_root("crates/fleet/tests/grpc-go")).env("CGO_ENABLED", "0");
        let output = go.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
}
