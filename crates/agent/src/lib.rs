//! `5spot-reclaim-agent`: the owner of a lent machine starts a program, and the machine is his again.
//!
//! - [`detector`] is one thread that notices processes, by way of a [`source`]: the kernel's events
//!   ([`connector`], [`wire`]) or a poll ([`range_poll`]), and judges them by what [`proc_fs`] shows of them;
//!   the judgement itself is `fivespot_core::process`;
//! - [`config`] is what to look for, by the ConfigMap of this Node;
//! - [`node`] and [`identity`] say whether that Node is this machine;
//! - `signal` carries a sighting to the Node;
//! - [`options`], [`metrics`] and [`run`] make a process of it.
//!
//! It never kills, never starts a process, and of what it sees it tells the pattern that matched and nothing else.

pub mod config;
pub mod connector;
pub mod detector;
pub mod identity;
pub mod metrics;
pub mod node;
pub mod options;
pub mod proc_fs;
pub mod range_poll;
pub mod run;
mod signal;
pub mod source;
pub mod wire;
