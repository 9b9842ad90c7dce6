//! One operator speaks for a cluster, though several may run.
//!
//! A shard listens to whoever dialled last and tells the other nothing: two operators that both dial take the session from
//! each other for ever. So the work is one slot, which each of them prefers and none hands over.

use crate::options::Options;
use fivespot_api::names::FLEET;
use fivespot_core::slots::{Instance, Timing};
use fivespot_ops::slots::{Keeper, Loss, Settings, Tenant, fresh_uid};
use kube::Client;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;
use tokio::sync::watch;

/// How long a Lease is respected that its holder does not renew. Twice what the controller takes: when a whole rack is
/// given back the API server is busy with us, and whoever ends then leaves all drains to the next. One who ends by himself
/// frees it, and one who is started again in his pod has it at once.
const DURATION: Duration = Duration::from_secs(30);

/// How long its holder goes on without having renewed it.
const DEADLINE: Duration = Duration::from_secs(20);

/// How often it is renewed, or tried.
const RETRY: Duration = Duration::from_secs(2);

/// The right to speak for the cluster.
pub(crate) struct Right(watch::Sender<Standing>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Waiting,
    Held,
    Lost,
}

/// Who keeps the right, and the right itself.
pub(crate) fn keeper(client: Client, options: &Options) -> (Keeper, Right) {
    let timing = Timing { duration: DURATION, renew_deadline: DEADLINE, retry: RETRY };
    let instance = Instance {
        name: options.pod_name.clone(),
        uid: options.pod_uid.clone().unwrap_or_else(fresh_uid),
        own: Some(0),
        count: NonZeroU32::MIN,
        timing,
    };
    let settings = Settings { namespace: options.lease_namespace.clone(), program: FLEET, instance };
    (Keeper::new(client, settings), Right(watch::Sender::new(Standing::Waiting)))
}

impl Right {
    /// Returns when it is ours.
    pub(crate) async fn gained(&self) {
        // The sender is in `self`, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|standing| *standing == Standing::Held).await;
    }

    /// Returns when it was ours.
    pub(crate) async fn lost(&self) {
        let _ = self.0.subscribe().wait_for(|standing| *standing == Standing::Lost).await;
    }
}

impl Tenant for Right {
    fn gained(&self, _: u32) {
        self.0.send_replace(Standing::Held);
    }

    fn lost(&self, _: u32, _: Loss) {
        self.0.send_replace(Standing::Lost);
    }

    async fn leave(&self, _: &BTreeSet<u32>) {}
}
