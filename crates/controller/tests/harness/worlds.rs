//! Worlds in which Cluster API is played by the simulated hosts.

use crate::harness::{CLUSTER, World, from_root, install};
use fivespot_testenv::{
    Behaviour, Cluster, ControlPlane, Core, Hosts, create_cluster_without_secret, create_kubeconfig_secret,
    create_ssh_key,
};

/// A namespace with a Cluster whose Nodes are in `workload`. Nothing leads there, and no Secret of the namespace may
/// be read.
pub(crate) async fn bare(plane: &'static ControlPlane, workload: &Cluster, stem: &str) -> World {
    install(plane);
    let management = plane.management().client().await.unwrap();
    let namespace = plane.management().fresh_namespace(&management, stem).await.unwrap();
    create_cluster_without_secret(plane, &namespace, CLUSTER).await.unwrap();
    create_ssh_key(plane, &namespace).await.unwrap();
    let hosts = Hosts::start_in(plane, workload, &namespace, Core::Played, Behaviour::default());
    let hosts = hosts.await.unwrap();
    World { plane, management, workload: workload.client().await.unwrap(), namespace, hosts }
}

/// Lets the controller read the Secrets of a namespace.
pub(crate) fn admit(world: &World) {
    let tenant = from_root("deploy/tenant");
    let kubectl = ["apply", "-n", &world.namespace, "-k", tenant.to_str().unwrap()];
    world.plane.kubectl(world.plane.management(), &kubectl, "").unwrap();
}

/// A namespace whose Cluster is the management cluster itself: there is no Secret, and the controller may know that.
pub(crate) async fn own(plane: &'static ControlPlane, stem: &str) -> World {
    let world = bare(plane, plane.management(), stem).await;
    admit(&world);
    world
}

/// A namespace whose Cluster is reached through its Secret.
pub(crate) async fn linked(plane: &'static ControlPlane, stem: &str) -> World {
    let world = bare(plane, plane.workload(), stem).await;
    admit(&world);
    create_kubeconfig_secret(plane, &world.namespace, CLUSTER).await.unwrap();
    world
}
