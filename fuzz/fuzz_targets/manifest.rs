//! No file makes the reader panic, and what it takes for valid can be written and read again.
#![no_main]

use fivespot_api::read_manifest;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &str| {
    let Ok(documents) = serde_saphyr::from_multiple::<Value>(text) else { return };
    for document in documents {
        if let Ok((machine, intent)) = read_manifest(&document) {
            let again = read_manifest(&serde_json::to_value(&machine).unwrap()).unwrap();
            assert_eq!(again.1, intent);
        }
    }
});
