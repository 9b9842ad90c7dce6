//! Everything 5-Spot decides, and nothing it does.
//!
//! Functions here take the time, the wish and the observed world as arguments and return data. There is no
//! clock, no environment, no I/O and no Kubernetes type in this crate; `clippy.toml` beside it enforces the
//! first three and `Cargo.toml` the last. See `docs/adr/0001-pure-core.md` for the reason.
//!
//! From text a user wrote to types that can be trusted:
//!
//! - [`schedule`] reads days, hours and cron expressions into sets,
//! - [`duration`], [`name`] and [`zone`] read the other notations of the API,
//! - [`intent`] puts them together: a whole wish is valid, or *all* its errors come back, each with the path
//!   of its field.
//!
//! From there to what is done:
//!
//! - [`observed`] is the world as far as a decision looks at it,
//! - [`lifecycle`] decides what to do now, with [`drain`] for pods, [`taint`] for taints, [`host`] for hosts that come
//!   back uncalled, [`claim`] for hosts that several machines name and [`reclaim`] for owners in a hurry,
//! - [`status`] is what people are shown of it.
//!
//! When several instances of the controller share the work, [`slots`] says which of them has which machine.
//!
//! What a BigFleet shard gives to a cluster and takes back is decided in [`fleet`].
//!
//! On a machine that is lent, [`process`] says whether a process is one that its owner wants it back for.
//!
//! Whatever others wrote and people are shown goes through [`text`].

pub mod claim;
pub mod drain;
pub mod duration;
pub mod field;
pub mod fleet;
pub mod host;
pub mod intent;
pub mod lifecycle;
pub mod limits;
pub mod name;
pub mod observed;
pub mod process;
pub mod reclaim;
pub mod schedule;
pub mod servers;
pub mod slots;
pub mod status;
pub mod taint;
pub mod text;
pub mod zone;
