//! Every bound of the `ScheduledMachine` API, once. The CRD schema is generated from these constants and
//! [`crate::intent`] checks the same ones, so the two cannot drift apart.
//!
//! The bounds are also what keeps the CRD's CEL rules within the API server's cost budget: an unbounded
//! list or string makes the server refuse the whole CRD.

use std::ops::RangeInclusive;

/// Items of `schedule.daysOfWeek`: each day once, twice over.
pub const DAYS_ITEMS: usize = 14;
/// Characters of one `daysOfWeek` item.
pub const DAYS_CHARS: usize = 64;
/// Items of `schedule.hoursOfDay`: each hour once.
pub const HOURS_ITEMS: usize = 24;
/// Characters of one `hoursOfDay` item.
pub const HOURS_CHARS: usize = 128;
/// Characters of `schedule.cron`.
pub const CRON_CHARS: usize = 128;
/// Characters of `schedule.timezone`; the longest IANA name has 32.
pub const TIMEZONE_CHARS: usize = 64;

/// Characters of the object's own name, of `clusterName` and of an embedded `kind`: all three become label
/// values or are joined into one, and Kubernetes ends a label value there.
pub const LABEL_VALUE_CHARS: usize = 63;
/// Characters of an embedded `apiVersion`: a group of up to 63 characters, a slash, a version.
pub const API_VERSION_CHARS: usize = 128;

/// Entries of `machineTemplate.labels` and of `machineTemplate.annotations`.
pub const TEMPLATE_ENTRIES: usize = 64;

/// `priority`.
pub const PRIORITY: RangeInclusive<i64> = 0..=255;

/// Characters of a duration such as `1h30m`.
pub const DURATION_CHARS: usize = 32;
/// The longest graceful shutdown and drain.
pub const DURATION_MAX_HOURS: u64 = 24;

/// Entries of `killIfCommands`.
pub const COMMANDS: usize = 100;
/// Characters of one `killIfCommands` entry.
pub const COMMAND_CHARS: usize = 256;

/// Entries of `nodeTaints`.
pub const TAINTS: usize = 64;
/// Characters of a whole taint key.
pub const TAINT_KEY_CHARS: usize = 253;

/// Characters of an object name (RFC 1123 subdomain), of the prefix of a key and of a key inside a Secret.
pub const OBJECT_NAME_CHARS: usize = 253;

/// API groups an embedded bootstrap object may have, compared whole.
pub const BOOTSTRAP_GROUPS: [&str; 2] = ["bootstrap.cluster.x-k8s.io", "k0smotron.io"];
/// API groups an embedded infrastructure object may have, compared whole.
pub const INFRASTRUCTURE_GROUPS: [&str; 2] = ["infrastructure.cluster.x-k8s.io", "k0smotron.io"];

/// Domains whose keys belong to Kubernetes, Cluster API or 5-Spot itself. A key is reserved if its prefix
/// is one of these or a subdomain of one.
pub const RESERVED_DOMAINS: [&str; 4] = ["kubernetes.io", "k8s.io", "cluster.x-k8s.io", "5spot.finos.org"];

/// What a taint may do to pods that do not tolerate it.
pub const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
