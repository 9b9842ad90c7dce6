//! The code of the fleet's protocol, from our own description of it.

use crate::root;
use anyhow::{Context, Result};
use std::fs;

/// What the protocol is described in.
const SOURCE: &str = "crates/fleet/proto/bigfleet.proto";

/// The module that is made of it; its name is the protocol's package.
pub(crate) const TARGET: &str = "crates/fleet/src/wire/bigfleet.v1alpha1.rs";

/// The text of [`TARGET`]. Both compilers are libraries: nobody needs protoc.
pub(crate) fn code() -> Result<String> {
    let source = root().join(SOURCE);
    let folder = source.parent().context("the description is in a folder")?;
    let described = protox::compile([&source], [folder]).with_context(|| format!("read {SOURCE}"))?;
    let made = tempfile::tempdir().context("make a folder")?;
    tonic_prost_build::configure()
        .out_dir(made.path())
        .build_transport(false)
        // The same order each time: the text is compared.
        .btree_map(".")
        .compile_fds(described)
        .context("write code")?;
    let file = made.path().join("bigfleet.v1alpha1.rs");
    fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
}
