//! What is read can be printed and read again.
#![no_main]

use fivespot_core::schedule::Hours;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(hours) = Hours::parse(text) {
        assert_eq!(Hours::parse(&hours.to_string()), Ok(hours));
    }
});
