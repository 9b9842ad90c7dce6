//! What is read prints the same.
#![no_main]

use fivespot_api::AgentConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(config) = AgentConfig::parse(text) {
        assert_eq!(AgentConfig::parse(&config.to_toml()), Ok(config));
    }
});
