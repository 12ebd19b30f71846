//! Callbacks: a signed POST to an address of the caller's choice when its call has ended.
//!
//! - [`signature`]: the headers by which a receiver recognises the gateway (Standard Webhooks)
//! - [`schedule`]: when a delivery that failed is tried again
//! - [`send`]: one attempt
//! - `event`: the body
//! - [`keys`]: seals the keys
//! - `deliver`: delivers what is due, tenant by tenant

pub(super) mod deliver;
pub(super) mod event;
pub mod keys;
pub mod schedule;
pub mod send;
pub mod signature;
