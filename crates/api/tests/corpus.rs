//! Everything the fuzzers ever kept is read again on every run: no input panics, and what is read prints the same.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use fivespot_api::{AgentConfig, read_manifest};
use fivespot_core::duration;
use fivespot_core::schedule::{Cron, Days, Hours};
use fivespot_core::text::{is_hidden, printable};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The texts of one target's corpus. libFuzzer also keeps bytes that are no text: its targets never see them.
fn corpus(target: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let texts: Vec<String> = entries.filter_map(|bytes| String::from_utf8(bytes).ok()).collect();
    assert!(texts.len() >= 5, "{target}: {} texts", texts.len());
    texts
}

#[test]
fn schedules() {
    for text in corpus("days") {
        let _ = Days::parse(&text).map(|days| assert_eq!(Days::parse(&days.to_string()), Ok(days)));
    }
    for text in corpus("hours") {
        let _ = Hours::parse(&text).map(|hours| assert_eq!(Hours::parse(&hours.to_string()), Ok(hours)));
    }
    for text in corpus("cron") {
        let _ = Cron::parse(&text).map(|cron| assert_eq!(Cron::parse(&cron.to_string()), Ok(cron)));
    }
}

#[test]
fn durations() {
    let lengths: Vec<_> = corpus("duration").iter().filter_map(|text| duration::parse(text).ok()).collect();
    assert!(lengths.len() >= 3 && lengths.iter().all(|length| length.as_secs() <= 24 * 3600));
}

#[test]
fn configurations_of_the_agent() {
    let configs: Vec<_> =
        corpus("agent_config").iter().filter_map(|text| AgentConfig::parse(text).ok()).collect();
    assert!(configs.len() >= 3, "{} valid ones", configs.len());
    for config in configs {
        assert_eq!(AgentConfig::parse(&config.to_toml()), Ok(config));
    }
}

#[test]
fn texts_of_others() {
    let mut hidden = 0;
    for text in corpus("text") {
        hidden += usize::from(text.contains(is_hidden));
        for bound in [0, 3, text.len() / 2, text.len(), 500, usize::MAX] {
            let shown = printable(&text, bound);
            assert!(shown.len() <= bound && !shown.contains(is_hidden), "{text:?} in {bound}: {shown:?}");
            assert_eq!(printable(&shown, bound), shown, "{text:?} in {bound}");
        }
    }
    assert!(hidden >= 5, "{hidden} with hidden characters");
}

#[test]
fn manifests() {
    let mut valid = 0;
    for text in corpus("manifest") {
        for document in serde_saphyr::from_multiple::<Value>(&text).unwrap_or_default() {
            valid += usize::from(read_manifest(&document).is_ok());
        }
    }
    assert!(valid >= 4, "{valid} valid ones");
}
