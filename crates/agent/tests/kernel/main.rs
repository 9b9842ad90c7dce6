//! The agent on the real kernel, as root. What a kernel does not have is said to be skipped.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

#[path = "../harness/mod.rs"]
mod harness;

mod connector;
mod found;
mod namespaces;
mod pods;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The count of listeners is one for the whole kernel: who takes it down must be alone.
static LISTENERS: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    LISTENERS.read().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    LISTENERS.write().unwrap_or_else(PoisonError::into_inner)
}
