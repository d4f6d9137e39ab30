//! Commands against a unit over a byte array.
