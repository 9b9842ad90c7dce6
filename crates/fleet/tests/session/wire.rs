//! What can happen between an operator and its shard.

use crate::harness::front::Front;
use crate::harness::road::{Road, Weather};
use crate::harness::shard::PlayedShard;
use crate::harness::yard::Yard;
use crate::harness::{CLUSTER, Operator, plane};
use fivespot_fleet::wire::MachineState::{Configured, Draining};
use fivespot_fleet::wire::operator_message::Payload;
use fivespot_fleet::wire::shard_client::ShardClient;
use fivespot_fleet::wire::{Hello, OperatorMessage, ShardMessage};
use fivespot_testenv::{eventually, is_proof};
use futures::StreamExt;
use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A drain is not disturbed by what happens to the session, and the session comes back by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_goes_on_while_frames_break_the_shard_goes_deaf_or_is_gone() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "wire").await;
    let shard = PlayedShard::start().await;
    let road = Road::to(&shard.address).await;
    yard.node("wire-0", |_| {}).await;
    yard.pod("wire-0", "held", |_| {}).await;
    yard.budget("held").await;
    shard.bind(&[("wire-0", Configured)]);
    let operator = Operator::start(plane, "wire", &road.address, &[]);
    yard.until_phase("wire-0", "Ready").await;
    shard.instruct("wire", &["wire-0"], 600);
    shard.acked("wire").await;
    let deadline = yard.record("wire-0").await.unwrap().deadline;
    // From here on the machine is known to drain.
    shard.bind(&[("wire-0", Draining)]);

    road.weather(Weather::Corrupt);
    eventually("the broken session has ended", async || {
        operator.log().contains("the shard ended the session")
    })
    .await;
    road.weather(Weather::Fine);
    shard.until("another session", |shard| shard.sessions() >= 2 && shard.is_connected()).await;

    // A shard that does not read is noticed by the acks that do not come.
    tokio::time::sleep(Duration::from_secs(1)).await;
    road.weather(Weather::Deaf);
    eventually("the silence is noticed", async || operator.log().contains("no rollup was acknowledged"))
        .await;
    road.weather(Weather::Fine);
    shard.until("another session", |shard| shard.sessions() >= 3).await;

    // A shard that does not acknowledge has another operator for this cluster, or hangs.
    shard.until("a rollup", |shard| shard.rollups().len() > 3).await;
    shard.be_mute(true);
    let before = shard.sessions();
    shard.until("another session", |shard| shard.sessions() > before).await;
    shard.be_mute(false);

    // Another who speaks for the cluster takes the session over, and nobody says so.
    shard.until("a session", PlayedShard::is_connected).await;
    let before = shard.sessions();
    let intruder = intrude(&shard.address).await;
    shard.until("both sessions", |shard| shard.sessions() > before).await;
    shard.until("the operator again", |shard| shard.sessions() > before + 1).await;
    drop(intruder);

    // Gone, and there again at the same place.
    let address = road.address.clone();
    drop(road);
    eventually("it is missed", async || operator.http("/ready").0 == 503).await;
    let gone = if is_proof() { 60 } else { 4 };
    tokio::time::sleep(Duration::from_secs(gone)).await;
    assert!(operator.runs());
    let before = shard.sessions();
    let _road = Road::between(&address, &shard.address).await;
    let began = std::time::Instant::now();
    shard.until("a session after the outage", |shard| shard.sessions() > before).await;
    println!("a session {:?} after the shard was back from {gone} s of absence", began.elapsed());
    let record = yard.record("wire-0").await.unwrap();
    assert_eq!((record.deadline, record.instructions.len()), (deadline, 1), "one drain all the time");
    yard.drop_budget("held").await;
    yard.until_phase("wire-0", "Drained").await;
}

