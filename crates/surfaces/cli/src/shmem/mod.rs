//! OpenSHMEM for users of the command: compiler wrappers, and installing what programs need.

mod install;
mod places;
mod wrapper;

pub use install::install;
pub use wrapper::{Language, wrap};
