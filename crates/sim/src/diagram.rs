//! The phases, drawn from what can happen.
