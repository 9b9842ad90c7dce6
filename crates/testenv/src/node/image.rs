//! The one image of a node's pods and their sandboxes: a static shell with a few names.

use crate::error::{Context, Error};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// The image of [`RealNode`](super::RealNode)'s pods. It holds busybox.
pub const GUEST_IMAGE: &str = "5spot.local/guest:1";

/// Raise this when the content changes.
pub(super) const RECIPE: &str = "1";

/// Programs of busybox that pods find under their own names.
const PROGRAMS: [&str; 14] = [
    "cat", "cp", "chmod", "echo", "env", "false", "ls", "mkdir", "mount", "sh", "sleep", "tail", "touch",
    "true",
];

/// Writes the image as an OCI archive.
pub(super) fn write(busybox: &Path, target: &Path) -> Result<(), Error> {
    let work = target.with_extension("work");
    // What an interrupted build has left may be incomplete.
    let _ = fs::remove_dir_all(&work);
    let (root, blobs) = (work.join("root"), work.join("oci/blobs/sha256"));
    for folder in [root.join("bin"), root.join("tmp"), root.join("etc"), blobs.clone()] {
        fs::create_dir_all(&folder).context(|| format!("create {}", folder.display()))?;
    }
    let shell = root.join("bin/busybox");
    fs::copy(busybox, &shell).context(|| format!("copy {}", busybox.display()))?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&shell, executable).context(|| format!("make {} executable", shell.display()))?;
    for name in PROGRAMS {
        symlink("busybox", root.join("bin").join(name)).context(|| format!("link {name}"))?;
    }
    let layer = work.join("layer.tar");
    tar(&root, &layer)?;
    let bytes = fs::read(&layer).context(|| format!("read {}", layer.display()))?;

    let blob = |media_type: &str, bytes: &[u8]| -> Result<Value, Error> {
        let digest = hex(bytes);
        let file = blobs.join(&digest);
        fs::write(&file, bytes).context(|| format!("write {}", file.display()))?;
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
    };
    let layer = blob("application/vnd.oci.image.layer.v1.tar", &bytes)?;
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        // A sandbox runs this: it only has to be there.
        "config": {"Entrypoint": ["/bin/sleep"], "Cmd": ["2147483647"], "Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer],
    });
    let mut manifest = blob("application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes())?;
    manifest["annotations"] = json!({"io.containerd.image.name": GUEST_IMAGE});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    for (name, text) in [("index.json", index), ("oci-layout", json!({"imageLayoutVersion": "1.0.0"}))] {
        let file = work.join("oci").join(name);
        fs::write(&file, text.to_string()).context(|| format!("write {}", file.display()))?;
    }
    let partial = target.with_extension("partial");
    tar(&work.join("oci"), &partial)?;
    fs::rename(&partial, target).context(|| format!("put {} in its place", target.display()))?;
    fs::remove_dir_all(&work).context(|| format!("remove {}", work.display()))
}

fn tar(folder: &Path, target: &Path) -> Result<(), Error> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--owner=0", "--group=0", "--file"])
        .arg(target)
        .arg("--directory")
        .arg(folder)
        .arg(".");
    crate::build::run(tar.stdin(Stdio::null()), |_| {}).map(drop)
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
