//! Who may read the metrics of the controller, with `--metrics-auth` and by the NetworkPolicy.

use crate::harness::{Controller, from_root, install};
use crate::proxy::{Call, Executioner, Fate, Proxy};
use crate::{end, plane};
use fivespot_testenv::{AuditEntry, ControlPlane, Scraped, Scraper, assert_only_scrapers_reach, eventually};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long both reviews of a token may take.
const REVIEW: Duration = Duration::from_secs(5);

/// How long an answer of the API server is remembered.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Those who want to read, and the rights that `deploy/metrics-auth` gives the controller. All of it is taken away at the
/// end: a test beside this one looks for rights that are not used.
struct Scene {
    plane: &'static ControlPlane,
    namespace: String,
}

impl Scene {
    async fn new(plane: &'static ControlPlane) -> Self {
        install(plane);
        let client = plane.management().client().await.unwrap();
        let namespace = plane.management().fresh_namespace(&client, "scraped").await.unwrap();
        let scene = Self { plane, namespace };
        for account in ["prometheus", "stranger"] {
            scene.kubectl(&["create", "serviceaccount", account]);
        }
        scene
    }

    fn kubectl(&self, args: &[&str]) -> String {
        let args = [&["-n", &self.namespace], args].concat();
        self.plane.kubectl(self.plane.management(), &args, "").unwrap()
    }

    /// Lets the controller review tokens.
    fn let_review(&self) {
        self.kubectl(&["apply", "-f", from_root("deploy/metrics-auth/rbac.yaml").to_str().unwrap()]);
    }

    /// Lets the account `prometheus` read metrics.
    fn let_read(&self) {
        let account = format!("--serviceaccount={}:prometheus", self.namespace);
        let role = "--clusterrole=5spot-metrics-reader";
        self.kubectl(&["create", "clusterrolebinding", &self.namespace, role, &account]);
    }

    fn token(&self, account: &str, args: &[&str]) -> String {
        let args = [&["create", "token", account, "--duration=1h"], args].concat();
        self.kubectl(&args).trim().to_owned()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let rights = from_root("deploy/metrics-auth/rbac.yaml");
        for args in [
            &["delete", "--ignore-not-found", "-f", rights.to_str().unwrap()][..],
            &["delete", "--ignore-not-found", "clusterrolebinding", &self.namespace],
        ] {
            let _ = self.plane.kubectl(self.plane.management(), args, "");
        }
    }
}

async fn get(scraper: &Scraper, token: Option<&str>) -> Scraped {
    scraper.get("/metrics", token).await.unwrap()
}

