//! What is read is within bounds.
#![no_main]

use fivespot_core::duration;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(length) = duration::parse(text) {
        assert!(length.as_secs() <= 24 * 3600);
    }
});
