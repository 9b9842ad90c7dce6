//! Whatever comes in, one line of visible characters comes out, within its bound, and a second time changes nothing.
#![no_main]

use fivespot_core::text::{is_hidden, printable};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for bound in [0, 3, text.len() / 2, text.len(), 500, usize::MAX] {
        let shown = printable(text, bound);
        assert!(shown.len() <= bound && !shown.contains(is_hidden));
        assert_eq!(printable(&shown, bound), shown);
    }
});