/// Five megabytes of demand are one message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollup_of_five_megabytes_arrives_whole() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "big").await;
    let shard = PlayedShard::start().await;
    // Values of labels are short, so a great demand has many: 64 requests with 80 KB each.
    let client = yard.requests();
    for number in 0..64 {
        let values: Vec<String> =
            (0..256).map(|value| format!("{number:03}-{value:03}-{}", "x".repeat(320))).collect();
        let request = json!({
            "apiVersion": "bigfleet.lucy.sh/v1alpha1", "kind": "CapacityRequest",
            "metadata": {"name": format!("big-{number}")},
            "spec": {
                "requirements": [{"key": "rack", "operator": "In", "values": values}],
                "resources": {"nvidia.com/gpu": "8"},
                "priority": 1,
            },
        });
        let request = serde_json::from_value(request).unwrap();
        client.create(&kube::api::PostParams::default(), &request).await.unwrap();
    }
    let front = Front::before(plane, "big", &shard.address);
    let _operator = Operator::start(plane, "big", &front.address, &["--rollup-interval=5s"]);
    shard.until("all of it", |shard| shard.gpus() == Some(64 * 8)).await;
    let size = shard.last_rollup_bytes();
    println!("a rollup of {size} bytes arrived");
    assert!(size > 5 << 20, "{size}");
    let before = shard.rollups().len();
    shard.until("more of them, in the same session", |shard| shard.rollups().len() >= before + 2).await;
    assert_eq!(shard.sessions(), 1);
}

/// Who is not who he says is told once, and does not hammer; new files are taken with the next session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_certificate_of_this_cluster_opens_a_session() {
    let (plane, _turn) = plane().await;
    let _yard = Yard::new(plane, "tls").await;
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::new();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let (certificate, key) = ca.sign(&["127.0.0.1"], "bigfleet://shard/shard-0");
    write("ca", &ca.certificate);
    write("shard-cert", &certificate);
    write("shard-key", &key);
    let (wrong, wrong_key) = ca.sign(&[], "bigfleet://cluster/another");
    write("cert", &wrong);
    write("key", &wrong_key);
    let flag =
        |flag: &str, file: &str| format!("--tls-{flag}={}", Path::new(folder.path()).join(file).display());
    let flags = [flag("cert", "cert"), flag("key", "key"), flag("ca", "ca")];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let shard = PlayedShard::start().await;
    let own = [flag("cert", "shard-cert"), flag("key", "shard-key"), flag("ca", "ca")];
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let front = Front::start(plane, "tls", &shard.address, "127.0.0.1:0", &own);
    let operator = Operator::start(plane, "tls", &front.address, &flags);
    let refusal = format!("the certificate is of [bigfleet://cluster/another], not of cluster {CLUSTER}");
    eventually("it is refused", async || operator.log().contains(&refusal)).await;
    // It comes again after 15 s at the earliest.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let refused = operator.log().matches(&refusal).count();
    assert_eq!(refused, 1, "told once:\n{}", operator.log());
    assert_eq!(shard.sessions(), 0);
    let (status, why) = operator.http("/ready");
    assert_eq!(status, 503);
    assert!(why.contains(&format!("no session: the shard ended the session: {refusal}")), "{why}");
    drop(operator);

    let (right, right_key) = ca.sign(&[], &format!("bigfleet://cluster/{CLUSTER}"));
    write("cert", &right);
    write("key", &right_key);
    let operator = Operator::start(plane, "tls", &front.address, &flags);
    shard.until("hello", PlayedShard::is_connected).await;
    eventually("it is ready", async || operator.http("/ready").0 == 200).await;
    drop(operator);

    // A shard that the authority does not know is not spoken to.
    let other = Authority::new();
    write("ca", &other.certificate);
    let operator = Operator::start(plane, "tls", &front.address, &flags);
    eventually("it is not believed", async || operator.log().contains("cannot reach the shard")).await;
    assert_eq!(shard.sessions(), 1);
    // Nor is a file that is not there a riddle.
    fs::remove_file(folder.path().join("key")).unwrap();
    eventually("the file is named", async || operator.log().contains("--tls-key: cannot use")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_speaks_an_old_tls_is_not_spoken_to() {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::version::{TLS12, TLS13};
    use tokio_rustls::rustls::{ServerConfig, crypto::ring};
    let (plane, _turn) = plane().await;
    let _yard = Yard::new(plane, "old").await;
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::new();
    let (certificate, key) = ca.sign(&["127.0.0.1"], "bigfleet://shard/shard-0");
    for (name, text) in [("ca", &ca.certificate), ("cert", &certificate), ("key", &key)] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let flags = ["ca", "cert", "key"].map(|it| format!("--tls-{it}={}", folder.path().join(it).display()));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    for (version, is_old) in [(&TLS12, true), (&TLS13, false)] {
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(std::sync::Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let greeting = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            acceptor.accept(stream).await.map(drop).map_err(|error| error.to_string())
        });
        let _operator = Operator::start(plane, "old", &address, &flags);
        let outcome = greeting.await.unwrap();
        assert_eq!(outcome.is_err(), is_old, "{outcome:?}");
    }
}

