//! Servers of all kinds, simulated on a time of its own.

mod kinds;
mod simulation;
