//! C programs that call each function with each type.
