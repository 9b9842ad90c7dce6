//! What is read can be printed and read again.
#![no_main]

use fivespot_core::schedule::Days;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(days) = Days::parse(text) {
        assert_eq!(Days::parse(&days.to_string()), Ok(days));
    }
});
