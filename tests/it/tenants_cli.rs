//! `trunkline tenant` and `trunkline key`.
