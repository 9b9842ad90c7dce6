//! A small deterministic world around one ScheduledMachine. Development only.
//!
//! - [`world`] holds what the API servers would hold, and answers and obeys as they do,
//! - [`actors`] are the others: users, Cluster API, its providers, kubelets, the garbage collector, the clock,
//! - [`controller`] makes passes as the real one does, may die before any write, and notes every write that breaks a
//!   rule of [`rules`],
//! - [`cells`] names goals, worlds and memories, for the table of all decisions,
//! - [`diagram`] walks through what can happen and draws the phases,
//! - [`fleet`] is another world: the fleet operator between a shard and a cluster.
//!
//! There is no randomness here: what happens is a list of [`actors::Event`], so a failing list is replayed as it is
//! printed.

pub mod actors;
pub mod cells;
pub mod controller;
pub mod diagram;
pub mod fleet;
pub mod rules;
pub mod world;
