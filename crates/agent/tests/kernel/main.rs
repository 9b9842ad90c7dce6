//! The agent on the real kernel, as root. What a kernel does not have is said to be skipped.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

#[path = "../harness/mod.rs"]
mod harness;

mod connector;
mod found;
mod helpers;
mod namespaces;
mod pods;

use std::fs::File;

/// The count of listeners is one for the whole kernel: who takes it down must be alone, also among the tests of other
/// checkouts. The lock goes with the file.
fn beside_others() -> File {
    let file = lock_file();
    file.lock_shared().unwrap();
    file
}

fn alone() -> File {
    let file = lock_file();
    file.lock().unwrap();
    file
}

fn lock_file() -> File {
    let path = std::env::temp_dir().join("fivespot-listeners.lock");
    File::open(&path).or_else(|_| File::create(&path)).unwrap()
}
