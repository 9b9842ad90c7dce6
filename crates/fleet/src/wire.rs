//! The protocol, as `cargo xtask codegen` makes it of `proto/bigfleet.proto`.

#![expect(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    reason = "generated: the description has the words"
)]

include!("wire/bigfleet.v1alpha1.rs");
