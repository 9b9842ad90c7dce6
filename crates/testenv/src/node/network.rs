//! How a node and its API server reach each other.
//!
//! The node has a network namespace of its own, so that its bridge, its addresses and its kubelet's port are nobody else's.
//! Two ways lead across:
//!
//! - **To the API server**, which listens on the host's loopback alone: the same port of the node's own loopback is
//!   listened on by this process, which passes every connection on. A socket stays in the namespace it was made in, so one
//!   process can hold both ends, and nothing has to listen on an address that others could reach.
//! - **To the kubelet**, for `kubectl exec` and `kubectl logs`: a pair of virtual Ethernet devices. The kubelet takes only
//!   clients whose certificate the cluster's authority has signed. The pair goes with the namespace.

use crate::error::{Context, Error};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// The block for tests of network devices (RFC 2544): nobody routes it. Its first half is for the pairs, its second for pods.
const PAIRS: u32 = u32::from_be_bytes([198, 18, 0, 0]);
pub(super) const PODS: &str = "198.19.0.0/16";

/// Pairs that fit, with four addresses each.
const PAIR_COUNT: u32 = 1 << 14;

/// How often another pair of addresses is tried when one is in use.
const TRIES: u32 = 20;

/// The device of the node.
const UPLINK: &str = "uplink";

/// The pair of devices between the host and a node.
#[derive(Debug)]
pub(super) struct Link {
    /// The host's device.
    pub(super) device: String,
    /// The node's address.
    pub(super) address: Ipv4Addr,
}

impl Link {
    /// Connects the network namespace of a process with the host's. `seed` says where the search for free addresses
    /// begins, so that nodes that start at the same moment do not get in each other's way.
    pub(super) fn connect(pid: u32, seed: u32) -> Result<Self, Error> {
        let mut outcome = Err(failed("find an address for a node", "none is free"));
        for number in (0..TRIES).map(|attempt| (seed.wrapping_mul(7919).wrapping_add(attempt)) % PAIR_COUNT) {
            outcome = Self::try_connect(pid, number);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn try_connect(pid: u32, number: u32) -> Result<Self, Error> {
        let host = Ipv4Addr::from(PAIRS + number * 4 + 1);
        let address = Ipv4Addr::from(PAIRS + number * 4 + 2);
        // A device of this name belongs to another node, and adding it again fails.
        let device = format!("5spot{number}");
        let (namespace, net) = (pid.to_string(), ["-n", "-t"]);
        ip(&[], &format!("link add name {device} type veth peer name {UPLINK} netns {namespace}"))?;
        let inside = [net[0], net[1], &namespace];
        ip(&[], &format!("address add {host}/30 dev {device}"))?;
        ip(&[], &format!("link set {device} up"))?;
        ip(&inside, &format!("address add {address}/30 dev {UPLINK}"))?;
        ip(&inside, &format!("link set {UPLINK} up"))?;
        ip(&inside, "link set lo up")?;
        Ok(Self { device, address })
    }

    /// Whether the host still has its device.
    pub(super) fn exists(&self) -> bool {
        std::path::Path::new("/sys/class/net").join(&self.device).exists()
    }
}

/// Runs `ip`, inside the namespace that the arguments of `nsenter` name.
fn ip(inside: &[&str], words: &str) -> Result<(), Error> {
    let mut command = Command::new(if inside.is_empty() { "ip" } else { "nsenter" });
    if !inside.is_empty() {
        command.args(inside).arg("ip");
    }
    command.args(words.split(' ')).stdin(Stdio::null());
    let output = command.output().context(|| format!("run ip {words}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(&format!("run ip {words}"), String::from_utf8_lossy(&output.stderr).trim()))
}

fn failed(what: &str, why: &str) -> Error {
    Error::Io { what: what.to_owned(), source: std::io::Error::other(why.to_owned()) }
}

/// Passes what arrives at a port of a node's loopback on to the same port of the host's, until it is dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    pub(super) fn start(pid: u32, port: u16) -> Result<Self, Error> {
        let what = || format!("listen on port {port} of the node's loopback");
        let namespace = File::open(format!("/proc/{pid}/ns/net")).context(what)?;
        // A thread of its own enters the namespace, and ends there.
        let listen = move || -> std::io::Result<TcpListener> {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener =
            thread::spawn(listen).join().unwrap_or_else(|_| Err(std::io::Error::other("it panicked")));
        let listener = listener.context(what)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context(what)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = forward(listener, port) => {}
                }
            });
        };
        let thread = thread::Builder::new().name("node-forwarder".to_owned()).spawn(serve).context(what)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked forwards nothing any more.
            let _ = thread.join();
        }
    }
}

async fn forward(listener: TcpListener, port: u16) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    loop {
        let Ok((mut inner, _)) = listener.accept().await else { return };
        tokio::spawn(async move {
            // A connection that fails is seen at its ends.
            if let Ok(mut outer) = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                let _ = tokio::io::copy_bidirectional(&mut inner, &mut outer).await;
            }
        });
    }
}
