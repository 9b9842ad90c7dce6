//! One operator speaks for a cluster, though several may run.
//!
//! A shard listens to whoever dialled last and tells the other nothing: two operators that both dial take the session from
//! each other for ever.

use fivespot_api::names::FLEET;
use fivespot_ops::lease::{Lease, Settings};
use kube::Client;
use std::time::Duration;

/// How long a Lease is respected that its holder does not renew: what Kubernetes' own programs take.
const DURATION: Duration = Duration::from_secs(15);

/// How long its holder goes on without having renewed it.
const DEADLINE: Duration = Duration::from_secs(10);

/// How often it is renewed, or tried.
const RETRY: Duration = Duration::from_secs(2);

/// The Lease of the cluster. It is ours when it is acquired, and until it is lost.
pub(crate) fn lease(client: Client, namespace: &str, holder: &str) -> Lease {
    let settings = Settings {
        namespace: namespace.to_owned(),
        name: FLEET.to_owned(),
        holder: holder.to_owned(),
        duration: DURATION,
        renew_deadline: DEADLINE,
        retry: RETRY,
    };
    Lease::new(client, settings)
}