/// A Go server hangs up on who asks too often whether it is there. Here nobody does: between two rollups there is silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_session_lasts() {
    let (plane, _turn) = plane().await;
    let _yard = Yard::new(plane, "idle").await;
    let shard = PlayedShard::start().await;
    let front = Front::before(plane, "idle", &shard.address);
    let operator = Operator::start(plane, "idle", &front.address, &["--rollup-interval=24h"]);
    shard.until("a rollup", |shard| shard.rollups().len() == 1).await;
    tokio::time::sleep(if is_proof() { Duration::from_mins(15) } else { Duration::from_secs(15) }).await;
    shard.ask_bootstrap("after", CLUSTER);
    shard.until("a blob", |shard| shard.blob("after").is_some()).await;
    assert_eq!((shard.sessions(), shard.rollups().len()), (1, 1), "{}", operator.log());
}

/// A shard that is killed, and started again at the same place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_killed_is_dialled_again_and_hears_the_ack() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "killed").await;
    let shard = PlayedShard::start().await;
    yard.node("killed-0", |_| {}).await;
    yard.pod("killed-0", "held", |_| {}).await;
    yard.budget("held").await;
    shard.bind(&[("killed-0", Configured)]);
    let front = Front::before(plane, "killed", &shard.address);
    let operator = Operator::start(plane, "killed", &front.address, &[]);
    yard.until_phase("killed-0", "Ready").await;
    // The API server takes a while, and the shard is gone before there is anything to be said to it.
    plane.freeze_api_server(plane.management()).unwrap();
    shard.instruct("killed", &["killed-0"], 600);
    eventually("it is heard", async || operator.log().contains("the shard wants Nodes back")).await;
    let address = front.address.clone();
    front.process.signal("-KILL");
    eventually("it is missed", async || operator.http("/ready").0 == 503).await;
    drop(front);
    plane.thaw_api_server(plane.management()).unwrap();
    eventually("it is cordoned", async || yard.is_cordoned("killed-0").await).await;
    assert_eq!(shard.acks("killed"), [], "there is nobody to hear it");
    shard.bind(&[("killed-0", Draining)]);
    let _front = Front::start(plane, "killed", &shard.address, &address, &[]);
    assert_eq!(shard.acked("killed").await.1, 1);
    yard.drop_budget("held").await;
    yard.until_phase("killed-0", "Drained").await;
}

/// Somebody else begins a session in the name of the cluster.
async fn intrude(address: &str) -> tonic::Streaming<ShardMessage> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = ShardClient::new(endpoint.connect().await.unwrap());
    let hello = Hello { cluster_id: CLUSTER.to_owned(), protocol_version: "v1alpha1".to_owned() };
    let hello = OperatorMessage { payload: Some(Payload::Hello(hello)) };
    let words = futures::stream::iter([hello]).chain(futures::stream::pending());
    client.session(words).await.unwrap().into_inner()
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn sign(&self, names: &[&str], uri: &str) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.subject_alt_names.push(SanType::URI(Ia5String::try_from(uri).unwrap()));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}