/// What `deploy/metrics-auth` sets in the environment of the controller.
fn overlay_env(plane: &ControlPlane) -> Vec<(String, String)> {
    let overlay = from_root("deploy/metrics-auth");
    let apply = ["apply", "--server-side", "--dry-run=server", "-o", "json", "-k", overlay.to_str().unwrap()];
    let applied: Value =
        serde_json::from_str(&plane.kubectl(plane.management(), &apply, "").unwrap()).unwrap();
    let all = applied["items"].as_array().unwrap();
    let deployment = all.iter().find(|it| it["kind"] == "Deployment").unwrap();
    let env = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    env.iter().filter_map(|it| Some((text(&it["name"])?, text(&it["value"])?))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_need_the_token_of_a_user_who_may_read_them() {
    let (plane, _turn) = plane().await;
    let scene = Scene::new(plane).await;
    let env = overlay_env(plane);
    let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let controller = Controller::start_with(plane, "scraped", &[], &env);
    let scraper = Scraper::new(controller.port("metrics_port"));
    let (prometheus, stranger) = (scene.token("prometheus", &[]), scene.token("stranger", &[]));

    // A controller that may not ask lets nobody in, and says in its log what it lacks.
    assert_eq!(get(&scraper, Some(&prometheus)).await.status, 503);
    assert!(controller.log().contains("cannot create resource \\\"tokenreviews\\\""), "{}", controller.log());
    scene.let_review();
    eventually("it may review tokens", async || get(&scraper, Some(&prometheus)).await.status == 403).await;

    let anonymous = get(&scraper, None).await;
    assert_eq!(anonymous.status, 401);
    assert_eq!(anonymous.headers["www-authenticate"], "Bearer");
    let elsewhere = scene.token("prometheus", &["--audience=elsewhere"]);
    for token in ["nonsense", elsewhere.as_str()] {
        assert_eq!(get(&scraper, Some(token)).await.status, 401);
    }
    let refused = get(&scraper, Some(&stranger)).await;
    assert_eq!(refused.status, 403);
    for answer in [&anonymous, &refused] {
        assert!(!answer.text.contains("fivespot_") && !answer.text.contains("stranger"), "{}", answer.text);
    }

    scene.let_read();
    let began = Instant::now();
    eventually("the reader is let in", async || get(&scraper, Some(&prometheus)).await.status == 200).await;
    println!("let in {:.1?} after the right was given", began.elapsed());
    assert!(get(&scraper, Some(&prometheus)).await.text.contains("fivespot_slot_held"));
    assert_eq!(get(&scraper, Some(&stranger)).await.status, 403);
    scene.kubectl(&["delete", "clusterrolebinding", &scene.namespace]);
    let began = Instant::now();
    eventually("the reader is kept out", async || get(&scraper, Some(&prometheus)).await.status == 403).await;
    println!("kept out {:.1?} after the right was taken away", began.elapsed());
    assert!(began.elapsed() < REMEMBERED + Duration::from_secs(5));

    // Probes have no token; and no token goes over plain HTTP.
    assert_eq!((controller.http("/health").0, controller.http("/ready").0), (200, 200));
    let mut plain = TcpStream::connect(("127.0.0.1", controller.port("metrics_port"))).unwrap();
    write!(plain, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {prometheus}\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "{answer:?}");
    for token in [&prometheus, &stranger, &elsewhere] {
        assert!(!controller.log().contains(token.as_str()), "a token is in the log");
    }
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_tokens_leads_to_few_reviews_and_keeps_no_reader_out() {
    let (plane, _turn) = plane().await;
    let scene = Scene::new(plane).await;
    scene.let_review();
    scene.let_read();
    let controller = Controller::start(plane, "flooded", &["--metrics-auth"]);
    let scraper = Scraper::new(controller.port("metrics_port"));
    let token = scene.token("prometheus", &[]);
    eventually("the reader is let in", async || get(&scraper, Some(&token)).await.status == 200).await;

    let (since, began, during) = (Timestamp::now(), Instant::now(), REMEMBERED + Duration::from_secs(2));
    let flood = |lane: usize| {
        let scraper = scraper.clone();
        async move {
            let mut statuses = Vec::new();
            while began.elapsed() < during {
                let token = format!("guess-{lane}-{}", statuses.len());
                statuses.push(get(&scraper, Some(&token)).await.status);
            }
            statuses
        }
    };
    let floods: Vec<_> = (0..20).map(|lane| tokio::spawn(flood(lane))).collect();
    let mut let_in = 0;
    while began.elapsed() < during {
        let status = get(&scraper, Some(&token)).await.status;
        assert_eq!(status, 200, "the reader is kept out after {:?}", began.elapsed());
        let_in += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut statuses = Vec::new();
    for flood in floods {
        statuses.extend(flood.await.unwrap());
    }
    let took = began.elapsed();
    let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!(count(401) + count(429), statuses.len(), "{statuses:?}");
    let is_review = |entry: &AuditEntry| {
        entry.at >= since
            && entry.user_agent.ends_with("(flooded)")
            && entry.resource == "tokenreviews"
            && entry.stage == "ResponseComplete"
    };
    let reviews = plane.management().audit().unwrap().into_iter().filter(is_review).count();
    println!("{} tokens and {let_in} scrapes in {took:.1?} led to {reviews} reviews", statuses.len());
    // Ten at once, five a second, and two of the reader.
    let most = 12 + usize::try_from(took.as_millis() / 200).unwrap();
    assert!(reviews <= most, "{reviews} reviews, {most} at most");
    assert!(statuses.len() > 2 * most, "{} tokens are no flood", statuses.len());
    end(&controller);
}

/// An API server that does not answer reviews for a while.
struct Silence(watch::Sender<bool>);

impl Executioner for Silence {
    async fn judge(&self, _: &Call) -> Fate {
        Fate::Made
    }

    fn kill(&self) {}

    async fn may_be_answered(&self, call: &Call) {
        if call.path.ends_with("reviews") {
            // The sender lives, so the wait cannot fail.
            let _ = self.0.subscribe().wait_for(|is_silent| !is_silent).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_refused_while_the_api_server_does_not_answer() {
    let (plane, _turn) = plane().await;
    let scene = Scene::new(plane).await;
    scene.let_review();
    scene.let_read();
    let silence = Arc::new(Silence(watch::Sender::new(false)));
    let admin = plane.management().client().await.unwrap();
    let proxy = Proxy::start(admin, Arc::clone(&silence)).await;
    let controller = Controller::start_through(plane, "silenced", &proxy.url, &["--metrics-auth"]);
    let scraper = Scraper::new(controller.port("metrics_port"));
    let token = scene.token("prometheus", &[]);
    eventually("the reader is let in", async || get(&scraper, Some(&token)).await.status == 200).await;
    silence.0.send_replace(true);
    let silent_since = Instant::now();
    assert_eq!(get(&scraper, None).await.status, 401, "for that nobody is asked");
    let answer = get(&scraper, Some("nonsense")).await;
    let took = silent_since.elapsed();
    println!("an unknown token got {} after {took:.1?}: {}", answer.status, answer.text.trim());
    assert_eq!(answer.status, 503);
    assert!(took < REVIEW + Duration::from_secs(2), "{took:?}");
    tokio::time::sleep(REMEMBERED.saturating_sub(silent_since.elapsed())).await;
    let began = Instant::now();
    assert_eq!(get(&scraper, Some(&token)).await.status, 503, "also for one who was let in before");
    assert!(began.elapsed() < REVIEW + Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(controller.http("/ready").0, 200);
    silence.0.send_replace(false);
    eventually("the reader is let in again", async || get(&scraper, Some(&token)).await.status == 200).await;
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_a_certificate_that_a_scraper_can_check() {
    let (plane, _turn) = plane().await;
    install(plane);
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let file = |name: &str| plane.management().kubeconfig_path().with_file_name(name);
    let (certificate, key) = (file("metrics.crt"), file("metrics.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let files = [
        "--metrics-auth".to_owned(),
        format!("--metrics-cert-file={}", certificate.display()),
        format!("--metrics-key-file={}", key.display()),
    ];
    let certified = Controller::start(plane, "certified", &files.each_ref().map(String::as_str));
    let der = made.cert.der().to_vec();
    let scraper = Scraper::trusting(certified.port("metrics_port"), der.clone());
    assert_eq!(get(&scraper, None).await.status, 401);
    end(&certified);
    let itself = Controller::start(plane, "self-signed", &["--metrics-auth"]);
    let port = itself.port("metrics_port");
    let error = Scraper::trusting(port, der).get("/metrics", None).await.unwrap_err();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    assert_eq!(get(&Scraper::new(port), None).await.status, 401);
    end(&itself);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_are_few_and_keep_no_reader_out() {
    let (plane, _turn) = plane().await;
    install(plane);
    let controller = Controller::start(plane, "crowded", &["--metrics-auth"]);
    let port = controller.port("metrics_port");
    eventually("it is ready", async || controller.http("/ready").0 == 200).await;
    let before = controller.sockets();
    let crowd: Vec<_> = (0..500).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    // A connection of its own, after all of these.
    assert_eq!(get(&Scraper::new(port), None).await.status, 401);
    // A busy machine takes a moment to close what is given up.
    eventually("few are open", async || controller.sockets() <= before + 64 + 8).await;
    println!(
        "{} connections: {before} of its sockets before, {} with them",
        crowd.len(),
        controller.sockets()
    );
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_network_policy_lets_only_scrapers_reach_the_controller() {
    let (plane, _turn) = plane().await;
    install(plane);
    let read = |kind: &str| -> Value {
        let get = ["-n", "5spot-system", "get", kind, "5spot-controller", "-o", "json"];
        serde_json::from_str(&plane.kubectl(plane.management(), &get, "").unwrap()).unwrap()
    };
    let template = read("deployment")["spec"]["template"].clone();
    assert_only_scrapers_reach(&read("networkpolicy"), &template, &json!("metrics"));
}
